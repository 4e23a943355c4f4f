"""Which rollouts Inspect shows, and what is known of their group: records, texts, true answers.

Methods whose names begin with `_load` block, and are called in a thread.
"""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from textual.content import Content

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.core.types import group_id, operation_step, rollout_id
from engines.record.derived.run_state import read_step
from engines.record.run_dir import RunDir
from studio.review.divergence import MOST_OF_A_SIDE, Divergence, choose_pair
from studio.secrets.sanitize import sanitize
from studio.session.session import TextPiece
from studio.tui.drawing.lines import Row, line
from studio.tui.page import Page
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.view import GroupSummary, MarkedParts, Member, Part
from studio.tui.widgets.line_view import RowList

if TYPE_CHECKING:
    from studio.facts.step import RolloutFacts
    from studio.review.evidence import EvidenceLoader


class GroupRecords:
    """The choice on one page, which is drawn once records were read.

    Records are kept while their group is shown, and the journal while its run is.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self.group = ""  # its id, such as s2p0
        self.chosen = ""  # the rollout
        self.split: tuple[str, str] | None = None  # a winner and a loser
        self.question = ""
        self.trouble = ""
        self.is_reading = False
        self.is_stale = False  # something of the group ended since it was read
        self.members: tuple[Member, ...] = ()
        self.rollouts: dict[str, RolloutFacts] = {}  # those that have ended
        self.live: dict[str, str] = {}  # rollout id → text under way
        self._ended = (0, 0, 0)  # step under way, and of the group the rollouts and verdicts in it
        self._target = ""  # asked for, and not looked up yet
        self._subscribed: frozenset[str] = frozenset()
        self._journal: tuple[str, EvidenceLoader] | None = None  # run and what it journalled
        self.experiences: dict[int, int | None] = {}  # library version → how many
        self._answers: tuple[str, Mapping[str, str]] | None = None  # run, and problem → answer

    # -- what is known -------------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.members]

    @property
    def step(self) -> int:
        return int(self.group[1:].partition("p")[0])

    def is_of(self, run: RunDir | None) -> bool:
        """Whether what was read is of this run; so it is before anything was."""
        return self._journal is None or (run is not None and self._journal[0] == str(run.path))

    def _problem(self, state: RunState) -> str | None:
        position = int(self.group.partition("p")[2])
        step = state.steps.get(self.step)
        return step.problems[position] if step and position < len(step.problems) else None

    @property
    def summary(self) -> GroupSummary | None:
        """The group with what streams now."""
        state = self._page.state
        if state is None or not self.group or (step := state.steps.get(self.step)) is None:
            return None
        members = tuple(
            Member(one.id, one.index, "streaming") if one.id in self.live else one
            for one in self.members
        )
        problem = sanitize(self._problem(state) or "")
        policy = step.policy_version if state.trains_weights else None
        return GroupSummary(
            self.group, problem, step.epoch, step.library_version, members, policy, self.question
        )

    @property
    def expected_answer(self) -> str | None:
        """Of the group's problem, where the data still has it."""
        state = self._page.state
        problem = self._problem(state) if state is not None else None
        return self._answers[1].get(problem) if self._answers and problem is not None else None

    # -- what changes --------------------------------------------------------------------------

    def next_group(self, by: int) -> str:
        """The group after this one, or before it, in the order of the run; "" where none is."""
        steps = self._page.state.steps if self._page.state is not None else {}
        known = [group_id(n, at) for n in sorted(steps) for at in range(len(steps[n].problems))]
        there = known.index(self.group) + by if self.group in known else -1
        return known[there] if 0 <= there < len(known) else ""

    def add_piece(self, piece: TextPiece) -> None:
        if piece.rollout.rpartition("r")[0] == self.group:
            before = self.live.get(piece.rollout, "")
            self.live[piece.rollout] = before[: piece.offset] + piece.text

    def forget_run(self) -> None:
        """Another run is open: nothing that is shown is of it."""
        self.trouble = ""
        self._open_group("")
        self._journal, self._answers = None, None
        self.experiences.clear()

    def note_ended(self, state: RunState) -> None:
        """Notice what of the group has ended or was judged since the last look."""
        step = state.current
        before = self._ended
        if step is None:
            self._ended = (0, 0, 0)
        else:
            places = [at for at in step.rollouts if group_id(step.step, at[0]) == self.group]
            for at in places:
                self.live.pop(rollout_id(step.step, *at), None)
            self._ended = (step.step, len(places), sum(at in step.verdicts for at in places))
        self.is_stale |= self._ended != before

    def _open_group(self, group: str) -> None:
        self.group, self.chosen, self.split, self.members = group, "", None, ()
        self.question = ""
        self.rollouts.clear()
        self.live.clear()

    def open_target(self, target: str) -> None:
        """Show what an id means; "": what was shown before, or the newest group."""
        if target or not self.group:
            self._target = target or _newest_group(self._page.state)
        self.is_stale = True
        self.reload_if_due()

    def subscribe(self, *, anew: bool = False) -> None:
        """Ask for the text of what is under way; `anew`: from its beginning."""
        session = self._page.session
        if session is None or not self._page.is_open:
            return
        under_way = ("streaming", "queued")
        wanted = frozenset(one.id for one in self.members if one.state in under_way)
        if anew:
            session.subscribe(())
        if anew or wanted != self._subscribed:
            session.subscribe(wanted)
        self._subscribed = wanted

    def unsubscribe(self) -> None:
        """The page is hidden; what it asked for is the Live page's own business there."""
        session = self._page.session
        if session is not None and self._subscribed and self._page.host.page_name != "live":
            session.subscribe(())
        self._subscribed = frozenset()

    def reload_if_due(self) -> None:
        session = self._page.session
        if session is None or self.is_reading:
            return
        if not (self.group or self._target or self.trouble):  # there may be one by now
            self._target = _newest_group(self._page.state)
        if self.is_stale or self._target:
            self.is_reading = True
            self._page.run_worker(self._read(session.run, session.state), group="inspect")

    async def _read(self, run: RunDir, state: RunState) -> None:
        target, self._target, self.is_stale = self._target, "", False
        before = self.group
        try:
            where = self.chosen or self.group
            if target:
                where = await self._find_target(run, state, target)
            if (group := where.partition("r")[0]) != self.group:
                self._open_group(group)
            self.chosen = where if "r" in where else self.chosen
            if self.group:
                await asyncio.to_thread(self._load_group, run, state)
                if self.chosen not in self.ids:
                    self.chosen = self.ids[0] if self.ids else ""
            self.trouble = ""
        except (StudioError, OSError) as error:
            self.trouble = str(error)
        finally:
            self.is_reading = False
        if not self._page.children:
            return  # the screen was left meanwhile
        if self._page.session is None or self._page.session.run.path != run.path:
            self.forget_run()
            return
        self.subscribe(anew=self.group != before)
        self._page.draw_if_open()
        if self._answers is None or self._answers[0] != str(run.path):
            self._answers = (str(run.path), {})
            self._page.run_worker(self._read_answers(run), group="truths")

    async def _find_target(self, run: RunDir, state: RunState, target: str) -> str:
        found = find_rollouts(state, target)
        if not found and target.startswith("op"):
            found = await asyncio.to_thread(_load_evidence, run, target)
        if not found:
            text = f"{target}: no rollout, group, operation or problem of this run"
            self._page.host.tell(text, "failed")
        return found or self.chosen or self.group

    async def _read_answers(self, run: RunDir) -> None:
        await asyncio.to_thread(self._load_answers, run)
        if self._page.is_open and self._page.children:
            self._page.host.redraw_soon()

    # -- reading, in a thread ------------------------------------------------------------------

    def _load_group(self, run: RunDir, state: RunState) -> None:
        """Read the journal as far as it goes, and the records of the group."""
        from studio.facts.step import read_rollout
        from studio.review.evidence import EvidenceLoader

        if self._journal is None or self._journal[0] != str(run.path):
            self._journal = (str(run.path), EvidenceLoader(run))
        now, at = state.steps.get(self.step), int(self.group.rpartition("p")[2])
        size = state.group_sizes(now)[at] if now is not None else 0
        names = [f"{self.group}r{index}" for index in range(size)]
        groups = self._journal[1].groups(names)
        self.question = sanitize(groups[0].question) if groups and groups[0].witnesses else ""
        for witness in (witness for group in groups for witness in group.witnesses):
            known, found = self.rollouts.get(witness.id), (witness.rollout, witness.verdict)
            if known is None or (known.finished, known.verdict) != found:
                self.rollouts[witness.id] = read_rollout(run, witness.rollout, witness.verdict)
        step, current = self.step, state.current
        is_current = current is not None and current.step == step
        going = is_current and state.status in ("running", "paused")
        self.members = tuple(
            view.make_member(self.rollouts.get(name), name, index, going and name in self.live)
            for index, name in enumerate(names)
        )
        version = state.steps[step].library_version if step in state.steps else 0
        if version not in self.experiences and state.started is not None:
            try:
                library = self._page.host.workspace.library(state.started.library).at(version)
                self.experiences[version] = len(library.experiences)
            except (StudioError, OSError):
                self.experiences[version] = None

    def _load_answers(self, run: RunDir) -> None:
        """True answers, from the data as it is now: what is gone is simply not shown."""
        from studio.tui.pages.start.checks import load_expected_answers

        try:
            found = load_expected_answers(self._page.host.workspace, run.run)
        except (StudioError, OSError):
            return
        self._answers = (str(run.path), found)


def _load_evidence(run: RunDir, operation: str) -> str:
    """The first rollout behind an operation that a commit has settled; "" where none is known."""
    proposed = read_step(run.journal, operation_step(operation)).operations
    found = next((one for one in proposed if one.id == operation), None)
    return next(iter(found.evidence), "") if found else ""


def _newest_group(state: RunState | None) -> str:
    """Of a run that is opened: the group under way, else the last one."""
    known = [step for step in state.steps.values() if step.problems] if state else []
    return group_id(max(step.step for step in known), 0) if known else ""


def find_rollouts(state: RunState, name: str) -> str:
    """The group or rollout that an id means; "" where the state knows of none."""
    steps = {number: step.problems for number, step in state.steps.items()}
    known = {op.id: op.evidence for op in state.operations.values()}
    return view.resolve_target(name, steps, known)


def open_pager(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Show a text in $PAGER, and wait until it is left.

    Raises:
        OSError: there is no such program.
        ValueError: $PAGER has a quotation mark too few.
    """
    command = shlex.split(environ.get("PAGER", "")) or ["less"]
    subprocess.run(command, input=text, text=True, encoding="utf-8", errors="replace", check=False)


class Transcripts:
    def __init__(self, records: GroupRecords) -> None:
        self._records = records
        self.wanted = ""  # what is searched for
        self.shows_calls = False  # tokens and times of each call
        self._turned: frozenset[str] = frozenset()  # parts that a person folded or unfolded
        self._hit = 0
        self._group = ""  # whose parts are kept
        self._parts: dict[str, tuple[object, tuple[Part, ...]]] = {}  # and what they are made of
        self._drawn: dict[RowList, object] = {}  # what each pane was drawn from
        self.shows_parting = False
        self._compared: tuple[object, tuple[str, str, Divergence] | None] = (None, None)

    def forget_rows(self) -> None:
        self._drawn.clear()

    def parts(self, name: str, group: GroupSummary) -> tuple[Part, ...]:
        whole, live = self._records.rollouts.get(name), self._records.live
        if whole is None:
            return view.live_parts(live[name]) if name in live else ()
        version = group.library_version
        experiences = self._records.experiences.get(version)
        made_of = (whole, version, experiences, self.shows_calls)
        before, parts = self._parts.get(name, (None, ()))
        if before != made_of:  # sanitized once, not with every key
            parts = view.rollout_parts(whole, version, experiences, calls=self.shows_calls)
            self._parts[name] = made_of, parts
        return parts

    def compare(self, group: GroupSummary) -> tuple[str, str, Divergence] | None:
        """A winner and a loser that part late, the chosen rollout among them, and where."""
        sides = view.winners_and_losers(group.members, self._records.chosen)
        names = [side[:MOST_OF_A_SIDE] for side in sides]
        made_of = [(name, self.parts(name, group)) for side in names for name in side]
        if self._compared[0] != made_of:
            said = {name: view.said_pieces(parts) for name, parts in made_of}
            winners, losers = ({name: said[name] for name in side} for side in names)
            found = choose_pair(winners, losers, self._records.question)
            self._compared = made_of, found
        return self._compared[1]

    def mark_parts(self, name: str, group: GroupSummary) -> MarkedParts:
        """The parts of a rollout, marked where it parts from another if that is shown."""
        parts = self.parts(name, group)
        if not self.shows_parting or (found := self.compare(group)) is None:
            return MarkedParts(parts)
        winner, loser, divergence = found
        if name == winner:
            return view.mark_parting(parts, divergence.winner, "added")
        if name == loser:
            return view.mark_parting(parts, divergence.loser, "removed")
        return MarkedParts(parts)

    def go_to_parting(self, pane: RowList, name: str, group: GroupSummary) -> bool:
        marked = self.mark_parts(name, group)
        if marked.step is None:
            return False
        row = view.find_hit_row(marked.step, marked.parts, pane.line_width - 2)
        return pane.go_to(row, margin=8)

    def draw(self, pane: RowList, name: str, group: GroupSummary) -> None:
        """Show a rollout in a pane; cheap where it is the same as before."""
        if self._group != group.id:
            self._group = group.id
            self._parts.clear()
        marked = self.mark_parts(name, group)
        parts, step = marked.parts, marked.step
        about = ""
        if (whole := self._records.rollouts.get(name)) is not None:
            turns = len({call.turn for call in whole.calls})
            about = f"turns {turns}   {whole.finish_reason}   "
        title = f"{name}   {about}{group.version_text}"
        pane.border_title = Content(sanitize(title))
        hits = view.find_hits(parts, self.wanted) or marked.hits
        count = f"{len(hits)} x {sanitize(self.wanted)}" if self.wanted and hits else ""
        if not count and step is not None and (found := self.compare(group)) is not None:
            count = f"> parts here from {found[1] if name == found[0] else found[0]}"
        pane.say_below(count)
        drawn_from = (name, parts, pane.line_width, self._turned, self.wanted, step)
        if self._drawn.get(pane) == drawn_from:
            return
        self._drawn[pane] = drawn_from
        if not parts:
            pane.show_rows([Row("", line("not begun yet" if name else "nothing is chosen"))])
            return
        width = pane.line_width - 2
        rows = view.rollout_rows(parts, width, self._turned, hits, step)
        at_end = bool(pane.rows) and pane.key == pane.rows[-1].key
        follows = name in self._records.live and at_end
        pane.show_rows(rows, rows[-1].key if follows else None)

    def fold_all(self, parts: tuple[Part, ...], labels: Collection[str]) -> bool | None:
        """Fold or unfold all parts of these labels; whether they are unfolded, None of none."""
        found = frozenset(part.key for part in parts if part.label in labels)
        before = self._turned  # all of them begin folded
        self._turned = before - found if found <= before else before | found
        return found <= self._turned if found else None

    def fold(self, key: str) -> None:
        self._turned ^= {key}

    def go_to_hit(self, pane: RowList, parts: tuple[Part, ...], *, again: bool) -> tuple[int, int]:
        """Move to the first hit, or the next one where it was searched before: number and count."""
        hits = view.find_hits(parts, self.wanted)
        if hits:
            self._hit = (self._hit + 1) % len(hits) if again else 0
            pane.go_to(view.find_hit_row(hits[self._hit], parts, pane.line_width - 2))
        return self._hit + 1, len(hits)
