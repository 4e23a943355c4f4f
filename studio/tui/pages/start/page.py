"""Start: resume what waits, attach to what lives, or begin, after a look at what it would take."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget

from engines.core.errors import StudioError
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.lines import Line, Row, line, paragraph, plain_text
from studio.tui.keymap import bindings
from studio.tui.page import Page
from studio.tui.pages.start import checks as start_checks
from studio.tui.pages.start.checks import CheckReport, RunFacts
from studio.tui.pages.start.view import (
    Choice,
    check_lines,
    choice_rows,
    choices,
    facts_lines,
    first_choice,
    refusal_lines,
    run_lines,
)
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from studio.workspace.listing import KnownRun

_T = TypeVar("_T")
_Asked = tuple[str, str]  # what is chosen and the overrides it has


class StartPage(Page):
    """Reads the workspace and run files in threads; starts nothing that was not asked for."""

    scope = "start"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("start")]
    SCOPED_CSS = False  # the size classes stand on the screen
    DEFAULT_CSS = """
    StartPage #start-list { height: 1fr; }
    StartPage #start-facts { height: 55%; }
    .-short StartPage #start-facts, .-flat StartPage #start-facts { height: 60%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.now: Callable[[], float] = time.time
        self.folder = Path()  # where run files are looked for besides the workspace
        self.found: tuple[Choice, ...] | None = None  # None: not read yet
        self.runs: tuple[KnownRun, ...] = ()
        self.trouble = ""
        self.refusal = ""
        self.overrides: dict[str, str] = {}  # by key of a choice, as typed
        self.facts: dict[_Asked, RunFacts | str] = {}  # a text says why there are none
        self.checked: dict[_Asked, CheckReport | str] = {}
        self.busy = ""  # what is being found out
        self._presets: list[tuple[str, str]] = []
        self._files: list[tuple[str, str]] = []
        self._one_at_a_time = asyncio.Lock()  # of run files: Hydra's state is one for all threads

    def compose(self) -> ComposeResult:
        yield RowList(id="start-list", classes="pane")
        yield LineView(id="start-facts", classes="pane")

    @property
    def list_pane(self) -> RowList:
        return self.query_one("#start-list", RowList)

    @property
    def selected_choice(self) -> Choice | None:
        return next((one for one in self.found or () if one.key == self.list_pane.key), None)

    def initial_focus(self) -> Widget | None:
        return self.list_pane

    # -- reading ---------------------------------------------------------------------------

    def open_at(self, target: str = "") -> None:
        self.facts.clear()
        self.checked.clear()
        self._run_in_group("start", self._read)

    async def _read(self) -> None:
        def read_workspace() -> tuple[
            tuple[KnownRun, ...], list[tuple[str, str]], list[tuple[str, str]]
        ]:
            from studio.presets import list_presets
            from studio.workspace.listing import known_runs

            workspace = self.host.workspace
            runs = known_runs(workspace, {run.run: run for run in self.runs})
            files = start_checks.find_run_files(workspace, self.folder)
            configs = workspace.configs
            named = [
                (str(path), f"in {configs if path.parent == configs else 'this folder'}")
                for path in files
            ]
            return runs, list(list_presets()), named

        try:
            runs, self._presets, self._files = await asyncio.to_thread(read_workspace)
            self.trouble = ""
        except (StudioError, OSError) as error:
            self.trouble, runs = str(error), self.runs
        if not self.children:
            return  # the screen was left meanwhile
        if not self.trouble:
            self.show_runs(runs)
        if self.is_open:
            self.host.draw_now()
            self._load_selected_facts()

    def show_runs(self, runs: Sequence[KnownRun]) -> None:
        """Offer these runs, and the presets and run files that were found."""
        self.runs = tuple(runs)
        self.found = choices(self.runs, self._presets, self._files)
        self.draw()

    def go_to_choice(self, key: str) -> bool:
        """Put the cursor on one, such as "new rehearsal"."""
        return self.list_pane.go_to(key)

    def go_to(self, name: str) -> bool:
        return any(one.name == name and self.go_to_choice(one.key) for one in self.found or ())

    def _load_selected_facts(self) -> None:
        """Find out what the chosen run file says, unless it is known."""
        choice = self.selected_choice
        if choice is not None and choice.do == "new" and self._choice_key(choice) not in self.facts:
            self._run_in_group("facts", self._load_facts, choice)

    def _choice_key(self, choice: Choice) -> _Asked:
        return choice.key, self.overrides.get(choice.key, "")

    async def _load_facts(self, choice: Choice) -> RunFacts | None:
        asked = self._choice_key(choice)
        if asked not in self.facts:
            self.facts[asked] = await self._run_in_thread(
                "reading it ...", start_checks.load_facts, choice
            )
        known = self.facts[asked]
        return known if isinstance(known, RunFacts) else None

    async def _load_checks(self, choice: Choice) -> CheckReport | None:
        asked = self._choice_key(choice)
        if asked not in self.checked:
            found = await self._run_in_thread("checking ...", start_checks.run_checks, choice)
            self.checked[asked] = found
        known = self.checked[asked]
        return known if isinstance(known, CheckReport) else None

    async def _run_in_thread(self, doing: str, what: Callable[..., _T], choice: Choice) -> _T | str:
        """What a thread finds out, or why it could not."""
        async with self._one_at_a_time:
            self.busy = doing
            self._draw_facts()
            try:
                overrides = tuple(shlex.split(self.overrides.get(choice.key, "")))
                given = {"runfile" if choice.do == "new" else "resume": choice.argument}
                return await asyncio.to_thread(what, self.host.workspace, overrides, **given)
            except (StudioError, OSError) as error:
                return str(error)
            finally:
                self.busy = ""
                self.call_later(self._draw_facts)

    def _run_in_group(
        self, group: str, work: Callable[..., Awaitable[object]], *choice: Choice
    ) -> None:
        """Do it in place of what goes on in its group, also where that has not begun yet."""
        self.run_worker(cast("Any", partial(work, *choice)), group=group, exclusive=True)

    # -- drawing ---------------------------------------------------------------------------

    def draw(self) -> None:
        found = self.list_pane
        found.border_title = Content("Start or resume")
        shown = self._filtered_choices()
        if shown:
            found.show_rows(
                choice_rows(shown, found.line_width - 2), found.key or first_choice(shown) or None
            )
        else:
            found.show_rows([Row("", told) for told in self._empty_lines(found.line_width - 2)])
        self._draw_facts()

    def _filtered_choices(self) -> list[Choice]:
        words = self.filter_text.lower().split()
        return [
            one
            for one in self.found or ()
            if all(word in f"{one.do} {one.name} {one.text}".lower() for word in words)
        ]

    def _empty_lines(self, width: int) -> list[Line]:
        if self.trouble:
            return paragraph([(sanitize(self.trouble), "failed")], width)
        if self.found is None:
            return [line("reading the workspace ...")]
        return [line(f"nothing holds {sanitize(self.filter_text)!r}: ", ("esc", "key"), " clears")]

    def _draw_facts(self) -> None:
        if not self.children:
            return
        view = self.query_one("#start-facts", LineView)
        choice = self.selected_choice
        name = sanitize(choice.name) if choice is not None else ""
        view.border_title = Content("It could not be started" if self.refusal else name)
        view.border_subtitle = Content(self.busy)
        view.show_lines(self._facts_lines(choice, view.line_width))

    def _facts_lines(self, choice: Choice | None, width: int) -> list[Line]:
        if self.refusal:
            return refusal_lines(self.refusal, width)
        if choice is None:
            return []
        known, checks = (
            self.facts.get(self._choice_key(choice)),
            self.checked.get(self._choice_key(choice)),
        )
        out: list[Line] = []
        if choice.run is not None:
            out = run_lines(choice.run, width, self.now())
        elif isinstance(known, RunFacts):
            out = facts_lines(known, width, self.overrides.get(choice.key, ""))
        elif known is not None:
            out = [*refusal_lines(known, width), line(("e", "key"), " changes the settings")]
        elif self.busy:
            out = [line((self.busy, "dim"))]
        if isinstance(checks, CheckReport):
            out = [*check_lines(checks, width), (), *out]
        elif checks is not None and checks != known:
            out = [*refusal_lines(checks, width), (), *out]
        elif checks is None and out and (choice.run is not None or isinstance(known, RunFacts)):
            out += [(), line(("c", "key"), " checks it and says what it would cost")]
        return out

    def on_row_list_moved(self) -> None:
        if self.is_open:
            self.refusal = ""
            self._draw_facts()
            self._load_selected_facts()

    def show_refusal(self, text: str) -> None:
        """What was asked to start could not: show why, whole, where the person looks."""
        self.refusal = text
        if not self.is_open:
            self.host.open_page("start")
        self.draw()
        self.query_one("#start-facts", LineView).action_top()

    def go_back(self) -> bool:
        if self.refusal:
            self.refusal = ""
            self._draw_facts()
            return True
        return super().go_back()

    # -- keys ------------------------------------------------------------------------------

    def action_open(self) -> None:
        choice = self.selected_choice
        if choice is None:
            self.host.tell("nothing is under the cursor", "failed")
            return
        self.refusal = ""
        match choice.do:
            case "attach" | "open":
                self.host.attach(choice.argument)
                self.host.open_page("live" if choice.do == "attach" else "review")
            case "resume":
                self._run_in_group("open", self._resume, choice)
            case "new":
                self._run_in_group("open", self._start_new_run, choice)

    async def _resume(self, choice: Choice) -> None:
        given = shlex.split(self.overrides.get(choice.key, ""))
        if choice.budget and not any(word.startswith("budget.") for word in given):
            asked = await self.host.ask("budget reached; resume with", f"{choice.budget}=")
            if not asked or not asked.strip():
                return
            given = [*given, *asked.split()]
        self.host.start_run(["--resume", choice.argument, *given])

    async def _start_new_run(self, choice: Choice) -> None:
        """Start a new run: at once where nothing costs, else after the estimate was seen."""
        known = await self._load_facts(choice)
        if known is None:
            self._draw_facts()
            self.host.tell("it cannot be started so; the reason stands below", "failed")
            return
        words = shlex.split(self.overrides.get(choice.key, ""))
        again = known.mode in ("resume", "finished", "beside")
        if again or known.costs:
            keys = {"y": "start it"}
            if again:
                old = {"finished": "open it", "resume": "go on with it"}.get(known.mode, "")
                keys = {**({"o": old} if old else {}), "n": "new run"}
            width = min(96, self.app.size.width * 8 // 10 - 4)  # of a box over the page
            lines = facts_lines(known, width, self.overrides.get(choice.key, ""))
            if known.costs:
                checks = await self._load_checks(choice)
                if checks is None:
                    self._draw_facts()
                    self.host.tell("it cannot be started so; the reason stands below", "failed")
                    return
                lines += [(), *check_lines(checks, width)]
            told = "It asks a model that may cost money." if known.costs else "It is there already."
            key = await self.host.confirm(told, lines, keys)
            if not key:
                return
            if key == "o" and known.mode == "finished":
                self.host.attach(known.run)
                return
            if key == "n":
                words = [*words, "--restart-step", "0"]
        self.host.start_run([choice.argument, *words, "--review", "wait"])

    def action_check(self) -> None:
        if (choice := self.selected_choice) is None:
            self.host.tell("nothing is under the cursor", "failed")
            return
        self.refusal = ""
        self.checked.pop(self._choice_key(choice), None)
        self._run_in_group("check", self._check, choice)

    async def _check(self, choice: Choice) -> None:
        if choice.do == "new":
            await self._load_facts(choice)
        await self._load_checks(choice)
        self._draw_facts()

    def action_set(self) -> None:
        if (choice := self.selected_choice) is None or choice.do in ("attach", "open"):
            self.host.tell("only what is to be started takes settings", "failed")
            return
        self._run_in_group("set", self._ask_overrides, choice)

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
        if choice.do == "new":
            await self._load_facts(choice)
        self._draw_facts()

    def text_to_copy(self, whole: bool) -> str:
        facts = self.query_one("#start-facts", LineView)
        if self.app.focused is facts:
            return "\n".join(plain_text(one) for one in facts.lines)
        return super().text_to_copy(whole)
