"""The table of runs as pure lines."""

from __future__ import annotations

import csv
from copy import copy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from engines.core.codec import from_dict
from engines.core.state.list_row import list_row
from engines.core.state.run_state import RunState
from studio.facts.next_command import RunStatus
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.pages.runs.page import (
    detail_lines,
    filter_runs,
    runs_csv,
    runs_rows,
    state_span,
)
from studio.workspace.listing import (
    Background,
    KnownRun,
    ListedRun,
    MeasuredSet,
)
from tests.studio.tui.stage import finished_workspace

HOSTILE = "漢字[red]\x1b[2J‮👩‍👩‍👧"


def a_run(
    run: str = "mine",
    word: str = "held",
    *,
    alive: bool = False,
    waiting: int = 0,
    model: str = "openai:small",
    data: str = "sums",
    reward: float | None = 0.5,
    tokens: int = 52_830,
    cost_usd: float | None = None,
    held_out: float | None = None,
    move: str = "",
    **row: Any,
) -> KnownRun:
    """A run as the list of a workspace knows it."""
    facts: dict[str, Any] = {
        "run": run,
        "exp_id": run,
        "status": word,
        "ending": word,
        "reason": "",
        "epoch": 1,
        "epochs": 2,
        "steps": 3,
        "library": run,
        "version": 4,
        "open": waiting,
        "rewards": {"1": {"mean": reward, "n": 24 if reward is not None else 0}},
        "tokens": tokens,
        "cost_usd": cost_usd,
        "curve": {"of": "reward", "points": [[1, 0.25, 12], [2, 0.75, 12]]},
        "losses": 0,
        "rehearsal": False,
        "began": datetime(2026, 3, 9, 15, 50).timestamp(),
        "last": datetime(2026, 3, 9, 16, 0).timestamp(),
        "journal_bytes": 100,
        **row,
    }
    measured = (MeasuredSet("held", 0.25, held_out, 20),) if held_out is not None else ()
    back = Background(model, data, "math", "wait", 3, 6, 4, 8, measured, step=4)
    return KnownRun(ListedRun(facts, RunStatus(word, alive, move)), back)


def texts(runs: list[KnownRun], width: int = 116) -> list[str]:
    return [plain_text(row.line).rstrip() for row in runs_rows(runs, width)]


def test_each_run_is_a_row_under_one_heading_that_no_cursor_stands_on() -> None:
    rows = runs_rows([a_run("a"), a_run("b", held_out=0.95)], 116)
    assert [row.key for row in rows] == ["", "a", "b"]
    heading, told = (" ".join(plain_text(row.line).split()) for row in (rows[0], rows[2]))
    assert heading == "run model data epochs lib by step mean@1 held-out spent when state"
    assert told.startswith("b openai:small sums 1/2 v4 ▃▆ 0.500 0.950 53k tok 2026-03-09 ")
    # 0.25 and 0.75 of seven steps between the eight bars: 1.75 and 5.25
    assert " ▃▆ " in texts([a_run("a")], 76)[1]  # also at 80 columns


@pytest.mark.parametrize("width", [116, 100, 76, 56])
def test_columns_go_where_there_is_no_room_and_run_and_state_stay(width: int) -> None:
    rows = runs_rows([a_run("a-name", waiting=9)], width)
    assert all(width_of(row.line) <= width for row in rows)
    text = plain_text(rows[1].line)
    assert "a-name" in text and "no process: 9 to decide" in text


def test_hostile_and_wide_names_leave_the_columns_aligned() -> None:
    rows = runs_rows([a_run("a", model=HOSTILE, data=HOSTILE), a_run("b")], 116)
    ends = []
    for row in rows:
        spans = row.line
        assert all("\x1b" not in text and "‮" not in text for text, _ in spans)
        ends.append(width_of(spans[:-1]))
    assert ends[1] == ends[2]
    assert "[red]" in plain_text(rows[1].line)


def test_scripted_rewards_carry_a_tilde_and_unknown_money_is_never_zero() -> None:
    scripted = texts([a_run("a", rehearsal=True, held_out=0.9)])[1]
    assert "~0.500" in scripted and "~0.900" in scripted and "$" not in scripted
    assert "$1.84" in texts([a_run("a", cost_usd=1.842)])[1]
    assert "0.000" not in texts([a_run("a", reward=None)])[1]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (a_run(word="held", waiting=9), "no process: 9 to decide"),
        (a_run(word="held", alive=True, waiting=2), "HELD: 2 to decide"),
        (a_run(word="held", waiting=9, later=1), "no process: 8 to decide, 1 later"),
        (a_run(word="finished", waiting=1, later=1), "finished: 1 later"),
        (a_run(word="running", alive=True), "running, its process lives"),
        (a_run(word="interrupted"), "interrupted (s r resumes)"),
        (
            a_run(word="stopped", ending="budget", reason="budget.calls=9"),
            "budget reached (s r: more)",
        ),
        (a_run(word="finished"), "finished"),
        (a_run(word="finished", waiting=1), "finished: 1 to decide"),
        (a_run(word="damaged"), "damaged: studio doctor"),
    ],
)
def test_the_state_says_what_waits_and_which_key_helps(run: KnownRun, expected: str) -> None:
    assert state_span(run)[0] == expected


def test_a_damaged_run_tells_its_damage_and_the_doctor() -> None:
    lines = detail_lines(a_run(word="damaged", move=f"line 3 fails. {HOSTILE}"), 70)
    text = "\n".join(plain_text(line) for line in lines)
    assert "line 3 fails." in text and "studio doctor --repair" in text and "\x1b" not in text


def detail(*measured: MeasuredSet) -> str:
    run = a_run()
    assert run.background is not None
    run = replace(run, background=replace(run.background, measured=measured))
    return "\n".join(plain_text(each) for each in detail_lines(run, 116))


def test_the_step_is_that_under_way_as_the_header_has_it() -> None:
    assert "; step 4 of 8; " in detail()


def test_a_set_that_was_measured_once_has_one_figure_and_no_arrow() -> None:
    told = detail(MeasuredSet("held", 0.31, 0.31, 40))
    assert "held 0.310 (n=40), measured once" in told and "->" not in told


def test_before_and_after_come_each_with_its_own_n() -> None:
    told = detail(MeasuredSet("held", 0.31, 0.42, 38, first_n=40))
    assert "held 0.310 (n=40) -> 0.420 (n=38)" in told


def test_what_is_measured_once_is_known_from_the_run_itself(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    state = workspace.run("rehearsal").state()
    once = measured_of(state, 1)
    assert [m.first_n for m in once] == [None]
    assert [m.first_n for m in measured_of(state, 2)] == [state.evaluations[0].n]


def measured_of(state: RunState, most: int) -> tuple[MeasuredSet, ...]:
    state = copy(state)
    first = state.evaluations[0]
    state.evaluations = [one for one in state.evaluations if one.data == first.data][:most]
    return from_dict(Background, list_row(state)["practises"]).measured


def test_scripted_rewards_are_called_a_rehearsal_in_the_detail() -> None:
    told = "\n".join(plain_text(each) for each in detail_lines(a_run(rehearsal=True), 116))
    assert "rehearsal, epoch 1: 0.500 (n=24)" in told


def test_runs_are_sorted_by_what_was_asked_for() -> None:
    runs = [
        a_run("new", reward=None, tokens=5),
        a_run("good", reward=0.9, tokens=7),
        a_run("bad", reward=0.1, tokens=9),
    ]

    def order(sort: Any) -> list[str]:
        return [run.run for run in filter_runs(runs, "", sort)]

    assert order("time") == ["new", "good", "bad"]
    assert order("reward") == ["good", "bad", "new"]
    assert order("cost") == ["bad", "good", "new"]
    assert order("name") == ["bad", "good", "new"]


def test_a_filter_keeps_runs_that_hold_every_word() -> None:
    runs = [a_run("a", data="sums"), a_run("b", data="aime", word="finished")]
    assert [run.run for run in filter_runs(runs, "AIME fini", "time")] == ["b"]
    assert filter_runs(runs, "nothing", "time") == []


def test_the_export_has_a_row_a_run_and_no_control_characters() -> None:
    rows = list(csv.DictReader(runs_csv([a_run("a", model=HOSTILE, held_out=0.95)]).splitlines()))
    assert len(rows) == 1
    assert rows[0]["run"] == "a" and "0.500" in rows[0]["mean@1"] and "0.950" in rows[0]["held-out"]
    assert rows[0]["state"].startswith("held") and "\x1b" not in rows[0]["model"]
