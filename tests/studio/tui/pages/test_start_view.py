"""What one would do next, as pure lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.record.run_dir import Workspace
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.pages.start.page import (
    MOST_RESUMED,
    Choice,
    RunFacts,
    check_lines,
    choice_rows,
    facts_lines,
    find_run_files,
    first_choice,
    list_choices,
)
from tests.studio.tui.pages.test_runs_view import HOSTILE, a_run

PRESETS = [("rehearsal", "offline"), ("api", "costs money")]


def facts(mode: str = "new", run: str = "mine", costs: bool = True) -> RunFacts:
    rows = (("data", "sums (30 problems)"), ("model", "openai:small"), ("budget", "no limit"))
    return RunFacts(run, mode, costs, rows)


def offered(*runs: object) -> list[str]:
    found = list_choices(runs, PRESETS, [("/here/mine.yaml", "in this folder")])  # type: ignore[arg-type]
    return [choice.key for choice in found]


def test_what_waits_for_a_person_comes_first_and_new_runs_last() -> None:
    assert offered(
        a_run("stopped", "stopped"),
        a_run("living", "running", alive=True),
        a_run("held", "held", waiting=9),
        a_run("done", "finished"),
        a_run("late", "finished", waiting=2),
        a_run("torn", "damaged"),
    ) == [
        "resume held",
        "open late",
        "attach living",
        "resume stopped",
        "new /here/mine.yaml",
        "new rehearsal",
        "new api",
    ]


def test_a_run_that_holds_says_how_many_operations_wait() -> None:
    (choice,) = list_choices([a_run(waiting=9)], [], [])
    assert choice.text == "no process: 9 to decide; epoch 1/2, step 4/8"
    (put_off,) = list_choices([a_run(waiting=3, later=2)], [], [])
    assert put_off.text.startswith("no process: 1 to decide, 2 later;")


def test_the_cursor_begins_on_what_waits_or_on_what_costs_nothing() -> None:
    ended = a_run("old", "stopped")
    assert first_choice(list_choices([ended], PRESETS, [])) == "new rehearsal"
    assert (
        first_choice(list_choices([ended, a_run("held", waiting=2)], PRESETS, [])) == "resume held"
    )
    assert first_choice(list_choices([ended], [], [])) == ""


def test_old_runs_that_ended_do_not_bury_new_ones() -> None:
    runs = [a_run(f"r{n}", "stopped") for n in range(40)]
    assert len(offered(*runs)) == MOST_RESUMED + 3


@pytest.mark.parametrize("width", [110, 70, 50])
def test_rows_are_aligned_and_inert_whatever_names_hold(width: int) -> None:
    found = [
        Choice("new", "a", HOSTILE, HOSTILE),
        Choice("resume", "b", "plain", "text"),
    ]
    rows = choice_rows(found, width)
    assert [row.key for row in rows] == ["", "new a", "resume b"]
    assert all(width_of(row.line) <= width for row in rows)
    assert all("\x1b" not in plain_text(row.line) for row in rows)
    starts = [width_of(row.line[:-1]) for row in rows[1:]]
    assert starts[0] == starts[1]


def test_the_facts_of_a_run_file_stand_between_its_name_and_what_was_set() -> None:
    lines = [plain_text(line).split() for line in facts_lines(facts(), 100, "seed=41")]
    assert [words[0] for words in lines] == ["run", "data", "model", "budget", "set"]
    assert lines[0][1:] == ["mine,", "new"] and lines[-1][1:] == ["seed=41"]


def test_a_run_that_is_there_already_is_not_called_new() -> None:
    assert "goes on" in plain_text(facts_lines(facts("resume"), 100)[0])
    assert "is finished" in plain_text(facts_lines(facts("finished"), 100)[0])


def test_checks_tell_what_it_takes_before_what_was_looked_at() -> None:
    found = replace(
        facts(),
        likely="9 calls",
        most="20 calls",
        checks=((True, "30 problems"), (False, f"no price {HOSTILE}")),
    )
    lines = [plain_text(line) for line in check_lines(found, 80)]
    assert lines[0].split() == ["likely", "9", "calls"]
    assert lines[1].split() == ["at", "most", "20", "calls"]
    assert lines[2] == "[ok] 30 problems" and lines[3].startswith("[!]  no price")
    assert "\x1b" not in "".join(lines)


def test_run_files_are_yaml_that_names_a_policy_or_an_experiment(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "practice")
    workspace.configs.mkdir(parents=True)
    (workspace.configs / "kept.yaml").write_text("policy: rehearsal\n")
    (tmp_path / "mine.yaml").write_text("# mine\nexp_id: mine\n")
    (tmp_path / "compose.yaml").write_text("services:\n  policy: 1\n")
    (tmp_path / "broken.yaml").write_bytes(b"policy: \xff\n")
    found = find_run_files(workspace, tmp_path)
    mine, kept = tmp_path / "mine.yaml", workspace.configs / "kept.yaml"
    assert found == [(str(mine), "in this folder"), (str(kept), f"in {workspace.configs}")]
