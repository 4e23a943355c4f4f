"""`studio query`: what is asked for, how a hit reads, and every refusal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from studio.library.find import hit_lines, next_command, parse_effect, parse_time
from tests.support.run_studio import Result, studio


def query(workspace: Path, *arguments: str) -> Result:
    return studio("query", *arguments, workspace=workspace)


def data(workspace: Path, *arguments: str) -> Any:
    found = query(workspace, *arguments, "--json")
    assert found.code == 0
    return json.loads(found.stdout)


def test_a_hit_says_what_it_is_what_it_says_and_where_to_look_next(practised: Path) -> None:
    hit = query(practised, "--kind", "experience", "--id", "E1")
    title, said, move = hit.stdout.splitlines()
    about = "E1  experience, live, wording by auto  library rehearsal, run rehearsal, step "
    assert title.startswith(about)
    assert said.startswith("  ") and move == "  studio library history rehearsal E1"
    assert hit.code == 0 and hit.stderr == ""
    words = move.split()[1:]
    assert studio(*words, workspace=practised).code == 0


def test_every_command_that_a_hit_names_can_be_given(practised: Path) -> None:
    edited = ("library", "edit", "rehearsal", "--add", "Written by hand.")
    assert studio(*edited, workspace=practised).code == 0
    hits = data(practised, "--limit", "999")
    assert {hit["kind"] for hit in hits} >= {"operation", "experience", "version"}
    for move in {hit["next"] for hit in hits}:
        assert studio(*move.split()[1:], workspace=practised).code == 0, move
    by_hand = data(practised, "written", "by", "HAND", "--kind", "operation")
    assert [hit["run"] for hit in by_hand] == [""]


def test_hits_are_the_newest_and_the_rest_is_counted(practised: Path) -> None:
    every = data(practised, "--limit", "999")
    assert [hit["at"] for hit in every] == sorted((h["at"] for h in every), reverse=True)
    few = query(practised, "--limit", "2")
    assert len(few.stdout.splitlines()) == 6
    assert few.stderr == f"{len(every) - 2} more: --limit {len(every)}\n"
    assert data(practised, "--limit", "2") == every[:2]


def test_what_is_not_there_is_said_and_no_workspace_is_made(workspace: Path) -> None:
    found = query(workspace, "nothing")
    assert (found.code, found.stdout) == (0, "")
    assert "fits" in found.stderr and not workspace.exists()
    assert data(workspace) == []


def test_a_hit_without_a_wording_begins_with_why_and_is_cut_between_words(tmp_path: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(("text", "reason", "status"), "")
    row |= {"why": "word " * 99, "kind": "version", "id": "lib@1", "library": "lib", "run": ""}
    row |= {"reviewer": "", "worth": "", "step": 0, "at": 0.0}
    _, said, _ = hit_lines(row, Workspace(tmp_path))
    assert said.startswith("  (word word ") and said.endswith(" word …)")


def test_of_a_run_that_was_removed_the_library_tells_more(tmp_path: Path) -> None:
    row = {"kind": "operation", "id": "op1.1", "library": "lib", "run": "gone", "target": "E3"}
    assert next_command(row, Workspace(tmp_path)) == "studio library history lib E3"
    (tmp_path / "runs/gone").mkdir(parents=True)
    row |= {"status": "approved", "step": 2}
    assert next_command(row, Workspace(tmp_path)) == "studio runs show gone --step 2"


def test_a_damaged_journal_is_told_and_hides_nothing_else(practised: Path) -> None:
    journal = practised / "runs/rehearsal/journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"LessonProposed", b"LessonPreposed", 1))
    found = query(practised, "--kind", "experience")
    assert found.code == 0 and "E1  experience" in found.stdout
    assert f"left out: {journal}:" in found.stderr and "doctor" in found.stderr


def test_text_of_models_steers_no_terminal(practised: Path) -> None:
    wording = "Look \x1b[2J here\u202e and\nthere."
    edit = ("library", "edit", "rehearsal", "--add", wording)
    assert studio(*edit, workspace=practised).code == 0
    found = query(practised, "look", "there").stdout
    assert "\x1b" not in found and "\u202e" not in found and "\\u202e" in found


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--effect", "much"), "'much' is no effect"),
        (("--effect", ">"), "is no effect"),
        (("--since", "yesterday"), "'yesterday' is no time"),
        (("--until", "2026-13-40"), "is no time"),
        (("--since", "0001-01-01"), "is no time"),
        (("--kind", "lesson"), "--kind"),
        (("--limit", "0"), "--limit"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    practised: Path, arguments: tuple[str, ...], told: str
) -> None:
    found = query(practised, *arguments)
    assert (found.code, found.stdout) == (2, "") and told in found.stderr


@pytest.mark.parametrize(
    ("text", "values"),
    [(">0.05", "FFT"), (">=.05", "FTT"), ("<.05", "TFF"), (" <= +0.05 ", "TTF"), (">-1", "TTT")],
)
def test_an_effect_is_compared_as_it_is_written(text: str, values: str) -> None:
    verdict, compare = parse_effect(text)
    assert verdict is None and compare is not None
    assert "".join("FT"[compare(value)] for value in (0.04, 0.05, 0.06)) == values
    assert parse_effect("hurts") == ("hurts", None)
    assert parse_effect(None) == (None, None)


def test_a_time_is_a_day_or_how_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000_000.0)
    assert parse_time("--since", "7d") == 10_000_000 - 7 * 86_400
    assert parse_time("--since", "12h") == 10_000_000 - 43_200
    day, end = parse_time("--since", "2026-03-09"), parse_time("--until", "2026-03-09", ends=True)
    assert day is not None and end == day + 86_400
    assert parse_time("--until", "2026-03-09T12:00", ends=True) == day + 43_200
    assert parse_time("--since", None) is None
