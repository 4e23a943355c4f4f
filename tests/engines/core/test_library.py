"""Commit, diff and guidance of the library, and that ids are for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.events import LibraryCommitted
from engines.core.library import Library, Reviewed, effective_operation
from engines.core.state.fold import replay_commit
from engines.core.types import Decision, Operation
from tests.support.builders import a_decision, a_library, an_operation, approved

_words = st.sampled_from(["alpha", "beta", " alpha ", "gam\nma", "delta", "", "\ud83d"])
_names = st.none() | st.integers(1, 9).map("E{}".format)
_operations = st.builds(
    Operation,
    id=st.integers(1, 99).map("op1.{}".format),
    kind=st.sampled_from(["add", "modify", "delete", "keep", "pin", "unpin"]),
    target=_names,
    text=_words,
)
_decisions = st.builds(
    Decision,
    operation_id=st.just("op1.1"),
    action=st.sampled_from(["approve", "edit", "reject", "defer"]),
    kind=st.sampled_from([None, "add", "modify", "delete"]),
    target=_names,
    text=st.none() | _words,
    assigned=_names,
)


def _bringing_nothing_back(pair: tuple[Operation, Decision]) -> tuple[Operation, Decision]:
    """An addition with a target restores a deleted experience, which only a revert may."""
    operation, decision = pair
    if operation.kind == "add":
        operation = replace(operation, target=None)
        decision = replace(decision, target=None) if decision.kind in (None, "add") else decision
    return operation, decision


_reviewed = st.lists(
    st.tuples(_operations, _decisions).map(_bringing_nothing_back), max_size=8
).map(tuple)
_limits = st.none() | st.integers(0, 4)
modest = settings(derandomize=True, max_examples=150, deadline=None)


@modest
@given(st.lists(_reviewed, max_size=4), _limits)
def test_no_id_is_ever_given_to_a_second_experience(
    commits: list[Reviewed], limit: int | None
) -> None:
    """Known defect elsewhere: lists renumbered after a deletion, so that E2 became another."""
    library = a_library("one", "two")
    born_at: dict[str, int] = {}
    everyone = {"E1", "E2"}
    for reviewed in commits:
        before = {e.id for e in library.experiences}
        done = library.commit(reviewed, limit=limit)
        for experience in done.library.experiences:
            if experience.id not in before:
                assert experience.id not in everyone  # never one that lived and died
                assert int(experience.id[1:]) >= library.next_number
            assert born_at.setdefault(experience.id, experience.born) == experience.born
        applied_adds = {o.id for o in done.outcomes if o.kind == "add" and o.applied}
        assert not applied_adds & everyone
        everyone |= {str(name) for name in applied_adds}
        numbers = [int(e.id[1:]) for e in done.library.experiences]
        assert numbers == sorted(set(numbers))
        assert done.library.next_number > max(numbers, default=0)
        assert done.library.next_number >= library.next_number
        library = done.library


@modest
@given(_reviewed, _limits)
def test_a_diff_says_exactly_what_a_commit_changed(reviewed: Reviewed, limit: int | None) -> None:
    older = a_library("one", "two", "three")
    newer = older.commit(reviewed, limit=limit).library
    diff = newer.diff(older)
    rebuilt = {e.id: e.text for e in older.experiences}
    for gone in diff.removed:
        del rebuilt[gone.id]
    for before, after in diff.modified:
        assert rebuilt[before.id] == before.text != after.text
        rebuilt[after.id] = after.text
    rebuilt.update((e.id, e.text) for e in diff.added)
    assert rebuilt == {e.id: e.text for e in newer.experiences}
    assert len(diff.unchanged) + len(diff.modified) + len(diff.added) == len(newer.experiences)
    back = older.diff(newer)
    assert [e.id for e in back.added] == [e.id for e in diff.removed]
    assert [(b.text, a.text) for b, a in back.modified] == [
        (a.text, b.text) for b, a in diff.modified
    ]


@modest
@given(_reviewed)
def test_what_is_pinned_keeps_its_words_whatever_is_committed(reviewed: Reviewed) -> None:
    library = a_library("one", "two").commit(approved(an_operation("pin", "E1"))).library
    unpins = any(effective_operation(*pair).kind == "unpin" for pair in reviewed)
    after = library.commit(reviewed).library.get("E1")
    assert unpins or after == library.get("E1")


def test_a_pin_is_a_version_of_its_own_and_holds_within_one_draft() -> None:
    older = a_library("one", "two")
    pin = an_operation("pin", "E1", id="op1.1")
    change = an_operation("modify", "E1", "better", id="op1.2")
    delete = an_operation("delete", "E1", id="op1.3")
    merge = a_decision("op1.4", "edit", kind="modify", target="E1", text="one and three")
    reviewed = (*approved(pin, change, delete), (an_operation("add", text="3", id="op1.4"), merge))
    done = older.commit((*reviewed, *approved(an_operation("keep", "E1", id="op1.5"), pin)))
    newer = done.library
    assert (newer.version, newer.content_hash) == (1, older.content_hash)
    assert newer.get("E1") == replace(older.experiences[0], pinned=True)
    because = "E1 is pinned: nothing may change it; unpin it first"
    assert [o.reason for o in done.outcomes] == [
        "", because, because, because, "", "E1 is pinned already",
    ]  # fmt: skip
    diff, back = newer.diff(older), older.diff(newer)
    assert ([e.id for e in diff.pinned], diff.unpinned, len(diff.unchanged)) == (["E1"], (), 2)
    assert ([e.id for e in back.unpinned], back.pinned) == (["E1"], ())
    freed = newer.commit(approved(an_operation("unpin", "E1"), delete)).library
    assert [e.id for e in freed.experiences] == ["E2"]
    assert older.objection(an_operation("unpin", "E2")) == "E2 is not pinned"
    assert older.objection(an_operation("pin", "E9")) == "E9 was never in this library"


@modest
@given(_reviewed)
def test_a_commit_of_rejected_and_deferred_operations_changes_nothing(reviewed: Reviewed) -> None:
    library = a_library("one", "two")
    refused: Reviewed = [
        (operation, replace(decision, action=action))
        for operation, decision in reviewed
        for action in ("reject", "defer")
    ]
    done = library.commit(refused)
    assert replace(done.library, notes=library.notes) == library
    assert all(idea.is_rejection for idea in done.library.notes.curated)
    assert len(done.outcomes) == len(reviewed)  # a deferred operation has no outcome yet
    assert not any(outcome.applied for outcome in done.outcomes)


@modest
@given(_reviewed, _limits)
def test_replaying_a_commit_gives_the_same_library(reviewed: Reviewed, limit: int | None) -> None:
    library = a_library("one", "two")
    done = library.commit(reviewed, run="r", step=3, limit=limit)
    after = done.library
    if after is not library:
        event = LibraryCommitted(
            version=after.version,
            run="r",
            step=3,
            reviewed=tuple(reviewed),
            content_hash=after.content_hash,
            limit=limit,
        )
        assert replay_commit(library, event) == done
        with pytest.raises(ValueError, match="does not follow"):
            replay_commit(library, replace(event, content_hash="0" * 16))


def test_a_delete_without_text_is_applied() -> None:
    """Known defect elsewhere: operations with an empty text were dropped, deletes included."""
    done = a_library("one", "two").commit(approved(an_operation("delete", "E1")))
    assert [e.id for e in done.library.experiences] == ["E2"]
    assert [(o.kind, o.applied, o.id) for o in done.outcomes] == [("delete", True, "E1")]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("E1", "E1 is gone"),
        ("E9", "E9 was never in this library"),
        ("x", "x is gone"),
        (None, "it names no experience"),
    ],
)
def test_a_modify_of_an_absent_id_is_refused_and_never_an_addition(
    target: str | None, reason: str
) -> None:
    """Known defect elsewhere: a modify of an unknown id was quietly added."""
    library = a_library("one", "two").commit(approved(an_operation("delete", "E1"))).library
    for kind in ("modify", "delete", "keep"):
        done = library.commit(approved(an_operation(kind, target)))
        assert done.library is library
        assert [(o.applied, o.reason) for o in done.outcomes] == [(False, reason)]


def test_each_operation_is_checked_against_what_those_before_it_left() -> None:
    done = a_library("one").commit(
        approved(
            an_operation("delete", "E1", id="a"),
            an_operation("modify", "E1", "new", id="b"),
            an_operation("add", None, "fresh", id="c"),
            an_operation("add", None, " fresh ", id="d"),
        )
    )
    assert [(o.operation_id, o.applied, o.reason) for o in done.outcomes] == [
        ("a", True, ""),
        ("b", False, "E1 is gone"),
        ("c", True, ""),
        ("d", False, "E2 already says exactly this"),
    ]
    assert [(e.id, e.text) for e in done.library.experiences] == [("E2", "fresh")]
    assert done.library.version == 1  # one commit, one version, however many operations


def test_an_assigned_id_is_kept_even_when_a_lower_one_stays_unused() -> None:
    first, second = an_operation(id="a"), an_operation(id="b")
    done = a_library("one").commit(
        [(first, a_decision(first, "reject")), (second, a_decision(second, assigned="E3"))]
    )
    assert [e.id for e in done.library.experiences] == ["E1", "E3"]
    assert done.library.next_number == 4


def test_an_assigned_id_that_lived_before_is_not_given_again() -> None:
    library = a_library("one", "two").commit(approved(an_operation("delete", "E2"))).library
    operation = an_operation("add")
    done = library.commit([(operation, a_decision(operation, assigned="E2"))])
    assert [e.id for e in done.library.experiences] == ["E1", "E3"]


def test_an_addition_may_bring_a_deleted_experience_back_under_its_own_id() -> None:
    library = a_library("one", "two").commit(approved(an_operation("delete", "E1"))).library
    back = an_operation("add", "E1", "one")
    again = library.commit(approved(back)).library
    assert [(e.id, e.text) for e in again.experiences] == [("E1", "one"), ("E2", "two")]
    assert again.next_number == library.next_number
    assert "was not deleted" in str(again.objection(an_operation("add", "E1", "other")))
    assert "was not deleted" in str(again.objection(an_operation("add", "E9", "other")))


def test_an_id_used_up_within_one_commit_does_not_come_back() -> None:
    add = an_operation("add", id="a")
    done = a_library().commit(
        [(add, a_decision(add, assigned="E1")), *approved(an_operation("delete", "E1", id="b"))]
    )
    assert (done.library.experiences, done.library.next_number) == ((), 2)
    assert done.library.version == 1


def test_a_merge_is_an_edit_that_changes_kind_target_and_text() -> None:
    proposed = an_operation("add", None, "Carry: add the carry.")
    merged = a_decision(
        proposed, "edit", kind="modify", target="E1", text="Carry: always add the carry."
    )
    done = a_library("Carry: mind it.", "other").commit([(proposed, merged)])
    assert [(e.id, e.text) for e in done.library.experiences] == [
        ("E1", "Carry: always add the carry."),
        ("E2", "other"),
    ]
    (mark,) = done.library.experiences[0].history
    assert (mark.kind, mark.edited, mark.operation_id) == ("modify", True, "op1.1")


def test_an_edit_into_an_addition_drops_the_target() -> None:
    operation = an_operation("modify", "E1", "x")
    assert effective_operation(operation, a_decision(operation, "edit", kind="add")).target is None


def test_the_limit_holds_for_additions_and_a_deletion_makes_room() -> None:
    library = a_library("one", "two")
    full = library.commit(approved(an_operation("add")), limit=2)
    assert full.outcomes[0].reason.startswith("the library is full (2)")
    swapped = library.commit(
        approved(an_operation("delete", "E1", id="a"), an_operation("add", id="b")), limit=2
    )
    assert [e.id for e in swapped.library.experiences] == ["E2", "E3"]


def test_a_keep_alone_makes_no_new_version() -> None:
    library = a_library("one")
    done = library.commit(approved(an_operation("keep", "E1")))
    assert done.library is library
    assert (done.outcomes[0].applied, done.outcomes[0].id) == (True, "E1")


def test_provenance_says_who_what_and_why_of_each_wording() -> None:
    operation = an_operation("modify", "E1", "new", evidence=("s1p0r1",))
    decision = a_decision(operation, reason="good", at=12.5)
    library = a_library("old").commit([(operation, decision)], run="r", step=4).library
    (mark,) = library.experiences[0].history
    assert (mark.version, mark.run, mark.step, mark.evidence) == (1, "r", 4, ("s1p0r1",))
    assert (mark.proposer, mark.prompt_hash, mark.rationale) == ("m", "hash", "because")
    assert (mark.reviewer, mark.reason, mark.at, mark.edited) == ("person", "good", 12.5, False)


def test_guidance_is_empty_for_an_empty_library_and_one_line_an_experience() -> None:
    assert a_library().guidance() == ""
    assert a_library().guidance_tokens == 0
    typed = a_library().commit(approved(an_operation("add", None, "two\nlines\t here"))).library
    assert typed.guidance().splitlines()[-1] == "[E1] two lines here"
    # 4 bytes a token, rounded up.
    assert typed.guidance_tokens == -(-len(typed.guidance().encode()) // 4)


def test_half_an_emoji_in_a_text_does_not_stop_the_commit() -> None:
    """Models escape halves of pairs in JSON; UTF-8, so the content hash, has no place for them."""
    library = a_library().commit(approved(an_operation("add", None, "so \ud83d and \ud83d\ude00")))
    assert library.library.experiences[0].text == "so � and 😀"
    assert isinstance(library.library, Library)
    assert len(library.library.content_hash) == 16
