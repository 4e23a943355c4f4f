"""Data, verifier and tools of a run by their own checks, in a process of their own.

There a verifier that hangs or ends its process harms nothing, and a cluster leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core.extras import installed_version
from engines.record.repair import Finding
from engines.record.run_dir import Workspace
from studio.config.settings.policy import PolicyConfig
from studio.config.settings.run import RunConfig
from studio.config.source import Source
from studio.render.words import count_text
from studio.run.assemble import check_verifier
from studio.run.new_or_resume import RunPlan, RunRequest, load_plan
from studio.run.remote.worker import rebuild
from studio.workspace.ask import ask_apart
from studio.workspace.checks.cluster import find_address


def load_new(workspace: Path, runfile: str, overrides: tuple[str, ...]) -> RunPlan:
    """The run file as a new run would have it, whatever runs there are. Raises StudioError."""
    source = Source(overrides, runfile)
    request = RunRequest(workspace=Workspace(workspace), source=source, restart_step="0")
    return load_plan(request, lambda _: None)


async def part_findings(workspace: Path, runfile: str, overrides: tuple[str, ...]) -> list[Finding]:
    order = (str(workspace.absolute()), runfile, overrides)
    return await ask_apart(f"{__name__}:look", *order)


def look(workspace: str, runfile: str, overrides: list[str]) -> list[Finding]:
    """In the other process. Raises StudioError: a part cannot be opened."""
    plan = load_new(Path(workspace), runfile, tuple(overrides))
    config: RunConfig = rebuild(plan.loaded.config, _without_weights)
    told = [count_text(len(plan.problems), "problem"), f"verifier {config.verifier.name} is there"]
    if config.dispatch == "ray" and installed_version("ray"):
        address = config.ray.address or find_address(os.environ) or "local"
        where: dict[str, Any] = {"ray": config.ray.model_copy(update={"address": address})}
        told.append(f"a worker of the cluster at {address} opens both")
        if address == "local":  # which a run starts, and a doctor does not
            where, told[-1] = {"dispatch": "local"}, "the run starts a cluster of its own"
        config = config.model_copy(update=where)
    facts = asyncio.run(_open(replace(plan, loaded=replace(plan.loaded, config=config))))
    if tools := [str(tool["name"]) for tool in facts.get("tools", ())]:
        told.append(f"tools work: {', '.join(tools)}")
    lacks = [Finding("note", "agent.tools", f"{text}.") for text in facts.get("absent", ())]
    return [*lacks, Finding("ok", "run", f"{'; '.join(told)}.")]


async def _open(plan: RunPlan) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        return await check_verifier(plan, stack)


def _without_weights(value: Any) -> Any:
    """No weights are loaded: a verifier that asks a model is checked without an answer."""
    if isinstance(value, PolicyConfig) and value.model.startswith("hf:"):
        return PolicyConfig(model="rehearsal")
    return value
