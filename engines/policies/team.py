"""A model as a member of a team asks it: its own prompt, made from the try's trajectory.

Works below the record, which holds what was said once: the prompts of all members follow from it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engines.core.codec import fix_surrogates
from engines.core.errors import CallFailed
from engines.core.protocols import OnText
from engines.core.team import (
    PlanForm,
    Speaker,
    last_plan,
    memory_block,
    memory_lines,
    read_command,
    read_steps,
)
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ReplyProblem
from engines.core.text.tokens import prompt_tokens
from engines.core.types import Completion, Message, Sampling, ToolCall
from engines.policies.limits import WrappedPolicy
from engines.policies.tool_use import describe_tool

_PACKAGE = "engines.policies"
MAX_SAID_CHARS = 8_000
"""Of what a member said, in the prompt of another: who cannot stop must not fill them all."""
_PROMPTS: Mapping[Speaker, str] = {
    "planner_fixed": "analyse",
    "planner_main": "plan",
    "executor": "command",
    "verifier": "check",
    "generator": "answer",
}


@dataclass(frozen=True, slots=True)
class TeamPolicy(WrappedPolicy):
    """Speaks for one member. `max_steps` is what the planner is told of its limit.

    `context_tokens` None: whatever the memory comes to is sent.
    """

    speaker: Speaker
    form: PlanForm = "json"
    max_steps: int = 5
    context_tokens: int | None = None

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        tools = {tool["name"]: tool for tool in sampling.tools}
        asked = self._prompt(messages, tools)
        form = self.speaker != "generator" and not self._writes_lines
        plain = replace(sampling, tools=(), json_object=form)
        reply = await self.inner.complete(asked, plain, on_text)
        calls = self._calls(reply, messages, tools) if self.speaker == "executor" else ()
        return replace(reply, speaker=self.speaker, tool_calls=calls)

    @property
    def _writes_lines(self) -> bool:
        return self.speaker == "planner_main" and self.form == "lines"

    def _prompt(
        self, messages: Sequence[Message], tools: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Message, ...]:
        """The member's request; raises CallFailed where it cannot fit."""
        again = messages[-2:] if messages[-1].speaker == self.speaker else ()  # to be mended
        again = tuple(map(_shorten, again))
        at = max(n for n, m in enumerate(messages) if m.role == "user" and not m.speaker)
        before, question = messages[:at], messages[at]  # instructions, and turns of a talk

        def make_request(room: int) -> tuple[Message, ...]:
            content = self._render(messages, question.content, tools, room)
            return (*before, Message("user", content, images=question.images), *again)

        if self.context_tokens is None:
            return make_request(1_000_000)
        left = self.context_tokens - prompt_tokens(make_request(0))
        whole = make_request(max(left, 0))
        if prompt_tokens(whole) > self.context_tokens:
            text = (
                f"the prompt of the {self.speaker} needs more than {self.context_tokens:,} tokens"
            )
            raise CallFailed("context", f"{text} (agent.context_tokens)")
        return whole

    def _render(
        self,
        messages: Sequence[Message],
        question: str,
        tools: Mapping[str, Mapping[str, Any]],
        room: int,
    ) -> str:
        steps = read_steps(messages, tools, self.form)
        if self._writes_lines:
            told = memory_lines(steps)
            return load_prompt(_PACKAGE, "plan_lines").render(
                question=question, memory=f"\n{told}" if told else ""
            )
        prompt = load_prompt(_PACKAGE, _PROMPTS[self.speaker])
        plan = last_plan(messages, tools, self.form)
        tool = tools.get(plan.tool_name) if plan else None
        analysed = (m for m in reversed(messages) if m.speaker == "planner_fixed")
        analysis = next((m.content for m in analysed if m.role == "assistant"), "") or "(none)"
        values = {
            "question": quote(question),
            "analysis": quote(analysis[:MAX_SAID_CHARS]),
            "tools": "\n".join(map(describe_tool, tools.values())) or "(none)",
            "memory": memory_block(steps, room),
            "left": str(self.max_steps - len(steps)),
            "context": quote(plan.context[:MAX_SAID_CHARS] or "(none)") if plan else "(none)",
            "sub_goal": quote(plan.sub_goal[:MAX_SAID_CHARS]) if plan else "(none)",
            "tool": describe_tool(tool) if tool else "(none)",
        }
        return prompt.render(**{name: values[name] for name in prompt.variables})

    def _calls(
        self, reply: Completion, messages: Sequence[Message], tools: Mapping[str, Mapping[str, Any]]
    ) -> tuple[ToolCall, ...]:
        plan = last_plan(messages, tools, self.form)
        schemas = {name: tool["parameters"] for name, tool in tools.items()}
        try:
            command = read_command(reply.text, plan.tool_name if plan else "", schemas)
        except ReplyProblem:
            return ()  # the team asks once more
        number = sum(len(message.tool_calls) for message in messages) + 1
        # Not orjson: it raises at numbers above 64 bits and at half a character, as "\ud83d".
        arguments = fix_surrogates(json.dumps(dict(command.arguments), ensure_ascii=False))
        return (ToolCall(f"call-{number}", command.tool_name, arguments),)


def _shorten(message: Message) -> Message:
    """A reply that is to be mended, or what was wrong with it."""
    cut = len(message.content) > MAX_SAID_CHARS
    ids = () if cut else message.token_ids
    return Message(message.role, message.content[:MAX_SAID_CHARS], token_ids=ids)
