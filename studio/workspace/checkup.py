"""All checks of `studio doctor` beside the workspace's files: the machine, and a run's models.

Owns which of them are made, and that they are made at once.
"""

from __future__ import annotations

import asyncio
import locale
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from engines.core.errors import StudioError
from engines.core.extras import installed_version
from engines.record.repair import Finding
from engines.record.run_dir import Workspace
from engines.tools.sandbox.tiers import find_tier
from studio.config.settings.policy import PolicyConfig
from studio.config.settings.run import RunConfig
from studio.config.source import Source
from studio.render.words import count_text
from studio.run.assemble import check_verifier
from studio.run.new_or_resume import RunPlan, RunRequest, load_plan
from studio.run.remote.worker import rebuild
from studio.workspace.ask import ask_apart, run_check
from studio.workspace.machine import (
    PACKAGE,
    cluster_findings,
    disk_findings,
    extra_findings,
    find_address,
    gpu_findings,
    open_files_limit,
    read_mounts,
    terminal_findings,
)

SLOW_S, PARTS_S = 30.0, 120.0


@dataclass(frozen=True, slots=True)
class Around:
    """Where the command was given."""

    workspace: Path
    environ: Mapping[str, str]
    missing: tuple[str, str] | None  # of a terminal for the screen: place and cause
    size: tuple[int, int]  # columns and rows


async def check_up(
    around: Around, runfile: str | None, overrides: Sequence[str], tell: Callable[[str], None]
) -> list[Finding]:
    """Everything; `tell` hears what asking costs before it is asked."""
    cluster, found = find_address(around.environ), list[Finding]()
    groups: list[Coroutine[None, None, list[Finding]]] = []
    if runfile is not None:
        # Half a second that nobody who asks of the machine alone waits for.

        try:
            config = load_new(around.workspace, runfile, tuple(overrides)).loaded.config
        except StudioError as error:
            found.append(Finding("fix", error.place, error.cause, error.move))
        else:
            groups.append(_run(around, config, runfile, tuple(overrides), tell))
            if config.dispatch == "ray" and config.ray.address != "local":
                cluster = config.ray.address or cluster
    groups.append(_machine(around, cluster))
    found += [finding for group in await asyncio.gather(*groups) for finding in group]
    return found


async def _machine(around: Around, cluster: str | None) -> list[Finding]:
    environ, ray = around.environ, installed_version("ray")
    encoding = locale.getpreferredencoding(False)
    seen = terminal_findings(environ, around.missing, around.size, encoding)
    seen += disk_findings(around.workspace, open_files_limit, read_mounts)
    seen += extra_findings(metadata.requires(PACKAGE) or ())
    asked = await asyncio.gather(
        run_check("sandbox", _sandbox(), SLOW_S),
        run_check("gpu", gpu_findings(installed_version("torch")), SLOW_S),
        run_check("ray", cluster_findings(ray, cluster), SLOW_S),
    )
    return [*(finding for group in asked for finding in group), *seen]


async def _sandbox() -> list[Finding]:
    tier = await find_tier()
    if tier.in_force:
        return [Finding("ok", "sandbox", tier.sentence)]
    why = "; ".join(f"{layer}: {said}" for layer, said in tier.layers.items() if said != "ok")
    move = "Agents with code or programs need a Linux with user namespaces or Landlock."
    return [Finding("note", "sandbox", f"{tier.sentence} ({why}).", move)]


async def _run(
    around: Around,
    config: RunConfig,
    runfile: str,
    overrides: tuple[str, ...],
    tell: Callable[[str], None],
) -> list[Finding]:
    from studio.workspace.endpoints import asked_models, model_checks

    asked = asked_models(config)
    if asked.price:
        tell(asked.price)
    parts = part_findings(around.workspace, runfile, overrides)
    place = "run" if config.dispatch == "local" else "run on the cluster"
    groups = await asyncio.gather(*model_checks(config, asked), run_check(place, parts, PARTS_S))
    return [*(finding for group in groups for finding in group), *asked.unasked]


def load_new(workspace: Path, runfile: str, overrides: tuple[str, ...]) -> RunPlan:
    """The run file as a new run would have it, whatever runs there are. Raises StudioError."""
    source = Source(overrides, runfile)
    request = RunRequest(workspace=Workspace(workspace), source=source, restart_step="0")
    return load_plan(request, lambda _: None)


async def part_findings(workspace: Path, runfile: str, overrides: tuple[str, ...]) -> list[Finding]:
    order = (str(workspace.absolute()), runfile, overrides)
    return await ask_apart(f"{__name__}:look_at_parts", *order)


def look_at_parts(workspace: str, runfile: str, overrides: list[str]) -> list[Finding]:
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
