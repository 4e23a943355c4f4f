"""Programs as agents: what they are given, how their answer is read, and what stays with us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.agents.command import CommandAgent
from engines.agents.loops import SingleTurn
from engines.agents.programs import parse_reward, read_left_file
from engines.core.errors import AnswersPending, CallFailed
from engines.core.types import CallKey, Completion, Message, Problem, Sampling, Usage
from engines.data.dataset import read_problems
from engines.policies.limits import Slots
from engines.policies.open import open_policy
from engines.record.ledger import RecordLedger, read_trajectory
from engines.rollouts.manager import RolloutManager
from tests.support.builders import FakePolicy, a_job, a_library, answering
from tests.support.harness import practised
from tests.support.plain_runner import PlainRunner

PROGRAMS = Path(__file__).parents[2] / "support/agent_programs"
INSTRUCTIONS = "Solve it. End with #### and the answer."
OURS = Sampling(0.7, max_tokens=500)
FOUR: tuple[tuple[str, dict[str, Any]], ...] = (
    ("urllib_agent.py", {}),
    ("openai_agent.py", {"problem_as": "argument"}),
    ("streaming_tools_agent.py", {"problem_as": "file", "answer_from": "file:answer.txt"}),
    ("mcp_agent.py", {}),
)


def a_command(code: str, runner: PlainRunner | None = None, **more: Any) -> CommandAgent:
    """An agent that is a line of Python."""
    command = (sys.executable, "-c", code)
    return CommandAgent(command=command, sampling=OURS, runner=runner or PlainRunner(), **more)


def a_program(name: str, runner: PlainRunner, **more: Any) -> CommandAgent:
    more = {"answer_from": "stdout", **more}
    return CommandAgent(
        command=(sys.executable, name),
        sampling=OURS,
        runner=runner,
        instructions=INSTRUCTIONS,
        base=PROGRAMS,
        **more,
    )


def asks(*texts: str, then: str = "") -> str:
    """A program that asks these, one after another, and prints each reply."""
    return f"""
import json, os, sys, urllib.request
def ask(text):
    body = {{"messages": [{{"role": "user", "content": text}}]}}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]
for text in {texts!r}:
    print(ask(text), flush=True)
{then}
"""


async def test_a_program_that_ends_before_anybody_listens_has_answered_all_the_same() -> None:
    class Quick(PlainRunner):
        async def start_program(self, *asked: Any, **more: Any) -> Any:
            program = await super().start_program(*asked, **more)
            assert program.listener is not None
            program.listener.close()  # as a box does that sees its program end
            return program

    attempt = await a_command("print(5)", Quick(own_listener=True)).attempt(a_job(), answering())
    assert (attempt.answer, attempt.status, attempt.error) == ("5", "ok", None)


async def test_a_program_gets_its_folder_its_question_and_nothing_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-1234567890")
    monkeypatch.setenv("SOME_SECRET", "sk-planted-1234567890")
    runner = PlainRunner()
    code = """
import json, os, sys
print(sys.stdin.read(), dict(os.environ), sorted(os.listdir(".")), open("problem.json").read())
"""
    agent = a_command(code, runner, env={"LANG": "C"}, answer_from="stdout")
    problem = Problem("p1", "What is 2 + 3?", "truth-5", meta={"alternatives": ["truth-five"]})
    attempt = await agent.attempt(a_job(problem), answering())
    assert attempt.answer is not None and attempt.answer.startswith("What is 2 + 3?")
    assert "['problem.json', 'problem.txt']" in attempt.answer
    assert "sk-planted" not in attempt.answer and "truth" not in attempt.answer
    assert set(runner.started[0]["env"]) == {
        *("PATH", "LANG", "HOME", "TMPDIR", "STUDIO_SEED"),
        *("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    }
    assert not runner.started[0]["folder"].exists()


async def test_a_planted_key_is_nowhere_in_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked for from outside, while the program waits for a reply: it must not hold the needle."""
    key = "sk-planted-0123456789abcdef"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    runner, held = PlainRunner(), []

    class Looks(FakePolicy):
        async def complete(self, *asked: Any) -> Completion:
            process = Path(f"/proc/{runner.programs[0].process.pid}")
            mine = read_memory(Path("/proc/self"))
            held.append(key.encode() in mine)  # the search finds what there is
            held.append(key.encode() in read_memory(process))
            held.append(key.encode() in (process / "environ").read_bytes())
            for file in runner.started[0]["folder"].rglob("*"):
                held.append(key.encode() in file.read_bytes())
            return await super().complete(*asked)

    policy = Looks().enqueue(["hi"])
    attempt = await a_command(asks("hello"), runner).attempt(a_job(), policy)
    assert attempt.answer == "hi"
    assert held == [True] + [False] * (len(held) - 1) and len(held) == 5


def read_memory(process: Path) -> bytes:
    """All that a process can read of itself and that it or its program has written."""
    parts = []
    with (process / "mem").open("rb", buffering=0) as memory:
        for line in (process / "maps").read_text().splitlines():
            span, rights, *rest = line.split()
            low, high = (int(end, 16) for end in span.split("-"))
            if rights.startswith("rw") and rest[-1] != "[vvar]":
                with contextlib.suppress(OSError):
                    memory.seek(low)
                    parts.append(memory.read(min(high - low, 64_000_000)))
    return b"".join(parts)


@pytest.mark.parametrize(
    ("source", "answer"),
    [("last_line", "so 5"), ("stdout", "one\nso 5"), ("file:a.txt", "in file")],
)
async def test_the_answer_is_read_where_the_run_file_says(source: str, answer: str) -> None:
    code = "open('a.txt', 'w').write('in file'); print('one'); print('so 5\\n')"
    attempt = await a_command(code, answer_from=source).attempt(a_job(), answering())
    assert (attempt.answer, attempt.status) == (answer, "ok")
    assert attempt.messages == (
        Message("user", "What is 2 + 3?"),
        Message("assistant", answer),
    )


async def test_an_answer_file_that_is_no_plain_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = os.listdir("/proc/self/fd") if sys.platform == "linux" else []
    assert [read_left_file(tmp_path, name) for name in ("link", "pipe", "folder")] == [None] * 3
    assert not before or os.listdir("/proc/self/fd") == before
    attempt = await a_command(
        "import os; os.symlink('/etc/passwd', 'a.txt')", answer_from="file:a.txt"
    ).attempt(a_job(), answering())
    assert attempt.error is not None and "left no answer in file:a.txt" in attempt.error


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import sys; print('5'); sys.exit('no\\x1b[31m such luck')",
            "exit code 1: no\\u001b[31m such luck",
        ),
        ("pass", "empty: the program left no answer in standard output"),
        ("import time; time.sleep(60)", "timeout: it was stopped after 1 s"),
    ],
)
async def test_a_program_that_fails_says_why(code: str, reason: str) -> None:
    attempt = await a_command(code, PlainRunner(timeout_s=1.0)).attempt(a_job(), answering())
    assert (attempt.status, attempt.answer) == ("failed", None)
    assert attempt.error is not None and reason in attempt.error


async def test_a_failed_call_is_named_beside_the_exit_code() -> None:
    policy = answering(CallFailed("timeout", "no answer within 1 s", Usage(9, 0, 1)))
    attempt = await a_command(asks("hello")).attempt(a_job(), policy)
    assert attempt.error is not None and "exit code 1" in attempt.error
    assert "its last failed call: timeout: no answer within 1 s" in attempt.error
    assert attempt.usage == Usage(9, 0, 1)


async def test_what_ends_the_run_ends_the_program() -> None:
    runner = PlainRunner()
    code = asks("hello").replace(
        "for text", "try: ask('a')\nexcept OSError: pass\nwhile 1: pass\nfor text"
    )
    with pytest.raises(AnswersPending):
        await a_command(code, runner).attempt(a_job(), answering(AnswersPending({"c": ["a"]})))
    assert runner.programs[0].process.returncode is not None
    assert not runner.started[0]["folder"].exists()


async def test_a_try_that_is_cancelled_leaves_no_process_and_no_folder() -> None:
    runner = PlainRunner()
    code = "import os, time; os.mkdir('shut'); os.chmod('shut', 0); time.sleep(60)"
    work = asyncio.ensure_future(a_command(code, runner).attempt(a_job(), answering()))
    while not runner.programs or not any(runner.started[0]["folder"].glob("shut")):
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert runner.programs[0].process.returncode is not None
    assert not runner.started[0]["folder"].exists()


async def test_its_own_reward_is_kept_as_figures_beside_our_verifiers() -> None:
    code = (
        'open(\'reward.json\', \'w\').write(\'{"reward": 0.5, "style": 1, "note": "x"}\'); print(5)'
    )
    attempt = await a_command(code).attempt(a_job(), answering())
    assert attempt.metrics == {"reward": 0.5, "style": 1.0}
    told: list[str] = []
    agent = a_command("open('reward.json', 'w').write('{}'); print(5)", tell=told.append)
    for _ in range(2):
        assert (await agent.attempt(a_job(), answering())).metrics == {}
    assert told == [
        'reward.json of the program cannot be read: it is no number and has no number "reward"'
    ]


def test_a_reward_is_a_number_or_an_object_with_one() -> None:
    assert parse_reward("0.25") == {"reward": 0.25}
    for wrong in ("{}", "[]", "null", '{"reward": "1"}', "NaN", "x"):
        with pytest.raises(ValueError):
            parse_reward(wrong)


@pytest.mark.parametrize("own_listener", [False, True])
@pytest.mark.parametrize(("name", "more"), FOUR, ids=[name for name, _ in FOUR])
async def test_four_programs_make_the_tries_of_the_agent_in_process(
    name: str, more: dict[str, Any], own_listener: bool, tmp_path: Path
) -> None:
    problem = read_problems(Path("sample_data/arithmetic-demo.jsonl"))[0]
    guidance = a_library("Subtraction: borrow from the next column.").guidance()
    agents = {
        "in process": SingleTurn(INSTRUCTIONS, OURS),
        "program": a_program(name, PlainRunner(own_listener=own_listener), **more),
    }
    said: dict[str, list[str | None]] = {}
    for kind, agent in agents.items():
        ledger = RecordLedger(tmp_path / kind, 7)
        manager = RolloutManager(agent, open_policy("rehearsal"), ledger, Slots(4), 60)
        tries = [
            manager.roll_out(replace(a_job(problem, guidance), key=CallKey("rollout", 1, 1, 0, n)))
            for n in range(1 + own_listener)  # two at once, each with a listener of its own
        ]
        made = await asyncio.gather(*tries)
        said[kind] = [attempt.answer for attempt, _ in made]
        if "tools" not in name and "mcp" not in name:  # those offer functions, too
            lines = (tmp_path / kind / "step-0001.jsonl").read_text().splitlines()
            said[f"{kind} requests"] = sorted(line.split('"request":')[1][:36] for line in lines)
        await ledger.aclose()
    assert said["program"] == said["in process"] and None not in said["program"]
    assert said.get("program requests") == said.get("in process requests")


async def test_a_whole_practice_of_programs_ends_with_the_library_of_one_in_process(
    tmp_path: Path,
) -> None:
    def with_program(practice: Any) -> Any:
        agent = practice.rollouts.agent
        made = replace(
            a_program("urllib_agent.py", PlainRunner()),
            sampling=agent.sampling,
            instructions=agent.instructions,
        )
        return replace(practice, rollouts=replace(practice.rollouts, agent=made))

    few = ("practice.rollout_data_truncate=3", "practice.epochs=1")
    plain = await practised(tmp_path / "a", *few)
    program = await practised(tmp_path / "b", *few, change=with_program)
    assert program.texts == plain.texts and plain.texts
    assert (program.asked, program.reused) == (plain.asked, plain.reused)


def killed_after(n: int) -> str:
    return asks(*(f"ask {k}" for k in range(n)), then="os.kill(os.getpid(), 9)")


async def test_replies_recorded_before_a_kill_are_not_paid_for_again(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    first, job = answering("a", "b"), a_job(guidance="[E1] Mind it.")
    ledger = RecordLedger(folder, 7)
    manager = RolloutManager(a_command(killed_after(2)), first, ledger, Slots(1), 60)
    attempt, _ = await manager.roll_out(job)
    assert attempt.status == "failed" and len(first.requests) == 2
    await ledger.aclose()
    second = answering("c")
    ledger = RecordLedger(folder, 7)
    agent = a_command(asks("ask 0", "ask 1", "ask 2"), answer_from="stdout")
    attempt, _refs = await RolloutManager(agent, second, ledger, Slots(1), 60).roll_out(job)
    assert attempt.answer == "a\nb\nc" and ledger.reused == 2
    assert [request[-1].content for request in second.requests] == ["ask 2"]
    await ledger.aclose()


async def test_calls_that_come_in_another_order_find_their_records(tmp_path: Path) -> None:
    folder, job = tmp_path / "records", a_job()
    first = answering("a", "b", "a again")
    ledger = RecordLedger(folder, 7)
    agent = a_command(asks("A", "B", "A"), answer_from="stdout")
    await RolloutManager(agent, first, ledger, Slots(1), 60).roll_out(job)
    await ledger.aclose()
    second = answering("c")
    ledger = RecordLedger(folder, 7)
    agent = a_command(asks("C", "A", "A", "B"), answer_from="stdout")
    attempt, refs = await RolloutManager(agent, second, ledger, Slots(1), 60).roll_out(job)
    assert attempt.answer == "c\na\na again\nb" and len(second.requests) == 1
    assert read_trajectory(folder, refs)[0] == Message("user", "C")
    await ledger.aclose()


async def test_a_folder_of_a_killed_studio_is_the_same_one_and_empty_again(tmp_path: Path) -> None:
    runner = PlainRunner()
    agent = a_command("import os; print(os.listdir('.'))", runner, folders=tmp_path / "tries")
    await agent.attempt(a_job(), answering())
    folder = runner.started[0]["folder"]
    folder.mkdir()
    (folder / "left").touch()
    attempt = await agent.attempt(a_job(), answering())
    assert runner.started[1]["folder"] == folder and "left" not in (attempt.answer or "")


KILLED_STUDIO = """
import asyncio, os, sys
from pathlib import Path
from engines.core.types import Completion, Usage
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from tests.engines.agents.test_command import a_command, asks
from tests.support.builders import FakePolicy, a_job

class Dies(FakePolicy):
    async def complete(self, messages, sampling, on_text=None):
        if messages[-1].content == "ask 2":
            os.kill(os.getpid(), 9)
        return Completion("reply to " + messages[-1].content, usage=Usage(1, 1, 1))

agent = a_command(asks("ask 0", "ask 1", "ask 2"))
ledger = RecordLedger(Path(sys.argv[1]), 7)
asyncio.run(RolloutManager(agent, Dies(), ledger, Slots(1), 60).roll_out(a_job()))
"""


@pytest.mark.nightly
async def test_a_studio_killed_with_its_gateway_pays_for_nothing_twice(tmp_path: Path) -> None:
    command = (sys.executable, "-c", KILLED_STUDIO, str(tmp_path))
    killed = await asyncio.create_subprocess_exec(*command, cwd=PROGRAMS.parents[2])
    assert await killed.wait() == -9
    policy, ledger = answering("now"), RecordLedger(tmp_path, 7)
    agent = a_command(asks("ask 0", "ask 1", "ask 2"), answer_from="stdout")
    attempt, _refs = await RolloutManager(agent, policy, ledger, Slots(1), 60).roll_out(a_job())
    assert attempt.answer == "reply to ask 0\nreply to ask 1\nnow"
    assert (ledger.asked, ledger.reused) == (1, 2)
    await ledger.aclose()
