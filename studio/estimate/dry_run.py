"""What a planned run would cost, printed before it begins or instead of running it."""

from contextlib import AsyncExitStack
from dataclasses import replace

from studio import exit_codes
from studio.config.scripted import rehearsal_note
from studio.config.settings.policy import Role
from studio.config.settings.run import RunConfig
from studio.estimate.cost import estimate_run
from studio.facts.estimate import Estimate
from studio.render.estimate_lines import (
    estimate_line,
    estimate_table,
    exceeded_limits_text,
    limits_text,
)
from studio.render.json import json_data, print_result
from studio.render.lines import tell_next, to_stderr
from studio.run.assemble import check_verifier
from studio.run.budget import check_budget, limits_of, open_budget
from studio.run.new_or_resume import RunPlan

NO_PRICE = (
    "the cost is unknown without prices: set policy.price_in_usd_per_mtok and "
    "policy.price_out_usd_per_mtok, in dollars for a million tokens (reflector and judge alike)"
)


async def print_dry_run(plan: RunPlan, *, json: bool) -> int:
    """Check everything that can be checked without asking a model, and print what it would cost.

    Raises StudioError: something could not be opened.
    """
    config = plan.loaded.config
    if note := rehearsal_note(config):
        to_stderr(note)
    check_budget(plan.loaded, config)
    async with AsyncExitStack() as stack:
        await check_verifier(plan, stack)
    estimate = estimate_run(plan)
    is_paid = costs_money(config, estimate)
    if estimate.cost_usd is None and is_paid:
        estimate = replace(estimate, notes=(*estimate.notes, NO_PRICE))
    budget = open_budget(plan.loaded, config, plan.run.records, lambda _: None)
    left = budget.remaining if budget is not None else {}
    total = plan.sampler.total_steps
    done = plan.state.steps_finished if plan.state else plan.adopted_steps
    lines = [
        f"run {plan.run.run}: {plan.mode}, {total - done} of {total} steps to be done",
        estimate_table(estimate, costs_money=is_paid),
        "",
        *(f"note: {note}" for note in estimate.notes),
    ]
    if limits := limits_of(config):
        lines.append(f"budget: {limits_text(limits)}")
        if short := exceeded_limits_text(estimate, left):
            lines.append(f"the budget will likely not do: {short}")
    planned = {"run": plan.run.run, "mode": plan.mode, "steps_left": total - done,
               "steps": total, "budget": limits.amounts, "budget_left": left}  # fmt: skip
    print_result(planned | json_data(estimate), "\n".join(lines), json=json)
    if not json:
        after = "the same without --dry-run begins it"
        if done == total:
            after = "nothing is left: --name NAME begins another run, more practice.epochs go on"
        tell_next(after, plan.workspace.path)
    return exit_codes.DONE


def costs_money(config: RunConfig, found: Estimate) -> bool:
    """Whether an endpoint is asked, or a price is rehearsed; what runs here has no price."""
    roles: tuple[Role, ...] = ("policy", "reflector", "judge")
    asks = any(config.role(role).model.startswith("openai:") for role in roles)
    return asks or any(stage.cost_usd and stage.cost_usd.at_most for stage in found.stages)


def tell_estimate(plan: RunPlan, left: dict[str, float]) -> None:
    """Print what a run will likely cost beside what is left of its budget."""
    found = estimate_run(plan)
    to_stderr(f"budget: {limits_text(limits_of(plan.loaded.config))}")
    to_stderr(f"estimate: {estimate_line(found)}")
    if short := exceeded_limits_text(found, left):
        to_stderr(f"warning: the budget will likely not do: {short}; the run then ends with exit 5")
