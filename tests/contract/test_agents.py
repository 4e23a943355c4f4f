"""What every agent keeps to: one try, its messages as they went, failures left to the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.agents.loops import prompt_messages
from engines.agents.open import open_agent
from engines.core.errors import CallFailed
from engines.core.protocols import Agent
from engines.core.types import Completion, Sampling, ToolCall, Usage
from tests.support.builders import a_job, a_library, a_problem, a_timeout, agent_needs, answering
from tests.support.memory_cluster import OnWorker

INSTRUCTIONS = "Solve it."
AGENTS: dict[str, Agent] = {
    kind: open_agent(kind, agent_needs(INSTRUCTIONS, Sampling(0.3)))
    for kind in ("single_turn", "calculator")
}
AGENTS |= {f"{kind} on a worker": OnWorker(agent) for kind, agent in AGENTS.items()}
every_agent = pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)


@every_agent
async def test_the_answer_is_the_last_reply_and_the_messages_are_the_whole_try(
    agent: Agent,
) -> None:
    policy = answering(Completion("so 5", "hm", usage=Usage(3, 4, 1)))
    attempt = await agent.attempt(a_job(), policy)
    assert (attempt.answer, attempt.status, attempt.usage) == ("so 5", "ok", Usage(3, 4, 1))
    assert attempt.messages[:-1] == policy.requests[-1]
    assert (attempt.messages[-1].content, attempt.messages[-1].reasoning) == ("so 5", "hm")
    assert policy.samplings[-1].temperature == 0.3


@every_agent
async def test_guidance_stands_in_the_prompt_and_the_question_as_it_is(agent: Agent) -> None:
    policy = answering("5")
    guidance = a_library("Carry: mind it.").guidance()
    await agent.attempt(a_job(a_problem("What is\n 2?"), guidance), policy)
    system, user = policy.requests[0]
    assert system.content == f"{INSTRUCTIONS}\n\n{guidance}"
    assert (user.role, user.content) == ("user", "What is\n 2?")


@every_agent
async def test_text_streams_to_whoever_watches(agent: Agent) -> None:
    pieces: list[str] = []
    await agent.attempt(a_job(), answering("so 5"), pieces.append)
    assert "".join(pieces) == "so 5"


@every_agent
async def test_a_reply_cut_at_its_limit_is_truncated(agent: Agent) -> None:
    cut = await agent.attempt(a_job(), answering(Completion("so", finish="length")))
    assert (cut.status, cut.answer) == ("truncated", "so")


@every_agent
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Completion(""), "empty: no text"),
        (Completion(" \n"), "empty: no text"),
        (Completion("", "Hm."), "empty: reasoning without an answer"),
        (
            Completion("", "Hm.", finish="length"),
            "empty: reasoning without an answer, cut at the length limit",
        ),
        (
            Completion("I can", finish="content_filter"),
            "filtered: the endpoint held the reply back (content_filter)",
        ),
    ],
)
async def test_what_is_no_answer_is_a_failed_try_that_was_paid_for(
    agent: Agent, reply: Completion, error: str
) -> None:
    paid = replace(reply, usage=Usage(7, 3, 1))
    made = await agent.attempt(a_job(), answering(paid))
    assert (made.status, made.answer, made.error) == ("failed", None, error)
    assert made.usage == paid.usage
    assert made.messages[-1].content == reply.text


@every_agent
async def test_a_tool_call_without_text_is_a_failed_try(agent: Agent) -> None:
    call = ToolCall("c", "add", "{}")
    made = await agent.attempt(a_job(), answering(Completion("", tool_calls=(call,))))
    assert (made.status, made.answer) == ("failed", None)
    assert made.error == "empty: it calls add, which nobody offered, and has no text"


@every_agent
@pytest.mark.parametrize(
    ("finish", "status"),
    [
        *((word, "failed") for word in ("error", "abort", "cancelled", "SAFETY", "recitation")),
        *((word, "failed") for word in ("insufficient_system_resource", "content_filter: SPII")),
        *((word, "truncated") for word in ("max_tokens", "MAX_TOKENS", "model_length", "length")),
        *((word, "ok") for word in ("stop", "STOP", "eos_token", "end_turn", "", "brand_new_word")),
    ],
)
async def test_a_try_ends_as_the_servers_word_says(agent: Agent, finish: str, status: str) -> None:
    made = await agent.attempt(a_job(), answering(Completion("5", finish=finish)))
    assert made.status == status
    assert made.answer == (None if status == "failed" else "5")


@every_agent
async def test_a_call_that_fails_is_left_to_the_rollout_job(agent: Agent) -> None:
    with pytest.raises(CallFailed, match="timeout"):
        await agent.attempt(a_job(), answering(a_timeout()))


def test_nothing_to_say_before_the_question_means_no_system_message() -> None:
    (user,) = prompt_messages("  ", "", "q")
    assert (user.role, user.content) == ("user", "q")
    system, _ = prompt_messages("", "## Experiences", "q")
    assert system.content == "## Experiences"
