"""What is counted of each experience: sums, what a step saw of them, what a new wording does."""

from __future__ import annotations

from dataclasses import replace

from engines.core.codec import from_dict, to_dict
from engines.core.library import Experience, Library
from engines.core.library_notes import KEPT_CREDITS, NO_USES, NotesMark, StepCredits, UseCounts
from engines.core.types import Operation
from tests.support.builders import a_library, an_operation, approved

ONE, TWO = UseCounts(used=1), UseCounts(used=2, ignored=1, misled=1, cited=3)


def credited(library: Library, *steps: tuple[str, int, dict[str, UseCounts]]) -> Library:
    for run, step, counts in steps:
        here = {experience.id for experience in library.experiences}
        notes = library.notes.credit(StepCredits(run, step, counts), here)
        library = replace(library, notes=notes)
    return library


def committed(library: Library, *operations: Operation) -> Library:
    return library.commit(approved(*operations), run="r", step=3).library


def test_counts_add_up_and_are_told_in_plain_words() -> None:
    library = credited(a_library("one", "two"), ("r", 1, {"E1": ONE}), ("r", 2, {"E1": TWO}))
    assert library.notes.uses == {"E1": UseCounts(3, 1, 1, 3)}
    assert library.notes.uses["E1"].text == "used 3, ignored 1, misled 1, cited 3"
    assert (ONE.text, NO_USES.text) == ("used 1, ignored 0, misled 0", "")


def test_counts_are_no_content_and_make_no_version() -> None:
    before = a_library("one")
    after = credited(before, ("r", 1, {"E1": ONE}))
    assert (after.version, after.content_hash) == (before.version, before.content_hash)
    assert after.guidance() == before.guidance()


def test_a_new_wording_starts_anew_and_its_history_keeps_the_old_counts() -> None:
    library = credited(a_library("one", "two"), ("r", 1, {"E1": TWO, "E2": ONE}))
    reworded = committed(library, an_operation("modify", "E1", "other words"))
    assert reworded.notes.uses == {"E2": ONE}
    (found,) = (e for e in reworded.experiences if e.id == "E1")
    assert found.history[-1].uses_before == TWO
    assert from_dict(Experience, to_dict(found)) == found


def test_what_is_deleted_loses_its_counts_and_a_pin_keeps_them() -> None:
    library = credited(a_library("one", "two"), ("r", 1, {"E1": TWO, "E2": ONE}))
    assert committed(library, an_operation("delete", "E1", "")).notes.uses == {"E2": ONE}
    assert committed(library, an_operation("pin", "E1", "")).notes.uses == library.notes.uses


def test_what_is_gone_is_not_counted_any_more() -> None:
    assert credited(a_library("one"), ("r", 1, {"E9": ONE})).notes.uses == {}


def test_a_step_is_shown_the_counts_that_stood_as_it_began() -> None:
    library = credited(a_library("one"), ("r", 1, {"E1": ONE}), ("r", 2, {"E1": TWO}))
    notes = library.notes
    assert notes.as_of(NotesMark(credits=1)).uses == {"E1": ONE}
    assert notes.as_of(NotesMark(credits=0)).uses == {}
    assert notes.as_of(notes.mark) == notes == notes.as_of(NotesMark(3, 3))
    # Of five older steps only the sums are left.
    aged = replace(notes, mark=NotesMark(credits=7))
    assert aged.as_of(NotesMark(credits=6)).uses == {"E1": ONE}


def test_what_a_run_is_still_to_count_is_left_out_but_not_that_of_a_removed_run_of_its_name() -> (
    None
):
    steps = (("r", 2, {"E1": ONE}), ("other", 2, {"E1": ONE}), ("r", 1, {"E1": ONE}))
    library = credited(a_library("one"), *steps, ("r", 2, {"E1": TWO}))
    since = NotesMark(credits=1)  # the first line is of a run removed since
    assert library.notes.without_own("r", 2, since).uses == {"E1": UseCounts(used=3)}
    assert [one.step for one in library.notes.own_credits("r", 1, since)] == [1, 2]
    assert library.notes.without_own("r", 3, NotesMark()) == library.notes


def test_only_so_many_steps_are_told_apart() -> None:
    many = [("r", step, {"E1": ONE}) for step in range(KEPT_CREDITS + 5)]
    library = credited(a_library("one"), *many)
    assert (len(library.notes.credits), library.notes.mark.credits) == (
        KEPT_CREDITS,
        KEPT_CREDITS + 5,
    )
    assert library.notes.uses["E1"].used == KEPT_CREDITS + 5
