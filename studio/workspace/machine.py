"""Checks of this machine, each made so that one that hangs or ends its process hides no other.

Reads; changes nothing.
"""

import asyncio
import locale
import os
import platform
import resource
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import orjson
from packaging.requirements import Requirement

from engines.core.codec import JsonMapping, fields_of
from engines.core.errors import StudioError, install_command, installed_version
from engines.process.tiers import find_tier
from engines.record.repair import Finding
from studio.process import is_hardened
from studio.render.words import count_text
from studio.secrets import output, sanitize

PACKAGE = "practice-studio"
_ROOT = str(Path(__file__).parents[2])


async def run_check(
    place: str, check: Awaitable[Iterable[Finding]], limit_s: float
) -> tuple[Finding, ...]:
    """Return what a check finds; that it fails or hangs is a finding, too."""
    try:
        async with asyncio.timeout(limit_s):
            return tuple(await check)
    except TimeoutError:
        cause = f"it did not answer within {limit_s:g} s."
        finding = Finding("note", place, cause, "Ask again; what hangs may be seen with `top`.")
    except StudioError as error:
        finding = Finding("fix", error.place, error.cause, error.move)
    except Exception as error:  # whatever it is, the other checks are of use all the same
        cause = f"it could not be looked at ({type(error).__name__}: {error})."
        finding = Finding("note", place, cause)
    return (finding,)


async def ask_program(*command: str, given: bytes = b"") -> tuple[int, str, str]:
    """Exit code, output and errors of a program; it is killed where whoever asks is cancelled."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        out, err = await process.communicate(given)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


async def ask_python(code: str, order: object = None) -> Any:
    """The JSON that Python code prints last, in a process of its own that can import the studio.

    So it is asked of libraries that take seconds to import, or of code that may hang.
    """
    start = f"import sys; sys.path.insert(0, {_ROOT!r})\n"
    start += "from studio.process import harden; harden()\n"
    command = (sys.executable, "-P", "-c", start + code)
    status, out, err = await ask_program(*command, given=orjson.dumps(order))
    try:
        return orjson.loads(out.strip().rpartition("\n")[2])
    except orjson.JSONDecodeError:
        said = err.strip().rpartition("\n")[2] or f"exit code {status}"
        raise RuntimeError(said) from None


async def ask_apart(check: str, *order: object) -> list[Finding]:
    """What `MODULE:FUNCTION` finds in a process of its own, given the order as JSON values."""
    code = f"from {__name__} import answer; answer({check!r})"
    return [Finding(**row) for row in await ask_python(code, order)]


def answer(check: str) -> None:
    """The other process: look, and print what was found, without secrets."""
    module, _, name = check.partition(":")
    order = orjson.loads(sys.stdin.buffer.read())
    try:
        found = list(getattr(import_module(module), name)(*order))
    except StudioError as error:
        found = [Finding("fix", error.place, error.cause, error.move)]
    rows = [fields_of(finding, "grade", "place", "cause", "move") for finding in found]
    print(output.mask_text(orjson.dumps(rows).decode()), flush=True)


LEAST_FREE = 200_000_000
"""Bytes: a run of 10,000 rollouts writes about as much."""
FEWEST_FILES = 1024
WANTED = (80, 24)
"""Columns and rows for which the screen is made."""
SLOW_S = 30.0
"""What one look at the machine may take."""


def machine_facts(workspace: Path) -> dict[str, Any]:
    """Facts about the machine, as plain JSON values."""
    usage = shutil.disk_usage(_nearest_folder(workspace))
    return {
        "studio": metadata.version(PACKAGE),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "encoding": locale.getpreferredencoding(False),
        "terminal": os.environ.get("TERM", "") if sys.stdout.isatty() else None,
        "free_bytes": usage.free,
        "hidden_from_debuggers": is_hardened(),
    }


async def machine_findings(
    workspace: Path,
    facts: JsonMapping,
    no_screen: tuple[str, str] | None,
    cluster: str | None,
) -> list[Finding]:
    """Look at everything at once.

    `no_screen` is place and cause where no screen can be drawn, `cluster` an address of Ray.
    """
    asked = await asyncio.gather(
        run_check("sandbox", _sandbox_findings(), SLOW_S),
        run_check("gpu", gpu_findings(installed_version("torch")), SLOW_S),
        run_check("ray", cluster_findings(installed_version("ray"), cluster), SLOW_S),
    )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = None if limit == resource.RLIM_INFINITY else limit
    mounts = _MOUNTS.read_text("utf-8", "replace") if _MOUNTS.exists() else ""
    size = os.get_terminal_size(2) if no_screen is None else os.terminal_size((0, 0))
    return [
        *basic_findings(workspace, facts),
        *(finding for group in asked for finding in group),
        *terminal_findings(os.environ.get("TERM", ""), no_screen, size, facts["encoding"]),
        *disk_findings(workspace, open_files, mounts),
        *extra_findings(metadata.requires(PACKAGE) or ()),
    ]


async def _sandbox_findings() -> list[Finding]:
    tier = await find_tier()
    if tier.in_force:
        return [Finding("ok", "sandbox", tier.sentence)]
    why = "; ".join(f"{layer}: {said}" for layer, said in tier.layers.items() if said != "ok")
    return [
        Finding(
            "note",
            "sandbox",
            f"{tier.sentence} ({why}).",
            "Agents with code or programs need a Linux with user namespaces or Landlock.",
        )
    ]


def basic_findings(workspace: Path, facts: JsonMapping) -> list[Finding]:
    """Problems that follow from these facts."""
    findings = []
    folder = str(_nearest_folder(workspace))
    if facts["free_bytes"] < LEAST_FREE:
        cause = f"only {facts['free_bytes'] / 1e6:.0f} MB are free."
        move = "Make room: a run that cannot write stops, resumable."
        findings.append(Finding("note", folder, cause, move))
    if not os.access(folder, os.W_OK):
        move = "Mend its permissions or choose another --workspace."
        findings.append(Finding("fix", folder, "it cannot be written to.", move))
    if facts["encoding"].lower().replace("-", "") not in ("utf8", "utf8sig"):
        cause = f"its encoding is {facts['encoding']}, so that some characters cannot be shown."
        findings.append(Finding("note", "locale", cause, "Set LC_ALL=C.UTF-8."))
    return findings


def _nearest_folder(path: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


_MOUNTS = Path("/proc/self/mountinfo")
"""What is mounted, as Linux tells it."""
_NETWORK = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "drvfs", "glusterfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "prl_fs", "smb3", "smbfs", "vboxsf", "fuse.gcsfuse", "fuse.glusterfs"),
    *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
)
"""Where rename, flock and fsync promise less, or nothing to another machine."""


def disk_findings(folder: Path, open_files: int | None, mounts: str) -> list[Finding]:
    """What the workspace lies on, and how many files may be open; None: any number."""
    kind = file_system(folder.absolute(), mounts)
    findings = []
    if kind in _NETWORK:
        cause = f"it lies on {kind}: what was written may be lost, and locks may not hold, there."
        move = "Use a --workspace on a local disk, and copy it when a run has ended."
        findings.append(Finding("note", str(folder), cause, move))
    if open_files is not None and open_files < FEWEST_FILES:
        cause = f"only {open_files} may be open at a time: many calls at once will fail."
        move = f"Run: ulimit -n {4 * FEWEST_FILES}"
        findings.append(Finding("note", "open files", cause, move))
    if not findings:
        most = "any number of" if open_files is None else f"{open_files:,}"
        findings.append(Finding("ok", "disk", f"{kind or 'a file system'}, {most} open files."))
    return findings


def file_system(folder: Path, mounts: str) -> str:
    """The kind of file system that a folder lies on; "" where that is not known."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        where, _, rest = line.partition(" - ")
        point = where.split(" ")[4].replace("\\040", " ")
        # Of two that are mounted at one place the later one is seen.
        if folder.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), rest.split(" ")[0]
    return kind


def terminal_findings(
    term: str, no_screen: tuple[str, str] | None, size: os.terminal_size, encoding: str
) -> list[Finding]:
    if no_screen is not None:
        place, cause = no_screen
        return [
            Finding("note", place, f"{cause}.", "`studio headless` and `studio review` do without.")
        ]
    is_size = f"{size.columns}x{size.lines}"
    findings = [Finding("ok", "terminal", f"{term}, {is_size}, {encoding}.")]
    if size.columns < WANTED[0] or size.lines < WANTED[1]:
        cause = f"it has {is_size}, and the screen is made for {WANTED[0]}x{WANTED[1]}."
        findings.append(Finding("note", "terminal", cause, "Make it larger."))
    return findings


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
    findings, whole = list[Finding](), list[str]()
    for extra, gives in GIVES.items():
        versions = {name: version_of(name) for name in _packages(every, extra)}
        if missing := [name for name, version in versions.items() if version is None]:
            findings.append(
                Finding(
                    "ok",
                    f"extra {extra}",
                    f"not installed ({', '.join(missing)}); it gives {gives}.",
                    f"Run: {install_command(extra)}",
                )
            )
        else:
            packages = ", ".join(f"{name} {version}" for name, version in versions.items())
            whole.append(f"{extra} ({packages or 'part of Python'})")
    if whole:
        findings.append(Finding("ok", "extras", f"{', '.join(whole)}."))
    return findings


def _packages(every: list[Requirement], extra: str) -> list[str]:
    """Names of what an extra installs beside the studio's own requirements."""
    names = []
    for requirement in every:
        marker = requirement.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            names.append(requirement.name)
    return names


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


async def gpu_findings(
    torch: str | None, ask_torch: Callable[[str], Awaitable[Any]] = ask_python
) -> list[Finding]:
    """`torch` is the version that is installed; None: none is."""
    findings: list[Finding] = []
    if shutil.which("nvidia-smi"):
        status, out, err = await ask_program("nvidia-smi", *_QUERY)
        if status:
            return [
                Finding(
                    "note",
                    "gpu",
                    f"its driver does not answer ({sanitize.one_line(out or err, 200)}).",
                    "Load the driver (modprobe nvidia), or install it again.",
                )
            ]
        for line in out.splitlines():
            name, memory, used, driver = line.split(", ")
            text = f"{name}, {used} of {memory} MiB in use, driver {driver}."
            findings.append(Finding("ok", "gpu", text))
    elif not _DRIVER.exists() and sys.platform != "darwin":
        text = "none here" + (f"; torch {torch} computes on the CPU." if torch else ".")
        return [Finding("ok", "gpu", text)]
    if torch is None:
        text = "torch is not installed: only endpoints can use it."
        return [*findings, Finding("ok", "torch", text)]
    return [*findings, torch_finding(torch, await ask_torch(_TORCH))]


def torch_finding(version: str, seen: JsonMapping) -> Finding:
    if seen["gpus"] or seen["mps"]:
        what = f"{seen['gpus']} GPU (CUDA {seen['cuda']})" if seen["gpus"] else "the GPU (MPS)"
        return Finding("ok", "torch", f"{version} sees {what}.")
    if not seen["cuda"]:
        cause = f"{version} is built for the CPU alone."
        move = "Install one for CUDA: see https://pytorch.org/get-started/locally"
    else:
        why = sanitize.one_line(str(seen["said"]), 200)
        cause = f"{version} (CUDA {seen['cuda']}) sees no GPU ({why})."
        move = "See whether CUDA_VISIBLE_DEVICES hides it, or update the driver."
    return Finding("note", "torch", cause, move)


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
    folder = environ.get("RAY_TMPDIR")
    if not folder and sys.platform.startswith("linux"):
        folder = environ.get("TMPDIR")
    return Path(folder or "/tmp", "ray")


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
        return [
            Finding(
                "note",
                f"cluster at {address}",
                error.cause,
                "Start it (ray start --head); `ray stop` forgets one that ended; or see "
                "RAY_ADDRESS.",
            )
        ]


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
