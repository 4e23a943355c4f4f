"""CSV: columns problem and score; besides seed or try, set, tokens and cost."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from engines.core.errors import DataError
from studio.compare.log import Fields, Log, LogRow

MOVE = "Give CSV with the columns problem and score; also seed (or try), set, tokens, cost."
_ATTEMPTS = ("seed", "try", "epoch", "attempt")


def read(path: Path, metric: str | None) -> list[Log]:
    """One log. `metric` names another column that holds the score."""
    return [Log(label=str(path), rows=list(_rows(path, metric or "score")))]


def _rows(path: Path, scored: str) -> Iterator[LogRow]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            cells = csv.reader(file, strict=True)
            names = [name.strip().lower() for name in next(cells, [])]
            if missing := [name for name in ("problem", scored.lower()) if name not in names]:
                cause = f"it has no column {missing[0]}."
                raise DataError(f"{path}:1", cause if names else "it is empty.", MOVE)
            attempt = next((name for name in _ATTEMPTS if name in names), "")
            for row in cells:
                if row:
                    yield _row(row, names, f"{path}:{cells.line_num}", scored.lower(), attempt)
    except UnicodeDecodeError as error:
        raise DataError(str(path), "it is no UTF-8 text.", MOVE) from error
    except csv.Error as error:
        raise DataError(
            f"{path}:{cells.line_num}", f"it is cut, or no CSV ({error}).", MOVE
        ) from error


def _row(row: list[str], names: list[str], place: str, scored: str, attempt: str) -> LogRow:
    if len(row) != len(names):
        cause = f"it has {len(row)} cells and the head has {len(names)}."
        raise DataError(place, cause, MOVE)
    fields = Fields(dict(zip(names, row, strict=True)), place, MOVE)
    cells = fields.row
    for name in (scored, "tokens", "cost"):
        cells[name] = _number(fields, name)
    tokens = fields.amount("tokens")
    return LogRow(
        problem=fields.text("problem") or _missing(fields),
        score=fields.as_score(cells[scored], scored),
        attempt=cells.get(attempt, ""),
        set=cells.get("set", ""),
        tokens=None if tokens is None else int(tokens),
        cost_usd=fields.amount("cost"),
    )


def _missing(fields: Fields) -> str:
    raise fields.wrong('"problem" is empty.')


def _number(fields: Fields, name: str) -> float | None:
    """What a cell holds; an empty one is not known."""
    cell = fields.row.get(name, "").strip()
    if cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return float(cell) if cell else None
    except ValueError:
        raise fields.wrong(f'"{name}" is {cell[:40]!r}, no number.') from None
