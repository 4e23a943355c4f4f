"""Which format a file or folder has, told by what is in it; and which of its logs is meant."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from studio.compare.log import Fields, Log, load_json, read_json

_KNOWN = (
    "Give a run, an evaluation of the studio, CSV, or a log of inspect, lm-eval, promptfoo, "
    "verifiers or agentskills."
)
_FOLDERS: dict[str, Callable[[Path, str | None], list[Log]]] = {
    "scores.jsonl": own.read_scores,
    "traces.jsonl": verifiers.read,
    "**/grading.json": skills.read,
    "benchmark.json": skills.read,
    "**/samples_*.jsonl": lm_eval.read,
}
_PROMPTFOO = re.compile(rb'"results"\s*:\s*\{\s*"(?:version|timestamp|prompts|results)"')
_LINES = {"doc_id": lm_eval.read, "testIdx": promptfoo.read, "task": verifiers.read}
_WHOLE: dict[str, Callable[[Path, Fields, str | None], list[Log]]] = {
    "samples": inspect_log.read_json_log,
    "rewards": own.read_evaluation,
    "kind": own.read_printed,
}


def open_logs(references: Sequence[str], workspace: Workspace, metric: str | None) -> list[Log]:
    """The logs to compare, the baseline first.

    One file with several logs in it may stand alone; among others `FILE#NAME` takes one of them.
    """
    # Rows hold no circles, and a search among a hundred thousand of them takes as long as reading.
    gc.disable()
    try:
        found = [_open(reference, workspace, metric) for reference in references]
    finally:
        gc.enable()
    if metric is not None and not any(log.metrics for logs in found for log in logs):
        cause = "what is compared has one score alone."
        raise ConflictError(f"--metric {metric}", cause, "Leave it out.")
    if len(found) == 1 and len(found[0]) > 1:
        return found[0]
    for reference, logs in zip(references, found, strict=True):
        if len(logs) > 1:
            move = f"Name one of them as {reference}#NAME: {_labels(logs)}."
            raise ConflictError(reference, f"it holds {len(logs)} logs.", move)
    if len(found) < 2:
        cause = "there is nothing to compare it with."
        raise ConflictError(references[0], cause, "Name a second one.")
    return [replace(log, label=given) for given, (log,) in zip(references, found, strict=True)]


def _labels(logs: Iterable[Log]) -> str:
    return ", ".join([f'"{log.label}"' for log in logs][:8])


def _open(reference: str, workspace: Workspace, metric: str | None) -> list[Log]:
    path, name = Path(reference), ""
    if not path.exists() and "#" in reference:
        before, _, name = reference.partition("#")
        path = Path(before)
    # A run goes before a folder of its name, which `./NAME` is.
    is_run = "/" not in reference and (workspace.runs_folder / reference.split("@")[0]).is_dir()
    if is_run or not path.exists():
        try:
            return [own.read_reference(reference, workspace)]
        except StudioError as error:
            if not is_run and (path.suffix or len(path.parts) > 1):
                raise DataError(reference, "there is no such file or folder.", _KNOWN) from error
            raise
    logs = _read(path, metric)
    if not any(log.rows for log in logs):
        raise DataError(str(path), "no scored try is in it.", _KNOWN)
    if not (kept := [log for log in logs if name in ("", log.label)]):
        move = f"{did_you_mean(name, [log.label for log in logs])}It holds: {_labels(logs)}."
        raise ConflictError(reference, f"no log in it is called {name!r}.", move)
    return kept


def _read(path: Path, metric: str | None) -> list[Log]:
    if not path.is_file() and not path.is_dir():
        move = "Give a file that can be read twice."
        raise DataError(str(path), "it is a pipe or a device.", move)
    if path.is_dir():
        for pattern, reader in _FOLDERS.items():
            if next(path.glob(pattern), None) is not None:
                return reader(path, metric)
        raise DataError(str(path), "no known log is in this folder.", _KNOWN)
    if path.name in ("scores.jsonl", "benchmark.json"):
        return _FOLDERS[path.name](path, metric)
    if path.suffix == ".csv":
        return csv_table.read(path, metric)
    if path.suffix == ".eval":
        return inspect_log.read(path, metric)
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            whole = Fields(load_json(file.readline(), f"{path}:1", _KNOWN), f"{path}:1", _KNOWN)
        for mark, reader in _LINES.items():
            if mark in whole.row:
                return reader(path, metric)
    else:
        with path.open("rb") as file:
            if _PROMPTFOO.search(file.read(1 << 16)):
                return promptfoo.read_json_output(path, metric)
        whole = read_json(path, _KNOWN)
        for mark, read_whole in _WHOLE.items():
            if mark in whole.row:
                return read_whole(path, whole, metric)
    raise DataError(str(path), f"it has no known form: {', '.join(list(whole.row)[:6])}.", _KNOWN)
