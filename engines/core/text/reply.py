"""Reading JSON out of what a model wrote: lenient in form, strict in meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from engines.core.errors import CallFailed
from engines.core.finish import is_cut
from engines.core.types import NO_USAGE, Completion, Message, RecordRef, Usage

T = TypeVar("T")

_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)  # a cut reply leaves one open
_BRACKET = re.compile(r"[\[{]")
_LIKE_OURS = re.compile(r"\[\s*\{|\{\s*\"")
_DECODER = json.JSONDecoder()
_EXPERIENCE_ID = re.compile(r"\[?\s*[EeGg]?\s*(\d{1,9})\s*\]?")
MAX_REPLY_CHARS = 200_000
"""Longer replies are not searched for JSON: no list of lessons is that long."""


class ReplyProblem(ValueError):
    """Why a reply cannot be used, in words meant for the model that wrote it."""


@dataclass(frozen=True, slots=True)
class ParsedReply(Generic[T]):
    """What could be read, and what was wrong with the rest, as sentences."""

    items: tuple[T, ...]
    problems: tuple[str, ...] = ()  # worth a repair turn
    notes: tuple[str, ...] = ()  # small things left out: told, and not asked for again


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


def parse_objects(text: str) -> list[dict[str, Any]]:
    """The list of JSON objects that a reply means.

    A lone object counts as a list of one, and an object whose only list holds objects
    as that list. Of several candidates the last one that is a list of objects wins.

    Raises:
        ReplyProblem: there is none; the message says what was found instead.
    """
    text = text[:MAX_REPLY_CHARS]
    blocks = [block.strip() for block in reversed(_FENCE.findall(text))]
    whole = []
    for block in (*blocks, text.strip()):
        with suppress(ValueError, RecursionError):
            value = json.loads(block)
            if (rows := _as_rows(value)) is not None:
                return rows
            whole.append(value)
        # An earlier fence must not pass for the answer that a later one failed to be.
        _find_json_values(block, only_first=True)
    if whole:
        kind = type(whole[0]).__name__.replace("NoneType", "null")
        raise ReplyProblem(f"expected a JSON array of objects, found {kind}.")
    spans = _find_json_values(text)
    for value in reversed(spans):
        if isinstance(value, list) and (value or len(spans) == 1) and _as_rows(value) is not None:
            return value
    loose = [value for value in spans if isinstance(value, dict) and value]
    if len(loose) == 1:
        return _as_rows(loose[0]) or loose
    if loose:
        return loose
    raise ReplyProblem("no JSON array was found in it.")


def parse_experience_id(value: object) -> str | None:
    """`E3` from "E3", "e3", "[E3]", "3" or 3; None from null, "" or "null"; else ReplyProblem."""
    if value is None or value == "" or str(value).strip().lower() in ("null", "none", "new"):
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
    parsed = _try_parse(parse, completion)
    if not parsed.problems:
        text = completion.text
        return RepairResult(parsed.items, (), text, (completion,), (ref,), notes=parsed.notes)
    request = Message("user", repair(" ".join(parsed.problems)))
    try:
        second, second_ref = await ask(1, [*messages, completion.as_message(), request])
    except CallFailed as error:
        *others, last = parsed.problems
        problems = (*others, f"{last} The repair turn failed: {error}.")
        return RepairResult(
            parsed.items,
            problems,
            completion.text,
            (completion,),
            (ref,),
            lost=error.usage,
            notes=parsed.notes,
        )
    repaired = _try_parse(parse, second)
    # A repair that came out worse must not cost what the first reply had right.
    best = repaired if rank(repaired.items) >= rank(parsed.items) else parsed
    text = second.text if best is repaired else completion.text
    completions, refs = (completion, second), (ref, second_ref)
    return RepairResult(best.items, best.problems, text, completions, refs, notes=best.notes)


def _try_parse(parse: Callable[[str], ParsedReply[T]], completion: Completion) -> ParsedReply[T]:
    try:
        return parse(completion.text)
    except ReplyProblem as problem:
        cut = " The reply was cut off at its length limit." if is_cut(completion.finish) else ""
        return ParsedReply((), (str(problem) + cut,))


def _find_json_values(text: str, only_first: bool = False) -> list[Any]:
    """JSON values that start at a bracket somewhere in the prose, in order.

    `only_first` looks no further than at what the text begins with.

    Raises:
        ReplyProblem: something begins like our JSON and is broken. What could be
            salvaged from its inside would silently be less than what was meant.
    """
    values: list[Any] = []
    position = 0
    for _ in range(200):  # prose full of brackets must not cost quadratic time
        start = _BRACKET.search(text, position)
        if start is None or (only_first and start.start() > 0):
            break
        try:
            value, position = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError) as error:
            if _LIKE_OURS.match(text, start.start()):
                raise ReplyProblem(f"its JSON is not valid: {error}.") from error
            position = start.end()
        else:
            values.append(value)
    return values


def _as_rows(value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list)]
        rows = _as_rows(lists[0]) if len(lists) == 1 else None
        if rows or (rows is not None and len(value) == 1):
            return rows
        return [value] if value else None
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        return value
    return None
