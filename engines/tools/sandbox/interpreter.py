"""Runs code call by call, in a process that is confined already. Imports nothing of `engines`.

The task of a template: a question has `code`, and the answer the fields of `RunResult` but the
output, which goes to files. The code may do anything to this module: whoever reads the answer
trusts none of it.
"""

import ast
import builtins
import contextlib
import importlib
import itertools
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

MAX_VALUE, MAX_ERROR, MAX_SHORT, MAX_VARIABLES = 20_000, 4_000, 200, 50
FRAMES = 4


def build_task(preload: list[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Import what code often needs, and make what a first call needs."""
    for name in preload:
        importlib.import_module(name)
    Interpreter().run("1 + 1")
    return Interpreter().answer


class Interpreter:
    def __init__(self) -> None:
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self._main
        self._calls = 0
        self._output: tuple[int, int] | None = None  # kept twice, whatever the code does to it

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        self._output = self._output or (os.dup(1), os.dup(2))
        open_streams(self._output)
        result = self.run(question["code"])
        result["variables"] = self.variables()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        return result

    def run(self, code: str) -> dict[str, Any]:
        self._calls += 1
        file = f"<call {self._calls}>"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        try:
            body, last = split_last(code, file)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return {"status": "error", "error": syntax_text(error)}
        value = ""
        try:
            exec(compile(body, file, "exec"), self._main.__dict__)
            if last is not None:
                returned = eval(compile(last, file, "eval"), self._main.__dict__)
                value = "" if returned is None else full_repr(returned)
        except MemoryError:
            raise
        except SystemExit as error:
            if error.code not in (None, 0):
                return {"status": "error", "error": f"SystemExit: {error.code!s:.200}"}
        except BaseException as error:  # the code's own, whatever it is
            return {"status": "error", "error": error_text(error)}
        return {"status": "ok", "value": value}

    def variables(self) -> list[str]:
        """Public names but of modules, the same however busy the machine is."""
        public = (
            name[:MAX_SHORT]
            for name, value in list(self._main.__dict__.items())
            if type(name) is str and name[:1] != "_" and type(value) is not types.ModuleType
        )
        return list(itertools.islice(public, MAX_VARIABLES))


def split_last(code: str, file: str) -> tuple[ast.Module, ast.Expression | None]:
    tree = ast.parse(code, file)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body.pop()
        assert isinstance(last, ast.Expr)
        return tree, ast.Expression(last.value)
    return tree, None


def full_repr(value: object) -> str:
    try:
        return repr(value)[:MAX_VALUE]
    except MemoryError:
        raise
    except Exception as error:  # an integer of many digits, or a __repr__ of the code's own
        return f"<{type(value).__name__}: {type(error).__name__} in repr>"


def error_text(error: BaseException) -> str:
    """The last of the code's own lines that it went through, and the exception itself."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename[:6] == "<call "]
    lines = [f"line {f.lineno}, in {f.name}: {f.line}"[:300] for f in frames[-FRAMES:]]
    try:
        said = "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # its __str__ may do anything
        said = type(error).__name__
    return "\n".join([*lines, said[:MAX_ERROR]])


def syntax_text(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno}: {(error.text or '').strip()[:300]}\n"
        return f"{where}{type(error).__name__}: {error.msg}"
    if isinstance(error, ValueError):
        return f"SyntaxError: {error}"
    return "SyntaxError: the code is nested too deeply"


def open_streams(spare: tuple[int, int]) -> None:
    """Connect stdout and stderr to their files again, whatever the last call did to them."""
    sys.stdin = os.fdopen(0, closefd=False)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(spare[number - 1], number)
        # Line by line, so that what was said before a kill is there.
        stream = os.fdopen(number, "w", 1, "utf-8", "backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
