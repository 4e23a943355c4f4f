"""The process that may be killed: checks answers for `worker_pool`.

Run as a program it is a template: it imports what its task needs once, then forks a
worker in milliseconds whenever its parent asks. Owns the task itself (math-verify's
equality, a pattern's search) and its memory limit. The deadline is the parent's.

It is started by its path and imports of `engines` only `exact_value`, which stands alone.
Protocol: the template's control socket is its standard input; each order is one JSON
object {"kill": pid or 0} with the new worker's socket attached, each reply one line.
A worker reads one JSON object a line and answers each in order.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import os
import re
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

Task = Callable[[dict[str, Any]], dict[str, Any]]

PARENT_CHECK_S = 2.0
USUAL = {"float_rounding": 6, "strict": True}  # by other rules more is equal
# Ready-made: when it is needed there may be no memory to make it.
OUT_OF_MEMORY = b'{"error": "the check needs more memory than it may have", "kind": "too long"}\n'
_ENVIRONMENT = re.compile(r"\$[^$]+\$|\\\(|\\\[|\\boxed")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_APART = re.compile(r"(?<=\d)\s+(?=\d)")
_COMMAND = re.compile(r"\\(?:begin|end|text|textbf|mathrm|mathbf)\s*\{[^{}]*\}|\\[A-Za-z]+")
_SPELT = re.compile(r"(?<![\\A-Za-z])(pi|sqrt|sin|cos|tan|log|ln)(?![A-Za-z])")
_QUANTITY = re.compile(r"[-+]?[^\w\s\\(]?\d[\d,.]*\s+[A-Za-z]{2,}\.?")
_PERCENT = re.compile(r"([-+]?[\d.,]+)\s*(?:\\?%|percent|pct)")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,4})")
_MIXED = re.compile(r"([-+]?\d+)\s+(\d+)/(\d+)")
_LIST = re.compile(r"[-+]?\d+(?:\s*,\s*[-+]?\d+)+")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+")


def build_math_task() -> Task:
    """Which of the expected answers an answer equals, by math-verify.

    A reply's `match` is the place of the first equal one, None where none is.
    Its own timeouts are off: they arm SIGALRM and turn a timeout into "wrong".
    """
    from math_verify import parse, parser, verify

    from engines.verifiers.math.exact_value import same_value as exactly

    logging.disable(logging.CRITICAL)  # it warns once a process that its timeout is off

    beyond: list[BaseException] = []

    def record_overflow(read_one: Callable[..., Any]) -> Callable[..., Any]:
        """Keep what `parse` swallows: an expression beyond our limits is not a wrong one."""

        def read_recording(*args: Any, **options: Any) -> Any:
            try:
                return read_one(*args, **options)
            except (MemoryError, RecursionError) as error:
                beyond.append(error.with_traceback(None))
                raise

        return read_recording

    parser.latex2sympy, parser.parse_expr = (
        record_overflow(parser.latex2sympy),
        record_overflow(parser.parse_expr),
    )

    @functools.lru_cache(maxsize=512)
    def parse_cached(text: str) -> tuple[Any, ...]:
        beyond.clear()
        parts = tuple(parse(text, parsing_timeout=None, raise_on_error=True))
        if beyond:
            raise beyond[-1]
        return parts

    def check(question: dict[str, Any]) -> dict[str, Any]:
        if question["marker"] != "none" and question["rules"] == {**question["rules"], **USUAL}:
            texts = [expected["text"] for expected in question["expected"]]
            found = [exactly(text, question["answer"]) for text in texts]
            if True in found or None not in found:
                match = found.index(True) if True in found else None
                return {"match": match, "got": question["answer"]}
        answer = list(parse_cached(to_math_verify(question["answer"], question["marker"])))
        got = next((part for part in reversed(answer) if isinstance(part, str)), "")
        for at, expected in enumerate(question["expected"]):
            gold = list(parse_cached(to_math_verify(expected["text"], expected["marker"])))
            if has_same_letters(expected["text"], question["answer"]):
                return {"match": at, "got": got}
            if is_decimal_comma(expected["text"], question["answer"]):
                return {"match": at, "got": got}
            if same_value(gold, answer, question["rules"]):
                return {"match": at, "got": got}
        return {"match": None, "got": got}

    def same_value(gold: list[Any], answer: list[Any], rules: dict[str, Any]) -> bool:
        try:
            return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True, **rules))
        except ValueError as error:
            # 12:00 is read as 12/0. What has no value equals only its own letters.
            if "nan or zoo" in str(error):
                return False
            raise

    # The first parse compiles grammar and patterns; that must not count against a deadline.
    for pair in (("\\frac{1}{2}", "0.5"), ("$x^2=4$", "x=2"), ("3", "so it is 4 apples")):
        expected = [{"text": pair[0], "marker": "marked"}]
        check({"answer": pair[1], "marker": "marked", "expected": expected, "rules": {}})
    return check


def to_math_verify(text: str, marker: str) -> str:
    r"""Dress a stated answer the way math-verify reads it as a whole.

    Left bare, `3\sqrt{2}` is read as 3, `2 1/2` as 1 and `1e5` as 1; boxed, `50\%` as text.
    """
    if _ENVIRONMENT.search(text) or (marker == "none" and not is_formula(text, word=2)):
        return text
    if match := _PERCENT.fullmatch(text):
        return f"answer: {match[1]}%"
    if match := _SCIENTIFIC.fullmatch(text):
        return f"${match[1]} \\cdot 10^{{{match[2]}}}$"
    if match := _MIXED.fullmatch(text):
        return f"${match[1]} \\frac{{{match[2]}}}{{{match[3]}}}$"
    if marker == "boxed" and not _QUANTITY.fullmatch(text):
        return f"\\boxed{{{to_latex(text)}}}"
    return f"${to_latex(text)}$" if is_formula(text, word=3) else f"answer: {text}"


def is_formula(text: str, *, word: int) -> bool:
    """True for what is all mathematics; `word` letters in a row are prose, "3 kg" is too."""
    bare = _COMMAND.sub(" ", _SPELT.sub(" ", text)).strip()
    if re.search(rf"[^\W\d_]{{{word}}}", bare) or _QUANTITY.fullmatch(bare) or "\n" in bare:
        return False
    if _LIST.fullmatch(text):
        return not _THOUSANDS.fullmatch(text)
    return bool(re.search(r"[A-Za-z\\(){}\[\]<>;!]|\d:\d", text))


def to_latex(text: str) -> str:
    r"""`sqrt(2)` and `pi/4` as LaTeX."""
    text = re.sub(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    return _SPELT.sub(r"\\\1", text)


def has_same_letters(one: str, other: str) -> bool:
    """Equal but for blanks and markup; case counts in formulas (x, X), not in words.

    A blank between two digits counts: 2 1/2 is not 21/2.
    """
    one, other = (
        "".join(_APART.sub("|", _TEXT.sub(r"\1", text).replace("$", "")).split())
        for text in (one, other)
    )
    if re.search(r"[^\W\d_]{3}", one):
        one, other = one.casefold(), other.casefold()
    return bool(one) and one == other


def is_decimal_comma(one: str, other: str) -> bool:
    """True for 2,5 and 2.5; 1,000 stays a thousand, and 2,5 beside 2,5 whatever it is."""
    for comma, point in ((one, other), (other, one)):
        comma, point = comma.strip(" $"), point.strip(" $")
        if _DECIMAL_COMMA.fullmatch(comma) and not _THOUSANDS.fullmatch(comma):
            return comma.replace(",", ".") == point
    return False


def build_pattern_task() -> Task:
    """The last match of a pattern: what its first group holds, or None.

    A question with flags of its own asks only whether there is a match.
    """

    def find(question: dict[str, Any]) -> dict[str, Any]:
        if "flags" in question:
            matched = re.search(question["pattern"], question["text"], question["flags"])
            return {"found": matched is not None}
        found = None
        for match in re.finditer(question["pattern"], question["text"], re.MULTILINE):
            found = match[1]
        return {"found": found}

    return find


def answer_questions(channel: socket.socket, task: Task) -> None:
    """Answer questions until the parent closes the channel."""
    for line in channel.makefile("rb"):
        try:
            answer = task(json.loads(line))
        except MemoryError:
            channel.sendall(OUT_OF_MEMORY)
            os._exit(3)  # a process that ran out of memory is not trusted with another answer
        except RecursionError:
            answer = {"error": "the expression is nested too deeply", "kind": "too long"}
        except Exception as error:  # becomes the verdict's recorded error
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        channel.sendall(json.dumps(answer).encode() + b"\n")


def serve(control: socket.socket, task: Task, memory_bytes: int, parent: int) -> None:
    """Fork a worker per order; when the parent is gone, kill them all and return."""
    children: set[int] = set()
    while True:
        # End of file tells of the parent's end, unless a fork of it still holds the socket.
        if not select.select([control], [], [], PARENT_CHECK_S)[0]:
            if os.getppid() != parent:
                break
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            break
        kill_workers(children.intersection([json.loads(message)["kill"]]), children)
        with socket.socket(fileno=descriptors[0]) as channel:
            try:
                pid = os.fork()
            except OSError as error:
                control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
                continue
            if pid == 0:
                try:
                    control.close()
                    limit_process(memory_bytes)
                    answer_questions(channel, task)
                finally:
                    os._exit(0)  # leave without running what the template registered
        children.add(pid)
        control.sendall(json.dumps({"pid": pid}).encode() + b"\n")
    kill_workers(set(children), children)


def kill_workers(pids: set[int], children: set[int]) -> None:
    """Kill and reap. Nothing else reaps, so a pid in `children` is never another process."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        children.discard(pid)


def limit_process(memory_bytes: int) -> None:
    template = os.getppid()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the template
        if os.getppid() != template:
            os._exit(0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # macOS knows RLIMIT_AS but may refuse it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def main(task_name: str, memory_bytes: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=0)
    try:
        task = {"math": build_math_task, "pattern": build_pattern_task}[task_name]()
    except Exception as error:  # becomes the parent's VerifierError
        control.sendall(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        return
    gc.collect()
    gc.freeze()  # keeps the collector of each fork off the pages it shares with the template
    control.sendall(b'{"ready": true}\n')
    serve(control, task, memory_bytes, parent)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
