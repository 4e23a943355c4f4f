"""What an evaluation outside any run would cost, printed instead of measuring."""

from __future__ import annotations

from studio import exit_codes
from studio.estimate.cost import estimate_evaluation
from studio.estimate.dry_run import NO_PRICE, costs_money
from studio.estimate.facts import gather_eval_facts
from studio.estimate.text import estimate_data, estimate_table, limits_text
from studio.evaluation.evaluate import EvalPlan
from studio.evaluation.report import eval_title
from studio.evaluation.session import tell_eval_notes
from studio.evaluation.try_problem import without_lessons
from studio.report.summary import count_text
from studio.report.tables import print_result
from studio.run.budget import check_budget, limits_of
from studio.run.held_out import set_power_lines
from studio.run.verifier import fingerprint_of


def print_eval_dry_run(plan: EvalPlan, *, json: bool) -> int:
    """Print what the missing rollouts would cost. Raises ConfigError: a budget cannot be kept."""
    tell_eval_notes(plan)
    loaded, config, missing = plan.loaded, without_lessons(plan.loaded.config), plan.missing()
    check_budget(loaded, config)
    problems = tuple(problem for held_out in plan.sets for problem in held_out.problems)
    fingerprint = fingerprint_of(loaded, plan.workspace)
    facts, parts, notes = gather_eval_facts(config, plan.workspace, fingerprint, problems, missing)
    found = estimate_evaluation(facts, parts)
    paid = costs_money(config, found)
    if found.cost_usd is None and paid:
        notes += (NO_PRICE,)
    to_make = sum(n for _, n in missing)
    title, done = eval_title(plan), plan.total - to_make
    known = f", {done} known already" if done else ""
    lines = [f"{title}: {count_text(to_make, 'rollout')} to make{known}"]
    lines += set_power_lines(plan.sets, plan.k)
    lines += [estimate_table(found, costs_money=paid), *(f"note: {note}" for note in notes)]
    if limits := limits_of(config):
        lines.append(f"budget: {limits_text(limits)}")
    data = {"title": title, "rollouts": to_make, "known": done}
    print_result(data | estimate_data(found, (), notes), "\n".join(lines), json=json)
    return exit_codes.DONE
