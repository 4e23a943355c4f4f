"""Two libraries beside each other: what is marked, how columns stay aligned, what is measured."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from engines.core.library import Library
from engines.core.types import Decision
from engines.pipeline.evaluation.statistics import Interval
from engines.pipeline.evaluation.verdict import Comparison
from studio.facts.evaluation import EvaluationFacts
from studio.facts.library import FoundVersion, HeldOutPair, difference, experience_changes
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.pages.diff import page as view
from studio.tui.pages.diff.page import Compared, compare_references
from studio.tui.pages.lists import Choice, choice_rows
from tests.support.builders import a_library, an_operation

HOSTILE = "[red]x[/] \x1b[2J \u202eevil\u202c 中文字符 👩‍👩‍👧 e\u0301 \t end"


def compared(before: Library, after: Library) -> Compared:
    older, newer = FoundVersion("lib@0", before), FoundVersion("lib@1", after)
    return compare_references("a", "b", difference(older, newer))


def test_numbered_ids_stand_in_order_and_foreign_ones_before_them() -> None:
    before = a_library("one", "two")
    after = a_library("one", "two, too", *("more" for _ in range(9)))
    found = experience_changes(before, after)
    assert [pair.id for pair in found] == [f"E{n}" for n in range(1, 12)]
    assert "".join(pair.sign for pair in found) == "=~" + "+" * 9
    assert [pair.sign for pair in experience_changes(after, before)][-1] == "-"


def test_an_experience_that_was_pinned_differs_although_its_words_are_equal() -> None:
    before = a_library("one", "two")
    after = before.commit([(an_operation("pin", "E2"), Decision("op1.1", "approve"))]).library
    one, two = compared(before, after).entries
    assert (one.differs, one.pin) == (False, "")
    assert (two.differs, two.pin) == (True, "pinned")


def test_words_that_changed_are_marked_each_on_its_own_side() -> None:
    of = compared(a_library("use coefficients here"), a_library("use binomial coefficients"))
    (row,) = view.change_rows(of, 100, "side by side")
    left, right = plain_text(row.line).split("│")
    assert left.strip() == "~ E1 use coefficients[- here-]" or "[-" in left
    assert "{+" not in left
    assert "[-" not in right
    assert "{+binomial" in right


@pytest.mark.parametrize("mode", ["side by side", "words"])
@pytest.mark.parametrize("width", [24, 57, 97, 118])
def test_no_line_is_wider_than_asked_whatever_a_model_wrote(mode: view.Mode, width: int) -> None:
    of = compared(
        a_library(HOSTILE, "中" * 90, "same " * 40, "gone 👨‍👩‍👧‍👦 " * 9),
        a_library(HOSTILE + " more", "中" * 40 + "文" * 50, "same " * 40),
    )
    for row in view.change_rows(of, width, mode):
        for each in (row.line, *row.more):
            assert width_of(each) <= width
            assert "\x1b" not in plain_text(each)
            assert "\u202e" not in plain_text(each)


def test_what_is_equal_can_be_hidden_and_a_filter_needs_all_its_words() -> None:
    of = compared(a_library("same", "old paths"), a_library("same", "new paths", "grid"))
    ids = [row.key for row in view.change_rows(of, 60, "words", same=False)]
    assert ids == ["E2", "E3"]
    assert [row.key for row in view.change_rows(of, 60, "words", words="paths NEW")] == ["E2"]


def test_the_head_counts_and_says_that_nothing_was_measured() -> None:
    of = compared(a_library("a", "b"), a_library("a", "B", "c"))
    shown = [plain_text(row) for row in view.head_lines(of, "words", 80)]
    assert shown[0].split("  ")[0] == "lib@0 -> lib@1"
    assert shown[0].endswith("b, B choose epochs, versions, runs")
    assert shown[1].startswith("1 added, 1 reworded, 1 equal   ")
    assert "no evaluation of either side" in shown[2]


def measured(*names: str) -> Compared:
    def rate(data: str, mean: float) -> EvaluationFacts:
        return EvaluationFacts(
            step=1,
            data=data,
            library_version=1,
            policy_version=0,
            learned="library",
            mean_reward=mean,
            interval=Interval(mean - 0.1, mean + 0.1),
            n=100,
            unjudged=0,
            reused=0,
            left_out=0,
            tool_calls_per_try=0.0,
        )

    change = Comparison(
        questions=100,
        difference=0.59,
        interval=Interval(0.5, 0.68),
        better=60,
        worse=1,
        level=39,
        p=0.001,
        verdict="helps",
    )
    pairs = [HeldOutPair(name, rate(name, 0.31), rate(name, 0.9), change) for name in names]
    of = compared(a_library("one"), a_library("one"))
    return replace(of, facts=replace(of.facts, held_out=tuple(pairs)))


def test_of_what_was_measured_the_verdict_stays_where_there_is_no_room_for_all() -> None:
    def at(width: int) -> str:
        return plain_text(view.head_lines(measured("set"), "words", width)[2])

    rates = "0.310 [0.21, 0.41] (n=100) -> 0.900 [0.80, 1.00] (n=100)"
    assert at(100) == f"set  +0.590 [+0.50, +0.68] helps   {rates}"
    assert at(40).startswith("set  +0.590 [+0.50, +0.68] helps ")


def test_the_list_of_choices_keeps_headings_until_it_is_filtered() -> None:
    found = (Choice("", "run mine"), Choice("mine@last", "v3"), Choice("lib@2", "by hand"))
    assert [row.key for row in choice_rows(found, "", 60)] == ["", "mine@last", "lib@2"]
    assert [row.key for row in choice_rows(found, "hand", 60)] == ["lib@2"]


def test_a_thousand_experiences_are_laid_out_within_a_second_of_computing() -> None:
    text = "When counting lattice paths with forbidden points, use binomial coefficients. " * 2
    before = a_library(*(f"{text} {n}" for n in range(1_000)))
    after = a_library(*(f"{text.replace('points', 'cells')} {n}" for n in range(1_000)))
    began = time.process_time()
    view.change_rows(compared(before, after), 117, "side by side")
    assert time.process_time() - began < 5  # 0.5 s where it was written; a square would be 100
