"""Functions as agents: what they are given, and what a try of theirs comes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engines.agents.function import FunctionAgent
from engines.agents.loops import prompt_messages
from engines.core.errors import AnswersPending
from engines.core.types import Message, Sampling
from tests.support.builders import a_job, answering

OURS = Sampling(0.3)


def an_agent(call: Callable[..., Any]) -> FunctionAgent:
    return FunctionAgent(call, OURS, "Solve it.")


async def test_a_function_asks_with_the_library_in_front_and_its_return_is_the_answer() -> None:
    async def solve(problem: Any, model: Any) -> str:
        first = await model(problem.question)
        tools = [{"name": "add", "description": "", "parameters": {}}]
        more = [{"role": "user", "content": f"Check {first}"}]
        return (await model.ask(more, tools)).text + "!"

    policy = answering("5", "yes 5")
    attempt = await an_agent(solve).attempt(a_job(guidance="[E1] Mind it."), policy)
    assert (attempt.answer, attempt.status) == ("yes 5!", "ok")
    assert attempt.usage.calls == 2
    first = prompt_messages("Solve it.", "[E1] Mind it.", "What is 2 + 3?")
    assert policy.requests[0] == first
    assert policy.samplings[1].tools == ({"name": "add", "description": "", "parameters": {}},)
    assert [message.content for message in attempt.messages[1:]] == [
        *("What is 2 + 3?", "5", "Check 5", "yes 5", "yes 5!")
    ]


async def test_a_function_that_blocks_runs_in_a_thread_and_may_return_an_object() -> None:
    class Result:
        answer = 5

    def solve(problem: Any, model: Any) -> Result:
        assert model(problem.question) == model.ask([Message("user", "again")]).text
        return Result()

    attempt = await an_agent(solve).attempt(a_job(), answering("5", "5"))
    assert (attempt.answer, attempt.error) == ("5", None)


async def test_a_function_without_an_answer_is_a_failed_try() -> None:
    async def solve(problem: Any, model: Any) -> None:
        await model("a")

    attempt = await an_agent(solve).attempt(a_job(), answering("5"))
    assert (attempt.status, attempt.error) == ("failed", "empty: the function returned no answer")


async def test_a_function_cannot_swallow_what_ends_the_run() -> None:
    async def solve(problem: Any, model: Any) -> str:
        try:
            return str(await model("a"))
        except Exception:
            return "5"

    with pytest.raises(AnswersPending):
        await an_agent(solve).attempt(a_job(), answering(AnswersPending({"c": ["a"]})))


async def test_calls_made_at_once_are_numbered_one_after_another() -> None:
    async def solve(problem: Any, model: Any) -> str:
        return " ".join(await asyncio.gather(*(model(f"ask {n}") for n in range(3))))

    attempt = await an_agent(solve).attempt(a_job(), answering("a", "b", "c"))
    assert attempt.answer == "a b c"
