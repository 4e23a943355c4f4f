"""The screen as people have it: real processes in pseudo-terminals, killed, cut off, crowded."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engines.core.events import DecisionEvent
from engines.core.types import Decision
from engines.record.run_dir import RunDir, Workspace
from studio.session import control_socket
from tests.bench import kill_screen
from tests.bench.kill_screen import processes, run_pids
from tests.support.processes import SMALL, STUDIO
from tests.support.screen_terminal import Terminal, read

STARTED = ("run", "rehearsal", "--review", "wait", *SMALL, "policy.pace_tokens_per_s=2000")
BACK = ("attach", "rehearsal")
SHOWN = re.compile(r"[│┃|](?:ADD|MODIFY|DELETE|NO CHANGE TO) .*?(op\d+\.\d+)")
QUIET_S = 0.4
"""A screen that has drawn nothing for so long has drawn all: a frame takes a tenth of it."""


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace that leaves no process behind."""
    folder = tmp_path / "practice"
    yield folder
    for pid in processes(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def seated(
    workspace: Path,
    *words: str,
    columns: int = 120,
    rows: int = 36,
    environ: dict[str, str | None] | None = None,
    stderr: int | None = None,
    program: Sequence[str] = STUDIO,
) -> Iterator[Terminal]:
    """Somebody at a terminal who gave a command."""
    command = [*program, "--workspace", str(workspace), *words]
    with Terminal(command, columns=columns, rows=rows, environ=environ, stderr=stderr) as terminal:
        yield terminal


def reviewing(terminal: Terminal) -> str:
    """Wait for the lesson and open Review; the operation that is shown."""
    terminal.until(stands("HELD"))
    terminal.type("2")
    terminal.until(shown_by)
    return shown_by(terminal)


def shown_by(terminal: Terminal) -> str:
    """The operation in the Change pane."""
    found = SHOWN.search(terminal.text)
    return found[1] if found else ""


def stands(word: str) -> Callable[[Terminal], bool]:
    """What the run is doing, as the first line says."""

    def says(terminal: Terminal) -> bool:
        return word in terminal.screen.display[0]

    says.__name__ = word
    return says


def showing(name: str) -> Callable[[Terminal], bool]:
    def shows(terminal: Terminal) -> bool:
        return shown_by(terminal) == name

    shows.__name__ = f"showing {name}"
    return shows


def approved(terminal: Terminal) -> str:
    """Approve what is shown; its name."""
    name = shown_by(terminal)
    press(terminal, "a", f"approved {name}")
    return name


def press(terminal: Terminal, key: str, wanted: str) -> None:
    """Press a key about what is shown until it is taken: a screen drops one it was not ready for.

    It says so, since nothing is decided that was not drawn a moment ago.
    """
    terminal.type(key)
    terminal.until(lambda here: wanted in here.text or "press again" in here.text)
    if wanted not in terminal.text:
        terminal.type(key)
        terminal.until(wanted)


def the_run(workspace: Path) -> RunDir:
    return Workspace(workspace).run("rehearsal")


def decisions(workspace: Path) -> list[Decision]:
    """Every decision of the journal, in its order."""
    events = (entry.event for entry in the_run(workspace).entries())
    return [
        made for event in events if isinstance(event, DecisionEvent) for made in event.decisions
    ]


def kill_run(workspace: Path) -> None:
    (pid,) = run_pids(workspace)
    os.kill(pid, signal.SIGKILL)


# -- coming and going ----------------------------------------------------------------------


def test_who_leaves_in_the_middle_comes_back_to_the_same_operation(workspace: Path) -> None:
    with seated(workspace, *STARTED[:-1], "policy.pace_tokens_per_s=150") as screen:
        screen.until(stands("RUNNING")).until("Step 1")  # a rollout's own words, as they come
        reviewing(screen)
        first = approved(screen)
        screen.until(lambda here: shown_by(here) not in ("", first))
        waiting = shown_by(screen)
        screen.type("q")
        assert screen.ended() == 0
        assert screen.is_sane
        assert "run rehearsal goes on: studio attach rehearsal" in screen.text
    with seated(workspace) as screen:  # bare `studio`: what waits comes first
        screen.until("2 to decide").type("\r")
        screen.until(showing(waiting))
    assert [decision.operation_id for decision in decisions(workspace)] == [first]


def test_a_q_that_is_typed_while_the_screen_opens_leaves_it(workspace: Path) -> None:
    with seated(workspace, *STARTED) as screen:
        screen.until("opening ...").type("q")
        assert screen.ended() == 0
        assert screen.is_sane
        assert "goes on" in screen.text and "never awaited" not in screen.text


def test_a_window_that_is_closed_ends_nothing_and_keeps_what_was_being_written(
    workspace: Path,
) -> None:
    with seated(workspace, *STARTED) as screen:
        name = reviewing(screen)
        press(screen, "e", "enter approves it")
        screen.type(" And more")
        screen.until("And more").hang_up()
        screen.ended()
    assert control_socket.is_alive(the_run(workspace))
    kept = json.loads((the_run(workspace).path / "screen.json").read_bytes())
    assert "And more" in kept["edits"][name]
    with seated(workspace, *BACK) as screen:
        press(screen.until(showing(name)), "e", "And more")
    assert not decisions(workspace)


def test_a_run_that_is_killed_is_told_and_resumed_from_the_screen(workspace: Path) -> None:
    with seated(workspace, *STARTED) as screen:
        reviewing(screen)
        first = approved(screen)
        kill_run(workspace)
        screen.until(stands("NO PROCESS")).until("no process of it is running")
        screen.until(lambda here: shown_by(here) not in ("", first))
        second = approved(screen)  # in the journal, without a process
        screen.type("1sr")  # in one burst: the last two are keys of the page that opens
        screen.until(stands("HELD")).type("2")
        screen.until(lambda here: shown_by(here) not in ("", first, second))
        third = approved(screen)
        screen.until(stands("HELD: c commits")).type("c")
        screen.until(stands("step 2/2")).until(stands("HELD"))
    assert [decision.operation_id for decision in decisions(workspace)] == [first, second, third]


@pytest.mark.nightly
def test_a_socket_left_by_a_dead_process_keeps_nobody_out(workspace: Path) -> None:
    with seated(workspace, *STARTED) as screen:
        name = reviewing(screen)
        kill_run(workspace)
        screen.kill()
        screen.ended()
    assert the_run(workspace).socket.exists()
    with seated(workspace, *BACK) as screen:
        screen.until("NO PROCESS").until("no process of it is running").type("q")
        assert screen.ended() == 0
    with seated(workspace, *STARTED) as screen:
        screen.until("HELD").type("2")
        screen.until(showing(name))


def test_a_second_screen_looks_on_until_it_takes_over_and_the_first_is_told(
    workspace: Path,
) -> None:
    with seated(workspace, *STARTED) as first:
        reviewing(first)
        with seated(workspace, *BACK) as second:
            second.until("OBSERVER").type("2")
            second.until(shown_by).type("a")
            second.until("T takes over").until("decides in this run")
            assert not decisions(workspace)
            second.type("T")
            second.until("you decide now").until_gone("OBSERVER")
            first.until("OBSERVER").type("a")
            first.until("decides in this run")
            name = approved(second)
            first.until("REVIEW 2")
            second.type("q")
            assert second.ended() == 0
        first.until("nobody decides").type("T")
        first.until("you decide now")
    assert [decision.operation_id for decision in decisions(workspace)] == [name]


# -- what a terminal does ------------------------------------------------------------------


def test_after_a_storm_of_sizes_the_picture_is_that_of_a_full_repaint(workspace: Path) -> None:
    with seated(workspace, *STARTED) as screen:
        reviewing(screen)
        for number in range(50):
            screen.resize(60 + number * 7 % 80, 16 + number * 5 % 30)
        screen.resize(100, 30)
        screen.until(lambda here: "? help" in here.screen.display[29])
        while read(QUIET_S):
            pass
        after = screen.text
        assert shown_by(screen)
        screen.screen.reset()
        screen.type("\x0c")  # ctrl+l
        screen.until(lambda here: here.text == after)
        assert approved(screen)


def test_ten_thousand_bytes_pasted_into_the_edit_box_arrive_whole(workspace: Path) -> None:
    pasted = " ".join(f"word{number}" for number in range(1_200))[:10_000].strip()
    with seated(workspace, *STARTED) as screen:
        name = reviewing(screen)
        press(screen, "e", "enter approves it")
        screen.type(f"\x1b[200~{pasted}\x1b[201~")
        screen.until(pasted[-7:]).type("\r")
        screen.until("y approves it anyway").type("\r")
        screen.until(f"approved as edited {name}")
    (decision,) = decisions(workspace)
    assert decision.text is not None
    assert decision.text.endswith(pasted)


@pytest.mark.parametrize("words", [STARTED, BACK])
@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_draws_no_screen_is_told_the_way_without_one(
    practised: Path, words: tuple[str, ...], term: str | None
) -> None:
    with seated(practised, *words, columns=300, environ={"TERM": term}) as screen:
        assert screen.ended() == 2
        assert "TERM" in screen.text
        assert "`studio headless`" in screen.text
        assert "`studio review`" in screen.text
        assert b"\x1b" not in screen.raw
        assert screen.is_sane


def test_a_stderr_that_goes_to_a_file_is_told_there_and_nothing_is_drawn(
    practised: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file, seated(practised, *BACK, stderr=file.fileno()) as screen:
        assert screen.ended() == 2
        assert not screen.raw
    told = log.read_text()
    assert "standard error: it is no terminal" in told
    assert "`studio headless`" in told
    assert "`studio review`" in told


def test_with_no_color_no_colour_is_sent(workspace: Path) -> None:
    with seated(workspace, *STARTED, environ={"NO_COLOR": "1"}) as screen:
        reviewing(screen)
        approved(screen)
        screen.type("q")
        screen.ended()
        sent = {
            code
            for found in re.findall(rb"\x1b\[([\d;]*)m", screen.raw)
            for code in found.split(b";")
        }
    assert sent <= {b"", b"0", b"1", b"2", b"3", b"4", b"7", b"9", b"22", b"23", b"24", b"27"}
    assert b"1" in sent or b"7" in sent  # weight and reverse tell the states apart


@pytest.mark.parametrize("mouse", [True, False])
def test_the_mouse_is_left_to_the_terminal_where_the_settings_say_so(
    workspace: Path, mouse: bool
) -> None:
    workspace.mkdir()
    (workspace / "screen.yaml").write_text(f"mouse: {str(mouse).lower()}\n")
    with seated(workspace) as screen:
        screen.until("Start or resume").type("q")
        screen.ended()
        assert (b"\x1b[?1000h" in screen.raw) is mouse


def test_in_a_locale_without_utf8_only_ascii_is_sent(workspace: Path) -> None:
    environ: dict[str, str | None] = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": None}
    with seated(workspace, *STARTED, environ=environ) as screen:
        reviewing(screen)
        approved(screen)
        screen.type("q")
        assert screen.ended() == 0
        assert screen.raw.isascii()


@pytest.mark.skipif(not os.path.exists("/bin/sh"), reason="no shell to put it into the background")
def test_a_stopped_screen_gives_the_terminal_back_and_goes_on_in_the_foreground(
    workspace: Path,
) -> None:
    command = " ".join([*STUDIO, "--workspace", str(workspace), *STARTED])
    with Terminal(["/bin/sh", "-i"], environ={"ENV": None, "PS1": "$ "}) as shell:
        shell.until("$").type(command + "\n")
        name = reviewing(shell)
        (pid,) = processes(workspace).keys() - set(run_pids(workspace))
        os.kill(pid, signal.SIGTSTP)
        shell.until(lambda here: "topped" in here.text or "uspended" in here.text)
        shell.type("echo he''re\n")
        shell.until("here")  # lines are edited and echoed again
        shell.type("fg\n")
        shell.until(showing(name))
        approved(shell)
        shell.type("q")
        shell.until("goes on: studio attach").type("exit\n")
        shell.ended()


# -- what goes wrong -----------------------------------------------------------------------


def test_a_bug_in_the_screen_leaves_a_sane_terminal_and_the_run_alive(workspace: Path) -> None:
    broken = (
        "from studio.tui.actions import MainScreen; from studio.cli import main\n"
        "def action_help(self): raise ZeroDivisionError('a bug')\n"
        "MainScreen.action_help = action_help; main()"
    )
    with seated(workspace, *STARTED, program=(sys.executable, "-c", broken)) as screen:
        reviewing(screen)
        name = approved(screen)
        screen.type("?")
        assert screen.ended() == 1
        assert screen.is_sane
        assert "ZeroDivisionError: a bug" in screen.text
    assert control_socket.is_alive(the_run(workspace))
    assert [decision.operation_id for decision in decisions(workspace)] == [name]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs another process's limits")
def test_on_a_full_disk_no_decision_is_shown_as_made(workspace: Path) -> None:
    with seated(workspace, *STARTED) as screen:
        name = reviewing(screen)
        (pid,) = run_pids(workspace)
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        size = the_run(workspace).journal.stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 20, hard))
        press(screen, "a", "journal.jsonl: cannot be writ")
        assert f"approved {name}" not in screen.text
        assert not decisions(workspace)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        # A journal that could not be written is opened anew by the run's next process.
        screen.type("sx")
        screen.until("Stop the run?").type("n")
        screen.until(stands("NO PROCESS")).type("1sr")
        screen.until(stands("HELD")).type("2")
        screen.until(showing(name))
        assert approved(screen) == name
    assert [decision.operation_id for decision in decisions(workspace)] == [name]


# -- all of it at once ---------------------------------------------------------------------


@pytest.mark.nightly
def test_a_few_kills_of_screens_and_runs_lose_and_double_nothing() -> None:
    found = kill_screen.measure(6, seed=1)
    assert found["kills"] == 6
    assert kill_screen.is_good(found), json.dumps(found, indent=1)
