"""The page of a report: what its facts say, section by section. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from engines.core.state.curve import Point, pool_points
from studio.library.diff import ExperiencePair, changes_table
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
    marks = []
    for one in epochs:
        own = [step["step"] for step in steps if step["epoch"] == one["epoch"]]
        if one["mean_reward"] is not None and own:
            ends = one["interval"] or (None, None)
            marks.append((own[0], own[-1], Point(0, one["mean_reward"], one["n"], *ends)))
    title = "Practice reward by step, and by epoch with its 95 % interval"
    curve = LineChart(title, _lines(facts, "practice"), high=1.0, marks=marks)
    outcomes: dict[int, Counter[str]] = {one["epoch"]: Counter() for one in epochs}
    for step in steps:
        outcomes.setdefault(step["epoch"], Counter()).update(step["groups"])
    shown = [name for name in GROUP_OUTCOMES if facts["groups"][name]]
    barred = [*outcomes][-_MOST_BARS:]
    parts = [(name, [float(outcomes[epoch][name]) for epoch in barred]) for name in shown]
    bars = BarChart("Groups by outcome", [f"epoch {epoch}" for epoch in barred], parts)
    blocks = _charts(curve, bars)
    rows = []
    for e in epochs:
        ends = "[{:.2f}, {:.2f}]".format(*e["interval"]) if e["interval"] else "-"
        counts = (str(outcomes[e["epoch"]][name]) for name in shown)
        reward = reward_rate_text(e["mean_reward"], e["n"])
        rows.append((str(e["epoch"]), reward, ends, *counts))
    headings = ("Epoch", "Reward", "95 % interval", *(f"Groups {name}" for name in shown))
    blocks += [Table("Reward and groups by epoch", headings, rows)] if rows else []
    told = [acts_text(steps), facts["nothing_read"] or ""]
    return [*blocks, *(Text(text) for text in told if text)]


def _training(facts: Facts) -> list[Block]:
    training = facts["training"]
    if not training:
        return []
    curves = _lines(facts, "practice") if training["demonstrations"] else []
    curves += _lines(facts, "updates")
    lines = [line.strip() for line in facts["training_lines"] if not line.startswith("curve ")]
    steps = training["steps"]
    names = list(dict.fromkeys(name for step in steps for name in step["metrics"]))
    rows = []
    for step in steps[-_MOST_ROWS:]:
        known = ((name, step["metrics"].get(name)) for name in names)
        figures = ("-" if value is None else figure_text(name, value) for name, value in known)
        back = step["back_to"]
        became = step["update"] if back is None else f"rolled back to {back}"
        rows.append((str(step["step"]), *figures, became))
    headings = ("Step", *(name.replace("_", " ") for name in names), "Update")
    table = Table(f"Updates of the last {len(rows)} steps", headings, rows)
    charts = _charts(*(LineChart(curve.name, [curve]) for curve in curves))
    return [*charts, Items(lines), Fold("Figures of each update", [table])]


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
    known = {
        "Attempts that had it in front of them": (lesson["uses"] or {}).get("text"),
        "Pinned": lesson["pinned"] and "nothing may change it",
        "Where from": lesson["origin"],
        "Why": lesson["rationale"],
    }
    told = [worth_text(lesson["effect"]), *(f"{name}: {t}" for name, t in known.items() if t)]
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
    if facts["library"] is None or (facts["training"] and not facts["diff"]):
        return []
    if facts["diff"] is None:
        return [Text("The library is gone from the workspace: what changed cannot be told.")]
    title = f"Library {facts['library']} v{facts['library_before']} → v{facts['library_after']}"
    table = changes_table(title, [ExperiencePair(**one) for one in facts["diff"]])
    same = len(facts["diff"]) - len(table.rows)
    return [table, Text(f"{same} stayed as they were.")] if table.rows else [Text("Nothing.")]


def _decisions(facts: Facts) -> list[Block]:
    keys = {"n": "Decided", "approved": "Approved", "edited": "Edited", "rejected": "Rejected",
            "approved_flagged": "Flagged but approved", "median_s": "Median s"}  # fmt: skip
    rows = [
        (name, *("-" if one[key] is None else f"{one[key]:g}" for key in keys))
        for name, one in facts["curation"].items()
    ]
    title = "Committed decisions by reviewer and outcome"
    blocks: list[Block] = [Table(title, ("Reviewer", *keys.values()), rows)] if rows else []
    if waiting := [f"{op['id']}  {op['kind']}  {op['text']}" for op in facts["open"]]:
        blocks += [Text(f"{len(waiting)} to be decided:", "notice"), Items(waiting)]
    if facts["withheld"]:
        blocks.append(Text(withheld_text(facts["withheld"])))
    return blocks


def _cost(facts: Facts) -> list[Block]:
    stages = facts["spent_on"]
    if not stages:
        return []
    kinds = {"prompt": "prompt_tokens", "reply": "completion_tokens"}
    parts = [(name, [float(s[key]) for s in stages.values()]) for name, key in kinds.items()]
    chart = BarChart("Tokens by stage", [*stages], parts)
    rows = [
        (
            name,
            *(f"{one[key]:,}" for key in ("calls", *kinds.values())),
            "not known" if one["cost_usd"] is None else f"${one['cost_usd']:,.4f}",
        )
        for name, one in stages.items()
    ]
    headings = ("Stage", "Calls", "Prompt tokens", "Reply tokens", "Cost")
    table = Table("What each stage cost", headings, rows)
    return [Text(f"{facts['usage']['text']} in all"), *_charts(chart), table]


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


def _words(pieces: Sequence[Sequence[Any]]) -> Words:
    return tuple((kind, text) for kind, text in pieces)
