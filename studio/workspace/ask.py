"""Asking things that may hang or end their process, so that none hides another."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import fields_of
from engines.core.errors import StudioError
from engines.record.repair import Finding
from studio.secrets.output import mask_text

_ROOT = str(Path(__file__).parents[2])


async def run_check(
    place: str, check: Awaitable[Iterable[Finding]], limit_s: float
) -> tuple[Finding, ...]:
    """What a check finds; that it fails or hangs is a finding, too."""
    try:
        async with asyncio.timeout(limit_s):
            return tuple(await check)
    except TimeoutError:
        cause = f"it did not answer within {limit_s:g} s."
        return (Finding("note", place, cause, "Ask again; what hangs may be seen with `top`."),)
    except StudioError as error:
        return (Finding("fix", error.place, error.cause, error.move),)
    except Exception as error:  # whatever it is, the other checks are of use all the same
        text = f"it could not be looked at ({type(error).__name__}: {error})."
        return (Finding("note", place, text),)


async def ask_program(*command: str, given: bytes = b"") -> tuple[int, str, str]:
    """Exit code, output and errors of a program; it is killed where whoever asks is cancelled."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        out, err = await process.communicate(given)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


async def ask_python(code: str, order: object = None) -> Any:
    """The JSON that Python code prints last, in a process of its own that can import the studio.

    So it is asked of libraries that take seconds to import, or of code that may hang.
    """
    start = f"import sys; sys.path.insert(0, {_ROOT!r})\n"
    start += "from studio.process import harden; harden()\n"
    command = (sys.executable, "-P", "-c", start + code)
    status, out, err = await ask_program(*command, given=orjson.dumps(order))
    try:
        return orjson.loads(out.strip().rpartition("\n")[2])
    except orjson.JSONDecodeError:
        said = err.strip().rpartition("\n")[2] or f"exit code {status}"
        raise RuntimeError(said) from None


async def ask_apart(check: str, *order: object) -> list[Finding]:
    """What `MODULE:FUNCTION` finds in a process of its own, given the order as JSON values."""
    code = f"from {__name__} import answer; answer({check!r})"
    return [Finding(**row) for row in await ask_python(code, order)]


def answer(check: str) -> None:
    """The other process: look, and print what was found, without secrets."""
    module, _, name = check.partition(":")
    order = orjson.loads(sys.stdin.buffer.read())
    try:
        found = list(getattr(import_module(module), name)(*order))
    except StudioError as error:
        found = [Finding("fix", error.place, error.cause, error.move)]
    rows = [fields_of(finding, "grade", "place", "cause", "move") for finding in found]
    print(mask_text(orjson.dumps(rows).decode()), flush=True)
