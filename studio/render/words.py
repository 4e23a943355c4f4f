"""Short texts of figures: counts, rates with their n, differences with their interval, spending."""

from __future__ import annotations

from collections.abc import Mapping

from engines.core.events import RolloutFinished
from engines.core.settings import SHOWN_WHOLE
from engines.core.types import Usage
from engines.pipeline.evaluation.statistics import (
    Comparison,
    Interval,
)
from studio.secrets.sanitize import one_line


def reward_rate_text(mean: float | None, n: int, unknown: str = "none known") -> str:
    """`0.420 (n=128)`: a mean practice reward."""
    return f"{unknown if mean is None else f'{mean:.3f}'} (n={n})"


def rate_text(value: float | None, interval: Interval | None) -> str:
    """`0.310 [0.22, 0.40]`: the value and its 95 % interval."""
    if value is None or interval is None:
        return "none known"
    return f"{value:.3f} [{interval.low:.2f}, {interval.high:.2f}]"


def try_acts_text(turns: int, tool_calls: int, failed_calls: int) -> str:
    """`4 turns, 3 tool calls (1 failed)`; "" of a single reply, and where nothing is known."""
    if turns <= 1 and not tool_calls:
        return ""
    failed = f" ({failed_calls} failed)" if failed_calls else ""
    return f"{count_text(turns, 'turn')}, {count_text(tool_calls, 'tool call')}{failed}"


def acted_text(found: RolloutFinished) -> str:
    return try_acts_text(found.turns, found.tool_calls, found.failed_calls)


def acts_cell(found: RolloutFinished) -> str:
    """`4/3` for a narrow column of a table, `4/3!` where a call failed."""
    return f"{found.turns}/{found.tool_calls}{'!' * (found.failed_calls > 0)}"


def mean_acts_text(turns: int, tool_calls: int, failed_calls: int, tries: int) -> str:
    """`3.1 turns and 2.3 tool calls a try (n=24), 4 calls failed`."""
    failed = f", {count_text(failed_calls, 'call')} failed" if failed_calls else ""
    means = f"{turns / tries:.1f} turns and {tool_calls / tries:.1f} tool calls"
    return f"{means} a try (n={tries}){failed}"


def difference_text(found: Comparison) -> str:
    """`+0.660 [+0.56, +0.76]`."""
    low, high = found.interval.low, found.interval.high
    return f"{found.difference:+.3f} [{low:+.2f}, {high:+.2f}]"


def signs_text(found: Comparison) -> str:
    """The counts of questions and the exact test: `66 better, 0 worse, 34 level, p < 0.001`."""
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    gone = f"; {found.left_out} could not be paired" if found.left_out else ""
    return f"{found.wins} better, {found.losses} worse, {found.ties} level, {p}{gone}"


def metrics_text(metrics: Mapping[str, float]) -> str:
    """` [math 0, closeness 0.8]`: the score of each criterion; "" where there is only a reward."""
    shown = ", ".join(f"{one_line(name, 40)} {value:g}" for name, value in metrics.items())
    return f" [{shown}]" if shown else ""


def count_text(n: int, what: str, plural: str = "") -> str:
    """`1 operation`, `2 operations`, `1,234 calls`."""
    return f"{n} {what}" if n == 1 else f"{n:,} {plural or what + 's'}"


def prompt_tokens_text(tokens: int | str, experiences: int) -> str:
    """`748 tokens a call`; of more experiences than a prompt shows by itself, what all come to."""
    return f"{tokens} tokens {'a call' if experiences <= SHOWN_WHOLE else 'in all'}"


def usage_text(usage: Usage) -> str:
    """Calls, tokens, and cost where a price is known: an unknown cost is not shown as zero."""
    cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
    cached = ""
    if usage.cached_tokens:
        cached = f" ({usage.cached_tokens / usage.prompt_tokens:.0%} of prompts from a cache)"
    return f"{count_text(usage.calls, 'call')}, {usage.tokens:,} tokens{cached}{cost}"
