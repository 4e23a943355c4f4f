"""The six functions: what they give back, and that they are the command line's own."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from engines.core.errors import ConfigError, ConflictError
from engines.core.events import RolloutFinished
from engines.record.ledger import read_trajectory
from engines.record.run_dir import Workspace
from studio import api
from studio.api import practise
from studio.exit_codes import BUDGET_REACHED, WITH_LOSSES
from tests.support.fake_endpoint import an_endpoint, refuses, says
from tests.support.run_studio import studio

SMALL = {"practice.epochs": 1, "practice.batch_size": 8, "data.truncate": 8, "evaluation.limit": 4}


def test_there_are_exactly_six_functions() -> None:
    names = "evaluate evaluate_async library load_run practice practice_async"
    assert sorted(api.__all__) == names.split()


def test_a_practice_gives_its_result_and_prints_nothing(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    found = api.practice("rehearsal", workspace=workspace, tell=told.append, **SMALL)
    assert capsys.readouterr() == ("", "")
    assert told[-1].startswith("epoch 1: arithmetic-larger")
    assert (found.exit_code, found.run, found.library) == (0, "rehearsal", "rehearsal@1")
    assert found.before.keys() == found.after.keys() == found.differences.keys()
    rate = found.before["arithmetic-heldout"]
    assert rate.n == 4
    assert rate.mean is not None and rate.interval is not None
    assert rate.interval.low <= rate.mean <= rate.interval.high
    assert found.cost.calls > 40
    assert found.losses == {}
    # The same facts as the command line tells, and the same run.
    shown = json.loads(studio("runs", "show", "rehearsal", "--json", workspace=workspace).stdout)
    assert next(e["mean_reward"] for e in shown["evaluations"]) == rate.mean
    assert api.load_run("rehearsal", workspace=workspace) == found
    assert api.practice("rehearsal", workspace=workspace, **SMALL) == found


async def test_it_works_where_a_loop_runs_already(workspace: Path) -> None:
    found = api.practice("rehearsal", workspace=workspace, **SMALL, evaluation__do_eval=False)
    again = await api.practice_async(
        "rehearsal", workspace=workspace, **SMALL, evaluation__do_eval=False
    )
    assert found == again
    assert found.before == {}


def test_a_library_is_the_text_that_stands_in_front_of_prompts(practised: Path) -> None:
    found = api.library("rehearsal@2", workspace=practised)
    assert (found.name, found.version) == ("rehearsal", 2)
    assert next(one.id for one in found.experiences) == "E1"
    run = Workspace(practised).run("rehearsal")
    state = run.state()
    step = max(n for n, one in state.steps.items() if one.library_version == 1)
    events = [entry.event for entry in run.entries()]
    tried = [one for one in events if isinstance(one, RolloutFinished) and one.step == step]
    system = read_trajectory(run.records, tried[0].refs)[0]
    assert system.content.endswith(api.library("rehearsal@1", workspace=practised).prompt())
    assert api.library("rehearsal@0", workspace=practised).prompt() == ""


def test_an_evaluation_compares_with_a_baseline(practised: Path) -> None:
    found = api.evaluate(
        "rehearsal", library="rehearsal", baseline="none", workspace=practised, evaluation__limit=6
    )
    (held_out, _) = found.after
    assert found.exit_code == 0
    assert found.after[held_out].n == found.before[held_out].n == 6
    assert found.differences[held_out].difference > 0
    again = asyncio.run(
        api.evaluate_async(
            "rehearsal", library="rehearsal", workspace=practised, evaluation__limit=6
        )
    )
    assert again.after == found.after
    assert again.before == {}
    assert again.cost.calls == 0


def test_an_evaluation_that_ends_early_gives_what_is_known(workspace: Path) -> None:
    found = api.evaluate("rehearsal", workspace=workspace, evaluation__limit=9, budget__calls=5)
    assert found.exit_code == BUDGET_REACHED
    assert "budget.calls=5" in found.reason
    assert found.cost.calls <= 5


def test_a_run_file_may_be_a_mapping(workspace: Path) -> None:
    runfile = {
        "exp_id": "mapped",
        "policy": "rehearsal",
        "data": {"practice": "arithmetic", "truncate": 4},
        "practice": {"epochs": 1, "group_size": 2},
    }
    found = api.practice(runfile, workspace=workspace)
    assert found.run == "mapped"
    (file,) = (workspace / "configs").glob("mapped-*.yaml")
    assert api.practice(file, workspace=workspace) == found


def test_errors_are_those_of_the_command_line(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean"):
        api.practice("rehearsal", workspace=workspace, practice__epoch=2)
    with pytest.raises(ConfigError, match="no preset of that name"):
        api.evaluate("rehersal", workspace=workspace)
    with pytest.raises(ConflictError, match="there is none"):
        api.load_run("nobody", workspace=workspace)


@pytest.mark.parametrize("call", ["practice", "evaluate"])
def test_a_file_that_a_run_loads_begins_no_other_run(
    workspace: Path, tmp_path: Path, call: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"from studio import api\n\n\nasync def solve(problem, model):\n    return '5'\n\n\n"
        f"api.{call}('rehearsal', workspace={str(workspace)!r})\n"
    )
    with pytest.raises(ConfigError, match="it begins a run while another one loads it") as refused:
        api.practice("rehearsal", workspace=workspace, agent__function=f"{file}:solve", **SMALL)
    assert '__name__ == "__main__"' in str(refused.value)
    assert not (workspace / "runs/rehearsal-2").exists()
    gc.collect()  # work that was begun and left would be told of here


def test_a_practice_may_start_afresh_under_a_name(workspace: Path) -> None:
    for restart_step, run in ((None, "mine"), (0, "mine-2")):
        found = api.practice(
            "rehearsal", name="mine", restart_step=restart_step, workspace=workspace, **SMALL
        )
        assert found.run == run


def test_a_changed_setting_is_refused_until_it_is_accepted(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_WORKSPACE", str(practised))
    same = {"practice.batch_size": 4, "data.truncate": 8, "evaluation.do_eval": False}
    changed = {**same, "practice.epochs": 2, "practice.group_size": 4}
    with pytest.raises(ConfigError, match="group_size: 3 → 4"):
        api.practice("rehearsal", **changed)
    assert api.practice("rehearsal", **changed, accept_changes=True).run == "rehearsal"


def test_an_evaluation_with_gaps_says_how_many(workspace: Path) -> None:
    with an_endpoint(*[says("#### 7")] * 19, refuses(400, "no more today")) as endpoint:
        settings = {
            "policy": "openai:m",
            "policy.base_url": endpoint.base_url,
            "policy.max_retries": 0,
            "evaluation.data": ["arithmetic-heldout"],
            "evaluation.limit": 30,
            "evaluation.concurrency": 1,
        }
        found = api.evaluate("rehearsal", workspace=workspace, **settings)
    assert found.exit_code == WITH_LOSSES
    assert found.losses.keys() == {"verdict"} and found.losses["verdict"] > 0


@pytest.mark.parametrize("value", ['a "b", {c}\n[d]', "C:\\", 'end\\"', "", "null", "1"], ids=repr)
def test_a_text_arrives_as_it_is_given(workspace: Path, value: str) -> None:
    from studio.config.loading import load_run

    key = "practice__agent_objective"
    loaded = load_run("rehearsal", practise.as_overrides({key: value}), workspace)
    assert loaded.config.practice.agent_objective == value


def test_plain_values_arrive_as_they_are_given(workspace: Path) -> None:
    from studio.config.loading import load_run

    given = {
        "evaluation.data": ["a b", "c"],
        "evaluation.limit": None,
        "evaluation.temperature": 0.25,
        "data.shuffle": False,
        "verifier": {"name": "text", "mode": "contains"},
    }
    config = load_run("rehearsal", practise.as_overrides(given), workspace).config
    assert config.evaluation.data == ("a b", "c")
    assert (config.evaluation.limit, config.evaluation.temperature) == (None, 0.25)
    assert config.data.shuffle is False
    assert config.verifier.spec == {"name": "text", "mode": "contains"}


def test_a_secret_is_not_told(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-abcdefghijkl1234")
    told: list[str] = []
    _, say = practise.open_workspace(workspace, told.append)
    say("asked with sk-abcdefghijkl1234")
    assert "abcdefghijkl" not in told[0]


def test_an_interrupt_ends_the_work_and_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt(self: Future[None], timeout: float | None = None) -> None:
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        practise.run_in_thread(work())
    assert ended.is_set()


def test_results_are_plain_values() -> None:
    assert dataclasses.is_dataclass(practise.Result)
    assert dataclasses.is_dataclass(practise.Rate)
