"""Replaying logged rollouts: which attempt is given, and what a bad log is told."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from engines.core.errors import CallFailed, DataError
from engines.core.protocols import Policy
from engines.core.types import CallKey, Job, Message, Problem, Sampling, Usage
from engines.data.dataset import read_problems, read_rollout_log
from engines.policies.open import open_policy
from engines.policies.replay import ReplayPolicy, normalise_text

DATA = Path(os.environ.get("PRACTICE_DATA", "../shared/data"))


def a_row(question: str = "How many?", *responses: str) -> dict[str, object]:
    attempts = [{"model": f"m{n}", "response": r, "reward": 0.0} for n, r in enumerate(responses)]
    return {"question": question, "answer": "4", "rollouts": attempts}


def a_log(folder: Path, *rows: object) -> Path:
    path = folder / "log.jsonl"
    lines = [row if isinstance(row, bytes) else orjson.dumps(row) for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def a_replay(path: Path) -> ReplayPolicy:
    return ReplayPolicy(path, read_rollout_log(path))


def bound(policy: ReplayPolicy, index: int, epoch: int = 1) -> Policy:
    key = CallKey("rollout", epoch, 1, 0, index)
    return policy.for_job(Job(Problem("p", "How many?"), "", key, 0, 0))


async def said(policy: Policy, text: str = "How many?", seed: int | None = 0) -> str:
    messages = [Message("system", "Be brief."), Message("user", text)]
    return (await policy.complete(messages, Sampling(seed=seed))).text


async def test_a_group_receives_each_logged_attempt_once(tmp_path: Path) -> None:
    policy = a_replay(a_log(tmp_path, a_row("How many?", "a", "b", "c", "d")))
    assert [await said(bound(policy, index)) for index in range(4)] == ["a", "b", "c", "d"]
    assert await said(bound(policy, 5)) == "b"  # 5 mod 4


async def test_without_a_job_the_seed_chooses(tmp_path: Path) -> None:
    policy = a_replay(a_log(tmp_path, a_row("How many?", "a", "b", "c")))
    assert [await said(policy, seed=seed) for seed in (0, 4, None)] == ["a", "b", "a"]
    assert await said(bound(policy, -1), seed=2) == "c"


async def test_a_completion_names_the_logged_model_and_counts_no_tokens(tmp_path: Path) -> None:
    policy = a_replay(a_log(tmp_path, a_row("How many?", "a", "b")))
    made = await bound(policy, 1).complete([Message("user", "How many?")], Sampling())
    assert (made.model, made.usage) == ("m1", Usage(0, 0, 1, None))
    assert policy.name == "replay:log"


async def test_a_question_is_found_inside_a_prompt_whatever_its_white_space(
    tmp_path: Path,
) -> None:
    policy = a_replay(a_log(tmp_path, a_row("How  many\neggs?", "eggs")))
    assert await said(policy, "Solve this.\n\nHow many   eggs?\n\nEnd with ####.") == "eggs"


async def test_the_longest_question_that_stands_whole_in_the_message_counts(
    tmp_path: Path,
) -> None:
    policy = a_replay(a_log(tmp_path, a_row("What is 1 + 2", "3"), a_row("What is 1 + 2 + 3", "6")))
    assert await said(policy, "What is 1 + 2 + 3") == "6"
    assert await said(policy, "Well: What is 1 + 2?") == "3"
    with pytest.raises(CallFailed):
        await said(policy, "What is 1 + 25")


async def test_an_unknown_question_is_a_failed_call_that_names_the_file(tmp_path: Path) -> None:
    path = a_log(tmp_path, a_row("How many?", "a"))
    with pytest.raises(CallFailed) as caught:
        await said(a_replay(path), "Why?")
    assert caught.value.kind == "refused"
    assert str(path) in str(caught.value) and "Why?" in str(caught.value)


async def test_only_the_last_user_message_is_searched(tmp_path: Path) -> None:
    policy = a_replay(a_log(tmp_path, a_row("How many?", "a")))
    told = [Message("user", "How many?"), Message("assistant", "4"), Message("user", "Sure?")]
    with pytest.raises(CallFailed):
        await policy.complete(told, Sampling())


async def test_lines_with_one_response_each_add_up_to_a_group(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "response": r, "model": "m"} for r in "ab"]
    policy = a_replay(a_log(tmp_path, *rows, b""))
    assert [await said(bound(policy, index)) for index in range(2)] == ["a", "b"]


ASKED = "How many?"
ASSISTANT = {"role": "assistant", "content": "a"}
CHAT = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "no"}, ASSISTANT]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": ASKED, "rollouts": ["a", "b"]}, ["a", "b"]),
        ({"question": ASKED, "responses": ["a", "b"], "model": "m"}, ["a", "b"]),
        ({"problem": ASKED, "completions": [CHAT, "b"]}, ["a", "b"]),
        ({"question": ASKED, "rollouts": [{"completion": "a"}, {"output": "b"}]}, ["a", "b"]),
        ({"query": ASKED, "output": "a"}, ["a"]),
        ({"input": ASKED, "prediction": "a"}, ["a"]),
        ({"Problem": ASKED, "generation": "a"}, ["a"]),
        ({"question": ASKED, "response": None, "model_output": "a"}, ["a"]),
        # Youtu-Agent's evaluation sample; the augmented question is not what was asked.
        (
            {
                "raw_question": ASKED,
                "augmented_question": f"Solve: {ASKED}",
                "correct_answer": "4",
                "response": "a",
                "reward": 0.0,
            },
            ["a"],
        ),
        # TRL's completions table, as text and as chat messages.
        ({"step": 1, "prompt": ASKED, "completion": "a", "accuracy": 1.0}, ["a"]),
        ({"prompt": CHAT[:1], "completion": [ASSISTANT], "advantage": 0.5}, ["a"]),
        (
            {"prompt": ASKED, "completion": [{**ASSISTANT, "content": [{"text": "a"}]}]},
            ["a"],
        ),
        ({"question": ASKED, "response": ""}, [""]),
    ],
)
async def test_replies_are_found_as_other_systems_log_them(
    tmp_path: Path, row: dict[str, object], said: list[str]
) -> None:
    path = a_log(tmp_path, row)
    assert [reply.text for reply in read_rollout_log(path)[ASKED]] == said
    as_array = tmp_path / "log.json"
    as_array.write_bytes(orjson.dumps([row]))
    assert read_rollout_log(as_array) == read_rollout_log(path)


def test_a_log_may_be_a_split_of_a_folder(tmp_path: Path) -> None:
    for split in ("test", "train"):
        (tmp_path / "logs").mkdir(exist_ok=True)
        a_log(tmp_path, {"question": ASKED, "response": split}).rename(
            tmp_path / "logs" / f"{split}.jsonl"
        )
    for name, reply in (("logs:test", "test"), ("logs:train", "train"), ("logs", "train")):
        assert [r.text for r in read_rollout_log(tmp_path / name)[ASKED]] == [reply]
    with pytest.raises(DataError, match=r'no split "tset".*"test"'):
        read_rollout_log(tmp_path / "logs:tset")


def test_a_model_is_that_of_the_reply_or_else_of_the_row(tmp_path: Path) -> None:
    row = {"question": ASKED, "rollouts": [{"response": "a", "model": "own"}, "b"], "model": "m"}
    assert [reply.model for reply in read_rollout_log(a_log(tmp_path, row))[ASKED]] == ["own", "m"]


def test_tables_of_prompts_and_completions_are_read_as_csv_and_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra `parquet`")
    from pyarrow import parquet

    prompts, completions = [ASKED, "Why?", ASKED], ['a, "b"', "because", "c\nd"]
    table = pyarrow.table({"prompt": prompts, "completion": completions, "step": [1, 1, 2]})
    parquet.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "log.csv").write_text(
        'prompt,completion,step\nHow many?,"a, ""b""",1\nWhy?,because,1\nHow many?,"c\nd",2\n'
    )
    for name in ("log.parquet", "log.csv"):
        log = read_rollout_log(tmp_path / name)
        assert {q: [r.text for r in replies] for q, replies in log.items()} == {
            ASKED: ['a, "b"', "c\nd"],
            "Why?": ["because"],
        }


def test_a_log_practised_on_gives_each_question_once_with_its_answer(tmp_path: Path) -> None:
    flat = {"question": ASKED, "answer": "4", "response": "a", "model": "m", "level": 2}
    other = {"question": "Why?", "answer": "so", "response": "c", "level": 1}
    problems = read_problems(a_log(tmp_path, flat, {**flat, "response": "b"}, other, flat))
    assert [(p.question, p.answer, p.meta) for p in problems] == [
        (ASKED, "4", {"level": 2}),
        ("Why?", "so", {"response": "c", "level": 1}),
    ]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (b'{"question": ', "not JSON"),
        (b'{"question": "\xff"}', "not UTF-8"),
        ([1], "a list, not an object"),
        ({"rollouts": [{"response": "a"}]}, '"question" is missing'),
        ({"question": " ", "response": "a"}, '"question" is empty'),
        ({"question": {"a": 1}, "response": "a"}, '"question" holds an object'),
        ({"question": "q"}, "It has no reply"),
        ({"question": "q", "rollouts": []}, '"rollouts" is no list'),
        ({"question": "q", "rollouts": "a"}, '"rollouts" is no list'),
        ({"question": "q", "rollouts": [{"model": "m"}]}, "It has no reply"),
        ({"question": "q", "rollouts": [7]}, "It has no reply"),
        ({"question": "q", "response": None}, "It has no reply"),
        ({"question": "q", "response": 7}, "It has no reply"),
        ({"question": "q", "response": CHAT[:1]}, "It has no reply"),
        ({"question": "q", "completions": [[]]}, "It has no reply"),
    ],
)
def test_a_damaged_line_is_named_with_its_number(tmp_path: Path, row: object, cause: str) -> None:
    path = a_log(tmp_path, a_row("fine", "a"), row)
    with pytest.raises(DataError) as caught:
        a_replay(path)
    assert caught.value.place == f"{path}:2"
    assert cause in caught.value.cause and caught.value.move


def test_a_missing_or_empty_log_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"It is not found"):
        open_policy(f"replay:{tmp_path / 'none.jsonl'}", read_log=read_rollout_log)
    with pytest.raises(DataError, match="empty"):
        a_replay(a_log(tmp_path, b""))


async def test_a_relative_log_is_looked_up_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_log(tmp_path, a_row("How many?", "a"))
    monkeypatch.chdir(tmp_path)
    assert await said(open_policy("replay:log.jsonl", read_log=read_rollout_log)) == "a"


async def test_the_public_rollout_log_is_answered_row_by_row_as_it_stands() -> None:
    path = DATA / "gsm8k" / "rollouts.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent; set PRACTICE_DATA to the folder that holds gsm8k/")
    policy = a_replay(path)
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    asked = {normalise_text(question) for question in read_rollout_log(path)}
    assert asked == {normalise_text(row["question"]) for row in rows} and len(asked) == 1000
    for row in rows[:100]:
        for index, logged in enumerate(row["rollouts"]):
            prompt = f"Solve the problem.\n\n{row['question']}\n"
            assert await said(bound(policy, index), prompt) == logged["response"]
