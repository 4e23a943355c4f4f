"""The evaluation card of a version: what runs measured of it, each in words and as values."""

import re
import statistics
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from engines.core import codec, errors, events
from engines.core.library import Experience
from engines.core.state.run_state import RunState
from engines.core.text.sanitize import one_line
from engines.pipeline.evaluation.statistics import mean_at_k
from engines.pipeline.evaluation.verdict import compare
from engines.record.formats.source import Card, Result
from engines.record.journal import read_journal
from engines.record.run_dir import RunDir, Workspace
from studio.facts.evaluation import evaluation_facts, learned_by, question_rewards
from studio.facts.library import FoundVersion
from studio.render import evaluation_lines, json, words

_MEASURED = re.compile(rb'"kind":"EvaluationFinished"')


def evaluation_card(found: FoundVersion, workspace: Workspace) -> Card:
    """The version, secrets masked, with its measurements."""
    mask, library = workspace.mask, found.library
    entries = (
        codec.from_dict(Experience, mask.tree(codec.to_dict(e))) for e in library.experiences
    )
    # A file may call its library anything; here it stands in markers and comments.
    name = re.sub(r"[^\w.-]+", "-", library.name).strip("-.")[:100] or "library"
    card = Card(replace(library, name=name, experiences=tuple(entries)))
    for run in practised_runs(found, workspace):
        state = run.state()
        assert state.started is not None
        instructions = mask(str(state.started.settings.get("agent.instructions", "")))
        measured = [
            _result(evaluation, state, entry.at, workspace)
            for entry in read_journal(run.journal, only=_MEASURED)
            for evaluation in found.measured
            if evaluation == entry.event
        ]
        results = (*card.results, *measured)
        card = replace(card, results=results, instructions=instructions or card.instructions)
    return card


def practised_runs(found: FoundVersion, workspace: Workspace) -> list[RunDir]:
    """Those that committed to its library, the newest last; none of a file."""
    try:
        folder = workspace.library(found.library.name)
        made = {commit.run for _, commit in folder.history() if commit}
    except errors.ConflictError:
        return []
    return [run for run in workspace.runs() if run.run in made]


def _result(
    found: events.EvaluationFinished, state: RunState, at: float, workspace: Workspace
) -> Result:
    assert state.started is not None
    how = (found.data, found.fingerprint)
    alike = (e for e in state.evaluations if (e.data, e.fingerprint) == how and e.step < found.step)
    first = next(alike, None)
    change = compare(question_rewards(first), question_rewards(found)) if first else None
    model = workspace.mask(str(state.started.settings.get("policy.model", "unknown")))
    date, scripted = f"{datetime.fromtimestamp(at, UTC):%F}", state.started.rehearsal
    measured = evaluation_facts(found, learned_by(state))
    facts = json.json_data(measured) | {"model": model, "date": date, "scripted": scripted}
    rate = evaluation_lines.evaluation_text(measured)
    text = f"{found.data}: mean reward {rate}, {model}, {measured.version}, {date}"
    text += ", scripted replies" if scripted else ""
    if first is None or change is None:
        return Result(one_line(text), facts)
    against = f"{words.difference_text(change)} against v{first.library_version}: {change.verdict}"
    facts["against"] = {"library_version": first.library_version} | (json.json_data(change) or {})
    before = workspace.library(state.started.library).at(first.library_version)
    bare = not before.experiences and not state.trains_weights
    benchmark = _benchmark(found, first) if bare else None
    return Result(one_line(f"{text}; {against}"), facts, benchmark)


def _benchmark(
    found: events.EvaluationFinished, first: events.EvaluationFinished
) -> dict[str, Any]:
    """As skills hold it: means over questions, and how far questions differ."""
    rates: dict[str, Any] = {}
    for name, one in (("with_skill", found), ("without_skill", first)):
        means = [mean_at_k((row,)) for row in question_rewards(one).values()]
        known = [mean for mean in means if mean is not None]
        rate = {"mean": round(one.mean or 0.0, 4), "stddev": round(statistics.pstdev(known), 4)}
        rates[name] = {"pass_rate": rate}
    delta = round((found.mean or 0.0) - (first.mean or 0.0), 4)
    return {"run_summary": {**rates, "delta": {"pass_rate": delta}}}
