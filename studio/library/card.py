"""The evaluation card of a version: what runs measured of it, each in words and as values."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from datetime import UTC, datetime

from engines.core.codec import from_dict, to_dict
from engines.core.errors import ConflictError
from engines.core.events import EvaluationFinished
from engines.core.library import Experience
from engines.core.state.fold import fold_events
from engines.core.state.run_state import RunState
from engines.core.text.sanitize import one_line
from engines.pipeline.evaluation.comparison import compare
from engines.pipeline.evaluation.metrics import mean_at_k
from engines.record.formats.card import Card, Rate, Result
from engines.record.run_dir import RunDir, Workspace
from studio.library.references import FoundVersion
from studio.report.rates import (
    comparison_data,
    difference_text,
    evaluation_text,
    interval_data,
    question_rewards,
)


def evaluation_card(found: FoundVersion, workspace: Workspace) -> Card:
    """The version, secrets masked, with its measurements."""
    mask, library = workspace.mask, found.library
    entries = (from_dict(Experience, mask.tree(to_dict(e))) for e in library.experiences)
    # A file may call its library anything; here it stands in markers and comments.
    name = re.sub(r"[^\w.-]+", "-", library.name).strip("-.")[:100] or "library"
    card = Card(replace(library, name=name, experiences=tuple(entries)))
    for run in practised_runs(found, workspace):
        journal = run.entries()
        state = fold_events(entry.event for entry in journal)
        assert state.started is not None
        instructions = mask(str(state.started.settings.get("agent.instructions", "")))
        measured = [
            _result(entry.event, state, entry.at, workspace)
            for entry in journal
            if isinstance(entry.event, EvaluationFinished) and entry.event in found.measured
        ]
        results = (*card.results, *measured)
        card = replace(card, results=results, instructions=instructions or card.instructions)
    return card


def practised_runs(found: FoundVersion, workspace: Workspace) -> list[RunDir]:
    """Those that committed to its library, the newest last; none of a file."""
    try:
        folder = workspace.library(found.library.name)
        made = {commit.run for _, commit in folder.history() if commit}
    except ConflictError:
        return []
    return [run for run in workspace.runs() if run.run in made]


def _result(found: EvaluationFinished, state: RunState, at: float, workspace: Workspace) -> Result:
    assert state.started is not None
    rewards = question_rewards(found)
    earlier = [
        e
        for e in state.evaluations
        if (e.data, e.fingerprint) == (found.data, found.fingerprint) and e.step < found.step
    ]
    change = compare(question_rewards(earlier[0]), rewards) if earlier else None
    model = workspace.mask(str(state.started.settings.get("policy.model", "unknown")))
    if state.trains_weights:
        model += f" with weights v{found.policy_version}"
    scripted = ", scripted replies" if state.started.rehearsal else ""
    text = f"{found.data}: mean reward {evaluation_text(found)}, {model}{scripted}, {_date(at)}"
    if change:
        against = f"against v{earlier[0].library_version}: {change.verdict}"
        text += f"; {difference_text(change)} {against}"
    data = {
        **{"data": found.data, "mean": found.mean, "interval": interval_data(found)},
        **{"n": found.n, "unjudged": found.unjudged, "model": model, "date": _date(at)},
        "scripted": state.started.rehearsal,
        "against": {"version": earlier[0].library_version, **(comparison_data(change) or {})}
        if change
        else None,
    }
    folder = workspace.library(state.started.library)
    bare = bool(earlier) and not folder.at(earlier[0].library_version).experiences
    return Result(one_line(text), data, _rate(found), _rate(earlier[0]) if bare else None)


def _rate(found: EvaluationFinished) -> Rate:
    means = [mean_at_k((row,)) for row in question_rewards(found).values()]
    known = [mean for mean in means if mean is not None]
    return found.mean or 0.0, statistics.pstdev(known) if known else 0.0


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
