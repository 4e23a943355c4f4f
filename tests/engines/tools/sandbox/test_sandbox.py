"""Sessions of the sandbox: what a call gives back, what is kept, and what each tier asks for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.process import tiers
from engines.process.confinement import Limits
from engines.process.tiers import LAYERS, TierReport, choose_tier, find_tier
from engines.tools.sandbox.sandbox import MAX_CODE, RESTARTED, Sandbox, SandboxError, parse_reply

NOTHING = dict.fromkeys(LAYERS[:-1], "not allowed") | {"resource limits": "ok"}


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(Limits(wall_s=20), accept_limits_only=True, preload=())
    await sandbox.start()
    yield sandbox
    await sandbox.aclose()


def force_tier(monkeypatch: pytest.MonkeyPatch, found: TierReport) -> None:
    monkeypatch.setattr(tiers, "_found", found)


async def test_a_call_gives_output_value_and_variables(sandbox: Sandbox) -> None:
    session = sandbox.session()
    code = "import sys\nx = 3\n_hidden = 1\ndef f(): pass\nprint('out')\n"
    result = await session.run(f"{code}print('err', file=sys.stderr)\nx + 1")
    assert (result.status, result.value, result.error) == ("ok", "4", "")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.variables == ("x", "f")
    assert 0 < result.elapsed_s < 20


async def test_variables_are_named_without_asking_them_anything(sandbox: Sandbox) -> None:
    code = "class Slow:\n    def __repr__(self):\n        while True: pass\none = [Slow()]\ntwo = 2"
    result = await sandbox.session().run(f"{code}\nglobals()[3] = 3")
    assert (result.status, result.variables) == ("ok", ("Slow", "one", "two"))


async def test_state_is_kept_between_the_calls_of_a_session_alone(sandbox: Sandbox) -> None:
    one, other = sandbox.session(), sandbox.session()
    await one.run("x = 1; open('file', 'w').write('one')")
    assert (await one.run("x, open('file').read()")).value == "(1, 'one')"
    assert "NameError" in (await other.run("x")).error
    assert "FileNotFoundError" in (await other.run("open('file')")).error


async def test_an_error_tells_the_own_lines_of_the_code(sandbox: Sandbox) -> None:
    result = await sandbox.session().run("def f(n):\n    return 1 / n\n\nf(0)")
    assert result.status == "error"
    assert result.error == (
        "line 4, in <module>: f(0)\nline 2, in f: return 1 / n\nZeroDivisionError: division by zero"
    )


async def test_a_timeout_keeps_what_was_printed_and_says_that_variables_are_gone(
    sandbox: Sandbox,
) -> None:
    session = sandbox.session()
    stopped = await session.run("x = 1\nprint('before')\nwhile True: pass", wall_s=0.3)
    assert (stopped.status, stopped.stdout) == ("timeout", "before\n")
    after = await session.run("x")
    assert after.stderr == RESTARTED and "NameError" in after.error
    assert (await session.run("1")).stderr == ""


async def test_processor_time_is_limited_over_all_calls() -> None:
    sandbox = Sandbox(Limits(wall_s=20, cpu_s=1), accept_limits_only=True, preload=())
    await sandbox.start()
    result = await sandbox.session().run("while True: pass")
    await sandbox.aclose()
    assert result.status in ("timeout", "killed")
    assert result.elapsed_s < 15


async def test_threads_of_the_code_stand_still_between_its_calls(sandbox: Sandbox) -> None:
    session = sandbox.session()
    await session.run(
        "import threading\nn = 0\ndef count():\n    global n\n    while True: n += 1\n"
        "threading.Thread(target=count, daemon=True).start()"
    )
    before = int((await session.run("n")).value)
    await asyncio.sleep(0.2)
    code = "import time; started = n; time.sleep(0.2); m = n - started; m"
    between = int((await session.run("n")).value) - before
    assert between < int((await session.run(code)).value)


async def test_numpy_and_sympy_are_there() -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("sympy")
    sandbox = Sandbox(accept_limits_only=True)
    await sandbox.start()
    session = sandbox.session()
    code = "import numpy as np, sympy as s\nx = s.Symbol('x')\nnp.arange(3).sum(), s.integrate(x)"
    result = await session.run(code)
    assert result.value in ("(3, x**2/2)", "(np.int64(3), x**2/2)")
    solved = await session.run("s.solve(x**2 - 2), np.linalg.det(np.eye(3))")
    assert solved.status == "ok" and "sqrt(2)" in solved.value
    await sandbox.aclose()


async def test_a_killed_template_is_replaced(sandbox: Sandbox) -> None:
    session = sandbox.session()
    await session.run("x = 1")
    assert sandbox._host is not None and sandbox._host._process is not None
    os.kill(sandbox._host._process.pid, signal.SIGKILL)
    async with asyncio.timeout(30):  # its end takes a moment to reach its children
        while RESTARTED not in (await session.run("2 + 2")).stderr:
            pass
    assert (await session.run("2 + 2")).value == "4"


async def test_a_call_given_up_leaves_no_process_behind(sandbox: Sandbox) -> None:
    session = sandbox.session()
    call = asyncio.create_task(session.run("while True: pass"))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await session.run("1 + 1")).value == "2"


async def test_calls_that_are_given_up_at_any_moment_cost_no_other_session_its_state(
    sandbox: Sandbox,
) -> None:
    kept = sandbox.session()
    await kept.run("x = 7")
    for wait in range(12):
        session = sandbox.session()
        call = asyncio.create_task(session.run("1 + 1"))
        for _ in range(wait):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await session.aclose()
    assert (await kept.run("x")).value == "7"


async def test_an_interpreter_has_no_descriptor_of_the_template(sandbox: Sandbox) -> None:
    code = (
        "import os\nfound = 0\nfor n in range(64):\n"
        "    try: os.fstat(n); found += 1\n    except OSError: pass\nfound"
    )
    # stdin, stdout, stderr, the last two kept twice, and its channel
    assert (await sandbox.session().run(code)).value == "6"


async def test_a_closed_sandbox_starts_nothing_until_it_is_started(sandbox: Sandbox) -> None:
    session = sandbox.session()
    await session.run("1")
    await sandbox.aclose()
    with pytest.raises(SandboxError, match="closed"):
        await session.run("1")
    await sandbox.start()
    assert (await sandbox.session().run("2")).value == "2"


async def test_code_that_is_too_long_is_refused(sandbox: Sandbox) -> None:
    assert (await sandbox.session().run("1" * (MAX_CODE + 1))).status == "error"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has landlock and seccomp")
async def test_without_namespaces_landlock_and_seccomp_contain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = await find_tier()
    if not (found.holds("landlock") and found.holds("seccomp")):
        pytest.skip(f"landlock: {found.layers['landlock']}; seccomp: {found.layers['seccomp']}")
    report = choose_tier({**found.layers, "namespaces": "not allowed"})
    force_tier(monkeypatch, report)
    assert report.sentence == "landlock, seccomp, resource limits"
    (tmp_path / "secret").write_text("hidden")
    sandbox = Sandbox(preload=())
    assert (await sandbox.start()).tier == "no-namespaces"
    session = sandbox.session()
    for code in (
        f"open({str(tmp_path / 'secret')!r})",
        f"open('/proc/{os.getpid()}/environ')",
        "import os; os.fork()",
        f"import os; os.kill({os.getpid()}, 0)",
        "import socket; socket.socket()",
        "open('/tmp/breach', 'w')",
    ):
        assert "PermissionError" in (await session.run(code)).error, code
    assert (await session.run("open('own', 'w').write('x')")).value == "1"
    many = "for i in range(10**6): open(f'f{i}', 'wb').write(bytes(10**5))"
    assert "its files take more" in (await session.run(many)).error
    await sandbox.aclose()
    assert not list(Path(tempfile.gettempdir()).glob("studio-sandbox-*"))


async def test_resource_limits_alone_must_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    force_tier(monkeypatch, choose_tier(NOTHING))
    with pytest.raises(SandboxError, match=r"agent\.sandbox: resource-limits-only"):
        await Sandbox(preload=()).start()
    sandbox = Sandbox(Limits(wall_s=10), accept_limits_only=True, preload=())
    report = await sandbox.start()
    assert report.sentence == "resource limits only: no sandbox"
    session = sandbox.session()
    assert (await session.run("20 + 1")).value == "21"
    assert (await session.run("while True: pass", wall_s=0.3)).status == "timeout"
    assert (await session.run("x = bytearray(10**10)")).status == "memory"
    await sandbox.aclose()


async def test_the_tier_is_tried_once_and_every_layer_is_named() -> None:
    found = await find_tier()
    assert set(found.layers) == set(LAYERS)
    assert await find_tier() is found


@pytest.mark.parametrize(
    ("held", "tier"),
    [
        (("namespaces", "landlock", "seccomp"), "namespaces"),
        (("namespaces", "seccomp"), "namespaces"),
        (("landlock", "seccomp"), "no-namespaces"),
        (("namespaces", "landlock"), "resource-limits-only"),
        (("seccomp",), "resource-limits-only"),
        ((), "resource-limits-only"),
    ],
)
def test_a_tier_needs_its_layers(held: tuple[str, ...], tier: str) -> None:
    assert choose_tier({**NOTHING, **dict.fromkeys(held, "ok")}).tier == tier


@pytest.mark.parametrize(
    "reply",
    [None, [], {}, {"status": "output"}, {"status": ["ok"]}, {"failed": 1}, "ok", {"status": None}],
)
def test_what_is_no_reply_is_refused(reply: object) -> None:
    with pytest.raises(ValueError, match="no reply"):
        parse_reply(reply)


def test_a_reply_is_bounded_and_made_text() -> None:
    names = [f"v{n}".ljust(999, "x") for n in range(99)]
    fields = parse_reply({"status": "ok", "value": 7, "error": "\ud800", "variables": names})
    assert (fields["value"], fields["error"]) == ("", "?")
    assert len(fields["variables"]) == 50
    assert {len(text) for text in fields["variables"]} == {200}
    assert parse_reply({"status": "ok", "variables": {"x": "1"}})["variables"] == ()
