"""A judge function as AgentScope's tuner documents it."""

from typing import Any, Dict  # noqa: UP035 (as its documentation writes it)

from agentscope.message import Msg
from agentscope.model import ChatModelBase
from agentscope.tuner import JudgeOutput


async def judge_function(
    task: Dict,  # noqa: UP006
    response: Any,
    auxiliary_models: Dict[str, ChatModelBase] | None = None,  # noqa: UP006
) -> JudgeOutput:
    text = response.get_text_content()
    if text.strip() == task["answer"]:
        return JudgeOutput(reward=1.0, metrics={"length": len(text)})
    model = auxiliary_models["judge"]
    chat = await model([Msg("user", f"{task['question']} {text}?", "user")])
    return JudgeOutput(reward=float(chat.content[0]["text"]), metrics={"asked": 1})
