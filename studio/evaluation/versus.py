"""One problem twice: before and after a run (`studio try --versus`), or without an experience."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.core.errors import ConfigError
from engines.core.types import Problem
from engines.record.run_dir import RunDir, Workspace
from engines.record.step_history import read_history
from studio.config.loading import LoadedRun, load_run
from studio.evaluation.try_problem import Trial
from studio.run.library_start import choose_library


def unsolved_problem(run: RunDir) -> str | None:
    """The first problem that at least half of its first tries failed; None: there is none."""
    for _, step in sorted(read_history(run).steps.items()):
        for position, name in enumerate(step.problems):
            tried = [r.reward for (at, _), r in sorted(step.rollouts.items()) if at == position]
            rewards = [reward for reward in tried if reward is not None]
            if rewards and sum(rewards) <= len(rewards) / 2:
                return name
    return None


def with_and_without(
    loaded: LoadedRun, problem: Problem, workspace: Workspace, library: str | None, name: str
) -> dict[str, Trial]:
    """The problem with the library, and with all of it but one experience.

    Raises ConfigError: it holds no experience of that id.
    """
    found, called = choose_library(loaded, workspace, library)
    kept = [] if found is None else [e for e in found.experiences if e.id != name]
    if found is None or len(kept) == len(found.experiences):
        move = "Give one of its ids." if found else "Give --library NAME with an id of it."
        raise ConfigError(f"--without {name}", f"{called} holds no such experience.", move)
    fewer = replace(found, experiences=tuple(kept))
    return {
        f"with {name}": Trial(loaded, problem, found, called),
        f"without {name}": Trial(loaded, problem, fewer, f"{called} without {name}"),
    }


def before_and_after(
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
        return load_run(runfile, [*overrides, more], workspace.path)

    first, last, learned = loaded, loaded, library
    if loaded.config.trains:
        began = load_run(str(run.run_file), [], workspace.path, keyless=True).config.policy.adapter
        if began is not None:  # as after fine-tuning, which another run did
            first = load([f"policy.adapter={began}"])
        last = load([f"policy.adapter=run:{run.run}"])
    if loaded.config.practice.reflects:
            first = load(f"policy.adapter={began}")
        last = load(f"policy.adapter=run:{run.run}")
    else:
        learned = f"{run.run}@last"
    return {
        "before": Trial(first, problem, *choose_library(first, workspace, library)),
        "after": Trial(last, problem, *choose_library(last, workspace, learned)),
    }
