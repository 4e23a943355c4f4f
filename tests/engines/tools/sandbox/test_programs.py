"""Any program in the sandbox: what it reaches, what it leaves, and how it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from textwrap import dedent

import pytest

from engines.process import landlock, tiers
from engines.process.confinement import Limits
from engines.process.tiers import choose_tier, find_tier
from engines.tools.sandbox.sandbox import Program, ProgramResult, Sandbox

LIMITS = Limits(wall_s=60, memory_mb=1024)
NOT_THERE = f"/tmp/not-there-{os.getpid()}"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    if (await find_tier()).tier != "namespaces":
        pytest.skip("this machine gives no namespaces")
    sandbox = Sandbox(LIMITS)
    yield sandbox
    await sandbox.aclose()


async def start_python(sandbox: Sandbox, folder: Path, code: str, **more: object) -> Program:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "MARK": "1"}
    argv = [sys.executable, "-I", "-c", dedent(code)]
    return await sandbox.start_program(argv, folder=folder, env=env, **more)  # type: ignore[arg-type]


async def run_python(sandbox: Sandbox, folder: Path, code: str, **more: object) -> ProgramResult:
    return await (await start_python(sandbox, folder, code, **more)).wait()


async def test_a_program_has_its_streams_folder_and_exactly_its_environment(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    code = """
        import os, sys
        open("made", "w").write(sys.stdin.read())
        print(os.getcwd(), os.environ["HOME"], sorted(set(os.environ) - {"LC_CTYPE"}))
        print("said", file=sys.stderr)
        sys.exit(7)
    """
    result = await run_python(sandbox, tmp_path, code, stdin=b"given")
    assert (result.status, result.returncode, result.stderr) == ("error", 7, "said\n")
    assert result.stdout == f"{tmp_path} {tmp_path} ['HOME', 'MARK', 'PATH']\n"
    assert (tmp_path / "made").read_text() == "given"


async def test_the_listener_is_reached_from_inside_and_nothing_else_is(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        code = f"""
            import socket, urllib.request
            proxy = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
            print(proxy.open("http://127.0.0.1:8123/v1", timeout=20).read())
            for address in (("127.0.0.1", {ours.getsockname()[1]}), ("1.1.1.1", 53)):
                try:
                    socket.create_connection(address, timeout=5)
                    print("reached", address)
                except OSError as error:
                    print(type(error).__name__)
        """
        program = await start_python(sandbox, tmp_path, code, port=8123)
        assert program.listener is not None
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            connection, _ = await loop.sock_accept(program.listener)
        with connection:
            connection.setblocking(False)
            assert (await loop.sock_recv(connection, 4096)).startswith(b"GET /v1 ")
            await loop.sock_sendall(connection, b"HTTP/1.0 200 OK\r\n\r\nhello")
        result = await program.wait()
    assert result.stdout == "b'hello'\nConnectionRefusedError\nOSError\n", result.stderr


async def test_a_program_reads_and_writes_nothing_outside(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "hidden")
    home, folder, shared = (tmp_path / name for name in ("home", "folder", "shared"))
    for path in (home, folder, shared):
        path.mkdir()
        (path / "file").write_text("hidden")
    code = f"""
        import glob, os
        paths = [{str(home / "file")!r}, "/proc/{os.getpid()}/environ", "/etc/shadow"]
        for path in paths + glob.glob("/proc/*/environ"):
            try:
                print("hidden" in open(path).read())
            except OSError as error:
                print(type(error).__name__)
        print(open({str(shared / "file")!r}).read())
        for path in ({str(shared / "new")!r}, "/usr/new", "/new", "/dev/shm/new", os.__file__):
            try:
                open(path, "a")
                print("written", path)
            except OSError:
                pass
        open({NOT_THERE!r}, "w"), open("file", "w")
    """
    result = await run_python(sandbox, folder, code, readable=[shared])
    assert result.status == "ok", result.stderr
    assert "True" not in result.stdout and "written" not in result.stdout
    assert result.stdout.splitlines()[-1] == "hidden"
    assert (home / "file").read_text() == "hidden" == (shared / "file").read_text()
    assert not Path(NOT_THERE).exists()


async def test_a_kill_ends_a_daemon_that_left_its_parent(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
        import os, sys, time
        for _ in range(2):
            if os.fork():
                if _ == 0: os.wait(); print("up", flush=True); time.sleep(600)
                os._exit(0)
            os.setsid()
        open("daemon", "w").write("x")
        os.execv(sys.executable, [sys.executable, "-c", SLEEP])
    """.replace("SLEEP", repr(f"import time; time.sleep(600) # {tmp_path}"))
    program = await start_python(sandbox, tmp_path, code)
    async with asyncio.timeout(30):
        while not list(with_text(str(tmp_path), "time.sleep(600) #")):
            await asyncio.sleep(0.02)
    await program.kill()
    result = await program.wait()
    assert (result.status, result.returncode) == ("killed", None)
    assert list(with_text(str(tmp_path), "")) == []


def with_text(mark: str, text: str) -> Iterable[str]:
    """Command lines of live processes that hold both."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
            if mark in line and text in line and int(folder.name) != os.getpid():
                yield line


async def test_what_a_program_leaves_running_ends_with_it(sandbox: Sandbox, tmp_path: Path) -> None:
    code = f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # {tmp_path}"],
                         start_new_session=True)
    """
    began = time.monotonic()
    result = await run_python(sandbox, tmp_path, code)
    assert result.status == "ok" and time.monotonic() - began < 30
    assert list(with_text(str(tmp_path), "")) == []


async def test_a_program_that_goes_on_too_long_is_stopped(sandbox: Sandbox, tmp_path: Path) -> None:
    code = "import os\nos.fork()\nprint('begun', flush=True)\nwhile True: pass"
    result = await run_python(sandbox, tmp_path, code, limits=Limits(wall_s=0.8))
    assert (result.status, result.returncode) == ("timeout", None)
    assert result.error == "it was stopped after 0.8 s"


async def test_a_fork_bomb_meets_its_limit(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
        import os, time
        children = 0
        while True:
            try:
                if os.fork() == 0: time.sleep(600)
                children += 1
            except BlockingIOError:
                break
        print(children)
    """
    result = await run_python(sandbox, tmp_path, code, limits=Limits(wall_s=60, processes=16))
    assert result.status == "ok" and int(result.stdout) <= 20


@pytest.mark.parametrize(
    "code",
    [
        "socket.socket(socket.AF_VSOCK)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "os.kill(-1, 9) or os.kill(PARENT, 9)",
        "check(libc.unshare(0x10000000))",
        "check(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
        "check(libc.ptrace(16, 1, 0, 0))",
        "check(libc.setuid(0))",
        "os.chroot('/')",
        "open('/proc/1/mem', 'rb').read(1)",
        "open('/proc/1/environ', 'rb').read(1)",
        "open('/proc/sys/kernel/core_pattern', 'w')",
        "os.mknod('disk', 0o60666, os.makedev(8, 0))",
    ],
)
async def test_a_program_gets_no_power(sandbox: Sandbox, tmp_path: Path, code: str) -> None:
    before = """
        import ctypes, os, socket
        libc = ctypes.CDLL(None, use_errno=True)
        def check(result):
            if result < 0: raise OSError(ctypes.get_errno(), "refused")
    """
    line = code.replace("PARENT", str(os.getpid()))
    result = await run_python(sandbox, tmp_path, f"{dedent(before)}\n{line}\nprint('BREACH')")
    assert "BREACH" not in result.stdout
    assert result.status == "error" and "Error" in result.stderr, result


async def test_a_program_has_no_descriptor_but_its_streams(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    result = await run_python(sandbox, tmp_path, "import os; print(os.listdir('/proc/self/fd'))")
    if result.status != "ok":
        pytest.skip("this machine mounts no /proc in a namespace")
    assert result.stdout == "['0', '1', '2', '3']\n"  # 3 is that of the listing


async def test_a_program_that_is_not_there_says_so(sandbox: Sandbox, tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin"}
    program = await sandbox.start_program(["no-such-program"], folder=tmp_path, env=env)
    result = await program.wait()
    assert (result.status, result.returncode) == ("error", 127)
    assert "no-such-program cannot be started" in result.stderr


async def test_of_much_output_the_end_is_kept(sandbox: Sandbox, tmp_path: Path) -> None:
    code = "print('x' * 10**7 + 'end')"
    result = await run_python(sandbox, tmp_path, code)
    assert result.stdout.endswith("xend\n") and len(result.stdout) == 1 << 16


async def test_without_namespaces_one_port_is_left_and_nothing_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await find_tier()
    if not (found.holds("landlock") and found.holds("seccomp")):
        pytest.skip(f"landlock: {found.layers['landlock']}; seccomp: {found.layers['seccomp']}")
    if landlock.version() < 4:
        pytest.skip("this kernel's landlock knows no ports")
    monkeypatch.setattr(tiers, "_found", choose_tier({**found.layers, "namespaces": "not allowed"}))
    (tmp_path / "outside").write_text("hidden")
    folder = tmp_path / "folder"
    folder.mkdir()
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    port, other = (server.getsockname()[1] for server in servers)
    code = f"""
        import os, socket, subprocess, sys
        socket.create_connection(("127.0.0.1", {port}), timeout=9)
        for attempt in (
            lambda: socket.create_connection(("127.0.0.1", {other}), timeout=9),
            lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            lambda: open({str(tmp_path / "outside")!r}),
            lambda: open("/proc/{os.getpid()}/environ"),
            lambda: open({NOT_THERE!r}, "w"),
            lambda: os.kill({os.getpid()}, 0),
        ):
            try:
                attempt()
            except PermissionError:
                print("refused")
        open("own", "w")
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # {tmp_path}"],
                         start_new_session=True)
    """
    sandbox = Sandbox(LIMITS)
    program = await start_python(sandbox, folder, code, port=port)
    assert program.listener is None
    result = await program.wait()
    for server in servers:
        server.close()
    assert (result.status, result.stdout) == ("ok", "refused\n" * 6), result.stderr
    assert list(with_text(str(tmp_path), "")) == []


async def test_with_resource_limits_alone_a_program_runs_and_is_killed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"resource limits": "ok"}
    monkeypatch.setattr(tiers, "_found", choose_tier(layers))
    sandbox = Sandbox(LIMITS, accept_limits_only=True)
    program = await start_python(sandbox, tmp_path, "import time; time.sleep(600)")
    await program.kill()
    assert (await program.wait()).status == "killed"
