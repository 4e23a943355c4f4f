"""`studio eval` as a session: what is said before, while and after it measures.

Owns signals, narration and printing. `studio.evaluation.evaluate` does the work.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Literal

from engines.core.types import NO_USAGE, Usage
from studio import exit_codes
from studio.evaluation.evaluate import (
    EvalPlan,
    EvaluationResult,
    GivenUp,
    measure_missing,
    partial_result,
)
from studio.evaluation.report import eval_data, eval_text, eval_title
from studio.evaluation.trial import without_lessons
from studio.report.progress import to_stderr
from studio.report.tables import print_json
from studio.run.held_out import set_power_lines
from studio.run.models import is_rehearsal
from studio.run.verifier import masked_answers_warning

_STOPPING = (signal.SIGINT, signal.SIGTERM)


def run_eval(plan: EvalPlan, *, json: bool) -> int:
    """Measure what is missing and print the result; returns the exit code.

    Raises:
        StudioError: something cannot be opened or recorded.
    """
    for warning in plan.loaded.warnings:
        to_stderr(f"note: {warning}")
    problems = [problem for held_out in plan.sets for problem in held_out.problems]
    if hidden := masked_answers_warning(problems, plan.loaded.mask):
        to_stderr(f"note: {hidden}")
    rehearsal = is_rehearsal(without_lessons(plan.loaded.config))
    if rehearsal:
        to_stderr("rehearsal: replies are scripted, no model is asked")
    for line in set_power_lines(plan.sets, plan.k):
        to_stderr(line)
    if plan.agent and len(plan.subjects) > 1:
        to_stderr("note: both sides have the agent's instructions; only experiences differ")
    if len(plan.guidances) < len(plan.subjects):
        to_stderr("note: both sides hold the same experiences, which are measured once")
    missing = plan.count_missing()
    known = f", {plan.total - missing} known already" if missing < plan.total else ""
    to_stderr(f"{eval_title(plan)}: {missing} rollouts to make{known}")
    given_up = _EarlyEnd()
    try:
        progress = _ProgressCounter(plan.requested_total) if missing else lambda: None
        found = asyncio.run(_measure_until_signal(plan, progress, given_up))
    except asyncio.CancelledError:
        done = plan.total - plan.count_missing()
        to_stderr(
            f"studio: {given_up.said}; {done} of {plan.total} rollouts are "
            f"kept{given_up.kept_results_text}, "
            f"and the same command goes on from there{given_up.provided}"
        )
        if json:
            found = partial_result(plan, given_up.paid, missing)
            ended = {"ended": given_up.why, "reason": given_up.said}
            print_json(eval_data(plan, found, rehearsal=rehearsal) | ended)
        return given_up.exit_code
    if json:
        print_json(eval_data(plan, found, rehearsal=rehearsal))
    else:
        print(eval_text(plan, found, rehearsal=rehearsal), flush=True)
    return exit_codes.WITH_LOSSES if found.unjudged_count else exit_codes.DONE


class _EarlyEnd:
    """Why the evaluation was cut short: a signal, or what it was given up for."""

    def __init__(self) -> None:
        self.exit_code = exit_codes.INTERRUPTED
        self.said = "interrupted"
        self.why: GivenUp | Literal["interrupted"] = "interrupted"
        self.paid = NO_USAGE
        self.provided = ""  # on which condition the same command goes on
        self.task: asyncio.Task[object] | None = None

    def __call__(self, why: GivenUp, reason: str) -> None:
        if self.task is None or self.said != "interrupted":
            return
        if why == "budget":
            self.exit_code, self.provided = exit_codes.BUDGET_REACHED, " with a higher budget"
        else:
            self.exit_code = exit_codes.WITH_LOSSES
        self.why, self.said = why, reason
        self.task.cancel()

    def record_paid(self, paid: Usage) -> None:
        self.paid = paid

    @property
    def kept_results_text(self) -> str:
        """What is kept beside scores."""
        if self.why == "interrupted" or not self.paid.calls:
            return ""
        return " and every reply that was paid for"


async def _measure_until_signal(
    plan: EvalPlan, progress: Callable[[], None], given_up: _EarlyEnd
) -> EvaluationResult:
    """Ctrl-C and SIGTERM cancel in good order, so that what has ended is kept."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    given_up.task = task
    for number in _STOPPING:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await measure_missing(plan, to_stderr, progress, given_up, given_up.record_paid)
    finally:
        for number in _STOPPING:
            loop.remove_signal_handler(number)


class _ProgressCounter:
    """Says how far it is: in place on a terminal, else at every tenth."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._told = total, 0, 0
        self._in_place = sys.stderr.isatty()

    def __call__(self) -> None:
        self._done += 1
        text = f"held-out rollouts {self._done} of {self._total}"
        if self._in_place:
            end = "\n" if self._done == self._total else ""
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)
        elif self._done * 10 // self._total > self._told:
            self._told = self._done * 10 // self._total
            to_stderr(text)
