"""An estimate for people: a table by stage, what doubling would cost, and one line of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from engines.pipeline.budget import BudgetLimits
from studio.estimate.cost import Estimate, Range, Stage
from studio.render.lines import indent_text, table

Doubled = Sequence[tuple[str, Estimate]]


def estimate_text(
    found: Estimate, doubled: Doubled, notes: Sequence[str], *, costs_money: bool = True
) -> str:
    """The table, the doublings and what was assumed; costs only where a call costs money."""
    (_, whole), *variants = doubled
    lines = [estimate_table(found, costs_money=costs_money), ""]
    lines.append("doubled, a whole new run would likely take that much more, or less")
    lines += [f"  {name:<20} {_difference_text(more, whole)}" for name, more in variants]
    return "\n".join([*lines, "", *(f"note: {note}" for note in notes)])


def estimate_table(found: Estimate, *, costs_money: bool) -> str:
    resumes = bool(found.done_calls)
    headings = ["STAGE", "CALLS", "PROMPT TOKENS", "REPLY TOKENS", *["COST"] * costs_money]
    rows = [_row(stage.name, stage)[: len(headings)] for stage in found.stages]
    rows.append(_row("all", found)[: len(headings)])
    if resumes:
        headings.append("DONE")
        done = [*(stage.done for stage in found.stages), found.done_calls]
        rows = [(*row, f"{n:,}") for row, n in zip(rows, done, strict=True)]
    what = "still " * resumes + ("to be paid for" if costs_money else "to be done")
    return f"{what}: likely (at most)\n{indent_text(table(headings, rows))}"


def estimate_data(found: Estimate, doubled: Doubled, notes: Sequence[str]) -> dict[str, Any]:
    """The same facts for `--json`; an evaluation has no doublings."""
    compared: dict[str, Any] = {}
    if doubled:
        (_, whole), *variants = doubled
        compared = {
            "whole_run": _sums_data(whole),
            "doubled": {name: _sums_data(more) for name, more in variants},
        }
    return {
        "kind": "Estimate",
        "stages": [
            {
                "stage": stage.name,
                "done": stage.done,
                "calls": _range_data(stage.calls),
                "prompt_tokens": _range_data(stage.prompt_tokens),
                "reply_tokens": _range_data(stage.reply_tokens),
                "cost_usd": _range_data(stage.cost_usd, digits=6),
            }
            for stage in found.stages
        ],
        **_sums_data(found),
        **compared,
        "notes": list(notes),
    }


def estimate_line(found: Estimate) -> str:
    """`likely 1,200 calls, 450,000 tokens, $0.31; at most …`."""
    return f"likely {amounts_text(found, 'likely')}; at most {amounts_text(found, 'most')}"


def amounts_text(found: Estimate, which: Literal["likely", "most"]) -> str:
    """`1,200 calls, 450,000 tokens, $0.31`; no money where a price is unknown."""
    calls, tokens, cost = (
        getattr(x, which, None) for x in (found.calls, found.tokens, found.cost_usd)
    )
    money = "" if cost is None else f", ${cost:.4f}"
    return f"{calls:,.0f} calls, {tokens:,.0f} tokens{money}"


def exceeded_limits_text(found: Estimate, left: dict[str, float]) -> str:
    """The limits of which less is `left` than the rest of a run likely needs; "" where all hold."""
    cost = found.cost_usd or Range()
    needed = {"calls": found.calls, "tokens": found.tokens, "cost_usd": cost}
    short = ((name, amount) for name, amount in left.items() if needed[name].likely > amount)
    return ", ".join(f"{name} ({amount:,.6g} left)" for name, amount in short)


def limits_text(limits: BudgetLimits) -> str:
    return ", ".join(f"{name} {limit:,.6g}" for name, limit in limits.amounts.items())


def _row(name: str, found: Stage | Estimate) -> tuple[str, ...]:
    counts = (found.calls, found.prompt_tokens, found.reply_tokens)
    cost = found.cost_usd
    return (
        name,
        *(f"{count.likely:,.0f} ({count.most:,.0f})" for count in counts),
        "unknown" if cost is None else f"${cost.likely:.4f} (${cost.most:.4f})",
    )


def _difference_text(more: Estimate, whole: Estimate) -> str:
    calls = more.calls.likely - whole.calls.likely
    tokens = more.tokens.likely - whole.tokens.likely
    money = ""
    if more.cost_usd is not None and whole.cost_usd is not None:
        cost = more.cost_usd.likely - whole.cost_usd.likely
        money = f", {'-' if cost < 0 else '+'}${abs(cost):.4f}"
    return f"{calls:+,.0f} calls, {tokens:+,.0f} tokens{money}"


def _range_data(found: Range | None, digits: int | None = None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"likely": round(found.likely, digits), "at_most": round(found.most, digits)}


def _sums_data(found: Estimate) -> dict[str, Any]:
    return {
        "calls": _range_data(found.calls),
        "tokens": _range_data(found.tokens),
        "cost_usd": _range_data(found.cost_usd, digits=6),
    }
