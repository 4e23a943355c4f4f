"""Diff: any two versions, epochs, steps, runs or files beside each other, each change one row.

Texts are sanitized before anything is compared, so that what is marked is what is drawn.
References and how the difference is told are those of `studio diff`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import zip_longest
from typing import Literal

from textual.app import ComposeResult
from textual.widget import Widget

from engines.core import errors, events
from engines.core.frozen import frozen
from engines.record.libraries import LibraryFolder
from engines.record.run_dir import Workspace
from studio.facts.library import Difference, ExperienceChange, HeldOutPair, difference
from studio.library.references import find_version
from studio.render import evaluation_lines, library_lines
from studio.render.words import count_text, mean_reward_text
from studio.secrets.sanitize import one_line
from studio.session.session import EventReceived, Message, SnapshotReceived
from studio.tui.drawing import cells
from studio.tui.drawing import lines as drawing
from studio.tui.drawing.lines import Line, Row, Span, change_spans, display_text, line, paragraph
from studio.tui.keymap import Key
from studio.tui.pages.lists import Choice, ListPage, Loader, Picker
from studio.tui.widgets.line_view import LineView

Mode = Literal["side by side", "words"]

TWO_COLUMNS = 96
"""Cells from which two columns are readable; below, they become one."""
STYLES = {"+": "added", "-": "removed", "~": "flag", "=": "", "*": ""}
_MOVES_A_HEAD = events.LessonCommitted | events.EvaluationFinished | events.StepFinished


@frozen
class Compared:
    """Two references and their difference."""

    base: str
    target: str
    facts: Difference
    entries: tuple[ExperienceChange, ...]  # of either, as they may be drawn and measured

    @property
    def text(self) -> str:
        """The difference as `studio diff` prints it."""
        return "\n".join(library_lines.difference_lines(self.facts))

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


def default_references(workspace: Workspace, run: str) -> tuple[str, str] | None:
    """What is compared where nobody asked: a run's start and end. Blocks.

    Without a run, the library that was changed last. None where there is nothing yet.
    """
    if run:
        has_begun = workspace.run(run).state().started is not None
        return (f"{run}@epoch:0", f"{run}@last") if has_begun else None
    folders = sorted(workspace.libraries(), key=lambda folder: folder.journal_path.stat().st_mtime)
    return (f"{folders[-1].name}@0", folders[-1].name) if folders else None


def load_choices(workspace: Workspace, run: str) -> list[Choice]:
    """Everything that can be compared, the open run's first; a damaged part says so. Blocks."""
    choices: list[Choice] = []
    if run:
        choices.append(Choice("", f"run {run}"))
        try:
            choices += _run_choices(run, workspace)
        except errors.StudioError as error:
            choices.append(Choice("", str(error)))
    for folder in workspace.libraries():
        choices.append(Choice("", f"library {folder.name}"))
        try:
            choices += _library_choices(folder)
        except errors.StudioError as error:
            choices.append(Choice("", str(error)))
    choices.append(Choice("", "other runs"))
    others = [other.run for other in workspace.runs() if other.run != run]
    choices += [Choice(f"{other}@last", "as it ended") for other in reversed(others)]
    return choices


def _run_choices(run: str, workspace: Workspace) -> list[Choice]:
    """Its end, its start, and each step, under the name of its epoch where it ends one."""
    state = workspace.run(run).state()
    if state.started is None:
        return [Choice("", "it has not begun")]
    choices = [Choice(f"{run}@last", f"after step {state.steps_finished}")]
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
        epoch, steps_beyond = divmod(number, state.started.steps_per_epoch)
        if not steps_beyond:
            choices.append(Choice(f"{run}@epoch:{epoch}", f"step {number}, {about}"))
        choices.append(Choice(f"{run}@step:{number}", about))
    return choices


def _library_choices(folder: LibraryFolder) -> list[Choice]:
    choices = []
    for library, commit in reversed(folder.history()):
        about = f"{count_text(len(library.experiences), 'experience')}, "
        if commit is None:
            about += "begun"
        else:
            about += f"step {commit.step} of {commit.run}" if commit.run else "by hand"
            if at := max((decision.at for _, decision in commit.reviewed), default=0.0):
                about += datetime.fromtimestamp(at).strftime(", %Y-%m-%d %H:%M")
        choices.append(Choice(f"{folder.name}@{library.version}", about))
    return choices


# -- how it is drawn ---------------------------------------------------------------------------


def key_of(change: ExperienceChange) -> str:
    """Unlike its id unique: what is gone and what came may be called the same."""
    return f"-{change.id}" if change.sign == "-" else change.id


def _name_of(change: ExperienceChange) -> str:
    """`E3 was E7` of a lesson that is called otherwise."""
    return " ".join(filter(None, (change.id, change.was and f"was {change.was}", change.pin)))


def head_lines(compared: Compared, mode: Mode, width: int) -> list[Line]:
    """What is compared, how much differs, and what was measured of either side."""
    facts = compared.facts
    same = "" if not facts.experiences or facts.changes() else "the same library: "
    counts, tokens = library_lines.counts_text(facts), library_lines.tokens_text(facts)
    counted = line(same + counts, (f"   {tokens}", "dim"))
    if facts.changes_weights:
        counted = line("two steps of a run that trains weights")
    a, b = display_text(facts.a.label), display_text(facts.b.label)
    title = line((a, "title"), (" -> ", "dim"), (b, "title"))
    hint = line(("b, B choose epochs, versions, runs", "dim"))
    out = [drawing.spread(title, hint, width)]
    out.append(drawing.spread(counted, line((mode, "dim")), width))
    if not facts.held_out:
        text = "no evaluation of either side was found: there is no rate to compare"
        out.append(line((text, "dim")))
    out += map(_held_out_line, facts.held_out)
    return [drawing.crop_line(each, width) for each in out]


def _held_out_line(pair: HeldOutPair) -> Line:
    """A held-out set on one line: the verdict first, which stays where there is little room."""
    sides = (pair.before, pair.after)
    rates = [evaluation_lines.evaluation_text(side) if side else "not measured" for side in sides]
    verdict = (f"{library_lines.verdict_text(pair)}   ", "title")
    return line((f"{display_text(pair.data)}  ", "dim"), verdict, " -> ".join(rates))


def change_rows(
    compared: Compared, width: int, mode: Mode, same: bool = True, words: str = ""
) -> list[Row]:
    """The experiences that hold all words of a filter; with `same` also those that are equal."""
    entries = compared.entries
    name_width = min(18, max((cells.cell_width(_name_of(change)) for change in entries), default=0))
    rows = []
    for change in entries:
        text = f"{_name_of(change)} {change.before or ''} {change.after or ''}"
        if not (change.differs or same) or not drawing.holds_words(text, words):
            continue
        if mode == "side by side":
            lines = _column_lines(change, width, name_width)
        else:
            spans: Sequence[Span] = ((change.text, STYLES[change.sign]),)
            if change.sign == "~":
                spans = change_spans(change.words)
            lines = _entry_lines(change.sign, _name_of(change), spans, width, name_width)
        rows.append(Row(key_of(change), lines[0], tuple(lines[1:])))
    return rows


def _entry_lines(
    sign: str, name: str, spans: Iterable[Span], width: int, name_width: int
) -> list[Line]:
    """`~ E14  text`, further lines under the text."""
    prefix = f"{sign.replace('=', ' ')} {cells.pad(name, name_width)} "
    first, *further = paragraph(spans, max(1, width - cells.cell_width(prefix)))
    indent = (" " * cells.cell_width(prefix), "")
    return [((prefix, STYLES[sign]), *first), *((indent, *row) for row in further)]


def _column_lines(change: ExperienceChange, width: int, name_width: int) -> list[Line]:
    half, sign = (width - 3) // 2, change.sign
    cut: Sequence[Span] = ((change.before or "", STYLES[sign]),)
    new: Sequence[Span] = ((change.after or "", STYLES[sign]),)
    if sign == "~":
        cut, new = change_spans(change.words, keep="cut"), change_spans(change.words, keep="new")
    left: list[Line] = []
    right: list[Line] = []
    if sign != "+":
        left = _entry_lines(sign, change.was or change.id, cut, half, name_width)
    if sign != "-":
        right = _entry_lines(sign, _name_of(change), new, half, name_width)
    out = []
    for old, after in zip_longest(left, right, fillvalue=()):
        gap = " " * (half - drawing.width_of(old))
        out.append((*old, (gap, ""), (" │ ", "dim"), *after))
    return out


def column_titles(compared: Compared, width: int) -> str:
    """Both names for the border above the columns, each over its own."""
    half = (width - 3) // 2
    left, right = (
        f"{display_text(side.label)}  {count_text(side.experiences, 'experience')}"
        for side in (compared.facts.a, compared.facts.b)
    )
    return f"{cells.pad(cells.fit(left, half - 2), half + 1)}  {cells.fit(right, half - 4)}"


class DiffPage(ListPage):
    scope = "diff"

    def __init__(self) -> None:
        super().__init__()
        self.detail_pane = LineView(id="diff-detail")
        self.detail_pane.can_focus = False
        self.shows_equal = True
        self._mode: Mode = "side by side"
        self.picker = Picker(
            self,
            lambda run: load_choices(self.host.workspace, run),
            self.action_choose,
            {"base": "compare with …", "target": "compare …"},
            hint="arrows choose; or type NAME@V, RUN@epoch:N, RUN@step:N or a file",
        )
        self.comparison = Loader[tuple[tuple[str, str] | None, str], Compared | None](
            self, self._compare
        )
        self._asked: tuple[str, str] | None = None  # None: a run's start and end
        self._is_due = False
        self._run: str | None = None

    def compose(self) -> ComposeResult:
        yield self.detail_pane
        yield self.list_pane
        yield self.picker
        yield self.picker.list

    def initial_focus(self) -> Widget:
        return self.picker if self.picker.side else self.list_pane

    def panes(self) -> list[Widget]:
        return [self.initial_focus()]

    def footer_keys(self) -> Sequence[Key]:
        return self.picker.keys

    def usable_keys(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Where nothing is compared, it is to be chosen."""
        if self.compared is not None:
            return keys
        return [key for key in keys if key.id.endswith(("base", "target"))]

    # -- what is compared ------------------------------------------------------------------

    @property
    def run(self) -> str:
        return self.session.run.run if self.session is not None else ""

    @property
    def compared(self) -> Compared | None:
        return self.comparison.value

    @property
    def entries(self) -> tuple[ExperienceChange, ...]:
        return self.compared.entries if self.compared is not None else ()

    @property
    def mode(self) -> Mode:
        """How changes are drawn: as was chosen, where there is room for it."""
        return self._mode if self.list_width >= TWO_COLUMNS else "words"

    def open_at(self, target: str = "") -> None:
        """Target is "REF_A REF_B", or one reference that is compared with the base."""
        parts = target.split()
        if len(parts) == 2:
            self._asked = (parts[0], parts[1])
        elif len(parts) == 1 and not self.go_to(parts[0]) and set("@/") & set(parts[0]):
            # Anything else is the cursor of another page, which knows nothing of this one.
            self._asked = (self.compared.base if self.compared else parts[0], parts[0])
        self._is_due = True

    def handle_message(self, message: Message) -> None:
        event = message.event if isinstance(message, EventReceived) else None
        if isinstance(message, SnapshotReceived) or isinstance(event, _MOVES_A_HEAD):
            self._is_due = True

    def _compare(self, key: tuple[tuple[str, str] | None, str]) -> Compared | None:
        asked, run = key
        pair = asked or default_references(self.host.workspace, run)
        return compare(*pair, self.host.workspace) if pair else None

    def draw(self) -> None:
        if self.run != self._run:
            if self._run is not None:
                self._asked = None
            self._run, self._is_due = self.run, True
        if self._is_due:
            self._is_due = False
            self.comparison.request((self._asked, self.run), again=True)
        self._draw_head()
        if self.picker.side:
            self.picker.draw()
        else:
            self._draw_changes()

    def _draw_head(self) -> None:
        pane, trouble = self.detail_pane, one_line(self.comparison.trouble, 800)
        lines = paragraph([(trouble, "failed")], pane.line_width)[:2] if trouble else []
        if self.compared is not None:
            lines += head_lines(self.compared, self.mode, pane.line_width)
        pane.show_lines(lines[: pane.size.height])

    def _draw_changes(self) -> None:
        compared, width = self.compared, self.list_width
        nothing = "nothing has been learned in this workspace yet: 0 starts a run"
        if self.session is not None:
            nothing = "the run has not begun: there is no version of its library yet"
        title, notes = "Changes", []
        rows: list[Row] = []
        if compared is not None:
            rows = change_rows(compared, width, self.mode, self.shows_equal, self.filter_text)
            equal = sum(not change.differs for change in compared.entries)
            nothing = f"nothing differs here, {equal} are equal (= shows them)"
            if compared.facts.changes_weights:
                nothing = "\n".join(library_lines.weights_lines(compared.facts))
            if equal and not self.shows_equal:
                notes.append(f"{equal} equal hidden (=)")
            if self.mode == "side by side":
                title = column_titles(compared, width)
        first = next(iter(self._changes), None) if not self.list_pane.key else None
        self.show_list(rows, self.comparison, title, nothing=line(nothing), notes=notes, key=first)

    @property
    def _changes(self) -> list[str]:
        """The keys of what differs, in order."""
        return [key_of(change) for change in self.entries if change.differs]

    # -- keys ------------------------------------------------------------------------------

    def action_step_change(self, by: int) -> None:
        if self.picker.side:
            return
        keys, changes = self.list_pane.keys, self._changes
        at = keys.index(self.list_pane.key) if self.list_pane.key in keys else 0
        others = keys[at + 1 :] if by > 0 else keys[:at][::-1]
        if not self.list_pane.go_to(next((key for key in others if key in changes), "")):
            self.host.tell("there is no further change")

    def action_words(self) -> None:
        self._mode = "words" if self.mode == "side by side" else "side by side"
        self.host.draw_now()
        narrow = "" if self.mode == self._mode else ": two columns have no room here"
        self.host.tell(f"changes: {self.mode}{narrow}")

    def action_same(self) -> None:
        self.shows_equal = not self.shows_equal
        self.host.draw_now()
        self.host.tell("what is equal is shown" if self.shows_equal else "what is equal is hidden")

    def action_base(self) -> None:
        self.picker.open("base", self.run, self.compared.base if self.compared else "")

    def action_target(self) -> None:
        self.picker.open("target", self.run, self.compared.target if self.compared else "")

    def action_choose(self) -> None:
        side, reference = self.picker.side, self.picker.name_chosen
        if not side:
            self.host.tell("b chooses what to compare with, B what is compared")
        elif reference:
            base = target = reference
            if self.compared is not None and side == "base":
                target = self.compared.target
            elif self.compared is not None:
                base = self.compared.base
            self._asked, self._is_due = (base, target), True
            self.picker.close()

    def action_export(self) -> None:
        compared = self.compared
        if compared is None:
            self.host.tell("nothing is compared, so there is nothing to write down", "failed")
        elif not self.picker.side:
            read = partial(f"{compared.text}\n".encode, "utf-8", "replace")
            self.export_file(compared.file_name, read, "the difference is")

    def go_back(self) -> bool:
        if self.picker.side:
            self.picker.close()
            return True
        return super().go_back()

    def go_to(self, name: str) -> bool:
        keys = [key_of(change) for change in self.entries if change.id == name]
        if keys:
            self.shows_equal = True
            self.apply_filter("")
        return bool(keys) and self.list_pane.go_to(keys[-1])

    def text_to_copy(self, whole: bool) -> str:
        if self.picker.side:
            return super().text_to_copy(whole)
        if whole:
            return self.compared.text if self.compared is not None else ""
        key = self.list_pane.key
        change = next((change for change in self.entries if key_of(change) == key), None)
        if change is None:
            return ""
        text = change.text
        if change.sign == "~":
            text = "".join(words for words, _ in change_spans(change.words))
        return f"{change.sign.replace('=', ' ')} {_name_of(change)}  {text}"
