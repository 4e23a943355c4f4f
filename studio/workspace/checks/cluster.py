"""The Ray cluster of this machine: whether one runs, and what its nodes have. Never starts one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.core.errors import StudioError
from engines.record.repair import Finding
from studio.render.words import count_text
from studio.workspace.ask import ask_apart

_START = "ray start --head"


def find_address(environ: Mapping[str, str]) -> str | None:
    """Where Ray itself would look for a running cluster, without loading it."""
    if named := environ.get("RAY_ADDRESS"):
        return named if named.rpartition(":")[2].isdecimal() and "/" not in named else None
    try:
        folder = Path(environ.get("RAY_TMPDIR") or "/tmp") / "ray"
        return (folder / "ray_current_cluster").read_text("utf-8").strip() or None
    except OSError:
        return None


async def cluster_findings(ray: str | None, address: str | None) -> list[Finding]:
    """`ray` is the version that is installed, `address` a cluster's; None: there is none."""
    if ray is None:
        return []  # told as an extra
    if address is None:
        text = f"{ray}; no cluster runs here: dispatch=ray would start one for its run."
        return [Finding("ok", "ray", text)]
    return await ask_apart(f"{__name__}:look", address)


def look(address: str) -> list[Finding]:
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
