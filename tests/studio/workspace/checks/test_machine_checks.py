"""What the doctor finds of terminal, disk, GPU, extras and cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import StudioError
from engines.record.repair import Finding
from studio.workspace.machine import (
    GIVES,
    ask_program,
    ask_python,
    cluster_findings,
    disk_findings,
    extra_findings,
    file_system,
    find_address,
    gpu_findings,
    run_check,
    terminal_findings,
)
from tests.support.forked_studio import STUDIO
from tests.support.screen_terminal import Terminal


def grades(found: list[Finding]) -> list[str]:
    return [finding.grade for finding in found]


def a_program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the beginning of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


# -- how things are asked ------------------------------------------------------------------


async def test_a_check_that_hangs_fails_or_is_refused_is_a_finding() -> None:
    async def fail() -> list[Finding]:
        raise ValueError("odd")

    async def refuse() -> list[Finding]:
        raise StudioError("x.yaml:3", "it is wrong.", "Write it right.")

    (hung,) = await run_check("gpu", asyncio.Event().wait(), 0)  # type: ignore[arg-type]
    (failed,) = await run_check("gpu", fail(), 5)
    (refused,) = await run_check("run", refuse(), 5)
    assert (hung.grade, hung.place) == ("note", "gpu") and "did not answer within" in hung.cause
    assert failed == Finding("note", "gpu", "it could not be looked at (ValueError: odd).")
    assert refused == Finding("fix", "x.yaml:3", "it is wrong.", "Write it right.")


async def test_a_program_that_hangs_is_killed_with_its_check(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    os.mkfifo(told)
    asking = asyncio.create_task(ask_program("sh", "-c", f"echo $$ > {told}; exec sleep 1000"))
    pid = int(await asyncio.to_thread(told.read_text))
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)


async def test_a_process_that_says_nothing_is_told_by_its_last_words() -> None:
    assert await ask_python("print('noise'); print('[1]')") == [1]
    with pytest.raises(RuntimeError, match="ValueError: no"):
        await ask_python("raise ValueError('no')")


# -- terminal -----------------------------------------------------------------


def test_a_terminal_is_told_with_size_and_encoding() -> None:
    (found,) = terminal_findings("xterm", None, os.terminal_size((120, 36)), "UTF-8")
    assert found == Finding("ok", "terminal", "xterm, 120x36, UTF-8.")


def test_a_small_terminal_and_none_at_all_are_noted() -> None:
    small = terminal_findings("xterm", None, os.terminal_size((50, 10)), "UTF-8")
    assert grades(small) == ["ok", "note"] and "50x10" in small[1].cause
    no_screen = ("standard input", "it is no terminal")
    (none,) = terminal_findings("", no_screen, os.terminal_size((0, 0)), "UTF-8")
    assert none.grade == "note" and "studio headless" in none.move


def test_in_a_real_terminal_its_size_is_told_and_it_is_left_as_it_was(tmp_path: Path) -> None:
    words = [*STUDIO, "--workspace", str(tmp_path / "practice"), "doctor"]
    environ = {"RAY_TMPDIR": str(tmp_path)}
    with Terminal(words, columns=200, rows=60, environ=environ, cwd=tmp_path) as terminal:
        assert terminal.ended(60) == 0
        assert "terminal: xterm-256color, 200x60, UTF-8." in terminal.text
        assert terminal.is_sane


# -- disk --------------------------------------------------------------------------------

MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home/my\\040data rw shared:1 - nfs4 server:/x rw
31 22 0:41 / /home rw - xfs /dev/sdb rw
"""


def test_a_network_file_system_and_few_open_files_are_noted() -> None:
    assert file_system(Path("/home/my data/practice"), MOUNTS) == "nfs4"
    assert file_system(Path("/home/mine"), MOUNTS) == "xfs"
    assert file_system(Path("/homes"), MOUNTS) == "ext4"
    found = disk_findings(Path("/home/my data/practice"), 256, MOUNTS)
    assert grades(found) == ["note", "note"]
    assert "nfs4" in found[0].cause and "ulimit -n 4096" in found[1].move
    assert grades(disk_findings(Path("/x"), 20_000, MOUNTS)) == ["ok"]


# -- GPU, extras, cluster -------------------------------------------------------------------


async def torch_says(**said: Any) -> Any:
    return {"cuda": "12.8", "gpus": 0, "mps": False, "said": "", **said}


async def test_a_gpu_is_told_with_memory_driver_and_what_torch_sees(programs: Path) -> None:
    a_program(programs, "nvidia-smi", "echo 'NVIDIA H100, 81559, 1024, 550.54'")
    found = await gpu_findings("2.13.0", ask_torch=lambda _: torch_says(gpus=1))
    assert [one.cause for one in found] == [
        "NVIDIA H100, 1024 of 81559 MiB in use, driver 550.54.",
        "2.13.0 sees 1 GPU (CUDA 12.8).",
    ]
    (_, without) = await gpu_findings(None)
    assert "torch is not installed" in without.cause


@pytest.mark.parametrize(
    ("said", "cause", "move"),
    [
        ({"said": "The NVIDIA driver is too old"}, "too old", "update the driver"),
        ({"cuda": None}, "built for the CPU alone", "pytorch.org"),
        ({}, "sees no GPU", "CUDA_VISIBLE_DEVICES"),
    ],
)
async def test_a_gpu_that_torch_does_not_see_is_noted_with_the_reason(
    programs: Path, said: dict[str, Any], cause: str, move: str
) -> None:
    a_program(programs, "nvidia-smi", "echo 'NVIDIA H100, 81559, 80000, 450.1'")
    _, torch = await gpu_findings("2.13.0", ask_torch=lambda _: torch_says(**said))
    assert torch.grade == "note" and cause in torch.cause and move in torch.move


async def test_a_driver_that_does_not_answer_is_noted_and_torch_is_not_asked(
    programs: Path,
) -> None:
    a_program(programs, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    (found,) = await gpu_findings("2.13.0", ask_torch=lambda _: torch_says())
    assert found.grade == "note" and "NVIDIA-SMI has failed" in found.cause


REQUIRES = (
    "orjson>=3",
    "torch>=2.13; extra == 'grpo'",
    "peft<1,>=0.21; extra == 'grpo'",
    "ray>=2.50; extra == 'ray'",
    "mcp<3,>=2; extra == 'mcp'",
    "backports-zstd>=1; python_version < '3' and extra == 'inspect'",
)


def test_extras_are_told_with_versions_what_they_lack_and_how_they_are_installed() -> None:
    installed = {"torch": "2.13.0+cpu", "mcp": "1.9", "ray": "2.60.0"}
    found = {one.place: one for one in extra_findings(REQUIRES, installed.get)}
    grpo, whole = found["extra grpo"], found["extras"]
    assert grpo.grade == "ok" and grpo.cause.startswith("not installed (peft)")
    assert "[grpo]" in grpo.move and GIVES["grpo"] in grpo.cause
    assert "ray (ray 2.60.0)" in whole.cause and "inspect (part of Python)" in whole.cause


def test_every_extra_that_users_install_is_known() -> None:
    root = Path(__file__).parents[4]
    asked = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert set(asked["optional-dependencies"]) - {"dev", "bench", "rl"} == set(GIVES)


def test_a_cluster_is_looked_for_where_ray_would(tmp_path: Path) -> None:
    assert find_address({"RAY_TMPDIR": str(tmp_path)}) is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("10.0.0.1:6379")
    assert find_address({"RAY_TMPDIR": str(tmp_path)}) == "10.0.0.1:6379"
    if sys.platform.startswith("linux"):
        assert find_address({"TMPDIR": str(tmp_path)}) == "10.0.0.1:6379"
    assert find_address({"RAY_ADDRESS": "10.0.0.2:6379"}) == "10.0.0.2:6379"


async def test_without_a_cluster_none_is_asked_or_started() -> None:
    (found,) = await cluster_findings("2.60.0", None)
    assert "no cluster runs here" in found.cause
    assert await cluster_findings(None, "10.0.0.1:6379") == []


async def test_a_cluster_that_has_ended_is_noted() -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    (found,) = await cluster_findings("2.60.0", "127.0.0.1:9")
    assert found.grade == "note" and "nothing answers at 127.0.0.1:9" in found.cause
    assert "ray stop" in found.move


def test_nodes_with_another_release_are_named() -> None:
    from studio.workspace.machine import node_findings

    class Node:
        def __init__(self, name: str, release: str, trouble: str = "") -> None:
            self.name, self.cpus, self.release, self.trouble = name, 2.0, release, trouble

    nodes = [Node("a", "studio 1"), Node("b", "studio 0"), Node("c", "", "Get timed out")]
    whole, old, mute = node_findings("h:1", "studio 1", nodes)
    assert whole.cause == "3 nodes, 6 CPUs, studio 1."
    assert old.place == "node b" and "it has studio 0, and this is studio 1." in old.cause
    assert "no worker answers there (Get timed out)" in mute.cause
