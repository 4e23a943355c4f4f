"""lm-eval `--log_samples`: `samples_TASK_DATE.jsonl`, a row a document and filter.

Source: save_results_samples of lm_eval/loggers/evaluation_tracker.py, evaluate of
lm_eval/evaluator.py (0.4.9). Files before 0.4.4 name neither filter nor metrics.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from engines.core.errors import DataError
from studio.compare.log import Fields, Format, choose_metric, metric_note, read_lines
from studio.facts.comparison import Log, LogRow

MOVE = "Give samples_*.jsonl as lm-eval writes them with --log_samples, or their folder."
_NAME = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_NO_METRIC = {
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
    *("doc_hash", "prompt_hash", "target_hash", "task", "token_counts"),
}


def read(path: Path, metric: str | None) -> list[Log]:
    """One log a folder that holds samples, which is one a model; a file is one log."""
    if path.is_file():
        return [_read_files(str(path), [path], metric)]
    folders = sorted({file.parent for file in path.rglob("samples_*.jsonl")})
    return [
        _read_files(str(folder), sorted(folder.glob("samples_*.jsonl")), metric)
        for folder in folders
    ]


def _read_files(label: str, files: Sequence[Path], metric: str | None) -> Log:
    newest: dict[str, Path] = {}
    for file in files:  # in the order of their dates
        match = _NAME.fullmatch(file.name)
        newest[match[1] if match else file.stem.removeprefix("samples_")] = file
    rows: list[LogRow] = []
    notes = []
    if len(newest) < len(files):
        notes.append(f"of {len(files)} files the newest of each task are read ({len(newest)})")
    metrics = {}
    for task, file in newest.items():
        read, metrics[task] = _read_file(file, task, metric, notes)
        rows += read
    return Log(label=label, rows=rows, notes=tuple(dict.fromkeys(notes)), metrics=metrics)


def _read_file(
    path: Path, task: str, metric: str | None, notes: list[str]
) -> tuple[list[LogRow], tuple[str, ...]]:
    """Its rows and metrics; what was chosen of them is noted."""
    rows: list[LogRow] = []
    metrics: tuple[str, ...] = ()
    kept = ""
    seen: set[str] = set()
    skipped = False
    for fields in read_lines(path, MOVE):
        document, used = fields.text("doc_id"), str(fields.row.get("filter", ""))
        if not rows and not skipped:
            # `--metric exact_match,flexible-extract` names a filter, as the results do.
            wanted, _, kept = (metric or "").partition(",")
            kept = kept or used
            metrics = choose_metric(_metrics(fields), wanted or None, fields)
            notes.append(metric_note(metrics))
        if used != kept:
            skipped = True
            continue
        problem = f"{document}:{str(fields.row.get('doc_hash', ''))[:8]}".rstrip(":")
        if problem in seen:
            raise fields.as_error(f'document "{document}" is there twice.')
        seen.add(problem)
        rows.append(LogRow(problem, fields.score(metrics[0]), set=task))
    if not rows:
        raise DataError(str(path), f'no row has the filter "{kept}".', "Name one that is in it.")
    if skipped:
        notes.append(f'the filter "{kept}" is compared, rows of others are left')
    return rows, metrics


def _metrics(fields: Fields) -> list[str]:
    listed = fields.row.get("metrics")
    names = listed if isinstance(listed, list) else fields.row.keys() - _NO_METRIC
    kinds = (int, float)
    named = sorted(name for name in names if isinstance(name, str))
    return [name for name in named if isinstance(fields.row.get(name), kinds)]


FORMATS = (Format(read=read, folder="**/samples_*.jsonl", line="doc_id"),)
