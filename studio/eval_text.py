"""What `studio eval` prints: each set, what each subject came to, and whether it helped.

Pure. Every rate comes with its interval and its n, every difference with its verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.core.types import NO_USAGE, Usage
from engines.pipeline.evaluate import Measured
from engines.pipeline.metrics import Comparison, mean_at_k, pass_rate
from studio.evaluating import EvalPlan, SetResult, Subject
from studio.held_out import could_show, effect_of
from studio.inert import one_line
from studio.printing import indented, table
from studio.rates import (
    comparison_data,
    difference_text,
    interval_data,
    mean_text,
    rate,
    signs_text,
)
from studio.summary import REHEARSAL, count, spent


def eval_text(plan: EvalPlan, found: Sequence[SetResult], *, rehearsal: bool) -> str:
    """The whole result as plain lines, with a table of before and after at the end."""
    lines = [REHEARSAL] if rehearsal else []
    lines += [title(plan), ""]
    for result in found:
        lines += [*_set_lines(result, plan.k), ""]
    if len(plan.subjects) > 1:
        lines += [_before_and_after(found), ""]
    lines.append(f"paid     {_paid(found)}")
    return "\n".join(lines)


def title(plan: EvalPlan) -> str:
    """`math_eval: mine@4 against none`."""
    told = " against ".join(one_line(s.label, 60) for s in reversed(plan.subjects))
    return f"{plan.loaded.config.exp_id}: {told}"


def eval_data(plan: EvalPlan, found: Sequence[SetResult], *, rehearsal: bool) -> dict[str, Any]:
    """The same facts for `--json`, with every problem's rewards."""
    return {
        "kind": "Evaluation",
        "rehearsal": rehearsal,
        "exp_id": plan.loaded.config.exp_id,
        "k": plan.k,
        "sets": [_set_data(result, plan.k) for result in found],
        "paid": _usage_data(_sum_paid(found)),
        "rollouts": plan.total,
        "reused": sum(m.reused for result in found for _, m in result.results),
    }


def _set_lines(result: SetResult, k: int) -> list[str]:
    n = len(result.held_out.problems)
    tries = "1 try each" if k == 1 else f"{k} tries each"
    lines = [f"{result.held_out.name}: {count(n, 'problem')}, {tries}; {could_show(n, k)}"]
    headings = ["EXPERIENCES", f"MEAN@{k}", "N"]
    if k > 1:
        headings.insert(2, f"PASS@{k}")
    optional = _optional_columns(result)
    rows = [
        [*_row(subject, found, k), *(cells[at] for cells in optional.values())]
        for at, (subject, found) in enumerate(result.results)
    ]
    lines.append(indented(table([*headings, *optional], rows)))
    comparison = result.comparison
    if comparison is not None:
        lines.append(f"  difference {difference_text(comparison)}: {signs_text(comparison)}")
        after = result.results[-1][0].label
        lines.append(f"  {one_line(after, 60)}: {comparison.verdict}{_left_out(comparison)}")
    for subject, found in result.results:
        if found.unjudged:
            lines.append(
                f"  {one_line(subject.label, 60)}: {found.unjudged} unjudged, the first because: "
                f"{one_line(found.trouble, 160)}"
            )
    return lines


def _row(subject: Subject, found: Measured, k: int) -> list[str]:
    cells = [subject.label, mean_text(found.rewards), str(found.known)]
    if k > 1:
        passed = pass_rate(found.rewards, k)
        cells.insert(2, rate(passed.value, passed.interval))
    return cells


def _optional_columns(result: SetResult) -> dict[str, list[str]]:
    """What a try costs; calls of tools and money only where there are any."""
    found = [measured for _, measured in result.results]
    tries = [max(1, len(m.rewards) * len(m.rewards[0])) if m.rewards else 1 for m in found]
    pairs = list(zip(found, tries, strict=True))
    columns = {"TOKENS/TRY": [f"{m.total.tokens / n:,.0f}" for m, n in pairs]}
    if any(m.tool_calls for m in found):
        columns["TOOLS/TRY"] = [f"{m.tool_calls / n:.1f}" for m, n in pairs]
    if any(m.total.cost_usd is not None for m in found):
        columns["$/TRY"] = [
            "-" if m.total.cost_usd is None else f"{m.total.cost_usd / n:.5f}" for m, n in pairs
        ]
    return columns


def _left_out(found: Comparison) -> str:
    if not found.left_out:
        return ""
    return f" ({count(found.left_out, 'problem')} could not be paired: unjudged)"


def _before_and_after(found: Sequence[SetResult]) -> str:
    rows = []
    for result in found:
        (_, before), (_, after) = result.results
        comparison = result.comparison
        rows.append(
            [
                result.held_out.name,
                _short(mean_at_k(before.rewards)),
                _short(mean_at_k(after.rewards)),
                difference_text(comparison) if comparison else "-",
                comparison.verdict if comparison else "cannot tell",
            ]
        )
    return table(("HELD-OUT SET", "BEFORE", "AFTER", "DIFFERENCE", "VERDICT"), rows)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _paid(found: Sequence[SetResult]) -> str:
    results = [m for result in found for _, m in result.results]
    known, total = sum(m.reused for m in results), sum(m.known + m.unjudged for m in results)
    text = spent(_sum_paid(found))
    return text if not known else f"{text} ({known} of {total} rollouts were known already)"


def _sum_paid(found: Sequence[SetResult]) -> Usage:
    return sum((m.paid for result in found for _, m in result.results), NO_USAGE)


def _set_data(result: SetResult, k: int) -> dict[str, Any]:
    problems = result.held_out.problems
    return {
        "data": result.held_out.name,
        "problems": [problem.id for problem in problems],
        "smallest_effect": effect_of(len(problems), k),
        "results": [_measured_data(subject, found, k) for subject, found in result.results],
        "comparison": comparison_data(result.comparison),
    }


def _measured_data(subject: Subject, found: Measured, k: int) -> dict[str, Any]:
    tries = max(1, found.known + found.unjudged)
    return {
        "experiences": subject.label,
        "library_version": subject.library.version if subject.library else None,
        f"mean@{k}": mean_at_k(found.rewards),
        "interval": interval_data(found.rewards),
        "pass": {str(at): pass_rate(found.rewards, at).value for at in range(1, k + 1)},
        "n": found.known,
        "unjudged": found.unjudged,
        "trouble": found.trouble,
        "tokens_per_try": found.total.tokens / tries,
        "tool_calls_per_try": found.tool_calls / tries,
        "cost_usd": found.total.cost_usd,
        "reused": found.reused,
        "rewards": found.rewards,
    }


def _usage_data(usage: Usage) -> dict[str, Any]:
    return {
        "calls": usage.calls,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost_usd": usage.cost_usd,
    }
