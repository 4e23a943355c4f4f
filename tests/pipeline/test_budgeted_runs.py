"""A run with a budget: where it ends, what it keeps, and that it goes on as if undisturbed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConfigError
from engines.pipeline.practice import Practice
from engines.record.ledger import spent
from engines.record.run_dir import RunDir
from tests.pipeline.harness import Practised, practised

SMALL = ("data.truncate=12", "practice.batch_size=6", "practice.group_size=3", "practice.epochs=1")
PRICED = (
    "policy.price_in_usd_per_mtok=1",
    "policy.price_out_usd_per_mtok=4",
    "policy.max_tokens=300",
)


def recorded(run: RunDir) -> tuple[int, int, float]:
    """Calls, tokens and dollars that the records say were paid."""
    usages = [usage for _, usage in spent(run.records)]
    cost = sum(usage.cost_usd or 0.0 for usage in usages)
    return sum(u.calls for u in usages), sum(u.tokens for u in usages), cost


def endings(found: Practised) -> list[str]:
    return [e.event.how for e in found.run.entries() if isinstance(e.event, ev.RunEnded)]


@pytest.mark.parametrize(
    ("first", "raised"),
    [
        ("budget.calls=20", "budget.calls=500"),
        ("budget.tokens=6000", "budget.tokens=500000"),
        ("budget.cost_usd=0.008", "budget.cost_usd=1"),
    ],
)
async def test_a_run_whose_budget_is_raised_ends_as_an_undisturbed_one(
    tmp_path: Path, first: str, raised: str
) -> None:
    straight = await practised(tmp_path / "straight", *SMALL, *PRICED)
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


async def test_a_budget_that_is_just_enough_changes_nothing(tmp_path: Path) -> None:
    straight = await practised(tmp_path / "straight", *SMALL)
    calls = recorded(straight.run)[0]
    exact = await practised(tmp_path / "exact", *SMALL, f"budget.calls={calls}")
    assert (exact.state.ending, exact.texts) == ("finished", straight.texts)
    short = await practised(tmp_path / "short", *SMALL, f"budget.calls={calls - 1}")
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
    with pytest.raises(ConfigError, match=r"what the reflector.*reflector\.price_in_usd_per_mtok"):
        await practised(tmp_path, *SMALL, *PRICED, "reflector=rehearsal", "budget.cost_usd=1")
    assert not (tmp_path / "runs").exists()


async def test_prices_of_a_rehearsal_are_money_and_without_them_the_cost_is_unknown(
    tmp_path: Path,
) -> None:
    free = await practised(tmp_path / "free", *SMALL)
    assert free.state.usage.cost_usd is None
    priced = await practised(tmp_path / "priced", *SMALL, *PRICED)
    used = priced.state.usage
    expected = (used.prompt_tokens * 1 + used.completion_tokens * 4) / 1e6
    assert used.cost_usd == pytest.approx(expected)


async def test_a_stop_after_the_step_does_not_hide_that_the_budget_is_spent(
    tmp_path: Path,
) -> None:
    """The step can never end, so waiting for its end would be waiting for ever."""

    def stopping(practice: Practice) -> Practice:
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
