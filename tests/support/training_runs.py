"""Journals of runs that train weights: what their pipeline would write, without any weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.fold import fold_events
from engines.core.state.run_state import RunState
from engines.core.types import (
    Decision,
    DecisionAction,
    GroupOutcome,
    Lesson,
    LostWork,
    Reflection,
    Usage,
    Verdict,
    WeightUpdate,
    update_id,
)
from engines.record.journal import Journal
from engines.record.run_dir import Workspace
from tests.support.builders import a_run

ENGINE = {
    "threads": 1,
    "device": "cpu",
    "dtype": "float32",
    "trainable": 22_528,
    "parameters": 651_264,
    "torch": "2.13.0",
}
SETTINGS = {
    "policy.model": "hf:tiny",
    "data.practice": "skills",
    "practice.batch_size": 3,
    "verifier": "text",
    "grpo.reject_kl_above": 0.5,
}
PROBLEMS = ("sum-17", "rest-4", "order-9")


def metrics(step: int = 1, **more: float) -> dict[str, float]:
    """Figures of an update that differ from step to step."""
    found = {
        "reward": 0.25 + 0.05 * step,
        "reward_std": 0.4,
        "contrast": 0.75,
        "loss": -0.0123,
        "kl": 0.001 * step,
        "clip_low": 0.0,
        "clip_high": 0.02,
        "clip_share": 0.02,
        "entropy": 0.5 - 0.01 * step,
        "grad_norm": 0.8,
        "learning_rate": 0.002,
        "length": 31.4,
        "truncated": 0.125,
        "ratio_max": 1.31,
        "tokens": 4019.0,
        "optimiser_steps": 1.0,
    }
    return {**found, **more}


def begun(**more: Any) -> list[ev.DurableEvent]:
    """A training run up to its first step."""
    values: dict[str, Any] = {"run": "tiny", "exp_id": "tiny", "group_size": 4}
    values |= {"steps_per_epoch": 30, "settings": SETTINGS}
    return [a_run(**{**values, **more}), ev.EngineOpened(ENGINE)]


def tried(step: int, wins: Sequence[int] = (3, 1, 4)) -> list[ev.DurableEvent]:
    """The rollouts of a step: of each group so many of 4 are right; its groups are through."""
    found: list[ev.DurableEvent] = [ev.StepStarted(1, step, PROBLEMS, step - 1, 0)]
    for position, won in enumerate(wins):
        for index in range(4):
            said = "#### 33" if index < won else "#### 23"
            found.append(
                ev.RolloutFinished(
                    step=step,
                    position=position,
                    index=index,
                    seed=7,
                    status="ok",
                    answer=said,
                    error=None,
                    usage=Usage(20, 31, 1),
                    elapsed_s=0.5,
                    tail=said,
                )
            )
            reward = 1.0 if index < won else 0.0
            critique = "" if reward else "expected 33, got 23"
            found.append(
                ev.RolloutJudged(step, position, index, Verdict(reward, critique=critique))
            )
        outcome: GroupOutcome = "all-right" if won == 4 else "all-wrong" if won == 0 else "used"
        found.append(ev.GroupReflected(step, position, Reflection(step, position, outcome)))
    return found


def proposed(
    step: int,
    *,
    back_to: int | None = None,
    failed: str = "",
    figures: dict[str, float] | None = None,
    idle: bool = False,
) -> ev.LessonProposed:
    """Its lesson: an update, one that goes back, a failure, or nothing at all."""
    if failed:
        return ev.LessonProposed(
            step, Lesson(step, 0, losses=(LostWork("update", f"s{step}", failed),))
        )
    if idle:
        return ev.LessonProposed(step, Lesson(step, 0))
    update = WeightUpdate(figures or metrics(step), f"step-{step}", rollback_to=back_to)
    return ev.LessonProposed(step, Lesson(step, 0, update=update))


def settled(
    step: int, version: int, *, decided: bool = True, rejected: str = ""
) -> list[ev.DurableEvent]:
    """The commit of a step, and its end; `version` is the policy's after it."""
    name = update_id(step)
    found: list[ev.DurableEvent] = []
    outcomes: tuple[OperationOutcome, ...] = ()
    if decided:
        action: DecisionAction = "reject" if rejected else "approve"
        found.append(
            ev.OperationDecided(step, Decision(name, action, reason=rejected, reviewer="auto"))
        )
        outcomes = (OperationOutcome(name, "weights", not rejected, None, rejected),)
    found.append(ev.LessonCommitted(step, 0, "hash", outcomes, version))
    return [*found, ev.StepFinished(1, step)]


def history() -> list[ev.DurableEvent]:
    """Six steps: two applied, one rejected, one failed, one without contrast, one rolled back."""
    return [
        *begun(),
        _measured(0, 0, 3, 20),
        *[*tried(1, (1, 0, 2)), proposed(1), *settled(1, 1)],
        *[*tried(2, (2, 1, 3)), proposed(2), *settled(2, 2)],
        ev.CheckpointSaved(2, "checkpoints/tiny/Experiment-1/global_step_2", 2, "d2"),
        *[*tried(3, (3, 2, 4)), proposed(3, figures=metrics(3, kl=9.0))],
        *settled(3, 2, rejected="KL 9 is above 0.5"),
        *[*tried(4, (2, 2, 3)), proposed(4, failed="the loss is not a number")],
        *settled(4, 2, decided=False),
        *[*tried(5, (4, 4, 4)), proposed(5, idle=True), *settled(5, 2, decided=False)],
        *[*tried(6, (0, 0, 1)), proposed(6, back_to=2), *settled(6, 3)],
    ]


def finished() -> list[ev.DurableEvent]:
    """The same with a last step, its checkpoint, a measurement and an end."""
    return [
        *history(),
        *[*tried(7, (4, 3, 4)), proposed(7), *settled(7, 4)],
        ev.CheckpointSaved(7, "checkpoints/tiny/Experiment-1/global_step_7", 4, "d7"),
        _measured(7, 4, 15, 20),
        ev.RunEnded("finished"),
    ]


def _measured(step: int, version: int, right: int, of: int) -> ev.EvaluationFinished:
    rewards = tuple((1.0,) if n < right else (0.0,) for n in range(of))
    names = tuple(f"h{n}" for n in range(of))
    return ev.EvaluationFinished(
        step=step,
        data="skills-heldout",
        policy_version=version,
        library_version=0,
        k=1,
        n=of,
        unjudged=0,
        mean=right / of,
        usage=Usage(20 * of, 30 * of, of),
        fingerprint="print",
        trouble="",
        problems=names,
        rewards=rewards,
    )


def a_state(*events: ev.DurableEvent) -> RunState:
    return fold_events(events)


def training_workspace(folder: Path, events: Sequence[ev.DurableEvent]) -> Workspace:
    """A workspace whose run `tiny` has this journal, and whose library is empty."""
    workspace = Workspace(folder / "practice")
    run = workspace.runs_folder / "tiny"
    run.mkdir(parents=True)
    workspace.library("lib").create(None)
    journal = Journal(run / "journal.jsonl")
    for event in events:
        journal.append_now(event)
    journal.close()
    return workspace
