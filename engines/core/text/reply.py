"""An exchange for a reply of a set form: asked once, and once more with what was wrong with it."""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

from engines.core.errors import CallFailed
from engines.core.frozen import frozen
from engines.core.text.maths import escape_tex
from engines.core.types import NO_USAGE, Completion, Message, Names, RecordRef, Usage, is_cut

T = TypeVar("T")

_NO_ID = ("null", "none", "new", "nan", "undefined")
_EXPERIENCE_ID = re.compile(r"\[?\s*[EeGg]?\s*(\d{1,9})\s*\]?")
MAX_REPLY_CHARS = 200_000
"""Longer replies are not searched for JSON: no list of lessons is that long."""


def too_long_reason(text: str) -> str:
    return f"It has {len(text):,} characters, and at most {MAX_REPLY_CHARS:,} are read."


class ReplyProblem(ValueError):
    """Why a reply cannot be used, in words meant for the model that wrote it."""


@frozen
class ParsedReply(Generic[T]):
    """What could be read, and what was wrong with the rest, as sentences."""

    items: tuple[T, ...]
    problems: Names = ()  # worth a repair turn
    notes: Names = ()  # small things left out: told, and not asked for again
    unclosed: bool = False  # it breaks off where it might be whole


@frozen
class RepairResult(Generic[T]):
    """The end of an exchange with at most one repair turn."""

    items: tuple[T, ...]
    problems: Names  # what remained wrong after it
    reply: str  # the last text
    completions: tuple[Completion, ...]
    refs: tuple[RecordRef, ...]
    lost: Usage = NO_USAGE  # what a repair turn that failed has cost
    notes: Names = ()  # see `ParsedReply`

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


def spoken_lines(text: str) -> list[str]:
    """What a member says, for people: of a JSON object a line a key, else its own lines."""
    with suppress(ValueError, RecursionError):
        found = json.loads(fenced[1] if (fenced := _FENCED.fullmatch(text)) else text)
        if isinstance(found, dict):
            rows = as_texts(found).items()
            return [" ".join(f"{key}: {said}".split()) for key, said in rows if said]
    return text.splitlines()


def as_texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Values as texts: lists a comma apart, objects as JSON."""

    def text(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(text(one) for one in value)
        return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return {key: "" if value is None else text(value) for key, value in row.items()}


Row = dict[str, Any]

_KEY = r"""(?:"[^"\\\n{}\[\]]{1,40}"|[“'‘]?[^\W\d]\w{0,39}[”'’]?)\s*[:：]"""
_START = re.compile(rf"\[\s*(?=\]|(?:\[\s*){{0,2}}\{{\s*{_KEY})|\{{\s*(?={_KEY})")
_STOP = re.compile(rf"\{{\s*{_KEY}|\[\s*\{{|```")
"""Where a broken object ends at the latest."""
_NAME = re.compile(r"\{\s*[\"“'‘]?([^\"”'’:：]*)")
_FENCED = re.compile(r"\s*```[^\n`]*\n(.*?)(?:```)?\s*", re.DOTALL)
_BETWEEN = re.compile(
    r"(?:[\s,;:\[\]{}()*#]|```\w*|//[^\n]*|\"\w+\"\s*:|(?:and|lesson|operation|object)\b|\d+\.?)*",
    re.IGNORECASE,
)
"""What stands between parts of one answer: no prose, but headings as "Lesson 2:"."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_HIDDEN = {mark: chr(0xE000 + at) for at, mark in enumerate("\\\"'ntr")}
"""What stands for an escape while an object is mended: `json-repair` decodes some of them twice."""
_SHOWN = {ord(char): {"n": "\n", "t": "\t", "r": "\r"}.get(m, m) for m, char in _HIDDEN.items()}
_FORM = re.compile(r"[\s\"'“”‘’,，:：;{}\[\]\ue000-\ue005]+")
_JOINED = re.compile(r"\"\s*[+|]\s*\"")
_COMMENT = re.compile(r"(?m)/\*.*?\*/|(?:^|(?<=[\s,{}\[\]\"]))[ \t]*(?://|#)[^\"\n]*$")
_SHARED_KEYS = {"attempts", "reason", "because"}
"""Names that do not tell the kind of an array's objects."""
MAX_WASTED_CHARS = 4 * MAX_REPLY_CHARS
"""Read in vain: prose full of brackets must not cost quadratic time."""
MAX_MENDED_CHARS, MAX_MENDED_BRACKETS, MAX_UNREAD = 8_000, 200, 10
"""Of one object, since the time of mending grows with their product; and objects in vain."""
MAX_BRACES = 200
"""Places at which `objects_with` looks for an object, for the same reason."""
_END_OF_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


@frozen
class FoundObjects:
    """The objects of an answer in their order, a problem in the place of one that is broken."""

    rows: tuple[Row | ReplyProblem, ...]
    problems: Names = ()  # of the answer as a whole
    notes: Names = ()
    unclosed: bool = False  # if the reply was cut, this may not be the whole answer


@frozen
class _Span:
    start: int
    end: int
    rows: list[Row | ReplyProblem]


def _refuse_double_keys(pairs: list[tuple[str, Any]]) -> Row:
    """Two lessons in one object: the later would silently replace the earlier."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key comes twice in an object")
    return row


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_refuse_double_keys)


def find_objects(text: str, fields: Collection[str] = ()) -> FoundObjects:
    """The objects that a reply means; objects elsewhere in it are none of these.

    `fields` are the names by which an object of an answer is known; (): any name will do.
    A lone object counts as a list of one, one that holds lists of objects as what they hold.
    Arrays with nothing but headings between them are one answer, since some models give each
    lesson an array of its own; where prose stands between, the last one of each kind is the answer
    and what is before it a draft. Objects that stand in no array are all meant.

    Raises ReplyProblem: no object could be read; the message says what was found instead.
    """
    if len(text) > MAX_REPLY_CHARS:
        raise ReplyProblem(too_long_reason(text))
    text = escape_tex(drop_thoughts(text))
    fenced = _FENCED.fullmatch(text)
    try:
        value = _DECODER.decode((fenced[1] if fenced else text).strip())
    except (ValueError, RecursionError):
        foreign: list[Row] = []
        found = _choose_answer(text, list(_find_spans(text, fields, foreign)))
        names = sorted({str(name) for row in foreign for name in row})
        left = f"It holds objects of other names, left out: {', '.join(names)[:80]}."
        return replace(found, notes=(*found.notes, left)) if names else found
    if (rows := _as_rows(value)) is None:
        kind = type(value).__name__.replace("NoneType", "null")
        raise ReplyProblem(f"expected a JSON array of objects, found {kind}.")
    return FoundObjects(tuple(rows))


def parse_objects(text: str, fields: Collection[str] = ()) -> list[Row]:
    """`find_objects` where a reply must be whole; else ReplyProblem."""
    found = find_objects(text, fields)
    broken = [str(row) for row in found.rows if isinstance(row, ReplyProblem)]
    if trouble := (*broken, *found.problems):
        raise ReplyProblem(" ".join(trouble))
    return [row for row in found.rows if isinstance(row, dict)]


def objects_with(keys: Collection[str], text: str) -> Iterator[Row]:
    """Every whole object of a text that has one of these keys, wherever it stands."""
    at = -1
    for _ in range(MAX_BRACES):
        if (at := text.find("{", at + 1)) < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if not value.keys().isdisjoint(keys):  # else it may hold one
            yield value
            at = end - 1


def drop_thoughts(text: str) -> str:
    """The reply proper: models that think aloud draft answers meanwhile."""
    start = text.lstrip()[:7].lower()
    if start[:1] in ("[", "{", "`"):
        return text
    for found in reversed(list(_END_OF_THOUGHT.finditer(text))):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if line.count('"') % 2 == 0:  # else it is quoted
            return text[found.end() :]
    return "" if start.startswith("<think") else text


def _find_spans(text: str, fields: Collection[str], foreign: list[Row]) -> Iterator[_Span]:
    """What may be the answer; `foreign` gets the objects whose names no answer has."""
    at = wasted = unread = 0
    while found := _START.search(text, at):
        start = found.start()
        try:
            value, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            at = found.end()
            wasted += getattr(error, "pos", start + 1_000) - start + 40
            if wasted > MAX_WASTED_CHARS:
                raise ReplyProblem("it holds too many brackets that are no JSON.") from error
            name = _NAME.match(text, start)
            if name and (not fields or name[1].strip().lower() in fields):
                stop = _STOP.search(text, at)
                piece = text[start : stop.start() if stop else len(text)]
                row, length = _mend(piece) if unread < MAX_UNREAD else (None, len(piece))
                at = start + length
                unread += row is None
                closed = at < len(text) or text.rstrip()[-1:] in tuple("]}`")
                yield _Span(
                    start,
                    at,
                    [
                        ReplyProblem(
                            f"its JSON is not valid: {error if closed else 'it is cut off'}."
                        )
                        if row is None
                        else row
                    ],
                )
            continue
        rows = _as_rows(value)
        names = {str(name).strip().lower() for row in rows or () for name in row}
        if rows is not None and (not rows or not fields or not names.isdisjoint(fields)):
            yield _Span(start, at, [*rows])
        else:
            foreign += rows or ()


def _choose_answer(text: str, spans: list[_Span]) -> FoundObjects:
    if not spans:
        breaks_off = "[{" in re.sub(r"\s+", "", text)
        cause = "its JSON is not valid: it breaks off." if breaks_off else "no JSON array was found"
        raise ReplyProblem(cause if breaks_off else f"{cause} in it.")
    for before, span in pairwise(tuple(spans)):
        if text[span.start] == "[" and span.rows == before.rows:
            spans.remove(span)  # the array is said twice
    groups = [spans[:1]]
    for before, span in pairwise(spans):
        is_broken = any(isinstance(row, ReplyProblem) for row in before.rows)
        given_up = text[span.start] == "[" and is_broken
        if _BETWEEN.fullmatch(text[before.end : span.start]) and not given_up:
            groups[-1].append(span)
        else:
            groups.append([span])
    arrays = [group for group in groups if _is_array(text, group[0].start)]
    # An empty list amid prose is no answer where there is another.
    full = [
        group
        for group in arrays
        if any(span.rows for span in group) or not text[group[-1].end :].strip(" \n`.")
    ]
    chosen = [] if arrays else spans
    kinds: set[str] = set()
    drafts = 0
    for group in reversed(full or arrays[-1:]):
        own = {key for span in group for row in span.rows if isinstance(row, dict) for key in row}
        if not chosen or (kinds and own and kinds.isdisjoint(own - _SHARED_KEYS)):
            chosen = [*group, *chosen]
            kinds |= own
        else:
            drafts += 1
    problems = []
    is_open = _is_open(text, chosen)
    later = [span for span in spans if arrays and span.start > chosen[-1].start]
    if any(span.rows for span in later):
        problems.append("An object is not in its array.")
        chosen += later
    rows = [row for span in chosen for row in span.rows]
    if rows and isinstance(rows[0], ReplyProblem) and not any(isinstance(r, dict) for r in rows):
        raise rows[0]
    behind = text[chosen[-1].end :]
    tail = behind.lstrip(" \n}")
    if is_open and tail[:1] in tuple('{",') and tail[1:].lstrip()[:1] != "]":
        problems.append(f"Its array is cut off behind object {len(rows)}.")
    notes = [f"It holds other answers, taken for drafts: {drafts}."] * (drafts > 0)
    unclosed = is_open and "]" not in tail[:1]
    goes_on = bool(behind.strip(" \n`}]"))
    return FoundObjects(tuple(rows), tuple(problems), tuple(notes), unclosed or goes_on)


def _is_array(text: str, start: int) -> bool:
    """Return whether an array begins there, or right before."""
    return "[" in (text[start], text[max(0, start - 80) : start].rstrip()[-1:])


def _is_open(text: str, chosen: list[_Span]) -> bool:
    """Return whether the objects stand in an array that is not closed between them."""
    depth = int(text[chosen[0].start] == "{" and _is_array(text, chosen[0].start))
    for before, span in pairwise(chosen):
        between = text[before.end : span.start]
        depth += between.count("[") - between.count("]")
    return depth > 0


def _mend(piece: str) -> tuple[Row | None, int]:
    """Return the object that a piece of text begins with although it is no JSON, and its length."""
    source = piece[: piece.rfind("}") + 1]
    brackets = len(re.findall(r"[\[{(]", source))
    quotes = source.count('"') - source.count('\\"')
    row = None
    # Without its brace it was cut off, and with an open quote its end is somewhere else.
    if brackets <= MAX_MENDED_BRACKETS and len(source) <= MAX_MENDED_CHARS and quotes % 2 == 0:
        row = _repair(source)
    return row, len(piece) if row is None else len(source)


def _repair(source: str) -> Row | None:
    """Return a flat object as `json-repair` reads it; None where that is not all of the source."""
    from json_repair import repair_json

    source = _ESCAPE.sub(_hide, source)
    try:
        row = repair_json(source, return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    parts: list[Any] = []
    for key, value in row.items():
        parts += [key, *value] if isinstance(value, list) else [key, value]
    if any(isinstance(part, dict | list) for part in parts):
        return None
    is_whole = (
        all(part in source and not _JOINED.search(part) for part in parts if isinstance(part, str))
        and all(re.fullmatch(r"[^\W\d]\w*", str(key).strip()) for key in row)
        and _visible("".join(map(str, parts)))
        in (_visible(source), _visible(_COMMENT.sub("", source)))
    )
    return {key: _show(value) for key, value in row.items()} if is_whole else None


def _hide(match: re.Match[str]) -> str:
    is_code = len(match[1]) == 5
    char = chr(int(match[1][1:], 16)) if is_code else match[1]
    return char if is_code and char in "ntr" else _HIDDEN.get(char, char)


def _show(value: Any) -> Any:
    if isinstance(value, list):
        return [_show(item) for item in value]
    return value.translate(_SHOWN) if isinstance(value, str) else value


def _visible(text: str) -> str:
    """What carries meaning, whatever the form."""
    return _FORM.sub("", text).casefold().replace("null", "none")


def _as_rows(value: Any) -> list[Row] | None:
    if isinstance(value, dict):
        held = list(value.values())
        if held and all(isinstance(one, dict) for one in held):
            return held
        lists = [one for one in held if isinstance(one, list)]
        rows = [row for one in lists for row in one]
        if (rows or len(lists) == len(held)) and all(isinstance(row, dict) for row in rows):
            return rows if lists else None
        return [value]
    if isinstance(value, list) and any(value) and all(isinstance(one, list) for one in value):
        value = [row for one in value for row in one]
    return value if isinstance(value, list) and all(isinstance(r, dict) for r in value) else None
