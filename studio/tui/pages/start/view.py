"""What one would do next, as lines: resume, attach, start; and what the chosen one would mean.

Pure: from the runs, presets and run files there are, and what was found out of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from studio.report.decisions import to_decide_text
from studio.secrets.sanitize import one_line, sanitize
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import Line, Row, labelled_lines, line, paragraph
from studio.tui.pages.start.checks import CheckReport, RunFacts

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun

MOST_RESUMED = 6
"""Ended runs that are offered; the others are on the page of runs."""
_VERBS = {"resume": "Resume", "attach": "Attach", "open": "Open", "new": "New"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to do. `argument` is a run-id, a preset or the path of a run file."""

    do: Literal["resume", "attach", "open", "new"]
    argument: str
    name: str
    text: str
    style: str = ""
    run: KnownRun | None = None

    @property
    def key(self) -> str:
        return f"{self.do} {self.argument}"


def choices(
    runs: Sequence[KnownRun], presets: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]]
) -> tuple[Choice, ...]:
    """What waits for a person first, then what lives, what can go on, and what could begin.

    Runs come newest first; presets and paths of run files with what to say of them.
    """
    known = [found for run in runs if (found := _run_choice(run)) is not None]
    waiting = [one for one in known if one.style == "flag"]
    living = [one for one in known if one.style != "flag" and one.do == "attach"]
    ended = [one for one in known if one.style != "flag" and one.do != "attach"]
    new = [Choice("new", path, path.rpartition("/")[2], what) for path, what in files]
    new += [Choice("new", name, name, what) for name, what in presets]
    return (*waiting, *living, *ended[:MOST_RESUMED], *new)


def first_choice(found: Sequence[Choice]) -> str:
    """Where the cursor begins: on what waits or lives, else on what costs nothing to begin."""
    asked = (one.key for one in found if one.style == "flag" or one.do == "attach")
    offline = (one.key for one in found if (one.do, one.argument) == ("new", "rehearsal"))
    return next(asked, next(offline, ""))


def same_choice(found: Sequence[Choice], key: str) -> str:
    """The same choice as before, or what can be done with its run by now; else the first one."""
    known = {one.argument: one.key for one in found}
    name = key.partition(" ")[2]
    if key in (one.key for one in found):
        return key
    return known.get(name, "") or first_choice(found)


def _run_choice(run: KnownRun) -> Choice | None:
    row, shown, back = run.listed.row, run.listed.shown, run.background
    if shown.word == "damaged":
        return None  # the page of runs says what is wrong with it
    steps = f", step {back.step}/{back.steps}" if back else ""
    where = f"epoch {row['epoch']}/{row['epochs']}{steps}"
    n = int(row["open"])
    later = row.get("later", 0)
    wait = to_decide_text(n, later, f"operation{'s' * (n - later != 1)} to decide")
    name = run.run
    if shown.alive and shown.word == "held" and n:
        return Choice("attach", name, name, f"{where}, HELD: {wait}", "flag", run=run)
    if shown.alive:
        return Choice("attach", name, name, f"{where}, {shown.word}", "streaming", run=run)
    if row.get("ending") == "budget":
        text = f"{where}, budget reached: asks for more"
        return Choice("resume", name, name, text, run=run)
    if shown.word == "finished":
        word = "curation" if shown.curation else shown.word
        return Choice("open", name, name, f"{word}, {wait}", "flag", run=run) if n else None
    if n and shown.word in ("held", "interrupted"):
        text = f"{wait}: held, no process (enter takes it up); {where}"
        return Choice("resume", name, name, text, "flag", run=run)
    return Choice("resume", name, name, f"{where}, {shown.word}", run=run)


def choice_rows(found: Sequence[Choice], width: int) -> list[Row]:
    """A row each; new ones stand under a heading."""
    room = min(28, max((cells(one_line(choice.name, 60)) for choice in found), default=0))
    rows: list[Row] = []
    for choice in found:
        if choice.do == "new" and (not rows or not rows[-1].key.startswith("new ")):
            rows.append(Row("", line(("new run from a run file or a preset", "dim"))))
        name = pad(fit(one_line(choice.name, 60), room), room)
        text = fit(one_line(choice.text, 400), max(8, width - room - 12))
        verb = (pad(_VERBS[choice.do], 7), "key")
        rows.append(Row(choice.key, line(verb, " ", (name, "title"), "  ", (text, choice.style))))
    return rows


def facts_lines(facts: RunFacts, width: int, overrides: str = "") -> list[Line]:
    """A run file's own words for what it would do."""
    rows = [("run", _mode_text(facts)), *facts.rows, *([("set", overrides)] if overrides else [])]
    texts = [(label, one_line(text, 400)) for label, text in rows]
    return [row for label, text in texts for row in labelled_lines(label, text, width)]


def check_lines(found: CheckReport, width: int) -> list[Line]:
    """What it would take, then `[ok]` and `[!]`."""
    doing = "" if found.facts.mode in ("new", "beside") else " still to be done"
    out = labelled_lines("likely", found.likely + doing, width)
    out += labelled_lines("at most", found.most, width)
    for check in found.checks:
        mark = ("[ok] ", "won") if check.ok else ("[!]  ", "flag")
        out += paragraph([mark, (one_line(check.text, 600), "")], width, " " * 5)
    for note in found.notes:
        out += labelled_lines("note", sanitize(note), width)
    return out


def refusal_lines(text: str, width: int) -> list[Line]:
    """Everything that was said when something could not be started."""
    return paragraph([(sanitize(text), "failed")], width)


def _mode_text(facts: RunFacts) -> str:
    run = one_line(facts.run, 120)
    return {
        "new": f"{run}, new",
        "resume": f"{run} is there and goes on (enter offers a new one too)",
        "fork": f"{run}, new, beginning with the steps of another",
        "beside": f"{run}, new: the one that is there began with other settings",
        "finished": f"{run} is finished (enter offers a new one; more practice.epochs go on)",
    }[facts.mode]
