"""The tools that are shipped: a calculator, a question to another model, the interpreter."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from engines.core.errors import ToolError
from engines.core.protocols import Policy, ToolTry
from engines.core.text.maths import ExpressionError, value_of
from engines.core.types import NO_OUTPUT, Message, Sampling, ToolResult, ToolSpec, as_status, is_cut
from engines.tools.arguments import ArgumentsRefused, read_arguments
from engines.tools.function import FunctionTool
from engines.tools.sandbox.sandbox import RunResult, Sandbox

LIBRARIES = ("numpy", "sympy")
MAX_NAMES = 12
"""Variables that a result names."""


def calculator_tool() -> FunctionTool:
    async def calculator(expression: str) -> ToolResult:
        """Compute +, - and * of whole numbers with round brackets, exactly.

        Limits: 200 characters, numbers of 30 digits; no division, powers, decimals or names.
        Best practice: one whole expression instead of several steps.

        Args:
            expression: such as 17*(3+4)

        Repeatable: yes
        """
        try:
            return ToolResult(str(value_of(expression)))
        except ExpressionError as error:
            return ToolResult(f"{error}", "error")

    return FunctionTool(calculator)


def ask_model_tool(policy: Policy) -> FunctionTool:
    """`policy` is whoever opened it to close."""

    async def ask_model(question: str, within: ToolTry, instruction: str = "") -> ToolResult:  # noqa: D417
        """Ask a language model a plain question and read its reply.

        Limits: it sees nothing but the question, has no tools, and may be wrong.
        Best practice: put every fact that it needs into one question, and check what it says.

        Args:
            question: the whole question
            instruction: how it should answer, such as: in one sentence

        Repeatable: yes
        """
        system = (Message("system", instruction),) if instruction.strip() else ()
        messages = (*system, Message("user", question))
        reply = await within.ask(policy, messages, Sampling(temperature=0.0))
        if not reply.text.strip():
            said = f"The model gave no text (it ended with {reply.finish!r})."
            return ToolResult(said, "error", reply.usage)
        quoted = "\n".join(f"> {line}" for line in reply.text.strip().splitlines())
        cut = "\n(cut at its length limit)" if is_cut(reply.finish) else ""
        return ToolResult(f"The model replies:\n{quoted}{cut}", usage=reply.usage)

    return FunctionTool(ask_model)


class PythonTool:
    """The interpreter: one session of the sandbox for each try."""

    def __init__(self, sandbox: Sandbox) -> None:
        async def python(code: str, within: ToolTry) -> ToolResult:  # noqa: D417
            """Run Python code and see what it prints and the value of its last line.

            Limits: 10 s for each call, no network, no files that stay. Variables, functions and
            imports are kept from one call to the next.
            Best practice: print the result or leave it as the last line; compute in few calls,
            and test a result before you rely on it.

            Args:
                code: lines of Python, without a code fence

            Repeatable: yes
            """
            return await self._run(code, within)

        self._sandbox, self._function = sandbox, FunctionTool(python)
        self.spec: ToolSpec = self._function.spec

    async def check(self) -> None:
        """Start the sandbox and compute in it, so that the description says what can be used."""
        report = await self._sandbox.start()
        session = self._sandbox.session()
        try:
            result = await session.run("1+1")
            if result.status != "ok" or result.value != "2":
                cause = f"1+1 came to {_result_text(result)!r} ({result.status})."
                raise ToolError('tool "python"', cause, f"The sandbox: {report.sentence}")
            usable = [n for n in LIBRARIES if (await session.run(f"import {n}")).status == "ok"]
        finally:
            await session.aclose()
        libraries = ", ".join(("the standard library", *usable))
        told = f"{self._function.spec.description}\nUsable: {libraries}."
        self.spec = replace(self.spec, description=told, tier=report.sentence)

    async def call(self, arguments: Mapping[str, object], within: ToolTry) -> ToolResult:
        return await self._function.call(arguments, within)

    async def aclose(self) -> None:
        await self._sandbox.aclose()

    async def _run(self, code: str, within: ToolTry) -> ToolResult:
        name = self.spec.name
        if name not in within.kept:
            session = self._sandbox.session()
            within.stack.push_async_callback(session.aclose)
            within.kept[name] = session, asyncio.Lock()
        session, turn = within.kept[name]
        async with turn:  # the calls of one reply run at a time, and share the variables
            # A process that was killed took the variables with it; the results are recorded.
            for call in [call for call in within.earlier if call.name == name]:
                within.earlier.remove(call)
                with suppress(ArgumentsRefused):  # nothing ran then either
                    earlier = read_arguments(call.arguments, self.spec.parameters)
                    await session.run(earlier["code"])
            result = await session.run(code)
        status = result.status if result.status in ("ok", "timeout") else "error"
        return ToolResult(_result_text(result), as_status(status))


def _result_text(result: RunResult) -> str:
    """What was printed, then the last value, what went wrong, and which variables there are."""
    parts = [result.stdout.rstrip("\n")]
    if result.value:
        parts.append(f"Value: {result.value}" if result.stdout.strip() else result.value)
    if result.stderr.strip():
        parts.append(f"stderr: {result.stderr.rstrip()}")
    if result.status != "ok":
        parts.append(f"Failed ({result.status}): {result.error}")
    elif not any(parts):
        parts.append(f"{NO_OUTPUT[:-1]}: print the result, or leave it as the last line)")
    if result.variables:
        names = result.variables
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        parts.append(f"Variables: {', '.join(names[:MAX_NAMES])}{more}")
    return "\n".join(part for part in parts if part)
