"""An exchange for a reply of a set form: asked once, and once more with what was wrong with it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from engines.core.errors import CallFailed
from engines.core.finish import is_cut
from engines.core.types import NO_USAGE, Completion, Message, RecordRef, Usage

T = TypeVar("T")

_NO_ID = ("null", "none", "new", "nan", "undefined")
_EXPERIENCE_ID = re.compile(r"\[?\s*[EeGg]?\s*(\d{1,9})\s*\]?")
MAX_REPLY_CHARS = 200_000
"""Longer replies are not searched for JSON: no list of lessons is that long."""


def too_long_reason(text: str) -> str:
    return f"It has {len(text):,} characters, and at most {MAX_REPLY_CHARS:,} are read."


class ReplyProblem(ValueError):
    """Why a reply cannot be used, in words meant for the model that wrote it."""


@dataclass(frozen=True, slots=True)
class ParsedReply(Generic[T]):
    """What could be read, and what was wrong with the rest, as sentences."""

    items: tuple[T, ...]
    problems: tuple[str, ...] = ()  # worth a repair turn
    notes: tuple[str, ...] = ()  # small things left out: told, and not asked for again
    unclosed: bool = False  # it breaks off where it might be whole


@dataclass(frozen=True, slots=True)
class RepairResult(Generic[T]):
    """The end of an exchange with at most one repair turn."""

    items: tuple[T, ...]
    problems: tuple[str, ...]  # what remained wrong after it
    reply: str  # the last text
    completions: tuple[Completion, ...]
    refs: tuple[RecordRef, ...]
    lost: Usage = NO_USAGE  # what a repair turn that failed has cost
    notes: tuple[str, ...] = ()  # see `ParsedReply`

    @property
    def usage(self) -> Usage:
        return sum((completion.usage for completion in self.completions), self.lost)


def parse_experience_id(value: object) -> str | None:
    """`E3` from "E3", "e3", "[E3]", "3" or 3; None from null, "" or "null"; else ReplyProblem."""
    if value is None or value == "" or str(value).strip().lower() in _NO_ID:
        return None
    match = _EXPERIENCE_ID.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool | float):
        raise ReplyProblem(f"{value!r} is not the id of an experience (such as E3).")
    return f"E{int(match[1])}"


async def ask_with_repair(
    ask: Callable[[int, Sequence[Message]], Awaitable[tuple[Completion, RecordRef]]],
    messages: Sequence[Message],
    parse: Callable[[str], ParsedReply[T]],
    repair: Callable[[str], str],
    rank: Callable[[Sequence[T]], tuple[int, ...]] = lambda items: (len(items),),
) -> RepairResult[T]:
    """Ask once, and once more with what was wrong when anything was.

    `ask` is called with the turn (0, then 1) and the messages, `parse` raises ReplyProblem when
    nothing can be read, `repair` makes the second user message from the problem in words.
    The second reply counts where it ranks no lower than the first.
    """
    completion, ref = await ask(0, messages)
    best = parsed = _try_parse(parse, completion)
    text = completion.text
    first = RepairResult(
        parsed.items, parsed.problems, text, (completion,), (ref,), notes=parsed.notes
    )
    if not parsed.problems:
        return first
    request = Message("user", repair(" ".join(parsed.problems)))
    try:
        second, second_ref = await ask(1, [*messages, completion.as_message(), request])
    except CallFailed as error:
        *others, last = parsed.problems
        problems = (*others, f"{last} The repair turn failed: {error}.")
        return replace(first, problems=problems, lost=error.usage)
    repaired = _try_parse(parse, second)
    # A repair that came out worse must not cost what the first reply had right.
    if rank(repaired.items) >= rank(parsed.items):
        best, text = repaired, second.text
    completions, refs = (completion, second), (ref, second_ref)
    return RepairResult(best.items, best.problems, text, completions, refs, notes=best.notes)


def _try_parse(parse: Callable[[str], ParsedReply[T]], completion: Completion) -> ParsedReply[T]:
    cut = "The reply was cut off at its length limit."
    try:
        parsed = parse(completion.text)
    except ReplyProblem as problem:
        said = f"{problem} {cut}" if is_cut(completion.finish) else str(problem)
        return ParsedReply((), (said,))
    if parsed.unclosed and is_cut(completion.finish):
        return replace(parsed, problems=(*parsed.problems, cut))
    return parsed
