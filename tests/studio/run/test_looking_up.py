"""The presets `research` and `web`: agents that look things up get better by practice, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.core.team import FIXED
from studio.config.loading import load_run
from studio.config.run_yaml import fingerprint
from tests.support.run_studio import studio

PRACTISED = ("data.truncate=20", "practice.batch_size=10", "evaluation.limit=20")


def run_and_read(preset: str, workspace: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    done = studio("headless", preset, *PRACTISED, workspace=workspace)
    assert done.code == 0, done.stderr
    assert "helps" in done.stdout and "rehearsal" in done.stdout
    shown = studio("runs", "show", preset, "--rollout", "s1p0r0", "--json", workspace=workspace)
    facts = json.loads(shown.stdout)
    return facts, facts["messages"]


@pytest.fixture(scope="module")
def researched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("research") / "practice"


@pytest.mark.nightly
def test_a_team_learns_to_look_up_and_every_role_stands_in_its_trajectory(
    researched: Path,
) -> None:
    facts, messages = run_and_read("research", researched)
    said = [message["speaker"] or message["role"] for message in messages]
    step = ["planner_main", "executor", "tool", "verifier"]
    assert [who for who in said if who != "system"][:6] == ["user", "planner_fixed", *step]
    assert said[-1] == "generator"
    looked_up = next(message["content"] for message in messages if message["role"] == "tool")
    assert looked_up.startswith("From outside, ") and "(a page of the folder wiki)" in looked_up
    assert {"own.grounded", "own.steps"} <= facts["verdict"]["metrics"].keys()


def test_the_same_question_is_shown_before_and_after(researched: Path) -> None:
    if not (researched / "runs/research").exists():
        run_and_read("research", researched)
    done = studio("try", "research", "--versus", "research", workspace=researched)
    before, after = done.stdout.split("== after\n")
    assert done.code == 0 and before.startswith("== before\n")
    assert after.splitlines()[-1].startswith("== before reward ")
    assert "library  none (0 experiences)" in before and "## Experiences" not in before
    assert "library  research@" in after and "## Experiences" in after
    assert all("[planner_main]" in text and "verdict  reward" in text for text in (before, after))
    assert done.stderr.rstrip().endswith(" runs show research")


def test_an_agent_learns_to_search_a_web_that_is_a_file_and_says_so(tmp_path: Path) -> None:
    _, messages = run_and_read("web", tmp_path / "practice")
    called = {call["name"] for message in messages for call in message["tool_calls"]}
    assert "web_search" in called
    found = next(message["content"] for message in messages if message["role"] == "tool")
    assert "(a page of the fixture file web-pages.jsonl)" in found


def test_every_role_of_a_team_is_reached_before_the_start_at_its_own_address(
    tmp_path: Path,
) -> None:
    """Defect: the factory of engines ignored `base_url`."""
    nowhere = "http://127.0.0.1:9/v1"
    role = f"{{model: 'openai:m', base_url: '{nowhere}', api_key: k, max_retries: 0}}"
    for name in FIXED:
        words = ("headless", "research", f"agent.team.{name}={role}")
        done = studio(*words, workspace=tmp_path / name)
        assert done.code == 2 and nowhere in done.stderr and "rollouts" not in done.stderr


def test_a_resume_minds_who_plays_a_role_and_not_how_it_is_reached(tmp_path: Path) -> None:
    def found(*words: str) -> object:
        loaded = load_run("research", list(words), tmp_path, {}, tmp_path)
        return fingerprint(loaded.config)["agent.team"]

    assert found("agent.team.executor={model: rehearsal, timeout_s: 5}") == found(
        "agent.team.executor={model: rehearsal, timeout_s: 9}"
    )
    assert found("agent.team.executor=openai:a") != found("agent.team.executor=openai:b")
    assert found("agent.team.ungrounded=refuse") != found()


def test_an_answer_that_is_refused_says_why(tmp_path: Path) -> None:
    words = ("agent.team.ungrounded=refuse", "--question", "What is love?", "--answer", "x")
    done = studio("try", "research", *words, workspace=tmp_path)
    assert "refused: the answer rests on no evidence" in done.stdout
    assert "max_tokens" not in done.stdout


def test_a_team_without_tools_is_told_what_it_needs(tmp_path: Path) -> None:
    done = studio("headless", "research", "agent.tools=[]", workspace=tmp_path)
    assert done.code == 2 and "a team has nothing to find anything out with" in done.stderr
