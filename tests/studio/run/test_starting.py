"""What a run says while it is opened, and how the screen that waits for it hears that."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import ConflictError, StudioError
from engines.core.types import Problem
from engines.core.waiting import slow_stage
from engines.record.run_dir import Workspace
from studio.config.settings.policy import PolicyConfig
from studio.config.source import Source
from studio.run import new_or_resume
from studio.run.assemble import open_run_context
from studio.run.detached import start
from studio.run.models import LocalModels
from studio.run.new_or_resume import RunRequest, plan_run
from tests.support.harness import QUIET, load_once, practised
from tests.support.virtual_clock import on_virtual_clock


def test_a_part_that_takes_a_second_is_told_and_a_quick_one_is_not() -> None:
    told: list[str] = []

    async def opened() -> None:
        with slow_stage(told.append, "loading the verifier math"):
            await asyncio.sleep(0.5)
        with slow_stage(told.append, "asking a model for a first reply"):
            await asyncio.sleep(20)

    on_virtual_clock(opened())
    assert told == ["asking a model for a first reply …"]


def test_a_model_with_weights_here_is_told_before_it_is_loaded(tmp_path: Path) -> None:
    told: list[str] = []
    config = load_once("rehearsal", QUIET, tmp_path, {}).config
    with pytest.raises(StudioError):
        LocalModels(config, told.append).open(PolicyConfig(model="hf:/nowhere/at/all"))
    assert told == ["loading hf:/nowhere/at/all …"]


async def test_a_process_that_starts_is_heard_while_it_does(tmp_path: Path) -> None:
    program = (
        "import os, sys; fd = int(sys.argv[1]); "
        "os.write(fd, b'a note\\nloading hf:tiny \\xe2\\x80\\xa6\\nanother note\\n')"
    )

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        fd = next(word for word in command if word.startswith("--ready-fd=")).partition("=")[2]
        return subprocess.Popen([sys.executable, "-c", program, fd], **options)  # type: ignore[call-overload,no-any-return]

    starting = start(["rehearsal"], tmp_path, popen=popen)
    assert starting.stage == ""
    await starting.wait_ready()
    assert starting.stage == "loading hf:tiny …"


def test_a_start_beside_another_names_the_same_run_however_far_the_other_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = RunRequest(workspace=Workspace(tmp_path), source=Source((), "rehearsal"))
    read, other = new_or_resume.read_problems, tmp_path / "runs" / "rehearsal" / "journal.jsonl"

    def read_while_the_other_begins(*of: Any, **how: Any) -> tuple[Problem, ...]:
        other.parent.mkdir(parents=True)
        other.write_text("{}\n")
        return read(*of, **how)

    monkeypatch.setattr(new_or_resume, "read_problems", read_while_the_other_begins)
    plan = plan_run(request, load_once("rehearsal", QUIET, tmp_path, {}))
    assert (plan.run.run, plan.mode) == ("rehearsal", "new")


async def test_a_start_that_another_came_before_does_not_go_on_with_the_run_unasked(
    tmp_path: Path,
) -> None:
    request = RunRequest(workspace=Workspace(tmp_path), source=Source((), "rehearsal"))
    small = (*QUIET, "data.truncate=4", "practice.batch_size=4", "practice.epochs=1")
    loaded = load_once("rehearsal", (*small, "seed=2", "practice.group_size=2"), tmp_path, {})
    late = plan_run(request, loaded)
    made = await practised(tmp_path, *small, "practice.group_size=1")  # and so without a lesson
    kept = made.run.journal.read_bytes(), made.run.run_file.read_bytes()
    async with AsyncExitStack() as stack:
        with pytest.raises(ConflictError, match="another start began it since"):
            await open_run_context(late, stack, lambda _: None)
    assert (made.run.journal.read_bytes(), made.run.run_file.read_bytes()) == kept
