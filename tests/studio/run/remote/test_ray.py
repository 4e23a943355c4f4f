"""`dispatch: ray` with a real local cluster of two worker processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from engines.record.run_dir import Workspace
from studio.workspace.machine import ray_folder
from tests.support.harness import comparable
from tests.support.processes import running, studio
from tests.support.usage import read_usage

TOOLS = (
    *("math", "practice.batch_size=6", "practice.group_size=4", "data.truncate=12"),
    *("evaluation.do_eval=false", "practice.concurrency=8"),
)
RAY = ("dispatch=ray", "ray.address=local", "ray.tries_per_worker=4")
PLANTED = "sk-planted-4f9d2c7b8a1e6035"


def workers(of: int) -> list[psutil.Process]:
    """The worker processes of a cluster that a process has started."""
    found = []
    for child in psutil.Process(of).children(recursive=True):
        with suppress(psutil.Error):  # some end just now
            if "ray::_Actor" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.mark.nightly
def test_a_run_on_two_workers_equals_one_here_though_one_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "practice"
    assert studio(home, "headless", *TOOLS, "--name", "here").returncode == 0
    key = f"policy={{model: rehearsal, api_key: {PLANTED}, headers: {{X-Team: {PLANTED}x}}}}"
    with running(home, *TOOLS, *RAY, key, "--name", "there") as process:
        process.until("RolloutFinished", 5)
        found = workers(process.child.pid)
        assert len(found) == 2
        shown = [worker.environ() for worker in found]
        found[0].kill()
        assert process.end() == 0
    runs = [Workspace(home).run(name) for name in ("here", "there")]
    assert comparable(runs[0]) == comparable(runs[1])
    paid = [sorted(map(repr, read_usage(run.records))) for run in runs]
    assert paid[0] == paid[1]
    assert not [names for names in shown if any(PLANTED in value for value in names.values())]
    # Where Ray writes: see `studio.workspace.machine.ray_folder`; a session ends with its pid.
    (session,) = ray_folder(os.environ).glob(f"session_*_{process.child.pid}")
    logs = [path for path in session.rglob("*") if path.suffix in (".log", ".out", ".err")]
    assert logs  # else nothing is looked at
    assert not [path for path in logs if PLANTED.encode() in path.read_bytes()]
