"""`--dry-run` and budgets through the command line: nothing asked, nothing written, true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from studio import exit_codes
from tests.cli.processes import SMALL
from tests.cli.run_studio import Result, studio

RUN = ("practice.epochs=2", "practice.batch_size=6", "practice.group_size=4", "data.truncate=24")
HELD_OUT = ("evaluation.data=[arithmetic-heldout]", "evaluation.limit=20")
PRICED = ("policy.price_in_usd_per_mtok=1", "policy.price_out_usd_per_mtok=4")


def headless(workspace: Path, *arguments: str) -> Result:
    return studio("headless", *arguments, workspace=workspace)


def dry(workspace: Path, *arguments: str) -> dict[str, Any]:
    found = headless(workspace, *arguments, "--dry-run", "--json")
    assert found.code == exit_codes.DONE, found.stderr
    data: dict[str, Any] = json.loads(found.stdout)
    return data


def paid(workspace: Path, run: str = "rehearsal") -> dict[str, Any]:
    shown = studio("runs", "show", run, "--json", workspace=workspace)
    usage: dict[str, Any] = json.loads(shown.stdout)["usage"]
    return usage


def test_a_dry_run_writes_nothing_and_makes_no_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    found = headless(workspace, "rehearsal", "--dry-run", *PRICED)
    assert found.code == exit_codes.DONE
    assert not workspace.exists()
    for word in ("rollouts", "extraction", "consolidation", "evaluation", "$"):
        assert word in found.stdout
    for name in ("practice.batch_size", "practice.group_size", "practice.epochs"):
        assert f"  {name} " in found.stdout
    assert "assumed" in found.stdout  # nothing was measured here
    assert "rehearsal" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("data.practice=nowhere",), "nowhere"),
        (("verifier.name=function", "verifier.file=missing.py"), "missing.py"),
        (("practice.group_size=zero",), "practice.group_size"),
        (("evaluation.data=[nowhere]",), "nowhere"),
        (("budget.cost_usd=1",), "price_in_usd_per_mtok"),
        (("policy=unheard:of",), "unheard"),
    ],
)
def test_a_dry_run_checks_config_data_verifier_and_budget(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    found = headless(tmp_path / "practice", "rehearsal", *arguments, "--dry-run")
    assert (found.code, found.stdout) == (exit_codes.USER_ERROR, "")
    assert said in found.stderr


def test_a_dry_run_needs_no_endpoint(tmp_path: Path) -> None:
    model = ("policy.model=openai:m", "policy.base_url=http://127.0.0.1:9/v1")
    assert headless(tmp_path / "p", "rehearsal", *model, "--dry-run").code == exit_codes.DONE


def test_the_estimate_of_calls_holds_and_after_one_run_the_likely_one_is_near(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "practice"
    first = dry(workspace, "rehearsal", *RUN, *HELD_OUT, *PRICED)
    assert headless(workspace, "rehearsal", *RUN, *HELD_OUT, *PRICED).code == exit_codes.DONE
    usage = paid(workspace)
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    assert 24 * 4 * 2 + 20 <= usage["calls"] <= first["calls"]["at_most"]
    assert abs(first["calls"]["likely"] / usage["calls"] - 1) <= 0.3
    assert tokens <= first["tokens"]["at_most"]
    assert usage["cost_usd"] <= first["cost_usd"]["at_most"]

    # Another seed of the same models: lengths and contrast are measured now.
    again = ("rehearsal", "--name", "again", "seed=2", *RUN, *HELD_OUT, *PRICED)
    second = dry(workspace, *again)
    assert any("as in run rehearsal" in note and "(n=" in note for note in second["notes"])
    assert headless(workspace, *again).code == exit_codes.DONE
    usage = paid(workspace, "again")
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    assert abs(second["calls"]["likely"] / usage["calls"] - 1) <= 0.3
    assert abs(second["tokens"]["likely"] / tokens - 1) <= 0.3
    assert abs(second["cost_usd"]["likely"] / usage["cost_usd"] - 1) <= 0.3


def test_a_dry_run_of_a_resume_says_what_is_done_and_what_is_left(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    run = ("rehearsal", *RUN, "evaluation.do_eval=false")
    whole = dry(workspace, *run)
    assert headless(workspace, *run, "budget.calls=70").code == exit_codes.BUDGET_REACHED
    left = dry(workspace, "--resume", "rehearsal")
    stages = {stage["stage"]: stage for stage in left["stages"]}
    assert sum(stage["done"] for stage in stages.values()) == 70
    rollouts = stages["rollouts"]
    assert rollouts["done"] + rollouts["calls"]["likely"] == 24 * 4 * 2
    assert left["whole_run"]["calls"]["at_most"] == whole["calls"]["at_most"]
    assert left["budget_left"] == {"calls": 0}
    text = headless(workspace, "--resume", "rehearsal", "--dry-run").stdout
    assert "DONE" in text and "the budget will likely not do: calls (0 left)" in text


def test_a_run_that_reaches_its_budget_ends_with_5_and_says_what_to_do(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    found = headless(workspace, "rehearsal", *SMALL, "budget.calls=9")
    assert found.code == exit_codes.BUDGET_REACHED
    assert "estimate: likely" in found.stderr
    assert "warning: the budget will likely not do: calls (9 left)" in found.stderr
    assert "ended early: budget.calls=9: 9 spent" in found.stderr
    move = "studio headless --resume rehearsal budget.calls=…"
    assert f"next     {move}" in found.stdout
    assert move in studio("runs", "list", workspace=workspace).stdout
    shown = studio("runs", "show", "rehearsal", workspace=workspace).stdout
    assert move in shown and "budget.calls=10 at least" in shown

    again = headless(workspace, "--resume", "rehearsal")
    assert again.code == exit_codes.BUDGET_REACHED
    done = headless(workspace, "--resume", "rehearsal", "budget.calls=500")
    assert done.code == exit_codes.DONE and "warning" not in done.stderr
    assert "\nnext " not in done.stdout


def test_a_log_that_is_replayed_costs_no_call_of_a_budget(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    assert headless(workspace, "replay", "budget.calls=3").code == exit_codes.BUDGET_REACHED
    again = headless(workspace, "--resume", "replay")
    assert "budget.calls=3: 3 spent" in again.stdout  # of the reflector alone


def test_a_run_without_a_budget_hears_no_estimate(tmp_path: Path) -> None:
    found = headless(tmp_path / "practice", "rehearsal", *SMALL)
    assert "estimate" not in found.stderr and "budget" not in found.stderr


def test_a_held_out_evaluation_stops_at_its_budget_and_keeps_what_it_measured(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "practice"
    measure = ("eval", "rehearsal", *HELD_OUT)
    first = studio(*measure, "budget.calls=8", workspace=workspace)
    assert first.code == exit_codes.BUDGET_REACHED and first.stdout == ""
    assert "budget.calls=8: 8 spent" in first.stderr
    assert "every reply that was paid for" in first.stderr and "higher budget" in first.stderr
    again = studio(*measure, "budget.calls=8", workspace=workspace)
    assert again.code == exit_codes.BUDGET_REACHED
    done = studio(*measure, "budget.calls=20", workspace=workspace)
    assert done.code == exit_codes.DONE
    straight = studio(*measure, workspace=tmp_path / "other")
    assert done.stdout.splitlines()[1:3] == straight.stdout.splitlines()[1:3]


def test_status_says_what_is_left_of_a_budget(tmp_path: Path) -> None:
    from engines.core.state import RunState
    from engines.pipeline.budget import Amounts, Budget, Limits
    from studio.link import status_of
    from studio.steering import status_lines

    budget = Budget(Limits(calls=9, cost_usd=1.5), lambda _: None, Amounts(4, 100, 0.25))
    answer = status_of(RunState(), budget)
    assert answer["budget_left"] == {"calls": 5, "cost_usd": 1.25}
    assert "left of the budget: calls 5, cost_usd 1.25" in status_lines(answer)
    assert status_of(RunState())["budget_left"] == {}


def test_the_workspace_of_a_dry_run_of_a_fork_is_left_as_it_is(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    run = ("rehearsal", *RUN, "evaluation.do_eval=false")
    assert headless(workspace, *run).code == exit_codes.DONE
    found = dry(workspace, *run, "--restart-step", "2")
    assert found["calls"]["at_most"] < found["whole_run"]["calls"]["at_most"]
    assert [found.run for found in Workspace(workspace).runs()] == ["rehearsal"]
