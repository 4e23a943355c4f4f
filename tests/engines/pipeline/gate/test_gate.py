"""The gate: each question against the draft, undo, deferral, a moved head, one commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.protocols import Linter, Reviewer
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import (
    GATE,
    NO_USAGE,
    Decision,
    DecisionPreview,
    Flag,
    LostWork,
    Operation,
    Reflection,
    Usage,
)
from engines.pipeline.gate.gate import Gate
from engines.pipeline.recorder import Recorder
from engines.pipeline.reviewers import AutoReviewer, HoldExpired, HumanReviewer, read_rules
from engines.record.journal import Journal, read_journal
from engines.record.libraries import LibraryFolder
from tests.support.builders import (
    a_decision,
    a_lesson,
    a_library,
    a_run,
    a_step,
    an_operation,
    approved,
)


class Desk:
    """A gate on a real journal and a real library, with one lesson under review."""

    def __init__(self, folder: Path, *texts: str) -> None:
        self.folder = LibraryFolder(folder / "libraries" / "lib")
        self.folder.create(a_library(*texts))
        self.journal_path = folder / "journal.jsonl"
        self.reopen()

    def reopen(self, *reviewers: Reviewer) -> None:
        """What a new process would see."""
        self.journal = Journal(self.journal_path)
        state = RunState()
        for entry in self.journal.entries:
            fold(state, entry.event)
        self.recorder = Recorder(self.journal, state)
        self.gate = self.opened(*reviewers)

    def opened(
        self, *reviewers: Reviewer, limit: int | None = None, linter: Linter | None = None
    ) -> Gate:
        self.gate = Gate(
            self.recorder,
            self.folder,
            reviewers,
            run="exp",
            limit=limit,
            clock=lambda: 9.0,
            linter=linter,
        )
        return self.gate

    @property
    def state(self) -> RunState:
        return self.recorder.state

    async def propose(self, *operations: Operation, step: int = 1) -> None:
        version = self.folder.head().version
        if self.state.started is None:
            await self.recorder.record(a_run())
        await self.recorder.record(a_step(step, library_version=version))
        lesson = a_lesson(*operations, step=step, base_version=version)
        await self.recorder.record(ev.LessonProposed(step, lesson))
        await self.gate.follow_head(step)

    async def decide(self, operation: Operation, action: str = "approve", **more: object) -> str:
        """Decide and return the gate's note."""
        decision = a_decision(operation, action, **more)  # type: ignore[arg-type]
        return (await self.gate.decide(decision)).note

    def standing(self) -> list[tuple[str, str, str]]:
        return [(op.id, d.action, d.reviewer) for op, d in self.state.reviewed_operations]

    def commits(self) -> int:
        return len(self.folder.versions()) - 1


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path, "one", "two")
    yield made
    await made.journal.aclose()


DELETE = an_operation("delete", "E1", id="op1.1")
MODIFY = an_operation("modify", "E1", "one, better", id="op1.2")
ADD = an_operation("add", None, "three", id="op1.3")
MORE = an_operation("add", None, "four", id="op1.4")


async def test_an_approval_is_journalled_with_its_time_and_the_id_it_gives(desk: Desk) -> None:
    await desk.propose(ADD)
    assert await desk.decide(ADD) == "becomes E3"
    decision = desk.state.decisions[ADD.id]
    assert (decision.assigned, decision.at, decision.reviewer) == ("E3", 9.0, "person")
    desk.journal.close()
    desk.reopen()
    assert desk.state.decisions[ADD.id] == decision


async def test_each_question_is_asked_against_the_draft_of_the_earlier_answers(desk: Desk) -> None:
    seen: list[list[str]] = []

    class Looking:
        async def review(
            self, operations: Sequence[Operation], library: Library
        ) -> AsyncIterator[Decision]:
            for operation in operations:
                yield a_decision(operation)
                seen.append([e.text for e in desk.gate.draft().experiences])

    await desk.propose(DELETE, ADD, MORE)
    await desk.opened(Looking()).review(1)
    assert seen == [["two"], ["two", "three"], ["two", "three", "four"]]
    assert desk.commits() == 0  # a draft is only a draft


async def test_an_approval_whose_target_was_deleted_is_a_recorded_rejection(desk: Desk) -> None:
    """Known defect elsewhere: such a MODIFY was applied as an ADD."""
    await desk.propose(DELETE, MODIFY)
    await desk.decide(DELETE)
    assert await desk.decide(MODIFY) == "rejected: E1 was deleted by op1.1"
    decision = desk.state.decisions[MODIFY.id]
    assert (decision.action, decision.reason, decision.reviewer) == (
        "reject",
        "E1 was deleted by op1.1",
        GATE,
    )
    done = await desk.gate.commit(1)
    assert [(o.operation_id, o.applied, o.reason) for o in done.outcomes] == [
        (DELETE.id, True, ""),
        (MODIFY.id, False, "E1 was deleted by op1.1"),
    ]
    assert [e.text for e in done.library.experiences] == ["two"]


async def test_an_undo_of_the_delete_asks_again_for_what_it_had_made_impossible(
    desk: Desk,
) -> None:
    await desk.propose(DELETE, MODIFY, ADD)
    for operation in (DELETE, MODIFY, ADD):
        await desk.decide(operation)
    assert await desk.gate.undo(DELETE.id) == (DELETE.id, MODIFY.id)
    assert desk.state.undecided_operations == (DELETE, MODIFY)
    assert desk.standing() == [(ADD.id, "approve", "person")]
    await desk.decide(MODIFY)
    assert await desk.decide(DELETE) == ""
    assert [e.text for e in desk.gate.draft().experiences] == ["two", "three"]


async def test_an_undo_asks_again_for_approvals_that_rested_on_it(desk: Desk) -> None:
    refine = an_operation("modify", "E3", "three, better", id="op1.9")
    await desk.propose(ADD, refine)
    await desk.decide(ADD)
    await desk.decide(refine)
    assert await desk.gate.undo(ADD.id) == (ADD.id, refine.id)
    assert desk.standing() == []


async def test_a_rejection_by_a_person_stays_when_another_decision_is_undone(desk: Desk) -> None:
    await desk.propose(DELETE, MODIFY)
    await desk.decide(DELETE)
    await desk.decide(MODIFY, "reject", reason="no")
    assert await desk.gate.undo(DELETE.id) == (DELETE.id,)


async def test_an_id_given_to_an_addition_does_not_shift_when_another_is_undone(
    desk: Desk,
) -> None:
    """Known defect elsewhere: ids followed list positions and moved under the reader."""
    await desk.propose(ADD, MORE)
    await desk.decide(ADD)
    await desk.decide(MORE)
    await desk.gate.undo(ADD.id)
    assert desk.state.decisions[MORE.id].assigned == "E4"
    await desk.decide(ADD)  # a new decision, a new id: E3 is never given again
    done = await desk.gate.commit(1)
    assert [(e.id, e.text) for e in done.library.experiences] == [
        ("E1", "one"),
        ("E2", "two"),
        ("E4", "four"),
        ("E5", "three"),
    ]


async def test_a_decision_can_be_superseded_and_does_not_stand_in_its_own_way(desk: Desk) -> None:
    await desk.propose(ADD)
    await desk.decide(ADD)
    assert "rejected" not in await desk.decide(ADD)  # "E3 already says exactly this" is itself
    await desk.decide(ADD, "reject", reason="no")
    done = await desk.gate.commit(1)
    assert [(o.applied, o.reason) for o in done.outcomes] == [(False, "no")]
    assert desk.commits() == 0


async def test_a_merge_is_an_edit_of_kind_and_target(desk: Desk) -> None:
    await desk.propose(ADD)
    await desk.decide(ADD, "edit", kind="modify", target="E2", text="two and three")
    done = await desk.gate.commit(1)
    assert [(e.id, e.text) for e in done.library.experiences] == [
        ("E1", "one"),
        ("E2", "two and three"),
    ]
    assert done.library.experiences[1].history[-1].edited


async def test_an_edit_that_does_not_fit_is_refused_with_its_reason(desk: Desk) -> None:
    await desk.propose(ADD)
    note = await desk.decide(ADD, "edit", kind="modify", target="E8", text="x")
    assert note == "rejected: E8 was never in this library"


async def test_the_limit_is_kept_at_the_gate(desk: Desk) -> None:
    await desk.propose(ADD, DELETE)
    desk.opened(limit=2)
    assert (await desk.decide(ADD)).startswith("rejected: the library is full (2)")
    await desk.decide(DELETE)
    assert await desk.decide(ADD) == "becomes E3"


async def test_unknown_operations_and_decisions_that_do_not_stand_are_user_errors(
    desk: Desk,
) -> None:
    await desk.propose(ADD)
    with pytest.raises(ConflictError, match=r"Open are: op1\.3"):
        await desk.gate.decide(a_decision("op9.9"))
    with pytest.raises(ConflictError, match="Nothing to undo"):
        await desk.gate.undo(ADD.id)


async def test_a_deferred_operation_stays_open_blocks_nothing_and_joins_the_next_commit(
    desk: Desk,
) -> None:
    await desk.propose(ADD, MORE)
    await desk.decide(ADD, "defer")
    await desk.decide(MORE)
    done = await desk.gate.commit(1)
    assert [o.operation_id for o in done.outcomes] == [MORE.id]
    await desk.recorder.record(ev.StepFinished(1, 1))
    assert (desk.state.open_operations, desk.state.undecided_operations) == ((ADD,), ())
    await desk.propose(step=2)  # an empty lesson
    await desk.opened(AutoReviewer()).review(2)
    done = await desk.gate.commit(2)
    assert [(o.operation_id, o.applied) for o in done.outcomes] == [(ADD.id, True)]
    assert desk.state.open_operations == ()
    assert [e.id for e in done.library.experiences] == ["E1", "E2", "E3", "E4"]


async def test_a_deferred_operation_is_checked_against_the_library_as_it_then_is(
    desk: Desk,
) -> None:
    await desk.propose(MODIFY, DELETE)
    await desk.decide(MODIFY, "defer")
    await desk.decide(DELETE)
    await desk.gate.commit(1)
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.recorder.record(ev.RunEnded("finished"))
    assert await desk.decide(MODIFY) == "rejected: E1 is gone"
    done = await desk.gate.commit(0)  # after the run's end
    assert [o.applied for o in done.outcomes] == [False]
    assert (desk.state.open_operations, desk.commits()) == ((), 1)


class Deferring:
    """A first reviewer that puts everything off."""

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            yield a_decision(operation, "defer", reviewer="first")


async def test_what_one_reviewer_defers_is_not_offered_to_the_next(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    await desk.opened(Deferring(), AutoReviewer()).review(1)
    assert [d.reviewer for d in desk.state.decisions.values()] == ["first", "first"]


async def test_what_rules_put_off_again_in_the_same_words_is_written_once(desk: Desk) -> None:
    await desk.propose(ADD)
    await desk.opened(Deferring(), AutoReviewer()).review(1)
    await desk.gate.commit(1)
    written = desk.state.events
    for _ in range(3):  # and neither is it offered to the next reviewer
        await desk.gate.review(1)
    assert (desk.state.events, desk.standing()) == (written, [])
    assert [op.id for op in desk.state.open_operations] == [ADD.id]


async def test_what_a_person_deferred_is_not_decided_by_rules_after_a_restart(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    await desk.decide(ADD, "defer")
    desk.journal.close()
    desk.reopen(AutoReviewer())
    await desk.gate.review(1)
    assert desk.standing() == [(MORE.id, "approve", "auto")]
    assert desk.state.decisions[ADD.id].action == "defer"


async def test_auto_approves_what_fits_and_the_gate_says_why_not_the_rest(desk: Desk) -> None:
    await desk.propose(DELETE, MODIFY, ADD)
    await desk.opened(AutoReviewer()).review(1)
    assert desk.standing() == [
        (DELETE.id, "approve", "auto"),
        (MODIFY.id, "reject", GATE),
        (ADD.id, "approve", "auto"),
    ]


def edited_elsewhere(desk: Desk) -> None:
    """Someone edits the library outside the run."""
    with desk.folder.lock_for_commit() as library:
        library.commit(approved(an_operation("delete", "E1", id="edit-1")))


async def test_a_lesson_whose_library_moved_goes_back_to_review_flagged(desk: Desk) -> None:
    await desk.propose(MODIFY, ADD)
    desk.opened(AutoReviewer())
    await desk.gate.review(1)
    assert [a for _, a, _ in desk.standing()] == ["approve", "approve"]
    edited_elsewhere(desk)
    flags: list[int | None] = []
    desk.recorder.listen(
        lambda event: (
            flags.append(desk.state.flagged_stale)
            if isinstance(event, ev.OperationDecided)
            else None
        )
    )
    done = await desk.gate.commit(1)
    assert flags == [1]  # what the move touched is asked again, told what the head is now
    assert [(o.operation_id, o.applied, o.reason) for o in done.outcomes] == [
        (ADD.id, True, ""),
        (MODIFY.id, False, "E1 is gone"),
    ]
    assert (done.library.version, desk.state.flagged_stale) == (2, None)
    (returned,) = [
        entry.event
        for entry in read_journal(desk.journal_path)
        if isinstance(entry.event, ev.LessonReturned)
    ]
    assert (returned.based_on, returned.head) == (0, 1)
    assert returned.asked_again == (MODIFY.id,)


async def test_a_returned_lesson_is_still_flagged_after_a_restart(desk: Desk) -> None:
    await desk.propose(MODIFY, ADD)
    desk.opened(HumanReviewer(hold_s=0))
    await desk.decide(MODIFY)
    await desk.decide(ADD)
    edited_elsewhere(desk)
    with pytest.raises(HoldExpired):
        await desk.gate.commit(1)
    desk.journal.close()
    desk.reopen(AutoReviewer())
    assert [op.id for op in desk.state.undecided_operations] == [MODIFY.id]
    assert desk.state.flagged_stale == 1
    await desk.gate.review(1)
    done = await desk.gate.commit(1)
    assert [(e.id, e.text) for e in done.library.experiences] == [("E2", "two"), ("E3", "three")]
    assert done.library.version == 2


async def test_what_the_move_leaves_as_it_was_stands_with_its_words_and_reasons(
    desk: Desk,
) -> None:
    await desk.propose(ADD, MORE, MODIFY)
    desk.opened(HumanReviewer(hold_s=0))
    await desk.decide(ADD, "reject", reason="not this")
    await desk.decide(MORE, "edit", text="four, my words")
    await desk.decide(MODIFY, "reject", reason="nor this")
    edited_elsewhere(desk)
    done = await desk.gate.commit(1)  # nothing is asked, or it would have held
    assert [e.text for e in done.library.experiences] == ["two", "four, my words"]
    assert {o.operation_id: o.reason for o in done.outcomes} == {
        ADD.id: "not this",
        MORE.id: "",
        MODIFY.id: "nor this",
    }


async def test_an_approval_is_asked_again_where_its_target_was_reworded_meanwhile(
    desk: Desk,
) -> None:
    await desk.propose(MODIFY)
    desk.opened(HumanReviewer(hold_s=0))
    await desk.decide(MODIFY)
    with desk.folder.lock_for_commit() as library:
        library.commit(approved(an_operation("modify", "E1", "one, by hand", id="edit-1")))
    with pytest.raises(HoldExpired):
        await desk.gate.commit(1)
    assert desk.folder.head().experiences[0].text == "one, by hand"


async def test_an_id_taken_meanwhile_gives_the_addition_the_next_one(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    desk.opened(HumanReviewer(hold_s=0))
    assert await desk.decide(ADD) == "becomes E3"
    merge = a_decision(MORE, "edit", kind="modify", target="E3", text="three and four")
    await desk.gate.decide(merge)
    with desk.folder.lock_for_commit() as library:
        library.commit(approved(an_operation("add", None, "by hand", id="edit-1")))
    with pytest.raises(HoldExpired):  # the merge meant another E3
        await desk.gate.commit(1)
    assert [op.id for op in desk.state.undecided_operations] == [MORE.id]
    await desk.decide(MORE, "reject", reason="never mind")
    done = await desk.gate.commit(1)
    assert [(e.id, e.text) for e in done.library.experiences][-2:] == [
        ("E3", "by hand"),
        ("E4", "three"),
    ]


async def test_a_move_is_noticed_when_the_review_begins(desk: Desk) -> None:
    await desk.propose(MODIFY)
    edited_elsewhere(desk)
    desk.reopen()
    await desk.gate.follow_head(1)
    assert desk.state.flagged_stale == 1
    assert [e.text for e in desk.gate.draft().experiences] == ["two"]


async def test_deferred_operations_follow_the_library_after_the_run_s_end(desk: Desk) -> None:
    await desk.propose(ADD, MODIFY)
    await desk.decide(ADD, "defer")
    await desk.decide(MODIFY, "defer")
    await desk.gate.commit(1)
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.recorder.record(ev.RunEnded("finished"))
    await desk.decide(ADD)
    await desk.decide(MODIFY)
    edited_elsewhere(desk)
    done = await desk.gate.commit(0)
    assert [e.text for e in done.library.experiences] == ["two", "three"]
    assert [op.id for op in desk.state.open_operations] == [
        MODIFY.id
    ]  # its target is gone: asked again


async def test_a_commit_that_reached_the_library_before_a_crash_is_not_made_twice(
    desk: Desk,
) -> None:
    await desk.propose(ADD, DELETE)
    await desk.decide(ADD)
    await desk.decide(DELETE)
    before = desk.journal_path.read_bytes()
    first = await desk.gate.commit(1)
    desk.journal.close()
    desk.journal_path.write_bytes(before)  # the run's own line never reached the disk
    desk.reopen(HumanReviewer(hold_s=0))
    assert not desk.state.steps[1].committed
    await desk.gate.review(1)  # asks nothing, and tells of the commit that was found
    assert desk.state.steps[1].committed
    again = await desk.gate.commit(1)
    assert again == first
    assert desk.commits() == 1
    assert desk.state.steps[1].outcomes == first.outcomes
    assert desk.gate.library == desk.folder.head()


async def test_an_old_commit_of_a_removed_run_of_the_same_name_is_not_taken_for_ours(
    desk: Desk,
) -> None:
    with desk.folder.lock_for_commit() as library:  # run `exp` of old, step 1, the same ids
        library.commit(approved(ADD), run="exp", step=1)
    with desk.folder.lock_for_commit() as library:
        library.commit(approved(an_operation("delete", "E3", id="edit-1")))
    await desk.propose(ADD)
    await desk.decide(ADD)
    done = await desk.gate.commit(1)
    assert [e.text for e in done.library.experiences] == ["one", "two", "three"]
    assert desk.commits() == 3


async def test_a_decision_made_after_a_cut_commit_waits_for_the_next_one(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    await desk.decide(ADD)
    await desk.decide(MORE, "defer")
    before = desk.journal_path.read_bytes()
    await desk.gate.commit(1)
    desk.journal.close()
    desk.journal_path.write_bytes(before)
    desk.reopen()
    await desk.decide(MORE)  # at the desk, before anything noticed the commit
    await desk.gate.follow_head(1)
    assert desk.state.steps[1].committed
    assert [o.applied for o in desk.state.steps[1].outcomes] == [True]
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.propose(step=2)
    done = await desk.gate.commit(2)
    assert [e.text for e in done.library.experiences] == ["one", "two", "three", "four"]


async def test_an_edit_between_steps_is_not_overwritten_by_a_deferred_approval(
    desk: Desk,
) -> None:
    await desk.propose(MODIFY)
    await desk.decide(MODIFY, "defer")
    await desk.gate.commit(1)
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.decide(MODIFY)
    with desk.folder.lock_for_commit() as library:
        library.commit(approved(an_operation("modify", "E1", "one, by hand", id="edit-1")))
    await desk.gate.follow_head(2)
    await desk.propose(step=2)
    done = await desk.gate.commit(2)
    assert done.library.experiences[0].text == "one, by hand"
    assert [op.id for op in desk.state.open_operations] == [MODIFY.id]


async def test_auto_leaves_what_someone_changed_meanwhile_to_a_person(desk: Desk) -> None:
    await desk.propose(MODIFY)
    await desk.decide(MODIFY, "defer")
    await desk.gate.commit(1)
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.decide(MODIFY)
    with desk.folder.lock_for_commit() as library:
        library.commit(approved(an_operation("modify", "E1", "one, by hand", id="edit-1")))
    desk.opened(AutoReviewer())
    await desk.gate.follow_head(2)
    await desk.propose(step=2)
    await desk.gate.review(2)
    done = await desk.gate.commit(2)
    assert done.library.experiences[0].text == "one, by hand"
    (left,) = desk.state.open_operations
    assert [(flag.name, flag.detail) for flag in left.flags] == [("base moved", "v0 -> v1")]


async def test_a_person_s_decision_is_not_overridden_by_a_reviewer_at_work(desk: Desk) -> None:
    await desk.propose(ADD, MORE)

    class Slow:
        async def review(
            self, operations: Sequence[Operation], library: Library
        ) -> AsyncIterator[Decision]:
            for operation in operations:
                if operation.id == ADD.id:  # meanwhile, from outside, both are decided
                    await desk.decide(ADD, "reject", reason="mine")
                    await desk.decide(MORE, "reject", reason="mine")
                yield a_decision(operation, reviewer="slow")

    await desk.opened(Slow()).review(1)
    assert [(d.action, d.reason) for _, d in desk.state.reviewed_operations] == [
        ("reject", "mine")
    ] * 2


async def test_rules_see_what_the_same_lesson_has_brought_in_so_far(
    desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "rules:\n  - {when: {similar_at_least: 0.8}, do: reject, reason: twin}\n  - do: approve\n"
    )
    twin = an_operation("add", None, "three!", id="op1.9")
    await desk.propose(ADD, twin)
    await desk.opened(read_rules(path)).review(1)
    assert [(op.id, d.action) for op, d in desk.state.reviewed_operations] == [
        (ADD.id, "approve"),
        (twin.id, "reject"),
    ]


async def test_a_commit_of_a_run_that_crashed_is_recognised_also_under_a_later_edit(
    desk: Desk,
) -> None:
    await desk.propose(ADD)
    await desk.decide(ADD)
    before = desk.journal_path.read_bytes()
    await desk.gate.commit(1)
    desk.journal.close()
    desk.journal_path.write_bytes(before)
    edited_elsewhere(desk)
    desk.reopen()
    done = await desk.gate.commit(1)
    assert (done.library.version, desk.commits()) == (1, 2)


async def test_a_review_outside_waits_until_nothing_is_undecided(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    desk.opened(HumanReviewer())
    review = asyncio.create_task(desk.gate.review(1))
    await desk.decide(ADD)
    await desk.gate.undo(ADD.id)
    await desk.decide(MORE)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not review.done()
    await desk.decide(ADD, "defer")
    await asyncio.wait_for(review, 10)


async def test_a_hold_that_expires_leaves_the_decisions_standing(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    await desk.decide(ADD)
    with pytest.raises(HoldExpired):
        await desk.opened(HumanReviewer(hold_s=0)).review(1)
    assert [op.id for op in desk.state.undecided_operations] == [MORE.id]
    assert desk.standing() == [(ADD.id, "approve", "person")]


async def test_an_undo_under_way_is_not_overtaken_by_the_commit(desk: Desk) -> None:
    """The undo is being written when the review ends: what it takes back must not be applied."""
    await desk.propose(ADD)
    desk.opened(HumanReviewer(hold_s=0))
    await desk.decide(ADD)
    undo = asyncio.create_task(desk.gate.undo(ADD.id))
    await asyncio.sleep(0)  # it has begun and waits for the disk
    with pytest.raises(HoldExpired):
        await desk.gate.commit(1)
    assert await undo == (ADD.id,)
    assert (desk.commits(), desk.state.undecided_operations) == (0, (ADD,))


async def test_nothing_undecided_is_committed_over(desk: Desk) -> None:
    class Silent:
        async def review(
            self, operations: Sequence[Operation], library: Library
        ) -> AsyncIterator[Decision]:
            nothing: tuple[Decision, ...] = ()
            for decision in nothing:
                yield decision

    await desk.propose(ADD)
    with pytest.raises(HoldExpired):
        await desk.opened(Silent()).commit(1)
    assert not desk.state.steps[1].committed


class EachAlone:
    """The batch form of a linter that looks at one operation at a time."""

    async def flags(
        self, operation: Operation, library: Library, others: Sequence[Operation] = ()
    ) -> tuple[Flag, ...]:
        raise NotImplementedError

    async def flags_of(
        self, operations: Sequence[Operation], library: Library, others: Sequence[Operation] = ()
    ) -> tuple[tuple[Flag, ...], ...]:
        beside = {other.id: other for other in (*operations, *others)}
        return tuple(
            [
                await self.flags(one, library, [o for o in beside.values() if o.id != one.id])
                for one in operations
            ]
        )


class Twins(EachAlone):
    """A linter that flags a text which stands in the library, and remembers what it saw."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, tuple[str, ...], tuple[str, ...]]] = []

    async def flags(
        self, operation: Operation, library: Library, others: Sequence[Operation] = ()
    ) -> tuple[Flag, ...]:
        texts = tuple(e.text for e in library.experiences)
        self.asked.append((operation, texts, tuple(op.id for op in others)))
        near = [text for text in texts if text.split(",")[0] == operation.text.split(",")[0]]
        return tuple(Flag("duplicate", 0.9, f"of {text}") for text in near)

    def take_usage(self) -> Usage:
        return NO_USAGE


class Paid(Twins):
    """One that asks a model, for ten tokens an operation."""

    def take_usage(self) -> Usage:
        paid, self.asked = len(self.asked), []
        return Usage(10 * paid, 0, paid)


async def test_what_the_lint_of_edits_and_mended_replies_cost_is_journalled_and_counted(
    desk: Desk,
) -> None:
    desk.opened(linter=Paid())
    await desk.propose(ADD, MORE)
    before = desk.state.total_usage
    await desk.decide(ADD, "edit", text="three, in words")
    await desk.decide(MORE)  # nothing is asked
    assert desk.state.total_usage == before + Usage(10, 0, 1)
    loss = LostWork("extraction", "s1p0", "no JSON", "garbled")
    reflected = ev.GroupReflected(1, 0, Reflection(1, 0, "failed", losses=(loss,)))
    await desk.recorder.record(reflected)
    await desk.gate.resubmit("s1p0", [DELETE, MODIFY], "ann")
    assert desk.state.total_usage == before + Usage(30, 0, 3)
    assert desk.state.steps[1].usage == Usage(30, 0, 3)
    desk.journal.close()
    desk.reopen()
    assert desk.state.total_usage == before + Usage(30, 0, 3)


async def test_an_edit_is_linted_as_it_would_be_applied_and_carries_its_flags(desk: Desk) -> None:
    linter = Twins()
    desk.opened(linter=linter)
    await desk.propose(ADD, MORE)
    note = await desk.decide(ADD, "edit", text="one, again", flags=(Flag("made up"),))
    assert note == "becomes E3"
    assert desk.state.decisions[ADD.id].flags == (Flag("duplicate", 0.9, "of one"),)
    ((operation, texts, others),) = linter.asked
    assert (operation.kind, operation.text) == ("add", "one, again")
    assert (texts, others) == (("one", "two"), (MORE.id,))
    desk.journal.close()
    desk.reopen()
    assert desk.state.decisions[ADD.id].flags == (Flag("duplicate", 0.9, "of one"),)


async def test_an_edit_is_linted_without_what_its_own_earlier_decision_brought(desk: Desk) -> None:
    linter = Twins()
    desk.opened(linter=linter)
    await desk.propose(ADD, MODIFY)
    await desk.decide(ADD)
    await desk.decide(ADD, "edit", text="three, in words")
    assert desk.state.decisions[ADD.id].flags == ()
    merged = await desk.decide(MODIFY, "edit", target="E2", text="two, and one")
    assert merged == ""
    operation, texts, _ = linter.asked[-1]
    assert (operation.kind, operation.target) == ("modify", "E2")
    assert texts == ("one", "two", "three, in words")


async def test_an_edit_is_told_of_what_was_approved_on_the_same_target(desk: Desk) -> None:
    linter = Twins()
    desk.opened(linter=linter)
    again = an_operation("modify", "E1", "one, better still", id="op1.5")
    await desk.propose(MODIFY, again, ADD)
    await desk.decide(MODIFY)
    await desk.decide(ADD, "reject", reason="no")
    await desk.decide(again, "edit", text="one, best")
    assert linter.asked[-1][2] == (MODIFY.id,)


@pytest.mark.parametrize("action", ["approve", "reject", "defer"])
async def test_only_edits_are_linted_again(desk: Desk, action: str) -> None:
    linter = Twins()
    desk.opened(linter=linter)
    await desk.propose(ADD)
    await desk.decide(ADD, action, flags=(Flag("made up"),))
    assert linter.asked == []
    assert desk.state.decisions[ADD.id].flags == ()


async def test_an_edit_that_does_not_fit_is_not_linted(desk: Desk) -> None:
    linter = Twins()
    desk.opened(linter=linter)
    await desk.propose(ADD)
    await desk.decide(ADD, "edit", text="one")
    assert (linter.asked, desk.state.decisions[ADD.id].flags) == ([], ())


async def test_without_a_linter_an_edit_has_no_flags(desk: Desk) -> None:
    await desk.propose(ADD)
    await desk.decide(ADD, "edit", text="one, again")
    assert desk.state.decisions[ADD.id].flags == ()


class Marking(EachAlone):
    """A linter that flags every text with itself."""

    async def flags(
        self, operation: Operation, library: Library, others: Sequence[Operation] = ()
    ) -> tuple[Flag, ...]:
        return (Flag("seen", None, operation.text),)

    def take_usage(self) -> Usage:
        return NO_USAGE


async def test_an_edit_is_weighed_before_it_is_decided_and_nothing_is_journalled(
    desk: Desk,
) -> None:
    desk.opened(linter=Marking())
    await desk.propose(ADD, DELETE)
    before = desk.state.events
    found = await desk.gate.lint([a_decision(ADD, "edit", text="three, in words")])
    assert found == [DecisionPreview("", (Flag("seen", None, "three, in words"),))]
    found = await desk.gate.lint([a_decision(ADD, "edit", text=" two ")])
    assert found == [DecisionPreview("E2 already says exactly this")]
    assert await desk.gate.lint([a_decision(ADD, "reject")]) == [DecisionPreview()]
    assert await desk.gate.lint([a_decision(ADD)]) == [DecisionPreview()]  # no edit: not linted
    with pytest.raises(ConflictError, match="not open"):
        await desk.gate.lint([a_decision(MORE, "edit", text="x")])
    assert (desk.state.events, desk.standing()) == (before, [])


async def test_what_is_undone_and_proposed_with_them_is_weighed_with_the_decisions(
    desk: Desk,
) -> None:
    await desk.propose(ADD, DELETE)
    await desk.decide(ADD)
    own = an_operation("add", None, ADD.text, id="item 1")
    (twice,) = await desk.gate.lint([a_decision(own)], (own,))
    assert twice.objection == "E3 already says exactly this"
    assert await desk.gate.lint([a_decision(own)], (own,), (ADD.id,)) == [DecisionPreview()]
    await desk.decide(DELETE)
    # It is proposed before the deletion is taken back, and refused then.
    own = an_operation("modify", "E1", MODIFY.text, id="item 1")
    found = await desk.gate.lint([a_decision(DELETE, "reject"), a_decision(own)], (own,))
    assert [one.objection for one in found] == ["", "E1 was deleted by op1.1"]
    assert [name for name, *_ in desk.standing()] == [ADD.id, DELETE.id]


async def test_a_hold_is_told_once_the_rules_had_their_say_and_left_something(desk: Desk) -> None:
    class First:
        async def review(
            self, operations: Sequence[Operation], library: Library
        ) -> AsyncIterator[Decision]:
            for operation in operations:
                if operation.id == ADD.id:
                    yield a_decision(operation)

    heard: list[object] = []
    desk.recorder.listen(heard.append)
    await desk.propose(ADD, MORE)
    with pytest.raises(HoldExpired):
        await desk.opened(First(), HumanReviewer(0.0)).review(1)
    held = [event for event in heard if isinstance(event, ev.StageEntered)]
    assert held == [ev.StageEntered(1, "hold", {"undecided": 1})]
    with pytest.raises(HoldExpired):  # a person was expected from the start
        await desk.opened(HumanReviewer(0.0)).review(1)
    assert len([event for event in heard if isinstance(event, ev.StageEntered)]) == 1


# -- what is pinned --------------------------------------------------------------------------


async def test_a_reviewer_that_approves_all_changes_nothing_that_is_pinned(desk: Desk) -> None:
    desk.opened(AutoReviewer())
    await desk.propose(MODIFY, DELETE)
    pin = await desk.gate.propose(Operation("", "pin", "E1"), "ann")
    await desk.decide(pin)
    with pytest.raises(ConflictError, match="E1 is pinned"):  # nor may a person in passing
        await desk.gate.propose(Operation("", "modify", "E1", "mine"), "ann")
    await desk.gate.review(1)
    assert desk.standing() == [
        (pin.id, "approve", "person"), (MODIFY.id, "reject", GATE), (DELETE.id, "reject", GATE),
    ]  # fmt: skip
    library = (await desk.gate.commit(1)).library
    assert [(e.text, e.pinned) for e in library.experiences] == [("one", True), ("two", False)]
    assert desk.folder.head() == library, "also as it is read again"
    path = desk.folder.path
    assert "text: one\n  pinned: true\n- id: E2" in (path / "v0001.yaml").read_text("utf-8")
    copy = LibraryFolder(path.with_name("copy"))
    copy.create(library, "lib@1")
    assert LibraryFolder(copy.path).head().pinned_ids == ("E1",)


async def test_a_pin_that_is_taken_back_asks_again_for_what_it_forbade(desk: Desk) -> None:
    pin = an_operation("pin", "E1", id="op1.9")
    await desk.propose(pin, MODIFY)
    await desk.decide(pin)
    assert await desk.decide(MODIFY) == (
        "rejected: E1 is pinned: nothing may change it; unpin it first"
    )
    assert await desk.gate.undo(pin.id) == (pin.id, MODIFY.id)
    own = await desk.gate.propose(Operation("", "pin", "E1"), "ann")
    await desk.decide(own)
    await desk.gate.undo(own.id)  # one key proposed and approved it: nothing is left of it
    assert own.id not in desk.state.operations and pin.id in desk.state.operations


# -- several decisions as one record ---------------------------------------------------------


async def test_a_batch_is_one_record_and_each_is_checked_against_those_before_it(
    desk: Desk,
) -> None:
    refine = an_operation("modify", "E3", "three, refined", id="op1.5")
    await desk.propose(DELETE, MODIFY, ADD, refine, MORE)
    before = len(desk.journal_path.read_bytes().splitlines())
    wanted = [a_decision(op) for op in (DELETE, MODIFY, ADD, refine)]
    results = await desk.gate.decide_all([*wanted, a_decision(MORE, "reject", reason="no")])
    assert [one.note for one in results] == [
        "",
        "rejected: E1 was deleted by op1.1",
        "becomes E3",
        "",
        "",
    ]
    assert len(desk.journal_path.read_bytes().splitlines()) == before + 1
    assert [e.text for e in desk.gate.draft().experiences] == ["two", "three, refined"]
    assert [(d.operation_id, d.at) for d in desk.state.decisions.values()] == [
        (op.id, 9.0) for op in (DELETE, MODIFY, ADD, refine, MORE)
    ]
    library = (await desk.gate.commit(1)).library
    assert [e.id for e in library.experiences] == ["E2", "E3"]
    assert desk.state.curation["person"].approved == 3


async def test_a_batch_cut_anywhere_stands_whole_or_not_at_all(desk: Desk) -> None:
    await desk.propose(ADD, MORE, DELETE)
    whole = desk.journal_path.read_bytes()
    await desk.gate.decide_all([a_decision(op) for op in (ADD, MORE, DELETE)])
    after = desk.journal_path.read_bytes()
    desk.journal.close()
    for end in (*range(len(whole), len(after), 7), len(after)):
        desk.journal_path.write_bytes(after[:end])
        desk.reopen()
        stand = [ADD.id, MORE.id, DELETE.id] if end >= len(after) - 1 else []  # but its newline
        assert list(desk.state.decisions) == stand, end
        desk.journal.close()
    desk.reopen()


async def test_a_batch_of_which_one_is_refused_decides_nothing(desk: Desk) -> None:
    await desk.propose(ADD, MORE)
    before = desk.journal_path.read_bytes()
    for refused in (a_decision("op9.9"), a_decision(ADD, "reject", reason="twice")):
        with pytest.raises(ConflictError):
            await desk.gate.decide_all([a_decision(ADD), refused])
    with pytest.raises(ConflictError):
        await desk.gate.decide_all([])
    assert desk.journal_path.read_bytes() == before and not desk.state.decisions
    assert await desk.decide(ADD) == "becomes E3"


async def test_a_batch_that_decides_anew_takes_back_what_rested_on_it(desk: Desk) -> None:
    refine = an_operation("modify", "E3", "three, refined", id="op1.5")
    await desk.propose(ADD, refine, MORE)
    for operation in (ADD, refine):
        await desk.decide(operation)
    batch = [a_decision(ADD, "reject", reason="no"), a_decision(MORE)]
    assert [one.note for one in await desk.gate.decide_all(batch)] == ["", "becomes E3"]
    assert list(desk.state.decisions) == [ADD.id, MORE.id]
    assert await desk.gate.undo(MORE.id) == (MORE.id,)
