"""Logs of scored rollouts: what every format is read into, and the checked reading they share.

Each error names the file with line or path, what is wrong there, and what to give instead.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import DataError

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
        self.row: dict[str, Any] = row

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

    def optional_section(self, name: str) -> dict[str, Any]:
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
            cause = f'"{name}" is {str(value)[:20]}, no score from 0 to 1.'
            raise DataError(self.place, cause, "Divide it by its largest value, or name --metric.")
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


def choose_metric(found: Sequence[str], metric: str | None, first: Fields) -> tuple[str, ...]:
    """Its metrics, the one that is compared first."""
    if not found:
        raise first.as_error("no metric is in it.")
    if metric is not None and metric not in found:
        move = f"It has: {', '.join(found[:10])}."
        raise DataError(first.place, f'--metric "{metric}" is not in it.', move)
    chosen = metric or found[0]
    return chosen, *(name for name in found if name != chosen)


def metric_note(metrics: Sequence[str]) -> str:
    others = f"; --metric takes {', '.join(metrics[1:6])}" if metrics[1:] else ""
    return f"{metrics[0]} is compared{others}"
