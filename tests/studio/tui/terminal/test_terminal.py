"""The terminal: refused, left in good order, drawn on without its characters."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.color import Color

from studio.tui import app as app_module
from studio.tui.app import StudioApp
from studio.tui.drafts import FILE
from studio.tui.terminal.look import AsciiFilter
from studio.tui.terminal.terminal import exit_on_hangup
from tests.studio.tui.stage import FakeSession, app_on, held_workspace, picture


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
async def test_a_hangup_detaches_with_the_drafts_on_disk(
    tmp_path: Path, number: signal.Signals
) -> None:
    workspace = held_workspace(tmp_path)
    session = FakeSession(workspace.run("mine"))
    app = app_on(session, workspace)
    before = signal.getsignal(number)
    with exit_on_hangup(app, save=lambda: app.drafts.save(), leave=app.leave):
        async with app.run_test() as pilot:
            await pilot.pause()
            app.drafts.edits["op1.1"] = "half a thought"
            os.kill(os.getpid(), number)
            async with asyncio.timeout(20):
                while app.is_running:
                    await asyncio.sleep(0)
    assert session.closed
    assert app.return_value == 0
    assert "half a thought" in (session.run.path / FILE).read_text()
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGCONT])
async def test_a_stop_waits_for_what_is_being_written(
    tmp_path: Path, number: signal.Signals
) -> None:
    writing, seen = False, []
    before = signal.signal(number, lambda *_: seen.append(writing))
    app = app_on(None, held_workspace(tmp_path))
    try:
        async with app.run_test() as pilot:
            writing = True  # Textual's handler writes too, and would wait for this one for ever
            os.kill(os.getpid(), number)
            writing = False
            await pilot.pause()
            assert seen == [False]
            assert app._driver is not None
            with app._driver.no_automatic_restart():  # an editor has the terminal
                os.kill(os.getpid(), number)
                assert seen == [False, False]
            os.kill(os.getpid(), number)
            signal.signal(number, signal.SIG_IGN)  # a hangup came with it: the terminal is gone
            await pilot.pause()
            assert seen == [False, False]
    finally:
        signal.signal(number, before)


def test_a_signal_before_the_screen_opens_ends_the_process(tmp_path: Path) -> None:
    app = app_on(None, held_workspace(tmp_path))
    with (
        pytest.raises(SystemExit) as ended,
        exit_on_hangup(app, save=lambda: app.drafts.save(), leave=app.leave),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM


def test_every_sign_of_the_screen_has_an_ascii_one_of_the_same_width() -> None:
    drawn = "┌─ a ─┐│x│└┘┏━┓┃┗┛ … · – “q” ✓ █░ ◦✗✎◷⚲ ▸▾ ⠊⡠⣿"
    (segment,) = AsciiFilter().apply([Segment(drawn)], Color(0, 0, 0))
    assert segment.text.isascii()
    assert len(segment.text) == len(drawn)
    assert segment.text.endswith(" .#&;% >v '.:")


def test_text_of_another_script_stays_what_it_is() -> None:
    (segment,) = AsciiFilter().apply([Segment("漢字 é")], Color(0, 0, 0))
    assert segment.text == "漢字 é"


async def test_a_locale_without_utf_8_is_drawn_in_ascii(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    for locale, plain in (("C.UTF-8", False), ("en_US.ISO-8859-1", True)):
        environ = {"TERM": "xterm-256color", "LANG": locale}
        app = StudioApp(
            workspace,
            session=FakeSession(workspace.run("mine")),
            environ=environ,
            clock=lambda: 1.0,
        )
        async with app.run_test(size=(120, 36)) as pilot:
            await pilot.press("5")
            await pilot.pause()
            assert all(row.isascii() for row in picture(app)) is plain


def test_a_bug_ends_with_1_a_closed_session_and_a_traceback_without_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    workspace = held_workspace(tmp_path)
    session = FakeSession(workspace.run("mine"))
    app = app_on(session, workspace)

    def broken() -> None:
        secret = "text of a model"
        raise RuntimeError(f"a bug beside {len(secret)} characters [red]\x1b[2J")

    def begin() -> None:
        app.drafts.edits["op1.1"] = "half a thought"
        monkeypatch.setattr(app.navigation.page(), "draw", broken)
        app.redraw_soon()

    monkeypatch.setattr(app_module, "StudioApp", lambda *_, **__: app)
    opened = app.run
    monkeypatch.setattr(app, "run", lambda **_: opened(headless=True, auto_pilot=None, mouse=False))
    monkeypatch.setattr(app.attachment, "_restore_place", begin)  # called once the run is known
    shown, code = app_module.open_screen(workspace.path)
    told = capfd.readouterr().err
    assert shown is app.attachment and code == 1
    assert session.closed
    assert "half a thought" in (session.run.path / FILE).read_text()
    assert "RuntimeError: a bug beside 15 characters [red]" in told
    assert "\x1b[2J" not in told and "text of a model" not in told.replace(
        'secret = "text of a model"', ""
    )
