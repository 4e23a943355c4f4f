"""The app around its pages: opening, moving, leaving, sizes, remaps, failures."""

import subprocess
import sys
from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from engines.record.run_dir import Workspace
from studio.session.session import ControllerChanged, Disconnected
from studio.tui.app import StudioApp
from studio.tui.drafts import Drafts
from studio.tui.settings import ScreenSettings
from tests.studio.tui.stage import FakeSession, app_on, held_workspace, picture


def on_a_run(folder: Path, settings: ScreenSettings | None = None) -> tuple[StudioApp, FakeSession]:
    workspace = held_workspace(folder)
    session = FakeSession(workspace.run("mine"))
    return app_on(session, workspace, settings), session


async def test_without_a_run_it_opens_on_start_and_says_so(tmp_path: Path) -> None:
    app = app_on(None, held_workspace(tmp_path))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert app.page_name == "start"
        assert "NO RUN" in picture(app)[0]
        await pilot.press("s", "p")
        await app.wait_for_requests()
        await pilot.pause()
        assert "no run is open here" in picture(app)[-2]


async def test_the_number_keys_open_the_pages_and_escape_goes_back(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert app.page_name == "live"
        pages = ("live", "review", "library", "diff", "runs", "inspect")
        for number, page in enumerate(pages, start=1):
            await pilot.press(str(number))
            await pilot.pause()
            assert app.page_name == page
            assert app.query_one("#pages").current == page  # type: ignore[attr-defined]
            assert f"[{number} {page.capitalize()}" in picture(app)[1]
        await pilot.press("0")
        assert app.page_name == "start"
        await pilot.press("escape")  # a number key leaves nothing behind to come back to
        assert app.page_name == "start" and "q leaves" in picture(app)[-2]
        app.open_page("inspect", "s1p0r0")
        await pilot.pause()
        await pilot.press("escape")
        assert app.page_name == "start"


async def test_q_detaches_and_the_run_is_asked_nothing(tmp_path: Path) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test() as pilot:
        await pilot.pause()
        await pilot.press("2", "q")
        await pilot.pause()
    assert session.closed and app.return_value == 0
    assert not {"stop", "pause", "decide", "commit"} & set(session.names())
    assert Drafts(session.run).left_at[0] == "review"


async def test_ctrl_c_warns_once_and_then_detaches(tmp_path: Path) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.is_running and "the run goes on" in picture(app)[-2]
        await pilot.press("ctrl+c")
        await pilot.pause()
    assert session.closed and app.return_value == 0


async def test_ctrl_q_is_no_way_out(tmp_path: Path) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press("ctrl+q")
        await pilot.pause()
        assert not session.closed and app.return_value is None


async def test_a_file_that_was_written_is_told_with_the_workspace() -> None:
    app = app_on(None, Workspace(Path("work")))
    async with app.run_test(size=(120, 36)):
        app.tell(f"written to {Path('work').absolute()}/exports/runs.csv")
        assert picture(app)[-2].strip() == "written to work/exports/runs.csv"
        app.workspace = Workspace(Path("/srv") / ("long" * 30) / "work")
        app.tell(f"written to {app.workspace.path}/exports/runs.csv")
        assert picture(app)[-2].strip() == "written to exports/runs.csv"
        app.workspace = Workspace(Path("work"))
        app.tell("work/exports/runs.csv: the disk is full", "failed")  # the room is for why
        assert picture(app)[-2].strip() == "exports/runs.csv: the disk is full"


async def test_the_screen_comes_back_to_where_the_person_was(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    drafts = Drafts(workspace.run("mine"))
    drafts.page = "library"
    drafts.save()
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test() as pilot:
        await pilot.pause()
        await pilot.pause()
        assert app.page_name == "library"


async def test_a_page_that_no_longer_exists_is_not_gone_back_to(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    drafts = Drafts(workspace.run("mine"))
    drafts.page = "[red]"
    drafts.save()
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.page_name == "live"


async def test_a_remapped_key_is_heard_and_the_old_one_no_longer(tmp_path: Path) -> None:
    settings = ScreenSettings(
        theme="studio-dark", keys={"global.runs": "f5", "global.next_pane": "f6"}
    )
    app, _ = on_a_run(tmp_path, settings)
    async with app.run_test() as pilot:
        await pilot.press("5")
        assert app.page_name == "live"
        await pilot.press("f5")
        assert app.page_name == "runs"
        await pilot.press("3")
        await pilot.pause()
        before = app.focused
        await pilot.press("tab")
        assert app.focused is before
        await pilot.press("f6")
        assert app.focused is not before


async def test_an_unknown_remap_is_refused_naming_both(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path, ScreenSettings(keys={"global.rums": "f5"}, place="screen.yaml"))
    with pytest.raises(ConfigError, match=r"global\.rums.*Did you mean .global\.runs"):
        async with app.run_test():
            pass


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 16)])
async def test_every_page_fits_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=size) as pilot:
        for key in "1234560":
            await pilot.press(key)
            await pilot.pause()
            assert len(picture(app)) == size[1]
            assert "studio" in picture(app)[0]
        assert "wants 80x24" not in "\n".join(picture(app))


async def test_a_terminal_that_is_too_small_is_told_and_nothing_breaks(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    async with app.run_test(size=(59, 15)) as pilot:
        await pilot.pause()
        assert "terminal is 59x15" in picture(app)[-2]
        for size in ((10, 3), (1, 1), (200, 60), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert "HELD" in picture(app)[0]


async def test_who_only_looks_on_writes_no_drafts(tmp_path: Path) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test() as pilot:
        await pilot.pause()
        await session.push(ControllerChanged(False, "ann"))
        assert not app.drafts.writes
        await pilot.pause()
        assert "ann decides now" in picture(app)[-2]


async def test_a_lost_line_is_told(tmp_path: Path) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test() as pilot:
        await pilot.pause()
        await session.push(Disconnected("the process hangs", ended=False))
        await pilot.pause()
        assert "the process hangs; trying again" in picture(app)[-2]


async def test_attaching_to_what_is_no_run_keeps_the_one_that_is_open(tmp_path: Path) -> None:
    app, session = on_a_run(tmp_path)
    async with app.run_test() as pilot:
        await pilot.pause()
        app.attach("nowhere")
        await app.workers.wait_for_complete([w for w in app.workers if w.group == "attach"])
        await pilot.pause()
        assert app.session is session and not session.closed
        assert "nowhere" in picture(app)[-2]


def test_the_app_imports_nothing_heavy() -> None:
    heavy = "openai pydantic sympy torch numpy httpx tinydb"
    code = f"import sys, studio.tui.app\nprint([m for m in '{heavy}'.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_message_goes_when_its_time_is_over_or_a_page_is_opened(tmp_path: Path) -> None:
    app, _ = on_a_run(tmp_path)
    now = [1_000.0]
    app.clock = lambda: now[0]
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("5")

        def said(after_s: float = 0.0) -> str:
            now[0] += after_s
            app.draw_frame()
            return picture(app)[-2].strip()

        await pilot.pause()
        app.tell("approved")
        assert said() == said(7) == "approved" and said(2) == ""
        app.tell("refused", "failed")
        assert said(19) == "refused" and said(2) == ""
        app.tell("nothing is under the cursor", "failed")
        await pilot.press("3")
        assert said() == ""  # a page was opened
