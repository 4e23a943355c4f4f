"""inspect: `.eval` (a zip of JSON) and JSON logs; a row a sample and epoch.

Source: EvalSampleSummary of inspect_ai/log/_log.py, recorders/eval.py (0.3); value_to_float of its
scorers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.data.sessions.inspect_log import GRADES, MOVE, open_archive
from studio.compare.log import Fields, Format, choose_metric, load_json, metric_note, read_json
from studio.facts.comparison import Log, LogRow

_LARGEST = 1 << 30  # bytes of an entry as it is read


def read_json_log(path: Path, metric: str | None) -> list[Log]:
    """Read one log. `metric` is a scorer, or scorer/key where it gives several values."""
    whole = read_json(path, MOVE)
    samples = enumerate(whole.require("samples", list))
    rows = (Fields(row, f"{path}: samples[{at}]", MOVE) for at, row in samples)
    return [_log(path, whole, rows, metric)]


def read(path: Path, metric: str | None) -> list[Log]:
    """The same of a `.eval` file."""
    with open_archive(path) as archive:
        names = archive.namelist()
        heads = [n for n in ("header.json", "_journal/start.json", "start.json") if n in names]
        if not heads:
            raise DataError(str(path), "it holds no header.json and no start.json.", MOVE)
        place = f"{path}: {heads[0]}"
        head = Fields(_read_entry(archive, path, heads[0]), place, MOVE)
        return [_log(path, head, _summaries(archive, path, names), metric)]


def _read_entry(archive: Any, path: Path, name: str) -> Any:
    if (size := archive.getinfo(name).file_size) > _LARGEST:
        cause = f"it is {size / 1e9:.1f} GB when unpacked, more than is read."
        raise DataError(f"{path}: {name}", cause, MOVE)
    return load_json(archive.read(name), f"{path}: {name}", MOVE)


def _summaries(archive: Any, path: Path, names: list[str]) -> Iterator[Fields]:
    """The samples in short: all in one, else of each flush of an unfinished log, else whole."""
    flushed = [name for name in names if "summaries/" in name and name.endswith(".json")]
    flushed.sort(key=lambda name: (len(name), name))
    whole = [name for name in ("summaries.json", "summary.json") if name in names]
    singles = [name for name in names if name.startswith("samples/")]
    for name in whole or flushed or singles:
        found = _read_entry(archive, path, name)
        for at, row in enumerate(found if isinstance(found, list) else [found]):
            yield Fields(row, f"{path}: {name}[{at}]", MOVE)


def _log(path: Path, head: Fields, samples: Iterator[Fields], metric: str | None) -> Log:
    told = head.section("eval")
    task, status = told.text("task"), head.row.get("status", "started")
    rows: list[LogRow] = []
    metrics: tuple[str, ...] = ()
    for fields in samples:
        if fields.optional_section("scores") and not metrics:
            metrics = choose_metric(_scorers(fields), metric, fields)
        score, epoch = _score(fields, *metrics[:1]), fields.text("epoch")
        rows.append(LogRow(fields.text("id"), score, epoch, task, *_usage(fields)))
    if not metrics:
        raise head.as_error("none of its samples has a score.")
    notes = [metric_note(metrics)]
    if status != "success":
        notes.append(f"{path}: the evaluation's status is {status}, so that samples may be missing")
    return Log(label=str(path), rows=rows, notes=tuple(notes), metrics={task: metrics})


def _scorers(fields: Fields) -> list[str]:
    found: list[str] = []
    for name, score in fields.row["scores"].items():
        value = score.get("value") if isinstance(score, dict) else None
        found += [f"{name}/{key}" for key in value] if isinstance(value, dict) else [name]
    return found


def _score(fields: Fields, chosen: str = "") -> float | None:
    """None for a sample that failed before it was scored: that is no wrong answer."""
    scores = fields.optional_section("scores")
    name, key = chosen, ""
    while name and name not in scores:  # a scorer's name may have slashes, too
        name, _, last = name.rpartition("/")
        key = f"{last}/{key}".rstrip("/")
    if not name:
        return None
    value = Fields(scores[name], f"{fields.place}: scores.{name}", MOVE).row.get("value")
    value = value.get(key) if isinstance(value, dict) else value
    if isinstance(value, str):
        value = GRADES.get(value.lower(), value)
    return fields.as_score(value, chosen)


def _usage(fields: Fields) -> tuple[int | None, float | None]:
    models = [
        fields.section("model_usage").section(name)
        for name in fields.optional_section("model_usage")
    ]
    costs = [model.amount("total_cost") for model in models]
    known = [cost for cost in costs if cost is not None]
    tokens = sum(model.total("total_tokens") or 0 for model in models)
    return tokens if models else None, sum(known) if known else None


FORMATS = (Format(read=read, file="*.eval"), Format(read=read_json_log, document="samples"))
