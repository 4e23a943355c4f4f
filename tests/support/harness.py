"""Runs practice in process for tests, the way `studio headless` opens it."""

from __future__ import annotations

import os
import statistics
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from engines.agents.loops import SingleTurn
from engines.core import events as ev
from engines.core.codec import to_dict
from engines.core.events import event_to_dict
from engines.core.library import Library
from engines.core.protocols import Reviewer
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, Decision, Job, Operation, Problem, Rollout, Sampling
from engines.core.waiting import gather_all
from engines.data.dataset import read_problems
from engines.pipeline.context import RunContext
from engines.pipeline.step import practise
from engines.policies.limits import Slots
from engines.policies.open import open_policy
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger
from engines.record.run_dir import RunDir, Workspace
from engines.rollouts.manager import RolloutManager
from engines.verifiers.open import open_verifier
from studio.config.loading import LoadedRun, load_run
from studio.config.source import Source
from studio.run.assemble import open_run_context
from studio.run.new_or_resume import RunRequest, plan_run
from studio.secrets.output import remember

QUIET = ("evaluation.do_eval=false",)


@dataclass(frozen=True)
class Practised:
    """A run after its process let go of it."""

    state: RunState
    run: RunDir
    library: Library
    asked: int
    reused: int

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(e.id, e.text) for e in self.library.experiences]

    def decisions(self) -> list[dict[str, Any]]:
        """Every journalled decision without its time, in journal order."""
        events = (entry.event for entry in self.run.entries())
        made = [
            d for event in events if isinstance(event, ev.DecisionEvent) for d in event.decisions
        ]
        return [{k: v for k, v in to_dict(one).items() if k != "at"} for one in made]


_loaded: dict[tuple[object, ...], tuple[Path, LoadedRun]] = {}


def load_once(
    preset: str, overrides: tuple[str, ...], workspace: Path, environ: Mapping[str, str]
) -> LoadedRun:
    """As `load_run`, which is a third of a small run, and only once where it reads no file.

    None but those of the presets and the bundled data, that is, which no test changes.
    """
    own = any((workspace / name).exists() for name in ("configs", "datasets", "verifiers"))
    if own or any(os.sep in text for text in (preset, *overrides)):
        return load_run(preset, overrides, workspace, environ)
    asked = (preset, overrides, tuple(sorted(environ.items())), Path.cwd())
    if asked not in _loaded:
        loaded = load_run(preset, overrides, workspace, environ)
        if str(workspace) in repr(loaded.config):
            return loaded
        _loaded[asked] = workspace, loaded
    before, loaded = _loaded[asked]
    remember(loaded.secrets)
    here = {before / "datasets": workspace / "datasets"}
    return replace(loaded, roots=tuple(here.get(root, root) for root in loaded.roots))


async def practised(
    workspace: Path,
    *overrides: str,
    preset: str = "rehearsal",
    restart_step: int | None = None,
    accept_changes: bool = False,
    review: str | None = None,
    reviewers: Sequence[Reviewer] | None = None,
    open_journal: Callable[..., Journal] = Journal,
    change: Callable[[RunContext], RunContext] = lambda practice: practice,
    environ: dict[str, str] | None = None,
) -> Practised:
    """Start or resume a run and practise it to its end."""
    loaded = load_once(preset, (*QUIET, *overrides), workspace, environ or {})
    request = RunRequest(
        workspace=Workspace(workspace),
        source=Source(overrides, preset),
        restart_step=None if restart_step is None else str(restart_step),
        review=review,
        accept_changes=accept_changes,
    )
    plan = plan_run(request, loaded)
    async with AsyncExitStack() as stack:
        practice = await open_run_context(
            plan, stack, lambda _: None, open_journal=open_journal, reviewers=reviewers
        )
        practice = change(practice)
        await practise(practice)
        return Practised(
            practice.recorder.state,
            plan.run,
            practice.gate.library,
            practice.ledger.asked,
            practice.ledger.reused,
        )


async def heldout_rewards(
    library: Library | None, folder: Path, *, n: int = 200, seed: int = 11
) -> list[float]:
    """One rollout of each of the first n held-out problems, in order; None means no library."""
    config = load_run("rehearsal", QUIET, folder, {}).config
    problems = read_problems(Path(str(files("sample_data"))) / "arithmetic-heldout.jsonl", limit=n)
    async with AsyncExitStack() as stack:
        policy = open_policy("rehearsal")
        stack.push_async_callback(policy.aclose)
        verifier = open_verifier("math")
        stack.push_async_callback(verifier.aclose)
        ledger = RecordLedger(folder / "heldout", seed)
        stack.push_async_callback(ledger.aclose)
        agent = SingleTurn(config.agent.instructions, Sampling(0.7))
        manager = RolloutManager(agent, policy, ledger, Slots(16), 60.0)

        async def reward(position: int, problem: Problem) -> float:
            key = CallKey("evaluation", 0, 0, position, 0, problem=problem.id)
            job = Job(problem, library.guidance() if library else "", key, 0, 0)
            attempt, _ = await manager.roll_out(job)
            rollout = Rollout(
                attempt=attempt,
                epoch=0,
                step=0,
                position=position,
                index=0,
                seed=seed,
                policy_version=0,
                library_version=0,
            )
            (verdict,) = await verifier.verify(problem, (rollout,))
            assert verdict.reward is not None
            return verdict.reward

        return await gather_all(reward(at, problem) for at, problem in enumerate(problems))


def paired_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean paired difference: mean ± 1.96 · sd / √n."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    middle = statistics.fmean(differences)
    half = 1.96 * statistics.stdev(differences) / len(differences) ** 0.5
    return middle - half, middle + half


class ScriptedPerson:
    """Decides as told by `choose`, and remembers what it was asked."""

    name = "person"

    def __init__(self, choose: Callable[[Operation], Decision]) -> None:
        self._choose = choose
        self.asked: list[str] = []

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            self.asked.append(operation.id)
            yield self._choose(operation)


def comparable(run: RunDir) -> list[str]:
    """A journal in the sense in which equal runs have equal journals.

    Times, durations, process ids, run ids, sequence numbers, offsets, lengths, hashes and
    freely changeable settings are dropped; the rest is sorted by step, position, index
    and kind.
    """
    rows = []
    for entry in run.entries():
        data = _dropped(event_to_dict(entry.event))
        place = [data.get(name, -1) for name in ("step", "position", "index")]
        rows.append((*place, data["kind"], repr(data)))
    return [row[-1] for row in sorted(rows)]


_VARYING = {
    "at", "elapsed_s", "pid", "run", "exp_id", "library", "offset", "length", "digest",
    "content_hash", "prompt_hash", "refs", "settings", "seq",
}  # fmt: skip


def _dropped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _dropped(entry) for key, entry in value.items() if key not in _VARYING}
    return [_dropped(entry) for entry in value] if isinstance(value, list) else value
