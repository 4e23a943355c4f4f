"""`studio review` on replies that could not be understood, and what the end says afterwards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from engines.record.run_dir import Workspace
from studio.render.run_lines import step_text
from tests.engines.record.repair.test_repair import SMALL, garbling, new
from tests.support.harness import practised
from tests.support.run_studio import studio

RESUME = ("headless", "--resume", "rehearsal")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A finished run that lost one consolidation."""
    folder = tmp_path / "practice"
    asyncio.run(practised(folder, *SMALL, change=garbling(steps=[1])))
    return folder


def an_editor(folder: Path, line: str) -> str:
    """A program that adds a line to what it is given, as a person at $EDITOR would."""
    script = folder / "editor.sh"
    seen = folder / "seen.txt"
    script.write_text(
        f'#!/bin/sh\ncp "$1" "{seen}"\nsed -i \'$ d\' "$1"\ncat >> "$1" <<EOF\n{line}\nEOF\n'
    )
    script.chmod(0o700)
    return str(script)


def test_a_run_with_nothing_open_says_so_and_its_lost_reply_waits(workspace: Path) -> None:
    ended = studio(*RESUME, workspace=workspace)
    assert ended.code == 4
    assert "to mend  1 reply to be mended: studio review rehearsal" in ended.stdout
    shown = json.loads(studio("runs", "show", "rehearsal", "--json", workspace=workspace).stdout)
    assert [(r["id"], r["kind"]) for r in shown["repairs"]] == [("s1", "consolidation")]


def test_a_reply_mended_in_the_editor_is_decided_and_committed_and_the_run_is_clean(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", an_editor(tmp_path, new("Rule one: mind it.")))
    monkeypatch.delenv("VISUAL", raising=False)
    done = studio("review", workspace=workspace, typed="e\na\n")
    assert done.code == 0, done.stderr
    assert "s1: mended; it holds op1.m1" in done.stdout
    assert "1 decided, 0 open; 1 reply settled, 0 to mend" in done.stdout
    assert "committed: library rehearsal is at v" in done.stdout
    seen = (tmp_path / "seen.txt").read_text()
    assert seen.startswith("#: This reply could not be understood.")
    assert "#: wrong: its JSON is not valid." in seen
    assert "\x1b" not in seen
    ended = studio(*RESUME, workspace=workspace)
    assert ended.code == 0, ended.stdout
    assert "to mend" not in ended.stdout
    assert ": accepted 1.000 (n=1); median " in ended.stdout
    assert "lost     nothing" in ended.stdout
    again = studio("review", workspace=workspace)
    assert "nothing is open" in again.stdout
    listed = json.loads(studio("runs", "list", "--json", workspace=workspace).stdout)
    assert listed[0]["losses"] == 0


def test_a_dropped_reply_is_counted_in_the_catalogue_and_shown_with_its_step(
    workspace: Path,
) -> None:
    done = studio("review", workspace=workspace, typed="d mere noise\n")
    assert "0 decided, 0 open; 1 reply settled, 0 to mend" in done.stdout
    assert studio(*RESUME, workspace=workspace).code == 4

    from studio.facts.step import step_facts

    facts = step_facts(Workspace(workspace).run("rehearsal"), 1)
    assert ": mere noise" in step_text(facts, prompts=False)
    assert facts.repaired[0].outcome == "dropped"


def test_what_is_left_for_later_waits_for_the_next_sitting(workspace: Path) -> None:
    done = studio("review", workspace=workspace, typed="n\n")
    assert "0 decided, 0 open; 0 replies settled, 1 to mend" in done.stdout
    assert "s1  consolidation reply" in studio("review", workspace=workspace, typed="q\n").stdout
