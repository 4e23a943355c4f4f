"""`catalogue.json`: a TinyDB of runs, libraries, live experiences and data sets, to be queried.

Each row of a run or library tells which journal it was made from and is made again when it is
another. So a lost, damaged or old catalogue costs a second, never a fact.
"""

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from tinydb import Query, TinyDB
from tinydb.middlewares import CachingMiddleware
from tinydb.queries import QueryInstance
from tinydb.storages import Storage

from engines.core import events, library_notes
from engines.core.codec import JsonObject, dumps, fields_of
from engines.core.errors import RecordError, StudioError
from engines.core.library import Experience, Library
from engines.core.state import fold, run_state
from engines.core.types import Decision, Names, Operation, operation_step
from engines.record import appender, seal
from engines.record.derived.run_state import FOLDER, derive, journal_mark, read_run
from engines.record.journal import journal_bytes, read_journal
from engines.record.run_dir import RunDir, Workspace

NAME = f"{FOLDER}/rows.json"
Compare = Callable[[float], bool]
Row = JsonObject
KINDS = ("operation", "experience", "rejection", "version", "evaluation")
"""A rejection is an operation that was rejected, or that did not fit."""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class AtomicStorage(Storage):
    """TinyDB storage that replaces its file whole: TinyDB's own writes in place and tears."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, JsonObject] | None:
        return seal.read_sealed(self._path)

    def write(self, data: dict[str, JsonObject]) -> None:
        appender.write_atomic(self._path, seal.add_seal(dumps(data)))


@contextmanager
def open_catalogue(workspace: Workspace) -> Iterator[TinyDB]:
    """The open catalogue, under a lock that keeps two writers apart."""
    appender.make_folder(workspace.path)
    with FileLock(workspace.path / ".catalogue.lock", mode=0o600):
        for stale in workspace.path.glob(".catalogue.json.*.tmp"):
            stale.unlink(missing_ok=True)
        # Read once and written once, however much is changed in between.
        database = TinyDB(workspace.catalogue, storage=CachingMiddleware(AtomicStorage))  # type: ignore[no-untyped-call]
        try:
            yield database
        finally:
            database.close()


def _put_library(database: TinyDB, workspace: Workspace, library: Library) -> None:
    database.table("libraries").upsert(
        {
            "library": library.name,
            "version": library.version,
            "experiences": len(library.experiences),
            "content_hash": library.content_hash,
            "made_from": journal_mark(workspace.library(library.name).journal_path),
        },
        Query().library == library.name,
    )
    table = database.table("experiences")
    table.remove(lambda row: row["library"] == library.name)  # a Query takes ten times as long
    for experience in library.experiences:
        row = {"library": library.name, **fields_of(experience, "id", "text", "born", "revised")}
        row |= {"run": "", "operation": "", "reviewer": "", "evidence": []}
        if experience.history:
            last = experience.history[-1]
            row |= {"run": last.run, "operation": last.operation_id}
            row |= {"reviewer": last.reviewer, "evidence": list(last.evidence)}
        table.insert(row)


def write_dataset_row(workspace: Workspace, row: JsonObject) -> list[str]:
    """Write it, and return the names of other data sets with the same content."""
    with open_catalogue(workspace) as database:
        table = database.table("datasets")
        table.upsert(row, Query().name == row["name"])
        digest = row.get("digest")
        same = [other["name"] for other in table if digest and other.get("digest") == digest]
    return [name for name in same if name != row["name"]]


def refresh_catalogue(workspace: Workspace) -> list[JsonObject]:
    """Make the catalogue say what the journals do; returns a row for every run, oldest first.

    The row of a run whose journal is damaged has an "error". Where the catalogue cannot be written,
    as that of another user, every journal is read.
    """
    try:
        rows = _refresh(workspace)
    except (RecordError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _REFUSED:
            raise
        rows = [_refresh_row(run, {}) for run in workspace.runs()]
    for row in rows:
        row.pop("made_from", None)
    return rows


def _refresh(workspace: Workspace) -> list[JsonObject]:
    with open_catalogue(workspace) as database:
        table = database.table("runs")
        before = {row["run"]: dict(row) for row in table}
        rows = [_refresh_row(run, before.get(run.run, {})) for run in workspace.runs()]
        whole = [row for row in rows if "error" not in row]
        if whole != list(before.values()):  # of removed runs, too
            table.truncate()
            table.insert_multiple(whole)
        _refresh_libraries(database, workspace)
    return rows


def _refresh_row(run: RunDir, before: JsonObject) -> JsonObject:
    """Return the row of a run: the one before, where it was made from the journal as it is."""
    try:
        mark = journal_mark(run.journal)
        return before if before.get("made_from") == mark else run_row(run) | {"made_from": mark}
    except StudioError as error:
        return _damaged_row(run, error)


def _refresh_libraries(database: TinyDB, workspace: Workspace) -> None:
    marks = {row["library"]: row["made_from"] for row in database.table("libraries")}
    folders = {folder.name: folder for folder in workspace.libraries()}
    for gone in marks.keys() - folders.keys():
        for table in ("libraries", "experiences"):
            database.table(table).remove(Query().library == gone)
    for name, folder in folders.items():
        with suppress(StudioError):  # a damaged one has no row until it is repaired
            if marks.get(name) != journal_mark(folder.journal_path):
                _put_library(database, workspace, folder.head())


def run_row(run: RunDir) -> JsonObject:
    """What `runs list` shows of a run."""
    row = read_run(run.journal).row
    name = {"run": run.run, "exp_id": row["exp_id"] or run.run}  # its folder may be a copy
    return {**row, **name, "journal_bytes": journal_bytes(run.journal)}


def _damaged_row(run: RunDir, error: StudioError) -> JsonObject:
    counts = ("epoch", "epochs", "steps", "version", "open", "tokens", "losses")
    return {
        **dict.fromkeys(counts, 0),
        "run": run.run,
        "exp_id": run.run,
        "status": "damaged",
        "library": "",
        "rewards": {},
        "curve": {"of": "reward", "points": []},
        "rehearsal": False,
        "error": str(error),
    }


# -- what can be asked of all runs and libraries at once: `studio query` -------------------------


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
            kinds: Names = KINDS
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


_FEW = re.compile(rb'"kind":"(?!Rollout|GroupReflected|Step|Run(?!Started))')
"""No row tells of all else, which is nearly all of a journal."""
_STATUS = {"approve": "approved", "edit": "edited", "reject": "rejected", "defer": "deferred"}


def run_rows(journal: Path) -> list[Row]:
    """Operations with what became of them, and evaluations."""
    history = run_state.RunHistory()
    for entry in read_journal(journal, only=_FEW):
        fold.fold_history(history, entry.event, entry.at)
    started = history.started
    place = {"run": journal.parent.name, "library": started.library if started else ""}
    rows = [_decided_row(found, place) for found in history.operations.values()]
    rows += [_evaluation_row(found, at, place) for at, found in history.evaluations]
    return [*map(_finish, rows)]


def _decided_row(found: run_state.OperationHistory, place: dict[str, str]) -> Row:
    row = _operation_row(found.operation, found.at, place)
    if found.decision is not None:
        _decide(row, found.decision, found.at)
    if found.effect is not None:
        row |= _worth(found.effect)
    outcome = found.outcome
    if outcome is not None and outcome.id:
        row["names"].append(outcome.id)
    if outcome is not None and not outcome.applied and row["status"] != "rejected":
        row |= {"status": "rejected", "reason": outcome.reason}
    return row


def _evaluation_row(found: events.EvaluationFinished, at: float, place: dict[str, str]) -> Row:
    mean = "no reward is known" if found.mean is None else f"{found.mean:.3f}"
    text = f"{found.data} after step {found.step}: {mean} (n={found.n}, k={found.k})"
    more = {"status": f"v{found.library_version}", "step": found.step, **place}
    return _row("evaluation", found.data, at, text, found.problems, **more)


def library_rows(journal: Path) -> list[Row]:
    """Versions, experiences that are or were, and the operations that its commits decided."""
    history, rows = fold.LibraryHistory(), list[Row]()
    problems: dict[str, Names] = {}  # by operation
    known: dict[str, Experience] = {}
    for entry in read_journal(journal):
        event = entry.event
        fold.fold_library_history(history, event)
        library, commit = history.versions[-1]
        known |= {e.id: e for e in library.experiences}
        reviewed = getattr(event, "reviewed", ())  # of commits, and of what was only rejected
        place = {"run": getattr(event, "run", ""), "library": library.name}
        made = [_operation_row(op, entry.at, place) for op, _ in reviewed]
        for row, (operation, decision) in zip(made, reviewed, strict=True):
            _decide(row, decision, entry.at)
            problems[operation.id] = operation.problems
        rows += made
        if commit is not None and commit is event:
            rows.append(_version_row(commit, made, entry.at, place))
    library = history.versions[-1][0] if history.versions else Library("")
    here = {e.id for e in library.experiences}
    rows += (_experience_row(e, library, problems, e.id in here) for e in known.values())
    return [*map(_finish, rows)]


def _row(kind: str, name: str, at: float, text: str, problems: Iterable[str], **more: Any) -> Row:
    usual = dict.fromkeys(("why", "status", "reviewer", "reason", "verdict", "worth"), "")
    row = {"kind": kind, "id": name, "at": at, "text": text, "problems": [*problems], **usual}
    return {**row, "names": [name], "effect": None, "step": 0, **more}


def _operation_row(op: Operation, at: float, place: dict[str, str]) -> Row:
    names = [op.id, *filter(None, [op.target]), *op.evidence]
    about: Row = {"change": op.kind, "target": op.target, "names": names, "status": "open"}
    about |= {"why": op.rationale, "step": operation_step(op.id), **place}
    return _row("operation", op.id, at, op.text, op.problems, **about)


def _decide(row: Row, decision: Decision, at: float) -> None:
    row |= {"status": _STATUS[decision.action], "at": decision.at or at}
    row |= fields_of(decision, "reviewer", "reason")
    if decision.text is not None:
        row["text"] = decision.text
    if target := decision.assigned or decision.target:
        row["target"] = target
        row["names"].append(target)


def _version_row(
    event: events.LibraryCommitted, made: list[Row], at: float, place: dict[str, str]
) -> Row:
    done = [row for row in made if row["status"] in ("approved", "edited")]
    name, problems = f"{place['library']}@{event.version}", {p for r in done for p in r["problems"]}
    text = ", ".join(f"{row['change']} {row['target'] or ''}".rstrip() for row in done)
    names = [name, *(each for row in done for each in row["names"])]
    by = ", ".join(sorted({row["reviewer"] for row in done}))
    more = {"names": names, "reviewer": by, "step": event.step, **place}
    return _row("version", name, at, text, sorted(problems), **more)


def _experience_row(
    one: Experience, library: Library, problems: dict[str, Names], is_here: bool
) -> Row:
    status = ("pinned" if one.pinned else "live") if is_here else "deleted"
    drawn = {each for made in one.history for each in problems.get(made.operation_id, ())}
    more: Row = {"status": status, "library": library.name, "run": "", "at": 0.0}
    if one.history:
        last = one.history[-1]
        more |= {**fields_of(last, "run", "step", "at", "reviewer"), "why": last.rationale}
        more["names"] = [one.id, *last.evidence]
    if effect := library.notes.effects.get(one.id):
        more |= _worth(effect)
    return _row("experience", one.id, more.pop("at"), one.text, sorted(drawn), **more)


def _worth(effect: library_notes.Effect) -> Row:
    return {"effect": effect.difference, "verdict": effect.verdict, "worth": effect.worth}


def _finish(row: Row) -> Row:
    if row["status"] == "rejected":
        row["kind"] = "rejection"
    said = (row[name] for name in ("id", "kind", "text", "why", "reason", "status", "reviewer"))
    return {**row, "names": list(dict.fromkeys(row["names"])), "words": "\n".join(said).casefold()}
