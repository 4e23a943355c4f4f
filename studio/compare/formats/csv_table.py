"""CSV: columns problem and score; besides seed or try, set, tokens and cost."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from studio.compare.log import Fields, Format
from studio.facts.comparison import Log, LogRow

MOVE = "Give CSV with the columns problem and score; also seed (or try), set, tokens, cost."
_WORDS = {"": None, "true": 1.0, "false": 0.0}


def read(path: Path, metric: str | None) -> list[Log]:
    """One log. `metric` names another column that holds the score."""
    scored = (metric or "score").lower()
    return [Log(label=str(path), rows=list(_rows(path, scored)), metrics={"": (scored,)})]


def _rows(path: Path, scored: str) -> Iterator[LogRow]:
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
                fields = Fields(dict(zip(names, row, strict=False)), f"{path}:{number}", MOVE)
                if len(row) != len(names):
                    raise fields.as_error(f"it has {len(row)} cells and the head has {len(names)}.")
                yield _row(fields, scored, attempt)
    except UnicodeDecodeError as error:
        raise DataError(str(path), "it is no UTF-8 text.", MOVE) from error
    except csv.Error as error:
        cause = f"it is cut, or no CSV ({error})."
        raise DataError(f"{path}:{number + 1}", cause, MOVE) from error


def _row(fields: Fields, scored: str, attempt: str) -> LogRow:
    cells: dict[str, Any] = fields.row
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


FORMATS = (Format(read=read, file="*.csv"),)
