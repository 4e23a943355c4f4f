"""Replaying logged rollouts: which attempt is given, and what a bad log is told."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from engines.core.errors import CallFailed, DataError
from engines.core.protocols import Policy
from engines.core.types import CallKey, Job, Message, Problem, Sampling, Usage
from engines.policies.open import open_policy
from engines.policies.replay import Replay, normalised, read_log

DATA = Path(os.environ.get("PRACTICE_DATA", "../shared/data"))


def a_row(question: str = "How many?", *responses: str) -> dict[str, object]:
    attempts = [{"model": f"m{n}", "response": r, "reward": 0.0} for n, r in enumerate(responses)]
    return {"question": question, "answer": "4", "rollouts": attempts}


def a_log(folder: Path, *rows: object) -> Path:
    path = folder / "log.jsonl"
    lines = [row if isinstance(row, bytes) else orjson.dumps(row) for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def bound(policy: Replay, index: int, epoch: int = 1) -> Policy:
    key = CallKey("rollout", epoch, 1, 0, index)
    return policy.for_job(Job(Problem("p", "How many?"), "", key, 0, 0))


async def said(policy: Policy, text: str = "How many?", seed: int | None = 0) -> str:
    messages = [Message("system", "Be brief."), Message("user", text)]
    return (await policy.complete(messages, Sampling(seed=seed))).text


async def test_a_group_receives_each_logged_attempt_once(tmp_path: Path) -> None:
    policy = Replay(a_log(tmp_path, a_row("How many?", "a", "b", "c", "d")))
    assert [await said(bound(policy, index)) for index in range(4)] == ["a", "b", "c", "d"]
    assert await said(bound(policy, 5)) == "b"  # 5 mod 4


async def test_without_a_job_the_seed_chooses(tmp_path: Path) -> None:
    policy = Replay(a_log(tmp_path, a_row("How many?", "a", "b", "c")))
    assert [await said(policy, seed=seed) for seed in (0, 4, None)] == ["a", "b", "a"]
    assert await said(bound(policy, -1), seed=2) == "c"


async def test_a_completion_names_the_logged_model_and_counts_no_tokens(tmp_path: Path) -> None:
    policy = Replay(a_log(tmp_path, a_row("How many?", "a", "b")))
    made = await bound(policy, 1).complete([Message("user", "How many?")], Sampling())
    assert (made.model, made.usage) == ("m1", Usage(0, 0, 1, None))
    assert policy.name == "replay:log"


async def test_a_question_is_found_inside_a_prompt_whatever_its_white_space(
    tmp_path: Path,
) -> None:
    policy = Replay(a_log(tmp_path, a_row("How  many\neggs?", "eggs")))
    assert await said(policy, "Solve this.\n\nHow many   eggs?\n\nEnd with ####.") == "eggs"


async def test_the_longest_question_that_stands_whole_in_the_message_counts(
    tmp_path: Path,
) -> None:
    policy = Replay(a_log(tmp_path, a_row("What is 1 + 2", "3"), a_row("What is 1 + 2 + 3", "6")))
    assert await said(policy, "What is 1 + 2 + 3") == "6"
    assert await said(policy, "Well: What is 1 + 2?") == "3"
    with pytest.raises(CallFailed):
        await said(policy, "What is 1 + 25")


async def test_an_unknown_question_is_a_failed_call_that_names_the_file(tmp_path: Path) -> None:
    path = a_log(tmp_path, a_row("How many?", "a"))
    with pytest.raises(CallFailed) as caught:
        await said(Replay(path), "Why?")
    assert caught.value.kind == "refused"
    assert str(path) in str(caught.value) and "Why?" in str(caught.value)


async def test_only_the_last_user_message_is_searched(tmp_path: Path) -> None:
    policy = Replay(a_log(tmp_path, a_row("How many?", "a")))
    told = [Message("user", "How many?"), Message("assistant", "4"), Message("user", "Sure?")]
    with pytest.raises(CallFailed):
        await policy.complete(told, Sampling())


async def test_lines_with_one_response_each_add_up_to_a_group(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "response": r, "model": "m"} for r in "ab"]
    policy = Replay(a_log(tmp_path, *rows, b""))
    assert [await said(bound(policy, index)) for index in range(2)] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (b'{"question": ', "no JSON"),
        (b'{"question": "\xff"}', "no JSON"),
        ([1], "no JSON object"),
        ({"rollouts": [{"response": "a"}]}, '"question" is missing'),
        ({"question": "q"}, 'neither "rollouts"'),
        ({"question": "q", "rollouts": []}, 'neither "rollouts"'),
        ({"question": "q", "rollouts": [{"model": "m"}]}, 'no "response"'),
        ({"question": "q", "rollouts": ["a"]}, 'no "response"'),
        ({"question": "q", "response": None}, 'no "response"'),
    ],
)
def test_a_damaged_line_is_named_with_its_number(tmp_path: Path, row: object, cause: str) -> None:
    path = a_log(tmp_path, a_row("fine", "a"), row)
    with pytest.raises(DataError) as caught:
        Replay(path)
    assert caught.value.place == f"{path}:2"
    assert cause in caught.value.cause and caught.value.move


def test_a_missing_or_empty_log_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        open_policy("replay:none.jsonl", folder=tmp_path)
    with pytest.raises(DataError, match="empty"):
        Replay(a_log(tmp_path, b""))


async def test_a_relative_log_is_looked_up_in_the_given_folder(tmp_path: Path) -> None:
    a_log(tmp_path, a_row("How many?", "a"))
    assert await said(open_policy("replay:log.jsonl", folder=tmp_path)) == "a"


async def test_the_public_rollout_log_is_answered_row_by_row_as_it_stands() -> None:
    path = DATA / "gsm8k" / "rollouts.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent; set PRACTICE_DATA to the folder that holds gsm8k/")
    policy = Replay(path)
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert len(read_log(path)) == len({normalised(row["question"]) for row in rows}) == 1000
    for row in rows[:100]:
        for index, logged in enumerate(row["rollouts"]):
            prompt = f"Solve the problem.\n\n{row['question']}\n"
            assert await said(bound(policy, index), prompt) == logged["response"]
