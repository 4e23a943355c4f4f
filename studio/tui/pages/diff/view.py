"""Two libraries beside each other, as rows: each change one row; and what can be compared.

Texts are sanitized before anything is compared, so that what is marked is what is drawn.
References and how the difference is told are those of `studio diff`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from engines.core.errors import StudioError
from engines.record.libraries import LibraryFolder
from engines.record.run_dir import Workspace
from studio.facts.library import Difference, ExperienceChange, HeldOutPair, difference
from studio.library.references import find_version
from studio.render.evaluation_lines import evaluation_text
from studio.render.library_lines import counts_text, difference_lines, tokens_text, verdict_text
from studio.render.words import count_text, mean_reward_text
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import (
    Line,
    Row,
    Span,
    change_spans,
    crop_line,
    display_text,
    holds_words,
    line,
    paragraph,
    spread,
    width_of,
)

Mode = Literal["side by side", "words"]

ARROW = " -> "
"""Between two references that are chosen at once."""
TWO_COLUMNS = 96
"""Cells from which two columns are readable; below, they become one."""

STYLES = {"+": "added", "-": "removed", "~": "flag", "=": "", "*": ""}


@dataclass(frozen=True, slots=True)
class Compared:
    """Two references and their difference."""

    base: str
    target: str
    facts: Difference
    entries: tuple[ExperienceChange, ...]  # of either, as they may be drawn and measured

    @property
    def text(self) -> str:
        """The difference as `studio diff` prints it."""
        return "\n".join(difference_lines(self.facts))

    @property
    def file_name(self) -> str:
        """Of an export; a reference may be the path of a file."""
        sides = (self.facts.a.label, self.facts.b.label)
        names = (re.sub(r"[^A-Za-z0-9@._-]+", "-", label)[-80:] for label in sides)
        return f"diff-{'-to-'.join(names)}.txt"


def compare(base: str, target: str, workspace: Workspace) -> Compared:
    """Resolve both references and compare them. Blocks.

    Raises StudioError: a reference means nothing; see `studio.library.references.find_version`.
    """
    older = find_version(base, workspace)
    newer = older if base == target else find_version(target, workspace)
    return compare_references(base, target, difference(older, newer))


def compare_references(base: str, target: str, facts: Difference) -> Compared:
    entries = []
    for change in facts.experiences:
        before = None if change.before is None else display_text(change.before)
        after = None if change.after is None else display_text(change.after)
        name, was = display_text(change.id), display_text(change.was)
        entries.append(replace(change, id=name, before=before, after=after, was=was))
    return Compared(base, target, facts, tuple(entries))


def key_of(change: ExperienceChange) -> str:
    """Unlike its id unique: what is gone and what came may be called the same."""
    return f"-{change.id}" if change.sign == "-" else change.id


def _name_of(change: ExperienceChange) -> str:
    """`E3 was E7` of a lesson that is called otherwise."""
    return " ".join(filter(None, (change.id, change.was and f"was {change.was}", change.pin)))


def head_lines(of: Compared, mode: Mode, width: int) -> list[Line]:
    """What is compared, how much differs, and what was measured of either side."""
    facts = of.facts
    same = "" if not facts.experiences or facts.changes() else "the same library: "
    counted = line(same + counts_text(facts), (f"   {tokens_text(facts)}", "dim"))
    if facts.changes_weights:
        counted = line("two steps of a run that trains weights")
    a, b = display_text(facts.a.label), display_text(facts.b.label)
    title = line((a, "title"), (" -> ", "dim"), (b, "title"))
    hint = line(("b, B choose epochs, versions, runs", "dim"))
    lines = [spread(title, hint, width), spread(counted, line((mode, "dim")), width)]
    if not facts.held_out:
        text = "no evaluation of either side was found: there is no rate to compare"
        lines.append(line((text, "dim")))
    return [crop_line(each, width) for each in [*lines, *map(_held_out_line, facts.held_out)]]


def _held_out_line(pair: HeldOutPair) -> Line:
    """A held-out set on one line: the verdict first, which stays where there is little room."""
    sides = (pair.before, pair.after)
    rates = [evaluation_text(side) if side else "not measured" for side in sides]
    verdict = (f"{verdict_text(pair)}   ", "title")
    return line((f"{display_text(pair.data)}  ", "dim"), verdict, " -> ".join(rates))


def change_rows(
    of: Compared, width: int, mode: Mode, same: bool = True, words: str = ""
) -> list[Row]:
    """The experiences that hold all words of a filter; with `same` also those that are equal."""
    name_width = min(18, max((cells(_name_of(each)) for each in of.entries), default=0))
    rows = []
    for change in of.entries:
        text = f"{_name_of(change)} {change.before or ''} {change.after or ''}"
        if (change.differs or same) and holds_words(text, words):
            if mode == "side by side":
                lines = _column_lines(change, width, name_width)
            else:
                spans: Sequence[Span] = ((change.text, STYLES[change.sign]),)
                spans = change_spans(change.words) if change.sign == "~" else spans
                lines = _entry_lines(change.sign, _name_of(change), spans, width, name_width)
            rows.append(Row(key_of(change), lines[0], tuple(lines[1:])))
    return rows


def pane_title(of: Compared, width: int, mode: Mode) -> str:
    """Both names for the border above the columns, each over its own where there are two."""
    a, b = of.facts.a, of.facts.b
    left = f"{display_text(a.label)}  {count_text(a.experiences, 'experience')}"
    right = f"{display_text(b.label)}  {count_text(b.experiences, 'experience')}"
    if mode == "words":
        return fit(f"{left} -> {right}", max(1, width - 4))
    half = (width - 3) // 2
    return f"{pad(fit(left, half - 2), half + 1)}  {fit(right, half - 4)}"


def entry_text(change: ExperienceChange) -> str:
    """One experience as `y` copies it."""
    if change.sign != "~":
        return f"{change.sign.replace('=', ' ')} {_name_of(change)}  {change.text}"
    return f"~ {_name_of(change)}  " + "".join(text for text, _ in change_spans(change.words))


def _entry_lines(
    sign: str, name: str, spans: Iterable[Span], width: int, name_width: int
) -> list[Line]:
    """`~ E14  text`, further lines under the text."""
    prefix = f"{sign.replace('=', ' ')} {pad(name, name_width)} "
    first, *further = paragraph(spans, max(1, width - cells(prefix)))
    indent = (" " * cells(prefix), "")
    return [((prefix, STYLES[sign]), *first), *((indent, *row) for row in further)]


def _column_lines(change: ExperienceChange, width: int, name_width: int) -> list[Line]:
    half = (width - 3) // 2
    cut: Iterable[Span] = ((change.before or "", STYLES[change.sign]),)
    new: Iterable[Span] = ((change.after or "", STYLES[change.sign]),)
    if change.sign == "~":
        cut, new = change_spans(change.words, keep="cut"), change_spans(change.words, keep="new")
    left, right, before = [], [], change.was or change.id
    if change.sign != "+":
        left = _entry_lines(change.sign, before, cut, half, name_width)
    if change.sign != "-":
        right = _entry_lines(change.sign, _name_of(change), new, half, name_width)
    lines: list[Line] = []
    for at in range(max(len(left), len(right))):
        old = left[at] if at < len(left) else ()
        gap = " " * (half - width_of(old))
        lines.append((*old, (gap, ""), (" │ ", "dim"), *(right[at] if at < len(right) else ())))
    return lines


# -- what can be compared ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be compared; a heading has no reference."""

    reference: str
    about: str


def choice_rows(choices: Sequence[Choice], words: str, width: int) -> list[Row]:
    """What can be compared, as a list; headings stay out of a filtered one."""
    longest = max((cells(display_text(c.reference)) for c in choices), default=0)
    longest = min(longest, max(16, width // 2))
    rows = []
    for choice in choices:
        about = line((display_text(choice.about), "dim" if choice.reference else "title"))
        if not choice.reference and not words.strip():
            rows.append(Row("", about))
        elif choice.reference and holds_words(f"{choice.reference} {choice.about}", words):
            name = pad(display_text(choice.reference), longest + 1)
            rows.append(Row(choice.reference, ((name, ""), *about)))
    return rows


def default_references(workspace: Workspace, run: str) -> tuple[str, str] | None:
    """What is compared where nobody asked: a run's start and the head. Blocks.

    Without a run, the library that was changed last. None where there is nothing yet.

    Raises StudioError: the run's journal or its library cannot be read.
    """
    if not run:
        folders = sorted(
            workspace.libraries(), key=lambda folder: folder.journal_path.stat().st_mtime
        )
        return (f"{folders[-1].name}@0", folders[-1].name) if folders else None
    state = workspace.run(run).state()
    if state.started is None:
        return None
    name, last = state.started.library, f"{run}@last"
    head = workspace.library(name).head()
    # Evaluations belong to steps of a run, so its end is called by its step where it is the head.
    left = find_version(last, workspace).library
    same = (left.version, left.content_hash) == (head.version, head.content_hash)
    return f"{run}@epoch:0", last if same else name


def load_choices(workspace: Workspace, run: str) -> tuple[Choice, ...]:
    """Everything that can be compared, the open run's first; a damaged part says so. Blocks."""
    choices: list[Choice] = []
    if run:
        choices.append(Choice("", f"run {run}"))
        try:
            choices += _run_choices(run, workspace)
        except StudioError as error:
            choices.append(Choice("", str(error)))
    for folder in workspace.libraries():
        choices.append(Choice("", f"library {folder.name}"))
        try:
            choices += _library_choices(folder)
        except StudioError as error:
            choices.append(Choice("", str(error)))
    choices.append(Choice("", "other runs"))
    others = [other.run for other in workspace.runs() if other.run != run]
    choices += [Choice(f"{other}@last", "as it ended") for other in reversed(others)]
    return tuple(choices)


def _run_choices(run: str, workspace: Workspace) -> list[Choice]:
    """Each epoch that is through beside the one before, then single steps."""
    state = workspace.run(run).state()
    if state.started is None:
        return [Choice("", "it has not begun")]
    per_epoch = state.started.steps_per_epoch
    choices = []
    for epoch in range(state.steps_finished // per_epoch if per_epoch else 0, 0, -1):
        pair = f"{run}@epoch:{epoch - 1}{ARROW}{run}@epoch:{epoch}"
        choices.append(Choice(pair, f"epoch {epoch} of this run, both sides at once"))
    choices.append(Choice(f"{run}@last", f"after step {state.steps_finished}"))
    if state.best_step is not None:
        choices.append(Choice(f"{run}@best", f"after step {state.best_step}, on its held-out sets"))
    choices.append(Choice(f"{run}@epoch:0", "before it began"))
    for number, step in sorted(state.steps.items()):
        if step.committed_version is None:
            continue
        left = f"v{step.committed_version}"
        if state.trains_weights:
            left = f"reward {mean_reward_text(step.rewards)}"
        about = f"epoch {step.epoch}, {left}"
        if number % per_epoch == 0:
            choices.append(Choice(f"{run}@epoch:{number // per_epoch}", f"step {number}, {about}"))
        choices.append(Choice(f"{run}@step:{number}", about))
    return choices


def _library_choices(folder: LibraryFolder) -> list[Choice]:
    choices = []
    for library, commit in reversed(folder.history()):
        made = "begun" if commit is None else "by hand"
        if commit is not None and commit.run:
            made = f"step {commit.step} of {commit.run}"
        at = max((decision.at for _, decision in commit.reviewed), default=0.0) if commit else 0.0
        when = datetime.fromtimestamp(at).strftime(", %Y-%m-%d %H:%M") if at else ""
        about = f"{count_text(len(library.experiences), 'experience')}, {made}{when}"
        choices.append(Choice(f"{folder.name}@{library.version}", about))
    return choices
