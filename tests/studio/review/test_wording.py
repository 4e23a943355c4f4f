"""Some parts of a modify, and two proposals as one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.library import effective_operation
from engines.core.types import Decision
from studio.review.wording import changed_parts, merge_decisions, text_with_parts
from tests.support.builders import a_library, an_operation

_texts = st.lists(st.sampled_from(["carry", "the", "ten", " ", ", ", "\n", "。", "二", "a"])).map(
    "".join
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(_texts, _texts, st.sets(st.integers(1, 6)))
def test_all_parts_give_the_new_wording_none_the_old_and_each_is_taken_alone(
    before: str, after: str, chosen: set[int]
) -> None:
    parts = changed_parts(before, after)
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert text_with_parts(before, after, ()) == before
    assert text_with_parts(before, after, range(1, len(parts) + 1)) == after
    some = text_with_parts(before, after, chosen)
    expected = sum(len(p.new) - len(p.cut) for p in parts if p.number in chosen)
    assert len(some) == len(before) + expected


def test_words_that_change_side_by_side_are_one_part() -> None:
    before = "Carry: add the small ten to the next column."
    after = "Carry: add the carried one to the next column, always."
    first, second = changed_parts(before, after)
    assert (first.cut, first.new) == ("small ten", "carried one")
    assert (second.cut, second.new) == ("column.", "column, always.")
    assert text_with_parts(before, after, {2}) == (
        "Carry: add the small ten to the next column, always."
    )


def test_a_merge_is_an_edit_and_rejections_and_the_evidence_of_all_counts() -> None:
    first = an_operation("modify", "E1", id="op3.1", evidence=("s3p0r0", "s3p1r1"))
    other = an_operation("add", id="op3.4", evidence=("s3p1r1", "s3p2r0"))
    edit = Decision("op3.1", "edit", text="both", reviewer="ann")
    pairs = merge_decisions(first, [other], edit)
    assert [(op.id, d.action, d.reason, d.reviewer) for op, d in pairs] == [
        ("op3.4", "reject", "merged into op3.1", "ann"),
        ("op3.1", "edit", "", "ann"),
    ]
    assert effective_operation(*pairs[-1]).evidence == ("s3p0r0", "s3p1r1", "s3p2r0")
    (kept,) = a_library("one").commit(pairs).library.experiences
    assert (kept.text, kept.history[-1].evidence) == ("both", ("s3p0r0", "s3p1r1", "s3p2r0"))
