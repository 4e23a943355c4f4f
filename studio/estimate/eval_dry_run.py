"""What an evaluation outside any run would cost, printed instead of measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.pipeline.evaluation.evaluate import HeldOutSet
from engines.record.run_dir import Workspace
from studio import exit_codes
from studio.config.loading import LoadedRun
from studio.config.settings.run import RunConfig
from studio.estimate.cost import estimate_evaluation
from studio.estimate.dry_run import NO_PRICE, costs_money
from studio.estimate.facts import gather_eval_facts
from studio.estimate.text import estimate_data, estimate_table, limits_text
from studio.report.tables import print_result
from studio.run.budget import check_budget, limits_of
from studio.run.held_out import set_power_lines


def print_eval_dry_run(
    loaded: LoadedRun,
    config: RunConfig,
    workspace: Workspace,
    *,
    title: str,
    fingerprint: Mapping[str, Any],
    sets: Sequence[HeldOutSet],
    missing: Sequence[tuple[str, int]],
    total: int,
    json: bool,
) -> int:
    """Print what the rollouts that are `missing` with each guidance, of `total`, would cost.

    `config` is that of the evaluation alone. Raises ConfigError: a budget cannot be kept.
    """
    check_budget(loaded, config)
    problems = tuple(problem for held_out in sets for problem in held_out.problems)
    facts, parts, notes = gather_eval_facts(config, workspace, fingerprint, problems, missing)
    found = estimate_evaluation(facts, parts)
    paid = costs_money(config, found)
    if found.cost_usd is None and paid:
        notes += (NO_PRICE,)
    to_make = sum(n for _, n in missing)
    known = f", {total - to_make} known already" if to_make < total else ""
    lines = [f"{title}: {to_make} rollouts to make{known}"]
    lines += set_power_lines(tuple(sets), config.evaluation.k)
    lines += [estimate_table(found, costs_money=paid), *(f"note: {note}" for note in notes)]
    if limits := limits_of(config):
        lines.append(f"budget: {limits_text(limits)}")
    data = {"title": title, "rollouts": to_make, "known": total - to_make}
    print_result(data | estimate_data(found, (), notes), "\n".join(lines), json=json)
    return exit_codes.DONE
