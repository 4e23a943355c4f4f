"""The two top lines of every page, at every width."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.state.run_state import RunState
from engines.core.types import Decision, Flag, Usage
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.header import (
    SessionStatus,
    header_line,
    status_word,
    tabs_line,
    tokens_text,
    waiting_text,
)
from tests.studio.tui.stage import finished_workspace, held_workspace

ALIVE = SessionStatus(living=True)


@pytest.fixture
def held(tmp_path: Path) -> RunState:
    state = held_workspace(tmp_path).run("mine").state()
    state.ending, state.status = "", "reviewing"
    return state


def test_without_a_run_the_line_says_so() -> None:
    assert plain_text(header_line(None, SessionStatus(), 80)) == " studio NO RUN"
    assert (
        plain_text(header_line(RunState(), SessionStatus(starting=True), 120))
        == " studio | STARTING"
    )


def test_the_wide_line_names_run_place_state_and_what_waits(held: RunState) -> None:
    text = plain_text(header_line(held, ALIVE, 120))
    assert text.startswith(" studio | mine | epoch 1/2 step 1/4 | HELD for review | ")
    assert "REVIEW 2" in text and "rehearsal" in text


@pytest.mark.parametrize("width", [40, 60, 80, 99, 100, 120, 200])
def test_state_what_waits_and_the_word_rehearsal_outlast_every_width(
    held: RunState, width: int
) -> None:
    facts = SessionStatus(
        living=True,
        tokens_per_s=3100.0,
        eta="41 min",
        budget={"cost_usd": 5.0, "calls": 900, "tokens": 5e7},
    )
    shown = header_line(held, facts, width)
    text = plain_text(shown)
    assert "HELD" in text and "REVIEW 2" in text and "rehearsal" in text
    assert width_of(shown) <= width


def test_the_line_says_that_replies_are_paced_while_there_is_room_and_a_process(
    held: RunState,
) -> None:
    facts = replace(ALIVE, pace_tokens_per_s=40.0)
    assert "rehearsal | paced 40 tok/s" in plain_text(header_line(held, facts, 120))
    assert "paced" not in plain_text(header_line(held, facts, 60))
    assert "paced" not in plain_text(header_line(held, ALIVE, 200))
    assert "paced" not in plain_text(header_line(held, replace(facts, living=False), 200))


def test_an_unknown_price_is_no_price_of_nothing(held: RunState) -> None:
    assert "$" not in plain_text(header_line(held, ALIVE, 200))
    held.usage = Usage()
    held.paid = Usage(prompt_tokens=6058, calls=30, cost_usd=1.84)
    assert held.total_usage.cost_usd == 1.84
    assert "$1.84 of $5.00" in plain_text(
        header_line(held, replace(ALIVE, budget={"cost_usd": 5.0}), 200)
    )


def test_an_observer_reads_who_decides_and_how_to_take_over(held: RunState) -> None:
    text = plain_text(
        header_line(held, SessionStatus(living=True, drives=False, driver="ann\x1b[2J"), 200)
    )
    assert "OBSERVER | ann" in text and "T takes over" in text and "\x1b" not in text


def test_the_state_is_one_of_the_words_a_person_can_act_on(held: RunState) -> None:
    assert status_word(held, ALIVE) == "HELD for review"
    assert status_word(held, SessionStatus(living=False)) == "NO PROCESS"
    held.operations.clear()
    assert status_word(held, ALIVE) == "COMMITTING"
    assert status_word(held, SessionStatus(living=True, ready=True)) == "HELD: c commits"
    held.status = "running"
    assert status_word(held, ALIVE) == "RUNNING"
    held.hold_after = 1
    assert status_word(held, ALIVE) == "STEPPING"
    held.status = "paused"
    assert status_word(held, ALIVE) == "PAUSED"


def test_a_finished_run_is_finished_without_a_process(tmp_path: Path) -> None:
    state = finished_workspace(tmp_path).run("rehearsal").state()
    assert status_word(state, SessionStatus(living=False)) == "FINISHED"


def test_tokens_are_short_and_never_of_five_figures() -> None:
    shown = [tokens_text(n) for n in (0, 999, 1_000, 9_949, 9_950, 412_345, 999_499, 999_500)]
    assert shown == ["0", "999", "1.0k", "9.9k", "10k", "412k", "999k", "1.0M"]


def test_the_tabs_fill_the_line_and_bracket_the_open_page(held: RunState) -> None:
    for width in (80, 120):
        shown = tabs_line(held, "review", width)
        assert width_of(shown) == width
        assert "[2 Review 2]" in plain_text(shown)
        assert "? help" in plain_text(shown)
    assert width_of(tabs_line(held, "live", 60)) <= 80


def test_flags_and_replies_to_mend_are_counted(held: RunState) -> None:
    assert waiting_text(None) == ""
    assert waiting_text(held) == "REVIEW 2"


def test_the_sign_is_there_while_a_flagged_one_waits_and_no_longer(held: RunState) -> None:
    first, *_ = held.operations
    flag = Flag("similar", "E1", 0.8)
    held.operations[first] = replace(held.operations[first], flags=(flag,))
    assert "REVIEW 2, 1 flagged!" in plain_text(header_line(held, ALIVE, 120))
    assert "2 Review 2!" in plain_text(tabs_line(held, "live", 120))
    held.decisions[first] = Decision(first, "defer")
    assert waiting_text(held) == "REVIEW 1, 1 later"
    assert [op.id for op in held.put_off_operations] == [first]
    held.decisions[first] = Decision(first, "approve")
    assert "REVIEW 1 " in plain_text(header_line(held, ALIVE, 120)) + " "
    assert "!" not in plain_text(header_line(held, ALIVE, 120)) + plain_text(
        tabs_line(held, "live", 120)
    )


def test_the_tokens_at_the_top_are_those_of_the_whole_run(held: RunState) -> None:
    facts = replace(ALIVE, tokens_per_s=36.0)
    assert "9.2k tok in all | 36/s" in plain_text(header_line(held, facts, 120))
    assert "9.2k tok 36/s" in plain_text(header_line(held, facts, 80))


def test_the_name_of_the_run_goes_last_and_the_rate_before_the_tokens(held: RunState) -> None:
    facts = SessionStatus(
        living=True, drives=False, driver="ann", tokens_per_s=36.0, eta="41 min",
        budget={"cost_usd": 5.0},
    )  # fmt: skip
    held.usage = Usage()
    held.paid = Usage(prompt_tokens=6058, calls=30, cost_usd=1.84)
    parts = ["ETA", "36/s", "tok", "$1.84", "mine"]
    seen = [
        [part for part in parts if part in plain_text(header_line(held, facts, width))]
        for width in range(200, 46, -1)
    ]
    for shown in seen:
        assert shown == parts[len(parts) - len(shown) :]
    assert seen[0] == parts and seen[-1] == ["mine"]
    for width in (46, 60, 80):
        text = plain_text(header_line(held, facts, width))
        assert "OBSERVER" in text and "mine" in text and "REVIEW 2" in text
