"""All checks of `studio doctor` beside the workspace's files: the machine, and a run's models.

Owns which of them are made, and that they are made at once.
"""

from __future__ import annotations

import asyncio
import locale
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.errors import StudioError
from engines.core.extras import installed_version
from engines.process.tiers import find_tier
from engines.record.repair import Finding
from studio.workspace.ask import run_check
from studio.workspace.checks.cluster import cluster_findings, find_address
from studio.workspace.checks.extras import PACKAGE, extra_findings
from studio.workspace.checks.gpu import gpu_findings
from studio.workspace.checks.machine import disk_findings, open_files_limit, read_mounts
from studio.workspace.checks.terminal import terminal_findings

if TYPE_CHECKING:
    from studio.config.settings.run import RunConfig

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
        from studio.workspace.checks.parts import load_new

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
    from studio.workspace.checks.models import asked_models, model_checks
    from studio.workspace.checks.parts import part_findings

    asked = asked_models(config)
    if asked.price:
        tell(asked.price)
    parts = part_findings(around.workspace, runfile, overrides)
    place = "run" if config.dispatch == "local" else "run on the cluster"
    groups = await asyncio.gather(*model_checks(config, asked), run_check(place, parts, PARTS_S))
    return [*(finding for group in groups for finding in group), *asked.unasked]
