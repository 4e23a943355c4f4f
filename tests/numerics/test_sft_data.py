"""Demonstrations: from files, from verified rollouts, and without a library's guidance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.agents.single_turn import prompt
from engines.core.errors import DataError
from engines.core.types import Message, Turn
from engines.grpo.sft_data import (
    Demonstration,
    Try,
    as_examples,
    effect_left,
    read_demonstrations,
    reply_ids,
    verified_examples,
    without_guidance,
)
from engines.policies.hf_local.chat import encode_prompt
from engines.policies.hf_local.model import LocalModel
from tests.numerics.checkpoints import adapted
from tests.numerics.models import a_folder, a_tokenizer


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
    return prompt(system, "", text)


@pytest.mark.parametrize("name", ["completion", "response", "solution", "output", "answer"])
def test_a_question_and_its_reply_are_a_demonstration(name: str, tmp_path: Path) -> None:
    (one,) = read(tmp_path, {"question": "1 + 1?", name: "two"}, instructions="Be short.")
    assert one.messages == (Message("system", "Be short."), Message("user", "1 + 1?"))
    assert (one.reply, one.place) == ("two", f"{tmp_path / 'shown.jsonl'}:1")


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
    first, second = read(tmp_path, {"messages": chat}, instructions="not used")
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
        ({"question": "a", "answer": " "}, '"answer" is empty'),
        ({"answer": "a"}, '"question" is missing'),
        ({"text": "all in one"}, '"question" is missing'),
        ({"question": "a", "answer": ["x"]}, '"answer" holds a list'),
        ({"messages": "hello"}, '"messages" holds a text'),
        ({"messages": []}, "holds no reply"),
        ({"messages": [{"role": "user", "content": "a"}]}, "holds no reply"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "begins with a reply"),
        ({"messages": [{"role": "robot", "content": "a"}]}, 'message 1 has no "role"'),
        ({"messages": [{"role": "user", "content": [1]}]}, 'message 1 has no "role"'),
        ({"messages": ["a"]}, 'message 1 has no "role"'),
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
    (one,) = as_examples(local, [Demonstration(asked("1 + 1?"), " What is 2 \n")])
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
        as_examples(own, [Demonstration((Message("user", "a"),), "b", "file:3")])
    assert refused.value.place == "file:3"


def a_try(reward: float | None, *, text: str = "fine", ids: bool = True, guidance: str = "") -> Try:
    messages = (*prompt("Be short.", guidance, "What is 1?"), Message("assistant", text))
    turns = (Turn((7, 8, 9), (40, 41, 0), (-1.0, -1.0, -1.0)),) if ids else ()
    return Try(messages, reward, turns, guidance)


def test_rollouts_that_were_found_right_are_learnt_as_the_ids_they_were(local: LocalModel) -> None:
    told: list[str] = []
    tries = [a_try(1.0), a_try(0.0), a_try(None), a_try(0.5)]
    found = verified_examples(local, tries, min_reward=1.0, tell=told.append)
    assert [(one.prompt_ids, one.token_ids) for one in found] == [((7, 8, 9), (40, 41, 0))]
    assert told == ["1 of 4 rollouts have a reward of 1 or more"]
    assert len(verified_examples(local, tries, min_reward=0.5, tell=told.append)) == 2


def test_rollouts_of_a_policy_without_ids_are_learnt_as_text(local: LocalModel) -> None:
    one = a_try(1.0, ids=False)
    (found,) = verified_examples(local, [one], min_reward=1.0, tell=lambda _: None)
    assert list(found.prompt_ids) == encode_prompt(local, one.messages[:-1])
    assert local.tokenizer.decode(found.token_ids) == "fine<|end|>"


def test_with_several_turns_each_is_an_example_after_what_it_was_shown(local: LocalModel) -> None:
    user, reply = Message("user", "a"), Message("assistant", "b")
    turns = (Turn((1, 2), (3,), (-1.0,)), Turn((1, 2, 3, 4), (5, 0), (-1.0, -1.0)))
    one = Try((user, reply, Message("user", "c"), Message("assistant", "d")), 1.0, turns)
    found = verified_examples(local, [one], min_reward=1.0, tell=lambda _: None)
    assert [(e.prompt_ids, e.token_ids) for e in found] == [((1, 2), (3,)), ((1, 2, 3, 4), (5, 0))]


def test_nothing_right_says_what_to_do(local: LocalModel) -> None:
    with pytest.raises(DataError, match="none of 2 has a reward of 1") as refused:
        verified_examples(local, [a_try(0.0), a_try(None)], min_reward=1.0, tell=lambda _: None)
    assert "sft.min_reward" in refused.value.move


def test_distilling_leaves_the_guidance_out_of_prompts_and_the_ids_as_they_were(
    local: LocalModel,
) -> None:
    tip = "Experiences:\n- add the ones first"
    (found,) = verified_examples(
        local, [a_try(1.0, guidance=tip)], min_reward=1.0, tell=lambda _: None, distil=True
    )
    assert list(found.prompt_ids) == encode_prompt(local, prompt("Be short.", "", "What is 1?"))
    assert found.token_ids == (40, 41, 0)


def test_without_any_guidance_there_is_nothing_to_distil(local: LocalModel) -> None:
    with pytest.raises(DataError, match="nothing to distil"):
        verified_examples(local, [a_try(1.0)], min_reward=1.0, tell=lambda _: None, distil=True)


@pytest.mark.parametrize("instructions", ["", "Be short.", "Be short.\n\nAnd right."])
def test_without_guidance_a_prompt_is_what_it_is_without_a_library(instructions: str) -> None:
    tip = "Experiences:\n- carry the ten"
    assert without_guidance(prompt(instructions, tip, "q"), tip) == prompt(instructions, "", "q")
    assert without_guidance(prompt(instructions, "", "q"), "") == prompt(instructions, "", "q")


def test_a_prompt_in_which_the_guidance_does_not_stand_is_no_prompt_of_that_library() -> None:
    with pytest.raises(ValueError, match="does not stand"):
        without_guidance(prompt("Be short.", "other", "tip"), "tip")


@pytest.mark.parametrize(
    ("before", "with_library", "after", "left"),
    [
        (0.2, 0.6, 0.5, 0.75),  # 0.3 of 0.4
        (0.2, 0.6, 0.2, 0.0),
        (0.2, 0.6, 0.1, -0.25),
        (0.2, 0.6, 0.8, 1.5),
        (0.5, 0.5, 0.9, None),
        (0.5, 0.4, 0.9, None),
    ],
)
def test_what_is_left_of_an_effect_is_a_share_of_it(
    before: float, with_library: float, after: float, left: float | None
) -> None:
    assert effect_left(before, with_library, after) == (
        None if left is None else pytest.approx(left)
    )


def test_the_tokenizer_of_these_tests_ends_a_turn_with_a_token_of_its_own() -> None:
    assert a_tokenizer().decode([0]) == "<|end|>"
