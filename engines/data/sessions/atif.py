"""ATIF, the trajectories of Harbor and others: a JSON file each, versions 1.0 to 1.7.

A trial of Harbor keeps its reward beside the trajectory.
Source: Harbor RFC 0001.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.data.sessions.steps import (
    Intake,
    Session,
    Step,
    as_object,
    call_step,
    objects,
    parse_json,
    result_step,
)


def read(path: Path, intake: Intake) -> Iterator[Session]:
    found = as_object(intake.read_whole(path))
    if str(found.get("schema_version", "")).startswith("ATIF"):
        name = str(found.get("trajectory_id") or found.get("session_id") or path.stem)
        inner = objects(found.get("subagent_trajectories"))
        agents = [str(one.get("trajectory_id") or "sub-agent") for one in inner]
        yield Session(name, _steps(found, intake), subagents=agents, **_reward(found, path))


def _steps(found: dict[str, Any], intake: Intake) -> Iterator[Step]:
    default = as_object(found.get("agent")).get("model_name")
    for step in objects(found.get("steps")):
        if step.get("is_copied_context"):
            intake.drop("steps copied from another trajectory")
            continue
        text = intake.text_of(step.get("message"))
        if step.get("source") == "user":
            yield Step("user", text)
        elif step.get("source") == "agent":
            yield Step("assistant", text, model=str(step.get("model_name") or default or ""))
        else:
            intake.drop_kind(step.get("source"))
        for call in objects(step.get("tool_calls")):
            yield call_step(
                call.get("function_name"), call.get("tool_call_id"), call.get("arguments")
            )
        for one in objects(as_object(step.get("observation")).get("results")):
            code = as_object(one.get("extra")).get("exit_code")
            yield result_step(intake.text_of(one.get("content")), one.get("source_call_id"), code)


def _reward(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """What the trajectory says itself, else what the verifier of its trial left beside it."""
    metrics = as_object(found.get("final_metrics"))
    told = [metrics, as_object(metrics.get("extra")), as_object(found.get("extra"))]
    for folder in (path.parent, path.parent.parent):
        for name in ("result.json", "verifier/reward.json", "verifier/reward.txt"):
            with suppress(OSError):
                said = parse_json((folder / name).read_bytes())
                judged = as_object(as_object(said).get("verifier_result")) or as_object(said)
                rewards = as_object(judged.get("rewards"))
                told.append({**judged, **rewards} if judged else {"reward": said})
    known = (one.get("reward") for one in told)
    score = next((one for one in known if isinstance(one, int | float)), None)
    return {} if score is None else {"score": float(score), "score_name": "reward"}
