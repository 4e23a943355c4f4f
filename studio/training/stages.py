"""The stages of `studio train`: fine-tuning, practice, both, distilling, and a reward model.

Each stage is a run of its own, so that it is resumed, shown and measured like any other. Of several
one that is done is not repeated, and the next begins only after it. A reward model is kept in the
folder of the run whose verdicts it learned. After distilling it is measured what is left of the
library's effect: three rates on the same problems, of the policy without the library, with it, and
trained without it.
"""

import asyncio
import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from engines.core.codec import digest
from engines.core.errors import ConfigError, ConflictError
from engines.core.frozen import frozen
from engines.pipeline.evaluation.statistics import (
    ByQuestion,
    Interval,
    mean_at_k,
    mean_interval,
    t_quantile,
)
from engines.pipeline.evaluation.verdict import compare
from engines.record.derived.run_state import read_history
from engines.record.ledger import read_trajectory
from engines.record.run_dir import RunDir, Workspace
from studio import exit_codes
from studio.config.loading import LoadedRun
from studio.estimate.cost import tell_estimate
from studio.evaluation import evaluate
from studio.facts import evaluation, next_command
from studio.render import evaluation_lines, words
from studio.render.json import print_result
from studio.render.lines import tell_next, to_stderr
from studio.run import assemble, headless, models
from studio.run.new_or_resume import RunPlan, RunRequest, load_plan
from studio.training.demonstrations import write_demonstrations

if TYPE_CHECKING:
    from engines.policies.hf_local.reward_head import JudgedAnswer


LEAST_GROUPS = 10
"""In which one try was better: with fewer nothing would be left to measure on."""


def train_reward_model(loaded: LoadedRun, workspace: Workspace, run: RunDir, *, json: bool) -> int:
    """Fit, measure on groups that were held back, fit to all, and keep.

    Raises ConflictError: the run has too few groups in which one try was better.
    """
    if not models.is_local(loaded.config.policy.model):
        raise ConfigError(
            loaded.place("policy.model"),
            "a reward model is a head on a model whose weights are here.",
            "Add policy.model=hf:PATH_OR_NAME; hf:tiny is bundled.",
        )
    rows = [row for row in _judged_answers(run) if row.answer]
    rewards: dict[int, set[float]] = {}
    for row in rows:
        rewards.setdefault(row.group, set()).add(row.reward)
    contrasts = sum(len(different) > 1 for different in rewards.values())
    if contrasts < LEAST_GROUPS:
        raise ConflictError(
            f"run {run.run}",
            f"{contrasts} of its groups have a try that was better than another.",
            f"Practise until there are {LEAST_GROUPS}, or name another run with --name.",
        )
    local = models.LocalModels(loaded.config, to_stderr).open(loaded.config.policy).local
    from engines.policies.hf_local.reward_head import learn

    head, agrees, pairs = learn(local, rows)
    card: dict[str, Any] = {
        "run": run.run,
        "model": loaded.config.policy.model,
        "answers": len(rows),
        "groups": contrasts,
        "held_out_pairs": pairs,
        "held_out_agreement": round(agrees, 4),
    }
    folder = run.path / models.REWARD_MODEL
    head.save(folder, card)
    text = (
        f"reward model of run {run.run}: {len(rows)} answers, {contrasts} groups with a "
        f"better one\nordered right, of pairs held back: {agrees:.3f} (n={pairs})\n"
        f"folder   {folder}\nuse it: verifier.name=reward_model verifier.folder=run:{run.run}"
    )
    print_result({**card, "folder": str(folder)}, text, json=json)
    return exit_codes.DONE


def _judged_answers(run: RunDir) -> "list[JudgedAnswer]":
    from engines.policies.hf_local.reward_head import JudgedAnswer

    numbers: dict[tuple[int, int], int] = {}
    found = []
    for rollout in read_history(run.journal).rollouts:
        done, verdict = rollout.finished, rollout.verdict
        if verdict is None or verdict.reward is None or done.status == "failed":
            continue
        messages = read_trajectory(run.records, done.refs)
        group = numbers.setdefault((done.step, done.position), len(numbers))
        asked = next((m.content for m in messages if m.role == "user" and not m.speaker), "")
        answer = next((m.content for m in reversed(messages) if m.role == "assistant"), "")
        found.append(JudgedAnswer(asked, answer, verdict.reward, group))
    return found


Stage = Literal["grpo", "sft", "all", "distil", "reward"]


async def train(asked: RunRequest, stage: Stage, *, json: bool) -> int:
    """Carry out one stage, or fine-tuning and then practice; returns the exit code.

    Raises StudioError: the run file says nothing that can be trained, or a stage cannot begin.
    """
    loaded = asked.load()
    match stage:
        case "grpo":
            _check_trains(loaded)
            return await _run_plan(load_plan(asked, loaded=loaded), json)
        case "sft":
            tuning = tuning_request(asked, loaded, "sft")
            return await _run_plan(load_plan(tuning), json)
        case "distil":
            return await _distil(asked, loaded, json)
        case "reward":
            named = asked.name or loaded.config.exp_id
            run = asked.workspace.newest_run(named)
            if run is None:
                raise ConflictError(
                    f"--stage reward {named}",
                    "there is no such run.",
                    "Practise first: studio headless, or studio train.",
                )
            return train_reward_model(loaded, asked.workspace, run, json=json)
        case "all":
            return await _train_all(asked, loaded, json)


async def _train_all(asked: RunRequest, loaded: LoadedRun, json: bool) -> int:
    _check_trains(loaded)
    if asked.restart_step not in (None, "null", "0"):
        raise ConfigError(
            f"--restart-step {asked.restart_step}",
            "it would count the steps of two runs, of which each has its own.",
            "Give 0 to start both afresh, or restart one: --stage sft or --stage grpo.",
        )
    if loaded.config.data.practice is not None:
        loaded.data_path(loaded.config.data.practice)  # else only stage grpo would miss it
    tuning = tuning_request(asked, loaded, "sft")
    plan = load_plan(tuning)
    code = await _run_stage("sft", plan, json)
    if not _is_finished(plan):
        to_stderr(f"stage sft is not done (run {plan.run.run}): practice does not begin")
        _tell_next(asked, plan, json)
        return code
    practice = asked.with_overrides(asked.name, f"policy.adapter=run:{plan.run.run}")
    to_stderr(f"stage grpo: practice begins with the adapter of run {plan.run.run}")
    return await _run_plan(load_plan(practice), json) or code


def _on_own_run(asked: RunRequest, loaded: LoadedRun) -> RunRequest:
    """Of an alternating run file that names no source: what its newest run learned, both kinds."""
    config = loaded.config
    if config.practice.algorithm != "both" or config.sft.data is not None:
        return asked
    run = asked.workspace.newest_run(config.exp_id)
    if run is None:
        raise ConflictError(
            f"--stage distil {config.exp_id}",
            "there is no such run.",
            "Train it first: studio train without a stage.",
        )
    own = f"run:{run.run}"
    return asked.with_overrides(asked.name, f"sft.data={own}", f"policy.adapter={own}")


async def _distil(asked: RunRequest, loaded: LoadedRun, json: bool) -> int:
    if not loaded.config.evaluation.data:
        raise ConfigError(
            loaded.place("evaluation.data"),
            "nothing is held out, so what is left of the library could not be measured.",
            "Set evaluation.data=NAME.",
        )
    asked = _on_own_run(asked, loaded)
    loaded = asked.load()
    tuning = tuning_request(asked, loaded, "distil")
    plan = load_plan(tuning)
    code = await _run_stage("distil", plan, json)
    if _is_finished(plan):
        await tell_effect_left(asked.workspace, plan.loaded, plan.run, json=json)
    _tell_next(asked, plan, json)
    return code


def _tell_next(asked: RunRequest, plan: RunPlan, json: bool) -> None:
    if not json:
        tell_next(next_command.command_after_run(plan.run.state()), asked.workspace.path)


async def _run_plan(plan: RunPlan, json: bool, *, tells_next: bool = True) -> int:
    for warning in assemble.training_warnings(plan.loaded.config):
        to_stderr(f"warning: {warning}")
    return await headless.run_headless(
        plan, json=json, tell_estimate=tell_estimate, tells_next=tells_next
    )


async def _run_stage(stage: Stage, plan: RunPlan, json: bool) -> int:
    """Carry out a stage before the next one; prints a line where it is done already."""
    if plan.mode != "finished":
        to_stderr(f"stage {stage}: run {plan.run.run}")
        return await _run_plan(plan, json, tells_next=False)
    assert plan.state is not None
    to_stderr(f"stage {stage} is done (run {plan.run.run}): it is not repeated")
    return exit_codes.run_exit_code(plan.state)


def _is_finished(plan: RunPlan) -> bool:
    """Whether every step is done; a run that was stopped early has ended, but is not."""
    state = plan.run.state()
    return state.status == "finished" and state.steps_finished == plan.sampler.total_steps


def _check_trains(loaded: LoadedRun) -> None:
    algorithm = loaded.config.practice.algorithm
    if algorithm not in ("grpo", "both"):
        raise ConfigError(
            loaded.place("practice.algorithm"),
            f"practice.algorithm is {algorithm}, which this stage does not carry out.",
            "Set practice.algorithm=grpo or both; studio headless practises without weights, and "
            "--stage sft fine-tunes.",
        )


def tuning_request(
    asked: RunRequest, loaded: LoadedRun, stage: Literal["sft", "distil"]
) -> RunRequest:
    """The fine-tuning stage as a run file: the same one, on demonstrations.

    What is distilled is learnt and measured without any library, its own included.
    """
    config = loaded.config
    if not models.is_local(config.policy.model):
        raise ConfigError(
            loaded.place("policy.model"),
            "training needs a policy whose weights are here.",
            "Set policy.model=hf:PATH_OR_NAME; hf:tiny is bundled.",
        )
    if config.sft.data is None:
        raise ConfigError(
            loaded.place("sft.data"),
            "the stage needs demonstrations, and sft.data names none.",
            "Set sft.data=NAME (a data set with a field solution), or sft.data=run:RUN for the "
            "verified rollouts of a run.",
        )
    if stage == "distil" and not config.sft.data.startswith("run:"):
        raise ConfigError(
            loaded.place("sft.data"),
            "what a library achieved is in the rollouts of a run.",
            "Set sft.data=run:RUN, of a run that practised with a library.",
        )
    name = f"{config.exp_id}-{stage}"
    alone = []
    if stage == "distil":  # learnt and measured without any library, its own included
        alone = ["library.name=null", "library.start=empty", "evaluation.do_eval=true"]
        alone += ["agent.experiences=[]"] if config.agent.experiences else []
    data = write_demonstrations(asked.workspace, loaded, name, with_library=stage == "distil")
    return asked.with_overrides(
        name,
        "practice.algorithm=sft",
        f"practice.epochs={config.sft.epochs}",
        f"practice.batch_size={config.sft.batch_size}",
        "data.truncate=null",
        f"data.practice={data}",
        *alone,
    )


@frozen
class Share:
    """What is left of an effect: 1 where training alone does as well as the library did."""

    left: float
    interval: Interval  # 95 %
    questions: int


@frozen
class DistilledSet:
    """The rates of one held-out set by question: without the library, with it, and trained."""

    data: str
    library: str
    without: ByQuestion
    with_library: ByQuestion
    trained: ByQuestion


def share_left(without: ByQuestion, with_library: ByQuestion, trained: ByQuestion) -> Share | None:
    """How much of a library's effect is left in weights that were trained on what it achieved.

    The share is mean(trained - without) / mean(with_library - without) over the questions known
    in all three; both means vary with the questions, and so does what they have in common.

    Returns:
        None with fewer than two questions, and where the library's own effect may be 0: then no
        bounded interval holds the share.

    Source: Fieller, Some problems in interval estimation, J. R. Stat. Soc. B 16 (1954).
    """
    effects, kept = [], []
    for name in without:
        sides = (side.get(name, ()) for side in (without, with_library, trained))
        rows = [[reward for reward in side if reward is not None] for side in sides]
        if all(rows):
            before, shown, after = map(statistics.fmean, rows)
            effects.append(shown - before)
            kept.append(after - before)
    n = len(effects)
    if n < 2:
        return None
    effect, rest = statistics.fmean(effects), statistics.fmean(kept)
    t2 = t_quantile(0.975, n - 1) ** 2 / n
    a = effect**2 - t2 * statistics.variance(effects)
    if a <= 0 or effect <= 0:
        return None
    b = effect * rest - t2 * statistics.covariance(effects, kept)
    c = rest**2 - t2 * statistics.variance(kept)
    width = math.sqrt(max(0.0, b * b - a * c))
    return Share(rest / effect, Interval((b - width) / a, (b + width) / a), n)


async def tell_effect_left(
    workspace: Workspace, loaded: LoadedRun, tuned: RunDir, *, json: bool
) -> None:
    """Measure what is missing, and print the three rates of each held-out set on stdout.

    `sft.data` of the stage names the run that practised with a library; the run `tuned` trained
    on what that one achieved.

    Raises StudioError: something cannot be read or measured.
    """
    run = workspace.run((loaded.config.sft.data or "").removeprefix("run:"))
    state = run.state()
    assert state.started is not None
    library = f"{state.started.library}@{state.library_version}"
    plan = evaluate.plan_eval(loaded, workspace, library=library, baseline="none")
    adapter = loaded.config.policy.adapter
    if adapter is not None:  # an adapter's scores are apart from those of its base model
        plan = replace(plan, weights=digest([adapter]))
    missing = plan.count_missing()
    to_stderr(f"measuring the policy before it, without and with {library}: {missing} to do")
    # The last evaluation of each set counts.
    evaluations = [e for e in tuned.state().evaluations if e.step]
    trained = {e.data: evaluation.question_rewards(e) for e in evaluations}
    sets = []
    for result in (await _measure(plan)).sets:
        name = result.held_out.name
        sides = result.question_rewards(0), result.question_rewards(1), trained.get(name, {})
        sets.append(DistilledSet(name, library, *sides))
    cells = [f"  {line}" for line in evaluation_lines.cell_lines(evaluation.cell_facts(state))]
    if cells:
        cells.insert(0, f"beside the weights and the library of run {run.run}")
    text = "\n".join(["", *distilled_lines(sets), *cells])
    print_result(
        {**distilled_data(tuned.run, sets), "cells": evaluation.cell_facts(state)}, text, json=json
    )


async def _measure(plan: evaluate.EvalPlan) -> evaluate.EvaluationResult:
    early = evaluate.EarlyEnd(task=asyncio.current_task())
    try:
        return await evaluate.measure_missing(plan, to_stderr, lambda: None, early)
    except asyncio.CancelledError:
        if early.task is None or early.cause == "interrupted":
            raise
        early.task.uncancel()
        place, move = "measuring what is left of the library", "Start the stage again."
        raise ConflictError(place, f"{early.reason}.", move) from None


def distilled_lines(sets: list[DistilledSet]) -> list[str]:
    lines = ["what is left of the library in the weights (held-out reward)"]
    for one in sets:
        sides = {
            "without a library": one.without,
            f"with {one.library}": one.with_library,
            "trained, without it": one.trained,
        }
        width = max(map(len, sides))
        for label, side in sides.items():
            rewards = tuple(side.values())
            rate = words.rate_text(mean_at_k(rewards), mean_interval(rewards))
            line = f"  {one.data}  {label:<{width}}  {rate} (n={len(side)})"
            if side is not one.without and (change := compare(one.without, side)):
                line += f"  {words.difference_text(change)} against none"
            lines.append(line)
        share = share_left(one.without, one.with_library, one.trained)
        text = "cannot tell what is left: the library's own effect is not clear"
        if share is not None:
            low, high = share.interval.low, share.interval.high
            text = f"{share.left:.0%} of the library's effect is left [{low:.0%}, {high:.0%}]"
            text += f" (n={share.questions})"
        lines.append(f"  {one.data}  {text}")
    return lines


def distilled_data(run: str, sets: list[DistilledSet]) -> dict[str, Any]:
    facts = []
    for one in sets:
        share = share_left(one.without, one.with_library, one.trained)
        rates = {}
        for name in ("without", "with_library", "trained"):
            rows = tuple(getattr(one, name).values())
            interval = mean_interval(rows)
            rates[name] = {"mean": mean_at_k(rows), "interval": interval, "n": len(rows)}
        facts.append(
            {
                "data": one.data,
                "library": one.library,
                **rates,
                "effect_of_library": compare(one.without, one.with_library),
                "effect_of_training": compare(one.without, one.trained),
                "left": share and share.left,
                "left_interval": share and share.interval,
            }
        )
    return {"kind": "EffectLeft", "run": run, "sets": facts}
