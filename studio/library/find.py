"""What `studio query` and the palette ask of the catalogue, and how a hit reads."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import ge, gt, le, lt
from shlex import quote
from typing import Any

from engines.core.errors import ConfigError
from engines.record.catalogue.query import Compare
from engines.record.run_dir import Workspace
from studio.library.text import date_text
from studio.secrets.sanitize import one_line, sanitize

_SHOWN_TEXT = 300
_VERDICTS = ("helps", "hurts", "cannot tell")
_COMPARED = re.compile(r"\s*([<>]=?)\s*([-+]?(?:\d+\.?\d*|\.\d+))(%?)\s*")
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge}
_AGO = re.compile(r"(\d{1,6})([mhdw])")
_MINUTES = {"m": 1, "h": 60, "d": 60 * 24, "w": 60 * 24 * 7}


def parse_effect(text: str | None) -> tuple[str | None, Compare | None]:
    """A verdict, or what an effect is compared with. Raises ConfigError: it is neither."""
    if text is None or text in _VERDICTS:
        return text, None
    if (found := _COMPARED.fullmatch(text)) is None:
        move = 'Say helps, hurts, "cannot tell", or compare, as in ">0.05" or "<=-2%".'
        raise ConfigError("--effect", f"{text!r} is no effect.", move)
    sign, bound = _COMPARE[found[1]], float(found[2]) / (100 if found[3] else 1)
    return None, lambda value: bool(sign(value, bound))


def parse_time(option: str, text: str | None, *, ends: bool = False) -> float | None:
    """Seconds since the epoch of `2026-03-09`, a time of that day, or `7d` ago.

    A day that `ends` is meant with all of its hours. Raises ConfigError: it is none of these.
    """
    if text is None:
        return None
    if found := _AGO.fullmatch(text):
        return time.time() - 60 * _MINUTES[found[2]] * int(found[1])
    try:
        at = datetime.fromisoformat(text)
        is_day = ends and len(text) <= len("2026-03-09")
        return (at + timedelta(days=is_day)).timestamp()
    except (ValueError, OverflowError, OSError):
        move = "Give a date, as in 2026-03-09, or how long ago: 30m, 12h, 7d, 2w."
        raise ConfigError(option, f"{text!r} is no time.", move) from None


def hit_data(row: Mapping[str, Any], workspace: Workspace) -> dict[str, Any]:
    inner = ("words", "proposed")
    data = {name: value for name, value in row.items() if name not in inner}
    return data | {"next": next_command(row, workspace)}


def hit_lines(row: Mapping[str, Any], workspace: Workspace) -> list[str]:
    """What it is, what it says, and where to look next."""
    why = row["reason"] or row["why"]
    said = one_line(row["text"], _SHOWN_TEXT) + (f" ({one_line(why, 120)})" if why else "")
    return [hit_title(row), f"  {said}", f"  {sanitize(next_command(row, workspace))}"]


def hit_title(row: Mapping[str, Any]) -> str:
    """`op3.1  modify E7, rejected by ann  library mine, run exp, step 3  2026-03-09 16:00`."""
    by = f" by {row['reviewer']}" if row["reviewer"] else ""
    what = {
        "experience": f"experience, {row['status']}",
        "version": f"version{by}",
        "evaluation": f"evaluation of {row['status']}",
    }.get(row["kind"])
    if what is None:
        what = f"{row['change']} {row['target'] or ''}".rstrip() + f", {row['status']}{by}"
    worth = f", {row['worth']}" if row["worth"] else ""
    run = f", run {row['run']}, step {row['step']}" if row["run"] else ""
    place = f"library {row['library']}{run}"
    parts = (row["id"], what + worth, place, date_text(row["at"]))
    return "  ".join(one_line(part, 120) for part in parts)


def next_command(row: Mapping[str, Any], workspace: Workspace) -> str:
    """The command that shows more of it."""
    library, run = quote(row["library"]), quote(row["run"])
    has_run = row["run"] and (workspace.runs_folder / row["run"]).is_dir()
    if row["kind"] == "version":
        version = int(row["id"].rpartition("@")[2])
        return f"studio diff {library}@{version - 1} {library}@{version}"
    if row["kind"] == "experience" or not has_run:
        shown = quote(row["id"] if row["kind"] == "experience" else row["target"] or "")
        return f"studio library history {library} {shown}".removesuffix(" ''")
    if row["kind"] == "evaluation":
        return f"studio runs show {run}"
    if row["status"] in ("open", "deferred"):
        return f"studio review {run}"
    return f"studio runs show {run} --step {row['step']}"


def not_asked_text(errors: Sequence[str]) -> str:
    """What is told where journals could not be read."""
    return "\n".join(f"left out: {sanitize(error)}" for error in errors)
