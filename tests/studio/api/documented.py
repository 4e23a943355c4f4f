"""The examples of AgentScope's documentation, word for word but for what is imported."""

from __future__ import annotations

from typing import Any

from studio.api.tuner import (
    ChatModelBase,
    JudgeOutput,
    Msg,
    OpenAIChatModel,
    WorkflowOutput,
)
from tests.studio.api.agentscope_double import OpenAIChatFormatter, ReActAgent

model = OpenAIChatModel("rehearsal")
"""That of the prompt workflow, which opens its own."""


async def example_workflow_function(
    task: dict,
    model: ChatModelBase,
    auxiliary_models: dict[str, ChatModelBase] | None = None,
) -> WorkflowOutput:
    agent = ReActAgent(
        name="react_agent",
        sys_prompt="You are a helpful math problem solving agent.",
        model=model,
        formatter=OpenAIChatFormatter(),
    )
    response = await agent.reply(
        msg=Msg("user", task["question"], role="user"),
    )
    return WorkflowOutput(response=response)


async def example_judge_function(
    task: dict,
    response: Any,
    auxiliary_models: dict[str, ChatModelBase] | None = None,
) -> JudgeOutput:
    ground_truth = task["answer"]
    reward = 1.0 if ground_truth in response.get_text_content() else 0.0
    return JudgeOutput(reward=reward)


async def prompt_workflow(task: dict, system_prompt: str) -> WorkflowOutput:
    agent = ReActAgent(
        name="react_agent",
        sys_prompt=system_prompt,
        model=model,
        formatter=OpenAIChatFormatter(),
    )
    response = await agent.reply(msg=Msg("user", task["question"], role="user"))
    return WorkflowOutput(response=response)


async def translation_judge(task: dict, response: WorkflowOutput) -> JudgeOutput:
    """Rewards from 0 to 100, and what was returned as a whole, as in model selection."""
    response_str = response.response.get_text_content()
    right = 100.0 * (task["answer"] in response_str)
    return JudgeOutput(reward=right, metrics={"bleu": right / 100})


async def rewarding_workflow(
    task: dict, model: ChatModelBase, auxiliary_models: dict[str, ChatModelBase] | None = None
) -> WorkflowOutput:
    """Gives its reward itself, and asks another agent."""
    reply = await model([{"role": "user", "content": task["question"]}])
    assert auxiliary_models is not None
    second = await auxiliary_models["critic"](Msg("user", task["question"]))
    asked = float(bool(reply.get_text_content()) + bool(second.get_text_content()))
    return WorkflowOutput(response=reply, reward=asked / 2, metrics={"asked": asked})


async def asking_judge(
    task: dict, response: Any, auxiliary_models: dict[str, ChatModelBase]
) -> JudgeOutput:
    """Asks a model by its name."""
    reply = await auxiliary_models["critic"]([{"role": "user", "content": task["question"]}])
    said = reply.get_text_content()[-2:]
    return JudgeOutput(reward=float(response.get_text_content().endswith(said)))


async def greedy_workflow(task: dict, model: ChatModelBase, **more: Any) -> WorkflowOutput:
    return WorkflowOutput(response="")


async def odd_judge(task: dict, response: Any, temperature: float = 0.0) -> JudgeOutput:
    return JudgeOutput(reward=0.0)


def plain_workflow(task: dict, model: ChatModelBase) -> WorkflowOutput:
    return WorkflowOutput(response="")
