"""A handoff by the command line: exit 3, what is said, and the same command once more."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from engines.core.errors import AnswersPending
from engines.core.types import Message, Sampling
from engines.policies.handoff import HandoffPolicy
from engines.policies.rehearsal.server import background_server
from studio import exit_codes
from tests.support.handoff import answer_calls, pending_calls
from tests.support.processes import SMALL
from tests.support.run_studio import Result, studio

TINY = (*SMALL, "data.truncate=2")


def answered(folder: Path) -> int:
    return asyncio.run(answer_calls(folder, random.Random(1)))


def test_a_run_ends_with_3_says_how_many_wait_and_goes_on_by_the_same_command(
    workspace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "my answers"
    command = ("headless", "rehearsal", f"policy.model=handoff:{folder}", "reflector=rehearsal")
    run = (*command, *TINY)
    waits = studio(*run, workspace=workspace)
    assert waits.code == exit_codes.ANSWERS_PENDING == 3
    n = len(pending_calls(folder))
    assert n == 6 and f"6 calls wait for answers in {folder}" in waits.stdout
    assert "ended early: 6 calls wait" in waits.stderr and "once the calls are ans" in waits.stderr
    assert "lost     nothing" in waits.stdout and "spent    0 calls" in waits.stdout
    shown = studio("runs", "show", "rehearsal", "--json", workspace=workspace)
    facts = json.loads(shown.stdout)
    assert facts["status"] == "stopped" and "6 calls wait" in facts["reason"]
    assert studio("doctor", workspace=workspace).code == exit_codes.DONE
    assert answered(folder) == 6
    (folder / "0123456789abcdef0123.answer.txt").write_text("to nothing")
    done = studio(*run, workspace=workspace)
    assert done.code == exit_codes.DONE and "finished after step 1 of 1" in done.stdout
    assert "no call of this process wants 0123456789abcdef0123.answer.txt" in done.stderr


def test_a_finished_workspace_resumes_by_name_from_another_folder(
    workspace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "answers"
    run = ("headless", "rehearsal", "reflector=rehearsal", f"policy=handoff:{folder}", *TINY)
    assert studio(*run, workspace=workspace).code == exit_codes.ANSWERS_PENDING
    answered(folder)
    resumed = studio("headless", "--resume", "rehearsal", workspace=workspace)
    assert resumed.code == exit_codes.DONE


def test_an_evaluation_waits_for_every_set_at_once(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    run = ("eval", "rehearsal", "--library", "none", f"policy=handoff:{folder}")
    few = ("evaluation.limit=2",)
    waits = studio(*run, *few, workspace=workspace)
    assert (waits.code, waits.stdout) == (exit_codes.ANSWERS_PENDING, "")
    assert f"{folder}: 4 calls wait for answers." in waits.stderr
    assert answered(folder) == 4
    done = studio(*run, *few, "--json", workspace=workspace)
    assert done.code == exit_codes.DONE
    assert [found["results"][0]["n"] for found in json.loads(done.stdout)["sets"]] == [2, 2]


def tried(workspace: Path, folder: Path, *more: str) -> Result:
    question = ("--question", "What is 17 + 25?", "--answer", "42")
    return studio("try", "rehearsal", f"policy=handoff:{folder}", *question, *more,
                  workspace=workspace)  # fmt: skip


def test_a_prompt_is_tried_by_hand(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    waits = tried(workspace, folder)
    assert waits.code == exit_codes.ANSWERS_PENDING and "1 call waits" in waits.stderr
    (call,) = pending_calls(folder)
    (folder / f"{call['id']}.answer.md").write_text("17 + 25 is\n#### 42\n")
    (folder / "ffff.answer.md").write_text("nobody asked\n")
    done = tried(workspace, folder)
    assert "no call of this process wants ffff.answer.md" in done.stderr
    assert done.code == exit_codes.DONE and "#### 42" in done.stdout


def test_a_dry_run_of_a_handoff_asks_nothing_and_has_no_price(
    workspace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "answers"
    model = (f"policy=handoff:{folder}", "budget.cost_usd=1")
    found = studio("headless", "rehearsal", *model, *TINY, "--dry-run", workspace=workspace)
    assert found.code == exit_codes.DONE and not folder.exists()


async def test_the_script_of_the_manual_answers_by_an_endpoint(tmp_path: Path) -> None:
    guide = (files("studio.guide") / "models.md").read_text("utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    folder = tmp_path / "calls"
    policy = HandoffPolicy(folder)
    await policy.ping()
    question = (Message("user", "What is 17 + 25?"),)
    with pytest.raises(AnswersPending):
        await policy.complete(question, Sampling(0.7, seed=1))
    async with background_server() as url:
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(folder), url, "rehearsal"
        )
        assert await running.wait() == 0
    assert "####" in (await policy.complete(question, Sampling(0.7, seed=1))).text
