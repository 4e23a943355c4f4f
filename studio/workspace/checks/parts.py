"""Data, verifier and tools of a run by their own checks, in a process of their own.

There a verifier that hangs or ends its process harms nothing, and a cluster leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import StudioError
from engines.record.run_dir import Workspace
from studio.config.settings.policy import PolicyConfig
from studio.config.settings.run import RunConfig
from studio.config.source import Source
from studio.report.summary import count_text
from studio.run.assemble import check_verifier
from studio.run.new_or_resume import RunPlan, RunRequest, load_plan
from studio.run.remote.worker import rebuild
from studio.secrets.sanitize import one_line
from studio.workspace.checks.finding import Finding, as_findings, ask_python

_ASK = "from studio.workspace.checks.parts import answer; answer()"
_LONGEST = 1000


def load_new(workspace: Path, runfile: str, overrides: tuple[str, ...]) -> RunPlan:
    """The run file as a new run would have it, whatever runs there are. Raises StudioError."""
    source = Source(overrides, runfile)
    request = RunRequest(workspace=Workspace(workspace), source=source, restart_step="0")
    return load_plan(request, lambda _: None)


async def part_findings(
    workspace: Path, runfile: str, overrides: tuple[str, ...], cluster: str | None
) -> list[Finding]:
    """`cluster` is the address of the one that workers are to be asked of; None: this machine."""
    order = [str(workspace.absolute()), runfile, overrides, cluster]
    return as_findings(await ask_python(_ASK, order))


def answer() -> None:
    """The other process: read the order, print what was found."""
    workspace, runfile, overrides, cluster = orjson.loads(sys.stdin.buffer.read())
    try:
        plan = load_new(Path(workspace), runfile, tuple(overrides))
        found = asyncio.run(_check(plan, cluster))
    except StudioError as error:
        found = [Finding("fix", error.place, error.cause, error.move)]
    told = [[one_line(text, _LONGEST) for text in astuple(finding)] for finding in found]
    print(orjson.dumps(told).decode(), flush=True)


async def _check(plan: RunPlan, cluster: str | None) -> list[Finding]:
    config = rebuild(plan.loaded.config, _without_weights)
    where = {"dispatch": "local"}
    if cluster is not None:
        ray = config.ray.model_copy(update={"address": cluster})
        where = {"dispatch": "ray", "ray": ray}
    asked: RunConfig = config.model_copy(update=where)
    plan = replace(plan, loaded=replace(plan.loaded, config=asked))
    async with AsyncExitStack() as stack:
        facts = await check_verifier(plan, stack)
    told = [count_text(len(plan.problems), "problem"), f"verifier {asked.verifier.name} is there"]
    if cluster is not None:
        told.append(f"a worker of the cluster at {cluster} opens agent and verifier")
    if tools := [str(tool["name"]) for tool in facts.get("tools", ())]:
        told.append(f"tools work: {', '.join(tools)}")
    lacks = [Finding("note", "agent.tools", f"{text}.") for text in facts.get("absent", ())]
    return [*lacks, Finding("ok", "run", f"{'; '.join(told)}.")]


def _without_weights(value: Any) -> Any:
    """No weights are loaded: a verifier that asks a model is checked without an answer."""
    if isinstance(value, PolicyConfig) and value.model.startswith("hf:"):
        return PolicyConfig(model="rehearsal")
    return value
