"""What tools say, on its way to a cassette and back.

When it is played no tool is started; the models that one asked are asked again, so that the record
of the run is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from engines.core.codec import from_dict, to_dict
from engines.core.errors import CallFailed, ConfigError
from engines.core.protocols import Policy, Toolbox, ToolTry
from engines.core.tools import ToolResult, ToolSpec
from engines.core.types import Completion, Message, Sampling, ToolCall
from engines.record.cassette.file import Cassette, plain_request
from engines.record.cassette.replies import (
    PlayedPolicy,
    free_usage,
    keep_failure,
    model_request,
    raise_failure,
)
from engines.record.ledger import INTERRUPTED


def taped_toolbox(inner: Toolbox, cassette: Cassette) -> Toolbox:
    """The tools with what they say recorded, or played."""
    return PlayedToolbox(inner, cassette) if cassette.plays else RecordingToolbox(inner, cassette)


@dataclass(frozen=True, slots=True)
class RecordingToolbox:
    inner: Toolbox
    cassette: Cassette

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.inner.specs

    async def check(self) -> None:
        await self.inner.check()

    async def call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        begun = self.cassette.begin("tool", _tool_request(call))
        if any(spec.name == call.name and not spec.repeatable for spec in self.specs):
            # If this process is killed now, the next one does not make the call again.
            await self.cassette.write(replace(begun, reply={"result": to_dict(INTERRUPTED)}))
        asked = list[Mapping[str, Any]]()

        async def ask(
            policy: Policy, messages: Sequence[Message], sampling: Sampling
        ) -> Completion:
            asked.append(model_request(policy.name, messages, sampling))
            return await within.ask(policy, messages, sampling)

        try:
            result = await self.inner.call(call, replace(within, ask=ask))
        except BaseException as error:
            keep_failure(self.cassette, begun, error)
            raise
        reply = {"result": to_dict(result), "asked": asked}
        written = await self.cassette.write(replace(begun, reply=reply))
        return from_dict(ToolResult, written.reply["result"])

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass(frozen=True, slots=True)
class PlayedToolbox:
    """Tools as they were offered when the cassette was recorded. `inner` is not even tested."""

    inner: Toolbox
    cassette: Cassette

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(from_dict(ToolSpec, spec) for spec in self.cassette.tools["specs"])

    async def check(self) -> None:
        """Refuse tools that are others than were recorded, as far as that is known unstarted."""
        if not self.cassette.tools:
            raise self._changed_error("it holds no run with tools.")
        recorded = {spec["name"]: spec for spec in self.cassette.tools["unstarted"]}
        now = {spec.name: to_dict(spec) for spec in self.inner.specs}
        if missing := [name for name in recorded if name not in now]:
            raise self._changed_error(f'it was recorded with a tool "{missing[0]}".')
        for name, spec in now.items():
            if name not in recorded:  # its key may have been missing then
                if not self.cassette.tools["facts"].get("absent"):
                    raise self._changed_error(f'it was recorded without a tool "{name}".')
            elif any(spec[part] != recorded[name][part] for part in ("description", "parameters")):
                raise self._changed_error(f'the tool "{name}" was described in other words.')

    async def call(self, call: ToolCall, within: ToolTry) -> ToolResult:
        entry = self.cassette.take("tool", _tool_request(call))
        for asked in entry.reply.get("asked", ()):
            messages = [from_dict(Message, message) for message in asked["messages"]]
            policy = PlayedPolicy(asked["policy"], self.cassette)
            with suppress(CallFailed):  # the tool made something of it
                await within.ask(policy, messages, from_dict(Sampling, asked["sampling"]))
        await raise_failure(entry)
        result = from_dict(ToolResult, entry.reply["result"])
        return replace(result, usage=free_usage(result.usage))

    async def aclose(self) -> None:
        await self.inner.aclose()

    def _changed_error(self, cause: str) -> ConfigError:
        move = "Take back what was changed since, or record another: --record FILE."
        return ConfigError(f"agent.tools and cassette {self.cassette.path}", cause, move)


def _tool_request(call: ToolCall) -> Mapping[str, Any]:
    return plain_request(name=call.name, arguments=call.arguments)
