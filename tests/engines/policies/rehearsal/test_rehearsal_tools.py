"""The rehearsal model with tools: its chances, its lessons, its protocol."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from dataclasses import replace
from functools import cache

import orjson
import pytest

from engines.core.library import guidance_text
from engines.core.text.prompts import load_prompt, quote
from engines.core.types import Attempt, Message, Sampling, ToolCall
from engines.policies.open import open_policy
from engines.policies.rehearsal.reflect import reflector_reply
from engines.policies.rehearsal.reply import read_request, write_reply
from engines.policies.rehearsal.server import answer_request, background_server
from engines.policies.rehearsal.solve import judge_reply, recognise, stance
from engines.policies.rehearsal.tools import recognise_tool_problem
from engines.training_free.reading import shown_attempts
from sample_data import make_math_tools
from tests.engines.policies.rehearsal.test_rehearsal import (
    DATA,
    IRRELEVANT,
    a_request,
    an_extract_prompt,
    complete_request,
    events,
    operations,
    rows,
    sent,
)
from tests.engines.policies.rehearsal.test_rehearsal import LESSONS as BY_HEAD
from tests.support.builders import a_group

SOURCES = {
    "remainder of a power": "remainder",
    "count with both bounds": "inclusive",
    "digits of a factorial": "whole",
    "sum of many terms": "printed",
}
LESSONS = {
    "remainder": "Three arguments: when the remainder of a power is asked, call pow with three "
    "arguments.",
    "inclusive": "Inclusive end: when a range must hold its last number, end it one above that "
    "number.",
    "whole": "Whole division: when a large number is taken apart digit by digit, divide it with "
    "// and keep it whole.",
    "printed": "Print: when code has worked out a value, print that value in its last line.",
}
POWER = "What is the remainder when 7^185 is divided by 1633?"  # it is 452
PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run a program and see what it prints.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
    },
}
CALCULATOR = {"type": "function", "function": {"name": "calculator"}}
IN_WORDS = """Solve the problem.

To use a tool, reply with one fenced block and nothing after it:

- python: run a program
- search: look something up
"""


@cache
def run_code(code):
    """What a program prints, as a tool tells it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(code, {})
        except Exception as error:
            print(f"error: {error}")
    return out.getvalue().rstrip("\n") or "(no output)"


def a_try(question, experiences=(), seed=7, tool=run_code, **settings):
    """The messages of one try, as an agent with a tool loop has it."""
    request = a_request(question, experiences, seed=seed, tools=[PYTHON], **settings)
    told = list(request["messages"])
    made = [Message(m["role"], m["content"]) for m in told]
    for turn in range(4):
        reply = write_reply(read_request({**request, "messages": told}))
        made.append(Message("assistant", reply.text))
        if reply.arguments is None:
            return tuple(made)
        call = {"id": f"c{turn}", "type": "function"}
        call["function"] = {"name": "python", "arguments": reply.arguments}
        result = tool(json.loads(reply.arguments)["code"])
        told.append({"role": "assistant", "content": reply.text, "tool_calls": [call]})
        told.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        made[-1] = replace(made[-1], tool_calls=(a_call(call),))
        made.append(Message("tool", result, tool_call_id=call["id"]))
    raise AssertionError("it calls without end")


def a_call(body):
    return ToolCall(body["id"], body["function"]["name"], body["function"]["arguments"])


def final(messages):
    return messages[-1].content.rpartition("#### ")[2]


def rewards(row, experiences, seeds):
    finals = [final(a_try(row["question"], experiences, seed)) for seed in seeds]
    return [float(said == row["answer"]) for said in finals]


def accuracy(experiences=(), family=None, seeds=range(6)):
    """Mean reward over the held-out problems of a family, 6 seeds each, and the rewards."""
    found = [
        reward
        for row in rows("math-tools-heldout.jsonl")
        if family in (None, SOURCES[row["source"]])
        for reward in rewards(row, experiences, seeds)
    ]
    return sum(found) / len(found), found


def practised(row, seeds=range(8), change=lambda text: text):
    """Tries of a row as the reflector is shown them: pairs of text and reward."""
    tries = [a_try(row["question"], seed=seed) for seed in seeds]
    known = [float(final(messages) == row["answer"]) for messages in tries]
    group = a_group(known)
    rollouts = tuple(
        replace(rollout, attempt=Attempt(messages, messages[-1].content))
        for rollout, messages in zip(group.rollouts, tries, strict=True)
    )
    shown = shown_attempts(replace(group, rollouts=rollouts), rewards_known=True)
    return [(change(attempt.text), attempt.reward) for attempt in shown]


def a_row(family):
    """A practice problem of a family whose eight tries are partly right."""
    return next(
        row
        for row in rows("math-tools.jsonl")
        if SOURCES[row["source"]] == family and len({r for _, r in practised(row)}) == 2
    )


# --- sample data ---------------------------------------------------------------------


def test_the_sample_files_are_what_their_program_writes(tmp_path):
    make_math_tools.write(tmp_path)
    for name in ("math-tools.jsonl", "math-tools-heldout.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_held_out_problems_have_other_numbers():
    practice, heldout = (
        {tuple(c for c in row["question"].split() if any(map(str.isdigit, c))) for row in rows(f)}
        for f in ("math-tools.jsonl", "math-tools-heldout.jsonl")
    )
    assert (len(practice), len(heldout)) == (48, 60) and not practice & heldout


def test_the_right_program_finds_the_answer_and_the_wrong_one_and_the_guess_do_not():
    for row in [*rows("math-tools.jsonl"), *rows("math-tools-heldout.jsonl")]:
        problem = recognise_tool_problem(row["question"])
        assert problem.family == SOURCES[row["source"]]
        assert run_code(problem.right.code) == row["answer"]
        assert run_code(problem.wrong.code) not in (row["answer"], f"{row['answer']}.0")
        assert (run_code(problem.wrong.code) == "(no output)") == (problem.family == "printed")
        assert str(problem.guess) != row["answer"]


def test_no_problem_belongs_to_both_sorts():
    for row in rows("math-tools.jsonl"):
        assert recognise(row["question"]) is None
    for name in ("arithmetic", "arithmetic-heldout", "arithmetic-larger", "replay", "calculator"):
        for row in rows(f"{name}.jsonl"):
            assert recognise_tool_problem(row["question"]) is None


# --- tries ---------------------------------------------------------------------------


def test_the_answer_is_what_the_tool_said_whatever_that_is():
    lesson = [LESSONS["remainder"]]
    for said, answer in (("452", "452"), ("13", "13"), ("two lines\n-1,204.5", "-1,204.5")):
        assert final(a_try(POWER, lesson, tool=lambda _, said=said: said)) == answer
    for said in (
        "",
        "(no output)",
        "error: line 3 of 5",
        "Traceback:\n  File 1\nValueError: 452 x",
    ):
        assert final(a_try(POWER, lesson, tool=lambda _, said=said: said)) == "1633"


def test_a_tool_that_does_not_work_makes_no_answer_right():
    for row in rows("math-tools-heldout.jsonl"):
        made = a_try(row["question"], LESSONS.values(), tool=lambda _: "error: no interpreter")
        assert final(made) != row["answer"]


@pytest.mark.parametrize(
    "tools", [{}, {"tools": [CALCULATOR]}, {"tools": [PYTHON], "tool_choice": "none"}]
)
def test_without_the_interpreter_it_says_so_and_is_wrong_by_head(tools):
    for row in rows("math-tools-heldout.jsonl"):
        reply = write_reply(read_request(a_request(row["question"], LESSONS.values(), **tools)))
        assert reply.arguments is None and "needs the tool python" in reply.text
        assert not reply.text.endswith(f"#### {row['answer']}")


def test_problems_for_the_head_are_answered_as_ever_where_tools_are_offered():
    asked = a_request("What is 47 + 38?")
    offered = write_reply(read_request({**asked, "tools": [PYTHON]}))
    assert offered == write_reply(read_request(asked))


def test_without_experiences_a_third_is_right():
    mean, found = accuracy()
    assert len(found) == 360 and 0.25 < mean < 0.42


def test_with_the_lessons_nine_in_ten_are_right():
    assert accuracy(LESSONS.values())[0] > 0.9


@pytest.mark.nightly
def test_a_lesson_helps_its_own_family_only():
    for family, lesson in LESSONS.items():
        for other in LESSONS:
            before, after = accuracy((), other), accuracy([lesson], other)
            assert (after[0] > before[0] + 0.4) if other == family else (after == before)


def test_a_lesson_never_turns_a_right_try_into_a_wrong_one():
    before, after = accuracy()[1], accuracy(LESSONS.values())[1]
    assert all(b <= a for b, a in zip(before, after, strict=True))


def test_irrelevant_experiences_and_lessons_for_the_head_change_no_try():
    for row in rows("math-tools-heldout.jsonl"):
        for seed in range(2):
            plain = a_try(row["question"], (), seed)[1:]
            assert a_try(row["question"], [*IRRELEVANT, *BY_HEAD.values()], seed)[1:] == plain


def test_everything_follows_from_the_seed():
    tries = [a_try(POWER, seed=seed) for seed in range(30)]
    assert tries == [a_try(POWER, seed=seed) for seed in range(30)]
    assert len(set(tries)) == 2
    assert len({a_try(POWER, seed=seed, temperature=0) for seed in range(30)}) == 1


@pytest.mark.parametrize("named_after", [0, 1])
def test_a_rule_under_the_condition_of_another_family_helps_neither(named_after):
    both = LESSONS | BY_HEAD
    for pair in itertools.permutations(both, 2):
        named = both[pair[named_after]].partition(": ")[0]
        condition = both[pair[0]].partition(": ")[2].split(", ", 1)[0]
        rule = both[pair[1]].split(", ", 1)[1]
        swapped = guidance_text([("E1", f"{named}: {condition}, {rule}")])
        assert {stance(family, swapped) for family in both} == {"silent"}, swapped


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("remainder", "Powers: use the 3-argument form of pow, never a decimal number."),
        ("remainder", "Mod: for a power modulo m give pow the modulus as its third argument."),
        ("remainder", "For remainders of powers write pow(base, exponent, modulus)."),
        ("inclusive", "Counting: never forget to include the last number of the range."),
        ("inclusive", "Bounds: a range ends before its end, so write n + 1 there."),
        ("inclusive", "If you count up to N in a loop, go one past N."),
        ("whole", "Digit sum: use integer division instead of a plain one."),
        ("whole", "Factorials: stay with integers; do not use floats."),
        ("whole", "With huge numbers never work with decimals."),
        ("printed", "Code: always print the result, or it is lost."),
        ("printed", "A program must write what it found in its last line."),
        ("printed", "Do not forget to print what the interpreter has found."),
    ],
)
def test_a_skill_in_other_words_helps(family, text):
    assert stance(family, guidance_text([("E3", text)])) == "stated"
    assert accuracy([text], family)[0] > accuracy((), family)[0] + 0.4


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("remainder", "Two: when the remainder of a power is asked, never give three arguments."),
        ("inclusive", "End: when a range has a last number, do not end it one above that number."),
        ("whole", "Plain: when a large number is taken apart, divide without // at all."),
        ("printed", "Silent: when code has worked out a value, do not print that value."),
    ],
)
def test_an_experience_that_denies_the_skill_hurts(family, text):
    assert stance(family, guidance_text([("E1", text)])) == "denied"
    assert accuracy([text], family)[0] < 0.12 < accuracy((), family)[0]
    both = guidance_text([("E1", text), ("E2", LESSONS[family])])
    assert stance(family, both) == "silent"


# --- tools in words ------------------------------------------------------------------


def a_request_in_words(question, *later, experiences=(), system=IN_WORDS):
    request = a_request(question, experiences)
    guidance = guidance_text((f"E{n}", text) for n, text in enumerate(experiences, 1))
    request["messages"][0]["content"] = f"{system}\n{guidance}"
    request["messages"] += [{"role": role, "content": text} for role, text in later]
    return request


def test_a_model_without_calls_asks_in_a_fenced_block_and_reads_the_quoted_result():
    lesson = [LESSONS["remainder"]]
    text, finish = complete_request(a_request_in_words(POWER, experiences=lesson))
    assert text.endswith("\n```python\nprint(pow(7, 185, 1633))\n```") and finish == "stop"
    told = "Tool results\n\npython, in 0.1 s:\n| 452\n\nYou have 2 turns left: 2"
    later = [("assistant", text), ("user", told)]
    text, _ = complete_request(a_request_in_words(POWER, *later, experiences=lesson))
    assert text.endswith("(result): give the number that the interpreter printed: 452.\n#### 452")


def test_the_same_program_is_written_in_words_as_in_a_call():
    for seed in range(30):
        asked = {"seed": seed}
        called = write_reply(read_request({**a_request(POWER, tools=[PYTHON]), **asked}))
        text, _ = complete_request({**a_request_in_words(POWER), **asked})
        code = json.loads(called.arguments)["code"]
        assert text == f"{called.text}\n```python\n{code}\n```"


def test_tools_in_words_without_the_interpreter_are_not_asked():
    other = IN_WORDS.replace("- python:", "- calculator:")
    text, _ = complete_request(a_request_in_words(POWER, system=other))
    assert "```" not in text and text.endswith("#### 1633")


# --- reflector -----------------------------------------------------------------------


def test_every_lesson_is_written_from_its_tries_and_understood_by_tries():
    lessons = {}
    for family in LESSONS:
        row = a_row(family)
        (wish,) = operations(an_extract_prompt(row["question"], practised(row)))
        lessons[family] = wish["experience"]
    assert lessons == LESSONS
    known = list(LESSONS.values())
    row = a_row("whole")
    (kept,) = operations(an_extract_prompt(row["question"], practised(row), library=known))
    assert (kept["operation"], kept["id"]) == ("keep", "E3")


def test_calls_and_results_are_shown_to_the_reflector_and_are_no_steps():
    text = practised(a_row("remainder"))[0][0]
    assert "\n[calls python] {" in text and "\n[tool] " in text
    better = "[assistant] Step 1 (a): when it rains, take a coat: it.\n[tool] #### 5\n[tool] (b): c"
    worse = "[assistant] Step 1 (d): go.\n[calls python] {}\n[tool] #### 4"
    (wish,) = operations(an_extract_prompt("Rain?", [(better, 1.0), (worse, 0.0)]))
    assert wish["experience"] == "A: when it rains, take a coat."


@pytest.mark.parametrize(
    ("family", "old", "new"),
    [
        ("remainder", "three arguments", "a full hand"),
        ("inclusive", "one above that number", "behind it"),
        ("whole", "keep it whole", "never round it"),
        ("printed", "print", "shout"),
    ],
)
def test_renamed_steps_give_a_renamed_lesson(family, old, new):
    def renamed(text):
        return text.replace(old, new)

    row = a_row(family)
    (wish,) = operations(an_extract_prompt(row["question"], practised(row, change=renamed)))
    capital = str.capitalize
    assert wish["experience"] == renamed(LESSONS[family]).replace(capital(old), capital(new))


def test_a_summary_keeps_what_a_lesson_is_drawn_from():
    render = load_prompt("engines.training_free", "summarise").render
    row = a_row("inclusive")
    attempts = [
        (
            reflector_reply(
                render(problem="| q", reward=f" · reward {reward:.2f}", attempt=quote(text)),
                fenced=False,
            ),
            reward,
        )
        for text, reward in practised(row)
    ]
    (wish,) = operations(an_extract_prompt(row["question"], attempts))
    assert wish["experience"] == LESSONS["inclusive"]


def test_practice_on_every_problem_teaches_the_four_lessons_and_nothing_else():
    found = set()
    for row in rows("math-tools.jsonl"):
        for wish in operations(an_extract_prompt(row["question"], practised(row, range(5)))):
            found.add(wish["experience"])
    assert found == set(LESSONS.values())


def test_as_judge_it_gives_no_verdict_of_what_only_a_tool_can_know():
    text = f"# Task: judge\n\n## Problem\n\n| {POWER}\n\n## Response\n\n| #### 452\n"
    assert "no answer is expected" in judge_reply(text, fenced=False)


# --- protocol ------------------------------------------------------------------------


async def test_a_call_is_streamed_as_servers_do_and_is_the_one_of_the_whole_reply():
    request = a_request(POWER, tools=[PYTHON])
    whole = orjson.loads(await sent(request))["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    (call,) = whole["message"]["tool_calls"]
    *chunks, done = events(await sent({**request, "stream": True}))
    assert done == "[DONE]"
    choices = [orjson.loads(chunk)["choices"][0] for chunk in chunks]
    assert choices[-1]["finish_reason"] == "tool_calls" and choices[-1]["delta"] == {}
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content", "") for delta in deltas) == whole["message"]["content"]
    (streamed,) = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (streamed["index"], streamed["function"]) == (0, call["function"])


async def test_the_same_request_gives_the_same_id_and_another_one_another():
    def id_of(body):
        return orjson.loads(body)["choices"][0]["message"]["tool_calls"][0]["id"]

    request = a_request(POWER, tools=[PYTHON])
    assert id_of(await sent(request)) == id_of(await sent(dict(request)))
    assert id_of(await sent(request)) != id_of(await sent({**request, "seed": 8}))


async def test_the_library_of_openai_reads_calls_streamed_and_whole():
    import openai  # here, since each worker reads this file

    async with background_server() as base_url:
        client = openai.AsyncOpenAI(base_url=base_url, api_key="none")
        asked = {k: v for k, v in a_request(POWER).items()} | {"parallel_tool_calls": False}
        asked |= {"tools": [PYTHON], "tool_choice": "auto"}
        whole = (await client.chat.completions.create(**asked)).choices[0]
        assert whole.finish_reason == "tool_calls"
        (call,) = whole.message.tool_calls
        assert call.type == "function" and call.function.name == "python"
        assert "7" in json.loads(call.function.arguments)["code"]
        async with client.chat.completions.stream(**asked) as stream:
            final_chunk = await stream.get_final_completion()
        (streamed,) = final_chunk.choices[0].message.tool_calls
        assert final_chunk.choices[0].finish_reason == "tool_calls"
        assert final_chunk.choices[0].message.content == whole.message.content
        assert streamed.function.arguments == call.function.arguments and streamed.id
        asked["messages"] = [
            *asked["messages"],
            whole.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "452"},
        ]
        last = (await client.chat.completions.create(**asked)).choices[0]
        assert last.finish_reason == "stop" and last.message.tool_calls is None
        assert last.message.content.endswith("#### 452")
        await client.close()


async def test_the_studios_own_client_holds_a_whole_try():
    policy = open_policy("rehearsal")
    told = [Message("user", POWER)]
    sampling = Sampling(seed=7, tools=(PYTHON["function"],))
    reply = await policy.complete(told, sampling)
    assert reply.finish == "tool_calls" and reply.text.startswith("Step 1 (power)")
    (call,) = reply.tool_calls
    result = run_code(json.loads(call.arguments)["code"])
    told += [reply.as_message(), Message("tool", result, tool_call_id=call.id)]
    last = await policy.complete(told, sampling)
    assert last.text.endswith(f"#### {result}") and not last.tool_calls
    await policy.aclose()


def test_a_limit_cuts_the_text_and_the_call_with_it():
    request = a_request(POWER, tools=[PYTHON])
    whole = write_reply(read_request(request))
    for limit in range(1, whole.tokens):
        cut = write_reply(read_request({**request, "max_tokens": limit}))
        assert cut.finish == "length" and cut.tokens <= limit
        assert whole.text.startswith(cut.text) and cut.arguments is None
    assert write_reply(read_request({**request, "max_tokens": whole.tokens})) == whole
    stopped = write_reply(read_request({**request, "stop": ["Step 2"]}))
    assert (stopped.finish, stopped.arguments) == ("stop", None)


CALL = {"id": "a", "type": "function", "function": {"name": "python", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ASK = {"role": "user", "content": "q"}
ANSWER = {"role": "tool", "tool_call_id": "a", "content": "5"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"messages": [ASK, {**CALLS, "tool_calls": [{**CALL, "function": {}}]}]}, "tool call"),
        ({"tools": {}}, '"tools"'),
        ({"tools": [{"type": "function"}]}, "a tool of the type"),
    ],
)
async def test_malformed_tools_are_answered_with_an_error_that_names_them(change, named):
    made = answer_request("POST", "/v1/chat/completions", json.dumps(a_request(**change)).encode())
    error = orjson.loads(b"".join([piece async for piece in made.body]))["error"]
    assert made.status == 400 and named in error["message"]
