"""A rollout as pure lines: parts that fold, text that is searched."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from engines.core import events as ev
from engines.core.types import Message, ToolCall, Usage, Verdict
from studio.facts.step import ModelCall, RolloutFacts
from studio.review.divergence import find_divergence
from studio.tui.drawing.lines import Row, plain_text, width_of
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.page import find_rollouts
from studio.tui.pages.inspect.view import GroupSummary, Part
from studio.tui.pages.live.view import RolloutStatus, describe_rollout

HOSTILE = "漢字[red]\x1b[2J‮ 👩‍👩‍👧 "


def a_whole(
    *messages: Message,
    reward: float | None = 0.0,
    critique: str | None = None,
    status: str = "ok",
    index: int = 0,
    judged: bool = True,
) -> RolloutFacts:
    usage = Usage(70, 52, 1)
    rollout = ev.RolloutFinished(
        step=1,
        position=0,
        index=index,
        seed=41,
        status=status,
        answer=None,
        error=None,
        usage=usage,
        elapsed_s=1.5,
    )  # type: ignore[arg-type]
    verdict = Verdict(reward, critique, {"closeness": 0.8}) if judged else None
    call = ModelCall(
        purpose="rollout",
        turn=0,
        index=index,
        position=0,
        model="small",
        prompt=(),
        reply="",
        usage=replace(usage, cost_usd=0.0012),
        finish="stop",
        elapsed_s=1.5,
        temperature=0.7,
        record="records/step-0001.jsonl@0",
    )
    said = messages or (
        Message("system", "You are told.\n" * 20),
        Message("user", "How many?"),
        Message("assistant", "So it is\n#### 56", "thinking\n" * 64),
    )
    return RolloutFacts(f"s1p0r{index}", rollout, verdict, said, (call,))


def drawn(rows: list[Row]) -> list[str]:
    return [plain_text(row.line).rstrip() for row in rows]


def test_system_and_thinking_begin_folded_and_say_how_much_is_hidden() -> None:
    lines = drawn(view.rollout_rows(view.rollout_parts(a_whole()), 80))
    assert lines[0].startswith("system    You are told. You are told. ")
    assert lines[0].endswith("..  [fold 20 lines]")
    assert lines[1] == "user      How many?"
    assert lines[2].startswith("think     thinking") and lines[2].endswith("[fold 64 lines]")
    assert lines[3:5] == ["answer    So it is", "          #### 56"]


def test_the_verdict_comes_with_metrics_critique_finish_and_seed() -> None:
    found = view.rollout_parts(a_whole(critique="expected 66, got 56"))
    text = "\n".join(drawn(view.rollout_rows(found, 100)))
    assert "reward    0 lost [closeness 0.8]" in text
    assert "critique  expected 66, got 56" in text
    assert "ok, finish stop; 70 + 52 tokens; 1.50 s; seed 41" in text
    assert "turn 0" not in text


def test_tokens_and_times_of_each_call_are_shown_when_asked_for() -> None:
    lines = drawn(view.rollout_rows(view.rollout_parts(a_whole(), calls=True), 120))
    assert lines[-1].startswith("turn 0    70 + 52 tokens  1.50 s  $0.0012  finish stop  small")


def test_a_part_is_unfolded_and_folded_again() -> None:
    parts = view.rollout_parts(a_whole())
    system = parts[0].key
    shown = len(view.rollout_rows(parts, 80, {system}))
    assert shown == len(view.rollout_rows(parts, 80)) + 20
    answer = next(part.key for part in parts if part.label == "answer")
    assert "answer    So it is #### 56  [fold 1 line]" in drawn(
        view.rollout_rows(parts, 80, {answer})
    )


def test_a_reward_or_an_ending_cannot_be_folded_away() -> None:
    parts = view.rollout_parts(a_whole())
    assert view.rollout_rows(parts, 80, {"reward", "ended"}) == view.rollout_rows(parts, 80)


@pytest.mark.parametrize("width", [100, 60, 36])
def test_hostile_text_is_inert_and_no_line_is_wider_than_the_pane(width: int) -> None:
    said = (Message("user", HOSTILE * 40), Message("assistant", HOSTILE * 40, HOSTILE * 40))
    rows = view.rollout_rows(view.rollout_parts(a_whole(*said, critique=HOSTILE)), width)
    assert max(width_of(row.line) for row in rows) <= width
    text = "".join(drawn(rows))
    assert "[red]" in text and not {"\x1b", "‮", "‍"} & set(text)
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys)) and all(keys)


def test_every_call_of_a_tool_is_a_part_of_its_own_also_where_ids_repeat() -> None:
    calls = (ToolCall("a", "run", "{}"), ToolCall("a", "run", "{1}"))
    said = (Message("assistant", "", "", calls), Message("tool", "done", tool_call_id="a"))
    rows = view.rollout_rows(view.rollout_parts(a_whole(*said)), 80)
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys))
    assert [line for line in drawn(rows) if "run {" in line] == [
        "calls     run {}",
        "calls     run {1}",
    ]


def test_a_search_marks_hits_across_lines_unfolds_them_and_names_their_row() -> None:
    parts = (Part("think", "think", "word " * 100 + "the needle is here"),)
    assert not any("needle" in line for line in drawn(view.rollout_rows(parts, 40)))
    (hit,) = view.find_hits(parts, "  NEEDLE   IS here ")
    rows = view.rollout_rows(parts, 40, hits=(hit,))
    marked = [text for row in rows for text, style in row.line if style == "flag"]
    assert " ".join(marked).split() == ["needle", "is", "here"]
    row = next(row for row in rows if row.key == view.find_hit_row(hit, parts, 40))
    assert "needle" in plain_text(row.line)


def test_hits_beside_each_other_in_one_line_are_all_marked_and_no_text_is_lost() -> None:
    parts = (Part("a", "answer", "abab\nab b"),)
    rows = view.rollout_rows(parts, 40, hits=view.find_hits(parts, "ab"))
    assert drawn(rows) == ["answer    abab", "          ab b"]
    assert sum(style == "flag" for row in rows for _, style in row.line) == 3


def test_an_empty_search_finds_nothing() -> None:
    assert view.find_hits((Part("a", "answer", "x"),), "  ") == ()


@pytest.mark.parametrize(
    ("whole", "truth", "expected"),
    [
        (a_whole(), "66", ["expected  66", "got       #### 56"]),
        (a_whole(Message("user", "?")), None, []),
        (None, "66", ["expected  66"]),
    ],
)
def test_expected_and_got_come_from_data_and_reply(
    whole: RolloutFacts | None, truth: str | None, expected: list[str]
) -> None:
    group = GroupSummary("s1p0", "7d87", 1, 0, ())
    lines = [plain_text(each) for each in view.answer_lines(whole, truth, group, 60)]
    assert [each for each in lines if each.startswith(("expected", "got"))] == expected


def member(whole: RolloutFacts | None, index: int, *, under_way: bool = False) -> RolloutStatus:
    rollout, verdict = (whole.finished, whole.verdict) if whole is not None else (None, None)
    name = f"s1p0r{index}"
    return describe_rollout(name, 0, index, rollout, verdict, is_under_way=under_way)


def test_a_group_shows_every_rollout_with_a_sign_that_needs_no_colour() -> None:
    members = (
        member(a_whole(reward=1.0), 0),
        member(a_whole(index=1), 1),
        member(a_whole(index=2, status="failed"), 2),
        member(a_whole(index=3, judged=False), 3),
        member(None, 4, under_way=True),
        member(None, 5, under_way=False),
    )
    group = GroupSummary("s1p0", "7d87", 1, 0, members)
    lines = drawn(view.group_rows(group, 40))
    assert [line.split()[1] for line in lines] == ["+", "-", "!", "?", ">", "."]
    assert lines[0].split() == ["r0", "+", "1.0", "52t"] and lines[5].endswith("queued")
    assert plain_text(view.answer_lines(None, None, group, 40)[-1]).endswith("1 of 6 won")
    assert all(width_of(row.line) <= 20 for row in view.group_rows(group, 20))


def test_a_pair_is_a_winner_and_a_loser_with_the_chosen_one_among_them() -> None:
    members = [
        RolloutStatus("r0", 0, 0, "lost", reward=0.2),
        RolloutStatus("r1", 0, 1, "won", reward=0.7),
        RolloutStatus("r2", 0, 2, "lost", reward=0.0),
        RolloutStatus("r3", 0, 3, "won", reward=1.0),
        RolloutStatus("r4", 0, 4, "error"),
    ]
    assert view.winners_and_losers(members, "r4") == (["r3", "r1"], ["r2", "r0"])
    assert view.winners_and_losers(members, "r0") == (["r3", "r1"], ["r0"])
    assert view.winners_and_losers(members, "r1") == (["r1"], ["r2", "r0"])
    assert view.winners_and_losers(members[:1], "r0") == ([], ["r0"])


def test_the_step_where_it_parts_is_marked_by_signs_beside_any_colour() -> None:
    right = Message("assistant", "First, 3 + 4 = 7.\nThen 7 * 2 = 14.\n#### 14")
    wrong = Message("assistant", "First, 3 + 4 = 7.\nThen 7 - 2 = 5.\n#### 5", "hm\n" * 9)
    won, lost = (view.rollout_parts(a_whole(said)) for said in (right, wrong))
    found = find_divergence(view.said_pieces(won), view.said_pieces(lost))
    assert found is not None
    marked = view.mark_parting(lost, found.loser, "removed")
    assert marked.step is not None
    rows = view.rollout_rows(marked.parts, 60, hits=marked.hits, step=marked.step)
    at = view.find_hit_row(marked.step, marked.parts, 60)
    row = next(row for row in rows if row.key == at)
    assert plain_text(row.line).rstrip() == "        > Then 7 [---] 2 = [-5.-]"
    assert ("[-5.-]", "removed") in row.line
    other = view.mark_parting(won, found.winner, "added")
    assert "Then 7 {+*+} 2 = {+14.+}" in "\n".join(drawn(view.rollout_rows(other.parts, 60)))
    assert len(rows) == len(view.rollout_rows(lost, 60)), "what was folded stays so"


STEPS = {1: ("aaaa1111", "bbbb2222"), 2: ("bbbb2222", "aaaa1111")}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("s1p0r2", "s1p0r2"),
        ("s2p1", "s2p1"),
        ("s2p2", ""),
        ("s9p0r0", ""),
        ("op1.1", "s1p1r0"),
        ("op1.2", ""),
        ("aaaa1111", "s2p1"),
        ("aaaa", "s2p1"),
        ("aaa", ""),
        ("", ""),
    ],
)
def test_an_id_leads_to_its_rollout_or_its_newest_group(target: str, expected: str) -> None:
    steps = {number: SimpleNamespace(problems=problems) for number, problems in STEPS.items()}
    evidence = {"op1.1": ("s1p1r0", "s1p1r1"), "op1.2": ()}
    operations = {name: SimpleNamespace(evidence=names) for name, names in evidence.items()}
    state = SimpleNamespace(steps=steps, operations=operations)
    assert find_rollouts(state, target) == expected  # type: ignore[arg-type]


def test_only_the_end_of_a_long_text_under_way_is_wrapped() -> None:
    (part,) = view.live_parts("x " * 200_000)
    assert len(part.text) == view.LIVE_TAIL_CHARS and "its last 20,000 characters" in part.note
