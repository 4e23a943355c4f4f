"""Brings an engine to where its journal is: the newest checkpoint, then each step once more.

Samples nothing and journals nothing: lessons are consolidated again from what was recorded.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from engines.core import codec, errors, protocols
from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.state.fold import fold, fold_events, run_history
from engines.core.state.run_state import RunHistory, RunState, StepState
from engines.core.text.citations import without_citations
from engines.core.types import Attempt, Group, Lesson, Message, Problem, Rollout, Tell
from engines.pipeline.recorder import Recorder
from engines.record import journal, ledger
from engines.record.run_dir import RunDir, Workspace


@frozen
class HistorySegment:
    """A run as far as its steps belong to a history.

    `root` is its folder, below which its checkpoints lie. Steps after `upto` belong to others;
    None: all belong to it, the one under way included.
    """

    events: Callable[[], Iterable[ev.DurableEvent]]
    root: Path
    records: Path
    upto: int | None = None

    def own_events(self) -> Iterable[ev.DurableEvent]:
        """Its events, up to the end of its last step."""
        for event in self.events():
            if self.upto is not None and getattr(event, "step", 0) > self.upto:
                return
            yield event

    def started(self) -> ev.RunStarted | None:
        """Its first event; None where it was cut before it."""
        return fold_events(islice(self.events(), 1)).started

    def history(self) -> RunHistory:
        return run_history(self.own_events())

    def checkpoints(self, history: RunHistory) -> list[tuple[int, Path]]:
        """Step and folder of those that were saved, whether they are still there or not."""
        saved = (step.checkpoint for step in history.steps.values())
        return [(one.step, self.root / one.folder) for one in saved if one is not None]


def load_history(
    run: RunDir, workspace: Workspace, upto: int | None = None, *, to_restore: bool = False
) -> tuple[HistorySegment, ...]:
    """The segments of a run's history, those of the runs it was forked from first.

    `upto` is its last step that belongs to it, None: all do. With `to_restore` runs that are gone
    are left out where a later one has a checkpoint.

    Raises ConflictError: a run that it was forked from is gone and needed.
    """
    own = HistorySegment(
        lambda: (entry.event for entry in journal.read_journal(run.journal)),
        run.path,
        run.records,
        upto,
    )
    started = own.started()
    if started is None or started.forked_from is None:
        return (own,)
    adopted = started.forked_steps if upto is None else min(upto, started.forked_steps)
    try:
        parent = workspace.run(started.forked_from)
        before = load_history(parent, workspace, adopted, to_restore=to_restore)
    except errors.ConflictError:
        saved = own.checkpoints(own.history()) if to_restore else []
        if not any(folder.exists() for _, folder in saved):
            raise
        before = ()  # what one of its own checkpoints holds need not be computed again
    return (*before, own)


def policy_version_after(segments: Sequence[HistorySegment]) -> int:
    """Of the weights at the end of a history: what a fork from there begins with."""
    histories = (segment.history() for segment in reversed(segments))
    return next((found.policy_version for found in histories if found.started), 0)


async def replay_training(
    engine: protocols.Engine,
    segments: Sequence[HistorySegment],
    problems: Sequence[Problem],
    tell: Tell = lambda _: None,
) -> None:
    """Bring a freshly opened engine to the end of a history, as `load_history` gives it.

    Steps after the newest checkpoint that is whole are consolidated again from what was
    recorded, those without an update too, since an engine may count them; what had been
    approved is applied. A lesson that still waits is computed again, so that it can be. Each is
    computed for a run of as many steps as had been planned when it was proposed, and the last of
    those plans is the one that the engine is left with.

    Raises:
        ConflictError: an update that was proposed cannot be computed again, or a problem of a
            step is not among `problems`.
        RecordError: a record is damaged or gone.
    """
    plans: dict[int, int] = {}
    saved: list[tuple[int, Path]] = []
    for segment in segments:
        history = segment.history()
        saved += segment.checkpoints(history)
        plans |= history.plans
    last = max(plans, default=0)
    at = await _restore_newest(engine, saved, tell)
    _check_reached(segments, at)
    if last:
        engine.plan(plans[last])
    if last <= at:
        return
    since = f"the checkpoint of step {at}" if at else "the weights the run began with"
    steps = f"step {last}" if last == at + 1 else f"steps {at + 1} to {last}"
    tell(f"computing {steps} again from what was recorded, on {since}")
    known = {problem.id: problem for problem in problems}
    for segment in segments:
        replay = _Replay(engine, segment.records, known, tell)
        state = RunState()
        committed = 0
        for event in segment.own_events():
            fold(state, event)
            now = state.current
            if now is None or not now.committed or now.step <= max(at, committed):
                continue
            committed = now.step
            # What a reflector drew is in the journal, and nobody asks it again.
            if now.lesson is not None and now.learns != "library":
                engine.plan(plans[now.step])
                lesson = await replay.recompute_lesson(now, now.lesson, needed=now.applied_update)
                if now.applied_update and lesson.update is not None:
                    await engine.apply(lesson.update)
        now, waits = state.current, state.under_review and state.step_trains
        if segment.upto is None and waits and now is not None and now.lesson:
            engine.plan(plans[now.step])
            await replay.recompute_lesson(now, now.lesson, needed=True)


def _check_reached(segments: Sequence[HistorySegment], at: int) -> None:
    """Refuse to begin with the first weights where the history begins later."""
    started = segments[0].started() if segments else None
    if started is not None and started.forked_from and at < started.forked_steps:
        adopted = f"run {started.forked_from}, whose {started.forked_steps} steps it adopted"
        raise errors.ConflictError(
            f"run {started.run}",
            f"{adopted}, is gone, and no checkpoint after them is whole.",
            "Put that run or a checkpoint back, or begin anew with --restart-step 0.",
        )


async def _restore_newest(
    engine: protocols.Engine, saved: Sequence[tuple[int, Path]], tell: Tell
) -> int:
    """Restore the newest checkpoint that can be; returns its step, 0 without any."""
    for step, folder in reversed(saved):
        if not folder.exists() and (step, folder) != saved[-1]:
            continue  # older ones are removed as newer ones come
        try:
            await engine.restore(folder)
        except errors.StudioError as error:
            earlier = any(before < step and other.exists() for before, other in saved)
            tell(f"{error} Going back to what was saved before." if earlier else str(error))
        else:
            return step
    return 0


@frozen
class _Replay:
    """Computes lessons again from what was recorded. `known` are the problems by id."""

    engine: protocols.Engine
    records: Path
    known: Mapping[str, Problem]
    tell: Tell

    async def recompute_lesson(self, now: StepState, recorded: Lesson, *, needed: bool) -> Lesson:
        """The lesson of a step once more; what differs from the recorded one is told."""
        groups = [self._load_group(now, at) for at in range(len(now.problems))]
        reflections = [now.reflections[at] for at in range(len(now.problems))]
        # Engines that train weights read no experiences; the version goes into the lesson.
        library = Library("", now.library_version)
        lesson = await self.engine.consolidate(groups, reflections, library)
        if needed and recorded.update is not None and lesson.update is None:
            reason = lesson.losses[0].reason if lesson.losses else "it gave no update"
            cause = "its weight update was proposed and cannot be computed again"
            move = "Mend that and resume, or go on from earlier weights with --restart-step"
            raise errors.ConflictError(
                f"step {now.step}", f"{cause}: {reason.rstrip('.')}.", f"{move} {now.step - 1}."
            )
        if differing := _differences_text(recorded, lesson):
            self.tell(f"step {now.step} was recomputed with other figures: {differing}")
        return lesson

    def _load_group(self, now: StepState, position: int) -> Group:
        name = now.problems[position]
        if name not in self.known:
            raise errors.ConflictError(
                f"step {now.step}",
                f"it practised on problem {name}, which is not in the data any more.",
                "Put the data set back as it was.",
            )
        places = sorted(place for place in now.rollouts if place[0] == position)
        return Group(
            problem=self.known[name],
            epoch=now.epoch,
            step=now.step,
            position=position,
            rollouts=tuple(load_rollout(self.records, now, now.rollouts[at]) for at in places),
            verdicts=tuple(now.verdicts[at] for at in places),
        )


def _differences_text(recorded: Lesson, again: Lesson) -> str:
    """The names of figures that are not exactly the same; "" where all are."""
    if recorded.update is None or again.update is None:
        return "" if recorded.update is again.update else "the update"
    before, after = recorded.update.metrics, again.update.metrics
    # As JSON, since that has one word for NaN and the infinities.
    differing = [
        name
        for name in sorted({*before, *after})
        if codec.dumps(before.get(name)) != codec.dumps(after.get(name))
    ]
    if recorded.update.rollback_to != again.update.rollback_to:
        differing.insert(0, f"back to {again.update.rollback_to}")
    return ", ".join(differing)


def load_rollout(records: Path, now: StepState, done: ev.RolloutFinished) -> Rollout:
    """A rollout of an earlier process, its messages and turns put together from the records."""
    found = [ledger.read_record(records, ref) for ref in done.refs]
    messages = () if done.status == "failed" else ledger.join_messages(found)
    attempt = Attempt(
        messages,
        last_answer(messages, done.cited) if done.answer is None else done.answer,
        done.status,
        done.usage,
        done.elapsed_s,
        done.error,
        tuple(record.reply.turn for record in found if record.reply.turn is not None),
    )
    return Rollout(
        attempt=attempt,
        epoch=now.epoch,
        step=done.step,
        position=done.position,
        index=done.index,
        seed=done.seed,
        policy_version=now.policy_version,
        library_version=now.library_version,
        shown=done.shown,
    )


def last_answer(messages: Sequence[Message], cited: Sequence[str] | None) -> str | None:
    """The last text as it was judged: see `without_citations`."""
    return without_citations(messages[-1].content, cited or ()) if messages else None


KEPT_CHECKPOINTS = 3
"""Besides that of the best step."""


@frozen
class Checkpoints:
    """Where checkpoints go, how often, and how many stay."""

    root: Path  # the run's folder
    folder: Path  # below it
    save: Callable[[Path], Awaitable[str]]  # the engine's whole state, atomically; its digest
    every_steps: int | None = None  # None: at the end of each epoch
    tell: Tell = lambda _: None

    def is_due(self, step: int, *, ends_epoch: bool, last: bool) -> bool:
        return last or (ends_epoch if self.every_steps is None else step % self.every_steps == 0)

    async def write(self, recorder: Recorder, step: int) -> None:
        """Save the state after a step, journal it, and remove what is not to be kept."""
        if any(saved.step == step for saved in recorder.state.checkpoints):
            return
        place = self.folder / f"global_step_{step}"
        digest = await self.save(place)
        relative = place.relative_to(self.root).as_posix()
        version = recorder.state.policy_version
        await recorder.record(ev.CheckpointSaved(step, relative, version, digest))
        for saved in self.removable_checkpoints(recorder.state):
            await asyncio.to_thread(self._remove, self.root / saved.folder)

    def removable_checkpoints(self, state: RunState) -> tuple[ev.CheckpointSaved, ...]:
        """All but the newest, and that of the best step so far."""
        older = state.checkpoints[:-KEPT_CHECKPOINTS]
        return tuple(saved for saved in older if saved.step != state.best_step)

    def _remove(self, folder: Path) -> None:
        if not folder.exists():
            return
        try:
            shutil.rmtree(folder)
        except OSError as error:
            self.tell(f"{folder}: an old checkpoint could not be removed ({error.strerror})")
