"""A policy as an agent with tools, or a member of a team, asks it.

Calls are typed and named, and the context stays within its budget.

Models without calls of their own get tools in words: fenced blocks in replies, results as text.
Where a conversation passes its budget the oldest results are left out first, a note with their
length in their place, until three quarters of the budget are filled; those of the last turn stay.
Which are left out follows from the messages alone, so the whole conversation is what is recorded.

Each member of a team has a prompt of its own, which follows from the same record.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import orjson

from engines.core import errors, protocols, team
from engines.core.codec import JsonMapping, fix_surrogates
from engines.core.frozen import frozen
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ReplyProblem
from engines.core.text.tokens import prompt_tokens, text_tokens
from engines.core.types import Completion, Message, Sampling, ToolCall, is_cut
from engines.policies.limits import WrappedPolicy

Protocol = Literal["native", "text"]


@frozen
class ToolUsePolicy(WrappedPolicy):
    """Speaks a model's form of tool calls below the record, which holds the typed conversation.

    `context_tokens` None: whatever the conversation comes to is sent.
    """

    protocol: Protocol = "native"
    context_tokens: int | None = None

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
    ) -> Completion:
        tools = sampling.tools
        if self.context_tokens is not None:
            messages = fit_context(messages, tools, self.context_tokens)
        if not tools or self.protocol == "native":
            reply = await self.inner.complete(messages, sampling, on_text)
        else:
            # Small models go on with a result of their own making.
            plain = replace(sampling, tools=(), stop=(*sampling.stop, f"\n{RESULTS}"))
            reply = await self.inner.complete(as_text(messages, tools), plain, on_text)
            reply = with_calls(reply, tools)
        if not reply.tool_calls:
            return reply
        taken = {call.id for message in messages for call in message.tool_calls}
        return replace(reply, tool_calls=tuple(_name_calls(reply.tool_calls, taken)))


def _name_calls(calls: Iterable[ToolCall], taken: set[str]) -> Iterable[ToolCall]:
    """Calls with ids of their own: some servers give none, or the same to all."""
    for call in calls:
        name, number = call.id, len(taken)
        while not name or name in taken:
            number += 1
            name = f"call-{number}"
        taken.add(name)
        yield call if name == call.id else replace(call, id=name)


INTERPRETER = "python"
"""The tool whose calls are programs in a block of that language."""
RESULTS = "Tool results"
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(tool|python|py)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.S | re.M | re.I
)
_PROMPT = load_prompt("engines.policies", "protocol")


def as_text(messages: Sequence[Message], tools: Sequence[JsonMapping]) -> tuple[Message, ...]:
    """The conversation without typed calls; what tools said stands quoted in messages of a user."""
    made = list(_as_text(messages, {call.id: call for m in messages for call in m.tool_calls}))
    protocol = _PROMPT.render(tools="\n".join(describe_tool(tool) for tool in tools))
    if made and made[0].role == "system":
        made[0] = replace(made[0], content=f"{made[0].content}\n\n{protocol}")
    else:
        made.insert(0, Message("system", protocol))
    return tuple(made)


def with_calls(reply: Completion, tools: Sequence[JsonMapping]) -> Completion:
    """A reply with the calls that its blocks make; what is said beside them stays.

    A program is a call only where the interpreter is offered: else it is part of an answer.
    """
    if is_cut(reply.finish):
        return reply
    offered = {tool["name"] for tool in tools}
    calls = tuple(_read_calls(reply.text, INTERPRETER in offered))
    return replace(reply, tool_calls=calls, finish="tool_calls") if calls else reply


def spell_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """The text of a reply with its calls as blocks, where they do not stand in it as such."""
    if _BLOCK.search(text):
        return text
    return "\n\n".join(part for part in (text, *map(_spell_call, calls)) if part)


def _spell_call(call: ToolCall) -> str:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = call.arguments
    if call.name == INTERPRETER and isinstance(arguments, dict) and set(arguments) == {"code"}:
        return f"```python\n{arguments['code']}\n```"
    asked = orjson.dumps({"name": call.name, "arguments": arguments}).decode()
    return f"```tool\n{asked}\n```"


def _read_calls(text: str, has_interpreter: bool) -> Iterator[ToolCall]:
    for found in _BLOCK.finditer(text):
        language, body = found[1].lower(), found[2].strip("\n")
        if language == "tool":
            yield _read_call(body)
        elif has_interpreter:
            yield ToolCall("", INTERPRETER, orjson.dumps({"code": body}).decode())


def _read_call(body: str) -> ToolCall:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        asked = None
    if not isinstance(asked, dict) or not isinstance(asked.get("name"), str):
        return ToolCall("", "", body)  # refused by whoever looks for a tool of that name
    arguments = asked.get("arguments", {})
    written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return ToolCall("", asked["name"], written)


def _as_text(messages: Sequence[Message], calls: Mapping[str, ToolCall]) -> Iterator[Message]:
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            call = calls.get(message.tool_call_id)
            results.append(f"{call.name if call else 'tool'}:\n{quote(message.content)}")
            continue
        if results:
            yield Message("user", "\n\n".join([RESULTS, *results]))
            results = []
        if message.tool_calls:
            content = spell_calls(message.content, message.tool_calls)
            message = replace(message, content=content, tool_calls=())
        yield message
    if results:
        yield Message("user", "\n\n".join([RESULTS, *results]))


def describe_tool(tool: JsonMapping) -> str:
    schema = orjson.dumps(tool["parameters"].get("properties", {})).decode()
    text = " ".join(str(tool["description"]).split())
    return f"- {tool['name']}: {text} Arguments: {schema}"


_KEPT_SHARE = 0.75
"""Of the budget, once something is left out: a prompt that changes each turn is cached nowhere."""


def fit_context(
    messages: Sequence[Message], tools: Sequence[JsonMapping], budget: int
) -> tuple[Message, ...]:
    """The messages with old results left out, within `budget` tokens as they are estimated.

    Raises CallFailed of the kind "context": they do not fit without all old results either.
    """
    sizes = [prompt_tokens((message,)) for message in messages]
    if sum(sizes) <= budget - (offered := prompt_tokens((), tools)):
        return tuple(messages)
    made, left_out, filled = list(messages), 0, offered
    for end, message in enumerate(messages):
        filled += sizes[end]
        # As it stood when a reply was asked for: behind the results, before what was replied.
        if message.role != "tool" or (end + 1 < len(messages) and messages[end + 1].role == "tool"):
            continue
        last_turn = next(i for i in range(end, -1, -1) if messages[i].role != "tool")
        most = budget if filled <= budget else _KEPT_SHARE * budget
        while filled > most and left_out < last_turn:
            if messages[left_out].role == "tool":
                made[left_out] = _elide(messages[left_out])
                filled += text_tokens(made[left_out].content) - sizes[left_out]
            left_out += 1
    if filled > budget:
        text = f"the conversation needs about {filled:,} tokens, and may have {budget:,}"
        raise errors.CallFailed("context", f"{text} (agent.context_tokens)")
    return tuple(made)


def _elide(result: Message) -> Message:
    note = f"(left out to save room: {len(result.content):,} characters of an older result)"
    return replace(result, content=note) if len(note) < len(result.content) else result


_PACKAGE = "engines.policies"
MAX_SAID_CHARS = 8_000
"""Of what a member said, in the prompt of another: who cannot stop must not fill them all."""
_PROMPTS: Mapping[team.Speaker, str] = {
    "planner_fixed": "analyse",
    "planner_main": "plan",
    "executor": "command",
    "verifier": "check",
    "generator": "answer",
}


@frozen
class TeamPolicy(WrappedPolicy):
    """Speaks for one member. `max_steps` is what the planner is told of its limit.

    `context_tokens` None: whatever the memory comes to is sent.
    """

    speaker: team.Speaker
    form: team.PlanForm = "json"
    max_steps: int = 5
    context_tokens: int | None = None

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
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
        self, messages: Sequence[Message], tools: Mapping[str, JsonMapping]
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
            raise errors.CallFailed("context", f"{text} (agent.context_tokens)")
        return whole

    def _render(
        self,
        messages: Sequence[Message],
        question: str,
        tools: Mapping[str, JsonMapping],
        room: int,
    ) -> str:
        steps = team.read_steps(messages, tools, self.form)
        if self._writes_lines:
            told = team.memory_lines(steps)
            return load_prompt(_PACKAGE, "plan_lines").render(
                question=question, memory=f"\n{told}" if told else ""
            )
        prompt = load_prompt(_PACKAGE, _PROMPTS[self.speaker])
        plan = team.last_plan(messages, tools, self.form)
        tool = tools.get(plan.tool_name) if plan else None
        analysed = (m for m in reversed(messages) if m.speaker == "planner_fixed")
        analysis = next((m.content for m in analysed if m.role == "assistant"), "") or "(none)"
        values = {
            "question": quote(question),
            "analysis": quote(analysis[:MAX_SAID_CHARS]),
            "tools": "\n".join(map(describe_tool, tools.values())) or "(none)",
            "memory": team.memory_block(steps, room),
            "left": str(self.max_steps - len(steps)),
            "context": quote(plan.context[:MAX_SAID_CHARS] or "(none)") if plan else "(none)",
            "sub_goal": quote(plan.sub_goal[:MAX_SAID_CHARS]) if plan else "(none)",
            "tool": describe_tool(tool) if tool else "(none)",
        }
        return prompt.render(**{name: values[name] for name in prompt.variables})

    def _calls(
        self, reply: Completion, messages: Sequence[Message], tools: Mapping[str, JsonMapping]
    ) -> tuple[ToolCall, ...]:
        plan = team.last_plan(messages, tools, self.form)
        schemas = {name: tool["parameters"] for name, tool in tools.items()}
        try:
            command = team.read_command(reply.text, plan.tool_name if plan else "", schemas)
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
