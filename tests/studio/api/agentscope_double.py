"""Stands for AgentScope's own agent, which asks its model as documented, tools left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studio.api.tuner import ChatModelBase, Msg


class OpenAIChatFormatter:
    async def format(self, msgs: Sequence[Msg]) -> list[dict[str, Any]]:
        """Messages of OpenAI's protocol, whose content is a list of parts."""
        return [
            {"role": msg.role, "content": [{"type": "text", "text": msg.get_text_content()}]}
            for msg in msgs
        ]


class ReActAgent:
    def __init__(
        self, name: str, sys_prompt: str, model: ChatModelBase, formatter: OpenAIChatFormatter
    ) -> None:
        self.name, self.model, self.formatter = name, model, formatter
        self.memory = [Msg("system", sys_prompt, "system")]

    async def reply(self, msg: Msg) -> Msg:
        self.memory.append(msg)
        prompt = await self.formatter.format(self.memory)
        assert not self.model.stream
        response = await self.model(prompt, tools=[], tool_choice=None)
        self.memory.append(Msg(self.name, list(response.content), "assistant"))
        return self.memory[-1]
