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
from studio.secrets.sanitize import sanitize
from studio.session.base import EventReceived, Message, SnapshotReceived, TextReceived
from studio.tui.drawing.lines import Line, Row, line, paragraph
from studio.tui.keymap import bindings
from studio.tui.page import Page
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.view import GroupSummary, Hit, Member, Part
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from studio.report.rollout import RecordedRollout
    from studio.review.evidence import EvidenceLoader


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
        self.run_pager: Callable[[str], None] = _open_pager
        self._unfolded: frozenset[str] = frozenset()
        self._folded: frozenset[str] = frozenset()
        self._room: tuple[str, EvidenceLoader] | None = None  # run and what it journalled
        self._wholes: dict[str, RecordedRollout] = {}
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

    def initial_focus(self) -> Widget:
        return self.text_pane if self.split else self.list_pane

    # -- what is shown ---------------------------------------------------------------------

    def open_at(self, target: str = "") -> None:
        """Target is a rollout, a group, an operation (its evidence) or a problem's id."""
        if target or not self.group:
            self._target = target or self._newest_group()
        self._stale = True
        self._reload_if_due()
        # Not at once: the page that is left lets go of its own rollouts when it is hidden.
        self.call_after_refresh(self._subscribe, anew=True)

    def _newest_group(self) -> str:
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
        if not (found := view.resolve_target(name, steps, known)):
            return False
        self._target, self._stale = found, True
        self._reload_if_due()
        return True

    def handle_message(self, message: Message) -> None:
        match message:
            case SnapshotReceived():
                here = str(self.session.run.path) if self.session is not None else ""
                if self._room is not None and self._room[0] != here:
                    self._forget()
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    if piece.rollout.rpartition("r")[0] != self.group:
                        continue
                    before = self.live.get(piece.rollout, "")
                    self.live[piece.rollout] = before[: piece.offset] + piece.text
            case EventReceived(event=ev.RolloutFinished() | ev.RolloutJudged() as event):
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

    def _reload_if_due(self) -> None:
        if self.session is not None and not self.reading and (self._stale or self._target):
            self.reading = True
            self.run_worker(self._read(self.session.run, self.session.state), group="inspect")

    async def _read(self, run: RunDir, state: RunState) -> None:
        target, self._target, self._stale = self._target, "", False
        before = self.group
        try:
            where = (
                await self._find_target(run, state, target) if target else self.chosen or self.group
            )
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
                await asyncio.to_thread(self._load_group, run, state)
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

    async def _find_target(self, run: RunDir, state: RunState, target: str) -> str:
        steps = {number: step.problems for number, step in state.steps.items()}
        known = {op.id: op.evidence for op in state.operations.values()}
        found = view.resolve_target(target, steps, known)
        if not found and target.startswith("op"):
            found = await asyncio.to_thread(_find_evidence, run, target)
        if not found:
            self.studio.tell(
                f"{target}: no rollout, group, operation or problem of this run", "failed"
            )
        return found or self.chosen or self.group

    def _load_group(self, run: RunDir, state: RunState) -> None:
        """In a thread: read the journal as far as it goes, and the records of the group."""
        from studio.report.rollout import read_rollout
        from studio.review.evidence import EvidenceLoader

        if self._room is None or self._room[0] != str(run.path):
            self._room = (str(run.path), EvidenceLoader(run))
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
                self._wholes[name] = read_rollout(run, witness.rollout, witness.verdict)
        current = state.current
        going = (
            state.status in ("running", "paused") and current is not None and current.step == step
        )
        self._members = tuple(
            view.make_member(self._wholes.get(name), name, index, going and name in self.live)
            for index, name in enumerate(names)
        )
        version = state.steps[step].library_version if step in state.steps else 0
        if version not in self._experiences and state.started is not None:
            self._experiences[version] = _count_experiences(run, state.started.library, version)

    async def _read_truths(self, run: RunDir) -> None:
        """True answers, from the data as it is now: what is gone is simply not shown."""
        from studio.tui.pages.start.checks import load_expected_answers

        try:
            found = await asyncio.to_thread(load_expected_answers, _workspace_of(run), run.run)
        except (StudioError, OSError):
            return
        self._truths = (str(run.path), found)
        if self.is_open and self.children:
            self._draw_facts()

    # -- drawing ---------------------------------------------------------------------------

    def draw(self) -> None:
        self._reload_if_due()
        self.set_class(self.split is not None, "-split")
        shown = self._shown_group()
        found = self.list_pane
        if shown is None:
            rows = [Row("", told) for told in self._empty_lines(found.line_width - 2)]
            found.show_rows(rows)
            self.text_pane.show_rows([])
            self._laid.clear()
            self.query_one("#inspect-facts", LineView).show_lines([])
            found.border_title = Content("Rollouts")
            self.text_pane.border_title = Content("Rollout")
            return
        found.border_title = Content(f"{shown.id} {shown.problem[:8]}")
        found.border_subtitle = Content("reading ..." if self.reading else "")
        found.show_rows(view.group_rows(shown, found.line_width - 2), self.chosen)
        self._draw_facts()
        left, right = self.split or (self.chosen, "")
        self._draw_text(self.text_pane, left, shown)
        if right:
            self._draw_text(self.query_one("#inspect-other", RowList), right, shown)

    def _shown_group(self) -> GroupSummary | None:
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
        return GroupSummary(
            self.group,
            sanitize(problem),
            step.epoch,
            step.library_version,
            members,
            step.policy_version if state.trains_weights else None,
        )

    def _empty_lines(self, width: int) -> list[Line]:
        if self.trouble:
            return paragraph([(sanitize(self.trouble), "failed")], width)
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
        facts, shown = self.query_one("#inspect-facts", LineView), self._shown_group()
        if shown is None:
            return
        number, _, position = self.group[1:].partition("p")
        problems = self.state.steps[int(number)].problems if self.state else ()
        truths = self._truths[1] if self._truths else {}
        truth = truths.get(problems[int(position)]) if int(position) < len(problems) else None
        lines = view.answer_lines(self._wholes.get(self.chosen), truth, shown, facts.line_width)
        if self.trouble:
            lines = [*paragraph([(sanitize(self.trouble), "failed")], facts.line_width), *lines]
        facts.show_lines(lines)

    def _parts(self, name: str, shown: GroupSummary) -> tuple[Part, ...]:
        whole = self._wholes.get(name)
        if whole is None:
            return view.live_parts(self.live[name]) if name in self.live else ()
        version = shown.library_version
        experiences = self._experiences.get(version)
        made_of = (whole, version, experiences, self.calls)
        before, parts = self._made.get(name, (None, ()))
        if before != made_of:  # made inert once, not with every key
            parts = view.rollout_parts(whole, version, experiences, calls=self.calls)
            self._made[name] = made_of, parts
        return parts

    def _draw_text(self, pane: RowList, name: str, shown: GroupSummary) -> None:
        parts = self._parts(name, shown)
        whole = self._wholes.get(name)
        title = f"{name}   {shown.version_text}"
        if whole is not None:
            turns = len({call.turn for call in whole.calls})
            title = f"{name}   turns {turns}   {whole.finish_reason}   seed {whole.rollout.seed}   "
            title += shown.version_text
        pane.border_title = Content(sanitize(title))
        hits = view.find_hits(parts, self.wanted)
        pane.border_subtitle = Content(
            f"{len(hits)} x {sanitize(self.wanted)}" if self.wanted else ""
        )
        drawn_from = (name, parts, pane.line_width, self._unfolded, self._folded, self.wanted)
        if self._laid.get(pane) == drawn_from:
            return
        self._laid[pane] = drawn_from
        if not parts:
            told = "not begun yet" if name else "nothing is chosen"
            pane.show_rows([Row("", line(told))])
            return
        rows = view.rollout_rows(parts, pane.line_width - 2, self._unfolded, self._folded, hits)
        following = name in self.live and bool(pane.rows) and pane.key == pane.rows[-1].key
        pane.show_rows(rows, rows[-1].key if following else None)

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        if event.rows is self.list_pane and event.key and event.key != self.chosen:
            self._choose(event.key)

    def _choose(self, name: str) -> None:
        self.chosen = name
        self.text_pane.action_top()
        if self.split is not None:
            self.split = view.winner_and_loser(self._members, name)
            if self.split is None:
                self._lay_out()
        self.studio.draw_now()

    # -- keys ------------------------------------------------------------------------------

    def action_next_rollout(self) -> None:
        self._step_rollout(1)

    def action_previous_rollout(self) -> None:
        self._step_rollout(-1)

    def _step_rollout(self, by: int) -> None:
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
            self.split = view.winner_and_loser(self._members, self.chosen)
            if self.split is None:
                self.studio.tell("this group has no winner beside a loser", "failed")
                return
        self._lay_out()
        if self.split is not None and self.app.focused is self.list_pane:
            self.text_pane.focus(scroll_visible=False)

    def _lay_out(self) -> None:
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
        shown = self._shown_group()
        if shown is None:
            return
        pane = self._focused_text_pane()
        if pane is None:
            parts = self._parts(self.chosen, shown)
            long = frozenset(part.key for part in parts if part.label in ("system", "think"))
            self._unfolded = (
                self._unfolded - long if long <= self._unfolded else self._unfolded | long
            )
            self.studio.draw_now()
            return
        name = self._rollout_in(pane)
        key = view.part_key(pane.key)
        self._unfolded, self._folded = view.toggle_fold(
            key, self._parts(name, shown), self._unfolded, self._folded
        )
        before = pane.key
        self.studio.draw_now()
        if pane.key != before:  # the row is folded away: stay at its part
            first = next((row.key for row in pane.rows if view.part_key(row.key) == key), "")
            pane.go_to(first)

    def _focused_text_pane(self) -> RowList | None:
        focused = self.app.focused
        texts = (self.text_pane, self.query_one("#inspect-other", RowList))
        return next((pane for pane in texts if pane is focused), None)

    def _rollout_in(self, pane: RowList) -> str:
        if self.split is None:
            return self.chosen
        return self.split[0] if pane is self.text_pane else self.split[1]

    def action_search(self) -> None:
        self.run_worker(self._search(), group="search")

    async def _search(self) -> None:
        text = await self.studio.ask("find (enter alone: the next one):")
        if text is None:
            return
        self._find_text(text.strip() or self.wanted)

    def apply_filter(self, text: str) -> None:
        """`/` finds, as in a pager: a rollout is read whole, and nothing of it is hidden."""
        self.filter_text = text
        self._find_text(text)

    def _find_text(self, text: str) -> None:
        shown = self._shown_group()
        again = text == self.wanted
        self.wanted = self.filter_text = text
        if shown is None:
            return
        self.studio.draw_now()
        pane = self._focused_text_pane() or self.text_pane
        parts = self._parts(self._rollout_in(pane), shown)
        hits: tuple[Hit, ...] = view.find_hits(parts, text)
        if not hits:
            if text:
                self.studio.tell(f"{text}: not in this rollout", "failed")
            return
        self._hit = (self._hit + 1) % len(hits) if again else 0
        pane.go_to(view.find_hit_row(hits[self._hit], parts, pane.line_width - 2))
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
        shown = self._shown_group()
        pane = self._focused_text_pane() or self.text_pane
        parts = self._parts(self._rollout_in(pane), shown) if shown is not None else ()
        return view.whole_text(parts)

    def text_to_copy(self, whole: bool) -> str:
        """A part, or the whole rollout."""
        pane, shown = self._focused_text_pane(), self._shown_group()
        if pane is None or shown is None:
            return super().text_to_copy(whole)
        if whole:
            return self._whole_text()
        key = view.part_key(pane.key)
        parts = self._parts(self._rollout_in(pane), shown)
        return next((part.text for part in parts if part.key == key), "")

    def go_back(self) -> bool:
        if self.split is not None:
            self.split = None
            self._lay_out()
            return True
        return super().go_back()


def _open_pager(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Show a text in $PAGER, and wait until it is left.

    Raises:
        OSError: there is no such program.
        ValueError: $PAGER has a quotation mark too few.
    """
    command = shlex.split(environ.get("PAGER", "")) or ["less"]
    subprocess.run(command, input=text, text=True, encoding="utf-8", errors="replace", check=False)


def _find_evidence(run: RunDir, operation: str) -> str:
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


def _count_experiences(run: RunDir, library: str, version: int) -> int | None:
    try:
        return len(_workspace_of(run).library(library).at(version).experiences)
    except (StudioError, OSError):
        return None


def _workspace_of(run: RunDir) -> Workspace:
    return Workspace(run.path.parents[1])
