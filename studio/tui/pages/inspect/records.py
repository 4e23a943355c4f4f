"""The group that Inspect shows and the rollout that is chosen: what is recorded and what streams.

Functions that block, and `_load_group`, are called in a thread.
"""

from typing import TYPE_CHECKING

from engines.core.errors import RecordError
from engines.core.state.run_state import RunState
from engines.core.types import group_id, operation_step, rollout_id
from engines.record.derived.run_state import read_step
from engines.record.run_dir import RunDir
from studio.review.divergence import Divergence
from studio.secrets.sanitize import sanitize
from studio.session.session import Session, TextPiece
from studio.tui.page import Page
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.view import GroupSummary, Part
from studio.tui.pages.live.view import describe_rollout
from studio.tui.pages.loader import Loader

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceLoader


class GroupRecords:
    """The choice on one page, which is drawn once records were read."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._group = Loader[tuple[Session, str], GroupSummary](page, self._load_group, self._take)
        self._answers = Loader[RunDir, dict[str, str]](page, self._load_answers)
        self.forget_run()

    def forget_run(self) -> None:
        """Another run is open, or none: nothing that is shown is of it."""
        self.group: GroupSummary | None = None
        self.chosen = ""  # the rollout
        self.split: tuple[str, str] | None = None  # a winner and a loser
        self.live: dict[str, str] = {}  # rollout id → text under way
        self.is_stale = False  # something of the group ended since it was read
        self._ended = (0, 0, 0)  # step under way, and of the group the rollouts and verdicts in it
        self._subscribed: frozenset[str] = frozenset()
        self._evidence: EvidenceLoader | None = None  # what the run has journalled
        self._group.forget()
        self._answers.forget()

    # -- what is known -------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        return self._group.trouble

    @property
    def is_reading(self) -> bool:
        return self._group.is_reading

    @property
    def ids(self) -> list[str]:
        return [member.id for member in self.group.members] if self.group is not None else []

    @property
    def expected_answer(self) -> str | None:
        """Of the group's problem, where the data still has it."""
        return (self._answers.value or {}).get(self.group.problem) if self.group else None

    def parts(self, name: str, *, calls: bool) -> tuple[Part, ...]:
        group = self.group
        whole = group.rollouts.get(name) if group is not None else None
        if group is None or whole is None:
            return view.live_parts(self.live[name]) if name in self.live else ()
        return view.rollout_parts(whole, group.library_version, calls=calls)

    def compare(self, *, calls: bool) -> tuple[str, str, Divergence] | None:
        """A winner and a loser that part late, the chosen rollout among them, and where."""
        if self.group is None:
            return None
        winners, losers = (
            tuple((name, self.parts(name, calls=calls)) for name in side)
            for side in view.winners_and_losers(self.group.members, self.chosen)
        )
        return view.compare_sides(winners, losers, self.group.question)

    # -- what changes --------------------------------------------------------------------------

    def next_group(self, by: int) -> str:
        """The group after this one, or before it, in the order of the run; "" where none is."""
        steps = self._page.state.steps if self._page.state is not None else {}
        known = [group_id(n, at) for n in sorted(steps) for at in range(len(steps[n].problems))]
        here = self.group.id if self.group is not None else ""
        there = known.index(here) + by if here in known else -1
        return known[there] if 0 <= there < len(known) else ""

    def add_piece(self, piece: TextPiece) -> None:
        if piece.rollout in self.ids:
            before = self.live.get(piece.rollout, "")
            self.live[piece.rollout] = before[: piece.offset] + piece.text

    def note_ended(self, state: RunState) -> None:
        """Notice what of the group has ended or was judged since the last look."""
        step, before, here = state.current, self._ended, self.group.id if self.group else ""
        self._ended = (0, 0, 0)
        if step is not None:
            places = [at for at in step.rollouts if group_id(step.step, at[0]) == here]
            for at in places:
                self.live.pop(rollout_id(step.step, *at), None)
            self._ended = (step.step, len(places), sum(at in step.verdicts for at in places))
        self.is_stale |= self._ended != before

    def open_target(self, target: str = "") -> None:
        """Show what an id means; "": what was shown before as it is now, or the newest group."""
        session, shown = self._page.session, self.group.id if self.group is not None else ""
        self.is_stale = False
        if session is not None and (name := target or shown or _newest_group(session.state)):
            self._group.request((session, name), again=True)

    def reload_if_due(self) -> None:
        if not self.is_reading and (self.is_stale or not (self.group or self.trouble)):
            self.open_target()

    def _take(self) -> None:
        """A group was read, or could not be."""
        group, host = self._group.value, self._page.host
        if self.trouble:
            host.tell(self.trouble, "failed")
        elif group is not None:
            anew = self.group is None or self.group.id != group.id
            if anew:
                self.split = None
                self.live.clear()
            self.group = group
            if group.target or self.chosen not in self.ids:
                self.chosen = group.target or next(iter(self.ids), "")
            self.subscribe(anew=anew)
            if self._page.session is not None:
                self._answers.request(self._page.session.run)
        self._page.draw_if_open()

    def subscribe(self, *, anew: bool = False) -> None:
        """Ask for the text of what is under way; `anew`: from its beginning."""
        session = self._page.session
        if session is None or not self._page.is_open:
            return
        members = self.group.members if self.group is not None else ()
        wanted = frozenset(one.id for one in members if not one.has_ended)
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

    # -- reading, in a thread ------------------------------------------------------------------

    def _load_group(self, key: tuple[Session, str]) -> GroupSummary:
        """Read the journal as far as it goes, and the records of the group.

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
            cause = "it is no rollout, group, operation or problem of this run."
            raise RecordError(target, cause, "n and ] go through the rollouts.")
        name = place.partition("r")[0]
        number, position = int(name[1:].partition("p")[0]), int(name.partition("p")[2])
        step, current = state.steps[number], state.current
        evidence = self._evidence or EvidenceLoader(run)
        if self._group.key is None or self._group.key[0] is session:
            self._evidence = evidence
        ids = [f"{name}r{index}" for index in range(state.group_sizes(step)[position])]
        groups = evidence.groups(ids)
        rollouts = dict(self.group.rollouts) if self.group and self.group.id == name else {}
        for witness in (witness for group in groups for witness in group.witnesses):
            known = rollouts.get(witness.id)
            if known is None or (known.finished, known.verdict) != (
                witness.rollout,
                witness.verdict,
            ):
                rollouts[witness.id] = read_rollout(run, witness.rollout, witness.verdict)
        going = current is step and state.status in ("running", "paused")
        return GroupSummary(
            id=name,
            problem=step.problems[position],
            epoch=step.epoch,
            library_version=step.library_version,
            members=tuple(
                describe_rollout(
                    each,
                    position,
                    index,
                    rollouts[each].finished if each in rollouts else None,
                    rollouts[each].verdict if each in rollouts else None,
                    is_under_way=going and each in live,
                )
                for index, each in enumerate(ids)
            ),
            policy_version=step.policy_version if state.trains_weights else None,
            question=sanitize(groups[0].question) if groups and groups[0].witnesses else "",
            rollouts=rollouts,
            target=place if "r" in place else "",
        )

    def _load_answers(self, run: RunDir) -> dict[str, str]:
        """True answers, from the data as it is now: what is gone is simply not shown."""
        from studio.tui.pages.start.checks import load_expected_answers

        return load_expected_answers(self._page.host.workspace, run.run)


def _load_evidence(run: RunDir, operation: str) -> str:
    """The first rollout behind an operation that a commit has settled; "" where none is known."""
    proposed = read_step(run.journal, operation_step(operation)).operations
    evidence = next((each.evidence for each in proposed if each.id == operation), ())
    return next(iter(evidence), "")


def _newest_group(state: RunState) -> str:
    """Of a run that is opened: the group under way, else the last one."""
    numbers = [number for number, step in state.steps.items() if step.problems]
    return group_id(max(numbers), 0) if numbers else ""


def find_rollouts(state: RunState, name: str) -> str:
    """The group or rollout that an id means; "" where the state knows of none."""
    steps = {number: step.problems for number, step in state.steps.items()}
    known = {op.id: op.evidence for op in state.operations.values()}
    return view.resolve_target(name, steps, known)
