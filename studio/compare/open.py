"""Which format a file or folder has, told by what is in it; and which of its logs is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from engines.core.errors import ConflictError, DataError, StudioError, did_you_mean
from engines.record.run_dir import Workspace
from studio.compare.formats import (
    csv_table,
    inspect_log,
    lm_eval,
    own,
    promptfoo,
    skills,
    verifiers,
)
from studio.compare.log import Fields, Log, load_json

Reader = Callable[[Path, str | None], list[Log]]

_KNOWN = (
    "Give a run, an evaluation of the studio, CSV, or a log of inspect, lm-eval, promptfoo, "
    "verifiers or agentskills."
)


def open_logs(references: Sequence[str], workspace: Workspace, metric: str | None) -> list[Log]:
    """The logs to compare, the baseline first.

    One file with several logs in it may stand alone; among others `FILE#NAME` takes one of them.
    """
    found = [_open(reference, workspace, metric) for reference in references]
    if len(found) == 1 and len(found[0]) > 1:
        return found[0]
    for reference, logs in zip(references, found, strict=True):
        if len(logs) > 1:
            names = ", ".join(log.label for log in logs[:8])
            move = f"Name one of them as {reference}#NAME: {names}."
            raise ConflictError(reference, f"it holds {len(logs)} logs.", move)
    if len(found) < 2:
        raise ConflictError(
            references[0], "there is nothing to compare it with.", "Name a second one."
        )
    return [logs[0] for logs in found]


def _open(reference: str, workspace: Workspace, metric: str | None) -> list[Log]:
    path, name = Path(reference), ""
    if not path.exists() and "#" in reference:
        before, _, name = reference.partition("#")
        path = Path(before)
    if path.exists():
        logs = _reader(path)(path, metric)
        if not any(log.rows for log in logs):
            raise DataError(str(path), "no scored try is in it.", _KNOWN)
        kept = [log for log in logs if name in ("", log.label)]
        if not kept:
            labels = [log.label for log in logs]
            move = f"{did_you_mean(name, labels)}It holds: {', '.join(labels[:8])}."
            raise ConflictError(reference, f"no log in it is called {name!r}.", move)
        return kept
    try:
        return [own.read_reference(reference, workspace)]
    except StudioError as error:
        if any(mark in reference for mark in "/\\") or path.suffix:
            raise DataError(reference, "there is no such file or folder.", _KNOWN) from error
        raise


def _reader(path: Path) -> Reader:
    if path.is_dir():
        return _folder_reader(path)
    if path.suffix in (".csv", ".eval") or path.name == "scores.jsonl":
        return {".csv": csv_table.read, ".eval": inspect_log.read}.get(path.suffix, own.read_scores)
    with path.open("rb") as file:
        head = load_json(
            file.readline() if path.suffix == ".jsonl" else file.read(), str(path), _KNOWN
        )
    keys = Fields(head, str(path), _KNOWN).row.keys()
    marks: tuple[tuple[str, Reader], ...] = (
        ("doc_id", lm_eval.read),
        ("rewards", own.read),
        ("testIdx", promptfoo.read),
        ("samples", inspect_log.read),
        ("run_summary", skills.read),
        ("kind", own.read),
        ("results", promptfoo.read),
    )
    if path.suffix == ".jsonl" and "task" in keys and "doc_id" not in keys:
        return verifiers.read
    for mark, reader in marks:
        if mark in keys:
            return reader
    raise DataError(str(path), f"it has no known form: {', '.join(list(keys)[:6])}.", _KNOWN)


def _folder_reader(path: Path) -> Reader:
    marks: tuple[tuple[str, Reader], ...] = (
        ("scores.jsonl", own.read_scores),
        ("traces.jsonl", verifiers.read),
        ("benchmark.json", skills.read),
        ("**/grading.json", skills.read),
        ("**/samples_*.jsonl", lm_eval.read),
    )
    for mark, reader in marks:
        if next(path.glob(mark), None) is not None:
            return reader
    raise DataError(str(path), "no known log is in this folder.", _KNOWN)
