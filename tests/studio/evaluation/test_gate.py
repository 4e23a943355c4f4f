"""`studio gate`: open operations of a run are tried, and the review shows what came of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.library import Library
from engines.core.types import Decision, Operation
from engines.pipeline.context import RunContext
from engines.pipeline.reviewers import HumanReviewer
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from engines.record.scores import ScoreBook
from studio.session.requests import TryOperations
from studio.session.server import LivingRun
from tests.studio.session.test_link import connected
from tests.support.answering import Answering
from tests.support.harness import practised
from tests.support.processes import SMALL, running
from tests.support.run_studio import studio

OPEN = ("practice.epochs=1", "practice.group_size=3")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A run whose first lesson waits for a person; no process of it goes on."""
    folder = tmp_path / "practice"
    asyncio.run(practised(folder, *OPEN, reviewers=[HumanReviewer(0.01)]))
    return folder


def calls(workspace: Path) -> int:
    return Workspace(workspace).run("rehearsal").state().total_usage.calls


def test_what_it_takes_and_could_see_is_told_before(workspace: Path) -> None:
    before = calls(workspace)
    told = studio("gate", "rehearsal", "--dry-run", workspace=workspace)
    assert "on 24 problems (of 40 wanted, no more are left), 4 tries each at" in told.stdout
    assert "would likely show 0." in told.stdout
    facts = json.loads(
        studio("gate", "rehearsal", "--dry-run", "--k", "8", "--json", workspace=workspace).stdout
    )
    assert facts["k"] == 8 and facts["smallest_effect"] < 0.25
    assert f"about {facts['tokens'] // 2:,} tokens" in told.stdout and facts["cost_usd"] is None
    assert calls(workspace) == before


def test_each_verdict_is_journalled_and_stands_in_the_review(workspace: Path) -> None:
    done = studio("gate", "rehearsal", "op1.1", "--problems", "16", workspace=workspace)
    assert done.code == 0, done.stderr
    assert "op1.1 add: helps, +0." in done.stdout and "on 16 problems" in done.stdout
    paid = Workspace(workspace).run("rehearsal").state().spent_on["gate"]
    assert f"{paid.calls} calls, {paid.tokens:,} tokens" in done.stdout
    review = studio("review", workspace=workspace, typed="q\n").stdout
    assert "flag      helps: +0." in review
    state = Workspace(workspace).run("rehearsal").state()
    assert [one.operations for one in state.effects] == [("op1.1",)]
    assert state.spent_on["gate"].calls == state.effects[0].effect.usage.calls
    assert state.status == "held"


def test_what_was_tried_is_not_tried_again_and_other_problems_are(workspace: Path) -> None:
    first = studio("gate", "rehearsal", "op1.1", "--json", workspace=workspace)
    paid = calls(workspace)
    again = studio("gate", "rehearsal", "op1.1", "--json", workspace=workspace)
    assert json.loads(again.stdout) == json.loads(first.stdout) and calls(workspace) == paid
    told = studio("gate", "rehearsal", "op1.1", "op1.1", workspace=workspace)
    assert "nothing to try" in told.stderr and "; known already" in told.stdout
    other = studio("gate", "rehearsal", "op1.1", "--data", "math-tools", workspace=workspace)
    assert other.code == 0 and "cannot tell" in other.stdout and calls(workspace) > paid
    # Fewer tries are another verdict; they are all known, so that it is free.
    before = Workspace(workspace).run("rehearsal").state().spent_on["gate"].calls
    fewer = studio("gate", "rehearsal", "op1.1", "--k", "2", workspace=workspace)
    assert fewer.code == 0 and "0 calls" in fewer.stdout, fewer.stdout
    assert Workspace(workspace).run("rehearsal").state().spent_on["gate"].calls == before


def test_a_run_with_nothing_open_says_so(workspace: Path) -> None:
    asyncio.run(practised(workspace, *OPEN, review="auto"))
    done = studio("gate", "rehearsal", workspace=workspace)
    assert (done.code, done.stdout) == (0, "run rehearsal: no open operation changes a wording\n")


def test_a_held_out_set_and_too_few_problems_are_refused(workspace: Path) -> None:
    few = studio("gate", "rehearsal", "--problems", "3", workspace=workspace)
    assert few.code == 2 and "--problems" in few.stderr
    names = ("--problems", "20", "--data", "arithmetic-heldout")
    seen = studio("gate", "rehearsal", *names, workspace=workspace)
    assert seen.code == 2 and "proves nothing any more" in seen.stderr


def test_a_run_that_somebody_else_holds_is_left_alone(workspace: Path) -> None:
    with write_lock(workspace / "runs/rehearsal", who="somebody"):
        done = studio("gate", "rehearsal", workspace=workspace)
    assert done.code == 2 and "runs/rehearsal" in done.stderr
    assert Workspace(workspace).run("rehearsal").state().effects == []


def test_a_run_that_tries_says_before_what_it_takes_and_could_see(tmp_path: Path) -> None:
    folder, gated = tmp_path / "practice", "review.gate={problems: 16, k: 2}"
    words = ("headless", "rehearsal", *OPEN, "data.truncate=24", gated)
    dry = json.loads(studio(*words, "--dry-run", "--json", workspace=folder).stdout)
    stages = {one["stage"]: one for one in dry["stages"]}
    # 3 steps: 32 tries without any operation, and of two operations half as many each
    assert stages["gate"]["calls"]["likely"] == 3 * (32 + 32)
    run = studio(*words, "evaluation.do_eval=false", workspace=folder)
    told = "gate: 1 operation on 16 problems, 2 tries each at most: 64 rollouts or fewer; would"
    assert told in run.stderr and run.stderr.index(told) < run.stderr.index("step 1 of")
    assert "step 1: op1.1 tried: " in run.stderr


def test_a_living_run_tries_by_itself_and_refuses_what_it_cannot(tmp_path: Path) -> None:
    folder = tmp_path / "practice"
    data = "review.gate.data=arithmetic-larger"  # of its eight problems few are outside a batch
    with running(folder, "rehearsal", *SMALL, data, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        run = Workspace(folder).run("rehearsal")
        with connected(run) as client:
            assert "cannot be read" in client.ask("gate", operations=1)["cause"]
            assert "not open" in client.ask("gate", operations=["op7.7"])["cause"]
            facts = client.find("gate", operations=["op1.1"])
            assert (facts["operations"], facts["problems"], facts["k"]) == (1, 40, 4)
            assert "tried already" in client.ask("gate", operations=["op1.2"])["cause"]
            process.until("EffectMeasured", operations=["op1.1"])
            assert client.find("attach", drive=True, who="ann")["driver"]["mine"]
            with connected(run) as other:
                refused = other.ask("gate", operations=["op1.2"])
                assert "ann decides on a screen" in refused["cause"]
        asked = studio("gate", "rehearsal", "op1.2", workspace=folder)
        assert asked.code == 0 and "op1.2 add: " in asked.stdout and "40 problems" in asked.stderr
        assert [one.operations for one in run.state().effects] == [("op1.1",), ("op1.2",)]
        again = studio("gate", "rehearsal", "op1.2", workspace=folder)  # and does not wait for ever
        assert again.code == 0 and "; known already" in again.stdout
        other = studio("gate", "rehearsal", "op1.2", "--k", "2", workspace=folder)
        assert other.code == 2 and "the settings it began with" in other.stderr
        assert process.child.poll() is None


def test_a_living_run_without_enough_problems_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "practice"
    most = ("practice.epochs=1", "practice.group_size=3", "practice.batch_size=26")
    with running(folder, "rehearsal", *most, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        refused = studio("gate", "rehearsal", "op1.1", workspace=folder)
    assert refused.code == 2 and "too few problems outside a batch" in refused.stderr
    assert "review.gate.data" in refused.stderr


async def test_a_trial_that_fails_beside_a_review_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []

    async def ask_while_held(context: RunContext) -> None:
        run = LivingRun(replace(context, tell=said.append))
        await TryOperations(("op1.1",)).perform(run)
        while not said:
            await asyncio.sleep(0)
        status = run.status()
        assert (status["trying"], status["trial_failure"]) == (False, "no room on the disk")
        run.close()

    broken = RuntimeError("no room on the disk")

    def change(context: RunContext) -> RunContext:
        assert context.effects is not None

        def refuse(*_: object) -> ScoreBook:
            raise broken

        changed = replace(context, effects=replace(context.effects, book=refuse))
        reviewer.context = changed
        return changed

    reviewer = AsksWhileHeld(ask_while_held)
    await practised(tmp_path / "practice", *OPEN, reviewers=[reviewer], change=change)
    assert said == ["operations could not be tried: no room on the disk"]


def test_who_waits_for_a_trial_that_failed_hears_why(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Answering):
        def __init__(self, *_: object, **__: object) -> None: ...

        async def messages(self) -> AsyncIterator[object]:
            for nothing in ():
                yield nothing

        async def try_operations(self, names: Sequence[str]) -> dict[str, Any]:
            shares = {"problems": 8, "problems_wanted": 8, "k": 1, "smallest_effect": None}
            return {"operations": len(names), "most_rollouts": 16, **shares}

        async def control(self, do: str) -> dict[str, Any]:
            return {"trying": False, "trial_failure": "no room on the disk"}

        async def close(self) -> None: ...

    monkeypatch.setattr("studio.session.live.LiveSession", Failing)
    monkeypatch.setattr("studio.session.control_socket.is_alive", lambda run: True)
    done = studio("gate", "rehearsal", "op1.1", workspace=workspace)
    assert done.code == 2 and "could not be tried: no room on the disk" in done.stderr


class AsksWhileHeld:
    """A reviewer that has something asked of the run before it approves everything."""

    name = "asks"
    context: RunContext

    def __init__(self, ask: Callable[[RunContext], Awaitable[None]]) -> None:
        self._ask, self._asked = ask, False

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        if not self._asked:
            self._asked = True
            await self._ask(self.context)
        for operation in operations:
            yield Decision(operation.id, "approve", reviewer=self.name)
