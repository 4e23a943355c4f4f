"""Short texts of figures: counts, rates with their n, differences with their interval, spending."""

from collections.abc import Iterable, Mapping, Sequence

from engines.core import events, settings
from engines.core.state.run_state import Rewards, RunState
from engines.core.types import GATE, GroupOutcome, Operation, ProposalFate, Usage
from engines.pipeline.evaluation import statistics, verdict
from studio.secrets.sanitize import one_line, sanitize


def reward_rate_text(mean: float | None, n: int, unknown: str = "none known") -> str:
    """`0.420 (n=128)`: a mean practice reward."""
    return f"{unknown if mean is None else f'{mean:.3f}'} (n={n})"


def reward_text(reward: float) -> str:
    """`1.0`, `0.33`: with a second digit only where it says something."""
    return f"{reward:.1f}" if round(reward, 1) == round(reward, 2) else f"{reward:.2f}"


def rate_text(value: float | None, interval: statistics.Interval | None) -> str:
    """`0.310 [0.22, 0.40]`: the value and its 95 % interval."""
    if value is None:
        return "none known"
    if interval is None:
        return f"{value:.3f}"
    return f"{value:.3f} [{interval.low:.2f}, {interval.high:.2f}]"


def try_acts_text(turns: int, tool_calls: int, failed_calls: int) -> str:
    """`4 turns, 3 tool calls (1 failed)`; "" of a single reply, and where nothing is known."""
    if turns <= 1 and not tool_calls:
        return ""
    failed = f" ({failed_calls} failed)" if failed_calls else ""
    return f"{count_text(turns, 'turn')}, {count_text(tool_calls, 'tool call')}{failed}"


def acted_text(found: events.RolloutFinished) -> str:
    return try_acts_text(found.turns, found.tool_calls, found.failed_calls)


def acts_cell(found: events.RolloutFinished) -> str:
    """`4/3` for a narrow column of a table, `4/3!` where a call failed."""
    return f"{found.turns}/{found.tool_calls}{'!' * (found.failed_calls > 0)}"


def difference_text(found: verdict.Comparison) -> str:
    """`+0.660 [+0.56, +0.76]`."""
    low, high = found.interval.low, found.interval.high
    return f"{found.difference:+.3f} [{low:+.2f}, {high:+.2f}]"


def signs_text(found: verdict.Comparison) -> str:
    """The counts of questions and the exact test: `66 better, 0 worse, 34 level, p < 0.001`."""
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    gone = f"; {found.left_out} could not be paired" if found.left_out else ""
    return f"{found.better} better, {found.worse} worse, {found.level} level, {p}{gone}"


def metrics_text(metrics: Mapping[str, float]) -> str:
    """` [math 0, closeness 0.8]`: the score of each criterion; "" where there is only a reward."""
    shown = ", ".join(f"{one_line(name, 40)} {value:g}" for name, value in metrics.items())
    return f" [{shown}]" if shown else ""


def count_text(n: int, what: str, plural: str = "") -> str:
    """`1 operation`, `2 operations`, `1,234 calls`."""
    return f"{n} {what}" if n == 1 else f"{n:,} {plural or what + 's'}"


def prompt_tokens_text(tokens: int | str, experiences: int) -> str:
    """`748 tokens a call`; of more experiences than a prompt shows by itself, what all come to."""
    return f"{tokens} tokens {'a call' if experiences <= settings.SHOWN_WHOLE else 'in all'}"


def usage_text(usage: Usage) -> str:
    """Calls, tokens, and cost where a price is known: an unknown cost is not shown as zero."""
    cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
    cached = ""
    if usage.cached_tokens:
        cached = f" ({usage.cached_share:.0%} of prompts from a cache)"
    return f"{count_text(usage.calls, 'call')}, {usage.tokens:,} tokens{cached}{cost}"


DONE = {
    "approve": "approved",
    "edit": "approved as edited",
    "reject": "rejected",
    "defer": "put off",
}


def kind_title(kind: str) -> str:
    """What heads a change: `MODIFY E3`, or of a `keep`, which asks nothing, `NO CHANGE TO E3`."""
    return "NO CHANGE TO" if kind == "keep" else kind.upper()


def to_decide_text(open_count: int, put_off: int, what: str = "to decide") -> str:
    """`5 to decide, 1 later`: what was put off is told apart, alike on every face."""
    left = [f"{open_count - put_off} {what}"] if open_count > put_off or not put_off else []
    return ", ".join([*left, f"{put_off} later"] if put_off else left)


def step_name(step: int) -> str:
    """`step 3`; a commit of what a person decided after the end has no step."""
    return f"step {step}" if step else "outside its steps"


def no_practice_text(state: RunState | None) -> str:
    """Why a curation run has no groups, rollouts or curve; "" of a run that practises."""
    if state is None or not state.curates:
        return ""
    return f"{one_line(state.curates, 60)}: it practises nothing, its operations are on 2 Review"


def misfit_text(reason: str) -> str:
    """What became of an approval that the gate turned down; `reason` is the gate's.

    `was approved, but no longer fits: E4 was deleted by op3.1`.
    """
    fits = "no longer fits" if "deleted by" in reason or "is gone" in reason else "does not fit"
    return f"was approved, but {fits}: {reason}"


def decided_text(action: str, reviewer: str, reason: str) -> str:
    """`approved by ann`; of the gate's own rejection what it says to the one who approved."""
    if reviewer == GATE:
        return misfit_text(reason)
    return f"{DONE[action]} by {reviewer or 'nobody'}"


def merged_text(operation_id: str, fates: Iterable[ProposalFate]) -> str:
    """`proposals 1 (s3p0), 4 (s3p2)` where an operation merges several; else ""."""
    found = [one for one in fates if one.operation == operation_id and one.fate == "merged"]
    listed = ", ".join(f"{one.proposal} ({one.group})" for one in found)
    return f"proposals {listed}" if listed else ""


def dropped_texts(fates: Iterable[ProposalFate], texts: Sequence[str]) -> list[str]:
    """Each dropped proposal and why: `3 (s3p1) Round: … because: too vague`.

    `texts` say what each proposal of the batch wants, in the order in which fates number them.
    """
    return [
        f"{one.proposal} ({one.group}) {one_line(texts[one.proposal - 1], 200)}"
        f" because: {one_line(one.reason, 200)}"
        for one in fates
        if one.fate == "dropped" and one.proposal <= len(texts)
    ]


def fates_under_review(state: RunState) -> tuple[tuple[ProposalFate, ...], list[str]]:
    """The fates of the step under way, and what its proposals want."""
    step = state.current
    if step is None or step.lesson is None:
        return (), []
    wishes = (wish for at in sorted(step.reflections) for wish in step.reflections[at].proposals)
    return step.lesson.fates, [wish.text or f"{wish.kind} {wish.target}" for wish in wishes]


def counted_outcomes(groups: Mapping[GroupOutcome, int]) -> str:
    """`9 used, 3 all-wrong`: what did not happen is left out."""
    return ", ".join(f"{n} {name}" for name, n in groups.items() if n) or "none"


def lost_text(lost: Mapping[str, int]) -> str:
    """`6 extractions, 1 rollout`."""
    return ", ".join(count_text(n, kind) for kind, n in sorted(lost.items()))


def withheld_text(n: int) -> str:
    return f"{count_text(n, 'idea')} not proposed again: rejected before"


def unparsed_replies_text(n: int, run: str) -> str:
    """How many replies wait for a correction, and the command to correct them."""
    return f"{count_text(n, 'reply', 'replies')} to be mended: studio review {run}"


def mean_reward_text(rewards: Rewards) -> str:
    return reward_rate_text(rewards.mean, rewards.n)


def operation_line(operation: Operation) -> str:
    """`op1.2  modify E3  Check the units.`."""
    target = f" {operation.target}" if operation.target else ""
    return f"{operation.id}  {operation.kind}{target}  {sanitize(operation.text)}".rstrip()
