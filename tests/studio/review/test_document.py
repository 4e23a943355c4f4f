"""The file of a review: what it shows, what a change of it asks for, what it refuses by line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.state.run_state import RunState
from engines.core.types import Decision, Flag, Operation
from studio.review.editor import (
    HEAD,
    NEW,
    Block,
    document_wishes,
    format_document,
    parse_document,
    queue_blocks,
)
from studio.review.scripted import Wish
from studio.session.requests import ReviewQueue
from tests.support.builders import a_library, an_operation

LIBRARY = a_library("Carry: mind it.", "Borrow: mind it too.", "Signs: look twice.")
ADD = an_operation("add", text="Order: multiply first.", id="op1.1")
CHANGE = an_operation("modify", "E1", "Carry: mind the ten.", id="op1.2")
DELETE = an_operation("delete", "E2", id="op1.3")
STARTS = st.sampled_from(["", "#", "[E3] ", "\\", "\\[", "because: ", "[+]"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf"]), max_size=200)


def a_state(*operations: Operation, decisions: tuple[Decision, ...] = ()) -> RunState:
    made = {decision.operation_id: decision for decision in decisions}
    return RunState(operations={op.id: op for op in operations}, decisions=made)


def shown(state: RunState) -> list[Block]:
    pairs = [(state.operations[name], made) for name, made in state.decisions.items()]
    draft = LIBRARY.commit(pairs).library
    texts = tuple((one.id, one.text) for one in draft.experiences)
    queue = ReviewQueue(state.open_operations, tuple(state.decisions.values()), texts)
    return queue_blocks(state, queue, lambda operation: ())


def body(blocks: list[Block]) -> str:
    """The file without its head, which has examples of what is below it."""
    return format_document("mine", blocks).removeprefix(HEAD.format(run="mine"))


def wishes(state: RunState, change: tuple[str, str] = ("", "")) -> list[Wish]:
    """What the file asks for once some text of it is replaced; places left out."""
    before = shown(state)
    text = body(before)
    assert change[0] in text
    after, wrong = parse_document(text.replace(*change, 1), {block.name for block in before})
    found, left_out = document_wishes(before, after, before, state)
    assert left_out == [] and wrong == []
    return [replace(wish, place="") for wish in found]


def test_the_head_explains_itself_in_twelve_lines_of_a_small_terminal() -> None:
    lines = HEAD.splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) < 80
    assert parse_document(HEAD) == ([], [])


def test_a_wording_with_few_words_of_the_old_one_is_shown_as_two_lines() -> None:
    anew = an_operation("modify", "E1", "Write every ten above its column.", id="op1.2")
    text = body(shown(a_state(anew)))
    assert "#  - Carry: mind it.\n#  + Write every ten above its column.\n" in text


def test_a_pin_is_told_above_the_wording() -> None:
    state = a_state()
    queue = ReviewQueue((), (), (("E1", "Carry. " * 20),), pinned=("E1",))
    text = body(queue_blocks(state, queue, lambda operation: ()))
    assert "\n\n# E1 is pinned: nothing may change it\n[E1] Carry. Carry." in text


def test_the_file_shows_what_would_be_if_all_were_approved() -> None:
    flagged = replace(ADD, flags=(Flag("duplicate", 0.91, "of E3"),))
    text = body(shown(a_state(flagged, CHANGE, DELETE)))
    assert "[op1.1] approve add\n#  why       because\n" in text
    assert "#  flag      duplicate (similarity 0.91): of E3" in text
    assert text.count("Order: multiply first.") == 1
    assert "[op1.2] approve modify E1\n#  ~ Carry: mind [-it.-]{+the ten.+}\n" in text
    assert "[op1.3] approve delete E2\n#  - Borrow: mind it too.\n" in text
    # What an operation is about stands in its block alone.
    assert text.endswith("\n[E3] Signs: look twice.\n\n[+]\n") and "[E1]" not in text


APPROVED = [Wish("approve", name) for name in ("op1.1", "op1.2", "op1.3")]


@pytest.mark.parametrize(
    ("change", "at", "wanted"),
    [
        (("multiply first.", "divide\nfirst."), 0, Wish("edit", "op1.1", "Order: divide first.")),
        (
            ("[op1.1] approve add", "[op1.1] approve modify E3"),
            0,
            Wish("edit", "op1.1", "Order: multiply first.", "modify", "E3"),
        ),
        (("[op1.1] approve", "[op1.1]   reject"), 0, Wish("reject", "op1.1")),
        (("[op1.2] approve", "[op1.2] defer"), 1, Wish("defer", "op1.2")),
        (("[op1.2] approve", "[op1.2] open"), 1, Wish("open", "op1.2")),
        (
            ("approve delete E2", "reject delete E2\nbecause: it \nbecause: helps"),
            2,
            Wish("reject", "op1.3", reason="it helps"),
        ),
        (
            ("approve delete E2", "approve modify E2\nBorrow: mind all."),
            2,
            Wish("edit", "op1.3", "Borrow: mind all.", "modify"),
        ),
        (
            ("[E3] Signs", "[E3] All signs"),
            3,
            Wish("modify", text="All signs: look twice.", target="E3"),
        ),
        (("[E3] Signs: look twice.", ""), 3, Wish("delete", target="E3")),
        (("\n[+]", "\n[+] Units: name\nthem."), 3, Wish("add", text="Units: name them.")),
        (
            ("\n[+]", "\n[+]\n\\[x] is a box\nbecause: so"),
            3,
            Wish("add", text="[x] is a box", reason="so"),
        ),
    ],
    ids=lambda one: str(one)[:40],
)  # fmt: skip
def test_what_is_changed_is_asked_for(change: tuple[str, str], at: int, wanted: Wish) -> None:
    expected = [*APPROVED[:at], wanted, *APPROVED[at + 1 :]]
    assert wishes(a_state(ADD, CHANGE, DELETE), change) == expected


def test_a_deleted_block_is_a_rejection_and_of_several_paragraphs_each_is_added() -> None:
    state = a_state(ADD, CHANGE)
    before = shown(state)
    text = "[op1.2] approve modify E1\nCarry: mind the ten.\n[E2] Borrow: mind it too.\n"
    text += "[E3] Signs: look twice.\n[+] One.\n\nTwo\n# no text\nlines.\n\n\n[+]\nThree."
    found, _ = document_wishes(before, parse_document(text)[0], before, state)
    assert [(wish.action, wish.operation, wish.text) for wish in found] == [
        ("reject", "op1.1", None),
        ("approve", "op1.2", None),
        ("add", "", "One."),
        ("add", "", "Two lines."),
        ("add", "", "Three."),
    ]
    assert [wish.place for wish in found] == [
        "[op1.1], whose block is gone", "line 1", "line 5", "line 7", "line 12",
    ]  # fmt: skip


def test_what_is_decided_stands_in_the_file_as_it_was_decided() -> None:
    made = (
        Decision("op1.1", "edit", text="Order: first times.", reviewer="ann", assigned="E4"),
        Decision("op1.2", "reject", reason="no", reviewer="ann"),
        Decision("op1.3", "defer", reviewer="ann"),
    )
    state = a_state(ADD, CHANGE, DELETE, decisions=made)
    text = format_document("mine", shown(state))
    assert "[op1.1] approve add\n#  approved as edited by ann\nOrder: first times.\n" in text
    assert "[op1.2] reject modify E1\n#  rejected by ann\nCarry: mind the ten.\nbecause: no" in text
    assert "[op1.3] defer delete E2\n" in text
    assert "[E1] Carry: mind it." in text and "[E4]" not in text
    # Unchanged it asks for what stands, and for nothing else.
    assert wishes(state) == [Wish("edit", "op1.1", "Order: first times.")]
    taken_back = wishes(state, ("[op1.2] reject", "[op1.2] open"))
    assert taken_back[1] == Wish("open", "op1.2", reason="no")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Mind it.", "line 1: put [+] before it"),
        ("[E3] One.\n\n[E3] Two.", "line 3: [E3] is here twice"),
        ("[E9] One.", r"line 1: [E9] is nothing that stood here; put a \ before a text"),
        ("[E3] One.\n[op1.1] approve add", "line 2: [op1.1] is nothing that stood here"),
    ],
)
def test_what_cannot_be_read_is_told_by_its_line(text: str, wrong: str) -> None:
    _, (problem, *_) = parse_document(text, {"E3"})
    assert problem.startswith(wrong)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS, STARTS), max_size=5))  # fmt: skip
def test_any_wording_comes_back_from_the_file_as_it_was(texts: list[tuple[str, str, str]]) -> None:
    blocks = []
    for number, (text, reason, start) in enumerate(texts):
        words = " ".join(f"{start}{text}".split())
        because = " ".join(reason.split())
        target = " ".join([f"modify E{number}", *["long"] * 20 * (number % 2)])
        blocks.append(Block(f"op1.{number}", f"approve {target}", words, because))
        blocks.append(Block(f"E{number}", "", words))
        blocks += [Block(NEW, "", words, because)] if words else []
    found, _ = parse_document(format_document("mine", blocks))
    assert [replace(block, line=0) for block in found] == blocks


def test_names_that_could_not_be_read_back_are_not_shown_and_those_of_mended_replies_are() -> None:
    mended = an_operation("modify", "my rule", "Mind\n[E1]\x1b[2J", id="op2.p3.1")
    state = a_state(mended)
    names = ("E1", "my rule", "a[b]", "+", "op2.p3.1", "\x1b[2J", "Regel-ä")
    queue = ReviewQueue((mended,), (), tuple((name, "A\xa0  text.") for name in names))
    before = queue_blocks(state, queue, lambda operation: ())
    text = body(before)
    assert [block.name for block in parse_document(text)[0]] == ["op2.p3.1", "E1", "Regel-ä"]
    assert "\x1b" not in text and "Mind [E1]\\u001b[2J" in text
    found, _ = document_wishes(before, parse_document(text)[0], before, state)
    assert [(wish.action, wish.operation) for wish in found] == [("approve", "op2.p3.1")]
    assert document_wishes(parse_document(text)[0], before, before, state)[1] == []


def test_what_changed_meanwhile_is_left_as_it_is_and_told_with_what_was_written() -> None:
    before = a_state(ADD, CHANGE, DELETE)
    was = shown(before)
    text = body(was).replace("multiply first.", "add last.")
    text = text.replace("[E3] Signs", "[E3] All signs")
    text = text.replace("[+]", "[+] Mine.\n\nArrived.\n\nProposed.")
    edited, _ = parse_document(text)
    by_ann = Decision("op1.1", "reject", reviewer="ann")
    state = a_state(
        ADD, DELETE, an_operation("add", text="Later.", id="op1.4"), decisions=(by_ann,)
    )
    now = [replace(b, text="Signs: twice.") if b.name == "E3" else b for b in shown(state)]
    now.append(Block("E7", text="Arrived."))
    found, left_out = document_wishes(was, edited, now, state)
    # The deletion stands as it was shown; op1.4 was shown to nobody.
    assert [(w.action, w.operation, w.text) for w in found] == [
        ("approve", "op1.3", None),
        ("add", "", "Mine."),
        ("add", "", "Proposed."),
    ]
    assert left_out == [
        'op1.1 is another meanwhile, so it is left as it is; you wrote: "Order: add last."',
        "op1.2 is another meanwhile, so it is left as it is",
        'E3 is another meanwhile, so it is left as it is; you wrote: "All signs: look twice."',
    ]
