"""An estimate as lines: a table by stage, and one line of all."""

from collections.abc import Mapping

from engines.pipeline.budget import BudgetLimits
from studio.facts.estimate import Estimate, Range, Stage
from studio.render.lines import indent_text, table


def estimate_table(estimate: Estimate, *, costs_money: bool) -> str:
    """Return each stage, likely and at most; costs only where a call costs money."""
    headings = ["STAGE", "CALLS", "PROMPT TOKENS", "REPLY TOKENS"]
    rows = [_row(stage.stage, stage, costs_money) for stage in estimate.stages]
    rows.append(_row("all", estimate, costs_money))
    if costs_money:
        headings.append("COST")
    what = "to be paid for" if costs_money else "to be done"
    return f"{what}: likely (at most)\n{indent_text(table(headings, rows))}"


def _row(name: str, of: Stage | Estimate, costs_money: bool) -> list[str]:
    counts = (of.calls, of.prompt_tokens, of.reply_tokens)
    cells = [name, *(f"{count.likely:,.0f} ({count.at_most:,.0f})" for count in counts)]
    if costs_money:
        cost = of.cost_usd
        cells.append("unknown" if cost is None else f"${cost.likely:.4f} (${cost.at_most:.4f})")
    return cells


def estimate_line(estimate: Estimate) -> str:
    """`likely 1,200 calls, 450,000 tokens, $0.31; at most …`."""
    likely, at_most = (amounts_text(estimate, most=most) for most in (False, True))
    return f"likely {likely}; at most {at_most}"


def amounts_text(estimate: Estimate, *, most: bool) -> str:
    """`1,200 calls, 450,000 tokens, $0.31`; no money where a price is unknown."""
    calls, tokens = estimate.calls.pick(most), estimate.tokens.pick(most)
    money = "" if estimate.cost_usd is None else f", ${estimate.cost_usd.pick(most):.4f}"
    return f"{calls:,.0f} calls, {tokens:,.0f} tokens{money}"


def exceeded_limits_text(estimate: Estimate, left: Mapping[str, float]) -> str:
    """Name the limits of which less is `left` than a run likely needs; "" where all hold."""
    cost = estimate.cost_usd or Range()
    needed = {"calls": estimate.calls, "tokens": estimate.tokens, "cost_usd": cost}
    short = [f"{name} ({n:,.6g} left)" for name, n in left.items() if needed[name].likely > n]
    return ", ".join(short)


def limits_text(limits: BudgetLimits) -> str:
    return ", ".join(f"{name} {limit:,.6g}" for name, limit in limits.amounts.items())
