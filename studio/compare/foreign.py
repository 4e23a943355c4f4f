"""Logs of other programs as logs of scored tries: the checked reading, and a section a format.

Each error names the file with line or path, and what is wrong there.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ijson
import orjson

from engines.core.codec import JsonObject
from engines.core.errors import DataError
from engines.core.types import Names
from engines.data.sessions.formats import GRADES, open_archive
from studio.facts.comparison import Log, LogRow
from studio.secrets.sanitize import one_line

MOVE = (
    "Give a run, an evaluation of the studio, CSV (problem, score; also seed, set, tokens, cost), "
    "or a log as inspect, lm-eval (--log_samples), promptfoo, verifiers or agentskills write it."
)
_MOST = 1e15  # tokens or dollars of one try: more is a mistake, and sums would overflow


class Fields:
    """A JSON object of a foreign file, read field by field."""

    __slots__ = ("place", "row")

    def __init__(self, row: object, place: str) -> None:
        self.place = place
        if not isinstance(row, dict):
            raise self.as_error(f"it is {_kind(row)}, no object.")
        self.row: JsonObject = row

    def as_error(self, cause: str) -> DataError:
        return DataError(self.place, cause, MOVE)

    def require(self, name: str, *kinds: type) -> Any:
        """A field that must be there, of one of these types; True is no number."""
        if (value := self.row.get(name)) is None:
            raise self.as_error(f'"{name}" is missing.')
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.as_error(f'"{name}" is {_kind(value)}.')
        return value

    def section(self, name: str) -> "Fields":
        return Fields(self.require(name, dict), f"{self.place}: {name}")

    def optional_section(self, name: str) -> JsonObject:
        return self.require(name, dict) if self.row.get(name) is not None else {}

    def text(self, name: str) -> str:
        """An id: text, or a whole number."""
        return str(self.require(name, str, int))

    def score(self, name: str) -> float | None:
        return self.as_score(self.require(name, float, int, bool), name)

    def as_score(self, value: object, name: str) -> float | None:
        """A score in [0, 1]; None where it is None or not a number, as of tries nobody judged."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        if not isinstance(value, float | int):
            raise self.as_error(f'"{name}" is {_kind(value)}, no score.')
        if not 0 <= value <= 1:
            raise DataError(
                self.place,
                f'"{name}" is {str(value)[:20]}, no score from 0 to 1.',
                "Divide it by its largest value, or name --metric.",
            )
        return float(value)

    def amount(self, name: str) -> float | None:
        """Tokens or dollars; None where none are told."""
        if (value := self.row.get(name)) is None:
            return None
        if isinstance(value, bool) or not isinstance(value, float | int) or not 0 <= value <= _MOST:
            raise self.as_error(f'"{name}" is {_kind(value)}, no amount.')
        return value

    def total(self, *names: str) -> int | None:
        known = [amount for name in names if (amount := self.amount(name)) is not None]
        return int(sum(known)) if known else None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), "empty" if value is None else f"the number {str(value)[:20]}")


def read_json(path: Path) -> Fields:
    return Fields(load_json(path.read_bytes(), str(path)), str(path))


def load_json(data: bytes, place: str) -> Any:
    """Parse JSON; also NaN, which Python writes and JSON does not know."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            where = f"line {error.lineno}, column {error.colno}"
            cause = "it is empty." if not data.strip() else f"it is cut, or no JSON ({where})."
            raise DataError(place, cause, MOVE) from error


def read_lines(path: Path) -> Iterator[Fields]:
    """The objects of a JSONL file, one at a time; DataError where it holds none."""
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                place = f"{path}:{number}"
                yield Fields(load_json(line, place), place)
    if not number:
        raise DataError(str(path), "it is empty.", MOVE)


def choose_metric(found: Sequence[str], metric: str | None, first: Fields) -> Names:
    """Its metrics, the one that is compared first."""
    if not found:
        raise first.as_error("no metric is in it.")
    if metric is not None and metric not in found:
        raise DataError(
            first.place, f'--metric "{metric}" is not in it.', f"It has: {', '.join(found[:10])}."
        )
    chosen = metric or found[0]
    return chosen, *(name for name in found if name != chosen)


def metric_note(metrics: Sequence[str]) -> str:
    others = f"; --metric takes {', '.join(metrics[1:6])}" if metrics[1:] else ""
    return f"{metrics[0]} is compared{others}"


_WORDS = {"": None, "true": 1.0, "false": 0.0}


def read_csv(path: Path, metric: str | None) -> list[Log]:
    """One log. `metric` names another column that holds the score."""
    scored = (metric or "score").lower()
    return [Log(label=str(path), rows=list(_csv_rows(path, scored)), metrics={"": (scored,)})]


def _csv_rows(path: Path, scored: str) -> Iterator[LogRow]:
    number = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            cells = csv.reader(file, strict=True)
            names = [name.strip().lower() for name in next(cells, [])]
            attempt = next((n for n in ("seed", "try", "epoch", "attempt") if n in names), "")
            if twice := next((name for name in names if name and names.count(name) > 1), ""):
                raise DataError(f"{path}:1", f'two columns are called "{twice}".', MOVE)
            for name in ("problem", scored):
                if name not in names:
                    cause = f"it has no column {name}." if names else "it is empty."
                    raise DataError(f"{path}:1", cause, MOVE)
            for row in filter(None, cells):
                number = cells.line_num
                fields = Fields(dict(zip(names, row, strict=False)), f"{path}:{number}")
                if len(row) != len(names):
                    raise fields.as_error(f"it has {len(row)} cells and the head has {len(names)}.")
                yield _csv_row(fields, scored, attempt)
    except UnicodeDecodeError as error:
        raise DataError(str(path), "it is no UTF-8 text.", MOVE) from error
    except csv.Error as error:
        raise DataError(f"{path}:{number + 1}", f"it is cut, or no CSV ({error}).", MOVE) from error


def _csv_row(fields: Fields, scored: str, attempt: str) -> LogRow:
    cells: JsonObject = fields.row
    if not cells["problem"]:
        raise fields.as_error('"problem" is empty.')
    for name in (scored, "tokens", "cost"):  # an empty one is not known
        cell = cells.get(name, "").strip().lower()
        try:
            cells[name] = _WORDS[cell] if cell in _WORDS else float(cell)
        except ValueError:
            raise fields.as_error(f'"{name}" is {cell[:40]!r}, no number.') from None
    score, tried = fields.as_score(cells[scored], scored), cells.get(attempt, "")
    tokens, cost = fields.total("tokens"), fields.amount("cost")
    return LogRow(cells["problem"], score, tried, cells.get("set", ""), tokens, cost)


# lm-eval. Source: save_results_samples of lm_eval/loggers/evaluation_tracker.py, evaluate of
# lm_eval/evaluator.py (0.4.9). Files before 0.4.4 name neither filter nor metrics.

_SAMPLES = re.compile(r"samples_(.+)_(\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
_NO_METRIC = {
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
    *("doc_hash", "prompt_hash", "target_hash", "task", "token_counts"),
}


def read_lm_eval(path: Path, metric: str | None) -> list[Log]:
    """One log a folder that holds samples, which is one a model; a file is one log."""
    if path.is_file():
        return [_read_samples(str(path), [path], metric)]
    folders = sorted({file.parent for file in path.rglob("samples_*.jsonl")})
    return [
        _read_samples(str(folder), sorted(folder.glob("samples_*.jsonl")), metric)
        for folder in folders
    ]


def _read_samples(label: str, files: Sequence[Path], metric: str | None) -> Log:
    newest: dict[str, Path] = {}
    for file in files:  # in the order of their dates
        match = _SAMPLES.fullmatch(file.name)
        newest[match[1] if match else file.stem.removeprefix("samples_")] = file
    rows: list[LogRow] = []
    notes = []
    if len(newest) < len(files):
        notes.append(f"of {len(files)} files the newest of each task are read ({len(newest)})")
    metrics = {}
    for task, file in newest.items():
        read, metrics[task] = _read_task(file, task, metric, notes)
        rows += read
    return Log(label=label, rows=rows, notes=tuple(dict.fromkeys(notes)), metrics=metrics)


def _read_task(
    path: Path, task: str, metric: str | None, notes: list[str]
) -> tuple[list[LogRow], Names]:
    """Its rows and metrics; what was chosen of them is noted."""
    rows: list[LogRow] = []
    metrics: Names = ()
    kept = ""
    seen: set[str] = set()
    skipped = False
    for fields in read_lines(path):
        document, used = fields.text("doc_id"), str(fields.row.get("filter", ""))
        if not rows and not skipped:
            # `--metric exact_match,flexible-extract` names a filter, as the results do.
            wanted, _, kept = (metric or "").partition(",")
            kept = kept or used
            metrics = choose_metric(_lm_eval_metrics(fields), wanted or None, fields)
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


def _lm_eval_metrics(fields: Fields) -> list[str]:
    listed = fields.row.get("metrics")
    names = listed if isinstance(listed, list) else fields.row.keys() - _NO_METRIC
    kinds = (int, float)
    named = sorted(name for name in names if isinstance(name, str))
    return [name for name in named if isinstance(fields.row.get(name), kinds)]


# promptfoo. Source: EvaluateResult of src/types/index.ts (results of versions 2 and 3).

_FAILED = 2  # failureReason of a call or grader that failed: no judgement


def read_promptfoo(path: Path, metric: str | None) -> list[Log]:
    """A log a column. `metric` is a named score, or "success"; else it is the score.

    Read row by row: a document of a hundred thousand takes 400 MB as one value.
    """
    place = f"{path}: results.results"
    try:
        with path.open("rb") as file:
            rows = enumerate(ijson.items(file, "results.results.item", use_float=True))
            logs = _column_logs((Fields(row, f"{place}[{at}]") for at, row in rows), metric)
    except ijson.JSONError as error:
        where = one_line(str(error).partition("\n")[0], 120)
        raise DataError(str(path), f"it is cut, or no JSON ({where}).", MOVE) from error
    if not logs:
        raise DataError(place, "no list of rows is there.", MOVE)
    return logs


def read_promptfoo_lines(path: Path, metric: str | None) -> list[Log]:
    """The same of JSONL output."""
    return _column_logs(read_lines(path), metric)


def _column_logs(results: Iterator[Fields], metric: str | None) -> list[Log]:
    columns: dict[int, tuple[str, list[LogRow]]] = {}
    for fields in results:
        number = fields.require("promptIdx", int)
        if number not in columns:
            columns[number] = (_column_name(fields), [])
        columns[number][1].append(_promptfoo_row(fields, metric))
    names = [name for name, _ in columns.values()]
    return [
        Log(
            label=name if names.count(name) == 1 else f"{name} [{number}]",
            rows=rows,
            metrics={"": (metric or "score",)},
        )
        for number, (name, rows) in sorted(columns.items())
    ]


def _column_name(fields: Fields) -> str:
    provider = fields.section("provider")
    prompt = fields.optional_section("prompt").get("label", "")
    name = provider.row.get("label") or provider.text("id")
    return f"{name}, {str(prompt)[:40]}" if prompt else str(name)


def _promptfoo_row(fields: Fields, metric: str | None) -> LogRow:
    """A problem is a test's variables, since a repeated test has another number."""
    number, told = fields.require("testIdx", int), fields.row.get("vars") or {}
    try:
        named = orjson.dumps(told, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise fields.as_error(f'"vars" cannot name its problem ({error}).') from error
    named = named if told else f"test {number}"
    if metric is None or metric == "success":
        score = fields.score(metric or "score")
    else:
        score = fields.section("namedScores").score(metric)
    used = fields.row.get("tokenUsage")
    tokens = fields.section("tokenUsage").total("total") if used else None
    failed = fields.row.get("failureReason") == _FAILED
    return LogRow(named, None if failed else score, tokens=tokens, cost_usd=fields.amount("cost"))


# agentskills. Source: agentskills.io, "Evaluating skill output quality".

_BASELINES = ("without_skill", "old_skill")


def read_skills(path: Path, metric: str | None) -> list[Log]:
    """A log a configuration, the baseline first. The score is the pass rate of an evaluation."""
    folder = path if path.is_dir() else path.parent
    found: dict[str, list[LogRow]] = {}
    for file in sorted(folder.rglob("grading.json")):
        parts = file.relative_to(folder).parts[:-1]
        if len(parts) < 2:
            raise DataError(str(file), "it does not lie in EVAL/CONFIG.", MOVE)
        name, config, *run = parts
        found.setdefault(config, []).append(_skill_row(file, name, "/".join(run)))
    if not found:
        raise DataError(str(path), "means alone cannot be paired: no grading.json is there.", MOVE)
    order = sorted(found, key=lambda config: (config not in _BASELINES, config))
    return [Log(label=config, rows=found[config]) for config in order]


def _skill_row(file: Path, problem: str, attempt: str) -> LogRow:
    whole = read_json(file)
    score = whole.section("summary").score("pass_rate")
    timing = file.with_name("timing.json")
    if not timing.exists():
        return LogRow(problem, score, attempt)
    timed = read_json(timing)
    return LogRow(problem, score, attempt, tokens=timed.total("total_tokens"))


# verifiers. Source: Trace of verifiers/v1/trace.py (schema 1), as verifiers/v1/cli/output.py
# writes it.


def read_verifiers(path: Path, metric: str | None) -> list[Log]:
    """One log. The score is the sum of weighted rewards; `metric` is one reward or metric."""
    file = path / "traces.jsonl" if path.is_dir() else path
    rows = [_trace_row(fields, metric) for fields in read_lines(file)]
    return [Log(label=str(path), rows=rows, metrics={"": (metric or "rewards",)})]


def _trace_row(fields: Fields, metric: str | None) -> LogRow:
    task = fields.section("task")
    name = next((n for n in ("key", "hash") if task.row.get(n)), "")
    problem = task.text(name) if name else task.section("data").text("idx")
    made = fields.require("calls", list) if fields.row.get("calls") else ()
    calls = [Fields(call, f"{fields.place}: calls") for call in made]
    used = [call.section("usage") for call in calls if call.row.get("usage")]
    counts = [one.total("prompt_tokens", "completion_tokens") or 0 for one in used]
    return LogRow(problem, _trace_score(fields, metric), tokens=sum(counts) if counts else None)


def _trace_score(fields: Fields, metric: str | None) -> float | None:
    """None where scoring did not run: nulls are not written, so that a reward may be missing."""
    rewards = fields.section("rewards")
    if metric is not None and metric not in rewards.row:
        known = fields.optional_section("metrics")
        if metric not in known and not fields.row.get("errors"):
            there = ", ".join([*rewards.row, *known])
            raise fields.as_error(f'--metric "{metric}" is not in it. It has: {there}.')
        return fields.as_score(known.get(metric), metric)
    names = [metric] if metric else list(rewards.row)
    if not names or any(rewards.row[name] is None for name in names):
        return None
    total = 0.0
    for part in map(rewards.section, names):
        weight = 1.0 if metric or "weight" not in part.row else part.require("weight", float, int)
        total += min(1e9, part.require("score", float, int)) * min(1e9, weight)
    return fields.as_score(total, "rewards")


# inspect. Source: EvalSampleSummary of inspect_ai/log/_log.py, recorders/eval.py (0.3);
# value_to_float of its scorers.

_LARGEST = 1 << 30  # bytes of an entry as it is read


def read_inspect_json(path: Path, metric: str | None) -> list[Log]:
    """Read one log. `metric` is a scorer, or scorer/key where it gives several values."""
    whole = read_json(path)
    samples = enumerate(whole.require("samples", list))
    rows = (Fields(row, f"{path}: samples[{at}]") for at, row in samples)
    return [_inspect_log(path, whole, rows, metric)]


def read_inspect(path: Path, metric: str | None) -> list[Log]:
    """The same of a `.eval` file."""
    with open_archive(path) as archive:
        names = archive.namelist()
        heads = [n for n in ("header.json", "_journal/start.json", "start.json") if n in names]
        if not heads:
            raise DataError(str(path), "it holds no header.json and no start.json.", MOVE)
        place = f"{path}: {heads[0]}"
        head = Fields(_read_entry(archive, path, heads[0]), place)
        return [_inspect_log(path, head, _summaries(archive, path, names), metric)]


def _read_entry(archive: Any, path: Path, name: str) -> Any:
    if (size := archive.getinfo(name).file_size) > _LARGEST:
        raise DataError(
            f"{path}: {name}", f"it is {size / 1e9:.1f} GB when unpacked, more than is read.", MOVE
        )
    return load_json(archive.read(name), f"{path}: {name}")


def _summaries(archive: Any, path: Path, names: list[str]) -> Iterator[Fields]:
    """The samples in short: all in one, else of each flush of an unfinished log, else whole."""
    flushed = [name for name in names if "summaries/" in name and name.endswith(".json")]
    flushed.sort(key=lambda name: (len(name), name))
    whole = [name for name in ("summaries.json", "summary.json") if name in names]
    singles = [name for name in names if name.startswith("samples/")]
    for name in whole or flushed or singles:
        found = _read_entry(archive, path, name)
        for at, row in enumerate(found if isinstance(found, list) else [found]):
            yield Fields(row, f"{path}: {name}[{at}]")


def _inspect_log(path: Path, head: Fields, samples: Iterator[Fields], metric: str | None) -> Log:
    told = head.section("eval")
    task, status = told.text("task"), head.row.get("status", "started")
    rows: list[LogRow] = []
    metrics: Names = ()
    for fields in samples:
        if fields.optional_section("scores") and not metrics:
            metrics = choose_metric(_scorers(fields), metric, fields)
        score, epoch = _inspect_score(fields, *metrics[:1]), fields.text("epoch")
        rows.append(LogRow(fields.text("id"), score, epoch, task, *_inspect_usage(fields)))
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


def _inspect_score(fields: Fields, chosen: str = "") -> float | None:
    """None for a sample that failed before it was scored: that is no wrong answer."""
    scores = fields.optional_section("scores")
    name, key = chosen, ""
    while name and name not in scores:  # a scorer's name may have slashes, too
        name, _, last = name.rpartition("/")
        key = f"{last}/{key}".rstrip("/")
    if not name:
        return None
    value = Fields(scores[name], f"{fields.place}: scores.{name}").row.get("value")
    value = value.get(key) if isinstance(value, dict) else value
    if isinstance(value, str):
        value = GRADES.get(value.lower(), value)
    return fields.as_score(value, chosen)


def _inspect_usage(fields: Fields) -> tuple[int | None, float | None]:
    models = [
        fields.section("model_usage").section(name)
        for name in fields.optional_section("model_usage")
    ]
    costs = [model.amount("total_cost") for model in models]
    known = [cost for cost in costs if cost is not None]
    tokens = sum(model.total("total_tokens") or 0 for model in models)
    return tokens if models else None, sum(known) if known else None
