"""A held-out evaluation outside any run: what `studio eval` measures.

Made in two steps, tries wait in the record of replies, so that nothing is paid twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError
from engines.core.ids import digest
from engines.core.library import Library
from engines.core.types import NO_USAGE, Problem, Usage
from engines.core.waiting import gather_all
from engines.pipeline.effect.regression import random_half
from engines.pipeline.evaluation.evaluate import (
    HeldOutSet,
    Measurement,
    PinnedVersion,
    known_measurement,
    measure,
)
from engines.pipeline.evaluation.statistics import Comparison, compare, group_by_question
from engines.pipeline.guidance import PromptWriter, Shown
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from engines.record.scores import ID_BYTES, ScoreBook, problem_digest
from studio.config.loading import LoadedRun, load_run
from studio.config.source import Source
from studio.evaluation.measurement import EvalStep, GivenUp, open_measuring
from studio.evaluation.try_problem import without_lessons
from studio.run.held_out import (
    held_out_sets,
    measurement_settings,
    prompt_writer,
    score_book_opener,
)
from studio.run.library import choose_library
from studio.run.models import Tell, weights_digest
from studio.run.verifier import fingerprint_of


@dataclass(frozen=True, slots=True)
class Subject:
    """Experiences that are measured, and what to call them; without any, the bare agent."""

    label: str
    library: Library | None
    writer: PromptWriter
    halves: int | None = None  # the seed by which each try carries a random half; None: all

    @property
    def guidance(self) -> str:
        """What tells its prompts from those of others."""
        drawn = "" if self.halves is None else f"\n\n(a random half in each try, {self.halves})"
        return self.writer.describe(self.library) + drawn

    def write(self, problem: Problem, index: int) -> tuple[str, Shown]:
        """What the prompt of a try says of experiences, and which of them."""
        content = problem_digest(problem)
        keep = None if self.halves is None else random_half(self.halves, content, index)
        return self.writer.write(self.library, problem.question, keep)


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What is to be measured. `subjects` begin with the baseline where there is one."""

    loaded: LoadedRun
    workspace: Workspace
    sets: tuple[HeldOutSet, ...]
    subjects: tuple[Subject, ...]
    measured: dict[str, Any]
    agent: bool = False  # an agent file was given, whose instructions all subjects have
    weights: str = ""  # digest of those the policy has; "" where it owns none
    step: EvalStep = "all"

    @property
    def k(self) -> int:
        return self.loaded.config.evaluation.k

    @property
    def contents(self) -> tuple[str, ...]:
        """Every held-out problem by content; one of two sets is here twice."""
        return tuple(problem_digest(p) for held_out in self.sets for p in held_out.problems)

    @property
    def total(self) -> int:
        """Different rollouts in all, known ones included."""
        return len(set(self.contents)) * self.k * len(self.guidances)

    @property
    def guidances(self) -> tuple[str, ...]:
        """The texts in the prompts, each once: two names may have equal experiences."""
        return tuple(dict.fromkeys(subject.guidance for subject in self.subjects))

    def score_books(self) -> dict[str, ScoreBook]:
        """The scores of each guidance, as they are known now."""
        folder, loaded = self.workspace.evaluations, self.loaded
        book = score_book_opener(folder, self.measured, loaded)
        return {guidance: book(guidance, self.weights) for guidance in self.guidances}

    def missing(self) -> tuple[tuple[str, int], ...]:
        """Rollouts that are not measured yet, with each guidance."""
        books, contents = self.score_books(), self.contents
        first = self.sets[0].problems[0]
        texts = {subject.guidance: subject.write(first, 0)[0] for subject in self.subjects}
        return tuple(
            (texts[name], book.count_missing(contents, self.k)) for name, book in books.items()
        )

    def count_missing(self) -> int:
        return sum(n for _, n in self.missing())


@dataclass(frozen=True, slots=True)
class SetResult:
    """One held-out set: the result of each subject, and how the last compares to the first."""

    held_out: HeldOutSet
    results: tuple[tuple[Subject, Measurement], ...]

    def question_rewards(self, at: int) -> dict[str, tuple[float | None, ...]]:
        ids = [problem.id for problem in self.held_out.problems]
        return group_by_question(ids, self.results[at][1].rewards)

    @property
    def comparison(self) -> Comparison | None:
        if len(self.results) < 2 or any(found.missing for _, found in self.results):
            return None  # the part that was measured first is no random sample
        return compare(self.question_rewards(0), self.question_rewards(1))


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Every set's result, and what this command paid for."""

    sets: tuple[SetResult, ...]
    paid: Usage = NO_USAGE
    reused: int = 0  # different rollouts that were known already
    tried: int | None = None  # tries that now wait for a judge; None: all were to be judged

    @property
    def unjudged_count(self) -> int:
        return sum(measured.unjudged_count for found in self.sets for _, measured in found.results)


def plan_eval(
    loaded: LoadedRun,
    workspace: Workspace,
    *,
    library: str | None,
    baseline: str | None,
    agent: bool = False,
    step: EvalStep = "all",
) -> EvalPlan:
    """Decide what is measured.

    `library` is a reference as `studio diff` takes it, or `none`; None: what a run of this file
    would begin with. `baseline` is the same, or None to compare with nothing. With `agent` an agent
    file replaced the run file's, and results have its name.

    Raises ConfigError: no held-out set is named, or the agent has experiences besides.
    ConflictError, DataError: a library or a set cannot be found or read.
    """
    config = loaded.config
    if not config.evaluation.data:
        move = "Set evaluation.data, in the file or as evaluation.data=NAME."
        raise ConfigError(loaded.place("evaluation.data"), "no held-out set is named.", move)
    found, label = choose_library(loaded, workspace, library)
    writer = prompt_writer(config)
    subjects = [Subject(f"agent {config.agent.name}" if agent else label, found, writer)]
    if baseline is not None:
        other, called = choose_library(loaded, workspace, baseline)
        subjects.insert(0, Subject(called, other, writer))
    facts = measurement_settings(config, fingerprint_of(loaded, workspace))
    sets, weights = held_out_sets(loaded), weights_digest(config.policy)
    return EvalPlan(loaded, workspace, sets, tuple(subjects), facts, agent, weights, step)


async def measure_missing(
    plan: EvalPlan,
    tell: Tell,
    progress: Callable[[], None],
    give_up: Callable[[GivenUp, str], None],
    account: Callable[[Usage], None] = lambda _: None,
) -> EvaluationResult:
    """Measure what is missing and put everything together; nothing is asked without need.

    `progress` is called after each rollout, known ones included. `give_up` must cancel this task.
    `account` gets what was paid, also where it is cancelled.
    """
    config, missing = without_lessons(plan.loaded.config), plan.count_missing()
    if not missing:  # no model is opened, which may take seconds, and nothing is locked
        return known_result(plan, NO_USAGE, 0)
    opened = plan.score_books()
    ids = sorted(book.path.name for book in opened.values())
    replies = plan.workspace.evaluations / "replies" / digest(ids, ID_BYTES)
    async with AsyncExitStack() as stack:
        stack.enter_context(write_lock(replies))
        judged = [held_out.problems for held_out in plan.sets]
        setup, ledger, unjudged = await open_measuring(
            replace(plan.loaded, config=config),
            plan.workspace,
            replies,
            stack,
            tell,
            give_up,
            judged=judged,
            step=plan.step,
            account=account,
        )
        for book in opened.values():
            stack.callback(book.close)
        written = {subject.guidance: subject.write for subject in plan.subjects}
        # All sets at once, so that the last tries of one leave no slot idle.
        found = await gather_all(
            measure(
                setup,
                opened[guidance],
                held_out.problems,
                PinnedVersion(written[guidance]),
                tell=lambda *_: progress(),
            )
            for held_out, guidance in product(plan.sets, plan.guidances)
        )
    tried = None if unjudged is None else unjudged.count
    return EvaluationResult(_results_by_set(plan, found), ledger.paid, plan.total - missing, tried)


def known_result(plan: EvalPlan, paid: Usage, missing_before: int) -> EvaluationResult:
    """What is known of an evaluation, measured whole or not.

    This command paid for `paid`; `missing_before` rollouts were not known when it began.
    """
    opened = plan.score_books()
    found = [
        known_measurement(opened[guidance], held_out.problems, plan.k)
        for held_out, guidance in product(plan.sets, plan.guidances)
    ]
    return EvaluationResult(_results_by_set(plan, found), paid, plan.total - missing_before)


def _results_by_set(plan: EvalPlan, found: Sequence[Measurement]) -> tuple[SetResult, ...]:
    """Sort results, in the order of sets and guidances, by set and subject."""
    count = len(plan.guidances)
    of_sets = [
        dict(zip(plan.guidances, found[at * count :], strict=False)) for at in range(len(plan.sets))
    ]
    return tuple(
        SetResult(held_out, tuple((s, of_set[s.guidance]) for s in plan.subjects))
        for held_out, of_set in zip(plan.sets, of_sets, strict=True)
    )


def load_eval(
    source: Source,
    workspace: Path,
    *,
    agent: Path | None = None,
    k: int | None = None,
    keyless: bool = False,
) -> LoadedRun:
    """Load what is to be measured; `agent` and `k` replace those of the run file."""
    given = [*source.overrides, *([] if k is None else [f"evaluation.k={k}"])]
    name, youtu = source.runfile or "", source.youtu
    return load_run(name, given, workspace, agent=agent, youtu=youtu, keyless=keyless)
