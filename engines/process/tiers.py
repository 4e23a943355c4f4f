"""Which layers of a sandbox this machine has. `probe.py` tries each in a throwaway process.

bubblewrap is not among them: it needs user namespaces as we do, and starts 20 times as slowly.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, Literal

from engines.core.errors import StudioError
from engines.core.frozen import frozen
from engines.process.start import STUDIO

Tier = Literal["namespaces", "no-namespaces", "resource-limits-only"]

LAYERS = ("namespaces", "landlock", "seccomp", "resource limits")
PROBE_S = 30.0


class SandboxError(StudioError):
    """There is no sandbox here, or it cannot be started. What code does is a result instead."""

    @classmethod
    def of_start(cls, what: str, error: object) -> "SandboxError":
        return cls(
            "sandbox",
            f"{what} cannot be started ({error}).",
            "Free processes and memory, and start again.",
        )


@frozen
class TierReport:
    tier: Tier
    layers: Mapping[str, str]
    """Each layer with "ok", or why it does not hold."""

    @property
    def in_force(self) -> list[str]:
        if self.tier == "resource-limits-only":
            return []
        return [name for name in LAYERS if self.holds(name)]

    @property
    def sentence(self) -> str:
        """The layers in force: "namespaces, landlock, seccomp, resource limits"."""
        return ", ".join(self.in_force) or "resource limits only: no sandbox"

    def holds(self, layer: str) -> bool:
        return self.layers.get(layer) == "ok"


_found: TierReport | None = None


async def find_tier() -> TierReport:
    """What holds here; tried once in a process of the studio."""
    global _found
    if _found is None:
        _found = choose_tier(await asyncio.to_thread(probe_layers))
    return _found


def choose_tier(layers: Mapping[str, str]) -> TierReport:
    held = {name for name, found in layers.items() if found == "ok"}
    tier: Tier = "resource-limits-only"
    if {"namespaces", "seccomp"} <= held:
        tier = "namespaces"
    elif {"landlock", "seccomp"} <= held:
        tier = "no-namespaces"
    return TierReport(tier, layers)


def probe_layers() -> dict[str, str]:
    """Try each layer in a process of its own: "ok", or why it does not hold."""
    if sys.platform != "linux":
        missing = dict.fromkeys(LAYERS[:-1], "only Linux has it")
        return {**missing, "resource limits": "ok"}
    # A file that every layer must hide; its folder is one that the interpreter does not need.
    with tempfile.NamedTemporaryFile() as secret:
        os.fchmod(secret.fileno(), 0o644)
        try:
            said = subprocess.check_output(
                [sys.executable, "-P", "-m", "engines.process.probe", secret.name],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": STUDIO},
                start_new_session=True,
                timeout=PROBE_S,
            )
            found: dict[str, Any] = json.loads(said)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            found = dict.fromkeys(LAYERS, f"the probe failed ({type(error).__name__})")
    return {name: str(found.get(name, "not tried")) for name in LAYERS}
