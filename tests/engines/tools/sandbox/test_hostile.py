"""Hostile programs in the sandbox: contained, with a clear result each, and nothing is left."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.process.confinement import Limits
from engines.process.tiers import TierReport, find_tier
from engines.tools.sandbox.sandbox import RESTARTED, RunResult, Sandbox
from tests.engines.tools.sandbox.hostile import HOSTILE, Hostile

SECRET = "SECRET" + "SAUCE"

if sys.platform != "linux":
    pytest.skip("only Linux has the layers", allow_module_level=True)


@dataclass
class Outcome:
    result: RunResult
    next: RunResult
    """Of a plain call in the same session."""


@dataclass
class Report:
    tier: TierReport
    outcomes: dict[str, Outcome]
    connections: list[str]
    left: list[str]


class Traps:
    """What the programs try to reach in this process."""

    def __init__(self, folder: Path) -> None:
        self.secret = folder / "home" / ".secret"
        self.secret.parent.mkdir(exist_ok=True)
        self.secret.write_text(SECRET)
        self.path = f"/tmp/trap-{os.getpid()}"
        self.abstract = f"sandbox-trap-{os.getpid()}"
        self.listeners = {
            "TCP": socket.create_server(("127.0.0.1", 0)),
            "Unix": socket.socket(socket.AF_UNIX),
            "abstract": socket.socket(socket.AF_UNIX),
            "abstract datagrams": socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        }
        self.listeners["Unix"].bind(self.path)
        self.listeners["abstract"].bind(f"\0{self.abstract}")
        self.listeners["abstract datagrams"].bind(f"\0{self.abstract}-datagrams")
        self.port = self.listeners["TCP"].getsockname()[1]
        for listener in self.listeners.values():
            listener.setblocking(False)
            if listener.type == socket.SOCK_STREAM:
                listener.listen()

    def fill(self, code: str) -> str:
        filled = code.replace("SECRET_FILE", str(self.secret)).replace("PORT", str(self.port))
        filled = filled.replace("PARENT", str(os.getpid())).replace("'PATH'", repr(self.path))
        bpf = "321" if platform.machine() == "x86_64" else "280"
        return filled.replace("ABSTRACT", self.abstract).replace("BPF", bpf)

    def connections(self) -> list[str]:
        found = []
        for name, listener in self.listeners.items():
            try:
                listener.recv(1) if name.endswith("datagrams") else listener.accept()
                found.append(name)
            except BlockingIOError:
                pass
            listener.close()
        return found


def descendants() -> Iterator[str]:
    """Live processes that come from this one. Orphans do, too, since it adopts them."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state != "Z":
            parents[int(folder.name)] = int(parent), name
    for pid, (_, name) in parents.items():
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor][0]
        if ancestor == os.getpid() != pid:
            yield name


async def run_all(traps: Traps) -> tuple[TierReport, dict[str, Outcome]]:
    sandbox = Sandbox(Limits(wall_s=8, memory_mb=256, disk_mb=4))
    tier = await sandbox.start()
    outcomes: dict[str, Outcome] = {}
    waiting = iter(HOSTILE)

    async def work() -> None:
        session = sandbox.session()
        for hostile in waiting:
            result = await session.run(traps.fill(hostile.code), wall_s=hostile.wall_s)
            # Something may be broken in this interpreter for good; then a new one is had by now.
            after = await session.run("6 * 7", wall_s=8)
            if after.status == "killed":
                after = await session.run("6 * 7", wall_s=8)
            outcomes[hostile.name] = Outcome(result, after)
            await session.aclose()

    await asyncio.gather(work(), work())
    await sandbox.aclose()
    return tier, outcomes


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    if asyncio.run(find_tier()).tier == "resource-limits-only":
        pytest.skip("this machine has neither namespaces nor landlock with seccomp")
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    before = list(descendants())
    traps = Traps(tmp_path_factory.mktemp("traps"))
    os.environ["A_KEY"] = SECRET
    try:
        tier, outcomes = asyncio.run(run_all(traps))
        connections = traps.connections()
    finally:
        os.unlink(traps.path)
        del os.environ["A_KEY"]
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    left = list(descendants())
    for name in before:
        if name in left:
            left.remove(name)
    assert traps.secret.read_text() == SECRET
    return Report(tier, outcomes, connections, left)


def test_there_are_enough_hostile_programs_each_with_a_name() -> None:
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE) >= 80


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: str(hostile.name))
def test_a_hostile_program_is_contained_with_a_clear_result(
    report: Report, hostile: Hostile
) -> None:
    outcome = report.outcomes[hostile.name]
    result = outcome.result
    said = "\n".join((result.value, result.stdout, result.stderr, result.error))
    clear = f"{result.status}: {said[:500]}"
    assert result.status in hostile.statuses, clear
    assert hostile.says in said, clear
    assert bool(result.error) == (result.status != "ok"), clear
    assert SECRET not in f"{said}{result.variables}" and "BREACH" not in result.stdout
    assert "True" not in result.stdout
    assert len(said) <= 240_000 and len(result.variables) <= 50


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: str(hostile.name))
def test_the_next_call_works(report: Report, hostile: Hostile) -> None:
    after = report.outcomes[hostile.name].next
    assert (after.status, after.value) == ("ok", "42")
    ended = report.outcomes[hostile.name].result.status not in ("ok", "error")
    assert after.stderr.startswith(RESTARTED) or not ended


def test_no_program_reached_a_socket_of_ours(report: Report) -> None:
    assert report.connections == []


def test_nothing_is_left_running(report: Report) -> None:
    assert report.left == []


def test_nothing_is_left_on_disk(report: Report) -> None:
    assert not list(Path(tempfile.gettempdir()).glob("studio-sandbox-*"))
    assert not Path("/breach").exists()
