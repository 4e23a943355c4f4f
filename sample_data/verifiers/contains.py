"""Right when the expected answer stands somewhere in the response, upper and lower case aside.

Written for the signature of AgentScope's judges.
"""

from typing import Any

from agentscope.tuner import JudgeOutput


async def judge(
    task: dict, response: Any, auxiliary_models: dict[str, Any] | None = None
) -> JudgeOutput:
    text = response.get_text_content().lower()
    found = str(task["answer"]).strip().lower() in text
    return JudgeOutput(reward=float(found), metrics={"words": float(len(text.split()))})
