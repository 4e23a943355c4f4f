"""The models, the verifier and the record that measure outside a run, opened.

What `studio eval` and `studio gate` have in common.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from engines.core.errors import CallFailed
from engines.core.protocols import Verifier
from engines.core.types import Problem, Rollout, Usage, Verdict
from engines.pipeline.control import Outage
from engines.pipeline.evaluation.evaluate import MeasurementSetup
from engines.policies.limits import PausablePolicy, Slots
from engines.record.cassette import open_cassette
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from studio.config.loading import LoadedRun
from studio.config.settings.run import VerifierConfig
from studio.run.budget import apply_budget, open_budget
from studio.run.held_out import measuring_setup
from studio.run.linter import count_vectors
from studio.run.models import Roles, Tell, open_roles, rollout_slots, tell_each
from studio.run.verifier import open_run_verifier

EvalStep = Literal["all", "rollout", "judge"]
GivenUp = Literal["budget", "failed"]
"""Why measuring ended before it was done."""


async def open_measuring(
    loaded: LoadedRun,
    workspace: Workspace,
    records: Path,
    stack: AsyncExitStack,
    tell: Tell,
    give_up: Callable[[GivenUp, str], None],
    *,
    judged: Sequence[Sequence[Problem]],
    step: EvalStep = "all",
    temperature: float | None = None,
    account: Callable[[Usage], None] = lambda _: None,
) -> "tuple[MeasurementSetup, RecordLedger, UnjudgedTries | None]":
    """Open all that rollouts outside a run need; what is opened is closed with the stack.

    Replies go to `records`, which the caller has locked. `give_up` must cancel the caller's task;
    `account` gets what was paid. Tries that are to be judged later are counted by the last result.
    """
    config = loaded.config
    budget = open_budget(loaded, config, records, partial(give_up, "budget"))
    unjudged = UnjudgedTries() if step == "rollout" else None
    asked = config if unjudged is None else config.model_copy(update={"verifier": _ASKS_NONE})
    what = f"an evaluation of {config.exp_id}"
    tape = open_cassette(loaded.tape, what, stack, loaded.mask, tell, resumes=True)
    roles = open_roles(asked, stack, tell, workspace=workspace.path, cassette=tape)
    roles = apply_budget(roles, config, budget)
    roles.acting.folder = programs = records / "programs"
    stack.callback(shutil.rmtree, programs, ignore_errors=True)  # the unscored are made again
    ledger = RecordLedger(records, config.seed, tell=tell, mask=loaded.mask)
    stack.callback(lambda: account(ledger.paid))
    stack.push_async_callback(ledger.aclose)
    roles.acting.reserve = lambda wanted: count_vectors(wanted, budget, ledger)
    slots = Slots(config.practice.concurrency, tell)
    verifier: Verifier = unjudged or open_run_verifier(
        loaded, workspace, roles, ledger, slots, sets=judged, stack=stack
    )
    await verifier.check()
    tell_each(tell, (await roles.acting.check()).get("absent", ()))
    roles, outage = await _ready_roles(step, roles, partial(give_up, "failed"))
    stack.callback(lambda: tell_each(tell, roles.notes))
    stack.callback(roles.tell_strays, tell)
    setup = measuring_setup(
        config,
        roles,
        ledger,
        rollout_slots(config, slots),
        verifier,
        outage=outage,
        temperature=temperature,
    )
    return setup, ledger, unjudged


async def _ready_roles(
    step: EvalStep, roles: Roles, give_up: Callable[[str], None]
) -> tuple[Roles, Outage]:
    """The models once they answer; where only what was tried is judged, none need."""
    if step != "judge":
        await roles.ping()
        return roles, Outage(give_up)
    # What was not tried is no sign that nothing works.
    return replace(roles, policy=PausablePolicy(roles.policy, refuse_new_try)), Outage(
        lambda _: None
    )


_ASKS_NONE = VerifierConfig(name="math")
"""A verifier that no model is opened for."""


@dataclass(slots=True)
class UnjudgedTries:
    """A verifier that leaves every try for later, and counts those that can be judged."""

    count: int = 0

    async def check(self) -> None:
        """There is nothing to check."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        self.count += sum(rollout.attempt.answer is not None for rollout in rollouts)
        return tuple(Verdict(None) for _ in rollouts)

    async def aclose(self) -> None:
        """There is nothing to close."""


async def refuse_new_try() -> None:
    """What a policy of which only recorded replies are had waits for: they need not wait."""
    raise CallFailed("refused", "it was not tried yet, and --step judge makes no tries")
