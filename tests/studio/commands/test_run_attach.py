"""`studio run`, `studio attach`, and the process they start and leave behind."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import StudioError
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.commands.run import show, why_no_screen
from studio.exit_codes import run_exit_code
from studio.run import detached
from studio.run.detached import ReadyRun, RefusedStart, StartingProcess
from studio.session import control_socket
from studio.session.control_socket import bind_path
from studio.session.requests import Status, Stop
from tests.support.forked_studio import ForkedStudio
from tests.support.processes import SMALL, running
from tests.support.processes import studio as process
from tests.support.run_studio import Terminal, run_here, studio


def start(arguments: Sequence[str], workspace: Path) -> StartingProcess:
    """As the product does; the two tests of what the system does with it start a real process."""
    return detached.start(arguments, workspace, popen=ForkedStudio)


def started(workspace: Path, *arguments: str) -> ReadyRun | RefusedStart:
    """Start a process and wait for what becomes of it."""
    return asyncio.run(start(arguments, workspace).wait_ready())


@contextmanager
def ended_after(workspace: Path) -> Iterator[None]:
    """Leave no process behind."""
    try:
        yield
    finally:
        for run in Workspace(workspace).runs():
            if control_socket.is_alive(run):
                control_socket.ask(run, Stop())
                until_ended(run)


def reaped(pid: int) -> None:
    """Wait until a process that was started here is gone."""
    for thread in threading.enumerate():
        if thread.name == f"reaping {pid}":
            thread.join(20)
            assert not thread.is_alive()


def until_ended(run: RunDir) -> None:
    """Follow a run to its end; its watchers are told."""
    try:
        for _ in control_socket.watch(run):
            pass
    except StudioError:
        return  # it had ended already


# -- the process -------------------------------------------------------------------------


def test_a_started_run_is_named_serves_its_socket_and_waits_for_a_person(workspace: Path) -> None:
    with ended_after(workspace):
        words = ("--name=mine", "--", "rehearsal", *SMALL)
        ready = asyncio.run(detached.start(words, workspace).wait_ready())
        assert isinstance(ready, ReadyRun)
        run = Workspace(workspace).run(ready.run)
        assert run.run == "mine"
        assert control_socket.ask(run, Status())["reviewer"] == "wait"
        assert "run mine: new" in ready.text
        assert "rehearsal: replies are scripted" in ready.text
        assert "paced: each reply streams 40 tokens a second" in ready.text
        assert os.getsid(ready.pid) == ready.pid != os.getsid(0)
        assert run.log.stat().st_mode & 0o777 == 0o600
        while not control_socket.ask(run, Status())["step"]:
            pass  # else it is stopped before there is anything to tell
    reaped(ready.pid)
    log = run.log.read_text()
    assert "step 1 of 2" in log
    assert "run mine: stopped" in log  # how it went is kept where nobody could be told


def test_a_process_that_is_refused_says_so_whole_with_its_code(workspace: Path) -> None:
    for words, says in (
        (("nonsense",), "Presets:"),
        (("rehearsal", "--review=maybe"), "Choose auto, wait or rules:FILE."),
        (("rehearsal", "practice.epoch=2"), "practice.epochs"),
        (("rehearsal", "policy=openai:m", "policy.base_url=http://127.0.0.1:1/v1"), "127.0.0.1:1"),
    ):
        refused = started(workspace, *words)
        assert isinstance(refused, RefusedStart)
        assert refused.code == 2
        assert refused.text.splitlines()[-1].startswith("studio: ")
        assert says in refused.text
        assert "Traceback" not in refused.text


def test_a_run_that_goes_on_already_is_named_instead_of_started_twice(workspace: Path) -> None:
    with ended_after(workspace):
        first = started(workspace, "rehearsal", *SMALL)
        second = started(workspace, "rehearsal", *SMALL)
        assert isinstance(second, ReadyRun)
        assert (second.run, second.pid) == (first.run, first.pid)  # type: ignore[union-attr]
        assert "goes on as it was started" in second.text
        assert len(Workspace(workspace).runs()) == 1


def test_of_two_starts_at_the_same_moment_the_second_attaches_to_the_first(
    workspace: Path,
) -> None:
    with ended_after(workspace):
        both = [start(("rehearsal", *SMALL), workspace) for _ in range(2)]
        first, second = (asyncio.run(starting.wait_ready()) for starting in both)
        assert isinstance(first, ReadyRun) and isinstance(second, ReadyRun)
        assert (first.run, first.pid) == (second.run, second.pid)
        assert len(Workspace(workspace).runs()) == 1


def test_a_start_waits_for_who_holds_the_run_and_cannot_be_attached_to_yet(
    workspace: Path,
) -> None:
    run = RunDir(workspace / "runs" / "rehearsal")
    with (
        write_lock(run.path),  # another start, that is
        bind_path(run.socket) as place,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        starting = start(("rehearsal", *SMALL), workspace)
        while b"looking whether its process answers" not in starting.output:
            select.select([starting], [], [], 60)
            assert not starting.read_pipe(), starting.output
        listener.bind(place)
        listener.listen()
        ready = asyncio.run(starting.wait_ready())
        assert isinstance(ready, ReadyRun), ready.text
        assert (ready.run, ready.pid) == ("rehearsal", os.getpid())


def test_a_finished_run_is_named_without_a_process_and_says_how_to_go_on(practised: Path) -> None:
    before = (practised / "runs/rehearsal/journal.jsonl").read_bytes()
    ready = started(practised, "rehearsal", *SMALL)
    assert isinstance(ready, ReadyRun)
    assert (ready.run, ready.pid) == ("rehearsal", 0)
    assert "give more practice.epochs to go on" in ready.text
    assert (practised / "runs/rehearsal/journal.jsonl").read_bytes() == before


def test_a_resumed_run_keeps_its_reviewer_and_one_given_counts(workspace: Path) -> None:
    words = ("rehearsal", *SMALL, "policy.pace_tokens_per_s=100000")  # nobody watches it
    held = studio("headless", *words, "--review=wait", "review.hold_s=0.01", workspace=workspace)
    assert held.code == 3
    with ended_after(workspace):
        ready = started(workspace, "--review=auto", "--", *words)
        assert isinstance(ready, ReadyRun)
        until_ended(Workspace(workspace).run(ready.run))
    state = Workspace(workspace).run("rehearsal").state()
    assert (state.reviewer, state.status) == ("auto", "finished")
    again = started(workspace, *words, "practice.epochs=2")
    with ended_after(workspace):
        assert isinstance(again, ReadyRun)
        assert "review: auto" in again.text


def test_the_process_outlives_its_starter_which_may_die_before_it_is_ready(
    workspace: Path,
) -> None:
    program = (
        "import os, sys; from pathlib import Path; from studio.run.detached import start; "
        "start(['rehearsal', *sys.argv[2:]], Path(sys.argv[1])); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(workspace), *SMALL], check=True, timeout=60)
    with ended_after(workspace):
        # The pipe is broken when it wants to say that it is ready; another starter finds it.
        async def found() -> ReadyRun | RefusedStart:
            async with asyncio.timeout(60):
                while not any(control_socket.is_alive(run) for run in Workspace(workspace).runs()):
                    await asyncio.sleep(0.02)  # nobody is left who could tell
            return await start(["rehearsal", *SMALL], workspace).wait_ready()

        ready = asyncio.run(found())
        assert isinstance(ready, ReadyRun)
        assert "goes on as it was started" in ready.text
        assert len(Workspace(workspace).runs()) == 1


def test_signals_of_a_terminal_do_not_reach_the_process_and_it_is_reaped(workspace: Path) -> None:
    with ended_after(workspace):
        starting = detached.start(["rehearsal", *SMALL], workspace)
        ready = asyncio.run(starting.wait_ready())
        assert isinstance(ready, ReadyRun)
        assert os.getpgid(ready.pid) != os.getpgid(0)
        assert starting.fileno() == -1
        os.kill(ready.pid, signal.SIGKILL)
        reaped(ready.pid)
        with pytest.raises(ProcessLookupError):
            os.kill(ready.pid, 0)  # not even a zombie


def test_a_process_that_dies_without_a_word_is_told_with_its_code(workspace: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(7)"])
    ours, theirs = os.pipe()
    os.close(theirs)
    refused = asyncio.run(StartingProcess(child, ours).wait_ready())
    assert refused == RefusedStart("its process ended with code 7", 7)


def test_what_is_said_in_pieces_is_read_whole_and_the_wait_can_be_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        child = subprocess.Popen([sys.executable, "-c", ""])
        ours, theirs = os.pipe()
        starting = StartingProcess(child, ours)
        os.write(theirs, b'note: one\n{"run": "a')
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await starting.wait_ready()
        os.write(theirs, b'b", "pid": 12}\n')
        assert await starting.wait_ready() == ReadyRun("ab", 12, "note: one")
        assert await starting.wait_ready() == starting.outcome
        os.close(theirs)

    asyncio.run(main())


def test_a_pipe_that_nobody_reads_any_more_ends_no_announcement(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from studio.run.detached import announce\n"
        "ours, theirs = os.pipe(); os.close(ours)\n"
        "announce(theirs, 'a', 1, Path(sys.argv[1])); print('on', file=sys.stderr)"
    )
    log = tmp_path / "studio.log"
    done = subprocess.run([sys.executable, "-c", program, str(log)], check=False, timeout=60)
    assert (done.returncode, log.read_text()) == (0, "on\n")


def test_a_number_under_which_nothing_is_open_is_refused(workspace: Path) -> None:
    wrong = studio("headless", "rehearsal", *SMALL, "--ready-fd=997", workspace=workspace)
    assert wrong.code == 2
    assert "--ready-fd 997" in wrong.stderr
    assert not workspace.exists()


# -- the commands ------------------------------------------------------------------------


class Pipe(StringIO):
    """A stream that is no terminal."""


@pytest.mark.parametrize(
    ("stdin", "stderr", "term", "place"),
    [
        (Terminal(), Terminal(), "xterm-256color", None),
        (Pipe(), Terminal(), "xterm-256color", "standard input"),
        (Terminal(), Pipe(), "xterm-256color", "standard error"),
        (Terminal(), Terminal(), "dumb", "TERM"),
        (Terminal(), Terminal(), "unknown", "TERM"),
        (Terminal(), Terminal(), None, "TERM"),
    ],
)
def test_a_screen_needs_a_terminal_to_be_drawn_on_and_keys_to_be_steered_by(
    stdin: StringIO, stderr: StringIO, term: str | None, place: str | None
) -> None:
    found = why_no_screen(stdin, stderr, {} if term is None else {"TERM": term})
    assert (found and found[0]) == place


@pytest.mark.parametrize("words", [("run", "rehearsal"), ("attach",), ("attach", "rehearsal")])
def test_without_a_terminal_the_way_without_a_screen_is_named_and_nothing_is_started(
    practised: Path, words: tuple[str, ...]
) -> None:
    before = (practised / "runs/rehearsal/journal.jsonl").read_bytes()
    done = process(practised, *words)
    assert done.returncode == 2
    assert f"studio {words[0]}, standard input: it is no terminal" in done.stderr
    assert "`studio headless`" in done.stderr
    assert "`studio review`" in done.stderr
    assert (practised / "runs/rehearsal/journal.jsonl").read_bytes() == before
    assert not (practised / "runs/rehearsal/studio.log").exists()


@dataclass
class AScreen:
    """A screen that is left at once, or after what happens meanwhile."""

    shown_run: str | None = None
    ended_here: str = ""
    code: int = 0
    seen: tuple[Any, ...] = ()

    def __call__(
        self, workspace: Path, *, run: str | None = None, starting: StartingProcess | None = None
    ) -> tuple[AScreen, int]:
        self.seen = (workspace, run, starting)
        if starting is not None:
            found = asyncio.run(starting.wait_ready())
            self.shown_run = found.run
            self.code = found.code
        else:
            self.shown_run = self.shown_run or run
        return self, self.code


def shown(workspace: Path, screen: AScreen, **what: Any) -> tuple[int, str]:
    said = StringIO()
    with redirect_stderr(said):
        code = show(workspace, screen=screen, **what)
    return code, said.getvalue()


def test_after_the_screen_of_a_run_that_goes_on_it_is_told_how_to_come_back(
    workspace: Path,
) -> None:
    with ended_after(workspace):
        starting = start(["--name=it goes", "--", "rehearsal", *SMALL], workspace)
        refused = shown(workspace, AScreen(), starting=starting)
        assert refused[0] == 2  # a name with a blank is none
        starting = start(["--name=mine", "--", "rehearsal", *SMALL], workspace)
        assert shown(workspace, AScreen(), starting=starting) == (
            0,
            "run mine goes on: studio attach mine\n",
        )


def test_after_the_screen_of_a_run_that_ended_its_exit_code_is_that_of_the_command(
    workspace: Path,
) -> None:
    held = studio(
        "headless", "rehearsal", *SMALL, "--review=wait", "review.hold_s=0.01", workspace=workspace
    )
    assert held.code == 3
    line = "run rehearsal: held (operations are left to decide) after step 0 of 2\n"
    line += f"next: studio --workspace {workspace} review rehearsal\n"
    assert shown(workspace, AScreen(), run="rehearsal") == (0, line)  # as it was before
    assert shown(workspace, AScreen(ended_here="held"), run="rehearsal") == (3, line)
    state = Workspace(workspace).run("rehearsal").state()
    assert run_exit_code(state) == 3


def test_a_process_that_refuses_is_told_on_stderr_with_its_code(workspace: Path) -> None:
    code, said = shown(workspace, AScreen(), starting=start(["nonsense"], workspace))
    assert code == 2
    assert said.startswith('studio: run file "nonsense"')


def test_a_screen_that_was_left_without_any_run_says_nothing(workspace: Path) -> None:
    assert shown(workspace, AScreen()) == (0, "")


def test_attach_without_a_run_says_how_to_start_one(workspace: Path) -> None:
    wrong = studio("attach", workspace=workspace)
    assert wrong.code == 2
    assert "studio run rehearsal" in wrong.stderr


def test_bare_studio_without_a_terminal_is_the_page_of_text(practised: Path) -> None:
    done = process(practised)
    assert done.returncode == 0
    assert "PRESET" in done.stdout


# -- ctl ---------------------------------------------------------------------------------


def test_ctl_status_of_a_living_run_is_the_same_however_it_is_asked(workspace: Path) -> None:
    with running(workspace, "rehearsal", *SMALL, "--review", "wait") as child:
        child.until("StageEntered", stage="review")
        plain = studio("ctl", "status", workspace=workspace)
        assert plain.stdout.startswith("run rehearsal: reviewing\n")
        assert studio("ctl", "status", "rehearsal", workspace=workspace) == plain
        # A word that needs the parser goes the long way, and ends at the same place.
        assert studio("ctl", "status", "--", "rehearsal", workspace=workspace) == plain
        data = json.loads(studio("ctl", "status", "--json", workspace=workspace).stdout)
        long = json.loads(studio("ctl", "status", "--json", "--", workspace=workspace).stdout)
        assert data == long
        assert data["alive"] is True


def test_ctl_status_of_a_living_run_loads_no_reader_of_journals_and_no_pydantic(
    workspace: Path,
) -> None:
    program = (
        "import sys\nfrom studio.cli import run\ncode = run(sys.argv[1:])\n"
        "print('loaded:', *sys.modules)\nsys.exit(code)"
    )
    with running(workspace, "rehearsal", *SMALL, "--review", "wait") as child:
        child.until("StageEntered", stage="review")
        done = subprocess.run(
            [sys.executable, "-c", program, "--workspace", str(workspace), "ctl", "status"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("loaded: ")[2].split())
    assert "studio.session" in loaded
    heavy = {"pydantic", "yaml", "asyncio", "tinydb", "rich", "textual", "engines.record.journal"}
    assert not heavy & loaded


def test_ctl_pause_now_is_passed_on_to_the_run(workspace: Path) -> None:
    with running(workspace, "rehearsal", *SMALL, "--review", "wait") as child:
        child.until("StageEntered", stage="review")
        sharp = studio("ctl", "pause", "--now", "--json", workspace=workspace)
        assert json.loads(sharp.stdout)["status"] == "paused"
        child.until("RunPaused")
        run_here(workspace, "review", typed="a\n" * 9)
        assert studio("ctl", "resume", workspace=workspace).code == 0
        child.until("StepStarted", step=2)


def test_several_living_runs_are_told_apart_by_their_age(workspace: Path) -> None:
    with running(workspace, "rehearsal", *SMALL, "--review", "wait", "--name", "b") as first:
        first.until("StageEntered", stage="review")
        with running(workspace, "rehearsal", *SMALL, "--review", "wait", "--name", "a") as second:
            second.until("StageEntered", stage="review")
            told = studio("ctl", "status", workspace=workspace).stdout
            assert told.startswith("run a: ")
            assert studio("ctl", "status", "b", workspace=workspace).stdout.startswith("run b: ")


def test_a_name_that_leads_out_of_the_workspace_is_refused_as_before(practised: Path) -> None:
    wrong = studio("ctl", "status", "../rehearsal", workspace=practised)
    assert wrong.code == 2
    assert "name '../rehearsal'" in wrong.stderr


def test_run_without_a_run_file_names_one(workspace: Path) -> None:
    wrong = studio("run", workspace=workspace)
    assert (wrong.code, "studio run rehearsal" in wrong.stderr) == (2, True)


def test_run_with_the_name_of_a_run_goes_on_with_that_run(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studio.commands import run as screen

    asked: list[list[str]] = []
    monkeypatch.setattr(screen, "check_terminal", lambda _: None)
    monkeypatch.setattr(screen, "show", lambda *_, **__: 0)
    monkeypatch.setattr("studio.run.detached.start", lambda words, _: asked.append([*words]))
    (workspace / "runs/mine").mkdir(parents=True, exist_ok=True)
    (workspace.parent / "mine.yaml").touch()
    for words in (["mine", "practice.epochs=3"], ["rehearsal"], ["mine.yaml"]):
        assert studio("run", *words, workspace=workspace).code == 0
    assert asked == [
        ["--resume=mine", "practice.epochs=3"],
        ["--", "rehearsal"],
        ["--", "mine.yaml"],
    ]
