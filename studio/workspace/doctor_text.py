"""What `studio doctor` found, as JSON values and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.core.codec import fields_of
from engines.record import lines
from studio.render.words import count_text
from studio.secrets.sanitize import one_line
from studio.workspace.doctor import Diagnosis

_LONGEST = 500
_WORDS = ("fix", "mended", "note", "ok")
_READ_ONLY = "the workspace cannot be written"


def doctor_data(diagnosis: Diagnosis, machine: Mapping[str, Any]) -> dict[str, Any]:
    told = ("place", "cause", "move", "damage", "mended")
    return {
        "well": diagnosis.is_healthy,
        "looked_at": diagnosis.looked_at,
        "findings": [fields_of(found, *told) for found in diagnosis.findings],
        "checks": [
            fields_of(found, "grade", "place", "cause", "move") for found in diagnosis.checks
        ],
        "living": list(diagnosis.living),
        "machine": dict(machine),
    }


def doctor_text(diagnosis: Diagnosis, machine: Mapping[str, Any], *, repair: bool) -> str:
    """A line a finding, what hinders most first, each with place, cause and next move."""
    told = [
        (
            "mended" if found.mended else "fix" if found.damage else "note",
            (found.place, found.cause, found.mended or found.move),
        )
        for found in diagnosis.findings
    ]
    told += [(one.grade, (one.place, one.cause, one.move)) for one in diagnosis.checks]
    told.sort(key=lambda line: _WORDS.index(line[0]))
    shown = [_line(word, *texts) for word, texts in told]
    for run, pid in diagnosis.living.items():
        shown.append(f"run {run} is alive{pid}: its process goes on, and no file of it is changed")
    one = {"runs": "run", "libraries": "library", "data sets": "data set"}
    counted = ", ".join(count_text(n, one[of], of) for of, n in diagnosis.looked_at.items())
    if diagnosis.is_read_only:
        shown.append(f"{_READ_ONLY}: nothing is repaired")
    shown.append(f"looked at {counted or 'no workspace: there is none yet'}")
    shown.append(_machine_lines(machine))
    left = [found for found in diagnosis.findings if found.damage and not found.mended]
    mendable = 0 if repair else sum(found.mend is not None for found in left)
    grades = [word for word, _ in told]
    if broken := grades.count("fix") - len(left):
        shown.append(f"{broken} to fix: they stand first.")
    if not left:
        noted = f"nothing is damaged; {count_text(grades.count('note'), 'note')} above"
        shown += [] if broken else [noted if "note" in grades else "all is well"]
    elif diagnosis.is_read_only:
        shown.append(f"{len(left)} damaged, and nothing can be mended here: {_READ_ONLY}.")
    elif not mendable:
        shown.append(f"{len(left)} left that only you can mend.")
    else:
        shown.append(f"{len(left)} damaged; {lines.REPAIR} mends {mendable} of them.")
    return "\n".join(shown)


def _line(word: str, place: str, cause: str, move: str) -> str:
    parts = [f"{one_line(place, _LONGEST)}:", one_line(cause, _LONGEST), one_line(move, _LONGEST)]
    return f"{word:<6} {' '.join(part for part in parts if part)}"


def _machine_lines(machine: Mapping[str, Any]) -> str:
    able = {None: "", True: "cannot", False: "can"}[machine["hidden_from_debuggers"]]
    memory = able and f", other programs {able} read its memory"
    terminal = f"terminal {machine['terminal']}" if machine["terminal"] else "no terminal"
    return (
        f"studio {machine['studio']}, python {machine['python']}, {machine['encoding']}, {terminal}"
        f", {machine['free_bytes'] / 1e9:.1f} GB free{memory}"
    )
