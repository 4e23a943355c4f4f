"""Start: resume what waits, attach to what lives, or begin, after a look at what it would take."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget

from engines.record.run_dir import Workspace
from studio.secrets.sanitize import one_line, sanitize
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import (
    Line,
    Row,
    holds_words,
    labelled_lines,
    line,
    note_rows,
    paragraph,
)
from studio.tui.page import Page, resume_run
from studio.tui.pages.live.view import StageClock, starting_text
from studio.tui.pages.loader import Loader
from studio.tui.pages.runs.page import AGAIN_S, detail_lines, load_runs, state_span
from studio.tui.pages.start import checks
from studio.tui.pages.start.checks import CheckReport, RunFacts, find_run_files
from studio.tui.widgets.line_view import LineView, RowList

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be found out of a choice; with `checks` also what it would take."""

    do: str
    argument: str
    overrides: str
    checks: bool = False


_Named = list[tuple[str, str]]  # presets or run files, and what to say of each


class StartPage(Page):
    """Reads the workspace and run files in threads; starts nothing that was not asked for."""

    scope = "start"

    def __init__(self) -> None:
        super().__init__()
        self.now: Callable[[], float] = time.time
        self.folder = Path()  # where run files are looked for besides the workspace
        self.found: tuple[Choice, ...] | None = None  # None: not read yet
        self.reader: Loader[Workspace, tuple[KnownRun, ...]] = Loader(
            self, load_runs, self._show_read
        )
        self._files = Loader[Path, tuple[_Named, _Named]](self, self._load_files, self._show_read)
        # One for all: Hydra's state is one for all threads.
        self.loader = Loader[Asked, RunFacts | CheckReport](self, self._find_out, self._draw_facts)
        self.overrides: dict[str, str] = {}  # by key of a choice, as typed
        self.refusal = ""
        self._target = ""  # what the cursor is to stand on once it was read
        self._clock = StageClock()
        self.list_pane = RowList(id="start-list", classes="pane")
        self.facts_pane = LineView(id="start-facts", classes="pane")

    def compose(self) -> ComposeResult:
        yield self.list_pane
        yield self.facts_pane

    @property
    def selected_choice(self) -> Choice | None:
        return next((one for one in self.found or () if one.key == self.list_pane.key), None)

    def initial_focus(self) -> Widget | None:
        return self.list_pane

    # -- reading ---------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(1.0, self._tick)
        self.set_interval(AGAIN_S, self.poll)

    def _tick(self) -> None:
        if self.is_open and self.host.session_status.starting:
            self._draw_facts()

    def poll(self) -> None:
        if self.is_open and not self.reader.is_reading:
            self.reader.request(self.host.workspace, again=True)

    def open_at(self, target: str = "") -> None:
        self._target = target
        self.loader.forget()
        self._files.request(self.folder, again=True)
        self.reader.request(self.host.workspace, again=True)

    def _load_files(self, folder: Path) -> tuple[_Named, _Named]:
        """Presets and run files, with what to say of each."""
        from studio.presets import list_presets

        workspace, named = self.host.workspace, []
        for path in find_run_files(workspace, folder):
            is_ours = path.parent == workspace.configs
            named.append((str(path), f"in {workspace.configs if is_ours else 'this folder'}"))
        return list(list_presets()), named

    def _show_read(self) -> None:
        if self.reader.value is not None and self._files.value is not None:
            self.show_runs(self.reader.value)
        self.draw_if_open()

    def show_runs(self, runs: Sequence[KnownRun]) -> None:
        """Offer these runs, and the presets and run files that were found."""
        self.found = list_choices(runs, *(self._files.value or ([], [])))
        self.draw()
        if self._target and self.go_to(self._target):
            self._target = ""

    def go_to_choice(self, key: str) -> bool:
        """Put the cursor on one, such as "new rehearsal"."""
        return self.list_pane.go_to(key)

    def go_to(self, name: str) -> bool:
        return any(one.name == name and self.go_to_choice(one.key) for one in self.found or ())

    # -- what a choice would mean ----------------------------------------------------------

    def _asked(self, choice: Choice, *, checks: bool = False) -> Asked:
        return Asked(choice.do, choice.argument, self.overrides.get(choice.key, ""), checks)

    def _is_about(self, asked: Asked | None, choice: Choice) -> bool:
        return asked is not None and replace(asked, checks=False) == self._asked(choice)

    def _known(self, choice: Choice) -> RunFacts | CheckReport | None:
        return self.loader.value if self._is_about(self.loader.key, choice) else None

    def _find_out(self, asked: Asked) -> RunFacts | CheckReport:
        """Raises StudioError: it could not be started so."""
        from studio.config.source import Source

        words = tuple(shlex.split(asked.overrides))
        source = Source(words, asked.argument)
        if asked.do != "new":
            source = Source(words, resume=asked.argument)
        load = checks.run_checks if asked.checks else checks.load_facts
        return load(self.host.workspace, source)

    async def _load(self, choice: Choice, *, checks: bool = False) -> RunFacts | CheckReport | None:
        """What was found out of it, None where it could not be: the reason is shown."""
        self.loader.request(self._asked(choice, checks=checks))
        await self.loader.wait()
        return self._known(choice) if not self.loader.trouble else None

    def draw(self) -> None:
        found = self.list_pane
        found.border_title = Content("Start or resume")
        # A row a choice, while the facts keep theirs; what a filter leaves moves nothing.
        found.styles.height = max(3, min(self.size.height * 9 // 20, 3 + len(self.found or ())))
        shown = self._filtered_choices()
        if shown:
            rows = choice_rows(shown, found.line_width - 2)
            found.show_rows(rows, same_choice(shown, found.key) or None)
        else:
            found.show_rows(note_rows(self._empty_lines(found.line_width - 2)))
        self._draw_facts()

    def _filtered_choices(self) -> list[Choice]:
        return [
            one
            for one in self.found or ()
            if holds_words(f"{one.do} {one.name} {one.text}", self.filter_text)
        ]

    def _empty_lines(self, width: int) -> list[Line]:
        if self.reader.trouble:
            return paragraph([(sanitize(self.reader.trouble), "failed")], width)
        if self.found is None:
            return [line("reading the workspace ...")]
        return [line(f"nothing holds {sanitize(self.filter_text)!r}: ", ("esc", "key"), " clears")]

    def _draw_facts(self) -> None:
        pane, choice = self.facts_pane, self.selected_choice
        if choice and choice.do == "new" and not self._is_about(self.loader.wanted, choice):
            self.loader.request(self._asked(choice))
        name = sanitize(choice.name) if choice is not None else ""
        pane.border_title = Content("It could not be started" if self.refusal else name)
        pane.say_below("reading or checking it ..." if self.loader.is_reading else "")
        pane.show_lines(self._facts_lines(choice, pane.line_width))

    def _facts_lines(self, choice: Choice | None, width: int) -> list[Line]:
        if (status := self.host.session_status).starting:
            now = line((f"starting the run: {starting_text(status)}", "title"))
            return [self._clock.add_time(now, self.host.clock())]
        if self.refusal:
            return refusal_lines(self.refusal, width)
        if choice is None:
            return []
        known, overrides = self._known(choice), self.overrides.get(choice.key, "")
        out: list[Line] = []
        if self._is_about(self.loader.wanted, choice) and self.loader.trouble:
            out = refusal_lines(self.loader.trouble, width)
            out += [line(("e", "key"), " changes the settings"), ()]
        if isinstance(known, CheckReport):
            out += [*check_lines(known, width), ()]
        if choice.run is not None:
            out += detail_lines(choice.run, width, self.now())
        elif known is not None:
            facts = known.facts if isinstance(known, CheckReport) else known
            out += facts_lines(facts, width, overrides)
        if choice.do != "open" and not isinstance(known, CheckReport):
            out += [(), line(("C", "key"), " checks it and says what it would cost")]
        return out

    def on_row_list_moved(self) -> None:
        if self.is_open:
            self.refusal = ""
            self._draw_facts()

    def show_refusal(self, text: str) -> None:
        """What was asked to start could not: show why, whole, where the person looks."""
        self.refusal = text
        if not self.is_open:
            self.host.open_page("start")
        self.draw()
        self.facts_pane.action_move_to_end(-1)

    def go_back(self) -> bool:
        if self.refusal:
            self.refusal = ""
            self._draw_facts()
            return True
        return super().go_back()

    def action_open(self) -> None:
        choice = self.selected_choice
        if choice is None:
            self.host.tell("nothing is under the cursor", "failed")
            return
        self.refusal = ""
        match choice.do:
            case "attach" | "open":
                shown = self.session
                if shown is None or not shown.living or shown.run.run != choice.argument:
                    self.host.attach(choice.argument)
                self.host.open_page("live" if choice.do == "attach" else "review")
            case "resume":
                self.run_exclusive("open", partial(self._resume, choice))
            case "new":
                self.run_exclusive("open", partial(self._start_new_run, choice))

    async def _resume(self, choice: Choice) -> None:
        given = shlex.split(self.overrides.get(choice.key, ""))
        row = choice.run.listed.row if choice.run is not None else {}
        how, why = str(row.get("ending")), str(row.get("reason"))
        await resume_run(self.host, choice.argument, how, why, given)

    async def _start_new_run(self, choice: Choice) -> None:
        """Start a new run: at once where nothing costs, else after the estimate was seen."""
        known = await self._load(choice)
        if isinstance(known, CheckReport):
            known = known.facts
        if known is None:
            self._tell_not_startable()
            return
        overrides = self.overrides.get(choice.key, "")
        words = shlex.split(overrides)
        again = known.mode in ("resume", "finished", "beside")
        if again or known.costs:
            keys = {"y": "start it"}
            if again:
                old = {"finished": "open it", "resume": "go on with it"}.get(known.mode, "")
                keys = {**({"o": old} if old else {}), "n": "new run"}
            width = min(96, self.app.size.width * 8 // 10 - 4)  # of a box over the page
            lines, title = facts_lines(known, width, overrides), "It is there already."
            if known.costs:
                report = await self._load(choice, checks=True)
                if not isinstance(report, CheckReport):
                    self._tell_not_startable()
                    return
                lines += [(), *check_lines(report, width)]
                title = "It asks a model that may cost money."
            key = await self.host.confirm(title, lines, keys)
            if not key:
                return
            if key == "o" and known.mode == "finished":
                self.host.attach(known.run)
                return
            if key == "n":
                words = [*words, "--restart-step", "0"]
        self.host.start_run([choice.argument, *words, "--review", "wait"])

    def _tell_not_startable(self) -> None:
        self._draw_facts()
        self.host.tell("it cannot be started so; the reason stands below", "failed")

    def action_check(self) -> None:
        if (choice := self.selected_choice) is None or choice.do == "open":
            text = "it is over, and costs nothing: enter opens it"
            self.host.tell(text if choice else "nothing is under the cursor", "failed")
            return
        self.refusal = ""
        self.loader.request(self._asked(choice, checks=True), again=True)
        self._draw_facts()

    def action_set(self) -> None:
        if (choice := self.selected_choice) is None or choice.do in ("attach", "open"):
            self.host.tell("only what is to be started takes settings", "failed")
            return
        self.run_exclusive("set", partial(self._ask_overrides, choice))

    async def _ask_overrides(self, choice: Choice) -> None:
        text = await self.host.ask("key=value ...:", self.overrides.get(choice.key, ""))
        if text is None:
            return
        try:
            words = shlex.split(text)
        except ValueError as error:
            self.host.tell(f"{text}: {error}", "failed")
            return
        if wrong := next((word for word in words if "=" not in word or word.startswith("-")), ""):
            self.host.tell(f"{wrong}: a setting is written key=value", "failed")
            return
        self.overrides[choice.key] = text.strip()
        self.refusal = ""
        self._draw_facts()


MOST_RESUMED = 6
"""Ended runs that are offered; the others are on the page of runs."""
Doing = Literal["resume", "attach", "open", "new"]
_VERBS = {"resume": "Resume", "attach": "Attach", "open": "Open", "new": "New"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to do. `argument` is a run-id, a preset or the path of a run file."""

    do: Doing
    argument: str
    name: str
    text: str
    style: str = ""
    run: KnownRun | None = None

    @property
    def key(self) -> str:
        return f"{self.do} {self.argument}"


def list_choices(
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
    is_over = shown.status == "finished" and not row["open"]
    if shown.status == "damaged" or (is_over and not shown.alive):
        return None  # the page of runs says what is wrong with it
    steps = f", step {back.step}/{back.steps}" if back else ""
    text, style = state_span(run)
    do: Doing = "attach" if shown.alive else "open" if shown.status == "finished" else "resume"
    if row.get("ending") == "budget":
        style = ""
    text = f"{text}; epoch {row['epoch']}/{row['epochs']}{steps}"
    return Choice(do, run.run, run.run, text, style, run=run)


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
