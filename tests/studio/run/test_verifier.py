"""The verifier of a run: whom it may ask, how many at a time, and what says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from studio.config.loading import LoadedRun, load_run
from studio.config.scripted import is_rehearsal
from studio.run.acting import Acting
from studio.run.models import Roles, open_roles, open_run_verifier
from tests.support.builders import FakePolicy, a_problem, a_rollout

TEXT = "policy: rehearsal\ndata: {practice: sums}\nverifier: judge\n"


def loaded(folder: Path, text: str, *overrides: str) -> LoadedRun:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run(str(path), overrides, folder / "workspace", {}, cwd=folder)


class Counting(FakePolicy):
    """Answers a call once nothing else is ready to run; counts how many are under way."""

    now = peak = 0

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        self.now += 1
        self.peak = max(self.peak, self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1
        return Completion('{"reasoning": "", "correct": true}')


@pytest.mark.parametrize(
    ("override", "shared", "peak"),
    [("judge.temperature=0", 3, 3), ("judge.concurrency=2", 3, 2), ("judge.concurrency=5", 3, 5)],
)
async def test_a_judge_shares_the_runs_slots_unless_it_has_its_own(
    tmp_path: Path, override: str, shared: int, peak: int
) -> None:
    run = loaded(tmp_path, TEXT, override)
    policy = Counting()
    roles = Roles(policy, policy, policy, (policy,), Acting(run.config))
    ledger = RecordLedger(tmp_path / "records", 1)
    workspace = Workspace(tmp_path / "workspace")
    async with AsyncExitStack() as stack:
        verifier = open_run_verifier(run, workspace, roles, ledger, Slots(shared), stack=stack)
        verdicts = await verifier.verify(a_problem(), [a_rollout(index=n) for n in range(8)])
    await ledger.aclose()
    assert {verdict.reward for verdict in verdicts} == {1.0}
    assert policy.peak == peak


async def opened(run: LoadedRun) -> tuple[Roles, int]:
    async with AsyncExitStack() as stack:
        roles = open_roles(run.config, stack)
        return roles, len(roles.distinct)


async def test_a_judge_is_opened_where_it_is_set_or_asked_and_shares_the_policys_client(
    tmp_path: Path,
) -> None:
    roles, distinct = await opened(loaded(tmp_path, TEXT))
    assert roles.judge is roles.policy and distinct == 1
    roles, distinct = await opened(loaded(tmp_path, TEXT, "verifier=math"))
    assert roles.judge is None and distinct == 1
    own = "judge={model: 'openai:m', base_url: 'http://127.0.0.1:9/v1'}"
    roles, distinct = await opened(loaded(tmp_path, TEXT, "verifier=math", own))
    assert roles.judge is not None and distinct == 2  # the ping at the start reaches it


def test_a_scripted_judge_makes_a_run_a_rehearsal(tmp_path: Path) -> None:
    text = "policy: openai:m\njudge: rehearsal\ndata: {practice: sums}\n"
    assert is_rehearsal(loaded(tmp_path, text + "verifier: [math, judge]\n").config)
    assert not is_rehearsal(loaded(tmp_path, text + "verifier: math\n").config)


async def test_the_judges_own_temperature_is_asked_with(tmp_path: Path) -> None:
    run = loaded(tmp_path, TEXT, "judge.temperature=0.5", "policy.temperature=0.9")
    policy = FakePolicy().enqueue(['{"reasoning": "", "correct": true}'])
    ledger = RecordLedger(tmp_path / "records", 1)
    roles = Roles(policy, policy, policy, (policy,), Acting(run.config))
    workspace = Workspace(tmp_path / "workspace")
    async with AsyncExitStack() as stack:
        verifier = open_run_verifier(run, workspace, roles, ledger, Slots(1), stack=stack)
        await verifier.verify(a_problem(), [a_rollout()])
    await ledger.aclose()
    assert policy.samplings[0].temperature == 0.5
