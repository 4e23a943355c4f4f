"""A report: what a run did and learned, read from its journal, records and library; and its page.

The page says what the facts say, section by section. Nothing but its file is written.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.core import errors, library_notes
from engines.core.frozen import frozen
from engines.core.library import Experience, Library
from engines.core.state.list_row import Point, pool_points
from engines.core.state.run_state import RunHistory, RunState
from engines.core.types import Operation
from engines.pipeline.evaluation.statistics import Interval, group_by_question, mean_interval
from engines.record.appender import write_atomic
from engines.record.derived.run_state import read_history
from engines.record.run_dir import RunDir, Workspace
from studio.facts.curves import RunCurves, Series, metric_points, run_curves
from studio.facts.library import ExperienceChange, differing_changes, experience_changes
from studio.facts.run import (
    GROUP_OUTCOMES,
    RunFacts,
    existing_places,
    load_state_with_parents,
    run_facts,
)
from studio.facts.subject import LIFTED, Subject
from studio.render import comparison_page, library_lines, run_lines
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
from studio.render.words import count_text
from studio.review.evidence import EvidenceLoader, GroupEvidence, PartingWords
from studio.secrets.sanitize import one_line

MOST_LESSONS = 100
"""Lessons with their evidence: to compare its rollouts takes up to a tenth of a second each."""
_MOST_GROUPS = 2  # of a lesson's evidence: comparing its tries takes up to a tenth of a second
_MOST_QUESTION = 600


@frozen
class EvidenceFacts(Subject):
    """A group behind a lesson: where a winner and a loser part, or the last words of one each."""

    id: str
    won: int
    n: int
    question: str
    excerpts: tuple[PartingWords, ...]  # sign, rollout and words


@frozen
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
    effect: library_notes.Effect | None  # None: not measured


@frozen
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
    lessons = []
    for number, experience in enumerate(versions[-1].experiences if versions else ()):
        has_evidence = number < MOST_LESSONS
        lessons.append(_lesson(experience, versions[-1], evidence, run, has_evidence=has_evidence))
    return ReportFacts(
        facts=replace(facts, epochs=epochs),
        began=began if state.started else None,
        curves=curves,
        learning_rate=Series("learning rate", "", metric_points(state, "learning_rate")),
        library_size=_library_size(state, curves, versions),
        diff=experience_changes(versions[0], versions[-1]) if versions else None,
        lessons=tuple(lessons),
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
    except errors.ConflictError:
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
        origin=library_lines.origin_line(mark) if mark else "",
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


# -- the page -----------------------------------------------------------------------------------

_MOST_POINTS, _MOST_BARS = 200, 12
_OVER = ("finished", "stopped", "failed")
_STANCE = {"+": "right", "-": "wrong", "?": "not judged"}


def report_page(report: ReportFacts) -> Page:
    """Return the whole page; what the run has nothing of is left out, but never a loss."""
    facts = report.facts
    make_charts: dict[str, Callable[[ReportFacts], list[Block]]] = {
        "practice": _practice_charts,
        "training": _training_charts,
        "held-out": _held_out_charts,
        "spent": _cost_charts,
    }
    parts = []
    for title, lines in [
        *run_lines.practice_sections(facts, every_epoch=True),
        *run_lines.record_sections(facts),
    ]:
        make = make_charts.get(title.partition(" ")[0])
        charts = make(report) if make is not None else []
        items = Items([line.strip() for line in lines])
        parts.append(Part(title[:1].upper() + title[1:], [*charts, items]))
    own = {"Lessons": _lessons, "What changed": _changes, "Settings": _settings}
    parts += [Part(title, blocks) for title, make in own.items() if (blocks := make(report))]
    return Page(f"Report of run {facts.run}", [*_head(report), *parts])


def _head(report: ReportFacts) -> list[Block]:
    facts = report.facts
    blocks: list[Block] = [Text(line) for line in run_lines.head_text(facts).split("\n")]
    if facts.scripted:
        blocks.append(Text(facts.scripted, "notice"))
    if facts.practises and not facts.evaluations:
        text = "No held-out set was measured: whether practice helped cannot be told."
        blocks.append(Text(text, "notice"))
    if facts.standing.status not in _OVER:
        blocks.append(Text("This run has not ended: all figures are those so far.", "notice"))
    learned = f"library {facts.library} v{facts.library_before} → v{facts.library_after}"
    if facts.training:
        policy = f"policy v{facts.policy_before} → v{facts.training.policy_version}"
        learned = f"{policy}, library {facts.library} v{facts.library_after}"
    if report.began:
        about = f"began {report.began}, seed {facts.seed}, reviewer {facts.reviewer}"
        blocks.append(Text(f"{about}; {learned}"))
    if facts.forked_from:
        adopted = f"steps 1 to {facts.forked_steps} adopted from run {facts.forked_from}"
        blocks.append(Text(adopted))
    return blocks


def _held_out_charts(report: ReportFacts) -> list[Block]:
    lines = _lines(report.curves.held_out)
    return _charts(LineChart("Held-out reward, 95 % intervals", lines, high=1.0))


def _practice_charts(report: ReportFacts) -> list[Block]:
    outcomes = {epoch.epoch: Counter[str]() for epoch in report.facts.epochs}
    for step in report.facts.steps:
        outcomes.setdefault(step.epoch, Counter()).update(step.groups)
    labels = [*outcomes][-_MOST_BARS:]
    parts = [(name, [float(outcomes[at][name]) for at in labels]) for name in GROUP_OUTCOMES]
    bars = BarChart("Groups by outcome", [f"epoch {epoch}" for epoch in labels], parts)
    return _charts(_reward_chart(report), bars)


def _reward_chart(report: ReportFacts) -> LineChart:
    marks = []
    for epoch in report.facts.epochs:
        steps = [step.step for step in report.facts.steps if step.epoch == epoch.epoch]
        if epoch.mean_reward is not None and steps:
            ends = (epoch.interval.low, epoch.interval.high) if epoch.interval else (None, None)
            marks.append((steps[0], steps[-1], Point(0, epoch.mean_reward, epoch.n, *ends)))
    title = "Practice reward by step, and by epoch with its 95 % interval"
    return LineChart(title, _lines([report.curves.practice]), high=1.0, marks=marks)


def _training_charts(report: ReportFacts) -> list[Block]:
    training, curves = report.facts.training, report.curves
    series = [curves.practice] if training and training.demonstrations else []
    lines = _lines([*series, *curves.updates, report.learning_rate])
    return _charts(*(LineChart(line.name, [line]) for line in lines))


def _cost_charts(report: ReportFacts) -> list[Block]:
    spent = report.facts.spent_on
    prompts = ("prompt", [float(usage.prompt_tokens) for usage in spent.values()])
    replies = ("reply", [float(usage.completion_tokens) for usage in spent.values()])
    return _charts(BarChart("Tokens by stage", [*spent], [prompts, replies]))


def _lessons(report: ReportFacts) -> list[Block]:
    lessons, size = report.lessons, [*report.library_size]
    if len(size) > 1 and report.facts.steps:
        size.append(size[-1]._replace(step=max(size[-1].step, report.facts.steps[-1].step)))
    growth = LineChart("Experiences in the library", [Line("experiences", size)], holds=True)
    blocks: list[Block] = _charts(growth) if len(size) > 1 else []
    blocks += map(_lesson_part, lessons)
    return blocks


def _lesson_part(lesson: LessonFacts) -> Part:
    texts = {
        "Attempts that had it in front of them": lesson.uses,
        "Pinned": "nothing may change it" if lesson.pinned else "",
        "Where from": lesson.origin,
        "Why": lesson.rationale,
    }
    items = [f"{name}: {text}" for name, text in texts.items() if text]
    blocks: list[Block] = [Items([worth_text(lesson.effect), *items])]
    if lesson.evidence:
        counts = count_text(len(lesson.cites), "rollout"), count_text(len(lesson.evidence), "group")
        quotes = [quote for group in lesson.evidence for quote in _quotes(group)]
        blocks.append(Part(f"Evidence: {', '.join(counts)} shown", quotes, folded=True))
    return Part(f"{lesson.id}  {lesson.text}", blocks)


def _quotes(group: EvidenceFacts) -> list[Quote]:
    question = f"{group.id}, {group.won} of {group.n} right"
    quotes = [Quote(question, plain_words(group.question))]
    for sign, rollout, words in group.excerpts:
        quotes.append(Quote(f"{rollout}, {_STANCE[sign]}", words))
    return quotes


def worth_text(effect: library_notes.Effect | None) -> str:
    """Say what a lesson is worth, as it was measured."""
    if effect is None:
        return "Worth: not measured."
    ends = f"[{effect.low:+.2f}, {effect.high:+.2f}]"
    over = f"{effect.problems} problems, {effect.rollouts} rollouts"
    worth = f"{effect.difference:+.3f} {ends}, {effect.verdict}"
    return f"Worth: {worth} ({over}; measured by {effect.method})."


def _changes(report: ReportFacts) -> list[Block]:
    facts = report.facts
    if facts.library is None or (facts.training and not report.diff):
        return []
    if report.diff is None:
        return [Text("The library is gone from the workspace: what changed cannot be told.")]
    title = f"Library {facts.library} v{facts.library_before} → v{facts.library_after}"
    table = comparison_page.changes_table(title, differing_changes(report.diff))
    same = len(report.diff) - len(table.rows)
    return [table, Text(f"{same} stayed as they were.")] if table.rows else [Text("Nothing.")]


def _settings(report: ReportFacts) -> list[Block]:
    rows = []
    for name, value in sorted(report.settings.items()):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        rows.append((name, text))
    table = Table("Settings as they were last accepted", ("Setting", "Value"), rows)
    return [Part(f"{len(rows)} settings", [table], folded=True)] if rows else []


def _lines(series: Sequence[Series]) -> list[Line]:
    """Return the curves that have a point, thinned where nobody could tell them apart."""
    lines = []
    for curve in series:
        points: Sequence[Point] = curve.points
        # Pooling loses intervals, and no run has so many evaluations.
        if len(points) > _MOST_POINTS:
            points = pool_points(points, _MOST_POINTS)
        if points:
            lines.append(Line(curve.name, points))
    return lines


def _charts(*charts: LineChart | BarChart) -> list[Block]:
    """Return those that show anything."""
    shown = [c for c in charts if (c.labels if isinstance(c, BarChart) else c.lines)]
    return [Charts(shown)] if shown else []


_BEGINS = re.compile(rb"# Report of run |<!doctype html>.{0,999}<title>Report of run |$")
"""What may be overwritten: a report as `report_page` begins it, or nothing."""


def write_report(path: Path, data: bytes, workspace: Workspace) -> None:
    """Write a file whole; a pipe or a device is written to, and a link followed.

    Raises RecordError: it cannot be written. ConflictError: it holds something else.
    """
    workspace.check_overwrite(
        path, lambda old: _BEGINS.match(old) is not None, "Choose another file, or remove it."
    )
    if not path.exists() or path.is_file():
        write_atomic(path.resolve(), data)
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise errors.RecordError(
            str(path), f"cannot be written ({error.strerror}).", "Choose another place."
        ) from error
