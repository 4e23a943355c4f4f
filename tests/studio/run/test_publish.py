"""The agent that a run leaves behind, mounted elsewhere, calls its model as the run did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.record.formats.rows import refresh_agent
from engines.secrets.mask import MASK
from studio.config.loading import load_run
from studio.run.library import agent_description
from tests.support.builders import a_library
from tests.support.fake_endpoint import FakeEndpoint, an_endpoint, says
from tests.support.run_studio import studio
from tests.support.youtu_checkout import write

POLICY = {
    "model": "openai:m",
    "api_key": "${oc.env:MY_KEY}",
    "temperature": 0.7,
    "max_tokens": 77,
    "timeout_s": 12,
    "max_retries": 1,
    "extra_body": {"reasoning_effort": "low", "user": "${oc.env:MY_TEAM}"},
    "headers": {"X-Team": "${oc.env:MY_TEAM}"},
    "price_in_usd_per_mtok": 0.5,
    "price_out_usd_per_mtok": 1.5,
}
RUN = {
    "data": {"practice": "arithmetic", "truncate": 2},
    "practice": {"epochs": 1, "batch_size": 2, "group_size": 1},
    "agent": {"name": "mine", "instructions": "Say \\${x} and solve it."},
}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-for-the-model-8421")
    monkeypatch.setenv("MY_TEAM", "blue-team-77")


def published(folder: Path, endpoint: FakeEndpoint) -> Path:
    """Practise, and return the agent file that the run leaves."""
    text = yaml.safe_dump({**RUN, "policy": {**POLICY, "base_url": endpoint.base_url}})
    done = studio("headless", str(write(folder / "run.yaml", text)), workspace=folder / "practice")
    assert done.code in (0, 4), done.stderr
    return folder / "practice/runs/run/agent.yaml"


def test_a_mounted_agent_has_the_key_and_all_fields_of_its_run(tmp_path: Path) -> None:
    with an_endpoint(says("#### 3")) as endpoint:
        agent = published(tmp_path, endpoint)
        endpoint.requests.clear()
        done = studio(
            "eval", str(agent), "evaluation.data=arithmetic-heldout", "evaluation.limit=1",
            workspace=tmp_path / "elsewhere",
        )  # fmt: skip
        assert done.code == 0, done.stderr
        request = endpoint.requests[-1]
    assert "sk-for" not in agent.read_text() and "blue-team" not in agent.read_text()
    assert request.headers["authorization"] == "Bearer sk-for-the-model-8421"
    assert request.headers["x-team"] == "blue-team-77"
    sent = {name: request.body[name] for name in ("model", "reasoning_effort", "user")}
    assert sent == {
        "model": "m",
        "reasoning_effort": "low",
        "user": "blue-team-77",
    }
    assert request.body.get("max_tokens", request.body.get("max_completion_tokens")) == 77
    assert request.body["messages"][0]["content"].startswith("Say ${x} and solve it.")
    run = load_run(str(agent), [], tmp_path).config.policy
    assert (run.timeout_s, run.max_retries) == (12, 1)
    assert (run.price_in_usd_per_mtok, run.price_out_usd_per_mtok) == (0.5, 1.5)


def test_an_agent_s_file_keeps_its_references_when_it_is_written_again(tmp_path: Path) -> None:
    with an_endpoint(says("#### 3")) as endpoint:
        agent = published(tmp_path, endpoint)
    before = yaml.safe_load(agent.read_text())
    refresh_agent(agent, a_library("Costs ${oc.env:MY_KEY}."), "run")
    after = yaml.safe_load(agent.read_text())
    assert after.pop("experiences") == [{"id": "E1", "text": "Costs \\${oc.env:MY_KEY}."}]
    before.pop("experiences")
    assert after == before
    assert after["model"]["api_key"] == "${oc.env:MY_KEY}"


def described(folder: Path, policy: dict[str, Any]) -> dict[str, Any]:
    text = yaml.safe_dump({**RUN, "policy": policy})
    config = load_run(str(write(folder / "own.yaml", text)), [], folder).config
    model = agent_description(config)["model"]
    assert isinstance(model, dict)
    return model


def test_a_key_that_was_written_out_is_asked_for_again_and_never_sent_empty(
    tmp_path: Path,
) -> None:
    written = {
        "model": "openai:m",
        "base_url": "http://u:pw12345678@h/v1",
        "api_key": "sk-written-1",
    }
    model = described(tmp_path, written)
    assert (model["api_key"], model["base_url"]) == (MASK, "http://h/v1")
    agent = write(tmp_path / "agent.yaml", yaml.safe_dump({"instructions": "x", "model": model}))
    done = studio("eval", str(agent), "evaluation.data=arithmetic", workspace=tmp_path / "w")
    assert done.code == 2 and '"policy.api_key" is masked' in done.stderr
    again = ("evaluation.data=arithmetic-heldout", "evaluation.limit=1", "policy=rehearsal")
    assert studio("eval", str(agent), *again, workspace=tmp_path / "w").code == 0


def test_what_refers_to_another_setting_is_masked_since_an_agent_stands_alone(
    tmp_path: Path,
) -> None:
    role = {"model": "openai:m", "api_key": "${judge.api_key}"}
    text = yaml.safe_dump({**RUN, "policy": role, "judge": {"api_key": "${oc.env:MY_KEY}"}})
    config = load_run(str(write(tmp_path / "own.yaml", text)), [], tmp_path).config
    assert agent_description(config)["model"]["api_key"] == MASK


def test_an_agent_holds_no_setting_that_is_the_default(tmp_path: Path) -> None:
    held = {"model": "rehearsal", "temperature": 0.7}
    assert described(tmp_path, {"model": "rehearsal"}) == held
