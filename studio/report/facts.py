"""All that is told by a report: a run's facts, and what lies behind them.

Reads the run's journal, the records that its lessons cite and its library; changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from engines.core.errors import ConflictError
from engines.core.library import Experience, Library
from engines.core.library_notes import Effect
from engines.core.state.list_row import Point
from engines.core.state.run_state import RunHistory, RunState
from engines.core.types import Operation
from engines.pipeline.evaluation.statistics import Interval, group_by_question, mean_interval
from engines.record.derived.run_state import read_history
from engines.record.run_dir import RunDir, Workspace
from studio.facts.curves import RunCurves, Series, metric_points, run_curves
from studio.facts.library import ExperienceChange, experience_changes
from studio.facts.run import RunFacts, existing_places, load_state_with_parents, run_facts
from studio.facts.subject import LIFTED, Subject
from studio.render.library_lines import origin_line
from studio.review.evidence import EvidenceLoader, GroupEvidence, PartingWords
from studio.secrets.sanitize import one_line

MOST_LESSONS = 100
"""Lessons with their evidence: more are named by their wording alone."""
_MOST_GROUPS = 2  # of a lesson's evidence: comparing its tries takes up to a tenth of a second
_MOST_QUESTION = 600


@dataclass(frozen=True, slots=True)
class EvidenceFacts(Subject):
    """A group behind a lesson: where a winner and a loser part, or the last words of one each."""

    id: str
    won: int
    n: int
    question: str
    excerpts: tuple[PartingWords, ...]  # sign, rollout and words


@dataclass(frozen=True, slots=True)
class LessonFacts(Subject):
    """An experience of the library as the run left it, with where it comes from."""

    id: str
    text: str
    pinned: bool
    origin: str
    rationale: str
    cites: tuple[str, ...]
    evidence: tuple[EvidenceFacts, ...]
    uses: str  # of its tries, in words
    effect: Effect | None  # None: not measured


@dataclass(frozen=True, slots=True)
class ReportFacts(Subject):
    """Everything a report tells."""

    facts: RunFacts = field(metadata=LIFTED)
    began: str | None
    curves: RunCurves
    learning_rate: Series
    library_size: tuple[Point, ...]
    diff: tuple[ExperienceChange, ...] | None  # None: the library is gone
    lessons: tuple[LessonFacts, ...]
    settings: Mapping[str, Any]


def report_facts(run: RunDir, workspace: Workspace, *, alive: bool) -> ReportFacts:
    """Read all that a report tells; `alive`: the run has a process."""
    state, evidence = load_state_with_parents(run, workspace), EvidenceLoader(run)
    places = existing_places(run, workspace, state)
    facts = run_facts(state, run.run, alive=alive, places=places)
    intervals = _epoch_intervals(read_history(run.journal))
    epochs = tuple(replace(one, interval=intervals.get(one.epoch)) for one in facts.epochs)
    began = datetime.fromtimestamp(run.started_at(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = _library_versions(state, workspace)
    curves = run_curves(state, {library.version: len(library.experiences) for library in versions})
    return ReportFacts(
        facts=replace(facts, epochs=epochs),
        began=began if state.started else None,
        curves=curves,
        learning_rate=Series("learning rate", "", metric_points(state, "learning_rate")),
        library_size=_library_size(state, curves, versions),
        diff=experience_changes(versions[0], versions[-1]) if versions else None,
        lessons=_lesson_facts(versions[-1], evidence, run) if versions else (),
        settings=state.settings,
    )


def _epoch_intervals(history: RunHistory) -> dict[int, Interval | None]:
    """The 95 % interval of each epoch's mean over problems, whose tries are not independent."""
    tries: dict[int, tuple[list[str], list[tuple[float | None]]]] = {}
    for step in history.steps.values():
        if step.started is not None:
            problems, rows = tries.setdefault(step.started.epoch, ([], []))
            for (position, _), reward in step.rewards.items():
                problems.append(step.problems[position])
                rows.append((reward,))
    return {
        epoch: mean_interval(tuple(group_by_question(problems, rows).values()))
        for epoch, (problems, rows) in tries.items()
    }


def _library_versions(state: RunState, workspace: Workspace) -> tuple[Library, ...]:
    """From the one that the run began with to its last; () where the library is gone."""
    if state.started is None:
        return ()
    try:
        versions = workspace.library(state.started.library).versions()
    except ConflictError:
        return ()
    # Its commit is on disk before the run's: a kill between them leaves one more.
    return versions[state.started.library_version : state.library_version + 1]


def _library_size(
    state: RunState, curves: RunCurves, versions: Sequence[Library]
) -> tuple[Point, ...]:
    """Return the number of experiences after each step that changed the library."""
    # Steps that a fork adopted committed to another library.
    adopted = state.started.forked_steps if state.started else 0
    points = [Point(adopted, len(versions[0].experiences))] if versions else []
    for commit in curves.commits:
        if commit.size is not None and commit.step > adopted:
            points.append(Point(commit.step, commit.size))
    return tuple(points)


def _lesson_facts(
    library: Library, evidence: EvidenceLoader, run: RunDir
) -> tuple[LessonFacts, ...]:
    return tuple(
        _lesson(experience, library, evidence, run, has_evidence=number < MOST_LESSONS)
        for number, experience in enumerate(library.experiences)
    )


def _lesson(
    experience: Experience,
    library: Library,
    evidence: EvidenceLoader,
    run: RunDir,
    *,
    has_evidence: bool,
) -> LessonFacts:
    uses = library.notes.uses.get(experience.id)
    mark = experience.history[-1] if experience.history else None
    groups: tuple[GroupEvidence, ...] = ()
    if mark is not None and mark.run == run.run and has_evidence:
        groups_cited = list(dict.fromkeys(name.rpartition("r")[0] for name in mark.evidence))
        cited = [n for n in mark.evidence if n.rpartition("r")[0] in groups_cited[:_MOST_GROUPS]]
        operation = Operation(mark.operation_id, mark.kind, evidence=tuple(cited))
        groups = evidence.operation_groups(operation)
    return LessonFacts(
        id=experience.id,
        text=experience.text,
        pinned=experience.pinned,
        origin=origin_line(mark) if mark else "",
        rationale=mark.rationale if mark else "",
        cites=mark.evidence if mark else (),
        evidence=tuple(map(_evidence_facts, groups)),
        uses=uses.text if uses else "",
        effect=library.notes.effects.get(experience.id),
    )


def _evidence_facts(group: GroupEvidence) -> EvidenceFacts:
    """Return the question, and where a winner and a loser part; else the last words of each."""
    excerpts: list[PartingWords] = list(group.parting)
    if not excerpts:
        first = {witness.sign: witness for witness in reversed(group.witnesses)}
        for sign in "+-?":
            if sign in first:
                rollout = first[sign].rollout
                tail = rollout.tail or rollout.error or ""
                excerpts.append((sign, first[sign].id, (("same", tail),)))
    question = one_line(group.question, _MOST_QUESTION)
    return EvidenceFacts(group.id, group.won, group.n, question, tuple(excerpts))
