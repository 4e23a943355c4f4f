"""What a command line asks for: a new run, a resumed one, a fork, or nothing to do.

Owns that choice. Reads run files and journals; writes nothing. What refuses a run that goes on
is `studio.run.resume_checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engines.core.errors import ConfigError
from engines.core.ids import digest
from engines.core.state.run_state import RunState
from engines.core.types import Problem
from engines.data.checks import check_rows, doubts_line
from engines.data.dataset import read_problems
from engines.data.sampler import Sampler
from engines.pipeline.replay_training import load_history
from engines.record.run_dir import RunDir, Workspace
from engines.verifiers.open import needs_answer
from studio.config.loading import LoadedRun, load_run
from studio.config.source import Source
from studio.report.progress import to_stderr
from studio.run.resume_checks import (
    check_fork,
    check_problems_unchanged,
    check_recomputable,
    check_settings_unchanged,
    removed_budget_limits,
)
from studio.run.reviewers import open_reviewers
from studio.run.verifier import fingerprint_of, masked_answers_warning

Mode = Literal["new", "resume", "fork", "finished"]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run to be opened. `state` is what its journal holds (resume, finished)."""

    mode: Mode
    run: RunDir
    workspace: Workspace
    loaded: LoadedRun
    problems: tuple[Problem, ...]
    sampler: Sampler
    fingerprint: dict[str, Any]
    reviewer: str
    state: RunState | None = None
    parent: RunDir | None = None
    adopted_steps: int = 0

    @property
    def origin(self) -> tuple[str, RunState | None]:
        """Run-id and state of the run that this one continues or forks; None: it is new."""
        if self.parent is not None:
            return self.parent.run, self.parent.state()
        return self.run.run, self.state


def load_plan(
    workspace: Workspace,
    source: Source,
    *,
    name: str | None = None,
    restart_step: str | None = None,
    review: str | None = None,
    accept_changes: bool = False,
    default_review: str = "auto",
    keyless: bool = False,
    tell: Callable[[str], None] = to_stderr,
) -> RunPlan:
    """Read the run file and decide what to open; `tell` gets a note on what was assumed.

    With `keyless` no model can be asked, see `load_run`.

    Raises:
        StudioError: the run file, the data or the choice of run cannot be used.
    """
    if review is not None:
        open_reviewers(review, None)  # a finished run would never open it
    given = workspace.run(source.resume) if source.resume is not None else None
    file = str(given.run_file) if given else source.runfile or ""
    named = [] if name is None else [f"exp_id={name}"]
    loaded = load_run(
        file, [*source.overrides, *named], workspace.path, youtu=source.youtu, keyless=keyless
    )
    # The file of a run that is resumed may still say how that run once began.
    step = None if given else loaded.config.practice.restart_step
    if restart_step is not None:
        step = _parse_restart_step(restart_step)
    plan = plan_run(
        loaded,
        workspace,
        restart_step=step,
        review=review,
        default_review=default_review,
        resume=given,
        accept_changes=accept_changes,
    )
    notes = [*loaded.warnings]
    if plan.mode == "resume" and given is None:  # else its own file was read
        notes += removed_budget_limits(plan.run.run_file, loaded.config)
    for note in (*notes, *_problem_notes(plan)):
        tell(f"note: {note}")
    return plan


def plan_run(
    loaded: LoadedRun,
    workspace: Workspace,
    *,
    restart_step: int | None,
    review: str | None,
    default_review: str,
    resume: RunDir | None = None,
    accept_changes: bool = False,
) -> RunPlan:
    """Decide what to do.

    Args:
        loaded: the validated run file.
        workspace: where runs are looked for.
        restart_step: None resumes the newest run of the name, 0 starts afresh, N forks.
        review: reviewer given on the command line.
        default_review: the reviewer of this command where nothing names one.
        resume: the run to resume instead of the newest of the name.
        accept_changes: resume although settings that change results differ.

    Raises:
        DataError: the problems cannot be read.
        ConfigError: the run cannot be resumed or forked as asked.
    """
    config = loaded.config
    workspace = replace(workspace, mask=loaded.mask)
    review = _absolute_rules(review)
    new = _plan_new(loaded, workspace, review or config.review.by or default_review)
    newest = resume or workspace.newest_run(config.exp_id)
    if newest is None and restart_step:
        raise ConfigError(
            f"restart_step={restart_step}",
            f"there is no run named {config.exp_id} to take steps from.",
            "Leave --restart-step out for a first run.",
        )
    if newest is None or restart_step == 0:
        return new
    state = newest.state()
    if state.started is None:  # cut before its first event was whole
        return replace(new, run=newest)
    if restart_step:
        return _plan_fork(new, newest, state, restart_step)
    # A resumed run keeps its reviewer unless the command line names another.
    plan = replace(new, run=newest, state=state, reviewer=review or state.reviewer)
    return _plan_resume(plan, state, accept_changes)


def _plan_new(loaded: LoadedRun, workspace: Workspace, reviewer: str) -> RunPlan:
    config = loaded.config
    problems = _read_problems(loaded)
    fingerprint = fingerprint_of(loaded, workspace, digest([p.id for p in problems]))
    return RunPlan(
        mode="new",
        run=workspace.new_run_dir(config.exp_id),
        workspace=workspace,
        loaded=loaded,
        problems=problems,
        sampler=Sampler(
            len(problems),
            config.practice.batch_size,
            config.practice.epochs,
            config.seed,
            config.data.shuffle,
            config.data.truncate,
        ),
        # As it will be journalled, so that a resume compares like with like.
        fingerprint=loaded.mask.tree(fingerprint),
        reviewer=reviewer,
    )


def _plan_fork(new: RunPlan, parent: RunDir, state: RunState, steps: int) -> RunPlan:
    check_fork(parent.run, state, steps, new.sampler.total_steps)
    if new.loaded.config.trains:
        adopted = load_history(parent, new.workspace, steps, to_restore=True)
        check_recomputable(adopted, new.fingerprint, f"restart_step={steps}", fork=True)
    return replace(new, mode="fork", parent=parent, adopted_steps=steps)


def _plan_resume(plan: RunPlan, state: RunState, accept_changes: bool) -> RunPlan:
    run, sampler = plan.run, plan.sampler
    if not accept_changes:
        check_settings_unchanged(run.run, state, plan.fingerprint)
    check_problems_unchanged(run.run, state, plan.problems, sampler)
    if plan.loaded.config.trains and accept_changes:
        whole = load_history(run, plan.workspace, to_restore=True)
        check_recomputable(whole, plan.fingerprint, f"run {run.run}", fork=False)
    if state.steps_finished > sampler.total_steps:
        raise ConfigError(
            f"practice.epochs={sampler.epochs}",
            f"run {run.run} has finished {state.steps_finished} steps, more than these "
            f"{sampler.total_steps}.",
            "Give at least as many epochs, or --restart-step 0 for a new run.",
        )
    # A run that lacks only its last event is resumed, to record that.
    over = state.steps_finished == sampler.total_steps and state.status == "finished"
    return replace(plan, mode="finished" if over else "resume")


def _read_problems(loaded: LoadedRun) -> tuple[Problem, ...]:
    config = loaded.config
    if config.data.practice is None:
        raise ConfigError(
            loaded.place("data.practice"),
            '"data.practice" is missing: there is nothing to practise on.',
            "Set data.practice, in the file or as data.practice=NAME.",
        )
    path = loaded.data_path(config.data.practice)
    return read_problems(
        path,
        fields=config.data.fields,
        needs_answer=config.practice.given_ground_truth
        and needs_answer(config.verifier.spec)
        and config.rollouts_a_problem > 0,  # without a rollout nothing is judged
    )


def _problem_notes(plan: RunPlan) -> list[str]:
    """What looks wrong with the problems."""
    config = plan.loaded.config
    notes = []
    if hidden := masked_answers_warning(plan.problems, plan.loaded.mask):
        notes.append(hidden)
    # In demonstrations turns of one conversation share a question.
    if config.practice.algorithm != "sft":
        rows = tuple(enumerate(plan.problems, start=1))
        if doubtful := doubts_line(check_rows(rows, unit="row")):
            data = config.data.practice
            notes.append(f"{data} has {doubtful} (studio data check {data})")
    return notes


def _absolute_rules(review: str | None) -> str | None:
    """A rule file by its absolute path: a resume may come from another folder."""
    kind, colon, file = (review or "").partition(":")
    if kind != "rules" or not file:
        return review
    return f"{kind}{colon}{Path(file).expanduser().resolve()}"


def _parse_restart_step(text: str) -> int | None:
    if text.lower() in ("null", "none"):
        return None
    if text.isdecimal() and len(text) <= 18:
        return int(text)
    raise ConfigError(
        f"--restart-step {text}", "it is neither null nor a whole number.", "Give null, 0 or N."
    )


def forked_library(parent: RunDir, steps: int) -> tuple[str, int, int | None]:
    """Name and version of the library as it stood after the parent's first steps.

    The third is how many past decisions it held as the next step began; None: not known.
    """
    state = parent.state()
    started = state.started
    assert started is not None
    version, remembered = started.library_version, started.remembered
    for number in range(1, steps + 1):
        found = state.steps.get(number)
        if found is not None and found.committed_version is not None:
            version, remembered = found.committed_version, found.remembered_after
    then = state.steps.get(steps + 1)
    if then is not None and then.library_version == version:
        remembered = then.remembered
    return started.library, version, remembered
