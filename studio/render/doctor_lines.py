"""A diagnosis of `studio doctor` as lines of text."""

from engines.record import lines, repair
from studio.facts.diagnosis import Diagnosis
from studio.render.words import count_text
from studio.secrets.sanitize import one_line

_LONGEST = 500
_SINGULAR = {"runs": "run", "libraries": "library", "data sets": "data set"}
_READ_ONLY = "the workspace cannot be written"


def doctor_text(diagnosis: Diagnosis) -> str:
    """A line a finding, what hinders most first, each with place, cause and next move."""
    shown = [_finding_line(finding) for finding in diagnosis.findings]
    for run, pid in diagnosis.living.items():
        shown.append(f"run {run} is alive{pid}: its process goes on, and no file of it is changed")
    if diagnosis.is_read_only:
        shown.append(f"{_READ_ONLY}: nothing is repaired")
    counts = (count_text(n, _SINGULAR[what], what) for what, n in diagnosis.looked_at.items())
    shown.append(f"looked at {', '.join(counts) or 'no workspace: there is none yet'}")
    return "\n".join([*shown, _machine_line(diagnosis), _verdict_line(diagnosis)])


def _finding_line(finding: repair.Finding) -> str:
    word = "mended" if finding.repaired else finding.grade
    parts = (finding.cause, finding.repaired or finding.move)
    texts = (one_line(part, _LONGEST) for part in parts if part)
    return f"{word:<6} {one_line(finding.place, _LONGEST)}: {' '.join(texts)}"


def _verdict_line(diagnosis: Diagnosis) -> str:
    if diagnosis.well:
        notes = count_text(diagnosis.notes, "note")
        return f"nothing is damaged; {notes} above" if diagnosis.notes else "all is well"
    first = f"{diagnosis.to_fix} to fix: they stand first"
    if diagnosis.is_read_only:
        return f"{first}; nothing can be repaired here: {_READ_ONLY}."
    if diagnosis.repairable:
        return f"{first}; {lines.REPAIR} repairs {diagnosis.repairable} of them."
    return f"{first}."


def _machine_line(diagnosis: Diagnosis) -> str:
    machine = diagnosis.machine
    able = {None: "", True: "cannot", False: "can"}[machine["hidden_from_debuggers"]]
    memory = able and f", other programs {able} read its memory"
    terminal = f"terminal {machine['terminal']}" if machine["terminal"] else "no terminal"
    return (
        f"studio {machine['studio']}, python {machine['python']}, {machine['encoding']}, {terminal}"
        f", {machine['free_bytes'] / 1e9:.1f} GB free{memory}"
    )
