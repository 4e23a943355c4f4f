"""Rollouts as ATIF: read back by our own reader, and checked field by field.

The fields and their types are those of Harbor's own models (0.26.0), which refuse any other.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from engines.data.sessions.formats import read_atif
from engines.data.sessions.steps import Intake
from tests.support.run_studio import studio

NUMBER = (int, float)
FIELDS: dict[str, dict[str, Any]] = {
    "trajectory": {
        "schema_version": str, "session_id": str, "trajectory_id": str, "agent": dict,
        "steps": list, "final_metrics": dict, "extra": dict,
    },
    "agent": {"name": str, "version": str, "model_name": str, "tool_definitions": list},
    "step": {
        "step_id": int, "source": str, "message": str, "timestamp": str, "model_name": str,
        "reasoning_content": str, "tool_calls": list, "observation": dict, "metrics": dict,
        "is_copied_context": bool, "llm_call_count": int, "extra": dict,
    },
    "call": {"tool_call_id": str, "function_name": str, "arguments": dict, "extra": dict},
    "result": {"source_call_id": str, "content": str, "extra": dict},
    "metrics": {
        "prompt_tokens": int, "completion_tokens": int, "cost_usd": NUMBER,
        "prompt_token_ids": list, "completion_token_ids": list, "logprobs": list,
    },
    "final": {
        "total_prompt_tokens": int, "total_completion_tokens": int, "total_cost_usd": NUMBER,
        "total_steps": int, "extra": dict,
    },
}  # fmt: skip
REQUIRED = {
    "trajectory": {"schema_version", "trajectory_id", "agent", "steps"},
    "agent": {"name", "version"},
    "step": {"step_id", "source", "message"},
    "call": {"tool_call_id", "function_name", "arguments"},
    "result": {"content"},
}
OF_AGENTS = {"model_name", "reasoning_content", "tool_calls", "metrics"}


def check(kind: str, given: dict[str, Any]) -> None:
    assert REQUIRED.get(kind, set()) <= given.keys() <= FIELDS[kind].keys(), (kind, given.keys())
    for name, value in given.items():
        assert isinstance(value, FIELDS[kind][name]), (kind, name, value)


def check_document(given: dict[str, Any]) -> None:
    check("trajectory", given)
    check("agent", given["agent"])
    check("final", given["final_metrics"])
    assert given["schema_version"] == "ATIF-v1.7"
    assert [step["step_id"] for step in given["steps"]] == [*range(1, len(given["steps"]) + 1)]
    assert given["final_metrics"]["total_steps"] == len(given["steps"])
    for tool in given["agent"].get("tool_definitions", ()):
        assert tool["type"] == "function" and {"name", "parameters"} <= tool["function"].keys()
    for step in given["steps"]:
        check("step", step)
        assert step["source"] in ("system", "user", "agent")
        assert step["source"] == "agent" or not OF_AGENTS & step.keys()
        if "timestamp" in step:
            assert datetime.fromisoformat(step["timestamp"]).tzinfo is not None
        check("metrics", step.get("metrics", {}))
        called = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for call in step.get("tool_calls", ()):
            check("call", call)
        for result in step.get("observation", {}).get("results", ()):
            check("result", result)
            assert result["source_call_id"] in called


def exported(workspace: Path, run: str, *words: str) -> dict[str, dict[str, Any]]:
    folder = workspace.parent / "trajectories"
    done = studio("runs", "export", run, "--to", str(folder), *words, workspace=workspace)
    assert done.code == 0, done.stderr
    found = {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.iterdir())}
    assert done.stdout.startswith(f"{len(found)} rollout")
    for document in found.values():
        check_document(document)
    return found


def facts_of(workspace: Path, run: str, name: str) -> dict[str, Any]:
    shown = studio("runs", "show", run, "--rollout", name, "--json", workspace=workspace)
    facts: dict[str, Any] = json.loads(shown.stdout)
    return facts


@pytest.mark.parametrize("preset", ["rehearsal", "math", "research", "grpo-tiny"])
def test_every_rollout_is_a_document_that_our_own_reader_takes(
    preset: str, workspace: Path
) -> None:
    if preset == "grpo-tiny":
        pytest.importorskip("torch")
    words = ("practice.epochs=1", "practice.batch_size=2", "practice.group_size=2")
    words += ("data.truncate=2", "evaluation.do_eval=false", "tensorboard=false")
    made = studio("headless", preset, *words, workspace=workspace)
    assert made.code == 0, made.stderr
    documents = exported(workspace, preset)
    assert [*documents] == ["s1p0r0", "s1p0r1", "s1p1r0", "s1p1r1"]
    for name, document in documents.items():
        facts = facts_of(workspace, preset, name)
        said = [m for m in facts["messages"] if m["role"] == "assistant"]
        agents = [step for step in document["steps"] if step["source"] == "agent"]
        assert [step["message"] for step in agents] == [m["content"] for m in said]
        speakers = [step["extra"].get("speaker", "") for step in agents]
        assert speakers == [m["speaker"] for m in said]
        calls = [call for step in agents for call in step.get("tool_calls", ())]
        assert [c["function_name"] for c in calls] == [
            call["name"] for m in said for call in m["tool_calls"]
        ]
        results = [
            result["content"]
            for step in agents
            for result in step.get("observation", {}).get("results", ())
        ]
        assert results == [m["content"] for m in facts["messages"] if m["role"] == "tool"]
        total = document["final_metrics"]
        assert total["total_prompt_tokens"] + total["total_completion_tokens"] == facts["tokens"]
        tokens = [step["metrics"]["prompt_tokens"] for step in agents]
        tokens += [
            result["extra"].get("metrics", {}).get("prompt_tokens", 0)
            for step in agents
            for result in step.get("observation", {}).get("results", ())
        ]
        assert sum(tokens) == total["total_prompt_tokens"]
        assert total["extra"]["reward"] == facts["verdict"]["reward"]
        intake = Intake()
        (session,) = read_atif(workspace.parent / "trajectories" / f"{name}.json", intake)
        steps = [*session.steps]
        assert session.score == facts["verdict"]["reward"]
        assert [step.text for step in steps if step.kind == "assistant"] == [
            m["content"] for m in said
        ]
        assert [step.text for step in steps if step.kind == "result"] == results
        assert [step.kind for step in steps].count("call") == len(calls)
    if preset == "math":
        assert any("tool_definitions" in one["agent"] for one in documents.values())
    if preset == "grpo-tiny":
        metrics = documents["s1p0r0"]["steps"][-1]["metrics"]
        assert len(metrics["completion_token_ids"]) == len(metrics["logprobs"]) > 0


def test_one_rollout_can_be_exported_and_a_wrong_name_or_folder_is_refused(
    practised: Path,
) -> None:
    assert [*exported(practised, "rehearsal", "--rollout", "s1p2r1")] == ["s1p2r1"]
    again = str(practised.parent / "trajectories")
    refused = studio("runs", "export", "rehearsal", "--to", again, workspace=practised)
    assert refused.code == 2 and "not an empty folder" in refused.stderr
    words = ("--to", str(practised.parent / "new"), "--rollout", "s9p0r0")
    refused = studio("runs", "export", "rehearsal", *words, workspace=practised)
    assert refused.code == 2 and "no such rollout" in refused.stderr
    assert not (practised.parent / "new").exists()
