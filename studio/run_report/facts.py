"""The facts of a report: those of `studio runs show`, and what lies behind them.

Reads the run's journal, the records that its lessons cite and its library; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from engines.core.codec import fields_of, to_dict
from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.core.state.step_history import RunHistory
from engines.core.types import Operation
from engines.pipeline.evaluation.metrics import group_by_question, mean_interval
from engines.record.run_dir import RunDir, Workspace
from engines.record.step_history import read_history
from studio.facts.curves import Series, metric_points, run_curves
from studio.facts.evaluation import interval_ends
from studio.library.diff import pairs
from studio.library.text import origin_line
from studio.report.fork_history import load_state_with_parents
from studio.report.run import state_facts
from studio.review.evidence import EvidenceLoader, GroupEvidence, PartingWords
from studio.secrets.sanitize import one_line

MOST_LESSONS = 100
"""Lessons with their evidence: more are named by their wording alone."""
_MOST_GROUPS = 2  # of a lesson's evidence: comparing its tries takes up to a tenth of a second
_MOST_QUESTION = 600


def report_facts(run: RunDir, workspace: Workspace, *, alive: bool) -> dict[str, Any]:
    """All that a report tells, as plain JSON values; `alive`: the run has a process."""
    state, evidence = load_state_with_parents(run, workspace), EvidenceLoader(run)
    facts = state_facts(state, run, workspace, alive=alive)
    intervals = _epoch_intervals(read_history(run))
    began = datetime.fromtimestamp(run.started_at(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = _library_versions(state, workspace)
    return {
        **facts,
        "began": began if state.started else None,
        "epochs": [{**one, "interval": intervals.get(one["epoch"])} for one in facts["epochs"]],
        "curves": _curve_facts(state, versions),
        "diff": [asdict(pair) for pair in pairs(versions[0], versions[-1])] if versions else None,
        "lessons": _lesson_facts(versions[-1], evidence, run) if versions else [],
        "settings": dict(state.settings),
    }


def _epoch_intervals(history: RunHistory) -> dict[int, list[float] | None]:
    """The 95 % interval of each epoch's mean over problems, whose tries are not independent."""
    tries: dict[int, tuple[list[str], list[tuple[float | None]]]] = {}
    for step in history.steps.values():
        if step.started is not None:
            problems, rows = tries.setdefault(step.started.epoch, ([], []))
            for (position, _), reward in step.rewards.items():
                problems.append(step.problems[position])
                rows.append((reward,))
    return {
        epoch: interval_ends(mean_interval(tuple(group_by_question(*found).values())))
        for epoch, found in tries.items()
    }


def _library_versions(state: RunState, workspace: Workspace) -> tuple[Library, ...]:
    """From the one that the run began with to its last; () where the library is gone."""
    if state.started is None:
        return ()
    try:
        known = workspace.library(state.started.library).versions()
    except ConflictError:
        return ()
    # Its commit is on disk before the run's: a kill between them leaves one more.
    return known[state.started.library_version : state.library_version + 1]


def _curve_facts(state: RunState, versions: Sequence[Library]) -> dict[str, Any]:
    """Every curve as rows of step, value, n, low, high."""
    sizes = {library.version: len(library.experiences) for library in versions}
    curves = run_curves(state, sizes)
    rate = Series("learning rate", "", metric_points(state, "learning_rate"))
    found = {"practice": (curves.practice,), "held_out": curves.held_out}
    found["updates"] = (*curves.updates, rate)
    # Steps that a fork adopted committed to another library.
    adopted = state.started.forked_steps if state.started else 0
    size = [(adopted, len(versions[0].experiences))] if versions else []
    size += [(c.step, c.size) for c in curves.commits if c.size is not None and c.step > adopted]
    return {
        name: [{"name": one.name, "points": [list(p) for p in one.points]} for one in series]
        for name, series in found.items()
    } | {"library_size": [list(point) for point in size]}


def _lesson_facts(library: Library, evidence: EvidenceLoader, run: RunDir) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for experience in library.experiences:
        uses, effect = library.uses.get(experience.id), library.effects.get(experience.id)
        mark = experience.history[-1] if experience.history else None
        groups: tuple[GroupEvidence, ...] = ()
        if mark is not None and mark.run == run.run and len(found) < MOST_LESSONS:
            named = list(dict.fromkeys(name.rpartition("r")[0] for name in mark.evidence))
            cited = [n for n in mark.evidence if n.rpartition("r")[0] in named[:_MOST_GROUPS]]
            operation = Operation(mark.operation_id, mark.kind, evidence=tuple(cited))
            groups = evidence.operation_groups(operation)
        found.append(
            {
                **fields_of(experience, "id", "text", "pinned"),
                "origin": origin_line(mark) if mark else "",
                "rationale": mark.rationale if mark else "",
                "cites": list(mark.evidence) if mark else [],
                "evidence": [_group_data(group) for group in groups],
                "uses": to_dict(uses) | {"text": uses.text} if uses else None,
                "effect": asdict(effect) if effect else None,
            }
        )
    return found


def _group_data(group: GroupEvidence) -> dict[str, Any]:
    """Question, and where a winner and a loser part; else the last words of one of each."""
    said: Sequence[PartingWords] = group.parting
    if not said:
        first = {one.sign: one for one in reversed(group.witnesses)}
        shown = [(sign, first[sign]) for sign in "+-?" if sign in first]
        tails = [one.rollout.tail or one.rollout.error or "" for _, one in shown]
        said = [(sign, w.id, (("same", t),)) for (sign, w), t in zip(shown, tails, strict=True)]
    return {
        **fields_of(group, "id", "won", "n"),
        "question": one_line(group.question, _MOST_QUESTION),
        "excerpts": [{"rollout": name, "sign": sign, "words": words} for sign, name, words in said],
    }
