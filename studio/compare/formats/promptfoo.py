"""promptfoo JSON or JSONL output: a log for each column, which is a prompt with a provider.

Source: EvaluateResult of promptfoo's src/types/index.ts (results of versions 2 and 3).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import ijson
import orjson

from engines.core.errors import DataError
from studio.compare.log import Fields, Format, read_lines
from studio.facts.comparison import Log, LogRow
from studio.secrets.sanitize import one_line

MOVE = "Give a file as `promptfoo eval --output FILE.json` writes it."
_DEEPEST = 1_000
_ERROR = 2  # failureReason of a call or grader that failed: no judgement


def read_json_output(path: Path, metric: str | None) -> list[Log]:
    """A log a column. `metric` is a named score, or "success"; else it is the score.

    Read row by row: a document of a hundred thousand takes 400 MB as one value.
    """
    place = f"{path}: results.results"
    try:
        with path.open("rb") as file:
            if _may_be_deep(file) and _depth(file) > _DEEPEST:
                cause = f"values lie more than {_DEEPEST:,} deep in each other."
                raise DataError(str(path), cause, MOVE)
            rows = enumerate(ijson.items(file, "results.results.item", use_float=True))
            logs = _logs((Fields(row, f"{place}[{at}]", MOVE) for at, row in rows), metric)
    except ijson.JSONError as error:
        where = one_line(str(error).partition("\n")[0], 120)
        raise DataError(str(path), f"it is cut, or no JSON ({where}).", MOVE) from error
    if not logs:
        raise DataError(place, "no list of rows is there.", MOVE)
    return logs


def _may_be_deep(file: BinaryIO) -> bool:
    """Whether many more brackets open than close somewhere, in texts as well: told quickly."""
    depth, lowest, deepest = 0, 0, 0
    while chunk := file.read(1 << 13):
        depth += chunk.count(b"[") + chunk.count(b"{") - chunk.count(b"]") - chunk.count(b"}")
        lowest = min(lowest, depth)
        deepest = max(deepest, depth - lowest)
    file.seek(0)
    return deepest > _DEEPEST


def _depth(file: BinaryIO) -> int:
    """Of the first value that is too deep, or of all. `items` takes memory by its square."""
    depth = 0
    for kind, _ in ijson.basic_parse(file):
        depth += kind.startswith("start") - kind.startswith("end")
        if depth > _DEEPEST:
            break
    file.seek(0)
    return depth


def read(path: Path, metric: str | None) -> list[Log]:
    """The same of JSONL output."""
    return _logs(read_lines(path, MOVE), metric)


def _logs(results: Iterator[Fields], metric: str | None) -> list[Log]:
    columns: dict[int, tuple[str, list[LogRow]]] = {}
    for fields in results:
        number = fields.require("promptIdx", int)
        if number not in columns:
            columns[number] = (_column_name(fields), [])
        columns[number][1].append(_row(fields, metric))
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


def _row(fields: Fields, metric: str | None) -> LogRow:
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
    failed = fields.row.get("failureReason") == _ERROR
    return LogRow(named, None if failed else score, tokens=tokens, cost_usd=fields.amount("cost"))


FORMATS = (
    Format(read=read, line="testIdx"),
    Format(
        read=read_json_output,
        start=rb'"results"\s*:\s*\{\s*"(?:version|timestamp|prompts|results)"',
    ),
)
