"""`studio gate`: try open operations of a run, before anybody decides about them.

A living run tries them itself; of another one the models are opened here, under the run's lock.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from shlex import quote
from typing import Any

from engines.core.codec import fields_of, to_dict
from engines.core.errors import ConflictError
from engines.core.events import EffectMeasured, StageEntered
from engines.core.state.run_state import RunState
from engines.core.types import Operation
from engines.pipeline.effect.effect_gate import EffectGate, open_trials
from engines.pipeline.evaluation.evaluate import MeasurementSetup
from engines.record.run_dir import RunDir
from studio import exit_codes
from studio.evaluation.evaluate import EarlyEnd, open_measuring
from studio.render.json import print_json, print_result
from studio.render.lines import tell_next, to_stderr
from studio.render.words import usage_text
from studio.run.held_out import (
    LazyLinter,
    evaluated_sets,
    open_effect_gate,
    prompt_writer,
    trial_text,
    tried_pool,
)
from studio.run.models import weights_digest
from studio.run.new_or_resume import RunPlan, RunRequest, plan_run
from studio.session.control_socket import is_alive
from studio.session.live import LiveSession
from studio.session.offline import LockedRun, lock_run
from studio.session.requests import TryOperations, no_trials_error

POLL_S = 1.0
"""Between two looks at what a living run has tried."""


def gate_run(
    request: RunRequest, run: RunDir, names: Sequence[str], *, dry_run: bool, json: bool
) -> int:
    """Try operations, and print what came of each; returns the exit code."""
    wanted = open_trials(run.state(), tuple(dict.fromkeys(names)))
    if not wanted:
        print_result([], f"run {run.run}: no open operation changes a wording", json=json)
        return exit_codes.DONE
    if is_alive(run) and not dry_run:
        if request.source.overrides:
            cause = "a process of the run goes on, which tries by the settings it began with."
            move = f"Leave it out, or stop the run first: studio ctl stop {quote(run.run)}"
            raise ConflictError("--problems, --k or --data", cause, move)
        tried = asyncio.run(_have_tried(run, [op.id for op in wanted]))
        return _print_effects(run, wanted, json=json, paid_before=not tried)
    plan = plan_run(request, request.load(), practises=False)
    gate = _describe_gate(plan)
    state = run.state()
    assert state.started is not None
    head = plan.workspace.library(state.started.library).head()
    draft = replace(head.commit(state.reviewed_operations).library, version=head.version)
    facts = gate.describe_asked(state, draft, wanted)
    if dry_run:
        print_result(facts, trial_text(facts), json=json)
        return exit_codes.DONE
    to_stderr(trial_text(facts))
    if not facts["operations"]:
        return _print_effects(run, wanted, json=json, paid_before=True)
    early, workspace = EarlyEnd(), plan.workspace
    linter = LazyLinter(workspace, run, to_stderr)
    with lock_run(workspace, run, linter, holder="`studio gate`") as locked:
        locked.gate.recorder.listen(_tell_trials(locked.state))
        try:
            locked.runner.run(_try_offline(plan, locked, [op.id for op in wanted], early))
        except asyncio.CancelledError:
            to_stderr(f"{early.reason}; the tries are kept, and the same command goes on")
    code = _print_effects(run, wanted, json=json)
    return early.exit_code if early.ended else code


async def _have_tried(run: RunDir, names: Sequence[str]) -> bool:
    """Ask the run's process, and wait until it has tried them; False: it had a verdict on each."""
    session = LiveSession(run, "studio gate", as_screen=False)
    listening = asyncio.create_task(_drain(session))
    try:
        facts = await session.send(TryOperations(tuple(names)))
        to_stderr(trial_text(facts))
        status: dict[str, Any] = {"trying": True}
        while is_alive(run) and status.get("trying"):
            status = await session.status()
            await asyncio.sleep(POLL_S if status.get("trying") else 0)
    finally:
        await session.close()
        await listening
    if failure := status.get("trial_failure"):
        move = "Mend it, and give the command again: what was tried is kept."
        raise ConflictError(f"run {run.run}", f"operations could not be tried: {failure}.", move)
    if not is_alive(run) and not all(map(run.state().effect_of, names)):
        move = "Give the command again: what was tried is kept."
        raise ConflictError(f"run {run.run}", "its process ended before all was tried.", move)
    return bool(facts["operations"])


async def _drain(session: LiveSession) -> None:
    async for _ in session.messages():
        pass


def _describe_gate(plan: RunPlan) -> EffectGate:
    """What would be tried on what, with nothing opened."""
    gate = _open_gate(plan, None)
    if gate is None or plan.loaded.config.trains:  # its weights are with the run's process
        raise no_trials_error(plan.run.run)
    return gate


def _open_gate(plan: RunPlan, setup: MeasurementSetup | None) -> EffectGate | None:
    config = plan.loaded.config
    pool = tried_pool(plan.loaded, plan.problems, evaluated_sets(plan.loaded))
    return open_effect_gate(
        plan, pool, setup, prompt_writer(config), lambda: weights_digest(config.policy)
    )


async def _try_offline(
    plan: RunPlan, locked: LockedRun, names: Sequence[str], early: EarlyEnd
) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(early.cancel_on_signal())
        loaded = plan.loaded
        setup, _, _ = await open_measuring(
            loaded,
            plan.workspace,
            plan.run.records,
            stack,
            to_stderr,
            early,
            judged=(plan.problems,),
            temperature=loaded.config.practice.temperature,
        )
        gate = _open_gate(plan, setup)
        assert gate is not None
        base = replace(locked.gate.draft(), version=locked.gate.library.version)
        await gate.try_asked(locked.gate.recorder, base, open_trials(locked.state, names))


def _tell_trials(state: RunState) -> Callable[[object], None]:
    """Return a listener that tells how far the tries are, and each verdict."""
    last_stage: StageEntered | None = None
    told = len(state.effects)

    def tell(_: object) -> None:
        nonlocal last_stage, told
        stage = state.live.stage
        if stage is not None and stage is not last_stage and stage.stage == "gate":
            last_stage = stage
            if stage.detail["made"]:
                to_stderr(f"  {stage.detail['made']} of at most {stage.detail['most']} tries")
        for measured in state.effects[told:]:
            to_stderr(f"{', '.join(measured.operations)}: {measured.effect.verdict}")
        told = len(state.effects)

    return tell


def _print_effects(
    run: RunDir, wanted: Sequence[Operation], *, json: bool, paid_before: bool = False
) -> int:
    state = run.state()
    if json:
        print_json([_effect_data(state, op) for op in wanted])
        return exit_codes.DONE
    rows, priced = [], list[EffectMeasured]()
    for op in wanted:
        found = state.effect_of(op.id)
        said = "not tried: it does not fit the library as it is, or with what helps"
        if found is not None:
            price = "known already" if paid_before else usage_text(found.effect.usage)
            price = "tried with it" if found in priced and not paid_before else price
            priced.append(found)
            said = f"{found.effect.verdict}, {found.effect.text}; {price}"
        rows.append(f"{op.id} {op.kind} {op.target or ''}".rstrip() + f": {said}")
    print("\n".join(rows))
    tell_next(f"studio review {quote(run.run)}", run.path.parents[1])
    return exit_codes.DONE


def _effect_data(state: RunState, op: Operation) -> dict[str, Any]:
    found = state.effect_of(op.id)
    said = {"operation": op.id, **fields_of(op, "kind", "target", "text")}
    return said | ({"effect": None} if found is None else to_dict(found))
