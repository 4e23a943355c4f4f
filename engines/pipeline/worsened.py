"""Held-out problems that an epoch made worse are read in the next step.

They are spares: drawn by chance before anything was measured, and in no figure. Were they taken
out of a set because they fell, what is left would look better than it is: those that fell had been
lucky before. The choice is journalled before anybody reads them (`HeldOutShown`).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from engines.core import codec, protocols, waiting
from engines.core.events import EvaluationFinished, HeldOutShown
from engines.core.library import Library
from engines.core.state.run_state import StepState
from engines.core.text.citations import guidance_ids
from engines.core.types import (
    Attempt,
    CallKey,
    Group,
    Job,
    Lesson,
    Problem,
    Reflection,
    Rollout,
    Verdict,
)
from engines.pipeline.context import RunContext
from engines.pipeline.evaluation import evaluate, verdict
from engines.record.ledger import find_trajectory


def set_apart(held_out: evaluate.HeldOutSet, seed: int) -> evaluate.HeldOutSet:
    """The set with a quarter of its questions, drawn by chance, as spares."""
    names = {codec.question_of(problem.id) for problem in held_out.problems}
    drawn = set(
        sorted(names, key=lambda name: codec.seed_for(seed, "spare", name))[: len(names) // 4]
    )
    parts: tuple[list[Problem], list[Problem]] = ([], [])
    for problem in held_out.problems:
        parts[codec.question_of(problem.id) in drawn].append(problem)
    return replace(held_out, problems=tuple(parts[False]), spares=tuple(parts[True]))


async def show_worsened(practice: RunContext, step: int) -> None:
    """After an epoch that another follows: choose problems for the next step, one by one."""
    state, sampler = practice.recorder.state, practice.sampler
    if not sampler.ends_epoch(step) or step == sampler.total_steps:
        return
    since = step - sampler.steps_per_epoch
    while sum(one.step == step for one in state.shown) < practice.worsened:
        known = state.shown_questions
        choose = partial(choose_worsened, state.evaluations, since, known, practice.records)
        if (shown := await waiting.run_to_end(choose)) is None:
            return
        await practice.recorder.record(replace(shown, step=step))


def choose_worsened(
    evaluations: Sequence[EvaluationFinished], since: int, shown: Collection[str], records: Path
) -> HeldOutShown | None:
    """The greatest fall of a spare that was not `shown`: best try before, worst after.

    Tries that another run paid for have no words here.
    """
    for found in verdict.diagnose([_of_spares(one) for one in evaluations], since):
        for question in found.questions("worsened"):
            tries = [
                _recorded_tries(evaluations, one, question, records)
                for one in (found.before, found.after)
            ]
            best = max(tries[0], key=lambda one: one[1], default=None)
            worst = min(tries[1], key=lambda one: one[1], default=None)
            if question not in shown and best and worst and worst[1] < best[1]:
                return HeldOutShown(found.after.step, (best, worst))
    return None


def _of_spares(found: EvaluationFinished) -> EvaluationFinished:
    names, rewards = zip(*found.spares, strict=True) if found.spares else ((), ())
    return replace(found, problems=names, rewards=rewards)


def _recorded_tries(
    evaluations: Sequence[EvaluationFinished], found: EvaluationFinished, question: str, at: Path
) -> list[tuple[CallKey, float, int]]:
    """Tries with their rewards; an earlier measurement of that version may have made them."""
    version = found.library_version
    tries = [
        (CallKey("evaluation", 0, one.step, index=index, problem=problem), reward, version)
        for problem, row in zip(found.problems, found.rewards, strict=True)
        if codec.question_of(problem) == question
        for index, reward in enumerate(row)
        if reward is not None
        for one in evaluations
        if one.library_version == version
    ]
    return [one for one in tries if find_trajectory(at, one[0])]


async def consolidate_with_worsened(
    practice: RunContext,
    engine: protocols.Engine,
    now: StepState,
    groups: Sequence[Group],
    reflections: Sequence[Reflection],
    library: Library,
) -> Lesson:
    """The lesson of a batch and of the held-out problems that were chosen before this step."""
    sets = practice.evaluation.sets if practice.evaluation is not None else ()
    known = {problem.id: problem for held_out in sets for problem in held_out.spares}
    chosen = [one for one in practice.recorder.state.shown if one.step == now.step - 1]
    worsened = [
        _as_group(practice, now, known[name], one, len(now.problems) + place)
        for place, one in enumerate(chosen)
        if (name := one.tries[0][0].problem) in known
    ]
    read = await waiting.gather_all(engine.reflect(group, library) for group in worsened)
    drawn = map(_without_rollouts, worsened, read)
    every = [*groups, *worsened]
    lesson = await engine.consolidate(every, [*reflections, *drawn], library)
    # A person can mend only replies about groups of practice, so these count as lost.
    lost = (replace(loss, reply="") for one in read for loss in one.losses)
    return replace(
        lesson,
        losses=(*lesson.losses, *lost),
        usage=sum((one.usage for one in read), lesson.usage),
        refs=(*(ref for one in read for ref in one.refs), *lesson.refs),
    )


def _as_group(
    practice: RunContext, now: StepState, problem: Problem, shown: HeldOutShown, position: int
) -> Group:
    rollouts = []
    for index, (key, _, version) in enumerate(shown.tries):
        prompt, _ = practice.writer.write(practice.gate.at(version), problem.question)
        messages = find_trajectory(practice.records, key)
        place = CallKey("rollout", now.epoch, now.step, position, index)
        job = Job(problem, prompt, place, now.policy_version, version, guidance_ids(prompt))
        rollouts.append(Rollout.from_job(job, Attempt(messages, messages[-1].content), seed=0))
    verdicts = tuple(Verdict(reward) for _, reward, _ in shown.tries)
    return Group(problem, now.epoch, now.step, position, tuple(rollouts), verdicts)


def _without_rollouts(group: Group, reflection: Reflection) -> Reflection:
    """Its proposals name the problem instead: what they rest on is no rollout of practice."""
    why = f"a held-out problem, {group.problem.id}, got worse: "
    drawn = (replace(p, evidence=(), rationale=why + p.rationale) for p in reflection.proposals)
    return replace(reflection, proposals=tuple(drawn))
