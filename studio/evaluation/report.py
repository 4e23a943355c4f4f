"""What `studio eval` prints: the result of each subject on each set, and whether it helped.

Every rate has its interval and its n, every difference its verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

from engines.pipeline.evaluation.statistics import (
    mean_at_k,
    mean_interval,
    pass_curve,
    pass_rate,
    question_means,
)
from engines.record.cassette import is_played
from studio.config.scripted import played_note
from studio.evaluation.evaluate import EvalPlan, EvaluationResult, SetResult
from studio.facts.run import REHEARSAL
from studio.render.evaluation_lines import mean_text
from studio.render.lines import indent_text, table
from studio.render.words import difference_text, rate_text, signs_text, usage_text
from studio.run.held_out import detectable_effect, set_size_line
from studio.secrets.sanitize import one_line


def eval_text(plan: EvalPlan, found: EvaluationResult, *, rehearsal: bool) -> str:
    """The whole result as plain lines, with a table of before and after at the end."""
    lines = [REHEARSAL] if rehearsal else []
    lines += filter(None, [played_note(plan.loaded.tape)])
    lines += [eval_title(plan), ""]
    for result in found.sets:
        lines += [*_set_lines(result, plan.k), ""]
    if len(plan.subjects) > 1:
        lines += [_comparison_table(found.sets), ""]
    known = f" ({found.reused} of {plan.total} rollouts were known already)" * bool(found.reused)
    lines.append(f"paid     {usage_text(found.paid)}{known}")
    return "\n".join(lines)


def text_after_eval(plan: EvalPlan) -> str:
    *baseline, measured = plan.subjects
    if baseline:
        if measured.library is None or not plan.workspace.library(measured.library.name).exists():
            return ""
        return f"studio library history {quote(measured.library.name)}"
    if measured.library is None:
        return "the same with --library NAME --baseline none says whether a library helps"
    return "the same with --baseline none says whether these experiences help"


def eval_title(plan: EvalPlan) -> str:
    """`math_eval: mine@4 against none, judged by math`."""
    labels = " against ".join(one_line(s.label, 60) for s in reversed(plan.subjects))
    config = plan.loaded.config
    return f"{config.exp_id}: {labels}, judged by {one_line(config.verifier.name, 60)}"


def eval_data(plan: EvalPlan, found: EvaluationResult, *, rehearsal: bool) -> dict[str, Any]:
    """The same facts for `--json`, with every problem's rewards."""
    return {
        "kind": "Evaluation",
        "rehearsal": rehearsal,
        "cassette": is_played(plan.loaded.tape),
        "exp_id": plan.loaded.config.exp_id,
        "k": plan.k,
        "sets": [_set_data(result, plan.k) for result in found.sets],
        "paid": found.paid,
        "rollouts": plan.total,
        "reused": found.reused,
    }


def _set_lines(result: SetResult, k: int) -> list[str]:
    held_out = result.held_out
    lines = [one_line(set_size_line(held_out, k), 400)]  # what it can show was told before
    passed = [f"PASS@{k}"] if k > 1 else []
    headings = ["EXPERIENCES", f"MEAN@{k}", *passed, "QUESTIONS", "TRIES"]
    optional = _optional_columns(result)
    rows = [
        [*_row(result, at, k), *(cells[at] for cells in optional.values())]
        for at in range(len(result.results))
    ]
    lines.append(indent_text(table([*headings, *optional], rows)))
    comparison = result.comparison
    if comparison is not None:
        after = one_line(result.results[-1][0].label, 60)
        lines.append(f"  difference {difference_text(comparison)}: {signs_text(comparison)}")
        lines.append(f"  {after}: {comparison.verdict}")
    for subject, found in result.results:
        if found.unjudged_count:
            lines.append(
                f"  {one_line(subject.label, 60)}: {found.unjudged_count} unjudged, the first "
                f"because: {one_line(found.trouble, 160)}"
            )
    return lines


def _row(result: SetResult, at: int, k: int) -> list[str]:
    subject, found = result.results[at]
    rows = tuple(result.question_rewards(at).values())
    known = sum(any(reward is not None for reward in row) for row in rows)
    cells = [subject.label, mean_text(rows), str(known), str(found.known_count)]
    if k > 1:
        passed = pass_rate(rows, k)
        fewer = f" n={passed.questions}" if passed.questions != known else ""
        cells.insert(2, rate_text(passed.value, passed.interval) + fewer)
    return cells


def _optional_columns(result: SetResult) -> dict[str, list[str]]:
    """Columns on what a try costs; tool calls and money only where there are any."""
    found = [measured for _, measured in result.results]
    tries = [max(1, m.known_count + m.unjudged_count) for m in found]
    pairs = list(zip(found, tries, strict=True))
    columns = {"TOKENS/TRY": [f"{m.total.tokens / n:,.0f}" for m, n in pairs]}
    if any(m.tool_calls for m in found):
        columns["TOOLS/TRY"] = [f"{m.tool_calls / n:.1f}" for m, n in pairs]
    if any(m.total.cost_usd is not None for m in found):
        columns["$/TRY"] = [
            "-" if m.total.cost_usd is None else f"{m.total.cost_usd / n:.5f}" for m, n in pairs
        ]
    return columns


def _comparison_table(found: Sequence[SetResult]) -> str:
    """Before and after on the questions judged in both, like the difference."""
    rows = []
    for result in found:
        comparison = result.comparison
        before, after = result.question_rewards(0), result.question_rewards(1)
        paired = [q for q in before if question_means([before[q]]) and question_means([after[q]])]
        means = [mean_at_k([side[q] for q in paired]) for side in (before, after)]
        rows.append(
            [
                result.held_out.name,
                *("-" if mean is None else f"{mean:.3f}" for mean in means),
                difference_text(comparison) if comparison else "-",
                str(len(paired)),
                comparison.verdict if comparison else "cannot tell",
            ]
        )
    headings = ("HELD-OUT SET", "BEFORE", "AFTER", "DIFFERENCE", "QUESTIONS", "VERDICT")
    return table(headings, rows)


def _set_data(result: SetResult, k: int) -> dict[str, Any]:
    held_out = result.held_out
    return {
        "data": held_out.name,
        "problems": [problem.id for problem in held_out.problems],
        "texts": [problem.question for problem in held_out.problems],
        "questions": held_out.questions,
        "left_out": held_out.left_out,
        "smallest_effect": detectable_effect(held_out, k),
        "results": [_measured_data(result, at, k) for at in range(len(result.results))],
        "comparison": result.comparison,
    }


def _measured_data(result: SetResult, at: int, k: int) -> dict[str, Any]:
    subject, found = result.results[at]
    rows = tuple(result.question_rewards(at).values())
    tries = max(1, found.known_count + found.unjudged_count)
    return {
        "experiences": subject.label,
        "library_version": subject.library.version if subject.library else None,
        f"mean@{k}": mean_at_k(rows),
        "interval": mean_interval(rows),
        "questions": len(question_means(rows)),
        "pass": {
            str(n): {
                "value": p.value,
                "interval": p.interval,
                "questions": p.questions,
            }
            for n, p in enumerate(pass_curve(rows, k), start=1)
        },
        "n": found.known_count,
        "unjudged": found.unjudged_count,
        "missing": found.missing,
        "trouble": found.trouble,
        "tokens_per_try": found.total.tokens / tries,
        "tool_calls_per_try": found.tool_calls / tries,
        "cost_usd": found.total.cost_usd,
        "reused": found.reused,
        "rewards": found.rewards,
    }
