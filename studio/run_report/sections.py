"""The page of a report: what its facts say, section by section. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from engines.core.state.curve import Point, pool_points
from studio.report.page.blocks import (
    BarChart,
    Block,
    Charts,
    Fold,
    Items,
    Line,
    LineChart,
    Page,
    Part,
    Quote,
    Table,
    Text,
    Words,
    plain_words,
)
from studio.report.rates import reward_rate_text
from studio.report.run import acts_text, head_text
from studio.report.summary import GROUP_OUTCOMES, lost_text, withheld_text
from studio.report.training import figure_text
from studio.run_report.facts import MOST_LESSONS

Facts = dict[str, Any]
_MOST_POINTS, _MOST_ROWS, _MOST_BARS = 200, 50, 12
_OVER = ("finished", "stopped", "failed")
_SIGNS = {"+": "added", "-": "removed", "~": "reworded", "*": "pinned or unpinned"}
_STANCE = {"+": "right", "-": "wrong", "?": "not judged"}


def report_page(facts: Facts) -> Page:
    """The whole page; what the run has nothing of is left out, but never a loss."""
    sections: dict[str, Callable[[Facts], list[Block]]] = {
        "Did it help?": _held_out,
        "Practice": _practice,
        "Training": _training,
        "Lessons": _lessons,
        "What changed": _changes,
        "Decisions": _decisions,
        "Cost": _cost,
        "Lost and doubted": _lost,
        "Settings": _settings,
    }
    parts = [Part(name, found) for name, make in sections.items() if (found := make(facts))]
    return Page(f"Report of run {facts['run']}", [*_head(facts), *parts])


def _head(facts: Facts) -> list[Block]:
    blocks: list[Block] = [Text(line) for line in head_text(facts).split("\n")]
    if facts["scripted"]:
        blocks.append(Text(facts["scripted"], "notice"))
    if facts["status"] not in _OVER:
        blocks.append(Text("This run has not ended: all figures are those so far.", "notice"))
    learned = f"library {facts['library']} v{facts['library_before']} → v{facts['library_after']}"
    if training := facts["training"]:
        policy = f"policy v{facts['policy_before']} → v{training['policy_version']}"
        learned = f"{policy}, library {facts['library']} v{facts['library_after']}"
    if facts["began"]:
        about = f"began {facts['began']}, seed {facts['seed']}, reviewer {facts['reviewer']}"
        blocks.append(Text(f"{about}; {learned}"))
    if facts["forked_from"]:
        adopted = f"steps 1 to {facts['forked_steps']} adopted from run {facts['forked_from']}"
        blocks.append(Text(adopted))
    return blocks


def _held_out(facts: Facts) -> list[Block]:
    measured = facts["evaluations"]
    if not measured:
        return [Text("No held-out set was measured: whether practice helped cannot be told.")]
    rows = [(e["data"], str(e["step"]), e["version"], e["text"]) for e in measured]
    table = Table("Held-out sets", ("Set", "After step", "Version", "Reward"), rows)
    chart = LineChart("Held-out reward, 95 % intervals", _lines(facts, "held_out"), high=1.0)
    blocks: list[Block] = [Items(facts["change_lines"])] if facts["change_lines"] else []
    return [*blocks, *_charts(chart), table]


def _practice(facts: Facts) -> list[Block]:
    if facts["training"] and facts["training"]["demonstrations"]:
        return []  # on them nothing is rolled out
    epochs, steps = facts["epochs"], facts["steps"]
    blocks: list[Block] = []
    marks = []
    for one in epochs:
        own = [step["step"] for step in steps if step["epoch"] == one["epoch"]]
        if one["mean_reward"] is not None and own:
            ends = one["interval"] or (None, None)
            marks.append((own[0], own[-1], Point(0, one["mean_reward"], one["n"], *ends)))
    title = "Practice reward by step, and by epoch with its 95 % interval"
    reward = LineChart(title, _lines(facts, "practice"), high=1.0, marks=marks)
    outcomes = _outcomes_by_epoch(steps)
    shown = [name for name in GROUP_OUTCOMES if facts["groups"][name]]
    labels = [f"epoch {epoch}" for epoch in outcomes]
    parts = [(name, [float(found[name]) for found in outcomes.values()]) for name in shown]
    bars = BarChart("Groups by outcome", labels[-_MOST_BARS:], _last(parts))
    blocks += _charts(reward, bars)
    rows = [
        (str(e["epoch"]), reward_rate_text(e["mean_reward"], e["n"]), _interval_text(e["interval"]),
         *(str(outcomes[e["epoch"]][name]) for name in shown))
        for e in epochs
    ]  # fmt: skip
    headings = ("Epoch", "Reward", "95 % interval", *(f"Groups {name}" for name in shown))
    blocks += [Table("Reward and groups by epoch", headings, rows)] if rows else []
    told = [acts_text(steps), facts["nothing_read"] or ""]
    return [*blocks, *(Text(text) for text in told if text)]


def _outcomes_by_epoch(steps: Sequence[Facts]) -> dict[int, Counter[str]]:
    found: dict[int, Counter[str]] = {}
    for step in steps:
        found.setdefault(step["epoch"], Counter()).update(step["groups"])
    return found


def _last(parts: Iterable[tuple[str, list[float]]]) -> list[tuple[str, list[float]]]:
    return [(name, values[-_MOST_BARS:]) for name, values in parts]


def _training(facts: Facts) -> list[Block]:
    training = facts["training"]
    if not training:
        return []
    curves = [*_lines(facts, "updates")]
    if training["demonstrations"]:
        curves = [*_lines(facts, "practice"), *curves]
    lines = [line.strip() for line in facts["training_lines"] if not line.startswith("curve ")]
    steps = training["steps"]
    names = list(dict.fromkeys(name for step in steps for name in step["metrics"]))
    rows = [
        (str(step["step"]), *(_figure(name, step["metrics"].get(name)) for name in names),
         f"rolled back to {step['back_to']}" if step["back_to"] is not None else step["update"])
        for step in steps[-_MOST_ROWS:]
    ]  # fmt: skip
    headings = ("Step", *(name.replace("_", " ") for name in names), "Update")
    table = Table(f"Updates of the last {len(rows)} steps", headings, rows)
    charts = _charts(*(LineChart(curve.name, [curve]) for curve in curves))
    return [*charts, Items(lines), Fold("Figures of each update", [table])]


def _figure(name: str, value: float | None) -> str:
    return "-" if value is None else figure_text(name, value)


def _lessons(facts: Facts) -> list[Block]:
    lessons = facts["lessons"]
    size = [Point(step, float(n)) for step, n in facts["curves"]["library_size"]]
    if len(size) > 1 and facts["steps"]:
        size.append(size[-1]._replace(step=max(size[-1].step, facts["steps"][-1]["step"])))
    growth = LineChart("Experiences in the library", [Line("experiences", size)], holds=True)
    blocks: list[Block] = _charts(growth) if len(size) > 1 else []
    blocks += [_lesson(one) for one in lessons[:MOST_LESSONS]]
    if more := lessons[MOST_LESSONS:]:
        said = [f"{one['id']}  {one['text']}" for one in more]
        blocks.append(Fold(f"{len(more)} more, without their evidence", [Items(said)]))
    return blocks


def _lesson(lesson: Facts) -> Part:
    told = [worth_text(lesson["effect"])]
    if lesson["uses"] and lesson["uses"]["text"]:
        told.append(f"Attempts that had it in front of them: {lesson['uses']['text']}.")
    if lesson["pinned"]:
        told.append("It is pinned: nothing may change it.")
    if lesson["origin"]:
        told.append(f"Where from: {lesson['origin']}")
    if lesson["rationale"]:
        told.append(f"Why: {lesson['rationale']}")
    quotes: list[Block] = []
    for group in lesson["evidence"]:
        asked = f"{group['id']}, {group['won']} of {group['n']} right"
        quotes.append(Quote(asked, plain_words(group["question"])))
        quotes += [
            Quote(f"{one['rollout']}, {_STANCE[one['sign']]}", _words(one["words"]))
            for one in group["excerpts"]
        ]
        doubts = group["doubts"].items()
        quotes += [Text(f"The verdict of {name} is doubted: {why}") for name, why in doubts]
    seen = len(lesson["evidence"])
    title = f"Evidence: {len(lesson['cites'])} rollouts, {seen} of their groups shown"
    return Part(
        f"{lesson['id']}  {lesson['text']}",
        [Items(told), *([Fold(title, quotes)] if quotes else [])],
    )


def worth_text(effect: Facts | None) -> str:
    """What it is worth, as it was measured; an `Effect` as plain values."""
    if effect is None:
        return "Worth: not measured."
    ends = f"[{effect['low']:+.2f}, {effect['high']:+.2f}]"
    over = f"{effect['problems']} problems, {effect['rollouts']} rollouts"
    said = f"{effect['difference']:+.3f} {ends}, {effect['verdict']}"
    return f"Worth: {said} ({over}; measured by {effect['method']})."


def _changes(facts: Facts) -> list[Block]:
    if facts["library"] is None or (facts["training"] and not (facts["diff"] or {}).get("entries")):
        return []
    if facts["diff"] is None:
        return [Text("The library is gone from the workspace: what changed cannot be told.")]
    entries = [one for one in facts["diff"]["entries"] if one["sign"] in _SIGNS]
    rows = [
        (
            one["pin"] if one["sign"] == "*" else _SIGNS[one["sign"]],
            f"{one['id']} (was {one['was']})" if one["was"] else one["id"],
            _words(one["words"]),
        )
        for one in entries
    ]
    title = f"Library {facts['library']} v{facts['library_before']} → v{facts['library_after']}"
    table = Table(title, ("Change", "Id", "Wording"), rows)
    return [Text(facts["diff"]["text"]), *([table] if rows else [])]


def _decisions(facts: Facts) -> list[Block]:
    rows = [
        (name, *(str(one[key]) for key in ("n", "approved", "edited", "rejected")),
         str(one["approved_flagged"]), _seconds(one["median_s"]))
        for name, one in facts["curation"].items()
    ]  # fmt: skip
    headings = ("Reviewer", "Decided", "Approved", "Edited", "Rejected", "Approved though flagged",
                "Median time")  # fmt: skip
    blocks: list[Block] = [Table("Committed decisions", headings, rows)] if rows else []
    waiting = [
        f"{op['id']}  {op['kind']} {op['target'] or ''} {op['text']}" for op in facts["open"]
    ]
    if waiting:
        blocks += [Text(f"{len(waiting)} to be decided:", "notice"), Items(waiting)]
    if facts["withheld"]:
        blocks.append(Text(withheld_text(facts["withheld"])))
    return blocks


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _cost(facts: Facts) -> list[Block]:
    stages = facts["spent_on"]
    if not stages:
        return []
    kinds = {"prompt": "prompt_tokens", "reply": "completion_tokens"}
    parts = [(name, [float(s[key]) for s in stages.values()]) for name, key in kinds.items()]
    chart = BarChart("Tokens by stage", [*stages], parts)
    rows = [
        (name, *(f"{one[key]:,}" for key in ("calls", *kinds.values())), _dollars(one["cost_usd"]))
        for name, one in stages.items()
    ]
    headings = ("Stage", "Calls", "Prompt tokens", "Reply tokens", "Cost")
    table = Table("What each stage cost", headings, rows)
    return [Text(f"{facts['usage']['text']} in all"), *_charts(chart), table]


def _dollars(value: float | None) -> str:
    return "not known" if value is None else f"${value:,.4f}"


def _lost(facts: Facts) -> list[Block]:
    blocks: list[Block] = [Text(lost_text(facts["lost"]) if facts["lost"] else "Nothing was lost.")]
    losses = [(one["kind"], one["where"], one["reason"]) for one in facts["losses"][:_MOST_ROWS]]
    if losses:
        title = f"The first {len(losses)} of {sum(facts['lost'].values())}"
        blocks.append(Table(title, ("What", "Where", "Why"), losses))
    waiting = [f"{one['id']}: {' '.join(one['reasons'])}" for one in facts["repairs"]]
    doubted = [f"verdict of {name} doubted: {why}" for name, why in (facts["doubts"] or {}).items()]
    told = [*waiting, *doubted, *facts["remarks"]]
    return [*blocks, *([Items(told)] if told else [])]


def _settings(facts: Facts) -> list[Block]:
    rows = [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in sorted(facts["settings"].items())
    ]
    table = Table("Settings as they were last accepted", ("Setting", "Value"), rows)
    return [Fold(f"{len(rows)} settings", [table])] if rows else []


def _lines(facts: Facts, name: str) -> list[Line]:
    """The curves of a name that have a point, thinned where nobody could tell them apart."""
    found = []
    for one in facts["curves"][name]:
        points = [Point(*row) for row in one["points"]]
        if len(points) > _MOST_POINTS:
            points = pool_points(points, _MOST_POINTS)
        if points:
            found.append(Line(one["name"], points))
    return found


def _charts(*charts: LineChart | BarChart) -> list[Block]:
    """Those that show anything."""
    shown = [c for c in charts if (c.labels if isinstance(c, BarChart) else c.lines)]
    return [Charts(shown)] if shown else []


def _interval_text(ends: Sequence[float] | None) -> str:
    return f"[{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "-"


def _words(pieces: Sequence[Sequence[Any]]) -> Words:
    return tuple((kind, text) for kind, text in pieces)
