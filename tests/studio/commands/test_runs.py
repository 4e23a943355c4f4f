"""`studio runs`: living, interrupted, finished, damaged and removed runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.core.codec import dumps, from_dict
from engines.core.state.fold import fold
from engines.core.state.run_state import Live, RunState
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.derived.run_state import ReadRun
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from studio.facts.next_command import status_of_row
from tests.support.processes import SMALL, Process, running
from tests.support.run_studio import studio


def listed(workspace: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads(studio("runs", "list", "--json", workspace=workspace).stdout)
    return {row["run"]: row for row in rows}


@pytest.fixture
def waiting(workspace: Path) -> Iterator[Process]:
    """A living run that waits for decisions."""
    with running(workspace, "rehearsal", *SMALL, "--review", "wait") as process:
        process.until("StageEntered", stage="review")
        yield process


def test_a_list_of_no_runs_says_where_to_begin(workspace: Path) -> None:
    none = studio("runs", "list", workspace=workspace)
    assert (none.code, none.stdout) == (0, "")
    assert f"next: studio --workspace {workspace} headless rehearsal" in none.stderr
    assert json.loads(studio("runs", "list", "--json", workspace=workspace).stdout) == []
    assert not workspace.exists()


def test_a_finished_run_is_listed_with_reward_and_n(practised: Path) -> None:
    row = listed(practised)["rehearsal"]
    assert (row["status"], row["alive"], row["next"]) == ("finished", False, "")
    # 8 problems in groups of 3, all of whose rewards are known.
    assert row["rewards"]["1"]["n"] == 24
    assert sum(n for _, _, n in row["curve"]["points"]) == 24  # a point a step
    table = studio("runs", "list", workspace=practised).stdout
    assert "(n=24)" in table and "BY STEP" in table
    assert "rehearsal: scripted replies took part" in table
    assert max(len(line) for line in table.splitlines()) <= 80


def test_a_living_run_that_waits_names_the_command_that_decides(
    waiting: Process, workspace: Path
) -> None:
    row = listed(workspace)["rehearsal"]
    assert (row["status"], row["alive"]) == ("held", True)
    assert row["next"] == "decide: studio review rehearsal"
    facts = json.loads(studio("runs", "show", "rehearsal", "--json", workspace=workspace).stdout)
    assert facts["alive"] and facts["open"]
    page = studio("runs", "show", "rehearsal", workspace=workspace).stdout
    assert facts["open"][0]["id"] in page and "its process is alive" in page


def test_a_killed_run_is_interrupted_and_names_the_command_that_resumes(
    waiting: Process, workspace: Path
) -> None:
    waiting.child.kill()
    waiting.child.wait()
    row = listed(workspace)["rehearsal"]
    assert (row["status"], row["alive"]) == ("interrupted", False)
    hint = "interrupted (resume: studio headless --resume rehearsal)"
    for words in (("runs", "list"), ("runs", "show", "rehearsal"), ()):
        assert hint in studio(*words, workspace=workspace).stdout


def test_a_living_run_is_not_removed(waiting: Process, workspace: Path) -> None:
    refused = studio("runs", "rm", "rehearsal", "--yes", workspace=workspace)
    assert refused.code == 2
    assert "studio ctl stop rehearsal" in refused.stderr
    assert "rehearsal" in listed(workspace)


@pytest.mark.parametrize(
    ("status", "open_", "word", "move"),
    [
        ("finished", 0, "finished", ""),
        ("finished", 2, "finished", "decide: studio review r"),
        ("held", 2, "held", "decide: studio review r"),
        ("stopped", 0, "stopped", "resume: studio headless --resume r"),
        ("failed", 0, "failed", "resume: studio headless --resume r"),
        ("running", 0, "interrupted", "resume: studio headless --resume r"),
        ("paused", 0, "interrupted", "resume: studio headless --resume r"),
        ("new", 0, "interrupted", "resume: studio headless --resume r"),
    ],
)
def test_without_a_process_a_status_is_what_the_journal_left(
    status: str, open_: int, word: str, move: str
) -> None:
    shown = status_of_row("r", {"status": status, "open": open_}, alive=False)
    assert (shown.status, shown.alive, shown.next) == (word, False, move)


def test_show_tells_steps_groups_spending_and_places(practised: Path) -> None:
    facts = json.loads(studio("runs", "show", "rehearsal", "--json", workspace=practised).stdout)
    assert facts["rehearsal"] is True
    assert (facts["steps_finished"], facts["steps_planned"]) == (2, 2)
    assert [step["n"] for step in facts["steps"]] == [12, 12]
    assert sum(facts["groups"].values()) == 8
    assert (facts["open"], facts["lost"]) == ([], {})
    assert facts["usage"]["calls"] >= 24
    assert all(Path(place).exists() for place in facts["places"].values())
    page = studio("runs", "show", "rehearsal", workspace=practised).stdout
    assert "after step 2 of 2" in page and "replies were scripted (rehearsal)" in page
    assert f"({facts['epochs'][0]['mean_reward']:.3f}" in page.replace("  ", "(")
    assert str(practised / "libraries" / "rehearsal") in page


def test_losses_are_shown_with_their_words(workspace: Path) -> None:
    data = workspace.parent / "unknown.jsonl"
    data.write_text('{"question": "Who wrote it?", "answer": "1"}\n')
    settings = ("policy=replay:replay", f"data.practice={data}", "--name", "lossy")
    ended = studio("headless", "replay", *settings, workspace=workspace)
    assert ended.code == 4
    facts = json.loads(studio("runs", "show", "lossy", "--json", workspace=workspace).stdout)
    # One problem in a group of 4, none of which the log holds.
    assert facts["lost"] == {"rollout": 4}
    page = studio("runs", "show", "lossy", workspace=workspace).stdout
    assert "4 rollouts" in ended.stdout and "4 rollouts\n" in page
    assert "holds no rollout for this question" in page


@pytest.mark.parametrize("command", ["show", "rm"])
@pytest.mark.parametrize("name", ["nope", "../libraries/rehearsal", ".."])
def test_an_id_of_no_run_is_refused(command: str, name: str, practised: Path) -> None:
    refused = studio("runs", command, name, workspace=practised)
    assert (refused.code, refused.stdout) == (2, "")
    assert (practised / "libraries" / "rehearsal" / "journal.jsonl").exists()


def test_a_removed_run_is_gone_from_disk_and_catalogue_and_its_library_stays(
    practised: Path,
) -> None:
    removed = studio("runs", "rm", "rehearsal", "--yes", workspace=practised)
    assert (removed.code, removed.stdout) == (0, "")
    assert "library rehearsal stays" in removed.stderr
    assert list((practised / "runs").iterdir()) == []
    assert not list(practised.glob(".removed-*"))
    assert "runs/" not in (practised / "catalogue.json").read_text()
    assert refresh_catalogue(Workspace(practised)) == []
    assert Workspace(practised).library("rehearsal").head().experiences


def test_removal_asks_a_person_and_refuses_without_one(practised: Path) -> None:
    alone = studio("runs", "rm", "rehearsal", workspace=practised)
    assert alone.code == 2 and "--yes" in alone.stderr
    doubtful = studio("runs", "rm", "rehearsal", workspace=practised, typed="n\n")
    assert doubtful.code == 0 and "nothing was removed" in doubtful.stderr
    assert "rehearsal" in listed(practised)
    sure = studio("runs", "rm", "rehearsal", workspace=practised, typed="y\n")
    assert sure.code == 0
    assert listed(practised) == {}


def test_a_locked_run_is_not_removed(practised: Path) -> None:
    with write_lock(practised / "runs" / "rehearsal"):
        refused = studio("runs", "rm", "rehearsal", "--yes", workspace=practised)
    assert refused.code == 2 and "another process" in refused.stderr
    assert "rehearsal" in listed(practised)


def test_a_run_that_others_were_forked_from_is_not_removed(practised: Path) -> None:
    forked = studio(
        "headless",
        "rehearsal",
        *SMALL,
        "practice.epochs=2",
        "--restart-step",
        "1",
        workspace=practised,
    )
    assert forked.code == 0, forked.stderr
    refused = studio("runs", "rm", "rehearsal", "--yes", workspace=practised)
    assert refused.code == 2 and "rehearsal-2" in refused.stderr
    page = studio("runs", "show", "rehearsal-2", workspace=practised).stdout
    assert "steps 1-1 adopted from run rehearsal" in page
    assert studio("runs", "rm", "rehearsal-2", "--yes", workspace=practised).code == 0
    assert studio("runs", "rm", "rehearsal", "--yes", workspace=practised).code == 0


def test_a_damaged_run_is_listed_beside_the_others_and_can_be_removed(practised: Path) -> None:
    second = ("headless", "rehearsal", *SMALL, "--name", "whole")
    assert studio(*second, workspace=practised).code == 0
    journal = practised / "runs" / "rehearsal" / "journal.jsonl"
    raw = journal.read_bytes()
    journal.write_bytes(raw[:200] + b"x" + raw[200:])
    rows = listed(practised)
    assert (rows["rehearsal"]["status"], rows["whole"]["status"]) == ("damaged", "finished")
    assert studio(workspace=practised).code == 0
    assert studio("runs", "show", "rehearsal", workspace=practised).code == 2
    assert studio("runs", "rm", "rehearsal", "--yes", workspace=practised).code == 0
    assert list(listed(practised)) == ["whole"]


def test_one_step_shows_replies_proposals_and_decisions(practised: Path) -> None:
    shown = studio("runs", "show", "rehearsal", "--step", "1", workspace=practised)
    assert shown.code == 0
    assert "extraction, rehearsal" in shown.stdout
    assert "approved by auto -> E1" in shown.stdout
    assert "# Task: extract" not in shown.stdout
    whole = studio("runs", "show", "rehearsal", "--step", "1", "--prompts", workspace=practised)
    assert "> # Task: extract" in whole.stdout
    facts = json.loads(
        studio("runs", "show", "rehearsal", "--step", "1", "--json", workspace=practised).stdout
    )
    used = [group for group in facts["groups"] if group["outcome"] == "used"]
    assert used and all(group["calls"][0]["reply"] for group in used)
    assert [d["action"] for d in facts["decisions"]] == ["approve"] * len(facts["operations"])


def test_a_step_that_never_was_is_refused_with_those_that_were(practised: Path) -> None:
    shown = studio("runs", "show", "rehearsal", "--step", "99", workspace=practised)
    assert shown.code == 2
    assert "Choose 1 to" in shown.stderr


def test_the_state_between_steps_comes_back_from_json_equal(practised: Path) -> None:
    run = ReadRun()
    for entry in Workspace(practised).run("rehearsal").entries():
        fold(run.state, entry.event)
        if run.state.current is None:
            kept = replace(run.state, live=Live())
            assert from_dict(RunState, orjson.loads(dumps(kept))) == run.state
