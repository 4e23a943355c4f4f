"""Help, settings and palette: made from the key table, at both sizes."""

from pathlib import Path

import pytest
from textual.command import CommandList

from studio.tui.app import StudioApp
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.help import HelpScreen, SettingsScreen, help_lines
from studio.tui.keymap import KEYS, keys_of_scope, remap_keys
from studio.tui.palette import StudioCommands
from studio.tui.settings import ScreenSettings, read_settings
from studio.tui.widgets.line_view import RowList
from tests.studio.tui.pictures import check_picture
from tests.studio.tui.stage import (
    FakeSession,
    app_on,
    finished_workspace,
    held_workspace,
    picture,
)

SIZES = [(120, 36), (80, 24)]
SCOPES = ("list", "review", "loop", "global")


def an_app(folder: Path, settings: ScreenSettings | None = None) -> StudioApp:
    workspace = held_workspace(folder)
    return app_on(FakeSession(workspace.run("mine")), workspace, settings)


@pytest.mark.parametrize("width", [56, 76, 100])
def test_the_help_names_every_key_within_its_width(width: int) -> None:
    lines = help_lines(KEYS, SCOPES, [("size", "120x36 cells")], width)
    assert max(width_of(one) for one in lines) <= width
    text = "\n".join(plain_text(one) for one in lines)
    for scope in SCOPES:
        for key in keys_of_scope(scope):
            assert key.key_text in text, key.id
            assert key.tooltip.split()[0] in text, key.id
    assert "What is safe?" in text and "120x36 cells" in text
    assert text.index("lists and panes") < text.index("Review") < text.index("everywhere")


def test_the_help_shows_keys_as_they_were_remapped() -> None:
    table = remap_keys({"review.approve": "f5,f6"}, "screen.yaml")
    text = "\n".join(plain_text(one) for one in help_lines(table, SCOPES, [], 100))
    assert "f5, f6" in text


@pytest.mark.parametrize("size", SIZES)
async def test_help_opens_copies_and_closes(
    tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = an_app(Path())
    async with app.run_test(size=size) as pilot:
        await pilot.press("2", "question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        check_picture(app, f"help-{size[0]}x{size[1]}")
        await pilot.press("G")
        await pilot.pause()
        assert "journal" in "\n".join(picture(app))
        await pilot.press("y")
        assert "Approve, and show the next." in app.clipboard
        assert f"{size[0]}x{size[1]} cells" in app.clipboard
        assert "practice/runs/mine/journal.jsonl" in app.clipboard
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, HelpScreen) and app.page_name == "review"


@pytest.mark.parametrize("key", ["escape", "q", "question_mark"])
async def test_help_is_left_by_the_keys_one_tries_first(tmp_path: Path, key: str) -> None:
    app = an_app(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press("question_mark")
        await pilot.press(key)
        await pilot.pause()
        assert not isinstance(app.screen, HelpScreen)
        assert app.is_running and app.session is not None


@pytest.mark.parametrize("size", SIZES)
async def test_settings_are_shown_changed_and_kept(
    tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = an_app(Path())
    async with app.run_test(size=size) as pilot:
        await pilot.press("3", "f2")
        await pilot.pause()
        assert isinstance(app.screen, SettingsScreen)
        check_picture(app, f"settings-{size[0]}x{size[1]}")
        await pilot.press("enter")
        assert app.theme == "studio-light"
        await pilot.press("down", "space")
        await pilot.pause()
        assert app.has_class("-ascii")
        assert all(row.isascii() for row in picture(app))
        kept = read_settings(app.workspace.path)
        assert (kept.theme, kept.ascii) == ("studio-light", True)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, SettingsScreen)


async def test_every_switch_is_turned_by_its_row(tmp_path: Path) -> None:
    app = an_app(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press("f2", "down", "down")
        for name in ("mouse", "low_bandwidth", "bell", "desktop"):
            before = getattr(app.settings, name)
            await pilot.press("enter", "down")
            assert getattr(app.settings, name) is (not before)
            assert getattr(read_settings(app.workspace.path), name) is (not before)
        assert app.frame_clock.low_bandwidth is app.settings.low_bandwidth is True


async def test_the_command_is_typed_and_a_quote_that_does_not_end_is_refused(
    tmp_path: Path,
) -> None:
    app = an_app(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press("f2", *["down"] * 6, "enter")
        await pilot.press(*"say 'x", "enter")
        await pilot.pause()
        assert app.settings.command == ""
        assert "not kept" in "\n".join(picture(app))
        await pilot.press("enter", *"say hi", "enter")
        await pilot.pause()
        assert app.settings.command == "say hi"
        assert read_settings(app.workspace.path).command == "say hi"


async def test_settings_that_cannot_be_kept_still_hold_here(tmp_path: Path) -> None:
    app = an_app(tmp_path)
    async with app.run_test() as pilot:
        (app.workspace.path / "screen.yaml").mkdir()
        (app.workspace.path / "screen.yaml" / "x").touch()
        await pilot.press("f2", "enter")
        await pilot.pause()
        assert app.theme == "studio-light"
        assert "not kept" in "\n".join(picture(app))


async def test_colours_come_back_after_a_theme_without_any(tmp_path: Path) -> None:
    app = an_app(tmp_path, ScreenSettings(theme="studio-mono"))
    async with app.run_test() as pilot:
        coloured = lambda: {  # noqa: E731
            segment.style.color.name
            for strip in app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None and segment.style.color is not None
        }
        await pilot.pause()
        assert coloured() <= {"default"}
        await pilot.press("f2", "enter", "enter")
        await pilot.pause()
        assert app.theme == "studio-dark"
        assert len(coloured() - {"default"}) > 1


def found_only(app: StudioApp, word: str) -> bool:
    """Whether the palette has finished its search for a word."""
    found = app.screen.query_one(CommandList)
    return found.option_count == 1 and any(word in row for row in picture(app)[6:-1])


@pytest.mark.parametrize("size", SIZES)
async def test_the_palette_finds_every_key_by_its_words(
    tmp_path: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = an_app(Path())
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        found = {command.title for command in app.get_system_commands(app.screen)}
        listed = {key.key_text for key in KEYS} - {":", "ctrl+c"}
        assert all(any(title.endswith(f"({key})") for title in found) for key in listed)
        assert not found & {"Theme", "Quit", "Screenshot", "Maximize"}
        await pilot.press("colon")
        await pilot.pause()
        await pilot.press(*"redraw")
        for _ in range(200):
            await pilot.pause()
            if found_only(app, "redraw"):
                break
        check_picture(app, f"palette-{size[0]}x{size[1]}")
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.screen_stack) == 1 and app.page_name == "library"


async def test_a_command_of_another_page_opens_it_and_acts_on_nothing_unseen(
    tmp_path: Path,
) -> None:
    app = an_app(tmp_path)
    async with app.run_test() as pilot:
        await pilot.press("3")
        by_title = {command.title: command for command in app.get_system_commands(app.screen)}
        by_title["Review: approve (a)"].callback()
        await pilot.pause()
        assert app.page_name == "review"
        assert isinstance(app.session, FakeSession)
        assert "decide" not in app.session.names()
        await by_title["Runs: open the page (5)"].callback()
        await pilot.pause()
        assert app.page_name == "runs"


async def test_help_begins_with_the_keys_of_the_page_and_is_filtered(tmp_path: Path) -> None:
    app = an_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3", "question_mark")
        await pilot.pause()
        rows = [row.strip(" ┃│") for row in picture(app)]
        assert "Keys: Library" in rows[2]
        await pilot.press("slash", *"merge")
        await pilot.pause()
        text = "\n".join(picture(app))
        assert "Propose to merge it into another" in text and "Propose to delete it." not in text
        await pilot.press("enter", "slash", *"zzz")
        await pilot.pause()
        assert "nothing here holds 'mergezzz'" in "\n".join(picture(app))
        await pilot.press("escape")
        await pilot.pause()
        assert "Propose to delete it." in "\n".join(picture(app))
        await pilot.press("slash", *"steer", "enter", "escape", "escape")
        await pilot.pause()
        assert not isinstance(app.screen, HelpScreen)


async def test_the_palette_finds_what_the_workspace_and_the_run_hold(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = FakeSession(workspace.run("rehearsal"))
    first = session.library.experiences[0]
    app = app_on(session, workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()

        async def found(words: str) -> list[str]:
            provider = StudioCommands(app.screen_stack[0])
            await provider.startup()
            hits = [hit async for hit in provider.search(words)]
            call = hits[0].command if hits else lambda: None
            if (waited := call()) is not None:
                await waited
            await pilot.pause()
            return [str(hit.text) for hit in hits]

        assert await found("setting bell rings") == ["setting: bell"]
        assert app.screen.query_one(RowList).key == "bell"
        await pilot.press("escape")
        assert (await found("progress"))[0] == "Progress: open the page (7)"
        assert "run: rehearsal" in await found("run: reh")
        app.attachment.listen(session)
        assert (await found(" ".join(first.text.split()[:4])))[0] == f"experience {first.id}"
        assert app.page_name == "library"
        assert (await found("preset: rehearsal"))[0] == "preset: rehearsal"
        assert app.page_name == "start"
        assert (await found("hold at their next call"))[0].endswith("pause now (s P)")
        assert await found("no such words at all") == []


async def test_the_manual_is_found_read_and_searched_under_the_palette(tmp_path: Path) -> None:
    app = an_app(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        provider = StudioCommands(app.screen_stack[0])
        await provider.startup()
        hits = [hit async for hit in provider.search("manual pinned experiences")]
        assert [str(hit.text) for hit in hits] == ["manual: Reviewing operations"]
        hits[0].command()
        await pilot.pause()
        text = "\n".join(picture(app))
        assert "Manual: review" in text and "The model proposes; you decide." in text
        await pilot.press("slash", *"merge it until", "enter")
        await pilot.pause()
        text = "\n".join(picture(app))
        assert "No operation may modify, delete or merge it until it is" in text
        assert "The model proposes" not in text
        await pilot.press("escape", "escape")
        await pilot.pause()
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_learned_is_found_by_its_words_and_opened(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    workspace = finished_workspace(tmp_path)
    session = FakeSession(workspace.run("rehearsal"))
    first = session.library.experiences[0]
    app = app_on(session, workspace)
    async with app.run_test(size=size) as pilot:
        await pilot.press("colon")
        await pilot.pause()
        await pilot.press(*"everything")
        for _ in range(200):
            await pilot.pause()
            if found_only(app, "everything"):
                break
        first_palette = app.screen
        await pilot.press("enter")
        for _ in range(200):
            await pilot.pause()
            if app.screen is not first_palette and app.screen.query(CommandList):
                break
        await pilot.press(*f"{first.id} experience")
        for _ in range(400):
            await pilot.pause()
            if found_only(app, first.id):
                break
        rows = picture(app)
        assert f"{first.id}  experience, live, wording by auto" in "\n".join(rows)
        assert f"{first.id}  experience" in rows[6]
        await pilot.press(*["backspace"] * 40, "e")
        for _ in range(400):
            await pilot.pause()
            if app.screen.query_one(CommandList).option_count > 9:
                break
        await pilot.press("down", "down")
        await pilot.pause()
        rows = picture(app)
        assert "─┘" in "".join(rows[:-2]) and rows[-1].startswith(" enter does it  esc leaves")
        assert not set("│└") & set("".join(rows[-2:]))
        await pilot.press("backspace", *f"{first.id} experience")
        for _ in range(400):
            await pilot.pause()
            if found_only(app, first.id):
                break
        await pilot.press("enter")
        for _ in range(200):
            await pilot.pause()
            if app.page_name == "library":
                break
        assert (app.page_name, len(app.screen_stack)) == ("library", 1)
        assert app.screen.focused is not None and getattr(app.screen.focused, "key", "") == first.id
