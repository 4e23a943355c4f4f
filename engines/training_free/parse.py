"""Reads the reflector's replies: rows of JSON, strict in what they mean.

A row that cannot be used is a problem, told in a sentence that the repair turn shows to the
model. What is only left out of a row, or is no lesson anyway, is a note: told, and no reason
to ask again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from engines.core import flags as names
from engines.core.library import Library
from engines.core.text.objects import FoundObjects, find_objects
from engines.core.text.reply import ParsedReply, ReplyProblem, parse_experience_id
from engines.core.text.sanitize import one_line
from engines.core.types import Flag, Operation, OperationKind

MAX_PROBLEMS = 20
"""Each is told in the repair turn and journalled with the reply: 60,000 fit into one."""
_KINDS: tuple[OperationKind, ...] = ("add", "modify", "delete", "keep")
"""What a model may propose: pins are people's, weights the trainer's."""
_SYNONYMS = {"update": "modify", "remove": "delete", "none": "keep", "create": "add"}
_NOTES = ("credit", "doubt", "drop")
_FIELDS = frozenset(_NOTES).union(
    ("operation", "option", "kind", "id", "target", "experience", "text", "content", "reason"),
    ("rationale", "because", "attempts", "proposals", "use"),
)
Use = Literal["used", "ignored", "misled"]
_USES: dict[str, Use] = {
    "used": "used",
    "helped": "used",
    "followed": "used",
    "ignored": "ignored",
    "unused": "ignored",
    "not used": "ignored",
    "misled": "misled",
    "misleading": "misled",
    "harmful": "misled",
}
_NUMBER = re.compile(r"(?:r|p|attempt|proposal)?\s*#?\s*([0-9]{1,9})", re.IGNORECASE)
_Fields = Mapping[str, Any]
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One operation of a reply. `sources` are the attempt or proposal numbers it names."""

    kind: OperationKind
    target: str | None
    text: str
    reason: str
    sources: tuple[int, ...]
    same_as: str | None = None  # the experience that says the same already
    conflicts_with: tuple[str, ...] = ()  # experiences that say the opposite
    only_this_problem: bool = False  # it holds for no other problem

    def as_operation(
        self, *, evidence: Iterable[str], problems: Iterable[str], proposer: str, prompt_hash: str
    ) -> Operation:
        """An operation that has no id yet; what stands behind it counts once."""
        return Operation(
            id="",
            kind=self.kind,
            target=self.target,
            text=self.text,
            rationale=self.reason,
            evidence=tuple(dict.fromkeys(evidence)),
            proposer=proposer,
            prompt_hash=prompt_hash,
            problems=tuple(dict.fromkeys(problems)),
            flags=self.flags,
        )

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What the model itself says against it; it measures nothing, so none has a score."""
        if self.kind not in ("add", "modify"):
            return ()
        said = {
            names.DUPLICATE: f"{self.same_as} says it already" if self.same_as else "",
            names.CONFLICT: f"it contradicts {', '.join(self.conflicts_with)}"
            if self.conflicts_with
            else "",
            names.ONE_PROBLEM: "it holds for no other problem" if self.only_this_problem else "",
        }
        return tuple(Flag(n, None, f"the reflector: {what}") for n, what in said.items() if what)


@dataclass(frozen=True, slots=True)
class CreditRow:
    """What became of one experience in the attempts with these numbers."""

    experience: str
    use: Use
    sources: tuple[int, ...]  # () where it names none


@dataclass(frozen=True, slots=True)
class DoubtRow:
    """Verdicts that contradict their attempts."""

    reason: str
    sources: tuple[int, ...]  # at least one


@dataclass(frozen=True, slots=True)
class DropRow:
    """Proposals that no operation needs."""

    sources: tuple[int, ...]  # at least one
    reason: str


ExtractionRow = Suggestion | CreditRow | DoubtRow
ConsolidationRow = Suggestion | DropRow


def rank_rows(rows: Sequence[object]) -> tuple[int, int]:
    """For `ask_with_repair`: more suggestions are worth more than any number of other rows."""
    return sum(isinstance(row, Suggestion) for row in rows), len(rows)


def parse_extraction(
    reply: str, library: Library, *, known: Sequence[int], limit: int | None
) -> ParsedReply[ExtractionRow]:
    """Read what a group shows; ReplyProblem where there is no list of objects in it.

    `known` are the numbers of the attempts shown. A suggestion that says nothing of attempts
    rests on all of them: it was drawn from them. `limit` is the most changes that may come,
    None for any number; `keep` changes nothing and does not count.
    """
    reading = _Reading(library, "attempts", known)

    def read(fields: _Fields) -> Sequence[ExtractionRow]:
        if (note := _note_of(fields)) == "credit":
            return reading.read_credits(fields)
        return reading.read_doubt(fields) if note == "doubt" else [reading.read_operation(fields)]

    parsed = reading.read_rows(find_objects(reply, _FIELDS), read)
    changes = _changes(parsed.items)
    if limit is None or len(changes) <= limit:
        return parsed
    problem = f"It holds {len(changes)} changes and at most {limit} are wanted."
    late = {id(row) for row in changes[limit:]}
    items = tuple(row for row in parsed.items if id(row) not in late)
    return replace(parsed, items=items, problems=(*parsed.problems, problem))


def parse_consolidation(
    reply: str, library: Library, *, known: Sequence[int], bound: int | None
) -> ParsedReply[ConsolidationRow]:
    """Read what the batch should change; ReplyProblem where that cannot be told.

    `known` are the numbers of the proposals. An operation that names none rests on none: which
    of the whole batch it would be is nobody's to guess. More changes than `bound` are no reply
    to read at all; None: any number.
    """
    reading = _Reading(library, "proposals", known)

    def read(fields: _Fields) -> Sequence[ConsolidationRow]:
        is_drop = _note_of(fields) == "drop"
        return reading.read_drop(fields) if is_drop else [reading.read_operation(fields)]

    parsed = reading.read_rows(find_objects(reply, _FIELDS), read)
    changes = len(_changes(parsed.items))
    if bound is not None and changes > bound:
        raise ReplyProblem(f"it holds {changes:,} operations, and at most {bound:,} are taken.")
    return parsed


def _changes(rows: Iterable[object]) -> list[Suggestion]:
    return [row for row in rows if isinstance(row, Suggestion) and row.kind != "keep"]


class _Reading:
    """Reads the rows of one reply, and notes what it leaves out of them."""

    def __init__(self, library: Library, sources: str, known: Sequence[int]) -> None:
        self._library = library
        self._sources = sources
        self._known = known
        self._notes: list[str] = []

    def read_rows(
        self, found: FoundObjects, read: Callable[[_Fields], Sequence[_Row]]
    ) -> ParsedReply[_Row]:
        items: list[_Row] = []
        problems, notes = list(found.problems), list(found.notes)
        for number, row in enumerate(found.rows, 1):
            self._notes = []
            try:
                if isinstance(row, ReplyProblem):
                    raise row
                items += read({str(key).strip().lower(): value for key, value in row.items()})
            except ReplyProblem as problem:
                problems.append(f"Object {number}: {problem}")
            notes += [f"Object {number}: {note}" for note in self._notes]
        return ParsedReply(tuple(items), _cap(problems), _cap(notes), found.unclosed)

    def read_operation(self, fields: _Fields) -> Suggestion:
        kind = _parse_kind(_first(fields, "operation", "option", "kind"))
        target = parse_experience_id(_first(fields, "id", "target"))
        text = _line(_first(fields, "experience", "text", "content"))
        if kind in ("add", "modify") and not text:
            raise ReplyProblem(f'"experience" must be a text, since the operation is {kind}.')
        if kind == "add" and target is not None:
            if self._library.get(target) is not None:
                raise ReplyProblem(f'add takes no id; to change {target}, use "modify".')
            target = None
        if kind != "add" and self._library.get(target) is None:
            raise ReplyProblem(self._unknown(target))
        sources = _first(fields, self._sources)
        if sources is None and self._sources == "attempts":
            sources = list(self._known)
        same_as = self._read_ids(fields, "same_as")
        return Suggestion(
            kind,
            target,
            text if kind in ("add", "modify") else "",
            _line(_first(fields, "reason", "rationale")),
            self._read_numbers(sources),
            next((name for name in same_as if name != target), None),
            tuple(n for n in self._read_ids(fields, "conflicts_with") if n != target),
            str(fields.get("only_this_problem")).strip().lower() in ("true", "yes"),
        )

    def read_credits(self, fields: _Fields) -> list[CreditRow]:
        names = self._read_ids(fields, "credit" if "credit" in fields else "id")
        numbers = self._read_numbers(fields.get("attempts"))
        said = str(fields.get("use", "")).strip().lower()
        if use := _USES.get(said):
            return [CreditRow(name, use, numbers) for name in names]
        self._notes.append(f'"use" must be used, ignored or misled, not {said!r:.40}.')
        return []

    def read_doubt(self, fields: _Fields) -> list[DoubtRow]:
        reason = _line(fields.get("doubt")) or _line(_first(fields, "reason", "because"))
        if numbers := self._read_numbers(fields.get("attempts")):
            return [DoubtRow(reason, numbers)]
        self._notes.append("a doubt must name the attempts it is about.")
        return []

    def read_drop(self, fields: _Fields) -> list[DropRow]:
        if numbers := self._read_numbers(_first(fields, "drop", "proposals")):
            return [DropRow(numbers, _line(_first(fields, "because", "reason", "rationale")))]
        self._notes.append('"drop" must name proposals.')
        return []

    def _read_ids(self, fields: _Fields, name: str) -> tuple[str, ...]:
        """Ids that are in the library; others are left out."""
        value = fields.get(name)
        found = []
        for entry in value if isinstance(value, list) else [value]:
            try:
                target = parse_experience_id(entry)
            except ReplyProblem as problem:
                self._notes.append(f'"{name}": {problem}')
                continue
            if target is not None and self._library.get(target) is None:
                self._notes.append(f'"{name}": {self._unknown(target)}')
            elif target is not None:
                found.append(target)
        return tuple(dict.fromkeys(found))

    def _read_numbers(self, value: object) -> tuple[int, ...]:
        """Numbers of what was shown; others are left out."""
        listed = value if isinstance(value, list) else [] if value is None else [value]
        found, strange = [], []
        for entry in listed:
            match = _NUMBER.fullmatch(str(entry).strip())
            number = int(match[1]) if match and not isinstance(entry, bool) else None
            if number is not None and number in self._known:
                found.append(number)
            else:
                strange.append(f"{entry!r:.40}")
        if strange:
            shown = ", ".join(str(n) for n in self._known)
            left_out = ", ".join(strange[:MAX_PROBLEMS])
            self._notes.append(f'"{self._sources}" names {left_out}, and there are {shown}.')
        return tuple(dict.fromkeys(found))

    def _unknown(self, target: str | None) -> str:
        ids = ", ".join(e.id for e in self._library.experiences) or "it is empty"
        return f"{target or 'no id'} is not in the library ({ids})."


def _note_of(fields: _Fields) -> str | None:
    """Which row that is no operation this is: by its own field, or by the word of one."""
    said = _first(fields, "operation", "option", "kind")
    if said is None:
        return next((name for name in _NOTES if name in fields), None)
    word = said.strip().lower() if isinstance(said, str) else ""
    return word if word in _NOTES else None


def _parse_kind(value: object) -> OperationKind:
    word = value.strip().lower() if isinstance(value, str) else ""
    word = _SYNONYMS.get(word, word)
    if found := [kind for kind in _KINDS if kind == word]:
        return found[0]
    raise ReplyProblem(f'"operation" must be one of {", ".join(_KINDS)}, not {value!r}.')


def _first(fields: _Fields, *names: str) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _line(value: object) -> str:
    return one_line(value) if isinstance(value, str) else ""


def _cap(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= MAX_PROBLEMS:
        return tuple(lines)
    more = len(lines) - MAX_PROBLEMS
    return (*lines[:MAX_PROBLEMS], f"{more} more things are wrong with it.")
