"""`studio chat`: a talk in lines."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

from engines.record.run_dir import Workspace
from studio.library.curation import commit_changes
from tests.support.fake_endpoint import an_endpoint, delta, hangs, refuses, says
from tests.support.forked_studio import STUDIO, ForkedStudio
from tests.support.run_studio import run_here

MODEL = ("rehearsal", "policy=openai:m", "policy.max_retries=0")
PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def roles(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


def test_a_scripted_talk_says_so_and_shows_what_stands_in_front(practised: Path) -> None:
    agent = str(practised / "runs/rehearsal/agent.yaml")
    typed = "What is 17 + 25?\n/library\n/nope\n/exit\nnever asked\n"
    done = run_here(practised, "chat", agent, typed=typed)
    assert done.returncode == 0 and done.stdout.endswith("#### 42\n")
    assert done.stdout.count("####") == 1
    for part in ("rehearsal: replies are scripted", "E1  ", "/nope is none of"):
        assert part in done.stderr


def test_each_turn_has_the_talk_behind_it_and_what_failed_is_no_part_of_it(
    practised: Path,
) -> None:
    script = (says("one"), says("two\x1b[31m"), refuses(400, "not today"), says("four"))
    with an_endpoint(says("pong"), *script) as fake:
        typed = "first\nsecond\nthird\nfourth\n/reset\nfifth"
        done = run_here(practised, "chat", *MODEL, f"policy.base_url={fake.base_url}", typed=typed)
    assert done.stdout == "one\ntwo\\u001b[31m\n\nfour\nfour\n"
    assert "not part of the talk" in done.stderr and done.returncode == 4
    first, second, _, fourth, fifth = fake.bodies[1:]
    assert "[E1]" in first["messages"][0]["content"]
    assert roles(first) == roles(fifth) == ["system", "user"]
    assert roles(second) == ["system", "user", "assistant", "user"]
    said = [message["content"] for message in fourth["messages"][1:]]
    assert said == ["first", "one", "second", "two\x1b[31m", "fourth"]


def test_ctrl_c_stops_a_reply_and_at_the_prompt_the_talk(practised: Path) -> None:
    with an_endpoint(says("pong"), hangs(delta(content="begun")), says("again")) as fake:
        words = ["--workspace", str(practised), "chat", *MODEL]
        command = [*STUDIO, *words, f"policy.base_url={fake.base_url}"]
        with ForkedStudio(command, **PIPES, text=True, bufsize=1) as talk:
            assert talk.stdin and talk.stdout and talk.stderr
            talk.stdin.write("one\n")
            assert talk.stdout.read(5) == "begun"
            talk.send_signal(signal.SIGINT)
            assert any("stopped" in line for line in talk.stderr)
            change: Any = [("add", None, "Units: name them.")]
            commit_changes(
                Workspace(practised), "rehearsal", lambda _: change, person="p", reason=""
            )
            talk.stdin.write("two\n/reset\n")
            assert talk.stdout.readline() == "again\n"
            assert any("anew" in line for line in talk.stderr)  # it waits for the next line
            talk.send_signal(signal.SIGINT)
            assert talk.wait(20) == 130
            assert "Traceback" not in talk.stderr.read()
    assert roles(fake.bodies[2]) == ["system", "user"]  # what was stopped is forgotten
    assert "Units" in fake.bodies[2]["messages"][0]["content"]
    assert "Units" not in fake.bodies[1]["messages"][0]["content"]


def test_an_agent_uses_its_tools_in_a_talk(practised: Path) -> None:
    typed = "Find the digit sum of the factorial of 30.\n"
    done = run_here(practised, "chat", "rehearsal", "--run-file", "math", typed=typed)
    assert done.returncode == 0 and "[calls python]" in done.stdout
    assert "[python: ok]" in done.stdout and "#### " in done.stdout
    done = run_here(
        practised, "chat", "rehearsal", "--run-file", "math", "agent.max_turns=1", typed=typed
    )
    assert done.returncode == 4 and "not part of the talk: it gave no answer" in done.stderr
