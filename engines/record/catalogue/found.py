"""What can be asked for of one run or one library, a row each, as its journal tells it.

Every row has `kind`, `id`, `names` (ids it is found by), `text`, `why`, `status`, `library`, `run`,
`step`, `at` (seconds since the epoch), `reviewer`, `problems`, `effect`, `verdict` and `words`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from engines.core import events as ev
from engines.core.effects import Effect
from engines.core.library import Experience, Library
from engines.core.state.fold import fold_library
from engines.core.types import Decision, Operation, operation_step, weights_operation
from engines.record import lines
from engines.record.journal import Entry, parse_entry, read_journal

Row = dict[str, Any]
KINDS = ("operation", "experience", "rejection", "version", "evaluation")
"""A rejection is an operation that was rejected, or that did not fit."""

_MANY = re.compile(rb'"kind":"(?:Rollout\w+|GroupReflected|Step\w+|Run(?!Started)\w+)"')
"""Nearly all of a journal, of which no row tells."""
_STATUS = {"approve": "approved", "edit": "edited", "reject": "rejected", "defer": "deferred"}


def run_rows(journal: Path) -> list[Row]:
    """Operations with what became of them, and evaluations."""
    operations: dict[str, Row] = {}
    evaluations: list[Row] = []
    place = {"run": journal.parent.name, "library": ""}
    for entry in _read_few(journal):
        match event := entry.event:
            case ev.RunStarted():
                place["library"] = event.library
            case ev.LessonProposed():
                found = event.lesson.operations
                if event.lesson.update is not None:
                    found += (weights_operation(event.step, event.lesson.update),)
                operations |= _operation_rows(found, entry.at, place)
            case ev.OperationProposed():
                operations |= _operation_rows((event.operation,), entry.at, place)
            case ev.ReplyMended():
                operations |= _operation_rows(event.operations, entry.at, place)
            case ev.OperationDecided() | ev.OperationsDecided():
                for decision in event.decisions:
                    if row := operations.get(decision.operation_id):
                        _decide(row, decision, entry.at)
            case ev.DecisionUndone():
                _ask_again(operations, (event.operation_id,), entry.at)
                if event.withdrawn:
                    operations.pop(event.operation_id, None)
            case ev.LessonReturned():
                _ask_again(operations, event.asked_again, entry.at)
            case ev.EffectMeasured():
                for name in event.operations:
                    operations.get(name, {}).update(_worth(event.effect))
            case ev.LessonCommitted():
                for outcome in event.outcomes:
                    if row := operations.get(outcome.operation_id):
                        row["names"] = [*row["names"], *([outcome.id] if outcome.id else [])]
                        if not outcome.applied and row["status"] != "rejected":
                            row |= {"status": "rejected", "reason": outcome.reason}
            case ev.EvaluationFinished():
                evaluations.append(_evaluation_row(event, entry.at, place))
    return [*map(_finish, operations.values()), *map(_finish, evaluations)]


def library_rows(journal: Path) -> list[Row]:
    """Versions, experiences that are or were, and the operations that its commits decided."""
    name, library = journal.parent.name, Library("")
    rows: list[Row] = []
    problems: dict[str, tuple[str, ...]] = {}  # by operation
    known: dict[str, Experience] = {}
    for entry in read_journal(journal):
        event = entry.event
        library = fold_library(None if isinstance(event, ev.LibraryCreated) else library, event)
        known |= {e.id: e for e in library.experiences}
        if isinstance(event, ev.LibraryCommitted | ev.LibraryCurated):
            place = {"run": event.run, "library": name}
            made = _operation_rows((op for op, _ in event.reviewed), entry.at, place)
            for operation, decision in event.reviewed:
                _decide(made[operation.id], decision, entry.at)
                problems[operation.id] = operation.problems
            rows += made.values()
            if isinstance(event, ev.LibraryCommitted):
                rows.append(_version_row(event, list(made.values()), entry.at, place))
    here = {e.id for e in library.experiences}
    for one in known.values():
        row = _experience_row(one, library, problems)
        rows.append(row | ({} if one.id in here else {"status": "deleted"}))
    return [*map(_finish, rows)]


def _read_few(journal: Path) -> Iterator[Entry]:
    found: list[lines.StoredLine] = []

    def take(line: lines.StoredLine) -> None:
        if not _MANY.search(line.body, 0, 120):
            found.append(line)

    lines.read(journal, chained=True, visit=take)
    return (parse_entry(journal, line) for line in found)


def _operation_rows(
    operations: Iterable[Operation], at: float, place: dict[str, str]
) -> dict[str, Row]:
    found = {}
    for op in operations:
        names = [op.id, *([op.target] if op.target else []), *op.evidence]
        proposed = {"target": op.target, "text": op.text, "names": names, "status": "open"}
        found[op.id] = {
            "kind": "operation",
            "id": op.id,
            "change": op.kind,
            **proposed,
            "proposed": proposed,
            "why": op.rationale,
            "step": operation_step(op.id),
            "at": at,
            "problems": list(op.problems),
            **place,
        }
    return found


def _decide(row: Row, decision: Decision, at: float) -> None:
    row |= {**row["proposed"], "status": _STATUS[decision.action], "at": decision.at or at}
    row |= {"reviewer": decision.reviewer, "reason": decision.reason}
    if decision.text is not None:
        row["text"] = decision.text
    if target := decision.assigned or decision.target:
        row |= {"target": target, "names": [*row["names"], target]}


def _ask_again(operations: dict[str, Row], names: Iterable[str], at: float) -> None:
    for row in filter(None, map(operations.get, names)):
        row |= {**row["proposed"], "reviewer": "", "reason": "", "at": at}


def _evaluation_row(event: ev.EvaluationFinished, at: float, place: dict[str, str]) -> Row:
    mean = "no reward is known" if event.mean is None else f"{event.mean:.3f}"
    return {
        "kind": "evaluation",
        "id": event.data,
        "text": f"{event.data} after step {event.step}: {mean} (n={event.n}, k={event.k})",
        "status": f"library v{event.library_version}",
        "step": event.step,
        "at": at,
        "problems": list(event.problems),
        **place,
    }


def _version_row(
    event: ev.LibraryCommitted, made: list[Row], at: float, place: dict[str, str]
) -> Row:
    done = [row for row in made if row["status"] in ("approved", "edited")]
    shown = [f"{row['change']} {row['target'] or ''}".rstrip() for row in done]
    name = f"{place['library']}@{event.version}"
    return {
        "kind": "version",
        "id": name,
        "names": [name, *(each for row in done for each in row["names"])],
        "text": ", ".join(shown),
        "status": event.content_hash,
        "reviewer": ", ".join(sorted({row["reviewer"] for row in done})),
        "step": event.step,
        "at": at,
        "problems": sorted({one for row in done for one in row["problems"]}),
        **place,
    }


def _experience_row(one: Experience, library: Library, problems: dict[str, tuple[str, ...]]) -> Row:
    last = one.history[-1] if one.history else None
    drawn = {each for made in one.history for each in problems.get(made.operation_id, ())}
    effect = library.effects.get(one.id)
    return {
        "kind": "experience",
        "id": one.id,
        "names": [one.id, *(last.evidence if last else ())],
        "text": one.text,
        "why": last.rationale if last else "",
        "status": "pinned" if one.pinned else "live",
        "library": library.name,
        "run": last.run if last else "",
        "step": last.step if last else 0,
        "at": last.at if last else 0.0,
        "reviewer": last.reviewer if last else "",
        "problems": sorted(drawn),
        **(_worth(effect) if effect else {}),
    }


def _worth(effect: Effect) -> Row:
    return {"effect": effect.difference, "verdict": effect.verdict, "worth": effect.worth}


def _finish(row: Row) -> Row:
    usual: Row = {"names": [row["id"]], "why": "", "reason": "", "reviewer": "", "effect": None}
    usual |= {"verdict": "", "worth": ""}
    row |= {name: value for name, value in usual.items() if name not in row}
    row["names"] = list(dict.fromkeys(row["names"]))
    if row["status"] == "rejected":
        row["kind"] = "rejection"
    said = (row[name] for name in ("id", "kind", "text", "why", "reason", "status", "reviewer"))
    return row | {"words": "\n".join(filter(None, said)).casefold()}
