"""The page of a report: what its facts say, section by section; and the file that it goes into."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.core.errors import RecordError
from engines.core.state.curve import Point, pool_points
from engines.record.appender import write_atomic
from engines.record.run_dir import Workspace
from studio.facts.run import GROUP_OUTCOMES
from studio.library.diff import ExperiencePair, changes_table
from studio.render.diagnosis_lines import diagnosis_lines, diagnosis_title
from studio.render.page import (
    BarChart,
    Block,
    Charts,
    Items,
    Line,
    LineChart,
    Page,
    Part,
    Quote,
    Table,
    Text,
    plain_words,
)
from studio.render.words import count_text, lost_text, reward_rate_text, withheld_text
from studio.report.run import acts_text, head_text
from studio.run_report.facts import MOST_LESSONS

Facts = dict[str, Any]
_MOST_POINTS, _MOST_ROWS, _MOST_BARS = 200, 50, 12
_OVER = ("finished", "stopped", "failed")
_STANCE = {"+": "right", "-": "wrong", "?": "not judged"}


def report_page(facts: Facts) -> Page:
    """The whole page; what the run has nothing of is left out, but never a loss."""
    sections: dict[str, Callable[[Facts], list[Block]]] = {
        "Did it help?": _held_out,
        "What each epoch changed": _epochs,
        "Practice": _practice,
        "Training": _training,
        "Lessons": _lessons,
        "What changed": _changes,
        "Decisions": _decisions,
        "Cost": _cost,
        "Lost and doubted": _lost,
        "Settings": _settings,
    }
    if facts["curates"]:  # it practised nothing: nothing was measured, and its settings are none
        told = ("Lessons", "What changed", "Decisions", "Lost and doubted")
        sections = {name: sections[name] for name in told}
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
    cells = [Items(facts["cell_lines"])] if facts["cell_lines"] else []
    parts = [Part("Weights and library, each without the other", cells)] if cells else []
    return [*blocks, *parts, *_charts(chart), table]


def _epochs(facts: Facts) -> list[Block]:
    told = ((diagnosis_title(one), diagnosis_lines(one)) for one in facts["diagnosis"])
    return [Part(title, [Items([line.strip() for line in ls])]) for title, ls in told if ls]


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
    parts = [(name, [float(outcomes[at][name]) for at in barred]) for name in GROUP_OUTCOMES]
    bars = BarChart("Groups by outcome", [f"epoch {epoch}" for epoch in barred], parts)
    blocks = _charts(curve, bars)
    rows = []
    for e in epochs:
        ends = "[{:.2f}, {:.2f}]".format(*e["interval"]) if e["interval"] else "-"
        reward, counts = reward_rate_text(e["mean_reward"], e["n"]), outcomes[e["epoch"]]
        rows.append((str(e["epoch"]), reward, ends, *(str(counts[name]) for name in shown)))
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
    return [*_charts(*(LineChart(curve.name, [curve]) for curve in curves)), Items(lines)]


def _lessons(facts: Facts) -> list[Block]:
    lessons = facts["lessons"]
    size = [Point(step, float(n)) for step, n in facts["curves"]["library_size"]]
    if len(size) > 1 and facts["steps"]:
        size.append(size[-1]._replace(step=max(size[-1].step, facts["steps"][-1]["step"])))
    growth = LineChart("Experiences in the library", [Line("experiences", size)], holds=True)
    blocks: list[Block] = _charts(growth) if len(size) > 1 else []
    blocks += map(_lesson, lessons[:MOST_LESSONS])
    if said := [f"{one['id']}  {one['text']}" for one in lessons[MOST_LESSONS:]]:
        title = f"{len(said)} more, without their evidence"
        blocks.append(Part(title, [Items(said)], folded=True))
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
        for one in group["excerpts"]:
            said = f"{one['rollout']}, {_STANCE[one['sign']]}"
            quotes.append(Quote(said, tuple(one["words"])))
    cited, groups = (len(lesson[name]) for name in ("cites", "evidence"))
    title = f"Evidence: {count_text(cited, 'rollout')}, {count_text(groups, 'group')} shown"
    folded = [Part(title, quotes, folded=True)] if quotes else []
    return Part(f"{lesson['id']}  {lesson['text']}", [Items(told), *folded])


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
    counts = {"n": "Decided", "approved": "Approved", "edited": "Edited", "rejected": "Rejected",
            "approved_flagged": "Flagged but approved", "median_s": "Median s"}  # fmt: skip
    rows = [
        (name, *("-" if one[key] is None else f"{one[key]:g}" for key in counts))
        for name, one in facts["curation"].items()
    ]
    title = "Committed decisions by reviewer and outcome"
    blocks: list[Block] = [Table(title, ("Reviewer", *counts.values()), rows)] if rows else []
    if waiting := [
        f"{op['id']}  {op['kind']} {op['target'] or ''} {op['text']}" for op in facts["open"]
    ]:
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
        (name, *(f"{one[key]:,}" for key in ("calls", *kinds.values())),
         "not known" if one["cost_usd"] is None else f"${one['cost_usd']:,.4f}")
        for name, one in stages.items()
    ]  # fmt: skip
    headings = ("Stage", "Calls", "Prompt tokens", "Reply tokens", "Cost")
    table = Table("What each stage cost", headings, rows)
    return [Text(f"{facts['usage']['text']} in all"), *_charts(chart), table]


def _lost(facts: Facts) -> list[Block]:
    blocks: list[Block] = [Text(lost_text(facts["lost"]) or "Nothing was lost.")]
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
    return [Part(f"{len(rows)} settings", [table], folded=True)] if rows else []


def _lines(facts: Facts, name: str) -> list[Line]:
    """The curves of a name that have a point, thinned where nobody could tell them apart."""
    found = ((one["name"], [Point(*row) for row in one["points"]]) for one in facts["curves"][name])
    # Pooling loses intervals, and no run has so many evaluations.
    thin = ((n, p if len(p) <= _MOST_POINTS else pool_points(p, _MOST_POINTS)) for n, p in found)
    return [Line(line, points) for line, points in thin if points]


def _charts(*charts: LineChart | BarChart) -> list[Block]:
    """Those that show anything."""
    shown = [c for c in charts if (c.labels if isinstance(c, BarChart) else c.lines)]
    return [Charts(shown)] if shown else []


_BEGINS = re.compile(rb"# Report of run |<!doctype html>.{0,999}<title>Report of run |$")
"""What may be overwritten: a report as `report_page` begins it, or nothing."""


def write_report(path: Path, data: bytes, workspace: Workspace) -> None:
    """Write a file whole; a pipe or a device is written to, and a link followed.

    Raises RecordError: it cannot be written. ConflictError: it holds something else.
    """
    move = "Choose another file, or remove it."
    workspace.check_overwrite(path, lambda old: _BEGINS.match(old) is not None, move)
    if not path.exists() or path.is_file():
        write_atomic(path.resolve(), data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        cause = f"cannot be written ({error.strerror})."
        raise RecordError(str(path), cause, "Choose another place.") from error
