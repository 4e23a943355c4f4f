"""What `studio query` and the palette ask of the catalogue, and how a hit reads."""

import re
import time
from datetime import datetime, timedelta
from operator import ge, gt, le, lt
from shlex import quote
from typing import Any

from engines.core.codec import JsonMapping
from engines.core.errors import ConfigError
from engines.record.derived.catalogue import Compare
from engines.record.run_dir import Workspace
from studio.render import library_lines, words
from studio.secrets.sanitize import one_line, sanitize

_SHOWN_TEXT, _SHOWN_PART = 300, 120
_COMPARED = re.compile(r"\s*([<>]=?)\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*")
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge}


def parse_effect(text: str | None) -> tuple[str | None, Compare | None]:
    """A verdict, or what an effect is compared with. Raises ConfigError: it is neither."""
    if text in (None, "helps", "hurts", "cannot tell"):
        return text, None
    if (found := _COMPARED.fullmatch(text or "")) is None:
        raise ConfigError(
            "--effect",
            f"{text!r} is no effect.",
            'Say helps, hurts or "cannot tell", or compare, as in ">0.05" or "<=-0.02".',
        )
    sign, bound = _COMPARE[found[1]], float(found[2])
    return None, lambda value: bool(sign(value, bound))


def parse_time(option: str, text: str | None, *, ends: bool = False) -> float | None:
    """Seconds since the epoch of `2026-03-09`, a time of that day, or `7d` ago.

    A day that `ends` is meant with all of its hours. Raises ConfigError: it is none of these.
    """
    if text is None:
        return None
    try:
        if found := re.fullmatch(r"(\d{1,5})([dh])", text):
            return time.time() - int(found[1]) * (3_600 if found[2] == "h" else 86_400)
        is_day = ends and len(text) <= len("2026-03-09")
        return (datetime.fromisoformat(text) + timedelta(days=is_day)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            option,
            f"{text!r} is no time.",
            "Give a date, as in 2026-03-09, or how long ago, as in 7d or 12h.",
        ) from None


def parse_times(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    """Both ends of a time; raises ConfigError where nothing can be between them, too."""
    begin, end = parse_time("--since", since), parse_time("--until", until, ends=True)
    if begin is not None and end is not None and begin >= end:
        raise ConfigError(
            "--since, --until",
            f"nothing can be between {since} and {until}.",
            "Give the earlier time first.",
        )
    return begin, end


def hit_data(row: JsonMapping, workspace: Workspace) -> dict[str, Any]:
    data = {name: value for name, value in row.items() if name not in ("words", "proposed")}
    return data | {"next": next_command(row, workspace)}


def hit_lines(row: JsonMapping, workspace: Workspace) -> list[str]:
    return [hit_title(row), f"  {_said(row)}", f"  {sanitize(next_command(row, workspace))}"]


def _said(row: JsonMapping) -> str:
    text, why = _cut(row["text"], _SHOWN_TEXT), _cut(row["reason"] or row["why"], _SHOWN_PART)
    return " ".join(filter(None, (text, f"({why})" if why else "")))


def _cut(text: str, width: int) -> str:
    """On one line, cut between words where it has any."""
    flat = one_line(text, width)
    return re.sub(r" \S*…$", " …", flat) if len(flat) == width else flat


def _became(row: JsonMapping) -> str:
    what = f"{row.get('change', row['kind'])} {row.get('target') or ''}".rstrip()
    status = f", {row['status']}" if row["status"] else ""
    # Of an experience it is who decided its wording last, not who pinned it.
    by = ", wording by" if row["kind"] == "experience" else " by"
    by = f"{by} {row['reviewer']}" if row["reviewer"] else ""
    worth = f", {row['worth']}" if row["worth"] else ""
    return one_line(what + status + by + worth, _SHOWN_PART)


def hit_title(row: JsonMapping) -> str:
    """`op3.1  modify E7, rejected by ann  library mine, run exp, step 3  2026-03-09 16:00`."""
    step = (
        "step 0"
        if row["kind"] == "evaluation" and not row["step"]
        else words.step_name(row["step"])
    )
    run = f", run {row['run']}, {step}" if row["run"] else ""
    where = one_line(f"library {row['library']}{run}", _SHOWN_PART)
    return "  ".join(
        (one_line(row["id"], _SHOWN_PART), _became(row), where, library_lines.date_text(row["at"]))
    )


def decision_text(row: JsonMapping, also: str = "") -> str:
    """`op3.1 modify E7, rejected by ann (too vague); {also}: Round up.`: what is long is last."""
    reason = f" ({one_line(row['reason'], _SHOWN_PART)})" if row["reason"] else ""
    became = f"{one_line(row['id'], _SHOWN_PART)} {_became(row)}{reason}"
    became = "; ".join(filter(None, (became, also)))
    return ": ".join(filter(None, (became, one_line(row["text"], _SHOWN_TEXT))))


def next_command(row: JsonMapping, workspace: Workspace) -> str:
    library, run, kind = quote(row["library"]), quote(row["run"]), row["kind"]
    if kind == "version":
        version = int(row["id"].rpartition("@")[2])
        return f"studio diff {library}@{version - 1} {library}@{version}"
    # An edit by hand has no run, and runs are removed.
    is_here = row["run"] and (workspace.runs_folder / row["run"]).is_dir()
    if kind == "experience" or not is_here:
        shown = row["id"] if kind == "experience" else row["target"]
        return f"studio library history {library}" + (f" {quote(shown)}" if shown else "")
    if row["status"] in ("open", "deferred"):
        return f"studio review {run}"
    at = f" --step {row['step']}" if kind != "evaluation" and row["step"] else ""
    return f"studio runs show {run}{at}"
