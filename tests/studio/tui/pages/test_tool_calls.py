"""Agents that act, by keys: blocks in Live and Inspect that fold, counts in their tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.text.tool_text import call_mark, result_mark, transcript_text
from engines.core.types import Message, ToolCall, ToolResult
from studio.facts.step import RolloutFacts, read_rollout
from studio.session.session import TextPiece, TextReceived
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.page import InspectPage
from tests.studio.tui.pages.test_inspect_view import a_whole, drawn, member
from tests.studio.tui.pages.test_live import NARROW, WIDE, Watched, started, watching
from tests.studio.tui.reading import has_read
from tests.studio.tui.stage import FakeSession, app_on, check_painted, held_workspace, picture

CODE = "found = [n for n in range(9)\n         if n % 2]\nprint(sum(found))"
CALL = ToolCall("c0", "python", json.dumps({"code": CODE}))
FAILED = "error: NameError: name 'n' is not defined"
TRAJECTORY = (
    Message("user", "Add the odd numbers below 9."),
    Message("assistant", "I run it.", "Think first.", (CALL,)),
    Message("tool", FAILED, tool_call_id="c0"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "16\n", tool_call_id="c0"),
    Message("assistant", "It is 16."),
)


def acting(event: object) -> object:
    """The same try as it is told of one that called tools."""
    if not isinstance(event, ev.RolloutFinished):
        return event
    return replace(event, turns=3, tool_calls=2, failed_calls=event.index % 2)


async def to_zoom(live: Watched, mode: str) -> None:
    while live.page.cursor.mode != mode:
        await live.press("z")


def test_a_trajectory_reads_as_it_streamed() -> None:
    failed, ended = ToolResult(FAILED, "error"), ToolResult("16\n")
    assert transcript_text(TRAJECTORY) == (
        "I run it."
        + (call_mark(CALL) + result_mark(CALL, failed))
        + (call_mark(CALL) + result_mark(CALL, ended))
        + "It is 16."
    )
    assert transcript_text((Message("assistant", "a"), Message("assistant", "b"))) == "a\nb"


@pytest.mark.parametrize("size", [WIDE, NARROW])
async def test_marks_stream_into_blocks_that_one_key_unfolds(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with watching(tmp_path, size) as live:
        await live.press("right_square_bracket")
        await to_zoom(live, "solo")
        await live.press("Z")
        assert "no tool call is shown here" in live.said
        begun = "I run it." + call_mark(CALL)
        await live.stream(TextPiece("s1p1r0", 0, begun))
        assert "▸ python  found = [n for n in range(9)" in live.screen
        assert "-> running .." in live.screen and "Z tools" in live.screen
        result = result_mark(CALL, ToolResult("16\n"))
        await live.stream(TextPiece("s1p1r0", len(begun), result))
        assert "-> 16" in live.screen
        await live.press("Z")
        assert "│ print(sum(found))" in live.screen and "▾ python" in live.screen
        await live.stream(TextPiece("s1p1r0", len(begun + result), "It is 16."))
        assert "It is 16. |" in live.screen
        await live.press("Z")
        assert "▾" not in live.screen and "It is 16. |" in live.screen
        check_painted(live.app)


@pytest.mark.nightly
async def test_keys_at_speed_while_marks_stream_leave_what_is_there(tmp_path: Path) -> None:
    async with watching(tmp_path) as live:
        await live.press("right_square_bracket")
        at = {f"s1p1r{index}": 0 for index in range(4)}
        for turn in range(40):
            for name in at:
                mark = call_mark(replace(CALL, id=str(turn)))
                mark += result_mark(replace(CALL, id=str(turn)), ToolResult(f"result {turn}"))
                for piece in (f"turn {turn}: ", mark[:30], mark[30:]):
                    live.session._messages.put_nowait(
                        TextReceived((TextPiece(name, at[name], piece),))
                    )
                    at[name] += len(piece)
            await live.pilot.press(
                *("Z", "z", "Z", "l", "Z", "j", "G", "f")[turn % 8 : turn % 8 + 3]
            )
        await live.press("1")
        await to_zoom(live, "solo")
        await live.draw()
        assert "result 39" in live.screen and "turn 39: " in live.screen
        check_painted(live.app)


async def test_turns_and_calls_stand_in_the_table_where_any_try_has_them(tmp_path: Path) -> None:
    async with watching(tmp_path, begun=False) as live:
        step = next(event for event in live.events if isinstance(event, ev.StepStarted))
        await live.hear(step, *(started(0, index) for index in range(4)))
        await live.hear(*live.events_of(0))
        assert "tool calls" not in live.screen
        await live.hear(*map(acting, live.events_of(0)))
        assert "4/3: turns/tool calls" in live.screen and "  3/2!" in live.screen
        await to_zoom(live, "wall")
        assert "4/3: turns/tool calls" in live.screen and " 3/2! " in live.screen


def a_recorded(index: int = 0) -> RolloutFacts:
    whole = a_whole(*TRAJECTORY, index=index)
    return replace(whole, finished=replace(whole.finished, turns=3, tool_calls=2, failed_calls=1))


def test_inspect_folds_each_call_and_each_result_to_one_row() -> None:
    parts = view.rollout_parts(a_recorded())
    rows = drawn(view.rollout_rows(parts, 80))
    at = next(n for n, row in enumerate(rows) if row.startswith("calls"))
    assert rows[at].startswith("calls     python found = [n for n in range(9) if n % 2]")
    assert rows[at].endswith("[fold 3 lines]")
    assert rows[at + 1] == f"tool      {FAILED}" and rows[at + 3] == "tool      16"
    (hit,) = view.find_hits(parts[:4], "print(sum")  # what is searched for unfolds
    rows = drawn(view.rollout_rows(parts, 80, hits=(hit,)))
    assert rows[at : at + 4] == [
        "calls     python",
        "          found = [n for n in range(9)",
        "                   if n % 2]",
        "          print(sum(found))",
    ]


def test_inspect_counts_turns_and_calls_of_each_try() -> None:
    acting = member(a_recorded(), 0)
    plain = member(a_whole(index=1), 1)
    group = view.GroupSummary("s1p0", "p", 1, 1, (acting, plain))
    assert drawn(view.group_rows(group, 22)) == ["r0  - 0.0   52t 3/2!", "r1  - 0.0   52t"]
    lines = view.answer_lines(a_recorded(), None, group, 60)
    assert ("3 turns, 2 tool calls (1 failed)", "") in {span for line in lines for span in line}
    alone = view.GroupSummary("s1p0", "p", 1, 1, (plain,))
    assert drawn(view.group_rows(alone, 30)) == ["r1  - 0.0   52t"]


def test_a_try_under_way_has_its_calls_as_parts_though_its_beginning_is_cut() -> None:
    text = transcript_text(TRAJECTORY[:-1]) + "It is"
    labels = [part.label for part in view.live_parts(text)]
    assert labels == ["answer", "calls", "tool", "calls", "tool", "answer"]
    long = call_mark(replace(CALL, arguments="x" * view.LIVE_TAIL_CHARS)) + text
    assert [part.text for part in view.live_parts(long)][:1] == ["I run it."]


async def test_the_key_unfolds_all_calls_of_a_rollout_in_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*args: object) -> RolloutFacts:
        return replace(read_rollout(*args), messages=TRAJECTORY)  # type: ignore[arg-type]

    monkeypatch.setattr("studio.facts.step.read_rollout", read)
    workspace = held_workspace(tmp_path)
    app = app_on(FakeSession(workspace.run("mine")), workspace)
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("inspect", "s1p0r1")
        await has_read(pilot)
        page = app.navigation.page("inspect")
        assert isinstance(page, InspectPage)
        folded = "\n".join(picture(app))
        assert "[fold 3 lines]" in folded and "Z tools" in folded
        await pilot.press("Z")
        await has_read(pilot)
        shown = "\n".join(picture(app))
        assert shown.count("print(sum(found))") == 2
        await pilot.press("Z")
        await has_read(pilot)
        assert "print(sum(found))" not in "\n".join(picture(app)[3:-2]).replace("] print", "")
        check_painted(app)
