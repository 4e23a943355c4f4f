"""How much of a library's effect is left once a policy has been trained on its rollouts.

Compared are the policy without a library, with it, and trained without it, on the same problems.
"""

import asyncio
import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

from engines.core.codec import digest
from engines.core.errors import ConflictError
from engines.core.state.run_state import RunState
from engines.pipeline.evaluation.statistics import (
    ByQuestion,
    Interval,
    compare,
    mean_at_k,
    mean_interval,
    t_quantile,
)
from engines.record.run_dir import RunDir, Workspace
from studio.config.loading import LoadedRun
from studio.evaluation.evaluate import (
    EarlyEnd,
    EvalPlan,
    EvaluationResult,
    measure_missing,
    plan_eval,
)
from studio.facts.evaluation import cell_facts, question_rewards
from studio.render.evaluation_lines import cell_lines
from studio.render.json import print_result
from studio.render.lines import to_stderr
from studio.render.words import difference_text, rate_text


@dataclass(frozen=True, slots=True)
class Share:
    """What is left of an effect: 1 where training alone does as well as the library did."""

    left: float
    interval: Interval  # 95 %
    questions: int


@dataclass(frozen=True, slots=True)
class DistilledSet:
    """The three measurements of one held-out set."""

    data: str
    library: str
    without: ByQuestion
    with_library: ByQuestion
    trained: ByQuestion

    @property
    def effect_share(self) -> Share | None:
        return share_left(self.without, self.with_library, self.trained)


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
    plan = plan_eval(loaded, workspace, library=library, baseline="none")
    adapter = loaded.config.policy.adapter
    if adapter is not None:  # an adapter's scores are apart from those of its base model
        plan = replace(plan, weights=digest([adapter]))
    missing = plan.count_missing()
    to_stderr(f"measuring the policy before it, without and with {library}: {missing} to do")
    found = _distilled_sets(await _measure(plan), tuned.state(), library)
    cells = [f"  {line}" for line in cell_lines(cell_facts(state))]
    if cells:
        cells.insert(0, f"beside the weights and the library of run {run.run}")
    text = "\n".join(["", *distilled_lines(found), *cells])
    print_result({**distilled_data(tuned.run, found), "cells": cell_facts(state)}, text, json=json)


async def _measure(plan: EvalPlan) -> EvaluationResult:
    early = EarlyEnd(task=asyncio.current_task())
    try:
        return await measure_missing(plan, to_stderr, lambda: None, early)
    except asyncio.CancelledError:
        if early.task is None or early.cause == "interrupted":
            raise
        early.task.uncancel()
        place, move = "measuring what is left of the library", "Start the stage again."
        raise ConflictError(place, f"{early.reason}.", move) from None


def _distilled_sets(found: EvaluationResult, state: RunState, library: str) -> list[DistilledSet]:
    trained = {e.data: question_rewards(e) for e in state.evaluations if e.step}  # the last of each
    return [
        DistilledSet(
            result.held_out.name,
            library,
            result.question_rewards(0),
            result.question_rewards(1),
            trained.get(result.held_out.name, {}),
        )
        for result in found.sets
    ]


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
            change = None if side is one.without else compare(one.without, side)
            effect = "" if change is None else f"  {difference_text(change)} against none"
            rewards = tuple(side.values())
            rate = rate_text(mean_at_k(rewards), mean_interval(rewards))
            lines.append(f"  {one.data}  {label:<{width}}  {rate} (n={len(side)}){effect}")
        lines.append(f"  {one.data}  {_share_text(one.effect_share)}")
    return lines


def _share_text(share: Share | None) -> str:
    if share is None:
        return "cannot tell what is left: the library's own effect is not clear"
    interval = f"[{share.interval.low:.0%}, {share.interval.high:.0%}] (n={share.questions})"
    return f"{share.left:.0%} of the library's effect is left {interval}"


def distilled_data(run: str, sets: list[DistilledSet]) -> dict[str, Any]:
    def rate_data(side: ByQuestion) -> dict[str, Any]:
        rows = tuple(side.values())
        interval = mean_interval(rows)
        return {"mean": mean_at_k(rows), "interval": interval, "n": len(rows)}

    return {
        "kind": "EffectLeft",
        "run": run,
        "sets": [
            {
                "data": one.data,
                "library": one.library,
                "without": rate_data(one.without),
                "with_library": rate_data(one.with_library),
                "trained": rate_data(one.trained),
                "effect_of_library": compare(one.without, one.with_library),
                "effect_of_training": compare(one.without, one.trained),
                "left": None if (left := one.effect_share) is None else left.left,
                "left_interval": None if left is None else left.interval,
            }
            for one in sets
        ],
    }
