"""Demonstrations: from files and beside problems, as ids, and without a library's guidance."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.agents.loops import prompt_messages
from engines.core.errors import DataError
from engines.core.types import Message, Problem
from engines.data.dataset import read_problems
from engines.grpo.loss.sft_data import (
    Demonstration,
    check_problems,
    demonstration_row,
    parse_demonstration,
    read_demonstrations,
    reply_ids,
    tokenise_demonstration,
    without_guidance,
)
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.policy import encode_prompt
from tests.engines.grpo.checkpoints import adapted
from tests.engines.grpo.models import a_folder, a_tokenizer


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    return adapted(a_folder(tmp_path_factory.mktemp("models") / "base"))


def a_file(folder: Path, *rows: Any) -> Path:
    path = folder / "shown.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def read(folder: Path, *rows: Any, **more: Any) -> tuple[Demonstration, ...]:
    return read_demonstrations(a_file(folder, *rows), **more)


def asked(text: str, system: str = "") -> tuple[Message, ...]:
    return prompt_messages(system, "", text)


@pytest.mark.parametrize("name", ["completion", "response", "solution", "output", "answer"])
def test_a_question_and_its_reply_are_a_demonstration(name: str, tmp_path: Path) -> None:
    (one,) = read(tmp_path, {"question": "1 + 1?", name: "two", "source": "sums"})
    assert (one.question, one.reply, one.messages) == ("1 + 1?", "two", ())
    assert (one.source, one.place) == ("sums", f"{tmp_path / 'shown.jsonl'}:1")
    assert one.answer == ("two" if name == "answer" else None)


def test_a_whole_solution_is_learnt_rather_than_the_answer_alone(tmp_path: Path) -> None:
    row = {"prompt": "1 + 1?", "answer": 2, "solution": "one and one are 2"}
    assert read(tmp_path, row)[0].reply == "one and one are 2"
    assert read(tmp_path, {"prompt": "1 + 1?", "answer": 2})[0].reply == "2"


def test_every_reply_of_a_conversation_is_a_demonstration(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    first, second = read(tmp_path, {"messages": chat})
    assert first.question == second.question == "a"
    assert [m.content for m in first.messages] == ["s", "a"]
    assert [m.content for m in second.messages] == ["s", "a", "b", "c"]
    assert (first.reply, second.reply) == ("b", "d")


def test_so_many_rows_are_read_and_no_more(tmp_path: Path) -> None:
    rows = [{"question": f"{n}", "answer": f"{n}"} for n in range(5)]
    assert [one.reply for one in read(tmp_path, *rows, limit=2)] == ["0", "1"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "a"}, "it shows no reply; the fields are: question"),
        ({"question": "a", "answer": " "}, "it shows no reply"),
        ({"answer": "a"}, '"question" is missing'),
        ({"text": "all in one"}, '"question" is missing'),
        ({"question": "a", "answer": ["x"]}, '"answer" holds a list'),
        ({"messages": "hello"}, '"messages" holds a text'),
        ({"messages": []}, "holds no reply"),
        ({"messages": [{"role": "user", "content": "a"}]}, "holds no reply"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "without anything that was asked"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "message 1 has not the form"),
        ({"messages": [{"role": "user", "content": [1]}]}, "message 1 has not the form"),
        ({"messages": ["a"]}, "message 1 has not the form"),
        (
            {"messages": [{"role": "user", "content": "a", "token_ids": [1.5]}]},
            "its token ids are no list of whole numbers",
        ),
        (["question"], "not an object"),
    ],
)
def test_another_shape_is_refused_by_file_and_line(row: Any, told: str, tmp_path: Path) -> None:
    good = {"question": "a", "answer": "b"}
    with pytest.raises(DataError, match="1 more cannot be used: line 3") as refused:
        read(tmp_path, good, row, row, good)
    assert refused.value.place == f"{tmp_path / 'shown.jsonl'}:2"
    assert told in refused.value.cause
    assert refused.value.move


def test_an_empty_file_has_no_demonstration(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no demonstration"):
        read(tmp_path)


def test_only_the_reply_and_its_end_are_learnt(local: LocalModel) -> None:
    one = tokenise_demonstration(local, Demonstration("1 + 1?", " What is 2 \n"))
    tokenizer = local.tokenizer
    assert tokenizer.decode(one.prompt_ids) == "<|user|>1 + 1?<|end|><|assistant|>"
    assert tokenizer.decode(one.token_ids) == "What is 2<|end|>"
    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "What is 2"}]
    whole = tokenizer.apply_chat_template(chat, tokenize=False)
    assert tokenizer.decode((*one.prompt_ids, *one.token_ids)) == whole


@pytest.mark.parametrize(
    ("template", "learnt"),
    [
        # What a template puts in front of a last reply is for the policy to say.
        (
            "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}<think></think>"
            "{% endif %}{{ m.content }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}",
            "<think></think>ok<|end|>",
        ),
        # One that trims, and closes a turn with a line break only.
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}",
            "ok<|end|>",
        ),
        (None, "ok<|end|>"),
    ],
)
def test_a_reply_is_opened_and_ended_as_the_template_does(
    template: str | None, learnt: str, local: LocalModel, tmp_path: Path
) -> None:
    own = adapted(a_folder(tmp_path / "m", template=template))
    assert own.tokenizer.decode(reply_ids(own, "ok")) == learnt


def test_a_template_that_refuses_the_messages_is_told_by_place(tmp_path: Path) -> None:
    template = "{{ raise_exception('no') if messages[0].role == 'user' else '' }}"
    own = adapted(a_folder(tmp_path / "m", template=template))
    with pytest.raises(DataError, match="chat template refuses") as refused:
        tokenise_demonstration(own, Demonstration("a", "b", place="file:3"))
    assert refused.value.place == "file:3"


def test_instructions_stand_before_a_question_and_not_before_messages(local: LocalModel) -> None:
    one = tokenise_demonstration(local, Demonstration("1?", "b"), "Be short.")
    assert list(one.prompt_ids) == encode_prompt(local, prompt_messages("Be short.", "", "1?"))
    other = tokenise_demonstration(local, Demonstration("1?", "b", asked("2?")), "Be short.")
    assert list(other.prompt_ids) == encode_prompt(local, asked("2?"))


def test_sampled_ids_are_learnt_as_they_are_also_those_of_earlier_turns(local: LocalModel) -> None:
    ids = [token for part in ("Wh", "at is") for token in local.tokenizer(part)["input_ids"]]
    assert ids != local.tokenizer("What is")["input_ids"]
    reply = Message("assistant", "What is", token_ids=(*ids, 0))
    before = (*asked("a"), reply, Message("user", "c"))
    one = tokenise_demonstration(local, Demonstration("a", "d", before, (42, 43, 0)))
    assert one.token_ids == (42, 43, 0)
    text = local.tokenizer.decode(one.prompt_ids)
    assert text == "<|user|>a<|end|><|assistant|>What is<|end|><|user|>c<|end|><|assistant|>"
    shown = ",".join(map(str, one.prompt_ids))
    assert ",".join(map(str, reply.token_ids)) in shown


def test_an_id_that_the_model_does_not_know_is_told_by_place(local: LocalModel) -> None:
    with pytest.raises(DataError, match="its token 99999 is none of the") as refused:
        tokenise_demonstration(local, Demonstration("a", "d", (), (1, 99999), place="file:4"))
    assert refused.value.place == "file:4"


def test_a_demonstration_comes_back_from_a_data_set_as_it_was(tmp_path: Path) -> None:
    chat = (*asked("a", "s"), Message("assistant", "b", token_ids=(3, 4)), Message("user", "c"))
    every = (
        Demonstration("1?", "one", answer="1", source="sums"),
        Demonstration("a", "d", chat, (5, 6, 0), "7", "s1p0r2"),
        Demonstration("a", "d", chat, (5, 7, 0), "7", "s1p0r3"),  # of the same question
    )
    path = a_file(tmp_path, *map(demonstration_row, every))
    problems = read_problems(path, needs_answer=False)
    found = [parse_demonstration(problem, "x") for problem in problems]
    assert [replace(one, place="") for one in found] == list(every)
    assert len({problem.id for problem in problems}) == 3


def problems_of(folder: Path, *rows: Any) -> tuple[Problem, ...]:
    return read_problems(a_file(folder, *rows), needs_answer=False)


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({}, "no demonstration stands beside its question"),
        ({"solution": ""}, "no demonstration"),
        ({"solution": [1]}, '"solution" holds a list'),
        ({"completion_ids": ["a"]}, "no list of whole numbers"),
        ({"completion_ids": [-1]}, "no list of whole numbers"),
        ({"completion_ids": [True]}, "no list of whole numbers"),
        ({"solution": "x", "messages": "y"}, '"messages" holds a text'),
    ],
)
def test_a_run_is_refused_whose_problems_bring_no_demonstration(
    meta: dict[str, Any], told: str, local: LocalModel, tmp_path: Path
) -> None:
    problems = problems_of(tmp_path, {"question": "a", "solution": "b"}, {"question": "c", **meta})
    with pytest.raises(DataError, match=re.escape(told)) as refused:
        check_problems(local, problems, "", "d.jsonl", lambda _: None)
    assert refused.value.place == "d.jsonl, row 2"


def test_what_does_not_fit_the_window_is_counted_and_a_run_of_nothing_else_refused(
    tmp_path: Path,
) -> None:
    own = adapted(a_folder(tmp_path / "m", max_position_embeddings=40))
    short, long = {"question": "a", "solution": "b"}, {"question": "a", "solution": "dog 12 " * 40}
    told: list[str] = []
    check_problems(own, problems_of(tmp_path, short, long, short), "", "d", told.append)
    assert told == [
        "1 of 3 demonstrations are left out: they are longer than the model's window of 40 tokens"
    ]
    with pytest.raises(DataError, match="none of its 1 demonstrations fits"):
        check_problems(own, problems_of(tmp_path, long), "", "d", told.append)


@pytest.mark.parametrize("instructions", ["", "Be short.", "Be short.\n\nAnd right."])
def test_without_guidance_a_prompt_is_what_it_is_without_a_library(instructions: str) -> None:
    tip = "Experiences:\n- carry the ten"
    assert without_guidance(prompt_messages(instructions, tip, "q"), tip) == prompt_messages(
        instructions, "", "q"
    )
    assert without_guidance(prompt_messages(instructions, "", "q"), "") == prompt_messages(
        instructions, "", "q"
    )


def test_a_prompt_in_which_the_guidance_does_not_stand_is_no_prompt_of_that_library() -> None:
    with pytest.raises(ValueError, match="does not stand"):
        without_guidance(prompt_messages("Be short.", "other", "tip"), "tip")


def test_the_tokenizer_of_these_tests_ends_a_turn_with_a_token_of_its_own() -> None:
    assert a_tokenizer().decode([0]) == "<|end|>"


def test_a_conversation_with_tool_calls_is_learnt_as_the_text_in_which_they_are_made(
    tmp_path: Path,
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":3}'}}
    function = {"name": "look", "description": "Looks.", "parameters": {"properties": {}}}
    row = {
        "messages": [
            {"role": "user", "content": "What is there?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "a cat\n## Obey", "tool_call_id": "c1"},
            {"role": "assistant", "content": "A cat."},
        ],
        "tools": [{"type": "function", "function": function}],
    }
    path = tmp_path / "demos.jsonl"
    path.write_text(json.dumps(row) + "\n")
    first, second = read_demonstrations(path)
    assert first.reply == '```tool\n{"name":"look","arguments":{"at":3}}\n```'
    assert "- look: Looks." in first.messages[0].content
    assert second.reply == "A cat."
    assert second.messages[-1] == Message("user", "Tool results\n\nlook:\n| a cat\n| ## Obey")
    assert second.messages[:2] == first.messages


def test_tool_calls_of_another_shape_are_refused_by_their_message(tmp_path: Path) -> None:
    path = tmp_path / "demos.jsonl"
    asked = {"role": "user", "content": "?"}
    calls = {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}
    path.write_text(json.dumps({"messages": [asked, calls]}) + "\n")
    with pytest.raises(DataError, match="message 2 has not the form of one"):
        read_demonstrations(path)
