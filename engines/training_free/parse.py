"""Reads the reflector's replies: lists of proposals, strict in what they mean.

Everything wrong is said in a sentence that the repair turn shows to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.library import Library
from engines.core.text.reply import ParsedReply, ReplyProblem, parse_experience_id, parse_objects
from engines.core.text.sanitize import one_line
from engines.core.types import Operation, OperationKind

MAX_PROBLEMS = 20
"""Each is told in the repair turn and journalled with the reply: 60,000 fit into one."""
_KINDS: tuple[OperationKind, ...] = ("add", "modify", "delete", "keep")
"""What a model may propose: pins are people's, weights the trainer's."""
_SYNONYMS = {"update": "modify", "remove": "delete", "none": "keep", "create": "add"}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One object of a reply. `sources` are the attempt or proposal numbers it names."""

    kind: OperationKind
    target: str | None
    text: str
    reason: str
    sources: tuple[int, ...]

    def as_operation(
        self,
        *,
        evidence: Iterable[str],
        problems: Iterable[str],
        proposer: str,
        prompt_hash: str,
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
        )


def parse_suggestions(
    reply: str, library: Library, *, sources: str, known: Sequence[int], limit: int | None
) -> ParsedReply[Suggestion]:
    """Read a reply; ReplyProblem where there is no list of objects in it.

    `sources` is the name of the field with the numbers, "attempts" or "proposals"; `known` are
    those that may stand there, all of them where it is missing or empty. `limit` is the most
    objects that may come, None for any number.
    """
    rows = parse_objects(reply)
    items, problems = [], []
    for number, row in enumerate(rows, 1):
        try:
            items.append(_parse_suggestion(row, library, sources, known))
        except ReplyProblem as problem:
            problems.append(f"Object {number}: {problem}")
    if limit is not None and len(items) > limit:
        problems.append(f"It holds {len(items)} objects and at most {limit} are wanted.")
        items = items[:limit]
    if len(problems) > MAX_PROBLEMS:
        more = len(problems) - MAX_PROBLEMS
        problems = [*problems[:MAX_PROBLEMS], f"{more} more things are wrong with it."]
    return ParsedReply(tuple(items), tuple(problems))


def _parse_suggestion(
    row: Mapping[str, Any], library: Library, sources: str, known: Sequence[int]
) -> Suggestion:
    fields = {str(key).strip().lower(): value for key, value in row.items()}
    kind = _parse_kind(fields.get("operation", fields.get("option", fields.get("kind"))))
    target = parse_experience_id(fields.get("id", fields.get("target")))
    text = fields.get("experience", fields.get("text", fields.get("content")))
    text = one_line(text) if isinstance(text, str) else ""
    if kind in ("add", "modify") and not text:
        raise ReplyProblem(f'"experience" must be a text, since the operation is {kind}.')
    if kind == "add" and target is not None:
        if library.get(target) is not None:
            raise ReplyProblem(f'add takes no id; to change {target}, use "modify".')
        target = None
    if kind != "add" and library.get(target) is None:
        ids = ", ".join(e.id for e in library.experiences) or "it is empty"
        raise ReplyProblem(f"{target or 'no id'} is not in the library ({ids}).")
    reason = fields.get("reason", fields.get("rationale"))
    return Suggestion(
        kind,
        target,
        text if kind in ("add", "modify") else "",
        one_line(reason) if isinstance(reason, str) else "",
        _parse_sources(fields.get(sources), sources, known),
    )


def _parse_kind(value: object) -> OperationKind:
    word = value.strip().lower() if isinstance(value, str) else ""
    word = _SYNONYMS.get(word, word)
    if found := [kind for kind in _KINDS if kind == word]:
        return found[0]
    raise ReplyProblem(f'"operation" must be one of {", ".join(_KINDS)}, not {value!r}.')


def _parse_sources(value: object, name: str, known: Sequence[int]) -> tuple[int, ...]:
    if value is None or value == []:
        return tuple(known)
    listed = value if isinstance(value, list) else [value]
    try:
        numbers = [int(str(entry).strip().lstrip("#")) for entry in listed]
    except ValueError as error:
        raise ReplyProblem(f'"{name}" must be a list of numbers.') from error
    strange = [n for n in numbers if n not in known]
    if strange:
        raise ReplyProblem(f'"{name}" names {strange}, and there are {list(known)}.')
    return tuple(dict.fromkeys(numbers))
