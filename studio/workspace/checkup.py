"""All checks of `studio doctor` beside the workspace's files: the machine, and a run's models.

Owns which of them are made, and that they are made at once.
"""

import asyncio
import locale
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from engines.core.errors import StudioError, installed_version
from engines.process.tiers import find_tier
from engines.record.repair import Finding
from studio.workspace.ask import run_check
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

SLOW_S = 30.0


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
        from studio.workspace.run_checks import load_new, run_checks

        try:
            config = load_new(around.workspace, runfile, tuple(overrides)).loaded.config
        except StudioError as error:
            found.append(Finding("fix", error.place, error.cause, error.move))
        else:
            groups.append(run_checks(around.workspace, config, runfile, tuple(overrides), tell))
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
