"""What the review page draws, as pure lines; the stack of undo; what is read for it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.core.library import Experience, Library
from engines.core.state.run_state import RunState
from engines.core.text.similarity import format_changes
from engines.core.types import Decision, Flag, Operation, UnparsedReply, Usage, Verdict
from studio.review.decider import Draft
from studio.review.evidence import EvidenceRollout, GroupEvidence, PartingWords
from studio.review.undo import (
    UndoEntry,
    UndoStack,
    decision_line,
    inverse_operation,
    last_step_of,
)
from studio.review.wording import find_similar
from studio.session.replay import ReplaySession
from studio.tui.drawing.cells import GLYPHS
from studio.tui.drawing.lines import Line, crop_line, holds_words, plain_text, width_of
from studio.tui.keymap import KEYS
from studio.tui.page import Page
from studio.tui.pages.review.queue import FindingsRequest, ReviewLoader
from studio.tui.pages.review.view import (
    KINDS,
    SORTS,
    Item,
    change_lines,
    commit_lines,
    decided_lines,
    diff_lines,
    evidence_rows,
    item_row,
    items,
    legend_lines,
    rollout_of,
    search_text,
    similar_rows,
)
from studio.tui.pages.review.view import item_rows as rows_of_items
from studio.tui.terminal.look import AsciiFilter
from tests.studio.tui.stage import held_workspace

HOSTILE = "[red]a[/red] \x1b[2J \u202eevil 👩\u200d👩\u200d👧 漢字かな 🇩🇪 wide"


def a_state(*operations: Operation) -> RunState:
    return RunState(operations={op.id: op for op in operations}, status="reviewing", base_version=3)


def add(number: int, text: str = "Carry one.", *flags: Flag) -> Operation:
    return Operation(f"op1.{number}", "add", text=text, flags=flags)


def approve(op: Operation, assigned: str | None = None) -> Decision:
    return Decision(op.id, "approve", reviewer="sam", assigned=assigned)


def drawn(lines: list[Line]) -> list[str]:
    return [plain_text(each).rstrip() for each in lines]


def lines_text(lines: list[Line]) -> str:
    return "\n".join(drawn(lines))


# -- the list -------------------------------------------------------------------------------------


def test_flagged_operations_come_first_and_deciding_them_moves_nothing() -> None:
    state = a_state(add(1), add(2, "x", Flag("leak")), Operation("op1.3", "delete", "E1"))
    before = [item.id for item in items(state)]
    state.decisions["op1.2"] = approve(add(2))
    assert before == [item.id for item in items(state)] == ["op1.2", "op1.1", "op1.3"]


def test_by_kind_means_additions_changes_deletions_what_is_kept_and_weights() -> None:
    kinds = KINDS[::-1]
    state = a_state(*(Operation(f"op1.{n}", kind, "E1") for n, kind in enumerate(kinds)))
    found = items(state, sort=SORTS[1])
    kept = [item.operation.kind for item in found if item.operation]
    assert kept == ["add", "modify", "delete", "keep", "pin", "unpin", "weights"]


@pytest.mark.parametrize(
    ("words", "found"),
    [("carry", ["op1.1"]), ("flagged leak", ["op1.2"]), ("open op1", ["op1.2", "op1.1"])],
)
def test_a_filter_wants_all_its_words(words: str, found: list[str]) -> None:
    state = a_state(add(1), add(2, "Draw it.", Flag("leak")))
    listed = [item.id for item in items(state) if holds_words(search_text(item), words)]
    assert listed == found


def test_only_unflagged_undecided_operations_that_delete_nothing_are_safe() -> None:
    safe = Item("a", add(1))
    assert safe.is_safe
    assert not Item("a", add(1, "x", Flag("leak"))).is_safe
    assert not Item("a", Operation("a", "delete", "E1")).is_safe
    assert not Item("a", add(1), approve(add(1))).is_safe
    assert not Item("a", add(1), deferred=True).is_safe


def test_a_row_says_how_it_stands_without_any_colour() -> None:
    flagged = Operation("op1.2", "modify", "E14", "Count paths.", flags=(Flag("leak"),))
    assert plain_text(item_row(Item("a", flagged)).line) == "◦ ~ E14   ! Count paths."
    rejected = replace(approve(flagged), action="reject")
    assert plain_text(item_row(Item("a", flagged, rejected)).line).startswith("✗ ~ E14")
    gone = Item("a", Operation("op1.3", "delete", "E7"), before="Try small cases.")
    assert plain_text(item_row(gone).line).endswith("small cases.")


def test_each_flag_has_a_line_and_a_length_that_stays_is_told_once() -> None:
    flags = (Flag("leak"), Flag("too long"))
    keep = Item("a", Operation("op1.2", "keep", "E1", flags=flags), before="One two.")
    state, at = a_state(keep.operation), (1, 1)
    shown = drawn(change_lines(keep, state, at=at, mode="words", width=60))
    assert shown[0].startswith("NO CHANGE TO E1  op1.2  2 words ")
    assert shown[1:3] == ["FLAG leak", "FLAG too long"]


def test_a_commit_of_rejections_leaves_the_version_as_it_is() -> None:
    op = add(1)
    item = Item("op1.1", op, replace(approve(op), action="reject"))
    assert "stays v3" in lines_text(commit_lines(a_state(op), [item]))
    assert "v3 becomes v4" in lines_text(
        commit_lines(a_state(op), [Item("op1.1", op, approve(op))])
    )


# -- the draft ------------------------------------------------------------------------------------


def test_the_draft_is_what_the_library_would_become() -> None:
    base = Library("aime", 1, (Experience("E1", "One."), Experience("E2", "Two.")), 3)
    new, other, gone = add(1, "Three\n more."), Operation("b", "modify", "E1", "1."), add(9)
    gone = Operation("c", "delete", "E2")
    back = Operation("d", "modify", "E3", "Three again.")
    reviewed = [
        (new, approve(new, "E3")),
        (other, approve(other)),
        (gone, approve(gone)),
        (back, replace(approve(back), action="edit", text="Three, edited.")),
        (add(5), replace(approve(add(5)), action="reject")),
    ]
    whole = base.commit(reviewed).library
    draft = Draft({e.id: e.text for e in base.experiences})
    draft.apply(reviewed)
    assert draft.texts == {e.id: e.text for e in whole.experiences}
    assert (draft.replaced["b"], draft.replaced["c"]) == ("One.", "Two.")


# -- the change -----------------------------------------------------------------------------------


def test_words_are_marked_and_read_back_to_both_texts() -> None:
    before, after = "Look two times at it.", "Look three times at all of it."
    shown = " ".join(drawn(diff_lines(before, after, "words", 200)))
    assert shown == "Look [-two-]{+three+} times at {+all of+} it."


def test_columns_stay_aligned_with_wide_characters() -> None:
    rows = diff_lines("漢字かな漢字かな漢字", "plain words of any kind", "side by side", 30)
    bars = {cell_len(plain_text(each).partition("|")[0]) for each in rows}
    assert len(bars) == 1


@pytest.mark.parametrize("mode", ["words", "lines", "side by side"])
@pytest.mark.parametrize("width", [20, 58, 76])
def test_no_line_of_a_change_is_wider_than_its_pane(mode: str, width: int) -> None:
    op = Operation(
        "op1.1", "modify", "E1", HOSTILE * 3, HOSTILE, proposer=HOSTILE, flags=(Flag("leak"),)
    )
    lines = change_lines(
        Item(op.id, op, before="Before. " + HOSTILE),
        a_state(op),
        at=(1, 2),
        mode=mode,  # type: ignore[arg-type]
        width=width,
    )
    text = lines_text(lines)
    assert "\x1b" not in text and "\u202e" not in text and "[red]" in text
    assert max(map(width_of, lines)) <= max(width, 22)


def test_a_decided_operation_says_by_whom_and_what_was_proposed() -> None:
    op = add(1, "Carry.")
    edited = Decision(op.id, "edit", text="Carry one.", reason="clearer", reviewer="ann")
    lines = change_lines(Item(op.id, op, edited), a_state(op), at=(1, 1), mode="words", width=100)
    text = lines_text(lines)
    for said in ("edited by ann", "+ Carry one.", "proposed  Carry.", "reason    clearer"):
        assert said in text


def test_a_target_that_is_gone_is_said() -> None:
    op = Operation("op1.1", "modify", "E9", "x")
    lines = change_lines(Item(op.id, op), a_state(op), at=(1, 1), mode="words", width=80)
    assert "E9 is not in the library any more" in lines_text(lines)


# -- evidence and similar ones --------------------------------------------------------------------


def a_witness(index: int, reward: float | None, tail: str = "#### 1") -> EvidenceRollout:
    rollout = ev.RolloutFinished(
        step=1,
        position=0,
        index=index,
        seed=7,
        status="ok",
        answer=None,
        error=None,
        usage=Usage(5, 60, 1),
        elapsed_s=0.1,
        tail=tail,
    )
    return EvidenceRollout(
        rollout, None if reward is None else Verdict(reward, "expected 2, got 1")
    )


def test_winners_come_first_and_the_rest_is_counted() -> None:
    witnesses = tuple(a_witness(n, float(n > 4)) for n in range(8))
    group = GroupEvidence("s1p0", "How many?", 3, 8, witnesses)
    rows = evidence_rows([group], 70)
    text = [plain_text(each.line) for each in rows]
    assert "3 of 8 won" in text[0]
    assert [rollout_of(each.key) for each in rows[1:5]] == ["s1p0r5", "s1p0r6", "s1p0r0", "s1p0r1"]
    assert text[-1].strip() == "and 1 more winner, 3 more losers (enter)"
    opened = evidence_rows([group], 70, opened=True, answers={"s1p0r0": "one\ntwo"})
    assert {rollout_of(each.key) for each in opened} == {f"s1p0r{n}" for n in range(8)}
    assert any("two" in plain_text(each.line) for each in opened)


def test_the_step_where_winner_and_loser_part_stands_below_the_question() -> None:
    workspace_groups = (a_witness(0, 0.0), a_witness(1, 1.0))
    won: PartingWords = "+", "s1p0r1", (("same", "So 7 "), ("new", "* 2"))
    lost: PartingWords = "-", "s1p0r0", (("same", "So 7 "), ("cut", "- 2"))
    group = GroupEvidence("s1p0", "How many?", 1, 2, workspace_groups, (won, lost))
    rows = evidence_rows([group], 70)
    text = [plain_text(each.line).strip() for each in rows]
    assert text[1:3] == ["+ r1 parts: So 7 {+* 2+}", "- r0 parts: So 7 [-- 2-]"]
    assert [rollout_of(row.key) for row in rows[1:3]] == ["s1p0r1", "s1p0r0"]


def test_a_rollout_without_a_reward_is_neither_won_nor_lost() -> None:
    rows = evidence_rows([GroupEvidence("s1p0", "?", 0, 1, (a_witness(0, None),))], 70)
    assert "? r0" in plain_text(rows[1].line) and "not judged" in plain_text(rows[1].line)


@pytest.mark.parametrize("opened", [False, True])
def test_evidence_of_any_text_fits_its_pane(opened: bool) -> None:
    group = GroupEvidence("s1p0", HOSTILE * 4, 0, 1, (a_witness(0, 0.0, HOSTILE * 9),))
    for each in evidence_rows([group], 50, opened=opened):
        assert width_of(each.line) <= 50 and "\x1b" not in plain_text(each.line)


@pytest.mark.parametrize("width", [40, 53, 78])
def test_opened_evidence_loses_no_word_in_a_list(width: int) -> None:
    said = "carry one into the next column, and say so in words that go on and on. " * 4
    judged = "that is what was expected of it " * 12
    witness = replace(a_witness(0, 0.0), verdict=Verdict(0.0, judged))
    group = GroupEvidence("s1p0", said, 0, 1, (witness,))
    rows = evidence_rows([group], width, opened=True, answers={witness.id: said})
    # A list draws two cells before each row and cuts what is wider.
    text = " ".join(" ".join(plain_text(crop_line(each.line, width - 2)).split()) for each in rows)
    assert text.count("carry one into the next column, and say so in words") == 8
    assert text.count("that is what was expected of it") == 12


def test_similar_ones_come_by_likeness() -> None:
    text = "Draw the grid before counting paths."
    others = {"E4": f"{text} Always.", "E2": "Draw the grid before counting.", "E3": "Else."}
    near = find_similar(text, others.items())
    assert [name for name, _, _ in near] == ["E4", "E2"]
    assert [row.key for row in similar_rows(near, 60)] == ["E4", "E2"]


def test_the_evidence_of_an_operation_is_read_with_whole_replies(tmp_path: Path) -> None:
    workspace = held_workspace(tmp_path)
    run = workspace.run("mine")
    room = ReviewLoader(cast(Page, None))
    room.reset(ReplaySession(workspace, run))
    op = replace(add(1), evidence=("s1p0r0", "s1p0r1"))
    wanted = FindingsRequest(Item(op.id, op), {}, 0, opened=True)
    found = room.load_findings(wanted)
    assert found.groups[0].n == 4 and "Step 1" in found.answers["s1p0r0"]
    parting = found.groups[0].parting
    assert [name for _, name, _ in parting] == ["s1p0r1", "s1p0r0"]
    assert format_changes(parting[1][2]).startswith("Step 2 [-(write): write-] the [-last digit")
    run.journal.write_bytes(b"no line of a journal\n" * 3)
    room.reset(ReplaySession(workspace, run))
    with pytest.raises(StudioError, match="journal"):
        room.load_findings(wanted)


# -- taking back ----------------------------------------------------------------------------------


def test_the_inverse_of_each_kind() -> None:
    new, changed = add(1), Operation("b", "modify", "E1", "New.")
    gone, kept = Operation("c", "delete", "E2"), Operation("d", "keep", "E1")
    texts = {"E1": "New.", "E3": "Carry one."}
    made = UndoEntry(new, approve(new, "E3"))
    undone = inverse_operation(made, texts)
    assert isinstance(undone, Operation)
    assert (undone.kind, undone.target) == ("delete", "E3")
    undone = inverse_operation(UndoEntry(changed, approve(changed), was="Old."), texts)
    assert isinstance(undone, Operation)
    assert (undone.kind, undone.target, undone.text) == ("modify", "E1", "Old.")
    undone = inverse_operation(UndoEntry(gone, approve(gone), was="Two."), texts)
    assert isinstance(undone, Operation)
    assert (undone.kind, undone.target, undone.text) == ("add", None, "Two.")
    assert "as it was" in str(inverse_operation(UndoEntry(kept, approve(kept)), texts))
    rejected = replace(approve(new), action="reject")
    assert "changed nothing" in str(inverse_operation(UndoEntry(new, rejected), texts))
    assert "is gone" in str(inverse_operation(made, {}))


def test_a_new_decision_forgets_what_could_be_made_again() -> None:
    sitting = UndoStack(undone=[(UndoEntry(add(1), approve(add(1))),)])
    sitting.add((UndoEntry(add(2), approve(add(2))),))
    assert not sitting.undone and sitting.done == 1


def test_only_ones_own_decision_is_found_again() -> None:
    mine, other = approve(add(1)), replace(approve(add(2)), reviewer="ann")
    decisions = {"op1.1": mine, "op1.2": other}
    found = last_step_of(decisions, {"op1.1": add(1), "op1.2": add(2)}, "sam")
    assert [made.id for made in found] == ["op1.1"]


def test_what_the_gate_rejected_is_counted_apart() -> None:
    refused = Decision("op1.2", "reject", reviewer="gate", reason="E1 says so")
    text = decision_line([UndoEntry(add(1), approve(add(1))), UndoEntry(add(2), refused)])
    assert text.startswith("approved 1;") and "1 did not fit" in text and "E1 says so" in text


# -- a thousand ------------------------------------------------------------------------------------


def test_the_rows_of_many_operations_take_as_much_longer_as_they_are_more() -> None:
    """A thousand take some 15 ms; the least of ten runs counts, of the processor's time."""

    def least_s(count: int) -> float:
        state = a_state(*(add(n, f"When case {n} comes up, " + "word " * 40) for n in range(count)))
        for n in range(0, count, 2):
            state.decisions[f"op1.{n}"] = approve(add(n), f"E{n}")

        def once() -> float:
            began = time.thread_time()
            [item_row(item) for item in items(state)]
            Draft({}).apply(state.reviewed_operations)
            return time.thread_time() - began

        once()
        return min(once() for _ in range(10))

    assert least_s(1_000) < 40 * least_s(100)  # what compares each with each takes 100 times


def test_a_row_shows_the_whole_wording_and_whether_there_is_a_note() -> None:
    text = "When a column adds up to ten or more, carry one into the next column, 漢字かな."
    row = item_row(Item("a", add(1, text)), width=30, has_note=True)
    lines = [row.line, *row.more]
    assert all(width_of(each) <= 30 for each in lines) and len(lines) > 3
    assert " ".join(plain_text(each).strip() for each in lines).endswith(f'" {text}')
    assert all(plain_text(each).startswith("    ") for each in row.more)
    reply = UnparsedReply("s1p0", 1, "extraction", (), "more than " * 50)
    assert plain_text(item_row(Item("a", unparsed=reply)).line).endswith("..")
    noted = item_row(Item("a", add(1, "x"), replace(approve(add(1)), reason="because")))
    assert plain_text(noted.line).endswith('" x')
    edited = Item("a", add(1, "x"), Decision("op1.1", "edit", text="Mine."))
    assert plain_text(item_row(edited).line) == "✎ + new     Mine."


def test_no_sign_of_a_standing_is_a_key_name() -> None:
    names = ("undecided", "approved", "rejected", "edited", "later", "pinned", "note")
    signs = [getattr(GLYPHS, name) for name in names]
    (in_ascii,) = AsciiFilter().apply([Segment("".join(signs))], Color(0, 0, 0))
    for drawn_signs in (signs, list(in_ascii.text)):
        assert len(set(drawn_signs)) == len(signs)
        assert not {*drawn_signs} & {key.key_text for key in KEYS}
    legend = lines_text(legend_lines(()))
    assert all(sign in legend for sign in signs)


def test_dialogs_show_each_operation_whole_with_its_flags() -> None:
    change = Operation("op1.2", "modify", "E1", "Look three times at it.", flags=(Flag("leak"),))
    gone = Operation("op1.3", "delete", "E1")
    texts = {"E1": "Look two times at it."}
    operations = (add(1, "word " * 60), change, gone)
    found = [Item(op.id, op, before=texts.get(op.target or "", "")) for op in operations]
    rows = rows_of_items(found, 40)
    assert [row.key for row in rows] == ["op1.1", "op1.2", "op1.3"]
    text = [" ".join(" ".join(drawn([row.line, *row.more])).split()) for row in rows]
    assert text[0].count("word") == 60
    assert "FLAG leak Look [-two-]{+three+} times at it." in text[1]
    assert "- Look two times at it." in text[2]
    edited = Decision("op1.2", "edit", text="Look four times.", reason="clearer", reviewer="sam")
    item = Item("op1.2", change, edited, before=texts["E1"])
    lines = lines_text([*decided_lines([item], 60)])
    assert "✎ edited" in lines and "{+four+}" in lines and "because clearer" in lines
