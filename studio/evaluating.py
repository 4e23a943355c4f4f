"""A held-out evaluation outside any run: what `studio eval` does.

Owns what is measured (the experiences, and the baseline they are compared with), and
where its replies are recorded. The measuring itself is `engines.pipeline.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.core.concurrently import all_of
from engines.core.errors import ConfigError
from engines.core.library import Library
from engines.pipeline.evaluate import HeldOut, Measured, Pinned, measure
from engines.pipeline.metrics import Comparison, compare
from engines.policies.throttle import Slots
from engines.record.ledger import RecordLedger
from engines.record.lock import writing
from engines.record.run_dir import Workspace
from engines.record.scores import ScoreBook
from studio.config import LoadedRun, load_run
from studio.held_out import books, held_out_sets, measured_by, measured_id, measuring
from studio.roles import Tell, open_roles, slots_for
from studio.source import Source
from studio.trial import choose_library
from studio.verifying import fingerprint_of, open_run_verifier


@dataclass(frozen=True, slots=True)
class Subject:
    """Experiences that are measured, and what to call them; without any, the bare agent."""

    label: str
    library: Library | None

    @property
    def pinned(self) -> Pinned:
        if self.library is None:
            return Pinned("")
        return Pinned(self.library.guidance(), self.library.version)


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What is to be measured. `subjects` begin with the baseline where there is one."""

    loaded: LoadedRun
    workspace: Workspace
    sets: tuple[HeldOut, ...]
    subjects: tuple[Subject, ...]
    measured: dict[str, Any]

    @property
    def k(self) -> int:
        return self.loaded.config.evaluation.k

    @property
    def total(self) -> int:
        """Rollouts in all, known ones included."""
        return sum(len(s.problems) for s in self.sets) * self.k * len(self.subjects)

    def books(self) -> tuple[ScoreBook, ...]:
        """The scores of each subject, as they are known now."""
        book = books(self.workspace.evaluations, self.measured)
        return tuple(book(subject.pinned.guidance) for subject in self.subjects)

    def missing(self) -> int:
        """Rollouts that nobody measured yet."""
        return sum(
            book.missing(problem, self.k)
            for book in self.books()
            for held_out in self.sets
            for problem in held_out.problems
        )


@dataclass(frozen=True, slots=True)
class SetResult:
    """One held-out set: what each subject came to, and how the last compares to the first."""

    held_out: HeldOut
    results: tuple[tuple[Subject, Measured], ...]

    @property
    def comparison(self) -> Comparison | None:
        if len(self.results) < 2:
            return None
        ids = [problem.id for problem in self.held_out.problems]
        before, after = (dict(zip(ids, m.rewards, strict=True)) for _, m in self.results)
        return compare(before, after)


def plan_eval(
    loaded: LoadedRun, workspace: Workspace, *, library: str | None, baseline: str | None
) -> EvalPlan:
    """Decide what is measured.

    Args:
        loaded: the run file; its agent may come from a file of its own.
        workspace: where libraries are looked up and results are kept.
        library: a reference as `studio diff` takes it, or `none`; None: what a run of this
            file would begin with.
        baseline: the same, or None to compare with nothing.

    Raises:
        ConfigError: no held-out set is named, or the agent brings experiences besides.
        ConflictError, DataError: a library or a set cannot be found or read.
    """
    config = loaded.config
    if not config.evaluation.data:
        raise ConfigError(
            loaded.place("evaluation.data"),
            "no held-out set is named.",
            "Set evaluation.data, in the file or as evaluation.data=NAME.",
        )
    found, label = choose_library(loaded, workspace, library)
    subjects = [Subject(label, found)]
    if baseline is not None:
        other, called = choose_library(loaded, workspace, baseline)
        subjects.insert(0, Subject(called, other))
    facts = measured_by(config, fingerprint_of(loaded, workspace))
    return EvalPlan(loaded, workspace, held_out_sets(loaded), tuple(subjects), facts)


async def carry_out(plan: EvalPlan, tell: Tell, progress: Callable[[], None]) -> list[SetResult]:
    """Measure what is missing and put everything together.

    Args:
        plan: what to measure; nothing is asked where all of it is known.
        tell: is told what endpoints refused.
        progress: called after each rollout, known ones included.

    Raises:
        StudioError: something cannot be opened or recorded.
    """
    config = plan.loaded.config
    missing = plan.missing()
    async with AsyncExitStack() as stack:
        replies = plan.workspace.evaluations / "replies" / measured_id(plan.measured)[:16]
        if missing:
            stack.enter_context(writing(replies))
        roles = open_roles(config, stack)
        ledger = RecordLedger(replies, config.seed, tell=tell)
        stack.push_async_callback(ledger.aclose)
        slots = Slots(config.practice.concurrency)
        verifier = open_run_verifier(plan.loaded, plan.workspace, roles, ledger, slots)
        stack.push_async_callback(verifier.aclose)
        if missing:
            await verifier.check()
            await roles.ping()
            stack.callback(roles.tell_notes, tell)
        rolling = slots_for(config.policy, slots)
        how = measuring(config, roles.policy, ledger, rolling, verifier)
        opened = plan.books()
        for book in opened:
            stack.callback(book.close)
        found = await all_of(
            measure(how, book, held_out.problems, subject.pinned, tell=progress)
            for held_out in plan.sets
            for subject, book in zip(plan.subjects, opened, strict=True)
        )
    n = len(plan.subjects)
    return [
        SetResult(held_out, tuple(zip(plan.subjects, found[at * n : at * n + n], strict=True)))
        for at, held_out in enumerate(plan.sets)
    ]


def load_eval(
    source: Source, workspace: Path, *, agent: Path | None = None, k: int | None = None
) -> LoadedRun:
    """Load what is to be measured.

    Args:
        source: a run file, a preset, or an eval config of a Youtu-Agent checkout.
        workspace: as in `load_run`.
        agent: a file that takes the place of the run file's agent.
        k: tries a problem instead of `evaluation.k`.

    Raises:
        ConfigError: with place, cause and next move.
    """
    tries = [] if k is None else [f"evaluation.k={k}"]
    given = [*source.overrides, *tries]
    return load_run(source.runfile or "", given, workspace, agent=agent, youtu=source.youtu)
