"""What a process that confines itself can still do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from engines.process import seccomp
from engines.process.tiers import choose_tier, find_tier

TRY = """
    import json, os, pathlib, signal, socket, subprocess, sys, tempfile
    from engines.process import namespaces
    from engines.process.confinement import confine
    own = namespaces.system_paths(programs=False)
    inside, outside, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
    layers = confine({arguments})
    def outcome(attempt):
        try:
            attempt()
        except OSError as error:
            return type(error).__name__
        return "done"
    print(json.dumps([layers, {{
        "write inside": outcome(lambda: open(inside + "/new", "w")),
        "write outside": outcome(lambda: open(outside + "/new", "w")),
        "read outside": outcome(lambda: open(outside + "/file")),
        "read the interpreter": outcome(lambda: open(os.__file__)),
        "signal": outcome(lambda: os.kill(parent, 0)),
        "socket": outcome(socket.socket),
        "child": outcome(lambda: subprocess.run([sys.executable, "-c", ""], check=True)),
    }}]))
"""
TRACE = """
    import ctypes, sys
    from engines.process.confinement import confine
    confine(None, readable=None, writable=(), code=False, network=True)
    print(ctypes.CDLL(None).ptrace(16, int(sys.argv[3]), 0, 0))
"""


async def said_by(code: str, folder: Path) -> str:
    found = await find_tier()
    if choose_tier({**found.layers, "namespaces": "left out"}).tier != "no-namespaces":
        pytest.skip(f"landlock: {found.layers['landlock']}; seccomp: {found.layers['seccomp']}")
    for name in ("inside", "outside"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
    places = [str(folder / "inside"), str(folder / "outside"), str(os.getpid())]
    done = subprocess.run(
        [sys.executable, "-c", dedent(code), *places],
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


async def test_a_worker_of_ours_reads_its_interpreter_and_nothing_else(tmp_path: Path) -> None:
    code = TRY.format(arguments="None, readable=own, writable=[inside], code=True")
    layers, outcomes = json.loads(await said_by(code, tmp_path))
    assert layers == ["landlock", "seccomp"]
    allowed = {name for name, outcome in outcomes.items() if outcome == "done"}
    assert allowed == {"write inside", "read the interpreter"}
    assert set(outcomes.values()) == {"done", "PermissionError"}


async def test_a_worker_with_code_of_the_user_reads_all_and_writes_its_folder(
    tmp_path: Path,
) -> None:
    code = TRY.format(arguments="None, readable=None, writable=[inside], code=False, network=True")
    layers, outcomes = json.loads(await said_by(code, tmp_path))
    assert layers == ["landlock", "seccomp"]
    refused = {name for name, outcome in outcomes.items() if outcome == "PermissionError"}
    assert {"write outside"} <= refused <= {"write outside", "signal"}  # version 6 has signals


async def test_it_traces_no_process_outside(tmp_path: Path) -> None:
    assert await said_by(TRACE, tmp_path) == "-1\n"


async def test_with_resource_limits_alone_nothing_is_confined(tmp_path: Path) -> None:
    code = TRY.format(arguments="[], readable=(), writable=(), code=True")
    layers, outcomes = json.loads(await said_by(code, tmp_path))
    assert layers == [] and set(outcomes.values()) == {"done"}


@pytest.mark.parametrize("x86", [True, False])
@pytest.mark.parametrize("code", [True, False])
def test_jumps_of_a_filter_stay_inside_and_it_ends_with_a_verdict(x86: bool, code: bool) -> None:
    content = seccomp.build_filter(1, code=code, streams_only=True, x86=x86)
    size = len(content) // 8
    assert size < 4096  # what the kernel takes
    for place in range(size):
        operation = int.from_bytes(content[8 * place : 8 * place + 2], "little")
        if operation & 7 == 5:  # a jump
            assert place + 1 + max(content[8 * place + 2 : 8 * place + 4]) < size
    assert content[-8:-6] == b"\x06\x00"
