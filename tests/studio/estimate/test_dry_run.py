"""`--dry-run` and budgets through the command line: nothing asked, nothing written, true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from studio import exit_codes
from tests.support.processes import SMALL
from tests.support.run_studio import Result, studio

RUN = ("practice.epochs=2", "practice.batch_size=3", "practice.group_size=4", "data.truncate=12")
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
    assert "assumed" in found.stdout  # nothing was measured here
    assert "rehearsal" in found.stderr
    unpriced = ("policy={model: openai:m, api_key: k}", "reflector=rehearsal")
    found = headless(workspace, "rehearsal", "--dry-run", *unpriced)
    assert "set policy.price_in_usd_per_mtok and policy.price_out_usd_per_mtok" in found.stdout
    data = dry(workspace, "rehearsal", "practice.epochs=3")
    for kind in ("calls", "tokens"):
        of = ("prompt_tokens", "reply_tokens") if kind == "tokens" else (kind,)
        assert data[kind]["likely"] == sum(s[k]["likely"] for s in data["stages"] for k in of)


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
    assert 12 * 4 * 2 + 20 <= usage["calls"] <= first["calls"]["at_most"]
    assert abs(first["calls"]["likely"] / usage["calls"] - 1) <= 0.3
    assert tokens <= first["tokens"]["at_most"]
    assert usage["cost_usd"] <= first["cost_usd"]["at_most"]

    # Another seed of the same models: lengths and contrast are measured now.
    again = ("rehearsal", "--name", "again", "seed=2", *RUN, *HELD_OUT, *PRICED)
    second = dry(workspace, *again)
    assert any("as in run rehearsal" in note for note in second["notes"])
    assert headless(workspace, *again).code == exit_codes.DONE
    usage = paid(workspace, "again")
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    assert abs(second["calls"]["likely"] / usage["calls"] - 1) <= 0.3
    assert abs(second["tokens"]["likely"] / tokens - 1) <= 0.3
    assert abs(second["cost_usd"]["likely"] / usage["cost_usd"] - 1) <= 0.3


def test_a_dry_run_of_a_resume_says_what_is_left(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    run = ("rehearsal", *RUN, "evaluation.do_eval=false")
    assert headless(workspace, *run, "budget.calls=70").code == exit_codes.BUDGET_REACHED
    left = dry(workspace, "--resume", "rehearsal")
    rollouts = next(stage for stage in left["stages"] if stage["stage"] == "rollouts")
    # Each step has 3 groups of 4; the step under way counts whole: it may be made again.
    assert rollouts["calls"]["likely"] == left["steps_left"] * 3 * 4 < 12 * 4 * 2
    assert left["budget_left"] == {"calls": 0}
    text = headless(workspace, "--resume", "rehearsal", "--dry-run").stdout
    assert "the budget will likely not do: calls (0 left)" in text


def test_a_run_that_reaches_its_budget_ends_with_5_and_says_what_to_do(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    found = headless(workspace, "rehearsal", *SMALL, "budget.calls=9")
    assert found.code == exit_codes.BUDGET_REACHED
    assert "estimate: likely" in found.stderr
    assert "warning: the budget will likely not do: calls (9 left)" in found.stderr
    assert "ended early: budget.calls=9: 9 spent" in found.stderr
    move = "studio headless --resume rehearsal budget.calls=…"
    assert found.stderr.endswith(f" {move.removeprefix('studio ')}\n")
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
    assert "budget.calls=3: 3 spent" in again.stderr  # of the reflector alone


def test_a_run_without_a_budget_hears_no_estimate(tmp_path: Path) -> None:
    found = headless(tmp_path / "practice", "rehearsal", *SMALL)
    assert "estimate:" not in found.stderr and "budget:" not in found.stderr


def test_a_held_out_evaluation_stops_at_its_budget_and_keeps_what_it_measured(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "practice"
    measure = ("eval", "rehearsal", *HELD_OUT)
    first = studio(*measure, "budget.calls=8", workspace=workspace)
    assert first.code == exit_codes.BUDGET_REACHED and first.stdout == ""
    assert "budget.calls=8: 8 spent" in first.stderr
    assert "every reply that was paid for" in first.stderr and "higher budget" in first.stderr
    told = studio(*measure, "budget.calls=8", "--json", workspace=workspace)
    assert told.code == exit_codes.BUDGET_REACHED
    assert "every reply that was paid for" not in told.stderr  # this time nothing was
    data = json.loads(told.stdout)
    (result,) = data["sets"][0]["results"]
    assert (data["ended"], data["paid"]["calls"]) == ("budget", 0)
    assert "budget.calls=8" in data["reason"]
    assert (result["n"] + result["missing"], result["unjudged"]) == (20, 0)
    assert result["missing"] >= 12
    assert data["sets"][0]["comparison"] is None
    again = studio(*measure, "budget.calls=8", workspace=workspace)
    assert again.code == exit_codes.BUDGET_REACHED
    done = studio(*measure, "budget.calls=20", workspace=workspace)
    assert done.code == exit_codes.DONE
    straight = studio(*measure, workspace=tmp_path / "other")
    assert done.stdout.splitlines()[1:3] == straight.stdout.splitlines()[1:3]


def test_status_says_what_is_left_of_a_budget(tmp_path: Path) -> None:
    from engines.core.state.run_state import RunState
    from engines.pipeline.budget import Amounts, Budget, BudgetLimits
    from studio.session.requests import status_of
    from studio.workspace.run_control import status_lines

    budget = Budget(BudgetLimits(calls=9, cost_usd=1.5), lambda _: None, Amounts(4, 100, 0.25))
    answer = status_of(RunState(), budget)
    assert answer["budget_left"] == {"calls": 5, "cost_usd": 1.25}
    assert "left of the budget: 5 calls, $1.2500" in status_lines(answer)
    assert answer["budget"] == {"calls": 9, "cost_usd": 1.5}
    large = status_of(
        RunState(), Budget(BudgetLimits(tokens=50_000_000), lambda _: None, Amounts(1, 71_800))
    )
    assert "left of the budget: 49,928,200 tokens" in status_lines(large)
    assert status_of(RunState())["budget_left"] == {}


def test_status_says_where_tries_are_made_and_that_no_worker_is_left() -> None:
    from engines.core.state.run_state import RunState
    from studio.session.requests import status_of
    from studio.workspace.run_control import status_lines

    here = status_of(RunState())
    assert "node" not in "".join(status_lines(here))
    assert "node n1: s1p0r0" in status_lines(here | {"nodes": {"n1": ["s1p0r0"]}})
    assert "no worker of the cluster is left" in "".join(status_lines(here | {"nodes": {}}))


def test_status_says_which_replies_wait_to_be_mended() -> None:
    from engines.core.state.run_state import RunState
    from engines.core.types import UnparsedReply
    from studio.session.requests import status_of
    from studio.workspace.run_control import status_lines

    state = RunState(repairs={"s1": UnparsedReply("s1", 1, "consolidation", ("no JSON",), "{")})
    answer = {**status_of(state), "run": "exp"}
    assert "1 reply to be mended: studio review exp" in status_lines(answer)
    assert not any("mended" in line for line in status_lines(status_of(RunState())))


FORKED = ("rehearsal", *RUN, *HELD_OUT, "evaluation.limit=7")


@pytest.fixture(scope="module")
def before_fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which `FORKED` was practised without an evaluation."""
    workspace = tmp_path_factory.mktemp("forked") / "practice"
    assert headless(workspace, *FORKED, "evaluation.do_eval=false").code == exit_codes.DONE
    return workspace


def test_a_dry_run_of_a_fork_counts_the_evaluation_it_begins_with(before_fork: Path) -> None:
    found = dry(before_fork, *FORKED, "evaluation.do_eval=true", "--restart-step", "2")
    (evaluation,) = (s for s in found["stages"] if s["stage"] == "evaluation")
    # With what it adopted, and after the epochs that end at steps 4 and 8.
    assert evaluation["calls"]["likely"] == 3 * 7


def test_a_budget_of_dollars_needs_the_price_of_embeddings(tmp_path: Path) -> None:
    model = "lint.embedding={model: openai:e, base_url: http://127.0.0.1:9/v1}"
    refused = headless(tmp_path, "rehearsal", *PRICED, model, "budget.cost_usd=1", "--dry-run")
    assert refused.code == exit_codes.USER_ERROR
    assert "lint.embedding.price_in_usd_per_mtok" in refused.stderr


def test_a_try_says_that_no_budget_is_kept(tmp_path: Path) -> None:
    found = studio("try", "rehearsal", "budget.calls=1", workspace=tmp_path)
    assert found.code == exit_codes.DONE and "the budget is not kept" in found.stderr
    assert "the budget" not in studio("try", "rehearsal", workspace=tmp_path).stderr


def test_the_workspace_of_a_dry_run_of_a_fork_is_left_as_it_is(before_fork: Path) -> None:
    found = dry(before_fork, *FORKED, "evaluation.do_eval=false", "--restart-step", "2")
    assert (found["steps_left"], found["steps"]) == (6, 8)
    assert [found.run for found in Workspace(before_fork).runs()] == ["rehearsal"]


KEYED = """\
exp_id: keyed
policy:
  model: openai:m
  base_url: http://127.0.0.1:9/v1
  api_key: ${oc.env:NO_SUCH_KEY}
  headers: {X-Gateway: "Bearer ${oc.env:NO_SUCH_TOKEN}"}
reflector: ${policy}
data: {practice: arithmetic, truncate: 8}
verifier: math
"""


def test_a_dry_run_needs_no_key_and_says_which_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = tmp_path / "keyed.yaml"
    file.write_text(KEYED)
    found = headless(tmp_path / "p", str(file), "--dry-run")
    assert found.code == exit_codes.DONE, found.stderr
    for key, name in (("api_key", "NO_SUCH_KEY"), ("headers.X-Gateway", "NO_SUCH_TOKEN")):
        left_out = f"policy.{key} is left out, since the environment variable {name} is not set"
        assert left_out in found.stderr
    ran = headless(tmp_path / "p", str(file))
    assert (ran.code, "NO_SUCH_" in ran.stderr) == (exit_codes.USER_ERROR, True)


def test_a_dry_run_of_a_run_whose_key_was_spelled_out_needs_it_no_more(tmp_path: Path) -> None:
    file = tmp_path / "masked.yaml"
    file.write_text(KEYED.replace("${oc.env:NO_SUCH_KEY}", "'***'").replace("NO_SUCH_T", "PATH,T"))
    found = headless(tmp_path / "p", str(file), "--dry-run")
    assert found.code == exit_codes.DONE, found.stderr
    assert "policy.api_key is left out, since it is masked" in found.stderr


def test_a_dry_run_still_needs_variables_that_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "keyed.yaml"
    file.write_text(KEYED.replace("openai:m", "${oc.env:NO_SUCH_MODEL}"))
    found = headless(tmp_path / "p", str(file), "--dry-run")
    assert (found.code, "NO_SUCH_MODEL" in found.stderr) == (exit_codes.USER_ERROR, True)


def test_a_resume_that_drops_the_budget_is_told(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    assert headless(workspace, "rehearsal", *SMALL, "budget.calls=9").code == 5
    kept = headless(workspace, "--resume", "rehearsal", "--dry-run")
    assert "no longer set" not in kept.stderr
    raised = headless(workspace, "rehearsal", *SMALL, "budget.calls=500", "--dry-run")
    assert "no longer set" not in raised.stderr
    dropped = headless(workspace, "rehearsal", *SMALL)
    assert "note: the run had budget.calls=9, which is no longer set" in dropped.stderr
    finished = headless(workspace, "rehearsal", *SMALL)
    assert "no longer set" not in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ((), {"rollout", "summary", "extraction", "consolidation", "evaluation"}),
        (("evaluation.do_eval=false",), {"rollout", "summary", "extraction", "consolidation"}),
        (
            ("verifier=judge", "evaluation.do_eval=false"),
            {"rollout", "summary", "judge", "extraction", "consolidation"},
        ),
    ],
)
def test_the_notes_name_only_kinds_of_replies_that_the_run_may_ask_for(
    tmp_path: Path, arguments: tuple[str, ...], kinds: set[str]
) -> None:
    notes = dry(tmp_path / "practice", "rehearsal", *arguments)["notes"]
    (note,) = [note for note in notes if note.startswith("tokens of a reply, assumed: ")]
    assert {part.split()[0] for part in note.partition(": ")[2].split(", ")} == kinds


def test_a_dry_run_of_training_tells_what_is_done_here_and_nothing_of_lessons(
    tmp_path: Path,
) -> None:
    found = headless(tmp_path / "practice", "grpo-tiny", "--dry-run").stdout
    assert "to be done: likely (at most)" in found and "paid" not in found
    assert "COST" not in found and "unknown" not in found
    assert "tokens of a reply, assumed: rollout 80, evaluation 80\n" in found  # policy.max_tokens


def test_a_run_that_was_cut_short_is_not_what_lengths_are_taken_from(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    assert headless(workspace, "rehearsal", *SMALL, "--name=whole").code == 0
    assert headless(workspace, "rehearsal", *SMALL, "--name=cut", "budget.calls=9").code == 5
    assert (
        "tokens of a reply as in run whole: "
        in headless(workspace, "rehearsal", "--dry-run").stdout
    )


def dry_eval(workspace: Path, *arguments: str) -> dict[str, Any]:
    found = studio("eval", "rehearsal", *arguments, "--dry-run", "--json", workspace=workspace)
    assert found.code == exit_codes.DONE, found.stderr
    data: dict[str, Any] = json.loads(found.stdout)
    return data


def test_an_evaluation_is_estimated_and_nothing_is_asked_or_written(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    nobody = ("policy.model=openai:m", "policy.base_url=http://127.0.0.1:9/v1", *PRICED)
    wanted = dry_eval(workspace, "--library", "none", "--k", "3", *HELD_OUT, *nobody)
    assert not workspace.exists()
    assert (wanted["rollouts"], wanted["calls"]["likely"]) == (60, 60)
    assert wanted["cost_usd"]["likely"] > 0


def test_an_estimated_evaluation_knows_what_was_measured_and_how_long_replies_are(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "practice"
    run = ("rehearsal", *RUN, *HELD_OUT, "practice.epochs=1", *PRICED)
    assert headless(workspace, *run).code == exit_codes.DONE
    assert dry_eval(workspace, "--library", "none", *HELD_OUT)["rollouts"] == 0  # as it began
    # Another reflector changes nothing of how long the policy's replies are.
    other = ("--library", "none", "seed=2", "reflector=rehearsal:other", *HELD_OUT, *PRICED)
    before = dry_eval(workspace, *other)
    assert any("as in run rehearsal: evaluation" in note for note in before["notes"])
    measured = studio("eval", "rehearsal", *other, "--json", workspace=workspace)
    paid = json.loads(measured.stdout)["paid"]
    assert abs(before["cost_usd"]["likely"] / paid["cost_usd"] - 1) <= 0.3
