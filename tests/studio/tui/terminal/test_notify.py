"""Calling a person, and copying: what goes to the terminal, when, and what never does."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from studio.secrets import output
from studio.tui.page import Host
from studio.tui.settings import ScreenSettings
from studio.tui.terminal.clipboard import FILE, MOST_BYTES, copy_text
from studio.tui.terminal.notify import AGAIN_S, SETTLED_S, Notifier, waiting_count, wrap_for_tmux
from tests.studio.tui.stage import held_workspace

QUIET = ScreenSettings(bell=False, desktop=False)


class Terminal:
    """What an app is to a notifier: settings, an environment, and a way out."""

    def __init__(
        self,
        settings: ScreenSettings = QUIET,
        environ: Mapping[str, str] | None = None,
        folder: Path = Path(),
    ) -> None:
        self.settings, self.environ = settings, environ or {"TERM": "xterm-256color"}
        self.workspace = SimpleNamespace(path=folder)
        self.written: list[str] = []
        self.told: list[str] = []
        self.clipboard = ""

    def send_to_terminal(self, sequence: str) -> None:
        self.written.append(sequence)

    def tell(self, text: str, style: str = "") -> None:
        self.told.append(text)

    def copy_to_clipboard(self, text: str) -> None:
        self.clipboard = text


def on(terminal: Terminal) -> Notifier:
    return Notifier(cast(Host, terminal), terminal.send_to_terminal)


@pytest.fixture
def held(tmp_path: Path) -> RunState:
    return held_workspace(tmp_path).run("mine").state()


def a_held_run(held: RunState) -> RunState:
    """As its process would have it: under review, not ended."""
    held.ending, held.status = "", "reviewing"
    return held


def settle(notifier: Notifier, state: RunState | None, now: float, last_key: float = 0.0) -> None:
    notifier.tick(state, now, last_key)
    notifier.tick(state, now + SETTLED_S, last_key)


def test_nobody_is_needed_by_no_run_nor_by_one_that_ended(held: RunState) -> None:
    assert waiting_count(None) == 0
    assert waiting_count(RunState()) == 0
    running = a_held_run(held)
    assert waiting_count(running) == 2
    running.status = "running"
    assert waiting_count(running) == 0
    running.status, running.ending = "reviewing", "finished"
    assert waiting_count(running) == 0


def test_one_bell_and_a_title_when_a_run_begins_to_wait(held: RunState) -> None:
    terminal = Terminal(replace(QUIET, bell=True))
    notifier = on(terminal)
    notifier.tick(None, 0.0, 0.0)
    assert terminal.written == []
    settle(notifier, a_held_run(held), 10.0)
    assert terminal.written == ["\x1b[22;2t\x1b]2;(2) studio - mine\x07", "\x07"]
    notifier.tick(held, 30.0, 0.0)
    assert len(terminal.written) == 2


def test_the_title_of_the_terminal_behind_tmux_says_it_too(held: RunState) -> None:
    terminal = Terminal(environ={"TERM": "tmux-256color", "TMUX": "/tmp/x,1,0"})
    notifier = on(terminal)
    settle(notifier, a_held_run(held), 10.0)
    title = "\x1b[22;2t\x1b]2;(2) studio - mine\x07"
    assert terminal.written == [title, wrap_for_tmux(title, terminal.environ)]
    notifier.restore_title()
    assert [one.startswith("\x1bPtmux;") for one in terminal.written[2:]] == [False, True]


def test_what_rules_decide_within_a_moment_calls_nobody(held: RunState) -> None:
    terminal = Terminal(replace(QUIET, bell=True, desktop=True))
    notifier = on(terminal)
    notifier.tick(a_held_run(held), 10.0, 0.0)
    notifier.tick(None, 10.2, 0.0)
    notifier.tick(held, 10.4, 0.0)
    notifier.tick(held, 10.4 + SETTLED_S - 0.1, 0.0)
    assert terminal.written == []


def test_the_title_is_given_back_when_nothing_waits_and_on_leaving(held: RunState) -> None:
    terminal = Terminal()
    notifier = on(terminal)
    settle(notifier, a_held_run(held), 10.0)
    notifier.tick(None, 20.0, 0.0)
    assert terminal.written[-1] == "\x1b]2;studio\x07"
    notifier.restore_title()
    assert terminal.written[-1] == "\x1b]2;\x07\x1b[23;2t"
    notifier.restore_title()
    assert len(terminal.written) == 3


def test_it_calls_again_after_a_quarter_of_an_hour_without_a_key_and_not_before(
    held: RunState,
) -> None:
    terminal = Terminal(replace(QUIET, bell=True))
    notifier = on(terminal)
    settle(notifier, a_held_run(held), 10.0)
    called = 10.0 + SETTLED_S
    notifier.tick(held, called + AGAIN_S - 1, 0.0)
    assert terminal.written.count("\x07") == 1
    notifier.tick(held, called + AGAIN_S, last_key=called + 1)
    assert terminal.written.count("\x07") == 1
    notifier.tick(held, called + AGAIN_S, last_key=called)
    assert terminal.written.count("\x07") == 2


def test_what_waits_later_calls_anew(held: RunState) -> None:
    terminal = Terminal(replace(QUIET, bell=True))
    notifier = on(terminal)
    settle(notifier, a_held_run(held), 10.0)
    settle(notifier, None, 20.0)
    settle(notifier, held, 30.0)
    assert terminal.written.count("\x07") == 2


def test_the_terminals_note_goes_through_tmux_wrapped(held: RunState) -> None:
    plain, wrapped = (
        Terminal(replace(QUIET, desktop=True), environ)
        for environ in ({"TERM": "xterm"}, {"TERM": "tmux-256color", "TMUX": "/tmp/x,1,0"})
    )
    for terminal in (plain, wrapped):
        settle(on(terminal), a_held_run(held), 10.0)
    note = "\x1b]9;studio: mine: 2 operations to decide\x07"
    assert note in plain.written
    assert "\x1b]777;notify;studio;mine: 2 operations to decide\x07" in plain.written
    assert "\x1bPtmux;\x1b" + note + "\x1b\\" in wrapped.written
    assert wrap_for_tmux(note, {}) == note


def test_a_hostile_run_name_steers_no_terminal(held: RunState) -> None:
    state = a_held_run(held)
    assert state.started is not None
    state.started = replace(state.started, run="a\x07\x1b]0;pwned\x07;b\u202e")
    terminal = Terminal(ScreenSettings())
    settle(on(terminal), state, 10.0)
    notes = [text for text in terminal.written if "]9;" in text or "]777;" in text]
    assert len(notes) == 2
    for note in notes:
        assert note.count("\x1b") == 1 and note.count("\x07") == 1 and "\u202e" not in note
    assert notes[1].count(";") == 3


def test_the_persons_command_gets_the_text_as_one_argument_and_no_shell_reads_it(
    held: RunState, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = a_held_run(held)
    assert state.started is not None
    state.started = replace(state.started, run="$(touch pwned); 'x")
    started: list[tuple[list[str], dict[str, Any]]] = []

    class Started:
        def __init__(self, words: list[str], **how: Any) -> None:
            started.append((words, how))

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("subprocess.Popen", Started)
    terminal = Terminal(replace(QUIET, command='mail -s "a run" ann'))
    settle(on(terminal), state, 10.0)
    ((words, how),) = started
    assert words == ["mail", "-s", "a run", "ann", "$(touch pwned); 'x: 2 operations to decide"]
    assert how["env"]["STUDIO_NOTE"] == words[-1]
    assert how["start_new_session"] and "shell" not in how


@pytest.mark.parametrize("command", ["/nowhere/at/all", "'open", "   "])
def test_a_command_that_cannot_start_is_told(held: RunState, command: str) -> None:
    terminal = Terminal(replace(QUIET, command=command))
    settle(on(terminal), a_held_run(held), 10.0)
    assert "notify.command" in terminal.told[0]


def test_an_ended_run_takes_the_badge_with_it(held: RunState) -> None:
    terminal = Terminal()
    notifier = on(terminal)
    settle(notifier, a_held_run(held), 10.0)
    fold(held, ev.RunEnded("stopped", "by ann"))
    notifier.tick(held, 20.0, 0.0)
    assert terminal.written[-1] == "\x1b]2;studio - mine\x07"


def test_a_text_is_copied_by_the_terminal(tmp_path: Path) -> None:
    terminal = Terminal(folder=tmp_path)
    told = copy_text(cast(Host, terminal), "漢字 and\ntwo lines")
    assert terminal.clipboard == "漢字 and\ntwo lines"
    assert "2 lines" in told
    assert not (tmp_path / FILE).exists() and terminal.written == []


def test_tmux_is_gone_around_too(tmp_path: Path) -> None:
    terminal = Terminal(environ={"TERM": "tmux-256color", "TMUX": "x"}, folder=tmp_path)
    copy_text(cast(Host, terminal), "a")
    assert terminal.written == ["\x1bPtmux;\x1b\x1b]52;c;YQ==\x07\x1b\\"]


@pytest.mark.parametrize("term", ["dumb", "linux", "vt100", ""])
def test_a_terminal_without_a_clipboard_gets_a_private_file(tmp_path: Path, term: str) -> None:
    terminal = Terminal(environ={"TERM": term}, folder=tmp_path / "practice")
    told = copy_text(cast(Host, terminal), "a text")
    path = tmp_path / "practice" / FILE
    assert str(path) in told and path.read_text() == "a text"
    assert path.stat().st_mode & 0o077 == 0
    assert terminal.clipboard == ""


def test_what_is_too_long_for_terminals_goes_into_the_file(tmp_path: Path) -> None:
    fits, long = "a" * (MOST_BYTES // 4 * 3 - 3), "a" * MOST_BYTES
    terminal = Terminal(folder=tmp_path)
    copy_text(cast(Host, terminal), fits)
    assert terminal.clipboard == fits
    assert FILE in copy_text(cast(Host, terminal), long)
    assert (tmp_path / FILE).read_text() == long


def test_no_secret_is_copied(tmp_path: Path) -> None:
    output.remember(["sk-very-secret-key"])
    try:
        terminal = Terminal(folder=tmp_path)
        copy_text(cast(Host, terminal), "key sk-very-secret-key")
    finally:
        output.forget()
    assert "sk-very" not in terminal.clipboard


def test_half_a_character_pair_is_no_end(tmp_path: Path) -> None:
    terminal = Terminal(folder=tmp_path)
    copy_text(cast(Host, terminal), "a\ud800b")
    assert terminal.clipboard == "a?b"


def test_nothing_is_copied_as_nothing(tmp_path: Path) -> None:
    assert "nothing" in copy_text(cast(Host, Terminal(folder=tmp_path)), " \n")


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    terminal = Terminal(environ={"TERM": "linux"}, folder=tmp_path / "file")
    assert "file" in copy_text(cast(Host, terminal), "a")
