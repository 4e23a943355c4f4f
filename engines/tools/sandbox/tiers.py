"""Which layers of a sandbox this machine has. Each is tried in a throwaway process.

bubblewrap is not among them: it needs user namespaces as we do, and starts 20 times as slowly.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.tools.sandbox.confine import Tier

LAYERS = ("namespaces", "landlock", "seccomp", "resource limits")
PROBE_S = 30.0
STUDIO = str(Path(__file__).parents[3])
"""The folder from which `engines` is imported."""


@dataclass(frozen=True, slots=True)
class TierReport:
    tier: Tier
    layers: Mapping[str, str]
    """Each layer with "ok", or why it does not hold."""

    @property
    def sentence(self) -> str:
        """The layers in force: "namespaces, landlock, seccomp, resource limits"."""
        held = [name for name in LAYERS if self.holds(name)]
        if self.tier == "resource-limits-only":
            return "resource limits only: no sandbox"
        return ", ".join(held)

    def holds(self, layer: str) -> bool:
        return self.layers.get(layer) == "ok"


_found: TierReport | None = None


async def find_tier() -> TierReport:
    """What holds here; tried once in a process of the studio."""
    global _found
    if _found is None:
        _found = choose_tier(await _probe_layers())
    return _found


def choose_tier(layers: Mapping[str, str]) -> TierReport:
    held = {name for name, found in layers.items() if found == "ok"}
    tier: Tier = "resource-limits-only"
    if {"namespaces", "seccomp"} <= held:
        tier = "namespaces"
    elif {"landlock", "seccomp"} <= held:
        tier = "no-namespaces"
    return TierReport(tier, layers)


async def _probe_layers() -> dict[str, str]:
    if sys.platform != "linux":
        missing = dict.fromkeys(LAYERS[:-1], "only Linux has it")
        return {**missing, "resource limits": "ok"}
    # A file that every layer must hide; its folder is one that the interpreter does not need.
    with tempfile.NamedTemporaryFile() as secret:
        os.fchmod(secret.fileno(), 0o644)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "engines.tools.sandbox.probe", secret.name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PYTHONPATH": STUDIO},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(PROBE_S):
                said, _ = await process.communicate()
            found = json.loads(said)
        except (TimeoutError, ValueError) as error:
            found = dict.fromkeys(LAYERS, f"the probe failed ({type(error).__name__})")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return {name: str(found.get(name, "not tried")) for name in LAYERS}
