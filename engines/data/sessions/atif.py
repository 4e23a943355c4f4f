"""ATIF, the trajectories of Harbor and others: a JSON file each, versions 1.0 to 1.7.

A trial of Harbor keeps its reward beside the trajectory.
Source: Harbor RFC 0001.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.data.sessions.steps import (
    Intake,
    Session,
    Step,
    as_object,
    exit_failed,
    objects,
    text_of,
)


def read(path: Path, intake: Intake) -> Iterator[Session]:
    found = as_object(intake.read_whole(path))
    if not str(found.get("schema_version", "")).startswith("ATIF"):
        return
    name = str(found.get("trajectory_id") or found.get("session_id") or path.stem)
    session = Session(name, _steps(found, intake))
    for inner in objects(found.get("subagent_trajectories")):
        session.subagents.append(str(inner.get("trajectory_id") or "sub-agent"))
    session.score, session.score_name = _reward(found, path)
    yield session


def _steps(found: dict[str, Any], intake: Intake) -> Iterator[Step]:
    default = str(as_object(found.get("agent")).get("model_name") or "")
    for step in objects(found.get("steps")):
        text = text_of(step.get("message"), intake)
        if step.get("is_copied_context"):
            intake.drop("steps copied from another trajectory")
            continue
        match step.get("source"):
            case "user":
                yield Step("user", text)
            case "agent":
                if text:
                    yield Step("assistant", text, model=str(step.get("model_name") or default))
            case "system":
                intake.drop('"system" entries')
            case other:
                intake.drop_kind(other)
        if step.get("reasoning_content"):
            intake.drop('"reasoning" entries')
        for call in objects(step.get("tool_calls")):
            name, of = str(call.get("function_name") or ""), str(call.get("tool_call_id") or "")
            yield Step("call", name=name, id=of, arguments=call.get("arguments"))
        for result in objects(as_object(step.get("observation")).get("results")):
            text = text_of(result.get("content"), intake)
            code = as_object(result.get("extra")).get("exit_code")
            failed = code != 0 if isinstance(code, int) else exit_failed(text)
            yield Step("result", text, id=str(result.get("source_call_id") or ""), failed=failed)


def _reward(found: dict[str, Any], path: Path) -> tuple[float | None, str]:
    """What the trajectory says itself, else what the verifier of its trial left beside it."""
    metrics = as_object(found.get("final_metrics"))
    for told in (metrics, as_object(metrics.get("extra")), as_object(found.get("extra"))):
        if (reward := _number(told.get("reward"))) is not None:
            return reward, "reward"
    for folder in (path.parent, path.parent.parent):
        beside = Intake()  # not part of what is imported
        for file in (folder / "result.json", folder / "verifier" / "reward.json"):
            told = as_object(beside.read_whole(file)) if file.is_file() else {}
            judged = as_object(told.get("verifier_result")) or told
            reward = _number(as_object(judged.get("rewards")).get("reward", judged.get("reward")))
            if reward is not None:
                return reward, "Harbor reward"
        with suppress(OSError, ValueError):
            return float((folder / "verifier" / "reward.txt").read_text()), "Harbor reward"
    return None, ""


def _number(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
