"""The GPU: what its driver says, and what torch sees of it.

torch takes seconds to import: it is asked in a process of its own, and only where there is
something to see.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from engines.record.repair import Finding
from studio.workspace.ask import ask_program, ask_python

_QUERY = (
    "--query-gpu=name,memory.total,memory.used,driver_version",
    "--format=csv,noheader,nounits",
)
_DRIVER = Path("/proc/driver/nvidia/version")
_TORCH = """
import json, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import torch
    able = torch.cuda.is_available()
mps = getattr(torch.backends, "mps", None)
print(json.dumps({
    "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
    "gpus": torch.cuda.device_count() if able else 0,
    "mps": bool(mps and mps.is_available()),
    "said": " ".join(str(one.message) for one in said),
}))
"""
NEARLY_FULL = 0.9


async def gpu_findings(
    torch: str | None,
    ask: Callable[..., Awaitable[tuple[int, str, str]]] = ask_program,
    ask_torch: Callable[[str], Awaitable[Any]] = ask_python,
) -> list[Finding]:
    """`torch` is the version that is installed; None: none is."""
    found: list[Finding] = []
    if shutil.which("nvidia-smi"):
        status, out, err = await ask("nvidia-smi", *_QUERY)
        if status:
            said = " ".join((out or err).split())[:200]
            move = "Load the driver (modprobe nvidia), or install it anew."
            return [Finding("note", "gpu", f"its driver does not answer ({said}).", move)]
        found = [_card(line.split(", ")) for line in out.splitlines() if line.count(", ") == 3]
    if not found and not _DRIVER.exists() and sys.platform != "darwin":
        text = "none here" + (f"; torch {torch} computes on the CPU." if torch else ".")
        return [Finding("ok", "gpu", text)]
    if torch is None:
        text = "torch is not installed: only endpoints can use it."
        return [*found, Finding("ok", "torch", text)]
    return [*found, torch_finding(torch, await ask_torch(_TORCH))]


def _card(row: list[str]) -> Finding:
    name, *memory, driver = row
    try:
        total, used = (float(text) for text in memory)
    except ValueError:  # [N/A], as of cards that share the machine's memory
        return Finding("ok", "gpu", f"{name}, driver {driver}.")
    text = f"{name}, {used / 1024:.1f} of {total / 1024:.1f} GB in use, driver {driver}."
    if used < NEARLY_FULL * total:
        return Finding("ok", "gpu", text)
    return Finding("note", "gpu", text, "See with nvidia-smi who uses it.")


def torch_finding(version: str, seen: Mapping[str, Any]) -> Finding:
    if seen["gpus"] or seen["mps"]:
        what = f"{seen['gpus']} GPU (CUDA {seen['cuda']})" if seen["gpus"] else "the GPU (MPS)"
        return Finding("ok", "torch", f"{version} sees {what}.")
    if not seen["cuda"]:
        move = "Install one for CUDA: see https://pytorch.org/get-started/locally"
        return Finding("note", "torch", f"{version} is built for the CPU alone.", move)
    said = " ".join(str(seen["said"]).split())
    cause = f"{version} (CUDA {seen['cuda']}) sees no GPU{f' ({said[:200]})' if said else ''}."
    move = "See whether CUDA_VISIBLE_DEVICES hides it."
    if "too old" in said:
        move = f"Update the driver, or install a torch for an older CUDA than {seen['cuda']}."
    return Finding("note", "torch", cause, move)
