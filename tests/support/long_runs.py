"""Journals of long runs, written in a second: as a run's process would have, but without a sync."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from engines.core import events as ev
from engines.core.codec import dumps
from engines.core.library import Library, OperationOutcome
from engines.core.types import (
    Credit,
    Decision,
    Lesson,
    LostWork,
    Operation,
    RecordRef,
    Reflection,
    Usage,
    Verdict,
)
from engines.record import lines
from engines.record.journal import BYTES, FORMAT, Head, begin_next
from engines.record.run_dir import Workspace

BEGAN = 1_700_000_000.0


def write_events(path: Path, events: Iterable[ev.DurableEvent], *, at: float = BEGAN) -> int:
    """Write a whole journal, a second from each event to the next; returns how many.

    It is rolled between steps, as a run rolls it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    chain, seq, head = "", 0, Head()
    file = path.open("wb")
    for seq, event in enumerate(events, 1):
        if isinstance(event, ev.StepStarted) and (size := file.tell()) >= BYTES:
            file.close()
            head = Head(head.segment + 1, chain, seq - 1, head.bytes + size, event.step - 1)
            chain = begin_next(path, head)
            file = path.open("ab")
        own = {field.name: getattr(event, field.name) for field in fields(event)}
        envelope = {"v": FORMAT, "seq": seq, "at": at + seq, "kind": type(event).__name__}
        raw, chain = lines.encode(dumps(envelope | own), chain)
        file.write(raw)
    file.close()
    return seq


def a_long_run(
    run: str, *, steps: int, batch: int = 5, group: int = 8, seed: int = 1, ends: bool = True
) -> Iterator[ev.DurableEvent]:
    """Every kind of event that practice makes; `run` is its library, too."""
    chance = random.Random(seed)
    library = Library(run)
    settings = {"policy.model": "openai:m", "data.practice": "mine", "verifier": "math"}
    settings |= {"practice.batch_size": batch, "policy.max_tokens": 512}
    yield ev.RunStarted(
        run=run,
        exp_id=run,
        seed=seed,
        epochs=4,
        steps_per_epoch=max(1, steps // 4),
        group_size=group,
        library=run,
        library_version=0,
        reviewer="wait",
        rehearsal=False,
        settings=settings,
    )
    yield ev.RunResumed(4242, 4, "wait", settings)
    for step in range(1, steps + 1):
        epoch = 1 + (step - 1) * 4 // steps
        problems = tuple(f"{chance.getrandbits(64):016x}" for _ in range(batch))
        yield ev.StepStarted(epoch, step, problems, 0, library.version, library.notes.mark)
        for position in range(batch):
            for index in range(group):
                yield a_finished_rollout(chance, step, position, index)
                error = "timeout: no verdict within 5 s" if chance.random() < 0.01 else None
                reward = None if error else float(chance.random() < 0.5)
                yield ev.RolloutJudged(step, position, index, Verdict(reward, error=error))
            credit = (Credit("E1", "used", (f"s{step}p{position}r0",)),)
            refs = (RecordRef(f"step-{step:04}.jsonl", 9, 900, "0123456789abcdef"),)
            loss = (LostWork("proposal", f"s{step}p{position}", "it has no text"),)
            yield ev.GroupReflected(
                step,
                position,
                Reflection(
                    step,
                    position,
                    chance.choice(("used", "all-right", "all-wrong")),
                    losses=loss if chance.random() < 0.01 else (),
                    credits=credit if step > 1 else (),
                    refs=refs,
                    usage=Usage(900, 100, 1),
                ),
            )
        operations = _operations(chance, library, step)
        yield ev.LessonProposed(step, Lesson(step, library.version, operations))
        if step % 7 == 0:
            yield ev.RunPaused()
            yield ev.RunContinued()
        reviewed = []
        for operation in operations:
            yield ev.OperationDecided(step, decision := _decision(chance, operation, step))
            reviewed.append((operation, decision))
        done = library.commit(reviewed, run=run, step=step)
        library = done.library
        open_ones = tuple(
            OperationOutcome(o.operation_id, o.kind, o.applied, o.id, o.reason)
            for o in done.outcomes
        )
        yield ev.LessonCommitted(step, library.version, library.content_hash, open_ones)
        yield ev.StepFinished(epoch, step)
        if step % max(1, steps // 4) == 0:
            yield an_evaluation(chance, step, library.version)
    if ends:
        yield ev.RunEnded("finished", paid=Usage(10_000, 5_000, 90))


def a_finished_rollout(
    chance: random.Random, step: int, position: int, index: int
) -> ev.RolloutFinished:
    failed = chance.random() < 0.01
    file, offset = f"step-{step:04}.jsonl", chance.randrange(10**6)
    ref = RecordRef(file, offset, 1400, f"{chance.getrandbits(64):016x}")
    return ev.RolloutFinished(
        step=step,
        position=position,
        index=index,
        seed=chance.getrandbits(60),
        status="failed" if failed else "ok",
        answer=None,
        error="timeout: no answer within 60 s" if failed else None,
        usage=Usage(300, 120, 1),
        elapsed_s=chance.random() * 9,
        tail="so it is 17 + 25 = 42, and the answer is #### 42",
        refs=(ref,),
        shown=("E1", "E2"),
        cited=("E1",),
        turns=1,
    )


def an_evaluation(
    chance: random.Random, step: int, version: int, n: int = 60, k: int = 3
) -> ev.EvaluationFinished:
    rewards = tuple(tuple(float(chance.random() < 0.6) for _ in range(k)) for _ in range(n))
    return ev.EvaluationFinished(
        step=step,
        data="held-out",
        policy_version=0,
        library_version=version,
        k=k,
        n=n * k,
        unjudged=0,
        mean=sum(map(sum, rewards)) / (n * k),
        usage=Usage(9_000, 900, n * k),
        problems=tuple(f"{at:016x}" for at in range(n)),
        rewards=rewards,
    )


def _operations(chance: random.Random, library: Library, step: int) -> tuple[Operation, ...]:
    known = [e.id for e in library.experiences]
    kinds = [("modify", chance.choice(known))] if len(known) > 20 else [("add", None)]
    kinds += [("delete", chance.choice(known))] if len(known) > 25 else []
    return tuple(
        Operation(
            id=f"op{step}.{number}",
            kind=kind,  # type: ignore[arg-type]
            target=target,
            text=f"Check carry {chance.randrange(10**6)} of step {step}." * (kind != "delete"),
            rationale="winners did, losers did not",
            evidence=(f"s{step}p0r1",),
            problems=(f"{step:016x}",),
            proposer="openai:m",
        )
        for number, (kind, target) in enumerate(kinds, 1)
    )


def _decision(chance: random.Random, operation: Operation, step: int) -> Decision:
    reviewer, at = chance.choice(("ann", "ben")), BEGAN + step
    if chance.random() < 0.2:
        return Decision(operation.id, "reject", reason="too vague", reviewer=reviewer, at=at)
    return Decision(operation.id, "approve", reviewer=reviewer, at=at, took_s=4.5)


def write_long_run(workspace: Workspace, run: str, *, steps: int, library: bool = True) -> int:
    """Write a run's journal, and that of its library; returns the number of the run's events."""
    events: list[ev.DurableEvent] = []
    n = write_events(
        workspace.runs_folder / run / "journal.jsonl",
        (events.append(event) or event for event in a_long_run(run, steps=steps)),  # type: ignore[func-returns-value]
    )
    if library:
        write_events(workspace.path / "libraries" / run / "journal.jsonl", _library_events(events))
    return n


def _library_events(events: Iterable[ev.DurableEvent]) -> Iterator[ev.DurableEvent]:
    operations: dict[str, Operation] = {}
    decisions: dict[str, Decision] = {}
    version = 0
    for event in events:
        match event:
            case ev.RunStarted():
                run = event.run
                yield ev.LibraryCreated(event.library, 1, ())
            case ev.LessonProposed():
                operations = {one.id: one for one in event.lesson.operations}
            case ev.OperationDecided():
                decisions[event.decision.operation_id] = event.decision
            case ev.LessonCommitted():
                reviewed = tuple((op, decisions[op.id]) for op in operations.values())
                if event.library_version == version:
                    if reviewed:
                        yield ev.LibraryCurated(run, event.step, reviewed)
                    continue
                version = event.library_version
                yield ev.LibraryCommitted(version, run, event.step, reviewed, event.content_hash)
