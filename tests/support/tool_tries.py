"""A try for tools to be called in, and what stands in for the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from engines.core.protocols import Policy, Tool, ToolTry
from engines.core.types import Completion, Message, Sampling, ToolCall
from engines.tools.sandbox.sandbox import RunResult
from engines.tools.toolbox import CheckedToolbox, Entry
from tests.support.builders import a_job


def a_call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall("c1", name, arguments)


def a_toolbox(*tools: Tool, timeout_s: float = 60) -> CheckedToolbox:
    return CheckedToolbox([Entry(tool, f'tool "{tool.spec.name}"', timeout_s) for tool in tools])


@asynccontextmanager
async def a_try(*earlier: ToolCall) -> AsyncIterator[ToolTry]:
    async def ask(policy: Policy, messages: Sequence[Message], sampling: Sampling) -> Completion:
        return await policy.complete(messages, sampling)

    async with AsyncExitStack() as stack:
        yield ToolTry(a_job(), ask, stack, earlier=list(earlier))


@dataclass
class FakeSession:
    outcomes: Mapping[str, RunResult]
    ran: list[str] = field(default_factory=list)
    closed: bool = False

    async def run(self, code: str, *, wall_s: float | None = None) -> RunResult:
        self.ran.append(code)
        return self.outcomes.get(code, RunResult("ok", value=code))

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class FakeReport:
    sentence: str = "Code runs in a process of its own."


@dataclass
class FakeSandbox:
    """Answers with what is laid down for a piece of code, else with the code."""

    outcomes: dict[str, RunResult] = field(default_factory=dict)
    sessions: list[FakeSession] = field(default_factory=list)
    closed: bool = False

    async def start(self) -> FakeReport:
        return FakeReport()

    def session(self) -> FakeSession:
        self.sessions.append(FakeSession({"1+1": RunResult("ok", value="2"), **self.outcomes}))
        return self.sessions[-1]

    async def aclose(self) -> None:
        self.closed = True
