"""Whether this machine can run a practice: disk space, encoding, closed memory.

Reads; changes nothing.
"""

import locale
import os
import platform
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from engines.core.errors import StudioError, install_command, installed_version
from engines.record.repair import Finding, Grade
from studio.process import is_hardened
from studio.render.words import count_text
from studio.workspace.ask import ask_apart, ask_program, ask_python

LEAST_FREE = 200_000_000
"""Bytes: a run of 10,000 rollouts writes about as much."""


def machine_facts(workspace: Path) -> dict[str, Any]:
    """Facts about the machine, as plain JSON values."""
    usage = shutil.disk_usage(_nearest_folder(workspace))
    return {
        "studio": version("practice-studio"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "encoding": locale.getpreferredencoding(False),
        "terminal": os.environ.get("TERM", "") if sys.stdout.isatty() else None,
        "free_bytes": usage.free,
        "hidden_from_debuggers": is_hardened(),
    }


def basic_findings(workspace: Path, facts: dict[str, Any]) -> list[Finding]:
    """Problems that follow from these facts, each with its place, cause and next move."""
    found = []
    folder = str(_nearest_folder(workspace))
    if facts["free_bytes"] < LEAST_FREE:
        cause = f"only {facts['free_bytes'] / 1e6:.0f} MB are free."
        move = "Make room: a run that cannot write stops, resumable."
        found.append(Finding("note", folder, cause, move))
    if not os.access(folder, os.W_OK):
        move = "Mend its permissions or choose another --workspace."
        found.append(Finding("fix", folder, "it cannot be written to.", move))
    if facts["encoding"].lower().replace("-", "") not in ("utf8", "utf8sig"):
        cause = f"its encoding is {facts['encoding']}, so that some characters cannot be shown."
        found.append(Finding("note", "locale", cause, "Set LC_ALL=C.UTF-8."))
    if facts["hidden_from_debuggers"] is False:
        cause = "other processes of this user can read its memory, where keys are."
        move = "Nothing need be done; the platform offers no way to prevent it here."
        found.append(Finding("note", "process", cause, move))
    return found


def _nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


FEWEST_FILES = 1024
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "drvfs", "glusterfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "prl_fs", "smb3", "smbfs", "vboxsf", "fuse.gcsfuse", "fuse.glusterfs"),
    *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
)
"""Where rename, flock and fsync promise less, or nothing to another machine."""


def disk_findings(
    folder: Path, limit: Callable[[], int | None], mounts: Callable[[], str]
) -> list[Finding]:
    """What the workspace lies on, and how many files may be open; both as they are asked for."""
    kind = file_system(folder.absolute(), mounts())
    found = []
    if kind in _NETWORK:
        cause = f"it lies on {kind}: what was written may be lost, and locks may not hold, there."
        move = "Use a --workspace on a local disk, and copy it when a run has ended."
        found.append(Finding("note", str(folder), cause, move))
    if (files := limit()) is not None and files < FEWEST_FILES:
        cause = f"only {files} may be open at a time: many calls at once will fail."
        found.append(Finding("note", "open files", cause, f"Run: ulimit -n {4 * FEWEST_FILES}"))
    if not found:
        most = "any number of" if files is None else f"{files:,}"
        found.append(Finding("ok", "disk", f"{kind or 'a file system'}, {most} open files."))
    return found


def open_files_limit() -> int | None:
    """How many files this process may have open; None: any number, or the platform has none."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def read_mounts() -> str:
    """What is mounted, as Linux tells it; "" elsewhere."""
    try:
        return _MOUNTS.read_text("utf-8", "replace")
    except OSError:
        return ""


def file_system(folder: Path, mounts: str) -> str:
    """The kind of file system that a folder lies on; "" where that is not known."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        where, _, rest = line.partition(" - ")
        point = where.split(" ")[4].replace("\\040", " ") if where.count(" ") >= 4 else ""
        # Of two that are mounted at one place the later one is seen.
        if point and folder.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), rest.split(" ")[0]
    return kind


LEAST, WANTED = (60, 16), (80, 24)
"""Columns and rows from which the screen works, and for which it is made."""


def terminal_findings(
    environ: Mapping[str, str],
    missing: tuple[str, str] | None,
    size: tuple[int, int],
    encoding: str,
) -> list[Finding]:
    """`missing`: place and cause where no screen can be drawn at all."""
    if missing is not None:
        move = "`studio headless` and `studio review` do without."
        return [Finding("note", missing[0], f"{missing[1]}.", move)]
    term = environ.get("TERM", "")
    columns, rows = size
    shown = f"{term}, {columns}x{rows}, {_colours(environ)}, {encoding}"
    found = [Finding("ok", "terminal", f"{shown}.")]
    if columns < WANTED[0] or rows < WANTED[1]:
        cause = f"it has {columns}x{rows}, and the screen is made for {WANTED[0]}x{WANTED[1]}."
        worse = columns < LEAST[0] or rows < LEAST[1]
        move = "Make it larger: a list is all that is shown so." if worse else "Make it larger."
        found.append(Finding("note", "terminal", cause, move))
    return found


def _colours(environ: Mapping[str, str]) -> str:
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR") or term.startswith("vt"):
        return "no colours" + (" (NO_COLOR)" if environ.get("NO_COLOR") else "")
    if environ.get("COLORTERM") in ("truecolor", "24bit") or "direct" in term:
        return "truecolor"
    return "256 colours" if "256" in term else "16 colours"


PACKAGE = "practice-studio"
GIVES = {
    "grpo": "models in this process, and training of their weights",
    "qlora": "4-bit weights",
    "deepspeed": "training divided by DeepSpeed's ZeRO",
    "tensorboard": "curves of every run",
    "ray": "rollouts on a cluster",
    "otel": "traces by OpenTelemetry",
    "mcp": "tools of MCP servers, and serving by MCP",
    "web": "pages of the web as text",
    "parquet": "data in Parquet",
    "datasets": "data sets of the hub",
    "xlsx": "data in Excel files",
    "inspect": "logs of inspect, and data compressed by Zstandard",
    "report": "plots in reports",
}
"""All but `rl`, which is three of them, and those for whoever works on the studio itself."""


def extra_findings(
    requires: Iterable[str], version_of: Callable[[str], str | None] = installed_version
) -> list[Finding]:
    """`requires` is what the package's metadata ask for."""
    every = [Requirement(text) for text in requires]
    found, whole = list[Finding](), list[str]()
    for extra in GIVES:
        parts = _parts(every, extra)
        have = {part.name: version_of(part.name) for part in parts}
        if trouble := _lacks(parts, have):
            grade: Grade = "ok" if None in have.values() else "note"
            cause, move = f"{trouble}; it gives {GIVES[extra]}.", f"Run: {install_command(extra)}"
            found.append(Finding(grade, f"extra {extra}", cause, move))
        else:
            told = ", ".join(f"{name} {version}" for name, version in have.items())
            whole.append(f"{extra} ({told or 'part of Python'})")
    return [*found, *([Finding("ok", "extras", f"{', '.join(whole)}.")] if whole else [])]


def _parts(every: list[Requirement], extra: str) -> list[Requirement]:
    return [
        part
        for part in every
        if (marker := part.marker) is not None
        and marker.evaluate({"extra": extra})
        and not marker.evaluate({"extra": ""})
    ]


def _lacks(parts: list[Requirement], have: Mapping[str, str | None]) -> str:
    missing = [name for name, version in have.items() if version is None]
    if missing:
        partly = "" if len(missing) == len(have) else f" (without {', '.join(missing)})"
        return f"not installed{partly}"
    old = [part for part in parts if not part.specifier.contains(have[part.name] or "", True)]
    return ", ".join(f"{part.name} {have[part.name]} is not {part.specifier}" for part in old)


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


_START = "ray start --head"


def find_address(environ: Mapping[str, str]) -> str | None:
    """Where Ray itself would look for a running cluster, without loading it."""
    if named := environ.get("RAY_ADDRESS"):
        return named if named.rpartition(":")[2].isdecimal() and "/" not in named else None
    try:
        return (ray_folder(environ) / "ray_current_cluster").read_text("utf-8").strip() or None
    except OSError:
        return None


def ray_folder(environ: Mapping[str, str]) -> Path:
    """Where Ray keeps its sessions and their logs."""
    names = ("RAY_TMPDIR", "TMPDIR") if sys.platform.startswith("linux") else ("RAY_TMPDIR",)
    return Path(next(filter(None, map(environ.get, names)), "/tmp")) / "ray"


async def cluster_findings(ray: str | None, address: str | None) -> list[Finding]:
    """`ray` is the version that is installed, `address` a cluster's; None: there is none."""
    if ray is None:
        return []  # told as an extra
    if address is None:
        text = f"{ray}; no cluster runs here: dispatch=ray would start one for its run."
        return [Finding("ok", "ray", text)]
    return await ask_apart(f"{__name__}:look_at_cluster", address)


def look_at_cluster(address: str) -> list[Finding]:
    """In the other process, which alone loads Ray."""
    from engines.rollouts.remote.ray_cluster import RayCluster

    cluster = RayCluster(address, open_parts=_open_none, cpus_per_worker=0, environ={})
    try:
        return node_findings(address, *cluster.list_nodes())
    except StudioError as error:
        move = f"Start it ({_START}); `ray stop` forgets one that has ended, else see RAY_ADDRESS."
        return [Finding("note", f"cluster at {address}", error.cause, move)]


def node_findings(address: str, ours: str, nodes: Sequence[Any]) -> list[Finding]:
    """`ours` is what each of the nodes must have installed."""
    place = f"cluster at {address}"
    count, cpus = count_text(len(nodes), "node"), count_text(int(sum(n.cpus for n in nodes)), "CPU")
    found = [Finding("ok", place, f"{count}, {cpus}, {ours}.")]
    for node in nodes:
        if node.release != ours:
            cause = f"it has {node.release}, and this is {ours}."
            move = "Install the same on every node."
            if not node.release:
                cause, move = f"no worker answers there ({node.trouble}).", "See `ray status`."
            found.append(Finding("note", f"node {node.name}", cause, move))
    return found


def _open_none(*_: object) -> Any:
    raise AssertionError("no worker is opened")
