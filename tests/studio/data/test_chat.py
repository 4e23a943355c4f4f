"""Talks as problems: `studio data add --as-chat`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.data.dataset import read_problems
from tests.support.run_studio import studio


def said(*texts: str, system: str = "") -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    first = [{"role": "system", "content": system}] if system else []
    return {"messages": [*first, *turns]}


def sharegpt(*texts: str) -> dict[str, Any]:
    names = ("human", "gpt")
    turns = [{"from": names[n % 2], "value": text} for n, text in enumerate(texts)]
    return {"id": "c1", "conversations": turns}


TALK = ("What is 2 + 2?", "4", "And times ten?", "40")
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
WITH_TOOL = {
    "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
        {"role": "assistant", "content": "Sunny."},
    ]
}


def add(workspace: Path, tmp_path: Path, *rows: dict[str, Any], flag: str = "--as-chat") -> Any:
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return studio("data", "add", str(file), *([flag] if flag else []), workspace=workspace)


@pytest.mark.parametrize("row", [said(*TALK), sharegpt(*TALK)])
def test_the_last_exchange_is_the_problem_and_the_rest_its_history(
    workspace: Path, tmp_path: Path, row: dict[str, Any]
) -> None:
    added = add(workspace, tmp_path, row, said("Only?", "Yes.", system="Be short."))
    assert added.code == 0, added.stderr
    first, second = read_problems(workspace / "datasets" / "talks.jsonl")
    assert (first.question, first.answer) == ("And times ten?", "40")
    assert [(turn.role, turn.content) for turn in first.history] == [
        ("user", "What is 2 + 2?"),
        ("assistant", "4"),
    ]
    assert [(turn.role, turn.content) for turn in second.history] == [("system", "Be short.")]


def test_rollouts_send_the_earlier_turns(workspace: Path, tmp_path: Path) -> None:
    add(workspace, tmp_path, said(*TALK))
    ran = studio("headless", "rehearsal", "data.practice=talks", "verifier=text",
                 "practice.epochs=1", "evaluation.do_eval=false", workspace=workspace)  # fmt: skip
    assert ran.code in (0, 4), ran.stderr
    records = "".join(file.read_text() for file in workspace.glob("runs/*/records/step-0001.jsonl"))
    sent = [json.loads(line) for line in records.splitlines()]
    rollouts = [line for line in sent if "What is 2 + 2?" in json.dumps(line)]
    assert rollouts
    asked = json.dumps(rollouts[0])
    assert asked.index("What is 2 + 2?") < asked.index("And times ten?")


def test_two_talks_that_end_alike_are_two_problems(workspace: Path, tmp_path: Path) -> None:
    add(workspace, tmp_path, said(*TALK), said("What is 3 + 1?", *TALK[1:]))
    ids = [p.id for p in read_problems(workspace / "datasets" / "talks.jsonl")]
    assert len(set(ids)) == 2 and not any("#" in one for one in ids)


def test_talks_with_tools_are_left_out_and_counted(workspace: Path, tmp_path: Path) -> None:
    added = add(workspace, tmp_path, said(*TALK), WITH_TOOL)
    assert "1 row with calls of tools left out" in added.stderr
    assert len(read_problems(workspace / "datasets" / "talks.jsonl")) == 1


def test_parts_of_text_are_one_text_and_a_talk_may_lack_its_answer(
    workspace: Path, tmp_path: Path
) -> None:
    parts = [{"type": "text", "text": "Is"}, {"type": "text", "text": "it?"}]
    add(workspace, tmp_path, {"messages": [{"role": "user", "content": parts}]})
    (one,) = read_problems(workspace / "datasets" / "talks.jsonl", needs_answer=False)
    assert (one.question, one.answer, one.history) == ("Is\nit?", None, ())


@pytest.mark.parametrize("row", [said(*TALK), sharegpt(*TALK)])
def test_without_the_flag_a_talk_is_refused_and_the_flag_named(
    workspace: Path, tmp_path: Path, row: dict[str, Any]
) -> None:
    refused = add(workspace, tmp_path, row, flag="")
    assert (refused.code, "--as-chat" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answer": "a"},
        {"messages": []},
        {"messages": ["hello"]},
        {"messages": [{"role": "assistant", "content": "Hello"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "king", "content": "Hello"}]},
        {"conversations": [{"from": {}, "value": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        WITH_TOOL,
    ],
)
def test_what_is_no_talk_is_refused_and_nothing_added(
    workspace: Path, tmp_path: Path, row: dict[str, Any]
) -> None:
    refused = add(workspace, tmp_path, row)
    assert (refused.code, refused.stdout) == (2, "")
    assert not (workspace / "datasets" / "talks.jsonl").exists()
