"""Inspect: one rollout whole, among those of its group, or a winner and a loser side by side."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.core.types import Operation, group_id, rollout_id
from engines.record.run_dir import RunDir, Workspace
from studio.secrets.sanitize import inert
from studio.session.base import Began, Message, Streamed, Told
from studio.tui.drawing.lines import Line, Row, line, paragraph
from studio.tui.keymap import bindings
from studio.tui.page import Page
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.view import GroupShown, Hit, Member, Part
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from studio.report.rollout import WholeRollout
    from studio.review.evidence import EvidenceRoom


class InspectPage(Page):
    """Records are read in a thread, and kept while their group is shown."""

    scope = "inspect"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("inspect")]
    SCOPED_CSS = False  # the size classes stand on the screen
    DEFAULT_CSS = """
    InspectPage { layout: horizontal; }
    InspectPage #inspect-side { width: 32; height: 1fr; }
    InspectPage #inspect-list { height: 1fr; }
    InspectPage #inspect-facts { height: 10; }
    InspectPage #inspect-text, InspectPage #inspect-other { width: 1fr; height: 1fr; }
    InspectPage #inspect-other { display: none; }
    InspectPage.-split #inspect-other { display: block; }
    .-short InspectPage #inspect-facts { height: 7; }
    .-narrow InspectPage #inspect-side, .-tiny InspectPage #inspect-side { width: 26; }
    .-narrow InspectPage.-split #inspect-side, .-tiny InspectPage.-split #inspect-side {
        display: none;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.group = ""  # its id, such as s2p0
        self.chosen = ""  # the rollout
        self.split: tuple[str, str] | None = None  # a winner and a loser
        self.calls = False  # tokens and times of each call
        self.wanted = ""  # what is searched for
        self.trouble = ""
        self.reading = False
        self.live: dict[str, str] = {}  # rollout id → text under way
        self.run_pager: Callable[[str], None] = _paged
        self._unfolded: frozenset[str] = frozenset()
        self._folded: frozenset[str] = frozenset()
        self._room: tuple[str, EvidenceRoom] | None = None  # run and what it journalled
        self._wholes: dict[str, WholeRollout] = {}
        self._members: tuple[Member, ...] = ()
        self._experiences: dict[int, int | None] = {}  # library version → how many
        self._truths: tuple[str, dict[str, str]] | None = None
        self._target = ""  # asked for, and not looked up yet
        self._stale = False  # something of the group ended since it was read
        self._hit = 0
        self._following: frozenset[str] = frozenset()
        self._made: dict[str, tuple[object, tuple[Part, ...]]] = {}  # parts, and what of
        self._laid: dict[RowList, object] = {}  # what each text pane was drawn from

    def compose(self) -> ComposeResult:
        with Container(id="inspect-side"):
            yield RowList(id="inspect-list", classes="pane")
            facts = LineView(id="inspect-facts", classes="pane")
            facts.can_focus = False
            yield facts
        yield RowList(id="inspect-text", classes="pane")
        yield RowList(id="inspect-other", classes="pane")

    @property
    def list_pane(self) -> RowList:
        return self.query_one("#inspect-list", RowList)

    @property
    def text_pane(self) -> RowList:
        return self.query_one("#inspect-text", RowList)

    def home(self) -> Widget:
        return self.text_pane if self.split else self.list_pane

    # -- what is shown ---------------------------------------------------------------------

    def opened(self, target: str = "") -> None:
        """Target is a rollout, a group, an operation (its evidence) or a problem's id."""
        if target or not self.group:
            self._target = target or self._newest()
        self._stale = True
        self._look()
        # Not at once: the page that is left lets go of its own rollouts when it is hidden.
        self.call_after_refresh(self._subscribe, anew=True)

    def _newest(self) -> str:
        """Of a run that is opened: the group under way, else the last one."""
        state = self.state
        known = [step for step in state.steps.values() if step.problems] if state else []
        return group_id(max(step.step for step in known), 0) if known else ""

    def go_to(self, name: str) -> bool:
        state = self.state
        if state is None:
            return False
        steps = {number: step.problems for number, step in state.steps.items()}
        known = {op.id: op.evidence for op in state.operations.values()}
        if not (found := view.resolved(name, steps, known)):
            return False
        self._target, self._stale = found, True
        self._look()
        return True

    def heard(self, message: Message) -> None:
        match message:
            case Began():
                here = str(self.session.run.path) if self.session is not None else ""
                if self._room is not None and self._room[0] != here:
                    self._forget()
            case Streamed(pieces=pieces):
                for piece in pieces:
                    if piece.rollout.rpartition("r")[0] != self.group:
                        continue
                    before = self.live.get(piece.rollout, "")
                    self.live[piece.rollout] = before[: piece.offset] + piece.text
            case Told(event=ev.RolloutFinished() | ev.RolloutJudged() as event):
                self.live.pop(rollout_id(event.step, event.position, event.index), None)
                self._stale |= group_id(event.step, event.position) == self.group

    def _forget(self) -> None:
        """Another run is open: nothing that is shown is of it."""
        self.group = self.chosen = self.trouble = ""
        self.split, self._room, self._truths = None, None, None
        self.live.clear()
        self._wholes.clear()
        self._made.clear()
        self._experiences.clear()
        self._members = ()

    def _subscribe(self, *, anew: bool = False) -> None:
        """Ask for the text of what is under way; `anew`: from its beginning."""
        if self.session is None or not self.is_open:
            return
        wanted = frozenset(one.id for one in self._members if one.state in ("streaming", "queued"))
        if anew:
            self.session.subscribe(())
        if anew or wanted != self._following:
            self.session.subscribe(wanted)
        self._following = wanted

    def on_hide(self) -> None:
        if self.session is not None and self._following and self.studio.page_name != "live":
            self.session.subscribe(())
        self._following = frozenset()

    # -- reading ---------------------------------------------------------------------------

    def _look(self) -> None:
        if self.session is not None and not self.reading and (self._stale or self._target):
            self.reading = True
            self.run_worker(self._read(self.session.run, self.session.state), group="inspect")

    async def _read(self, run: RunDir, state: RunState) -> None:
        target, self._target, self._stale = self._target, "", False
        before = self.group
        try:
            where = await self._found(run, state, target) if target else self.chosen or self.group
            group = where.partition("r")[0]
            if group != self.group:
                self.group, self.split = group, None
                self._wholes.clear()
                self._made.clear()
                self.live.clear()
                self._members = ()
                self.chosen = ""
            self.chosen = where if "r" in where else self.chosen
            if self.group:
                await asyncio.to_thread(self._gather, run, state)
                if self.chosen not in [one.id for one in self._members]:
                    self.chosen = self._members[0].id if self._members else ""
            self.trouble = ""
        except (StudioError, OSError) as error:
            self.trouble = str(error)
        finally:
            self.reading = False
        if not self.children:
            return  # the screen was left meanwhile
        if self.session is None or self.session.run.path != run.path:
            self._forget()
            return
        self._subscribe(anew=self.group != before)
        if self.is_open:
            self.studio.draw_now()
        if self._truths is None or self._truths[0] != str(run.path):
            self._truths = (str(run.path), {})
            self.run_worker(self._read_truths(run), group="truths")

    async def _found(self, run: RunDir, state: RunState, target: str) -> str:
        steps = {number: step.problems for number, step in state.steps.items()}
        known = {op.id: op.evidence for op in state.operations.values()}
        found = view.resolved(target, steps, known)
        if not found and target.startswith("op"):
            found = await asyncio.to_thread(_evidence_of, run, target)
        if not found:
            self.studio.tell(
                f"{target}: no rollout, group, operation or problem of this run", "failed"
            )
        return found or self.chosen or self.group

    def _gather(self, run: RunDir, state: RunState) -> None:
        """In a thread: read the journal as far as it goes, and the records of the group."""
        from studio.report.rollout import whole_rollout
        from studio.review.evidence import EvidenceRoom

        if self._room is None or self._room[0] != str(run.path):
            self._room = (str(run.path), EvidenceRoom(run))
        room = self._room[1]
        step = int(self.group[1:].partition("p")[0])
        size = state.started.group_size if state.started else 0
        names = [f"{self.group}r{index}" for index in range(size)]
        found = {w.id: w for group in room.groups(names) for w in group.witnesses}
        for name, witness in found.items():
            known = self._wholes.get(name)
            if (
                known is None
                or known.rollout != witness.rollout
                or known.verdict != witness.verdict
            ):
                self._wholes[name] = whole_rollout(run, witness)
        current = state.current
        going = (
            state.status in ("running", "paused") and current is not None and current.step == step
        )
        self._members = tuple(
            view.member_of(self._wholes.get(name), name, index, going and name in self.live)
            for index, name in enumerate(names)
        )
        version = state.steps[step].library_version if step in state.steps else 0
        if version not in self._experiences and state.started is not None:
            self._experiences[version] = _experiences(run, state.started.library, version)

    async def _read_truths(self, run: RunDir) -> None:
        """True answers, from the data as it is now: what is gone is simply not shown."""
        from studio.tui.pages.start.checks import expected_answers

        try:
            found = await asyncio.to_thread(expected_answers, _workspace(run), run.run)
        except (StudioError, OSError):
            return
        self._truths = (str(run.path), found)
        if self.is_open and self.children:
            self._draw_facts()

    # -- drawing ---------------------------------------------------------------------------

    def draw(self) -> None:
        self._look()
        self.set_class(self.split is not None, "-split")
        shown = self._shown()
        found = self.list_pane
        if shown is None:
            rows = [Row("", told) for told in self._instead(found.room - 2)]
            found.show_rows(rows)
            self.text_pane.show_rows([])
            self._laid.clear()
            self.query_one("#inspect-facts", LineView).show_lines([])
            found.border_title = Content("Rollouts")
            self.text_pane.border_title = Content("Rollout")
            return
        found.border_title = Content(f"{shown.id} {shown.problem[:8]}")
        found.border_subtitle = Content("reading ..." if self.reading else "")
        found.show_rows(view.group_rows(shown, found.room - 2), self.chosen)
        self._draw_facts()
        left, right = self.split or (self.chosen, "")
        self._draw_text(self.text_pane, left, shown)
        if right:
            self._draw_text(self.query_one("#inspect-other", RowList), right, shown)

    def _shown(self) -> GroupShown | None:
        state = self.state
        if state is None or not self.group:
            return None
        number, _, position = self.group[1:].partition("p")
        step = state.steps.get(int(number))
        if step is None:
            return None
        members = tuple(
            Member(one.id, one.index, "streaming") if one.id in self.live else one
            for one in self._members
        )
        problem = step.problems[int(position)] if int(position) < len(step.problems) else ""
        return GroupShown(
            self.group,
            inert(problem),
            step.epoch,
            step.library_version,
            members,
            step.policy_version if state.trains else None,
        )

    def _instead(self, width: int) -> list[Line]:
        if self.trouble:
            return paragraph([(inert(self.trouble), "failed")], width)
        if self.session is None:
            return [
                line("no run is open:"),
                line(("5", "key"), " lists them"),
                line(("0", "key"), " starts one"),
            ]
        if self.reading:
            return [line("reading the records ...")]
        return paragraph(
            [("no rollout yet: it stands here once the first is under way", "")], width
        )

    def _draw_facts(self) -> None:
        facts, shown = self.query_one("#inspect-facts", LineView), self._shown()
        if shown is None:
            return
        number, _, position = self.group[1:].partition("p")
        problems = self.state.steps[int(number)].problems if self.state else ()
        truths = self._truths[1] if self._truths else {}
        truth = truths.get(problems[int(position)]) if int(position) < len(problems) else None
        lines = view.answer_lines(self._wholes.get(self.chosen), truth, shown, facts.room)
        if self.trouble:
            lines = [*paragraph([(inert(self.trouble), "failed")], facts.room), *lines]
        facts.show_lines(lines)

    def _parts(self, name: str, shown: GroupShown) -> tuple[Part, ...]:
        whole = self._wholes.get(name)
        if whole is None:
            return view.live_parts(self.live[name]) if name in self.live else ()
        version = shown.library_version
        experiences = self._experiences.get(version)
        made_of = (whole, version, experiences, self.calls)
        before, parts = self._made.get(name, (None, ()))
        if before != made_of:  # made inert once, not with every key
            parts = view.parts_of(whole, version, experiences, calls=self.calls)
            self._made[name] = made_of, parts
        return parts

    def _draw_text(self, pane: RowList, name: str, shown: GroupShown) -> None:
        parts = self._parts(name, shown)
        whole = self._wholes.get(name)
        title = f"{name}   {shown.made_by}"
        if whole is not None:
            turns = len({call.turn for call in whole.calls})
            title = f"{name}   turns {turns}   {whole.finish}   seed {whole.rollout.seed}   "
            title += shown.made_by
        pane.border_title = Content(inert(title))
        hits = view.found_in(parts, self.wanted)
        pane.border_subtitle = Content(f"{len(hits)} x {inert(self.wanted)}" if self.wanted else "")
        drawn_from = (name, parts, pane.room, self._unfolded, self._folded, self.wanted)
        if self._laid.get(pane) == drawn_from:
            return
        self._laid[pane] = drawn_from
        if not parts:
            told = "not begun yet" if name else "nothing is chosen"
            pane.show_rows([Row("", line(told))])
            return
        rows = view.rollout_rows(parts, pane.room - 2, self._unfolded, self._folded, hits)
        following = name in self.live and bool(pane.rows) and pane.key == pane.rows[-1].key
        pane.show_rows(rows, rows[-1].key if following else None)

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        if event.rows is self.list_pane and event.key and event.key != self.chosen:
            self._choose(event.key)

    def _choose(self, name: str) -> None:
        self.chosen = name
        self.text_pane.action_top()
        if self.split is not None:
            self.split = view.pair(self._members, name)
            if self.split is None:
                self._laid_out()
        self.studio.draw_now()

    # -- keys ------------------------------------------------------------------------------

    def action_next_rollout(self) -> None:
        self._step(1)

    def action_previous_rollout(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        names = [one.id for one in self._members]
        if not names:
            self.studio.tell("no group is shown", "failed")
            return
        at = names.index(self.chosen) if self.chosen in names else 0
        self._choose(names[(at + by) % len(names)])

    def action_split(self) -> None:
        if self.split is not None:
            self.split = None
        else:
            self.split = view.pair(self._members, self.chosen)
            if self.split is None:
                self.studio.tell("this group has no winner beside a loser", "failed")
                return
        self._laid_out()
        if self.split is not None and self.app.focused is self.list_pane:
            self.text_pane.focus(scroll_visible=False)

    def _laid_out(self) -> None:
        """Place the panes for one rollout or two; they are drawn when their widths are known."""
        self.set_class(self.split is not None, "-split")
        self.call_after_refresh(self.studio.draw_now)

    def action_tokens(self) -> None:
        self.calls = not self.calls
        self.studio.draw_now()
        if self.calls:
            self.text_pane.action_bottom()

    def action_fold(self) -> None:
        """The part under the cursor; from the list of rollouts all that begin folded."""
        shown = self._shown()
        if shown is None:
            return
        pane = self._text_focused()
        if pane is None:
            parts = self._parts(self.chosen, shown)
            long = frozenset(part.key for part in parts if part.label in ("system", "think"))
            self._unfolded = (
                self._unfolded - long if long <= self._unfolded else self._unfolded | long
            )
            self.studio.draw_now()
            return
        name = self._name_in(pane)
        key = view.part_of(pane.key)
        self._unfolded, self._folded = view.toggled(
            key, self._parts(name, shown), self._unfolded, self._folded
        )
        before = pane.key
        self.studio.draw_now()
        if pane.key != before:  # the row is folded away: stay at its part
            first = next((row.key for row in pane.rows if view.part_of(row.key) == key), "")
            pane.go_to(first)

    def _text_focused(self) -> RowList | None:
        focused = self.app.focused
        texts = (self.text_pane, self.query_one("#inspect-other", RowList))
        return next((pane for pane in texts if pane is focused), None)

    def _name_in(self, pane: RowList) -> str:
        if self.split is None:
            return self.chosen
        return self.split[0] if pane is self.text_pane else self.split[1]

    def action_search(self) -> None:
        self.run_worker(self._search(), group="search")

    async def _search(self) -> None:
        text = await self.studio.ask("find (enter alone: the next one):")
        if text is None:
            return
        self._find(text.strip() or self.wanted)

    def filtered(self, text: str) -> None:
        """`/` finds, as in a pager: a rollout is read whole, and nothing of it is hidden."""
        self.filter_text = text
        self._find(text)

    def _find(self, text: str) -> None:
        shown = self._shown()
        again = text == self.wanted
        self.wanted = self.filter_text = text
        if shown is None:
            return
        self.studio.draw_now()
        pane = self._text_focused() or self.text_pane
        parts = self._parts(self._name_in(pane), shown)
        hits: tuple[Hit, ...] = view.found_in(parts, text)
        if not hits:
            if text:
                self.studio.tell(f"{text}: not in this rollout", "failed")
            return
        self._hit = (self._hit + 1) % len(hits) if again else 0
        pane.go_to(view.row_of(hits[self._hit], parts, pane.room - 2))
        self.studio.tell(f"{self._hit + 1} of {len(hits)}: S and enter goes to the next")
        pane.focus(scroll_visible=False)

    def action_pager(self) -> None:
        text = self._whole_text()
        if not text:
            self.studio.tell("no rollout is shown", "failed")
            return
        try:
            with self.app.suspend():
                self.run_pager(text)
        except SuspendNotSupported:
            self.studio.tell(
                "a pager needs a terminal of its own, and there is none here", "failed"
            )
        except (OSError, ValueError) as error:
            self.studio.tell(f"$PAGER cannot be run: {error}", "failed")

    def _whole_text(self) -> str:
        shown = self._shown()
        pane = self._text_focused() or self.text_pane
        parts = self._parts(self._name_in(pane), shown) if shown is not None else ()
        return view.whole_text(parts)

    def copied(self, whole: bool) -> str:
        """A part, or the whole rollout."""
        pane, shown = self._text_focused(), self._shown()
        if pane is None or shown is None:
            return super().copied(whole)
        if whole:
            return self._whole_text()
        key = view.part_of(pane.key)
        parts = self._parts(self._name_in(pane), shown)
        return next((part.text for part in parts if part.key == key), "")

    def back(self) -> bool:
        if self.split is not None:
            self.split = None
            self._laid_out()
            return True
        return super().back()


def _paged(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Show a text in $PAGER, and wait until it is left.

    Raises:
        OSError: there is no such program.
        ValueError: $PAGER has a quotation mark too few.
    """
    command = shlex.split(environ.get("PAGER", "")) or ["less"]
    subprocess.run(command, input=text, text=True, encoding="utf-8", errors="replace", check=False)


def _evidence_of(run: RunDir, operation: str) -> str:
    """The first rollout behind an operation that a commit has settled; "" where none is known."""
    for entry in run.entries():
        match entry.event:
            case ev.LessonProposed(lesson=lesson):
                found: tuple[Operation, ...] = lesson.operations
            case ev.ReplyMended(operations=operations):
                found = operations
            case ev.OperationProposed(operation=own):
                found = (own,)
            case _:
                continue
        for one in found:
            if one.id == operation:
                return next(iter(one.evidence), "")
    return ""


def _experiences(run: RunDir, library: str, version: int) -> int | None:
    try:
        return len(_workspace(run).library(library).at(version).experiences)
    except (StudioError, OSError):
        return None


def _workspace(run: RunDir) -> Workspace:
    return Workspace(run.path.parents[1])
