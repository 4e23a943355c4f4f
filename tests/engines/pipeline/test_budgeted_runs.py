"""A run with a budget: where it ends, what it keeps, and that it goes on as if undisturbed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.core import events as ev
from engines.core.errors import ConfigError
from engines.core.types import NO_USAGE, Usage
from engines.pipeline.context import RunContext
from engines.policies.rehearsal.server import answer_request
from engines.record import lines
from engines.record.derived.catalogue import run_row
from engines.record.run_dir import RunDir
from studio.config.loading import load_run
from studio.run.models import open_budget
from tests.support.fake_endpoint import Exchange, fake_endpoint
from tests.support.harness import Practised, practised
from tests.support.usage import read_usage

SMALL = ("data.truncate=12", "practice.batch_size=6", "practice.group_size=3", "practice.epochs=1")
PRICED = (
    "policy.price_in_usd_per_mtok=1",
    "policy.price_out_usd_per_mtok=4",
    "policy.max_tokens=300",
)


def recorded(run: RunDir) -> tuple[int, int, float]:
    """Calls, tokens and dollars that the records say were paid."""
    usages = [usage for _, usage in read_usage(run.records)]
    cost = sum(usage.cost_usd or 0.0 for usage in usages)
    return sum(u.calls for u in usages), sum(u.tokens for u in usages), cost


def endings(found: Practised) -> list[str]:
    return [e.event.how for e in found.run.entries() if isinstance(e.event, ev.RunEnded)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Practised:
    """The run that no budget ends."""
    return asyncio.run(practised(tmp_path_factory.mktemp("straight"), *SMALL, *PRICED))


@pytest.mark.parametrize(
    ("first", "raised"),
    [
        ("budget.calls=20", "budget.calls=500"),
        ("budget.tokens=6000", "budget.tokens=500000"),
        ("budget.cost_usd=0.008", "budget.cost_usd=1"),
    ],
)
async def test_a_run_whose_budget_is_raised_ends_as_an_undisturbed_one(
    straight: Practised, tmp_path: Path, first: str, raised: str
) -> None:
    workspace = tmp_path / "budget"
    cut = await practised(workspace, *SMALL, *PRICED, first)
    assert (cut.state.ending, cut.state.lost) == ("budget", {})
    name, _, limit = first.partition("=")
    assert cut.state.reason.startswith(f"{name}={limit}: ")
    key = ("budget.calls", "budget.tokens", "budget.cost_usd").index(name)
    assert 0 < recorded(cut.run)[key] <= float(limit)

    again = await practised(workspace, *SMALL, *PRICED, first)
    assert (again.state.ending, recorded(again.run)) == ("budget", recorded(cut.run))

    done = await practised(workspace, *SMALL, *PRICED, raised)
    assert endings(done) == ["budget", "budget", "finished"]
    assert done.texts == straight.texts
    assert done.decisions() == straight.decisions()
    assert recorded(done.run)[:2] == recorded(straight.run)[:2]  # nothing was paid for twice


async def test_replies_that_the_journal_does_not_name_count_as_spent(tmp_path: Path) -> None:
    cut = await practised(tmp_path, *SMALL, "budget.calls=20")
    journal = cut.run.journal
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]))  # all that names a reply is gone
    again = await practised(tmp_path, *SMALL, "budget.calls=20")
    assert (again.state.ending, recorded(again.run)[0]) == ("budget", 20)
    assert "20 spent" in again.state.reason


async def test_a_budget_that_is_just_enough_changes_nothing(
    straight: Practised, tmp_path: Path
) -> None:
    calls = recorded(straight.run)[0]
    exact = await practised(tmp_path / "exact", *SMALL, *PRICED, f"budget.calls={calls}")
    assert (exact.state.ending, exact.texts) == ("finished", straight.texts)
    short = await practised(tmp_path / "short", *SMALL, *PRICED, f"budget.calls={calls - 1}")
    assert (short.state.ending, recorded(short.run)[0]) == ("budget", calls - 1)


async def test_calls_of_a_judge_and_of_an_evaluation_come_out_of_the_same_budget(
    tmp_path: Path,
) -> None:
    # One at a time, so that a try is judged before the next one is made.
    judged = ("verifier=judge", "judge=rehearsal", "practice.concurrency=1")
    found = await practised(tmp_path / "judge", *SMALL, *judged, "budget.calls=25")
    assert found.state.ending == "budget"
    assert recorded(found.run)[0] <= 25
    asked = {
        entry.event.verdict.usage.calls
        for entry in found.run.entries()
        if isinstance(entry.event, ev.RolloutJudged)
    }
    assert 1 in asked
    held_out = ("evaluation.do_eval=true", "evaluation.limit=30", "budget.calls=25")
    found = await practised(tmp_path / "eval", *SMALL, *held_out)
    assert (found.state.ending, found.state.step, recorded(found.run)[0]) == ("budget", 0, 25)


async def test_a_budget_in_dollars_needs_the_price_of_every_role(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"budget\.cost_usd.*policy.*unknown.*price_in_usd"):
        await practised(tmp_path, *SMALL, "budget.cost_usd=1")
    with pytest.raises(ConfigError, match=r"what reflector.*reflector\.price_in_usd_per_mtok"):
        await practised(tmp_path, *SMALL, *PRICED, "reflector=rehearsal", "budget.cost_usd=1")
    assert not (tmp_path / "runs").exists()


async def test_prices_of_a_rehearsal_are_money_and_without_them_the_cost_is_unknown(
    straight: Practised, tmp_path: Path
) -> None:
    free = await practised(tmp_path / "free", *SMALL)
    assert free.state.usage.cost_usd is None
    used = straight.state.usage
    expected = (used.prompt_tokens * 1 + used.completion_tokens * 4) / 1e6
    assert used.cost_usd == pytest.approx(expected)


async def test_a_stop_after_the_step_does_not_hide_that_the_budget_is_spent(
    tmp_path: Path,
) -> None:
    """The step can never end, so waiting for its end would be waiting for ever."""

    def stopping(practice: RunContext) -> RunContext:
        practice.recorder.listen(
            lambda event: (
                practice.control.stop("after this step", after_step=True)
                if isinstance(event, ev.RolloutFinished)
                else None
            )
        )
        return replace(practice)

    found = await practised(tmp_path, *SMALL, "budget.calls=8", change=stopping)
    assert found.state.ending == "budget"


def all_recorded(run: RunDir) -> Usage:
    """Sums of prices are not exact: the order they are added in shows."""
    found = sum((usage for _, usage in read_usage(run.records)), NO_USAGE)
    cost_usd: Any = None if found.cost_usd is None else pytest.approx(found.cost_usd)
    return replace(found, cost_usd=cost_usd)


def stopping_at(event: type[object], n: int = 1) -> Callable[[RunContext], RunContext]:
    def change(practice: RunContext) -> RunContext:
        seen = itertools.count(1)

        def stop(heard: object) -> None:
            if isinstance(heard, event) and next(seen) == n:
                practice.control.stop("Ctrl-C")

        practice.recorder.listen(stop)
        return practice

    return change


async def test_what_a_run_says_it_spent_is_what_its_records_hold_however_it_ends(
    tmp_path: Path,
) -> None:
    run = (*SMALL, *PRICED, "evaluation.do_eval=true", "evaluation.limit=6", "evaluation.k=2")
    for limit in ("budget.calls=9", "budget.calls=25", "budget.calls=60"):  # evaluation, step, step
        cut = await practised(tmp_path, *run, limit)
        assert cut.state.ending == "budget"
        assert cut.state.total_usage == all_recorded(cut.run)
    for event in (ev.RolloutFinished, ev.GroupReflected, ev.EvaluationProgressed):
        cut = await practised(tmp_path, *run, change=stopping_at(event, 2))
        assert cut.state.total_usage == all_recorded(cut.run)
        assert run_row(cut.run)["tokens"] == cut.state.total_usage.tokens
    done = await practised(tmp_path, *run)
    assert done.state.ending == "finished"
    assert done.state.total_usage == all_recorded(done.run)


class Once:
    """Hangs at the first request, and answers as a rehearsal does from then on."""

    def __init__(self) -> None:
        self.hung = False

    async def __call__(self, exchange: Exchange) -> None:
        body = exchange.request.body
        if body.get("max_tokens") != 1 and not self.hung:
            self.hung = True
            await asyncio.get_running_loop().create_future()
        made = answer_request("POST", exchange.request.path, orjson.dumps(body))
        whole = b"".join([piece async for piece in made.body])
        await exchange.head(made.status, made.content_type, {"content-length": str(len(whole))})
        await exchange.write(whole)

    hangs = True


async def test_a_call_that_was_cut_counts_after_a_resume_too(tmp_path: Path) -> None:
    once = Once()
    async with fake_endpoint(once) as fake:
        model = ("policy.model=openai:rehearsal", f"policy.base_url={fake.base_url}")
        run = (*SMALL, *model, "policy.api_key=none", "practice.concurrency=2", "budget.calls=500")
        cut = await practised(tmp_path, *run, change=stopping_at(ev.RolloutFinished, 3))
        lost = [r for r in records(cut.run) if r["lost"]]
        assert "cancelled" in {record["lost"] for record in lost}
        assert cut.state.total_usage == all_recorded(cut.run)
        loaded = load_run("rehearsal", [*run], tmp_path, {})
        budget = open_budget(loaded, loaded.config, cut.run.records, lambda _: None)
        assert budget is not None and budget.spent.calls == cut.state.total_usage.calls
        done = await practised(tmp_path, *run)
    assert done.state.ending == "finished"
    assert done.state.total_usage == all_recorded(done.run)


def records(run: RunDir) -> list[dict[str, Any]]:
    return [
        orjson.loads(line.body)
        for path in sorted(run.records.glob("*.jsonl"))
        for line in lines.read(path, chained=False).lines
    ]


async def test_a_budget_leaves_an_endpoint_that_takes_few_at_a_time_its_say(
    tmp_path: Path,
) -> None:
    """Through the very parts that a run has: the slots fall, and nothing is lost."""
    held: list[RunContext] = []

    def keep(practice: RunContext) -> RunContext:
        held.append(practice)
        return practice

    narrow = NarrowRehearsal(3)
    async with fake_endpoint(narrow) as fake:
        model = ("policy.model=openai:rehearsal", f"policy.base_url={fake.base_url}")
        run = (*SMALL, *model, "policy.api_key=none", "policy.max_retries=0")
        wide = ("practice.concurrency=32", "budget.calls=500")
        done = await practised(tmp_path, *run, *wide, change=keep)
    assert (done.state.ending, dict(done.state.lost)) == ("finished", {})
    assert narrow.refused > 0
    (practice,) = held
    assert practice.rollouts.slots.limit < 32


class NarrowRehearsal:
    """A rehearsal that takes so many at a time."""

    def __init__(self, most: int) -> None:
        self.most, self.now, self.refused = most, 0, 0

    async def __call__(self, exchange: Exchange) -> None:
        if self.now >= self.most:
            self.refused += 1
            await exchange.plain(429, b"{}", {"retry-after-ms": "20"})
            return
        self.now += 1
        try:
            for _ in range(20):  # turns of the loop, in which others come
                await asyncio.sleep(0)
            made = answer_request(
                "POST", exchange.request.path, orjson.dumps(exchange.request.body)
            )
            whole = b"".join([piece async for piece in made.body])
            length = {"content-length": str(len(whole))}
            await exchange.head(made.status, made.content_type, length)
            await exchange.write(whole)
        finally:
            self.now -= 1
