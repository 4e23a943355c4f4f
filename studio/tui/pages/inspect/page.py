"""Inspect: one rollout whole, among those of its group, or a winner and a loser side by side."""

import os
import re
import shlex
import subprocess
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from textual.app import ComposeResult, SuspendNotSupported
from textual.containers import Container
from textual.content import Content
from textual.widget import Widget

from engines.core import errors, events
from engines.core.state.run_state import RunState
from engines.core.types import Tell, group_id, operation_step, rollout_id
from engines.record.derived.run_state import read_step
from engines.record.run_dir import RunDir
from studio.render.words import no_practice_text
from studio.secrets.sanitize import one_line, sanitize
from studio.session.session import EventReceived, Message, Session, SnapshotReceived, TextReceived
from studio.tui.drawing import cells, lines
from studio.tui.pages.inspect import view
from studio.tui.pages.lists import ListPage, Loader
from studio.tui.pages.live.view import describe_rollout
from studio.tui.widgets.line_view import RowList

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceLoader

_ENDS = events.RolloutFinished | events.RolloutJudged


def open_pager(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Show a text in $PAGER, and wait until it is left.

    Raises:
        OSError: there is no such program.
        ValueError: $PAGER has a quotation mark too few.
    """
    command = shlex.split(environ.get("PAGER", "")) or ["less"]
    subprocess.run(command, input=text, text=True, encoding="utf-8", errors="replace", check=False)


def find_rollouts(state: RunState, target: str) -> str:
    """Return the group or rollout that an id means; "" where the state knows of none.

    `target` is of a rollout, a group, an operation, or (the beginning of) a problem's id.
    """
    if match := re.fullmatch(r"s(\d{1,9})p(\d{1,9})(r\d{1,9})?", target):
        step = state.steps.get(int(match[1]))
        return target if step is not None and int(match[2]) < len(step.problems) else ""
    if match := re.fullmatch(r"op(\d{1,9})\.w", target):  # it rests on all groups of its step
        step = state.steps.get(int(match[1]))
        return group_id(int(match[1]), 0) if step is not None and step.problems else ""
    if target in state.operations:
        return next(iter(state.operations[target].evidence), "")
    for number in sorted(state.steps, reverse=True) if len(target) >= 4 else ():
        for position, problem in enumerate(state.steps[number].problems):
            if problem.startswith(target):
                return group_id(number, position)
    return ""


def _load_evidence(run: RunDir, operation: str) -> str:
    """The first rollout behind an operation that a commit has settled; "" where none is known."""
    proposed = read_step(run.journal, operation_step(operation)).operations
    evidence = next((each.evidence for each in proposed if each.id == operation), ())
    return next(iter(evidence), "")


class InspectPage(ListPage):
    scope = "inspect"

    def __init__(self) -> None:
        super().__init__()
        self.detail_pane.can_focus = False
        self.text_pane = RowList(id="inspect-text", classes="pane")
        self.other_pane = RowList(id="inspect-other", classes="pane")
        self.run_pager: Tell = open_pager
        self.shows_parting = False
        self._shows_calls = False  # tokens and times of each call
        self._turned: frozenset[str] = frozenset()  # parts that a person folded or unfolded
        self._hit = 0  # the number of the one the search stands on
        self._session: Session | None = None  # whose records are shown
        self.reader = Loader[tuple[Session, str], view.GroupSummary](
            self, self._load_group, self._take
        )
        self._answers = Loader[RunDir, dict[str, str]](self, self._load_answers)
        self._forget_run()

    def _forget_run(self) -> None:
        """Another run is open, or none: nothing that is shown is of it."""
        self.group: view.GroupSummary | None = None
        self.chosen = ""  # the rollout
        self.split: tuple[str, str] | None = None  # a winner and a loser
        self.live: dict[str, str] = {}  # rollout id → text under way
        self.is_stale = False  # something of the group ended since it was read
        self._subscribed: frozenset[str] = frozenset()
        self._evidence: EvidenceLoader | None = None  # what the run has journalled
        self.reader.forget()
        self._answers.forget()

    def compose(self) -> ComposeResult:
        with Container(id="inspect-side"):
            yield self.list_pane
            yield self.detail_pane
        yield self.text_pane
        yield self.other_pane

    def initial_focus(self) -> Widget:
        return self.text_pane if self.split else self.list_pane

    # -- reading ---------------------------------------------------------------------------

    def _follow_run(self) -> None:
        if self.session is not self._session:
            self._session = self.session
            self._forget_run()

    def open_at(self, target: str = "") -> None:
        """Target is a rollout, a group, an operation (its evidence) or a problem's id."""
        self._follow_run()
        self.open_target(target)
        # Not at once: the page that is left lets go of its own rollouts when it is hidden.
        self.call_after_refresh(self.subscribe, anew=True)

    def open_target(self, target: str = "") -> None:
        """Show what an id means; "": what was shown before as it is now, or the newest group."""
        self.is_stale = False
        name = target or (self.group.id if self.group is not None else "")
        if not name and self.state is not None:
            numbers = [number for number, step in self.state.steps.items() if step.problems]
            name = group_id(max(numbers), 0) if numbers else ""
        if self.session is not None and name:
            self.reader.request((self.session, name), again=True)

    def _load_group(self, key: tuple[Session, str]) -> view.GroupSummary:
        """Read the journal as far as it goes, and the records of the group. Blocks.

        Raises StudioError: the id means nothing in this run, or its records cannot be read.
        """
        from studio.facts.step import read_rollout
        from studio.review.evidence import EvidenceLoader

        (session, target), live = key, {*self.live}
        run, state = session.run, session.state
        place = find_rollouts(state, target)
        if not place and target.startswith("op"):
            place = _load_evidence(run, target)
        if not place:
            raise errors.RecordError(
                target,
                "it is no rollout, group, operation or problem of this run.",
                "n and ] go through the rollouts.",
            )
        name = place.partition("r")[0]
        number, position = int(name[1:].partition("p")[0]), int(name.partition("p")[2])
        step = state.steps[number]
        evidence = self._evidence or EvidenceLoader(run)
        if session is self._session:
            self._evidence = evidence
        ids = [f"{name}r{index}" for index in range(state.group_sizes(step)[position])]
        question, rollouts = "", {}
        for group in evidence.groups(ids):
            for witness in group.witnesses:
                question = sanitize(group.question)
                rollouts[witness.id] = read_rollout(run, witness.rollout, witness.verdict)
        is_going = state.current is step and state.status in ("running", "paused")
        members = []
        for index, each in enumerate(ids):
            whole = rollouts.get(each)
            finished, verdict = (whole.finished, whole.verdict) if whole else (None, None)
            going = is_going and each in live
            members.append(
                describe_rollout(each, position, index, finished, verdict, is_under_way=going)
            )
        return view.GroupSummary(
            id=name,
            problem=step.problems[position],
            epoch=step.epoch,
            library_version=step.library_version,
            members=tuple(members),
            policy_version=step.policy_version if state.trains_weights else None,
            question=question,
            rollouts=rollouts,
            target=place if "r" in place else "",
        )

    def _load_answers(self, run: RunDir) -> dict[str, str]:
        """True answers, from the data as it is now: what is gone is simply not shown."""
        from studio.tui.pages.start.page import load_expected_answers

        return load_expected_answers(self.host.workspace, run.run)

    def _take(self) -> None:
        """A group was read, or could not be."""
        group = self.reader.value
        if self.reader.trouble:
            self.host.tell(self.reader.trouble, "failed")
        elif group is not None:
            is_another = self.group is None or self.group.id != group.id
            if is_another:
                self.split = None
                self.live.clear()
            self.group = group
            if group.target or self.chosen not in group.ids:
                self.chosen = group.target or group.ids[0]
            self.subscribe(anew=is_another)
            if self.session is not None:
                self._answers.request(self.session.run)
        self.draw_if_open()

    def subscribe(self, *, anew: bool = False) -> None:
        """Ask for the text of what is under way; `anew`: from its beginning."""
        if self.session is None or not self.is_open:
            return
        members = self.group.members if self.group is not None else ()
        wanted = frozenset(member.id for member in members if not member.has_ended)
        if anew:
            self.session.subscribe(())
        if anew or wanted != self._subscribed:
            self.session.subscribe(wanted)
        self._subscribed = wanted

    def on_hide(self) -> None:
        """Let go of its rollouts; on the Live page that is its own business."""
        if self.session is not None and self._subscribed and self.host.page_name != "live":
            self.session.subscribe(())
        self._subscribed = frozenset()

    def handle_message(self, message: Message) -> None:
        ids = self.group.ids if self.group is not None else ()
        match message:
            case SnapshotReceived():
                self.is_stale = bool(ids)
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    if piece.rollout in ids:
                        before = self.live.get(piece.rollout, "")
                        self.live[piece.rollout] = before[: piece.offset] + piece.text
            case EventReceived(event=event) if isinstance(event, _ENDS):
                name = rollout_id(event.step, event.position, event.index)
                if name in ids:
                    self.live.pop(name, None)
                    self.is_stale = True

    # -- drawing ---------------------------------------------------------------------------

    def draw(self) -> None:
        self._follow_run()
        has_nothing = self.group is None and not self.reader.trouble
        if (self.is_stale or has_nothing) and not self.reader.is_reading:
            self.open_target()
        group = self.group
        self.set_class(self.split is not None, "-split")
        self.has_nothing = group is None
        text = "no run is open: 5 lists them, 0 starts one"
        if self.session is not None:
            text = no_practice_text(self.session.state)
            text = text or "no rollout yet: it stands here once the first is under way"
        rows, title = list[lines.Row](), "Rollouts"
        if group is not None:
            rows = view.group_rows(group, self.list_width, self.live)
            title = cells.fit(
                f"{group.id} {one_line(group.question, 80)}".rstrip(), self.list_width
            )
        self.show_list(rows, self.reader, title, nothing=lines.line(text), key=self.chosen)
        self.draw_detail()
        self._draw_text(self.text_pane)
        if self.split is not None:
            self._draw_text(self.other_pane)

    def draw_detail(self) -> None:
        pane, group = self.detail_pane, self.group
        if group is None:
            pane.show_lines([])
            return
        truth = (self._answers.value or {}).get(group.problem)
        whole = group.rollouts.get(self.chosen)
        pane.show_lines(view.answer_lines(whole, truth, group, pane.line_width))

    def _draw_text(self, pane: RowList) -> None:
        """Show a rollout in a pane."""
        name, group, title = self._name_in(pane), self.group, "Rollout"
        marked, about = self._marked_parts(pane), ""
        if group is not None:
            title = f"{name}   "
            if (whole := group.rollouts.get(name)) is not None:
                turns = len({call.turn for call in whole.calls})
                title += f"turns {turns}   {whole.finish_reason}   "
            title += group.version_text
        pane.border_title = Content(sanitize(title))
        hits = view.find_hits(marked.parts, self.filter_text)
        if hits:
            about = f"{len(hits)} x {sanitize(self.filter_text)}"
        elif marked.step is not None and (pair := self._compare()) is not None:
            about = f"> parts here from {pair[1] if name == pair[0] else pair[0]}"
        pane.say_below(about)
        rows = view.rollout_rows(
            marked.parts, pane.line_width - 2, self._turned, hits or marked.hits, marked.step
        )
        if group is not None and not rows:
            rows = [lines.Row("", lines.line("not begun yet"))]
        follows = name in self.live and pane.rows and pane.key == pane.rows[-1].key
        pane.show_rows(rows, rows[-1].key if follows else None)

    def _name_in(self, pane: RowList) -> str:
        """The rollout that a pane shows."""
        winner, loser = self.split or (self.chosen, "")
        return loser if pane is self.other_pane else winner

    def _parts(self, name: str) -> tuple[view.Part, ...]:
        whole = self.group.rollouts.get(name) if self.group is not None else None
        if whole is not None:
            return view.rollout_parts(whole, calls=self._shows_calls)
        return view.live_parts(self.live[name]) if name in self.live else ()

    def _compare(self) -> view.Pair | None:
        """A winner and a loser that part late, the chosen rollout among them, and where."""
        if self.group is None:
            return None
        winners, losers = view.winners_and_losers(self.group.members, self.chosen)
        won = tuple((name, self._parts(name)) for name in winners)
        lost = tuple((name, self._parts(name)) for name in losers)
        return view.compare_sides(won, lost, self.group.question)

    def _marked_parts(self, pane: RowList) -> view.MarkedParts:
        """The parts of a rollout, marked where it parts from another if that is shown."""
        name = self._name_in(pane)
        parts = self._parts(name)
        pair = self._compare() if self.shows_parting and parts else None
        if pair is not None and name == pair[0]:
            return view.mark_parting(parts, pair[2].winner, "added")
        if pair is not None and name == pair[1]:
            return view.mark_parting(parts, pair[2].loser, "removed")
        return view.MarkedParts(parts)

    # -- going through the rollouts --------------------------------------------------------

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        is_here = event.rows is self.list_pane and event.is_current
        if is_here and event.key and event.key != self.chosen:
            self.choose(event.key)

    def choose(self, name: str) -> None:
        """Show this rollout; beside another, if two are shown."""
        self.chosen = name
        self.text_pane.action_move_to_end(-1)
        if self.split is not None:
            pair = self._compare()
            self.split = pair[:2] if pair is not None else None
            self.call_after_refresh(self._show_parting)
        self.host.draw_now()

    def action_step_rollout(self, by: int) -> None:
        if self.group is None:
            self.host.tell("no group is shown", "failed")
        else:
            names = self.group.ids
            self.choose(names[(names.index(self.chosen) + by) % len(names)])

    def action_step_group(self, by: int) -> None:
        """The group after this one, or before it, in the order of the run."""
        steps = self.state.steps if self.state is not None else {}
        groups = [group_id(n, at) for n in sorted(steps) for at in range(len(steps[n].problems))]
        there = groups.index(self.group.id) + by if self.group is not None else -1
        if 0 <= there < len(groups):
            self.open_target(groups[there])
        else:
            self.host.tell(f"there is no {'later' if by > 0 else 'earlier'} group", "failed")

    def go_to(self, name: str) -> bool:
        place = find_rollouts(self.state, name) if self.state is not None else ""
        if place:
            self.open_target(place)
        return bool(place)

    # -- where they part -------------------------------------------------------------------

    def action_split(self) -> None:
        """Show a winner beside a loser, the chosen rollout among them; or it alone again."""
        pair = self._compare() if self.split is None else None
        if self.split is None and pair is None:
            self.host.tell("this group has no winner beside a loser", "failed")
            return
        self.split = pair[:2] if pair is not None else None
        self.shows_parting = pair is not None
        self.set_class(self.shows_parting, "-split")
        if pair is not None and self.app.focused is self.list_pane:
            self.text_pane.focus(scroll_visible=False)
        self.call_after_refresh(self._show_parting)  # when their widths are known

    def _show_parting(self) -> bool:
        """Draw, and bring the step where they part into view; False where it is not known."""
        self.host.draw_now()
        moved = False
        for pane in (self.text_pane, self.other_pane):
            marked = self._marked_parts(pane)
            if marked.step is not None:
                row = view.find_hit_row(marked.step, marked.parts, pane.line_width - 2)
                moved |= pane.go_to(row, margin=8)
        return moved

    def action_parting(self) -> None:
        """The step at which the rollout parts from one of the other side."""
        self.shows_parting = True
        if self._show_parting():
            if self.app.focused is self.list_pane:
                self.text_pane.focus(scroll_visible=False)
            self.host.tell("they part at the step marked >")
        else:
            self.shows_parting = False
            self.host.tell("no winner and loser of this group part here", "failed")

    def go_back(self) -> bool:
        if self.split is not None:
            self.action_split()
        elif self.shows_parting and not self.filter_text:
            self.shows_parting = False
            self.host.draw_now()
        else:
            return super().go_back()
        return True

    # -- reading in a text -----------------------------------------------------------------

    @property
    def _reading_pane(self) -> RowList:
        """The text that has the focus, else the first one."""
        return self.other_pane if self.app.focused is self.other_pane else self.text_pane

    @property
    def _read_parts(self) -> tuple[view.Part, ...]:
        return self._parts(self._name_in(self._reading_pane))

    def action_tokens(self) -> None:
        self._shows_calls = not self._shows_calls
        self.host.draw_now()
        if self._shows_calls:
            self.text_pane.action_move_to_end(1)

    def action_fold(self) -> None:
        """The part under the cursor; from the list of rollouts all that begin folded."""
        pane = self._reading_pane
        if self.app.focused is not pane:
            self._fold_all(("system", "think"))
        else:
            self._turned ^= {view.part_key(pane.key)}
            self._draw_folded()

    def action_tools(self) -> None:
        """All tool calls and results, in whichever pane has the focus."""
        if not self._fold_all(view.TOOLS):
            self.host.tell("this rollout called no tool", "failed")

    def _fold_all(self, labels: Collection[str]) -> bool:
        """Fold or unfold all parts of these labels; False where there is none."""
        keys = frozenset(part.key for part in self._read_parts if part.label in labels)
        is_unfolded = keys <= self._turned  # all of them begin folded
        self._turned = self._turned - keys if is_unfolded else self._turned | keys
        self._draw_folded()
        return bool(keys)

    def _draw_folded(self) -> None:
        """Draw; where the row under the cursor is folded away, it stays at its part."""
        pane = self._reading_pane
        before = pane.key
        self.host.draw_now()
        if pane.key != before:
            part = view.part_key(before)
            pane.go_to(next((row.key for row in pane.rows if view.part_key(row.key) == part), ""))

    def apply_filter(self, text: str) -> None:
        """`/` finds, as in a pager: a rollout is read whole, and nothing of it is hidden."""
        again, self.filter_text = text == self.filter_text, text
        self.host.draw_now()
        pane = self._reading_pane
        parts = self._marked_parts(pane).parts
        if hits := view.find_hits(parts, text):
            self._hit = (self._hit + 1) % len(hits) if again else 0
            pane.go_to(view.find_hit_row(hits[self._hit], parts, pane.line_width - 2))
            pane.focus(scroll_visible=False)
            self.host.tell(f"{self._hit + 1} of {len(hits)}: / and enter goes to the next")
        elif text and parts:
            self.host.tell(f"{text}: not in this rollout", "failed")

    def action_pager(self) -> None:
        text = self.whole_text()
        if not text:
            self.host.tell("no rollout is shown", "failed")
            return
        try:
            with self.app.suspend():
                self.run_pager(text)
        except SuspendNotSupported:
            self.host.tell("a pager needs a terminal of its own, and there is none here", "failed")
        except (OSError, ValueError) as error:
            self.host.tell(f"$PAGER cannot be run: {error}", "failed")

    def whole_text(self) -> str:
        """The rollout in the focused text pane, all parts unfolded."""
        return view.whole_text(self._read_parts)

    def text_to_copy(self, whole: bool) -> str:
        """A part, or the whole rollout."""
        pane = self._reading_pane
        if self.app.focused is not pane:
            return super().text_to_copy(whole)
        if whole:
            return self.whole_text()
        key = view.part_key(pane.key)
        return next((part.text for part in self._read_parts if part.key == key), "")
