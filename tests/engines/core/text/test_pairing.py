"""Which lesson of one library stands for which of another."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.library import Experience, Library
from engines.core.text.similarity import Entry, pair_entries

_WORDS = ("Carry the one.", "carry  the one", "Carry the ten.", "Draw a grid.", "Go away.", "…", "")
_entries = st.lists(st.sampled_from(_WORDS), max_size=7).flatmap(
    lambda texts: st.permutations(range(1, 10)).map(
        lambda ids: [(f"E{n}", text) for n, text in zip(ids, texts, strict=False)]
    )
)
modest = settings(derandomize=True, max_examples=150, deadline=None)


def names(older: Sequence[Entry], newer: Sequence[Entry]) -> set[tuple[str, str]]:
    return {(older[i][0], newer[j][0]) for i, j in pair_entries(older, newer)}


def library(entries: Sequence[Entry]) -> Library:
    return Library("lib", 0, tuple(Experience(name, text) for name, text in entries), 99)


@modest
@given(_entries, st.permutations(range(1, 10)), st.randoms(use_true_random=False))
def test_a_library_under_other_ids_and_in_another_order_shows_no_rewrite(
    entries: list[Entry], ids: list[int], random: object
) -> None:
    renamed = [(f"E{n}", text) for n, (_, text) in zip(ids, entries, strict=False)]
    random.shuffle(renamed)  # type: ignore[attr-defined]
    found = library(renamed).diff(library(entries))
    assert not (found.added or found.removed or found.modified)
    assert len(found.unchanged) == len(entries)
    assert not library(entries).diff(library(entries)).renamed


@modest
@given(_entries, _entries)
def test_pairs_are_of_each_side_once_mirror_and_lead_from_one_to_the_other(
    older: list[Entry], newer: list[Entry]
) -> None:
    there, back = pair_entries(older, newer), pair_entries(newer, older)
    assert sorted((j, i) for i, j in there) == sorted(back)
    assert len({i for i, _ in there}) == len({j for _, j in there}) == len(there)
    found = library(newer).diff(library(older))
    kept = {b.id: a for b, a in (*found.unchanged, *found.modified)}
    gone = {e.id for e in found.removed}
    made = {a.id: a.text for a in kept.values()} | {e.id: e.text for e in found.added}
    assert made == dict(newer) and kept.keys() | gone == dict(older).keys()
    assert not kept.keys() & gone
    assert all(b.text == a.text for b, a in found.unchanged)


def test_a_rewording_stays_under_its_id_unless_another_is_clearly_its_successor() -> None:
    old = [("E1", "When counting lattice paths, use binomial coefficients."), ("E2", "Go away.")]
    reworded = "When counting lattice paths with walls, use binomial coefficients."
    assert names(old, [("E1", reworded), ("E5", old[0][1] + " Twice.")]) == {("E1", "E1")}
    taken = [("E1", "Draw the grid first."), ("E5", reworded)]
    assert names(old, taken) == {("E1", "E5")}, "its id is another lesson's now"
    rewritten = [("E1", "Draw the grid first."), ("E2", "Go away.")]
    assert names(old, rewritten) == {("E1", "E1"), ("E2", "E2")}, "else its id says so"
    assert names(old, [("E7", "go away")]) == {("E2", "E7")}, "case and marks are no difference"


def test_two_large_strangers_are_compared_in_bounded_time() -> None:
    old = [(f"E{n}", f"lesson {n} about {n * 7} things") for n in range(1_000)]
    new = [(f"E{n}", f"rule {n * 3} on {n * 11} matters") for n in range(1_000)]
    assert names(old, new) == {(f"E{n}", f"E{n}") for n in range(1_000)}
