"""Real processes: interrupted, killed, steered from outside, reviewed over the socket."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from studio.session import control_socket
from studio.session.requests import ReadQueue
from tests.support.forked_studio import ForkedStudio
from tests.support.processes import SMALL, STUDIO, running
from tests.support.run_studio import run_here as studio


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    workspace = tmp_path_factory.mktemp("undisturbed")
    done = studio(workspace, "headless", "rehearsal", *SMALL)
    assert done.returncode == 0, done.stderr
    return texts(workspace)


def texts(workspace: Path) -> list[dict[str, str]]:
    head = Workspace(workspace).library("rehearsal").head()
    return [{"id": e.id, "text": e.text} for e in head.experiences]


@pytest.mark.parametrize("after", [1, 9, 30])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_resumes_to_the_same_library(
    number: signal.Signals, after: int, tmp_path: Path, undisturbed: list[dict[str, str]]
) -> None:
    with running(tmp_path, "rehearsal", *SMALL) as process:
        for _ in range(after):
            process.child.stdout.readline()
        process.child.send_signal(number)
        code = process.end()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    resumed = studio(tmp_path, "headless", "rehearsal", *SMALL)
    assert resumed.returncode == 0, resumed.stderr
    assert texts(tmp_path) == undisturbed


def test_a_waiting_run_is_decided_over_its_socket_and_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        run = Workspace(tmp_path).run("rehearsal")
        first = [op.id for op in control_socket.ask(run, ReadQueue()).open]
        assert len(first) >= 2
        # approve the first, reject the second with a reason, take the rejection back, approve
        typed = "a\nr not now\nu\n" + "a\n" * len(first)
        reviewed = studio(tmp_path, "review", typed=typed)
        assert reviewed.returncode == 0, reviewed.stderr
        assert f"asked again: {first[1]}" in reviewed.stdout
        committed = process.until("LessonCommitted")
        assert [o["operation_id"] for o in committed["outcomes"]] == first
        assert all(o["applied"] for o in committed["outcomes"])
        process.until("StageEntered", stage="review")
        studio(tmp_path, "review", typed="r no\n" * 9)
        assert process.end() == 0
    summary = process.events[-1]
    assert summary["kind"] == "Summary"
    assert summary["open"] == []


def test_a_hold_that_expires_ends_the_run_resumable_and_asks_nothing_twice(tmp_path: Path) -> None:
    held = studio(
        tmp_path, "headless", "rehearsal", *SMALL, "--review", "wait", "review.hold_s=0.01"
    )
    assert held.returncode == 3
    assert "studio review rehearsal" in held.stdout
    alone = studio(tmp_path, "review", typed="a\nq\n")  # no process: takes the lock itself
    assert "1 decided" in alone.stdout
    again = studio(tmp_path, "review", typed="a\n" * 9)
    assert "0 open" in again.stdout
    with running(tmp_path, "--resume", "rehearsal") as process:
        committed = process.until("LessonCommitted")
        assert all(outcome["applied"] for outcome in committed["outcomes"])
        assert not any(e["kind"] == "OperationDecided" for e in process.events)


def test_a_deferred_operation_stays_open_and_review_commits_it_after_the_end(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        studio(tmp_path, "review", typed="t later\n" + "a\n" * 9)
        process.until("StageEntered", stage="review", step=2)
        studio(tmp_path, "review", typed="n\n" + "r no\n" * 9)
        assert process.end() == 3
    left = [operation["id"] for operation in process.events[-1]["open"]]
    assert left == ["op1.1"]
    before = len(texts(tmp_path))
    closing = studio(tmp_path, "review", typed="a\n")
    assert "committed: library rehearsal is at v" in closing.stdout
    assert len(texts(tmp_path)) == before + 1
    agent = (tmp_path / "runs/rehearsal/agent.yaml").read_text()
    assert texts(tmp_path)[-1]["text"].split(",")[0] in agent


def test_pause_step_resume_and_stop_steer_a_living_run(tmp_path: Path) -> None:
    def ctl(*words: str) -> dict[str, Any]:
        answer = studio(tmp_path, "ctl", *words, "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)  # type: ignore[no-any-return]

    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        assert ctl("status")["status"] == "reviewing"
        assert ctl("status")["alive"] is True
        assert ctl("pause")["status"] == "paused"
        process.until("RunPaused")
        assert ctl("step", "rehearsal")["status"] != "paused"
        studio(tmp_path, "review", typed="a\n" * 9)
        process.until("StepFinished", step=1)
        process.until("RunPaused")  # one commit further, as asked
        assert ctl("resume")["status"] == "running"
        process.until("StageEntered", stage="review", step=2)
        ctl("stop")
        assert process.end() == 130
    stopped = ctl("status")
    assert stopped["status"] == "stopped"
    assert stopped["alive"] is False


def test_stop_after_step_commits_first_and_can_be_resumed(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        studio(tmp_path, "ctl", "stop", "--after-step")
        studio(tmp_path, "review", typed="a\n" * 9)
        assert process.end() in (0, 130)
    assert len(process.events[-1]["steps"]) == 1
    assert process.events[-1]["status"] == "stopped"


def test_a_second_process_on_a_living_run_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        second = studio(tmp_path, "headless", "rehearsal", *SMALL)
        assert second.returncode == 2
        assert "another process" in second.stderr
        assert str(process.child.pid) in second.stderr
        socket = tmp_path / "runs/rehearsal/control.sock"
        assert socket.stat().st_mode & 0o777 == 0o600


def test_watch_prints_the_events_of_a_living_run(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        with ForkedStudio(
            [*STUDIO, "--workspace", str(tmp_path), "ctl", "watch", "--json"],
            stdout=PIPE,
            text=True,
        ) as watcher:
            assert watcher.stdout is not None
            assert json.loads(watcher.stdout.readline())["kind"] == "Watching"
            studio(tmp_path, "ctl", "stop")
            kinds = [json.loads(line)["kind"] for line in watcher.stdout]
        assert process.end() == 130
    assert kinds == ["RunEnded"]


def test_the_long_path_of_a_deep_workspace_still_has_a_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    with running(deep, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        assert (deep / "runs/rehearsal/control.sock").is_symlink()
        assert studio(deep, "ctl", "status").returncode == 0


def test_a_socket_left_by_a_dead_process_is_no_obstacle(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        process.child.kill()
        process.child.wait()
    assert (tmp_path / "runs/rehearsal/control.sock").exists()
    dead = studio(tmp_path, "ctl", "pause")
    assert dead.returncode == 2
    assert "it is interrupted and has no process, so there is nothing to pause" in dead.stderr
    assert "Resume: studio headless --resume rehearsal" in dead.stderr
    assert "interrupted, no process" in studio(tmp_path, "ctl", "status", "rehearsal").stdout
    again = studio(tmp_path, "headless", "rehearsal", *SMALL, "--review", "auto")
    assert again.returncode == 0, again.stderr


def test_a_review_that_waits_stays_for_every_step_until_the_run_ends(tmp_path: Path) -> None:
    with running(tmp_path, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        assert studio(tmp_path, "ctl", "pause").returncode == 0
        first = studio(tmp_path, "review", typed="a\n" * 9)
        goes_on = "the run goes on; `studio review rehearsal --wait` stays for its next steps"
        assert goes_on in first.stdout
        process.until("StepFinished")
        empty = studio(tmp_path, "review")
        assert empty.stdout == f"run rehearsal: nothing is open\n{goes_on}\n"

        command = [*STUDIO, "--workspace", str(tmp_path), "review", "--wait"]
        with ForkedStudio(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as waiting:
            assert waiting.stdin and waiting.stdout and waiting.stderr
            waiting.stdin.write("n\n" + "a\n" * 9)  # the first is passed over: the run holds for it
            waiting.stdin.flush()
            assert waiting.stdout.readline() == "run rehearsal: nothing is open\n"
            assert "waiting for the run's next step" in waiting.stderr.readline()
            assert studio(tmp_path, "ctl", "resume").returncode == 0
            assert process.end() == 0
            said, told = waiting.communicate(timeout=60)
        assert waiting.returncode == 0
        assert "the run holds for 1 operation: once more" in told
        decided = [e for e in process.events if e["kind"] == "OperationDecided"]
        second = [e for e in decided if e["step"] == 2]
        assert second
        assert f"run rehearsal: {len(second)} decided, 0 open" in said
        assert "the process of run rehearsal has ended" in said


def test_a_review_of_a_run_without_a_process_has_nothing_to_wait_for(tmp_path: Path) -> None:
    held = studio(
        tmp_path, "headless", "rehearsal", *SMALL, "--review", "wait", "review.hold_s=0.01"
    )
    assert held.returncode == 3
    reviewed = studio(tmp_path, "review", "--wait", typed="a\n" * 9)
    assert "so there is nothing to wait for" in reviewed.stderr
    assert "0 open" in reviewed.stdout


def test_rules_that_settle_nothing_say_who_is_waited_for_and_how_to_go_on(tmp_path: Path) -> None:
    rules = tmp_path / "r.yaml"
    rules.write_text("rules:\n  - do: ask\n", "utf-8")
    held = studio(
        tmp_path, "headless", "rehearsal", *SMALL, f"--review=rules:{rules}", "review.hold_s=0.01"
    )
    assert held.returncode == 3
    assert "a person is to decide: studio review rehearsal, or a rule with do: defer" in held.stderr
