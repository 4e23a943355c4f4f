"""What can be asked of all runs and libraries at once: `studio query`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tinydb import Query
from tinydb.queries import QueryInstance

from engines.core import events as ev
from engines.core.codec import fields_of
from engines.core.errors import StudioError
from engines.core.library import Experience, Library
from engines.core.library_notes import Effect
from engines.core.state.fold import fold_library
from engines.core.types import Decision, Operation, operation_step, weights_operation
from engines.record.derived.store import FOLDER, derive, journal_mark
from engines.record.journal import read_journal
from engines.record.run_dir import Workspace

NAME = f"{FOLDER}/rows.json"
Compare = Callable[[float], bool]


def condition(
    words: Sequence[str] = (),
    kind: str | None = None,
    id: str | None = None,
    problem: str | None = None,
    effect: Compare | None = None,
    since: float | None = None,
    until: float | None = None,
    **equals: str | None,
) -> QueryInstance:
    """The condition of a question; None asks for nothing.

    All words are meant, whatever their case; `until` is before that time, which a row without a
    time is not; `equals` are fields.
    """
    row = Query()
    match kind:
        case None:
            kinds: tuple[str, ...] = KINDS
        case "operation":
            kinds = ("operation", "rejection")
        case _:
            kinds = (kind,)
    fits: QueryInstance = row.kind.one_of(kinds)
    asked = [word.casefold() for word in words]
    fits &= row.words.test(lambda text: all(word in text for word in asked))
    for name, value in equals.items():
        if value is not None:
            fits &= row[name] == value
    if id is not None:
        fits &= row.names.any([id])
    if problem is not None:
        fits &= row.problems.any([problem])
    if effect is not None:
        fits &= row.effect.test(lambda value: value is not None and effect(value))
    if since is not None:
        fits &= (row.at >= since) & (row.at > 0)
    if until is not None:
        fits &= (row.at < until) & (row.at > 0)
    return fits


def find_rows(workspace: Workspace, fits: QueryInstance) -> tuple[list[Row], list[str]]:
    """Return the rows that fit, newest first, and why journals could not be asked."""
    hits: list[Row] = []
    errors: list[str] = []
    runs = {run.run for run in workspace.runs()}
    libraries = (workspace.path / "libraries").glob("*/journal.jsonl")
    for journal in (*(run.journal for run in workspace.runs()), *libraries):
        try:
            rows = read_rows(journal)
        except (StudioError, ValueError, OSError) as error:
            errors.append(str(error))
            continue
        is_run = journal.parents[1] == workspace.runs_folder
        for row in rows:
            # A run that is here tells of its operations itself, and tells more.
            lasting = is_run or row["kind"] in ("experience", "version") or row["run"] not in runs
            if lasting and fits(row):
                hits.append(row)
    return sorted(hits, key=lambda row: (-row["at"], row["id"], row["library"])), sorted(errors)


def read_rows(journal: Path) -> list[Row]:
    """Return all rows of a run or a library as its journal is now."""
    is_run = journal.parents[1].name == "runs"
    make = run_rows if is_run else library_rows
    rows: list[Row] = derive(journal.parent / NAME, journal_mark(journal), lambda: make(journal))
    return rows


Row = dict[str, Any]
KINDS = ("operation", "experience", "rejection", "version", "evaluation")
"""A rejection is an operation that was rejected, or that did not fit."""

_FEW = re.compile(rb'"kind":"(?!Rollout|GroupReflected|Step|Run(?!Started))')
"""No row tells of all else, which is nearly all of a journal."""
_STATUS = {"approve": "approved", "edit": "edited", "reject": "rejected", "defer": "deferred"}


def run_rows(journal: Path) -> list[Row]:
    """Operations with what became of them, and evaluations."""
    rows: dict[str, Row] = {}
    place = {"run": journal.parent.name, "library": ""}
    for at, event in _read_few(journal):
        match event:
            case ev.RunStarted():
                place["library"] = event.library
            case ev.LessonProposed() | ev.OperationProposed() | ev.ReplyMended():
                rows |= {op.id: _operation_row(op, at, place) for op in _proposed(event)}
            case ev.OperationDecided() | ev.OperationsDecided():
                for decision in event.decisions:
                    if row := rows.get(decision.operation_id):
                        _decide(row, decision, at)
            case ev.DecisionUndone(withdrawn=True):
                rows.pop(event.operation_id, None)
            case ev.DecisionUndone(operation_id=name) if row := rows.get(name):
                row |= {**row["proposed"], "at": at}
            case ev.LessonReturned():
                for row in filter(None, map(rows.get, event.asked_again)):
                    row |= {**row["proposed"], "at": at}
            case ev.EffectMeasured():
                for row in filter(None, map(rows.get, event.operations)):
                    row |= _worth(event.effect)
            case ev.LessonCommitted():
                for outcome in event.outcomes:
                    if (row := rows.get(outcome.operation_id)) and outcome.id:
                        row["names"] = [*row["names"], outcome.id]
                    if row and not outcome.applied and row["status"] != "rejected":
                        row |= {"status": "rejected", "reason": outcome.reason}
            case ev.EvaluationFinished():
                mean = "no reward is known" if event.mean is None else f"{event.mean:.3f}"
                text = f"{event.data} after step {event.step}: {mean} (n={event.n}, k={event.k})"
                more = {"status": f"v{event.library_version}", "step": event.step, **place}
                row = _row("evaluation", event.data, at, text, event.problems, **more)
                rows[f"{event.data} {at}"] = row
    return [*map(_finish, rows.values())]


def library_rows(journal: Path) -> list[Row]:
    """Versions, experiences that are or were, and the operations that its commits decided."""
    library, rows = Library(""), list[Row]()
    problems: dict[str, tuple[str, ...]] = {}  # by operation
    known: dict[str, Experience] = {}
    for entry in read_journal(journal):
        event = entry.event
        library = fold_library(None if isinstance(event, ev.LibraryCreated) else library, event)
        known |= {e.id: e for e in library.experiences}
        if not isinstance(event, ev.LibraryCommitted | ev.LibraryCurated):
            continue
        place = {"run": event.run, "library": library.name}
        made = [_operation_row(op, entry.at, place) for op, _ in event.reviewed]
        for row, (operation, decision) in zip(made, event.reviewed, strict=True):
            _decide(row, decision, entry.at)
            problems[operation.id] = operation.problems
        rows += made
        if isinstance(event, ev.LibraryCommitted):
            rows.append(_version_row(event, made, entry.at, place))
    here = {e.id for e in library.experiences}
    rows += (_experience_row(e, library, problems, e.id in here) for e in known.values())
    return [*map(_finish, rows)]


def _read_few(journal: Path) -> Iterator[tuple[float, Any]]:
    return ((entry.at, entry.event) for entry in read_journal(journal, only=_FEW))


def _proposed(event: ev.LessonProposed | ev.OperationProposed | ev.ReplyMended) -> list[Operation]:
    if isinstance(event, ev.OperationProposed):
        return [event.operation]
    if isinstance(event, ev.ReplyMended):
        return [*event.operations]
    update = event.lesson.update
    weights = [] if update is None else [weights_operation(event.step, update)]
    return [*event.lesson.operations, *weights]


def _row(kind: str, name: str, at: float, text: str, problems: Iterable[str], **more: Any) -> Row:
    usual = dict.fromkeys(("why", "status", "reviewer", "reason", "verdict", "worth"), "")
    row = {"kind": kind, "id": name, "at": at, "text": text, "problems": [*problems], **usual}
    return {**row, "names": [name], "effect": None, "step": 0, **more}


def _operation_row(op: Operation, at: float, place: dict[str, str]) -> Row:
    names = [op.id, *([op.target] if op.target else []), *op.evidence]
    proposed = {"text": op.text, "target": op.target, "names": names}
    proposed |= dict.fromkeys(("reviewer", "reason"), "") | {"status": "open"}
    about = {"change": op.kind, "why": op.rationale, "step": operation_step(op.id), **place}
    row = _row("operation", op.id, at, op.text, op.problems, **about)
    return {**row, **proposed, "proposed": proposed}


def _decide(row: Row, decision: Decision, at: float) -> None:
    row |= {**row["proposed"], "status": _STATUS[decision.action], "at": decision.at or at}
    row |= {"reviewer": decision.reviewer, "reason": decision.reason}
    if decision.text is not None:
        row["text"] = decision.text
    if target := decision.assigned or decision.target:
        row |= {"target": target, "names": [*row["names"], target]}


def _version_row(
    event: ev.LibraryCommitted, made: list[Row], at: float, place: dict[str, str]
) -> Row:
    done = [row for row in made if row["status"] in ("approved", "edited")]
    name, problems = f"{place['library']}@{event.version}", {p for r in done for p in r["problems"]}
    text = ", ".join(f"{row['change']} {row['target'] or ''}".rstrip() for row in done)
    names = [name, *(each for row in done for each in row["names"])]
    by = ", ".join(sorted({row["reviewer"] for row in done}))
    more = {"names": names, "reviewer": by, "step": event.step, **place}
    return _row("version", name, at, text, sorted(problems), **more)


def _experience_row(
    one: Experience, library: Library, problems: dict[str, tuple[str, ...]], is_here: bool
) -> Row:
    status = ("pinned" if one.pinned else "live") if is_here else "deleted"
    drawn = {each for made in one.history for each in problems.get(made.operation_id, ())}
    more: Row = {"status": status, "library": library.name, "run": "", "at": 0.0}
    if one.history:
        last = one.history[-1]
        more |= {**fields_of(last, "run", "step", "at", "reviewer"), "why": last.rationale}
        more["names"] = [one.id, *last.evidence]
    if effect := library.effects.get(one.id):
        more |= _worth(effect)
    return _row("experience", one.id, more.pop("at"), one.text, sorted(drawn), **more)


def _worth(effect: Effect) -> Row:
    return {"effect": effect.difference, "verdict": effect.verdict, "worth": effect.worth}


def _finish(row: Row) -> Row:
    if row["status"] == "rejected":
        row["kind"] = "rejection"
    said = (row[name] for name in ("id", "kind", "text", "why", "reason", "status", "reviewer"))
    return {**row, "names": list(dict.fromkeys(row["names"])), "words": "\n".join(said).casefold()}
