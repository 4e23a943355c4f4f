"""`studio eval` from its first note to its result, or what it would cost: signals, printing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from engines.core.types import NO_USAGE, Usage
from studio import exit_codes
from studio.config.scripted import is_rehearsal, played_note
from studio.estimate.cost import Estimate, estimate_evaluation
from studio.estimate.dry_run import NO_PRICE, costs_money
from studio.estimate.facts import gather_eval_facts
from studio.estimate.text import estimate_data, estimate_table, limits_text
from studio.evaluation.evaluate import EvalPlan, EvaluationResult, known_result, measure_missing
from studio.evaluation.measurement import GivenUp
from studio.evaluation.report import eval_data, eval_text, eval_title, text_after_eval
from studio.evaluation.try_problem import without_lessons
from studio.process import on_stop_signal
from studio.render.json import print_json, print_result
from studio.render.lines import tell_next, to_stderr
from studio.render.words import count_text
from studio.run.budget import check_budget, limits_of
from studio.run.held_out import set_power_lines
from studio.run.verifier import fingerprint_of, masked_answers_warning


def run_eval(plan: EvalPlan, *, json: bool) -> int:
    """Measure what is missing and print the result; returns the exit code."""
    rehearsal = tell_eval_notes(plan)
    for line in set_power_lines(plan.sets, plan.k):
        to_stderr(line)
    missing, early = plan.count_missing(), EarlyEnd()
    found = measure_or_end(plan, early, missing)
    if found is None:
        if json:
            found = known_result(plan, early.paid, missing)
            ended = {"ended": early.cause, "reason": early.reason}
            print_json(eval_data(plan, found, rehearsal=rehearsal) | ended)
        return early.exit_code
    if found.tried is not None:
        return _tell_tries(plan, found, missing, json=json)
    text = eval_text(plan, found, rehearsal=rehearsal)
    print_result(eval_data(plan, found, rehearsal=rehearsal), text, json=json)
    if not json:
        tell_next(text_after_eval(plan), plan.workspace.path)
    return exit_codes.WITH_LOSSES if found.unjudged_count else exit_codes.DONE


def measure_or_end(
    plan: EvalPlan, early: EarlyEnd, missing: int, called: str = "held-out rollouts"
) -> EvaluationResult | None:
    """Measure, telling how far it is; None where it ended `early`, which is told, too."""
    known = f", {plan.total - missing} known already" if missing < plan.total else ""
    verb = "judge" if plan.step == "judge" else "make"
    to_stderr(f"{eval_title(plan)}: {count_text(missing, 'rollout')} to {verb}{known}")
    try:
        # Rollouts that two sets share are told of for each.
        requested = len(plan.contents) * plan.k * len(plan.guidances)
        progress = _ProgressCounter(requested, called) if missing else lambda: None
        return asyncio.run(_measure_until_signal(plan, progress, early))
    except asyncio.CancelledError:
        done = plan.total - plan.count_missing()
        replies = ""
        if early.cause != "interrupted" and early.paid.calls:
            replies = " and every reply that was paid for"
        to_stderr(
            f"studio: {early.reason}; {done} of {plan.total} rollouts are kept{replies}, "
            f"and the same command goes on from there{early.condition}"
        )
        return None


def _tell_tries(plan: EvalPlan, found: EvaluationResult, missing: int, *, json: bool) -> int:
    """What `--step rollout` has made; returns the exit code."""
    waiting, calls = found.tried or 0, found.paid.calls
    text = f"{waiting} tries wait for `--step judge`, {missing - waiting} failed ({calls} calls)"
    data = {"step": plan.step, "waiting": waiting, "failed": missing - waiting, "calls": calls}
    print_result(data, text, json=json)
    return exit_codes.DONE if waiting == missing else exit_codes.WITH_LOSSES


def tell_eval_notes(plan: EvalPlan) -> bool:
    """Print what a person should know before anything is asked; whether replies are scripted."""
    for warning in plan.loaded.warnings:
        to_stderr(f"note: {warning}")
    problems = [problem for held_out in plan.sets for problem in held_out.problems]
    if hidden := masked_answers_warning(problems, plan.loaded.mask):
        to_stderr(f"note: {hidden}")
    rehearsal = is_rehearsal(without_lessons(plan.loaded.config))
    if rehearsal:
        to_stderr("rehearsal: replies are scripted, no model is asked")
    if note := played_note(plan.loaded.tape):
        to_stderr(note)
    if plan.agent and len(plan.subjects) > 1:
        to_stderr("note: both sides have the agent's instructions; only experiences differ")
    if len(plan.guidances) < len(plan.subjects):
        to_stderr("note: both sides hold the same experiences, which are measured once")
    return rehearsal


@dataclass(slots=True, eq=False)
class EarlyEnd:
    """Why the evaluation ended early: a signal, a budget, or nothing that works any more."""

    exit_code: int = exit_codes.INTERRUPTED
    reason: str = "interrupted"
    cause: GivenUp | Literal["interrupted"] = "interrupted"
    paid: Usage = NO_USAGE
    condition: str = ""  # on which the same command goes on
    task: asyncio.Task[Any] | None = None
    ended: bool = False

    @contextmanager
    def cancel_on_signal(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM cancel this task in order, so that what has ended is kept."""
        self.task = asyncio.current_task()
        assert self.task is not None
        try:
            with on_stop_signal(self.task.cancel):
                yield
        except asyncio.CancelledError:
            self.ended = True
            raise

    def __call__(self, cause: GivenUp, reason: str) -> None:
        if self.task is None or self.cause != "interrupted":
            return
        if cause == "budget":
            self.exit_code, self.condition = exit_codes.BUDGET_REACHED, " with a higher budget"
        else:
            self.exit_code = exit_codes.WITH_LOSSES
        self.cause, self.reason = cause, reason
        self.task.cancel()

    def record_paid(self, paid: Usage) -> None:
        self.paid = paid


async def _measure_until_signal(
    plan: EvalPlan, progress: Callable[[], None], early: EarlyEnd
) -> EvaluationResult:
    with early.cancel_on_signal():
        return await measure_missing(plan, to_stderr, progress, early, early.record_paid)


class _ProgressCounter:
    """Prints how far it is: in place on a terminal, else at every tenth."""

    def __init__(self, total: int, called: str) -> None:
        self._called, self._total, self._done, self._tenths = called, total, 0, 0
        self._in_place = sys.stderr.isatty()

    def __call__(self) -> None:
        self._done += 1
        text = f"{self._called} {self._done} of {self._total}"
        if self._in_place:
            end = "\n" if self._done == self._total else ""
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)
        elif self._done * 10 // self._total > self._tenths:
            self._tenths = self._done * 10 // self._total
            to_stderr(text)


def estimate_missing(plan: EvalPlan) -> tuple[Estimate, tuple[str, ...]]:
    """What the missing rollouts would cost, and what that is assumed from."""
    config = without_lessons(plan.loaded.config)
    problems = tuple(p for s in plan.sets for p in s.problems)
    fingerprint = fingerprint_of(plan.loaded, plan.workspace)
    facts, parts, notes = gather_eval_facts(
        config, plan.workspace, fingerprint, problems, plan.missing()
    )
    return estimate_evaluation(facts, parts), notes


def print_eval_dry_run(plan: EvalPlan, *, json: bool, power: Sequence[str] | None = None) -> int:
    """Print what the missing rollouts would cost, and in words what they can show.

    Raises ConfigError: a budget cannot be kept.
    """
    tell_eval_notes(plan)
    config, missing = without_lessons(plan.loaded.config), plan.missing()
    check_budget(plan.loaded, config)
    found, notes = estimate_missing(plan)
    paid = costs_money(config, found)
    if found.cost_usd is None and paid:
        notes += (NO_PRICE,)
    to_make = sum(n for _, n in missing)
    title, done = eval_title(plan), plan.total - to_make
    known = f", {done} known already" if done else ""
    lines = [f"{title}: {count_text(to_make, 'rollout')} to make{known}"]
    lines += set_power_lines(plan.sets, plan.k) if power is None else power
    lines += [estimate_table(found, costs_money=paid), *(f"note: {note}" for note in notes)]
    if limits := limits_of(config):
        lines.append(f"budget: {limits_text(limits)}")
    data = {"title": title, "rollouts": to_make, "known": done}
    print_result(data | estimate_data(found, (), notes), "\n".join(lines), json=json)
    return exit_codes.DONE
