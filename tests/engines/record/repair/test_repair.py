"""Replies that could not be understood: opened, mended, resubmitted, at any time of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.types import Decision, Group, Lesson, LostWork, Operation, Reflection
from engines.pipeline.context import RunContext
from engines.pipeline.reviewers import AutoReviewer, HumanReviewer
from engines.record.run_dir import RunDir, Workspace
from engines.training_free.consolidation import TrainingFreeEngine
from studio.exit_codes import run_exit_code
from studio.facts.run import load_run_facts
from studio.render.run_lines import run_text
from studio.review.evidence import EvidenceLoader
from studio.review.line_mode import LineReview
from studio.review.review_run import RunReview, open_session
from studio.run.held_out import LazyLinter
from studio.session.control_socket import ask
from studio.session.requests import Decide, Drop, Mend, ReadQueue, Request
from studio.session.server import serve
from tests.support.harness import practised

SMALL = (
    "practice.epochs=1",
    "practice.batch_size=4",
    "practice.group_size=3",
    "data.truncate=8",
)
GARBLED = "I have thought about it\x1b[2J and found nothing."


class Garbling:
    """The engine of a run, some of whose replies come back as prose.

    `groups` are those whose extraction does, `steps` those whose consolidation does.
    """

    def __init__(self, engine: object, groups: Sequence[str], steps: Sequence[int]) -> None:
        assert isinstance(engine, TrainingFreeEngine)
        self._engine, self._groups, self._steps = engine, groups, steps
        self.apply, self.save, self.restore = engine.apply, engine.save, engine.restore
        self.plan = engine.plan

    async def reflect(
        self, group: Group, library: Library, earlier: Sequence[asyncio.Future[Group]] = ()
    ) -> Reflection:
        found = await self._engine.reflect(group, library, earlier)
        if group.id not in self._groups or found.outcome != "used":
            return found
        loss = LostWork("extraction", group.id, "no JSON array was found in it.", GARBLED)
        return replace(found, outcome="failed", proposals=(), losses=(loss,))

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        found = await self._engine.consolidate(batch, reflections, library)
        step = batch[0].step
        if step not in self._steps:
            return found
        loss = LostWork("consolidation", f"step {step}", "its JSON is not valid.", GARBLED)
        return replace(found, operations=(), losses=(loss,))


def garbling(*groups: str, steps: Sequence[int] = ()) -> Callable[[RunContext], RunContext]:
    return lambda practice: replace(practice, engine=Garbling(practice.engine, groups, steps))


def new(text: str, **more: object) -> str:
    return json.dumps([{"operation": "add", "experience": text, "reason": "so", **more}])


def run_of(workspace: Path) -> RunDir:
    return Workspace(workspace).run("rehearsal")


def page_facts(workspace: Path) -> dict[str, Any]:
    run = run_of(workspace)
    return load_run_facts(run, Workspace(workspace), alive=False)


def texts(workspace: Path) -> list[str]:
    head = Workspace(workspace).library("rehearsal").head()
    return [e.text for e in head.experiences]


def at_desk(workspace: Path, *typed: str) -> str:
    """A sitting without a process; returns what was said, and what closing brought."""
    said: list[str] = []
    keys = iter(typed)
    run = run_of(workspace)
    linter = LazyLinter(Workspace(workspace), run, said.append)
    with open_session(Workspace(workspace), run, "ann", linter) as (session, wait_for):
        review = RunReview(session, wait_for, waits=False, say=said.append, tell=said.append)
        evidence = EvidenceLoader(run)
        LineReview(review, lambda prompt: next(keys, None), lambda text: None, evidence).run()
    return "\n".join(said)


async def test_a_run_whose_losses_were_all_mended_and_decided_ends_clean(tmp_path: Path) -> None:
    done = await practised(tmp_path, *SMALL, change=garbling("s1p0", "s1p1", "s1p2", "s1p3"))
    waiting = list(done.state.repairs)
    assert waiting, "rehearsal makes no slip in this batch: choose another"
    assert run_exit_code(done.state) == 4, "lost, not open"
    outcomes = done.state.group_outcomes()
    page = run_text(page_facts(tmp_path))
    assert f"{waiting[0]}  extraction reply that could not be understood" in page
    assert "studio review rehearsal" in page
    typed = [f"e {new(f'Rule {name}: mind it.')}" for name in waiting]
    both = [key for line in typed for key in (line, "a")]
    said = await asyncio.to_thread(at_desk, tmp_path, *both)
    assert "committed: library rehearsal is at v" in said
    assert "\x1b" not in said
    after = run_of(tmp_path).state()
    assert [t for t in texts(tmp_path) if t.startswith("Rule s1")] == [
        f"Rule {name}: mind it." for name in waiting
    ]
    assert (after.repairs, dict(after.lost), run_exit_code(after)) == ({}, {}, 0)
    assert sum(after.group_outcomes().values()) == sum(outcomes.values())
    page = run_text(page_facts(tmp_path))
    assert f"{waiting[0]}  mended by ann" in page
    ((name, counted),) = [(n, c) for n, c in after.curation.items() if n == "ann"]
    assert (name, counted.approved, counted.n) == ("ann", len(waiting), len(waiting))


async def test_a_mended_operation_knows_its_rollouts_problem_author_and_prompt(
    tmp_path: Path,
) -> None:
    done = await practised(tmp_path, *SMALL, change=garbling("s1p0", "s1p1", "s1p2", "s1p3"))
    name = next(iter(done.state.repairs))
    await asyncio.to_thread(at_desk, tmp_path, f"e {new('Rule one: mind it.')}", "q")
    events = [entry.event for entry in done.run.entries()]
    mended = next(e for e in events if isinstance(e, ev.ReplyMended))
    (operation,) = mended.operations
    begun = next(e for e in events if isinstance(e, ev.StepStarted))
    reflected = next(
        e.reflection
        for e in events
        if isinstance(e, ev.GroupReflected) and e.step == 1 and f"s1p{e.position}" == name
    )
    assert operation.id == f"op1.{name[2:]}.1"
    assert set(operation.evidence) == {f"{name}r{n}" for n in range(3)}
    assert operation.problems == (begun.problems[int(name[3:])],)
    assert operation.proposer == "rehearsal"
    assert operation.prompt_hash == reflected.prompt_hash != ""
    assert operation.rationale == "so (mended by ann)"
    assert run_of(tmp_path).state().open_operations == mended.operations


async def test_a_mended_consolidation_rests_on_the_step_s_proposals(tmp_path: Path) -> None:
    done = await practised(tmp_path, *SMALL, change=garbling(steps=[1]))
    assert list(done.state.repairs) == ["s1"]
    proposals = [
        proposal
        for entry in done.run.entries()
        if isinstance(entry.event, ev.GroupReflected) and entry.event.step == 1
        for proposal in entry.event.reflection.proposals
    ]
    assert len(proposals) >= 2
    said = await asyncio.to_thread(
        at_desk, tmp_path, f"e {new('Rule one: mind it.', proposals=[2])}", "v", "a"
    )
    assert "op1.m1" in said
    (operation,) = [
        op
        for entry in done.run.entries()
        if isinstance(entry.event, ev.ReplyMended)
        for op in entry.event.operations
    ]
    positions = {name.rpartition("r")[0] for name in operation.evidence}
    assert len(positions) == 1, "one proposal, one group"
    assert "Rule one: mind it." in texts(tmp_path)


async def test_what_was_understood_the_first_time_is_not_doubled(tmp_path: Path) -> None:
    done = await practised(tmp_path, *SMALL)
    lesson = next(
        e.event.lesson for e in done.run.entries() if isinstance(e.event, ev.LessonProposed)
    )
    kept = lesson.operations[0]

    def half(practice: RunContext) -> RunContext:
        engine = practice.engine

        class Half(Garbling):
            async def consolidate(
                self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
            ) -> Lesson:
                found = await engine.consolidate(batch, reflections, library)
                loss = LostWork("proposal", f"step {found.step}", "Object 2: no.", GARBLED)
                return replace(found, losses=(loss,)) if found.step == 1 else found

        return replace(practice, engine=Half(engine, (), ()))

    again = await practised(tmp_path / "other", *SMALL, change=half)
    assert dict(again.state.lost) == {"proposal": 1}
    said = await asyncio.to_thread(at_desk, tmp_path / "other", f"e {new(kept.text)}")
    assert f"Object 1 is left out: {kept.id} says the same." in said
    after = run_of(tmp_path / "other").state()
    assert (after.open_operations, dict(after.lost)) == ((), {})


async def test_a_kill_between_mending_and_deciding_loses_nothing_and_mends_nothing_twice(
    tmp_path: Path,
) -> None:
    done = await practised(tmp_path, *SMALL, change=garbling(steps=[1]))
    mend = f"e {new('Rule one: mind it.')}"
    # The input ends where a kill would: nothing of a sitting is kept but the journal.
    await asyncio.to_thread(at_desk, tmp_path, mend)
    state = run_of(tmp_path).state()
    assert [op.text for op in state.open_operations] == ["Rule one: mind it."]
    assert run_exit_code(state) == 3, "now an operation is open"

    def twice() -> None:
        with open_session(Workspace(tmp_path), done.run, "bob") as (session, wait_for):
            for attempt in (
                session.send(Mend("s1", new("x"), "bob")),
                session.send(Drop("s1", "no", "bob")),
            ):
                with pytest.raises(ConflictError, match="it was mended by ann already"):
                    wait_for(attempt)
            with pytest.raises(ConflictError, match="no such reply is open"):
                wait_for(session.send(Mend("s9p9", new("x"), "bob")))

    await asyncio.to_thread(twice)
    await asyncio.to_thread(at_desk, tmp_path, "a")
    assert texts(tmp_path).count("Rule one: mind it.") == 1


async def test_a_dropped_reply_stays_lost_and_is_asked_no_more(tmp_path: Path) -> None:
    await practised(tmp_path, *SMALL, change=garbling(steps=[1]))
    await asyncio.to_thread(at_desk, tmp_path, "d mere prose")
    state = run_of(tmp_path).state()
    assert (state.repairs, run_exit_code(state)) == ({}, 4)
    page = run_text(page_facts(tmp_path))
    assert "s1  dropped by ann" in page


async def test_a_mended_reply_is_linted_with_its_siblings_beside_it(tmp_path: Path) -> None:
    await practised(tmp_path, *SMALL, change=garbling(steps=[1]))
    both = json.dumps(
        [
            {"operation": "modify", "id": "E1", "experience": "Rule one: mind it."},
            {"operation": "delete", "id": "E1"},
        ]
    )
    assert texts(tmp_path), "step 2 has brought something in"
    await asyncio.to_thread(at_desk, tmp_path, f"e {both}")
    first, second = run_of(tmp_path).state().open_operations
    assert [flag.name for flag in first.flags].count("same target") == 1
    assert [flag.name for flag in second.flags].count("same target") == 1


async def test_an_edit_without_a_process_is_linted_from_the_run_s_own_file(tmp_path: Path) -> None:
    await practised(tmp_path, *SMALL, change=garbling(steps=[1]))
    known = texts(tmp_path)[0]
    near = known.rstrip(".") + " ."
    said = await asyncio.to_thread(
        at_desk, tmp_path, f"e {new('Rule one: mind it.')}", f"e {near}", "n"
    )
    assert "  flag      duplicate (" in said
    assert run_of(tmp_path).state().open_operations, "nothing was decided"


async def test_a_masked_or_missing_key_does_not_stop_the_lint_of_an_edit(tmp_path: Path) -> None:
    done = await practised(tmp_path, *SMALL, change=garbling(steps=[1]))
    text = done.run.run_file.read_text()
    assert "\npolicy:\n" in text
    keys = "\npolicy:\n  api_key: '***'\n  base_url: '${oc.env:NO_SUCH_HOST}'\n"
    done.run.run_file.write_text(_without_keys(text).replace("\npolicy:\n", keys))
    near = texts(tmp_path)[0].rstrip(".") + " ."
    said = await asyncio.to_thread(
        at_desk, tmp_path, f"e {new('Rule one: mind it.')}", f"e {near}", "y"
    )
    assert "note:" not in said
    assert "  flag      duplicate (" in said


def _without_keys(text: str) -> str:
    lost = ("  api_key:", "  base_url:", "# sha256 ")  # changed by hand, so it has no seal
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(lost))


async def test_a_run_file_that_is_gone_is_told_and_the_edit_stands(tmp_path: Path) -> None:
    done = await practised(tmp_path, *SMALL, change=garbling(steps=[1]))
    done.run.run_file.unlink()
    said = await asyncio.to_thread(
        at_desk, tmp_path, f"e {new('Rule one: mind it.')}", "e Rule two: mind it."
    )
    assert "note: nothing is linted" in said
    assert "Rule two: mind it." in texts(tmp_path)


T = TypeVar("T")


class Person:
    """Someone at the socket of a run in this process; every request in a thread, as outside."""

    def __init__(self) -> None:
        self.stages: asyncio.Queue[int] = asyncio.Queue()
        self.practice: asyncio.Queue[RunContext] = asyncio.Queue()

    def joins(
        self, change: Callable[[RunContext], RunContext]
    ) -> Callable[[RunContext], RunContext]:
        def joined(practice: RunContext) -> RunContext:
            def heard(event: ev.DurableEvent | ev.TransientEvent) -> None:
                if isinstance(event, ev.StageEntered) and event.stage == "review":
                    self.stages.put_nowait(event.step)

            practice.recorder.listen(heard)
            self.practice.put_nowait(practice)
            return change(practice)

        return joined

    async def asks(self, run: RunDir, request: Request[T]) -> T:
        return await asyncio.to_thread(ask, run, request)

    async def approves_all(self, run: RunDir) -> None:
        for operation in (await self.asks(run, ReadQueue())).open:
            decision = Decision(operation.id, "approve", reviewer="ann")
            await self.asks(run, Decide((decision,)))


async def test_replies_of_a_living_run_are_mended_in_review_and_in_a_later_step(
    tmp_path: Path,
) -> None:
    person = Person()
    change = person.joins(garbling("s1p0", "s1p1", "s1p2", "s1p3"))
    running = asyncio.create_task(
        practised(tmp_path, *SMALL, reviewers=(HumanReviewer(),), change=change)
    )
    practice = await person.practice.get()
    run = run_of(tmp_path)
    async with serve(practice, run.socket):
        await practice_reaches(practice, lambda: len(practice.recorder.state.repairs) >= 2)
        first, second = list(practice.recorder.state.repairs)[:2]
        # Step 1's lesson is empty and does not wait, unless this comes before its commit.
        answer = await person.asks(run, Mend(first, "hm", "ann"))
        assert answer.operations == ()
        assert "no JSON array" in str(answer.problems)
        text = new("Rule one: mind it.")
        answer = await person.asks(run, Mend(first, text, "ann"))
        (made,) = answer.operations
        assert made.id == f"op1.{first[2:]}.1"
        # In step 1 it is what that step waits for.
        await person.asks(run, Decide((Decision(made.id, "approve", reviewer="ann"),)))
        with pytest.raises(ConflictError, match="it was mended by ann already"):
            await person.asks(run, Mend(first, text, "bob"))
        while await person.stages.get() != 2:
            pass
        shown = await person.asks(run, ReadQueue())
        assert second in [found.id for found in shown.repairs]
        text = new("Rule two: mind it.")
        await person.asks(run, Mend(second, text, "ann"))
        for name in list(practice.recorder.state.repairs):
            await person.asks(run, Drop(name, "enough", "ann"))
        await person.approves_all(run)
        done = await running
    assert {"Rule one: mind it.", "Rule two: mind it."} <= {text for _, text in done.texts}
    assert done.state.open_operations == ()
    assert done.state.curation["ann"].approved >= 2


async def practice_reaches(practice: RunContext, holds: Callable[[], bool]) -> None:
    """Return once the run's state is so; looked at with every event."""
    changed = asyncio.Event()
    stop = practice.recorder.listen(lambda event: changed.set())
    async with asyncio.timeout(20):
        while not holds():
            changed.clear()
            await changed.wait()
    stop()


async def test_what_is_mended_in_an_automatic_run_is_decided_with_its_step(
    tmp_path: Path,
) -> None:
    """The gate asks its reviewers again for what came in between review and commit."""

    class Mending(AutoReviewer):
        done = False

        async def review(  # type: ignore[override]
            self, operations: Sequence[Operation], library: Library
        ):
            async for decision in super().review(operations, library):
                yield decision
            if not self.done:
                self.done = True
                practice = held[0]
                state = practice.recorder.state
                name = next(iter(state.repairs))
                late = Operation(f"op1.{name[2:]}.1", "add", text="Rule late: mind it.")
                asking.append(asyncio.create_task(practice.gate.resubmit(name, [late], "ann")))

    held: list[RunContext] = []
    asking: list[asyncio.Task[object]] = []
    garbled = garbling("s1p0")

    def change(practice: RunContext) -> RunContext:
        held.append(practice)
        return garbled(practice)

    done = await practised(tmp_path, *SMALL, reviewers=(Mending(),), change=change)
    await asyncio.gather(*asking)
    assert "Rule late: mind it." in {text for _, text in done.texts}
    assert done.state.open_operations == ()
    assert dict(done.state.lost) == {}
