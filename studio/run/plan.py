"""What a command line asks for: a new run, a resumed one, a fork, or nothing to do.

Owns that choice and its refusals. Reads journals; writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engines.core.errors import ConfigError, ConflictError
from engines.core.ids import digest
from engines.core.state.run_state import RunState
from engines.core.types import Problem
from engines.data.dataset import read_problems
from engines.data.sampler import Sampler
from engines.pipeline.replay_training import load_history
from engines.record.run_dir import RunDir, Workspace
from engines.verifiers.open import needs_answer
from studio.config.loading import LoadedRun
from studio.config.settings.fingerprint import differences
from studio.run.resume_checks import check_recomputable
from studio.run.verifier import fingerprint_of

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
        default_review: the reviewer of this face where nothing names one.
        resume: the run to take up instead of the newest of the name.
        accept_changes: resume although settings that change results differ.

    Raises:
        DataError: the problems cannot be read.
        ConfigError: the run cannot be taken up as asked.
    """
    config = loaded.config
    workspace = replace(workspace, mask=loaded.mask)
    if config.data.practice is None:
        raise ConfigError(
            loaded.place("data.practice"),
            '"data.practice" is missing: there is nothing to practise on.',
            "Set data.practice, in the file or as data.practice=NAME.",
        )
    path = loaded.data_path(config.data.practice)
    judged_by_answer = needs_answer(config.verifier.spec)
    problems = read_problems(
        path,
        fields=config.data.fields,
        needs_answer=config.practice.given_ground_truth
        and judged_by_answer
        and config.rollouts_a_problem > 0,  # nothing that is never tried is judged
    )
    sampler = Sampler(
        len(problems),
        config.practice.batch_size,
        config.practice.epochs,
        config.seed,
        config.data.shuffle,
        config.data.truncate,
    )
    # As it will be journalled, so that a resume compares like with like.
    fingerprint = loaded.mask.tree(
        fingerprint_of(loaded, workspace, digest([p.id for p in problems]))
    )
    newest = resume or workspace.newest_run(config.exp_id)
    review = _absolute_rules(review)
    asked = review or config.review.by

    def make_plan(mode: Mode, run: RunDir, **more: Any) -> RunPlan:
        reviewer = more.pop("reviewer", asked or default_review)
        return RunPlan(
            mode, run, workspace, loaded, problems, sampler, fingerprint, reviewer, **more
        )

    if newest is None or restart_step == 0:
        if restart_step:
            raise ConfigError(
                f"restart_step={restart_step}",
                f"there is no run named {config.exp_id} to take steps from.",
                "Leave --restart-step out for a first run.",
            )
        return make_plan("new", workspace.new_run_dir(config.exp_id))
    state = newest.state()
    if state.started is None:  # cut before its first event was whole
        return make_plan("new", newest)
    if restart_step:
        _check_fork(newest, state, restart_step, sampler)
        if config.trains:
            adopted = load_history(newest, workspace, restart_step, to_restore=True)
            check_recomputable(adopted, fingerprint, f"restart_step={restart_step}", fork=True)
        fresh = workspace.new_run_dir(config.exp_id)
        return make_plan("fork", fresh, parent=newest, adopted_steps=restart_step)
    _check_unchanged(newest, state, fingerprint, accept_changes)
    _check_step_under_way(newest, state, problems, sampler)
    if config.trains and accept_changes:
        whole = load_history(newest, workspace, to_restore=True)
        check_recomputable(whole, fingerprint, f"run {newest.run}", fork=False)
    # A resumed run keeps its reviewer unless the command line names another.
    reviewer = review or state.reviewer
    if state.steps_finished > sampler.total_steps:
        raise ConfigError(
            f"practice.epochs={config.practice.epochs}",
            f"run {newest.run} has finished {state.steps_finished} steps, more than these "
            f"{sampler.total_steps}.",
            "Give at least as many epochs, or --restart-step 0 for a new run.",
        )
    # A run whose last words were cut off is resumed, if only to say them.
    over = state.steps_finished == sampler.total_steps and state.status == "finished"
    mode: Mode = "finished" if over else "resume"
    return make_plan(mode, newest, state=state, reviewer=reviewer)


def _absolute_rules(review: str | None) -> str | None:
    """A rule file by its whole path: a resume may come from another folder."""
    kind, colon, file = (review or "").partition(":")
    if kind != "rules" or not file:
        return review
    return f"{kind}{colon}{Path(file).expanduser().resolve()}"


def forked_library(parent: RunDir, steps: int) -> tuple[str, int, int | None]:
    """Name and version of the library as it stood after the parent's first steps.

    The third is how many ideas it remembered as the next step began; None: not known.
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


def _check_fork(parent: RunDir, state: RunState, steps: int, sampler: Sampler) -> None:
    if steps > state.steps_finished:
        raise ConfigError(
            f"restart_step={steps}",
            f"run {parent.run} has finished {state.steps_finished} steps.",
            f"Choose 1 to {state.steps_finished}, 0 to start afresh, or null to resume it.",
        )
    if steps >= sampler.total_steps:
        raise ConfigError(
            f"restart_step={steps}",
            f"the run has {sampler.total_steps} steps in all, so none would be left.",
            "Give more epochs or adopt fewer steps.",
        )
    started = state.started
    if started is not None and steps < started.forked_steps:
        raise ConflictError(
            f"restart_step={steps}",
            f"run {parent.run} itself adopted {started.forked_steps} steps of "
            f"{started.forked_from}.",
            f"Fork that run: --resume {started.forked_from} --restart-step {steps}.",
        )


def _check_step_under_way(
    run: RunDir, state: RunState, problems: tuple[Problem, ...], sampler: Sampler
) -> None:
    """Also accepted changes must leave a step that has begun its problems."""
    now = state.current
    if now is None:
        return
    known = now.step <= sampler.total_steps
    if known and now.problems == tuple(problems[at].id for at in sampler.batch(now.step)):
        return
    raise ConfigError(
        f"run {run.run}, step {now.step}",
        "it is under way on problems that are not these settings' batch.",
        f"Finish it with the settings it began with, or leave it behind with "
        f"--restart-step {now.step - 1}.",
    )


def _check_unchanged(
    run: RunDir, state: RunState, fingerprint: dict[str, Any], accept: bool
) -> None:
    changed = [
        (name, old, new)
        for name, old, new in differences(state.settings, fingerprint)
        if not accept
    ]
    if changed:
        shown = "; ".join(_change_text(*change) for change in changed[:5])
        raise ConfigError(
            f"run {run.run}",
            f"settings that change its results differ from those it began with: {shown}.",
            "Undo them, accept them with --accept-changes, or start a new run with "
            "--restart-step 0 or another --name.",
        )


def _change_text(name: str, old: object, new: object) -> str:
    """A changed setting; of the fields of a request only the names, since any may hold a key."""
    if name.endswith(".extra_body"):
        before, after = (value if isinstance(value, dict) else {} for value in (old, new))
        fields = [f for f in sorted({*before, *after}) if before.get(f) != after.get(f)]
        return f"{name} (in {', '.join(fields)})"
    return f"{name}: {old!r} → {new!r}"[:160]
