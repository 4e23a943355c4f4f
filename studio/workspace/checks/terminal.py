"""The terminal, as far as it is told: size, colours and encoding of the screen."""

from __future__ import annotations

from collections.abc import Mapping

from engines.record.repair import Finding

LEAST, WANTED = (60, 16), (80, 24)
"""Columns and rows from which the screen works, and for which it is made."""


def terminal_findings(
    environ: Mapping[str, str],
    missing: tuple[str, str] | None,
    size: tuple[int, int],
    encoding: str,
) -> list[Finding]:
    """`missing`: place and cause where no screen can be drawn at all."""
    if missing is not None:
        move = "`studio headless` and `studio review` do without."
        return [Finding("note", missing[0], f"{missing[1]}.", move)]
    term = environ.get("TERM", "")
    columns, rows = size
    shown = f"{term}, {columns}x{rows}, {_colours(environ)}, {encoding}"
    found = [Finding("ok", "terminal", f"{shown}.")]
    if columns < WANTED[0] or rows < WANTED[1]:
        cause = f"it has {columns}x{rows}, and the screen is made for {WANTED[0]}x{WANTED[1]}."
        worse = columns < LEAST[0] or rows < LEAST[1]
        move = "Make it larger: a list is all that is shown so." if worse else "Make it larger."
        found.append(Finding("note", "terminal", cause, move))
    return found


def _colours(environ: Mapping[str, str]) -> str:
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR") or term.startswith("vt"):
        return "no colours" + (" (NO_COLOR)" if environ.get("NO_COLOR") else "")
    if environ.get("COLORTERM") in ("truecolor", "24bit") or "direct" in term:
        return "truecolor"
    return "256 colours" if "256" in term else "16 colours"
