"""One problem twice: before and after a run (`studio try --versus`), or without an experience."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

from engines.core.errors import ConfigError
from engines.core.state.step_history import StepHistory
from engines.core.types import Problem
from engines.data.dataset import read_problems
from engines.record.cassette import is_played
from engines.record.run_dir import RunDir, Workspace
from engines.record.step_history import read_history
from studio.config.loading import LoadedRun, load_run
from studio.evaluation.try_problem import Trial
from studio.run.library import choose_library


def suggest_problem(
    loaded: LoadedRun,
    workspace: Workspace,
    run: RunDir | None,
    library: str | None,
    without: str | None,
) -> str | None:
    """One that practice began with failing, or that an experience was drawn from; None: any."""
    if without is not None:
        return _learned_from(loaded, workspace, library, without)
    return None if run is None else _unsolved_problem(run)


def _unsolved_problem(run: RunDir) -> str | None:
    """The first problem that at least half of its first tries failed; None: there is none."""
    for _, step in sorted(read_history(run).steps.items()):
        for position, name in enumerate(step.problems):
            if _mean_reward(step, position) <= 0.5:
                return name
    return None


def _mean_reward(step: StepHistory, position: int) -> float:
    """Of the tries of a problem that were judged; `math.inf` without any."""
    tried = [one.reward for (at, _), one in step.rollouts.items() if at == position]
    rewards = [reward for reward in tried if reward is not None]
    return sum(rewards) / len(rewards) if rewards else inf


def _learned_from(
    loaded: LoadedRun, workspace: Workspace, given: str | None, name: str
) -> str | None:
    """Of the problems of the data that an experience was drawn from the one that failed most.

    None: none is known.
    """
    found, _ = choose_library(loaded, workspace, given)
    experience = found.get(name) if found is not None else None
    for mark in experience.history[:1] if experience else ():
        run = workspace.runs_folder / mark.run
        if mark.run and run.is_dir() and loaded.config.data.practice is not None:
            here = {p.id for p in read_problems(loaded.data_path(loaded.config.data.practice))}
            step = read_history(RunDir(run)).steps.get(mark.step)
            if step is not None:
                # `s1p0r2`, `s1p5r0`: the position of each problem in its batch
                places = {int(one.partition("p")[2].partition("r")[0]) for one in mark.evidence}
                known = [at for at in sorted(places) if step.problems[at] in here]
                hardest = min(known, key=partial(_mean_reward, step), default=None)
                return None if hardest is None else step.problems[hardest]
    return None


def trials_of(
    loaded: LoadedRun,
    run: RunDir | None,
    problem: Problem,
    workspace: Workspace,
    library: str | None,
    left: str | None,
    runfile: str,
    overrides: Sequence[str],
) -> dict[str, Trial]:
    """The problem with the library; before and after a run; or with and without an experience.

    Raises ConfigError: both were asked for, or the library does not hold the one to be `left` out.
    """
    if run is not None:
        if left is not None:
            cause = "--versus compares before and after, and not with and without an experience."
            raise ConfigError("--without", cause, "Give one of the two.")
        return _before_and_after(loaded, run, problem, workspace, library, runfile, overrides)
    found, called = choose_library(loaded, workspace, library)
    whole = Trial(loaded, problem, found, called)
    if left is None:
        return {"": whole}
    if found is None or found.get(left) is None:
        move = "Give an id of it, or name another --library."
        cause = "no library is in the prompt." if found is None else f"{called} does not hold it."
        raise ConfigError(f"--without {left}", cause, move)
    kept = replace(found, experiences=tuple(e for e in found.experiences if e.id != left))
    without = Trial(loaded, problem, kept, f"{called} without {left}")
    return {f"with {left}": whole, f"without {left}": without}


def _before_and_after(
    loaded: LoadedRun,
    run: RunDir,
    problem: Problem,
    workspace: Workspace,
    library: str | None,
    runfile: str,
    overrides: Sequence[str],
) -> dict[str, Trial]:
    """The problem as the run began, and with what it has learned: weights, or a library.

    The run file is read again with more settings.
    """

    def load(more: str) -> LoadedRun:
        again = load_run(
            runfile, [*overrides, more], workspace.path, keyless=is_played(loaded.tape)
        )
        return replace(again, tape=loaded.tape)

    first, last, learned = loaded, loaded, library
    if loaded.config.trains:
        began = load_run(str(run.run_file), [], workspace.path, keyless=True).config.policy.adapter
        if began is not None:  # as after fine-tuning, which another run did
            first = load(f"policy.adapter={began}")
        last = load(f"policy.adapter=run:{run.run}")
    if loaded.config.practice.reflects:
        learned = f"{run.run}@last"
    return {
        "before": Trial(first, problem, *choose_library(first, workspace, library)),
        "after": Trial(last, problem, *choose_library(last, workspace, learned)),
    }
