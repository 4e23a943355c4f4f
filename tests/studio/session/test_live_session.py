"""What the loop does for a screen: own operations, a held commit, a pause on the spot, a kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.agents.loops import SingleTurn
from engines.core import events as ev
from engines.core.errors import ConflictError, LockedError
from engines.core.protocols import OnText, Policy
from engines.core.state.fold import fold_events
from engines.core.types import (
    Attempt,
    CallKey,
    Completion,
    Decision,
    Job,
    Message,
    Operation,
    Problem,
    Sampling,
    Usage,
)
from engines.pipeline.budget import Budget, BudgetedPolicy, BudgetLimits, CallPricing
from engines.pipeline.context import RunContext
from engines.pipeline.control import IN_A_ROW, Outage, RunControl
from engines.pipeline.recorder import Listener
from engines.pipeline.reviewers import AutoReviewer, HumanReviewer
from engines.policies.limits import PausablePolicy, Slots
from engines.record.journal import read_journal
from engines.record.ledger import RecordLedger
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from engines.rollouts.manager import RolloutManager
from studio.facts.step import step_facts
from studio.render.run_lines import step_text
from studio.review.review_run import open_session
from studio.run.held_out import LazyLinter
from studio.session.requests import Propose
from tests.engines.pipeline.gate.test_gate import ADD, DELETE, MORE, Desk
from tests.support.builders import (
    a_decision,
    a_rollout_finished,
    a_run,
    a_step,
    an_operation,
    answering,
)
from tests.support.harness import comparable, practised

TINY = (
    "practice.epochs=1",
    "practice.batch_size=2",
    "practice.group_size=3",
    "data.truncate=4",
)
OWN = Operation("op1.h1", "add", text="Say the unit.", rationale="it is asked for")


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path, "one", "two")
    yield made
    await made.journal.aclose()


async def idle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def stages(desk: Desk) -> list[tuple[str, dict[str, int]]]:
    """The stages that are entered from now on, as they come."""
    heard: list[tuple[str, dict[str, int]]] = []

    def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
        if isinstance(event, ev.StageEntered):
            heard.append((event.stage, dict(event.detail)))

    desk.recorder.listen(hear)
    return heard


# -- operations of a person's own --------------------------------------------------------


async def test_an_own_operation_under_review_blocks_the_commit_until_it_is_decided(
    desk: Desk,
) -> None:
    await desk.propose(ADD)
    made = await desk.gate.propose(OWN, "ann")
    assert (made.id, made.proposer, made.rationale) == ("op1.h1", "ann", "it is asked for")
    await desk.decide(ADD)
    assert desk.state.undecided_operations == (made,)
    await desk.decide(made)
    done = await desk.gate.commit(1)
    assert [e.text for e in done.library.experiences] == ["one", "two", "three", "Say the unit."]
    mark = done.library.experiences[-1].history[-1]
    assert (mark.operation_id, mark.proposer, mark.reviewer) == ("op1.h1", "ann", "person")


async def test_an_own_operation_outside_of_a_lesson_is_open_and_joins_the_next_commit(
    desk: Desk,
) -> None:
    await desk.propose(ADD)
    await desk.decide(ADD)
    await desk.gate.commit(1)
    await desk.recorder.record(ev.StepFinished(1, 1))
    made = await desk.gate.propose(OWN, "ann")
    assert (desk.state.open_operations, desk.state.undecided_operations) == ((made,), ())
    await desk.propose(step=2)  # an empty lesson does not wait for it
    await desk.opened(HumanReviewer(hold_s=0)).review(2)
    await desk.decide(made)
    done = await desk.gate.commit(2)
    assert [(o.operation_id, o.applied) for o in done.outcomes] == [(made.id, True)]


async def test_an_id_is_never_given_twice_also_after_its_operation_was_committed(
    desk: Desk,
) -> None:
    await desk.propose(ADD)
    first = await desk.gate.propose(OWN, "ann")
    for operation in (ADD, first):
        await desk.decide(operation, "reject", reason="no")
    await desk.gate.commit(1)
    desk.journal.close()
    desk.reopen()
    again = await desk.gate.propose(replace(OWN, text="Something else."), "ann")
    assert (first.id, again.id) == ("op1.h1", "op1.h2")


@pytest.mark.parametrize(
    ("operation", "objection"),
    [
        (an_operation("modify", "E9", "x"), "E9 was never in this library"),
        (an_operation("add", None, "one"), "E1 already says exactly this"),
        (an_operation("add", "E1", "new"), "an addition names no experience"),
        (Operation("op1.h1", "add"), "an addition needs a text"),
    ],
)
async def test_an_own_operation_that_does_not_fit_is_refused_and_not_journalled(
    desk: Desk, operation: Operation, objection: str
) -> None:
    await desk.propose(ADD)
    before = desk.state.events
    with pytest.raises(ConflictError, match=objection):
        await desk.gate.propose(operation, "ann")
    assert desk.state.events == before


async def test_an_own_operation_is_checked_against_the_draft_of_earlier_answers(
    desk: Desk,
) -> None:
    await desk.propose(DELETE)
    await desk.decide(DELETE)
    with pytest.raises(ConflictError, match="E1 was deleted by"):
        await desk.gate.propose(an_operation("modify", "E1", "one, better"), "ann")


async def test_an_own_operation_survives_the_process_and_comes_with_its_flags(
    tmp_path: Path,
) -> None:
    await practised(tmp_path, *TINY, "review.hold_s=0.01", review="wait")
    run = Workspace(tmp_path).run("rehearsal")
    before = run.state()
    one = before.open_operations[0]
    await asyncio.to_thread(_propose_alone, tmp_path, replace(OWN, text=f"{one.text} Indeed."))
    state = run.state()
    assert [op.id for op in state.undecided_operations][-1] == "op1.h1"
    assert [flag.name for flag in state.operations["op1.h1"].flags] == ["duplicate"]
    facts = step_facts(run, 1)
    assert [(event.operation.id, event.reviewer) for event in facts.own] == [("op1.h1", "ann")]
    assert "op1.h1  add" in step_text(facts, prompts=False)
    assert "proposed by ann" in step_text(facts, prompts=False)

    done = await practised(tmp_path, *TINY, review="auto")
    assert not done.state.open_operations
    marks = {e.history[-1].operation_id: e.history[-1] for e in done.library.experiences}
    assert marks["op1.h1"].proposer == "ann"


def _propose_alone(workspace: Path, operation: Operation) -> None:
    place = Workspace(workspace)
    run = place.run("rehearsal")
    linter = LazyLinter(place, run, lambda _: None)
    with open_session(place, run, "ann", linter) as (session, wait_for):
        wait_for(session.send(Propose(operation, session.who)))


async def test_a_run_forked_after_an_own_operation_begins_with_the_library_it_made(
    tmp_path: Path,
) -> None:
    def proposing(practice: RunContext) -> RunContext:
        async def propose() -> None:
            await practice.gate.propose(OWN, "ann")

        practice.recorder.listen(_at("LessonProposed", propose, once=True))
        return practice

    parent = await practised(tmp_path, *TINY, reviewers=(Slow(), AutoReviewer()), change=proposing)
    texts = [text for _, text in parent.texts]
    assert "Say the unit." in texts
    child = await practised(tmp_path, *TINY, restart_step=1)
    assert child.state.started is not None
    assert child.state.started.forked_from == "rehearsal"
    begun = practised_version(tmp_path, child.state.started.library)
    assert "Say the unit." in begun
    assert child.state.own == set()  # its ids are its own


def practised_version(workspace: Path, library: str) -> list[str]:
    return [e.text for e in Workspace(workspace).library(library).at(0).experiences]


class Slow:
    """Decides nothing, and lets everything else run first."""

    name = "slow"

    async def review(self, operations: Sequence[Operation], library: object) -> AsyncIterator[None]:
        for _ in range(200):
            await asyncio.sleep(0.001)
        for nothing in ():
            yield nothing


def _at(kind: str, do: object, *, once: bool) -> Listener:
    """A listener that starts a task at the first event of a kind."""
    tasks: list[asyncio.Task[None]] = []

    def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
        if type(event).__name__ == kind and not (once and tasks):
            tasks.append(asyncio.ensure_future(do()))  # type: ignore[operator]

    return hear


# -- a held commit -----------------------------------------------------------------------


async def test_a_held_commit_waits_until_it_is_let_go_and_decisions_can_be_undone_meanwhile(
    desk: Desk,
) -> None:
    await desk.propose(ADD, MORE)
    gate = desk.opened(HumanReviewer())
    heard = stages(desk)
    gate.hold.set(True)
    review = asyncio.create_task(gate.review(1))
    await idle()
    await desk.decide(ADD)
    await desk.decide(MORE, "reject", reason="no")
    await idle()
    assert not review.done()
    ready = {"approved": 1, "edited": 0, "rejected": 1, "deferred": 0, "version": 1}
    assert heard[-1] == ("ready", ready)
    await gate.undo(MORE.id)
    await idle()
    assert not review.done()
    await desk.decide(MORE)
    await idle()
    assert heard[-1] == ("ready", ready | {"approved": 2, "rejected": 0})
    gate.hold.set(False)
    await review
    assert [o.applied for o in (await gate.commit(1)).outcomes] == [True, True]


async def test_a_commit_that_is_let_go_goes_through_although_the_next_is_held_at_once(
    desk: Desk,
) -> None:
    await desk.propose(ADD, MORE)
    gate = desk.opened(HumanReviewer())
    gate.hold.set(True)
    review = asyncio.create_task(gate.review(1))
    await idle()
    await desk.decide(ADD)
    assert await gate.defer_undecided("ann") == 1
    gate.hold.set(False)
    gate.hold.set(True)
    await review
    done = await gate.commit(1)
    assert [o.operation_id for o in done.outcomes] == [ADD.id]
    assert desk.state.open_operations == (MORE,)
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.propose(replace(ADD, id="op2.1", text="five"), step=2)
    second = asyncio.create_task(gate.review(2))
    await idle()
    await gate.defer_undecided("ann")
    await idle()
    assert not second.done()  # the next one is held again
    gate.hold.set(False)
    await second


async def test_who_leaves_in_the_middle_and_comes_back_says_when_it_is_committed(
    desk: Desk,
) -> None:
    await desk.propose(ADD, MORE)
    gate = desk.opened(HumanReviewer())
    gate.hold.set(True)
    review = asyncio.create_task(gate.review(1))
    await idle()
    await desk.decide(ADD)
    gate.hold.set(False)  # they leave, with one operation open
    await idle()
    gate.hold.set(True)  # and come back
    await desk.decide(MORE)
    await idle()
    assert not review.done()
    gate.hold.set(False)
    await review


async def test_letting_go_of_nothing_lets_no_later_lesson_go(desk: Desk) -> None:
    gate = desk.opened(HumanReviewer())
    gate.hold.set(False)
    gate.hold.set(True)
    await desk.propose(ADD)
    review = asyncio.create_task(gate.review(1))
    await idle()
    await desk.decide(ADD)
    await idle()
    assert not review.done()
    review.cancel()


async def test_an_empty_lesson_and_one_that_no_person_decides_are_never_held(desk: Desk) -> None:
    await desk.propose()
    gate = desk.opened(HumanReviewer())
    gate.hold.set(True)
    await gate.review(1)
    await gate.commit(1)
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.propose(replace(ADD, id="op2.1"), step=2)
    gate = desk.opened(AutoReviewer())
    gate.hold.set(True)
    await gate.review(2)
    gate = desk.opened(AutoReviewer(), HumanReviewer())
    gate.hold.set(True)
    await gate.review(2)
    assert len((await gate.commit(2)).outcomes) == 1


async def test_what_a_person_takes_back_from_a_rule_is_not_given_to_the_rule_again(
    desk: Desk,
) -> None:
    leaves = Some(ADD.id)
    await desk.propose(ADD, MORE)
    gate = desk.opened(leaves, HumanReviewer())
    gate.hold.set(True)
    review = asyncio.create_task(gate.review(1))
    await idle()
    await desk.decide(MORE)
    await idle()
    await gate.undo(ADD.id)
    await idle()
    assert desk.state.undecided_operations == (ADD,)
    await desk.decide(ADD, "reject", reason="no")
    gate.hold.set(False)
    await review
    assert leaves.asked == [ADD.id, MORE.id]


class Some:
    """Approves one operation and leaves the others."""

    name = "rules:some"

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self.asked: list[str] = []

    async def review(self, operations: Sequence[Operation], library: object):  # type: ignore[no-untyped-def]
        for operation in operations:
            self.asked.append(operation.id)
            if operation.id == self._operation:
                yield a_decision(operation, reviewer=self.name)


async def test_a_driver_that_leaves_in_the_middle_leaves_a_review_as_it_always_was(
    desk: Desk,
) -> None:
    await desk.propose(ADD, MORE)
    gate = desk.opened(HumanReviewer())
    gate.hold.set(True)
    review = asyncio.create_task(gate.review(1))
    await idle()
    await desk.decide(ADD)
    gate.hold.set(False)
    await idle()
    assert not review.done()  # one is undecided
    await desk.decide(MORE)
    await review


async def test_a_held_run_has_the_journal_of_one_that_was_not(tmp_path: Path) -> None:
    def deciding(hold: bool) -> object:
        def change(practice: RunContext) -> RunContext:
            gate = practice.gate
            gate.hold.set(hold)

            async def decide() -> None:
                for operation in practice.recorder.state.undecided_operations:
                    await gate.decide(a_decision(operation))
                if hold:
                    await asyncio.sleep(0)
                    gate.hold.set(False)
                    gate.hold.set(True)

            def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
                if isinstance(event, ev.StageEntered) and event.stage == "review":
                    tasks.append(asyncio.ensure_future(decide()))

            tasks: list[asyncio.Task[None]] = []
            practice.recorder.listen(hear)
            return practice

        return change

    plain = await practised(tmp_path / "a", *TINY, review="wait", change=deciding(False))  # type: ignore[arg-type]
    held = await practised(tmp_path / "b", *TINY, review="wait", change=deciding(True))  # type: ignore[arg-type]
    assert plain.texts == held.texts
    assert plain.texts
    assert comparable(plain.run) == comparable(held.run)


# -- a pause on the spot -----------------------------------------------------------------


class Talk:
    """An agent that makes so many calls, one after the other."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
        said = [Message("user", job.problem.question)]
        for _ in range(self._turns):
            said.append((await policy.complete(tuple(said), Sampling())).as_message())
        return Attempt(tuple(said), said[-1].content)


class Held:
    """A policy whose calls end when they are told to."""

    name = "held"

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.begun += 1
        await self.gate.wait()
        return Completion(f"reply {self.begun}", usage=Usage(3, 4, 1))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def a_job(index: int = 0) -> Job:
    return Job(Problem("p", "6 * 7?", "42"), "", CallKey("rollout", 1, 1, 0, index), 0, 0)


async def test_a_pause_on_the_spot_parks_a_try_at_its_next_call_and_stops_its_deadline(
    desk: Desk, tmp_path: Path
) -> None:
    await desk.recorder.record(a_run())
    control, inner = RunControl(desk.recorder), Held()
    policy = PausablePolicy(inner, control.wait_before_call)
    ledger = RecordLedger(tmp_path / "records", 1)
    manager = RolloutManager(
        agent=Talk(3),
        policy=policy,
        ledger=ledger,
        slots=Slots(2),
        task_timeout_s=0.2,
        cleared=control.wait_while_paused,
    )
    trying = asyncio.create_task(manager.roll_out(a_job()))
    await idle()
    await control.pause(now=True)
    assert desk.state.status == "paused"
    inner.gate.set()  # the call under way ends, and is kept
    await asyncio.sleep(0.3)  # longer than its deadline, which stands still meanwhile
    assert (inner.begun, trying.done(), ledger.asked) == (1, False, 2)
    await control.resume()
    attempt, refs = await trying
    assert (attempt.status, len(refs), inner.begun) == ("ok", 3, 3)
    await ledger.aclose()


async def test_a_pause_as_it_always_was_lets_a_try_under_way_end(
    desk: Desk, tmp_path: Path
) -> None:
    await desk.recorder.record(a_run())
    control, inner = RunControl(desk.recorder), Held()
    policy = PausablePolicy(inner, control.wait_before_call)
    ledger = RecordLedger(tmp_path / "records", 1)
    manager = RolloutManager(
        agent=Talk(3),
        policy=policy,
        ledger=ledger,
        slots=Slots(2),
        task_timeout_s=9.0,
        cleared=control.wait_while_paused,
    )
    trying = asyncio.create_task(manager.roll_out(a_job()))
    await idle()
    await control.pause()
    inner.gate.set()
    assert (await trying)[0].status == "ok"
    await control.pause(now=True)  # a pause can be sharpened, and is told only once
    events = [type(entry.event).__name__ for entry in read_journal(desk.journal_path)]
    assert events.count("RunPaused") == 1
    await ledger.aclose()


@pytest.mark.parametrize("how", ["resume", "step", "stop"])
async def test_whatever_goes_on_after_a_pause_on_the_spot_lets_calls_through(
    desk: Desk, how: str
) -> None:
    await desk.recorder.record(a_run())
    await desk.recorder.record(a_step())
    control = RunControl(desk.recorder)
    await control.pause(now=True)
    calling = asyncio.create_task(
        PausablePolicy(answering("yes"), control.wait_before_call).complete((), Sampling())
    )
    await idle()
    assert not calling.done()
    match how:
        case "resume":
            await control.resume()
        case "step":
            await control.step()
        case _:
            control.stop("after this step", after_step=True)
    assert (await calling).text == "yes"


async def test_who_is_parked_has_reserved_nothing() -> None:
    budget = Budget(BudgetLimits(calls=1), lambda why: None)
    closed = asyncio.Event()
    inner = BudgetedPolicy(answering("yes", "yes"), budget, CallPricing(100))
    parked = asyncio.create_task(PausablePolicy(inner, closed.wait).complete((), Sampling()))
    await idle()
    assert (await inner.complete((), Sampling())).text == "yes"
    parked.cancel()


async def test_a_run_paused_on_the_spot_asks_no_model_until_it_goes_on(tmp_path: Path) -> None:
    asked: list[int] = []

    def change(practice: RunContext) -> RunContext:
        async def pause() -> None:
            await practice.control.pause(now=True)
            for _ in range(20):
                await asyncio.sleep(0.001)
            before = practice.ledger.paid.calls
            for _ in range(50):
                await asyncio.sleep(0.001)
            asked.append(practice.ledger.paid.calls - before)
            await practice.control.resume()

        practice.recorder.listen(_at("RolloutFinished", pause, once=True))
        return practice

    paused = await practised(tmp_path / "a", *TINY, change=change)
    plain = await practised(tmp_path / "b", *TINY)
    assert asked == [0]
    assert paused.texts == plain.texts
    kinds = ("RunPaused", "RunContinued")
    kept = [row for row in comparable(paused.run) if not any(kind in row for kind in kinds)]
    assert kept == comparable(plain.run)


# -- a killed rollout --------------------------------------------------------------------


async def test_a_killed_rollout_fails_with_who_did_it_and_the_others_go_on(tmp_path: Path) -> None:
    inner = Held()
    ledger = RecordLedger(tmp_path, 1)
    slots = Slots(2)
    manager = RolloutManager(Talk(1), inner, ledger, slots, 60.0)
    tries = [asyncio.create_task(manager.roll_out(a_job(index))) for index in range(3)]
    await idle()
    assert not manager.kill(1, 0, 2, "killed by ann")  # it waits for a slot: nothing to kill
    assert not manager.kill(1, 1, 0, "killed by ann")
    assert manager.kill(1, 0, 0, "killed by ann")
    killed, _ = await tries[0]
    assert (killed.status, killed.answer, killed.error) == ("failed", None, "killed by ann")
    await idle()
    assert inner.begun == 3  # its slot was given to the one that waited
    inner.gate.set()
    assert [(await trying)[0].status for trying in tries[1:]] == ["ok", "ok"]
    assert not manager.kill(1, 0, 1, "killed by ann")
    assert slots.held_count == 0
    await ledger.aclose()


async def test_a_killed_rollout_gives_its_reservation_back_and_keeps_what_was_paid(
    tmp_path: Path,
) -> None:
    inner = Held()
    budget = Budget(BudgetLimits(calls=2), lambda why: None)
    ledger = RecordLedger(tmp_path, 1)
    policy = BudgetedPolicy(inner, budget, CallPricing(100))
    manager = RolloutManager(SingleTurn("", Sampling()), policy, ledger, Slots(1), 60.0)
    trying = asyncio.create_task(manager.roll_out(a_job()))
    await idle()
    assert manager.kill(1, 0, 0, "killed by ann")
    attempt, _ = await trying
    assert attempt.usage.calls == 1  # it was sent, so it is likely charged for
    assert budget.spent.calls == 1
    inner.gate.set()
    assert (await manager.roll_out(a_job(1)))[0].status == "ok"
    await ledger.aclose()


async def test_a_kill_in_the_moment_in_which_a_try_ends_is_no_lie(tmp_path: Path) -> None:
    inner = Held()
    ledger = RecordLedger(tmp_path, 1)
    manager = RolloutManager(Talk(1), inner, ledger, Slots(1), 60.0)
    for turns in range(12):
        inner.gate.clear()
        trying = asyncio.create_task(manager.roll_out(a_job(turns)))
        await idle()
        inner.gate.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        killed = manager.kill(1, 0, turns, "killed by ann")
        attempt, _ = await trying
        assert (attempt.error == "killed by ann") is killed, turns
    await ledger.aclose()


async def test_a_run_that_is_stopped_while_a_rollout_is_killed_is_stopped(tmp_path: Path) -> None:
    ledger = RecordLedger(tmp_path, 1)
    manager = RolloutManager(Talk(1), Held(), ledger, Slots(1), 60.0)
    trying = asyncio.create_task(manager.roll_out(a_job()))
    await idle()
    manager.kill(1, 0, 0, "killed by ann")
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    await ledger.aclose()


async def test_a_killed_rollout_has_no_reward_and_is_tried_again_on_a_resume(
    tmp_path: Path,
) -> None:
    def killing(practice: RunContext) -> RunContext:
        def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
            if (
                isinstance(event, ev.RolloutStarted)
                and event.key.step == 1
                and event.key.index == 0
            ):
                key = event.key
                asyncio.get_running_loop().call_soon(
                    practice.rollouts.kill, key.step, key.position, key.index, "killed by ann"
                )
            if isinstance(event, ev.RolloutFinished) and event.status == "failed":
                practice.control.stop("enough")

        practice.recorder.listen(hear)
        return practice

    cut = await practised(tmp_path, *TINY, change=killing)
    failed = [
        entry.event
        for entry in cut.run.entries()
        if isinstance(entry.event, ev.RolloutFinished) and entry.event.status == "failed"
    ]
    assert {event.error for event in failed} == {"killed by ann"}
    assert all(event.usage.calls <= 1 for event in failed)
    again = await practised(tmp_path, *TINY)
    undisturbed = await practised(tmp_path / "undisturbed", *TINY)
    assert again.state.lost == {}
    assert again.texts == undisturbed.texts


async def test_a_group_learns_from_the_others_when_one_of_it_is_killed(tmp_path: Path) -> None:
    def killing(practice: RunContext) -> RunContext:
        def hear(event: ev.DurableEvent | ev.TransientEvent) -> None:
            if isinstance(event, ev.RolloutStarted) and event.key.index == 2:
                key = event.key
                asyncio.get_running_loop().call_soon(
                    practice.rollouts.kill, key.step, key.position, key.index, "killed by ann"
                )

        practice.recorder.listen(hear)
        return practice

    done = await practised(tmp_path, *TINY, change=killing)
    judged = [
        (entry.event.index, entry.event.verdict.reward)
        for entry in done.run.entries()
        if isinstance(entry.event, ev.RolloutJudged)
    ]
    assert {reward for index, reward in judged if index == 2} == {None}
    assert None not in {reward for index, reward in judged if index != 2}
    assert done.state.status == "finished"
    assert done.state.lost["rollout"] == 4


def test_killed_rollouts_are_no_outage() -> None:
    gave_up: list[str] = []
    outage = Outage(gave_up.append)
    state = fold_events([a_run(), a_step()])
    for index in range(IN_A_ROW + 1):
        killed = a_rollout_finished(0, index, error="killed by ann")
        outage.report_rollout(killed, state)
    assert gave_up == []
    for index in range(IN_A_ROW + 1):
        failed = a_rollout_finished(1, index, error="timeout: no answer within 1 s")
        outage.report_rollout(failed, state)
    assert len(gave_up) > 0


async def test_a_commit_that_waits_for_the_library_does_not_hold_the_run_up(desk: Desk) -> None:
    await desk.propose(ADD)
    await desk.decide(ADD)
    with write_lock(desk.folder.path):
        committing = asyncio.create_task(desk.gate.commit(1))
        await idle()  # a wait that held the loop up would be over by now, in vain
        assert not committing.done()
    done = await asyncio.wait_for(committing, 20)
    assert done.library.version == 1


async def test_a_library_that_is_held_for_too_long_is_named_with_who_holds_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.pipeline.gate.gate.LOCK_TIMEOUT_S", 0.0)
    await desk.propose(ADD)
    await desk.decide(ADD)
    with write_lock(desk.folder.path), pytest.raises(LockedError, match="is writing here"):
        await desk.gate.commit(1)
    assert (await desk.gate.commit(1)).library.version == 1


async def test_letting_go_once_commits_one_lesson_and_holds_the_next(desk: Desk) -> None:
    waiting = desk.opened(HumanReviewer())
    waiting.hold.set(True)
    await desk.propose(ADD)
    reviewing = asyncio.create_task(waiting.review(1))
    await idle()
    waiting.hold.release_once()
    await idle()
    assert not reviewing.done(), "something of it is undecided"
    await waiting.decide(Decision(ADD.id, "reject", reviewer="ann"))
    await idle()
    assert not reviewing.done(), "it was not let go of"
    waiting.hold.release_once()
    await asyncio.wait_for(reviewing, 20)
    await waiting.commit(1)
    await desk.recorder.record(ev.StepFinished(1, 1))
    await desk.propose(replace(ADD, id="op2.1"), step=2)
    await waiting.decide(Decision("op2.1", "reject", reviewer="ann"))
    following = asyncio.create_task(waiting.review(2))
    await idle()
    assert not following.done()
    following.cancel()
