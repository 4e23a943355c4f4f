"""The two-turn calculator agent: its conversation, its arithmetic, how a try ends."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.agents.loops import CalculatorLoop, SingleTurn, requested_expression, result_line
from engines.agents.open import open_agent
from engines.core.protocols import OnText
from engines.core.text.maths import MAX_CHARS, MAX_DIGITS, ExpressionError, value_of
from engines.core.types import Attempt, Completion, Message, Sampling, Usage
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from tests.support.builders import (
    FakePolicy,
    a_job,
    a_library,
    a_problem,
    a_timeout,
    agent_needs,
    answering,
)

SAMPLING = Sampling(0.7)


async def tried(*replies: str | Completion | Exception, max_turns: int = 2) -> Attempt:
    agent = CalculatorLoop("Use calc.", SAMPLING, max_turns)
    return await agent.attempt(a_job(), answering(*replies))


def said(attempt: Attempt) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in attempt.messages]


# The conversation


async def test_a_request_is_computed_and_the_model_asked_again() -> None:
    policy = answering("Let me see.\ncalc: 17*(3+4)", "A: 119")
    guidance = a_library("Mind the brackets.").guidance()
    job = a_job(a_problem("What is 17*(3+4)?"), guidance)
    attempt = await CalculatorLoop("Use calc.", SAMPLING).attempt(job, policy)
    assert said(attempt) == [
        ("system", f"Use calc.\n\n{guidance}"),
        ("user", "What is 17*(3+4)?"),
        ("assistant", "Let me see.\ncalc: 17*(3+4)"),
        ("user", "result: 119"),
        ("assistant", "A: 119"),
    ]
    assert policy.requests[1] == attempt.messages[:-1]
    assert (attempt.answer, attempt.status) == ("A: 119", "ok")
    assert attempt.usage == Usage(20, 10, 2)


async def test_a_reply_without_a_request_ends_the_try_at_once() -> None:
    attempt = await tried("A: 5")
    assert (attempt.answer, len(attempt.messages)) == ("A: 5", 3)


@pytest.mark.parametrize("max_turns", [1, 2, 3])
async def test_a_try_ends_at_its_turn_limit_and_the_last_reply_is_judged_as_it_is(
    max_turns: int,
) -> None:
    attempt = await tried(*["calc: 1+1"] * max_turns, max_turns=max_turns)
    assert (attempt.answer, attempt.status, attempt.error) == ("calc: 1+1", "ok", None)
    assert attempt.usage.calls == max_turns
    assert said(attempt)[-1] == ("assistant", "calc: 1+1")


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("2**9", "error: only +, - and * of whole numbers are computed"),
        ("7/2", "error: '/' is not allowed, only whole numbers, + - * and brackets"),
        ("(2", "error: the expression cannot be read"),
        ("", "error: there is no expression"),
        ("__import__('os')", "error: '_' is not allowed, only whole numbers, + - * and brackets"),
    ],
)
async def test_an_expression_that_cannot_be_computed_is_told_and_the_try_goes_on(
    expression: str, told: str
) -> None:
    attempt = await tried(f"calc: {expression}", "A: 5")
    assert said(attempt)[3] == ("user", told)
    assert (attempt.answer, attempt.status) == ("A: 5", "ok")


async def test_a_cut_request_ends_the_try_since_half_an_expression_is_another_one() -> None:
    attempt = await tried(Completion("calc: 12*3", finish="length"))
    assert (attempt.status, attempt.answer) == ("truncated", "calc: 12*3")
    attempt = await tried("calc: 12*3", Completion("A: 3", finish="length"))
    assert (attempt.status, attempt.answer) == ("truncated", "A: 3")


async def test_silence_after_a_result_is_a_failed_try_with_all_its_messages() -> None:
    attempt = await tried("calc: 1+1", Completion("", usage=Usage(1, 0, 1)))
    assert (attempt.status, attempt.answer, attempt.error) == ("failed", None, "empty: no text")
    assert [role for role, _ in said(attempt)][-3:] == ["assistant", "user", "assistant"]
    assert attempt.usage == Usage(11, 5, 2)


# End conditions are exact forms. Defect of the multi-agent code: "STOP" substring test.


@pytest.mark.parametrize(
    "reply",
    [
        "I STOP here: calc: 1+1 is not needed. A: 2",
        "Use `calc: 1+1`.",
        "Calc: 1+1",
        "calculate: 1+1",
        "calc 1+1",
        "STOP",
    ],
)
async def test_words_somewhere_in_a_text_request_nothing(reply: str) -> None:
    assert requested_expression(reply) is None
    assert (await tried(reply)).answer == reply


async def test_the_word_stop_in_a_request_does_not_end_a_try() -> None:
    attempt = await tried("I will not STOP yet. Final answer below.\ncalc: 2*3", "A: 6")
    assert attempt.answer == "A: 6"


def test_of_several_requests_the_last_line_counts_with_blanks_around_it() -> None:
    assert requested_expression("calc: 1\n  calc:  2 + 3 \t\r\nSo.") == "2 + 3"
    assert requested_expression("calc:") == ""


# Turns are the rollout manager's to record


class Sampled(FakePolicy):
    """Gives every reply ids, as a policy that owns its weights does."""

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        reply = await super().complete(messages, sampling, on_text)
        n = len(self.requests)
        return Completion(
            reply.text, usage=reply.usage, token_ids=(n,), logprobs=(-0.5,), prompt_ids=(0, n)
        )


async def test_every_turn_keeps_the_ids_it_was_sampled_with(tmp_path: Path) -> None:
    policy = Sampled().enqueue(["calc: 2+3", "A: 5"])
    manager = RolloutManager(
        CalculatorLoop("", SAMPLING), policy, RecordLedger(tmp_path, 1), Slots(1), 30.0
    )
    attempt, refs = await manager.roll_out(a_job())
    assert (attempt.answer, len(refs)) == ("A: 5", 2)
    assert [m.token_ids for m in attempt.messages if m.role == "assistant"] == [(1,), (2,)]
    # The second turn was asked with the ids of the first, not with its text alone.
    assert policy.requests[1][-2].token_ids == (1,)
    assert [sampling.seed is not None for sampling in policy.samplings] == [True, True]
    assert policy.samplings[0].seed != policy.samplings[1].seed
    assert [turn.token_ids for turn in attempt.turns] == [(1,), (2,)]
    assert [turn.prompt_ids for turn in attempt.turns] == [(0, 1), (0, 2)]


async def test_a_call_that_fails_in_the_second_turn_is_a_failed_rollout(tmp_path: Path) -> None:
    policy = answering("calc: 2+3", a_timeout())
    manager = RolloutManager(
        CalculatorLoop("", SAMPLING), policy, RecordLedger(tmp_path, 1), Slots(1), 30.0
    )
    attempt, refs = await manager.roll_out(a_job())
    assert (attempt.status, attempt.answer, len(refs)) == ("failed", None, 1)
    assert attempt.error == "timeout: no answer within 1 s"
    assert attempt.usage.calls == 1  # the first is paid for


# Arithmetic


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("2 - 3 - 4", -5),
        ("-(3 - 5) * +2", 4),
        ("007 + 00", 7),
        ("100 - 1", 99),
        ("9" * MAX_DIGITS, 10**MAX_DIGITS - 1),
        ("1" + "+1" * 99, 100),
        ("(" * 99 + "1" + ")" * 99, 1),
        ("-" * 199 + "1", -1),
    ],
)
def test_expressions_are_computed(expression: str, value: int) -> None:
    assert value_of(expression) == value
    assert result_line(expression) == f"result: {value}"


def test_small_expressions_agree_with_python() -> None:
    for a, o, b, p, c in itertools.product("307", "+-*", "25", "+-*", "14"):
        for text in (f"{a}{o}{b}{p}{c}", f"({a}{o}{b}){p}{c}", f"{a}{o}-({b}{p}{c})"):
            assert value_of(text) == eval(text)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1" * (MAX_CHARS + 1), f"longer than {MAX_CHARS} characters"),
        ("1" * (MAX_DIGITS + 1), f"more than {MAX_DIGITS} digits"),
        ("9" * MAX_DIGITS + "+1", f"more than {MAX_DIGITS} digits"),
        ("*".join(["9" * 15] * 3), f"more than {MAX_DIGITS} digits"),
        ("2**99", "only +, - and *"),
        ("(1)(2)", "only +, - and *"),
        ("()", "only +, - and *"),
        ("1 2", "cannot be read"),
        ("*1", "cannot be read"),
        ("(" * 200, "cannot be read"),
        ("0x1f", "'x' is not allowed"),
        ("1_000", "'_' is not allowed"),
        ("1.5", "'.' is not allowed"),
        ("٣", "not allowed"),
        ("\ud800", "not allowed"),
        ("1\n+2", "not allowed"),
    ],
)
def test_what_is_beyond_it_is_refused_with_the_reason(expression: str, why: str) -> None:
    with warnings.catch_warnings(), pytest.raises(ExpressionError) as caught:
        warnings.simplefilter("error")
        value_of(expression)
    assert why in str(caught.value)
    assert str(caught.value).isascii()


# From a run file


def test_an_agent_is_opened_by_its_kind() -> None:
    needs = agent_needs("Be brief.", SAMPLING, max_turns=4)
    assert open_agent("single_turn", needs) == SingleTurn("Be brief.", SAMPLING)
    opened = open_agent("calculator", needs)
    assert opened == CalculatorLoop("Be brief.", SAMPLING, 4)
