"""Three-way merges of libraries, beside a slow reference that was written from the rules."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import product

import pytest

from engines.core.library import Experience, Library
from engines.core.text.similarity import similarity, tokens
from engines.core.types import AUTO, CONFLICT, FLAG_NAMES, REJECTED_BY_AUTO, Operation
from studio.library.curation import merge_operations
from tests.support.builders import approved

Entry = tuple[str, str]
Rows = list[Entry]
Wish = tuple[str, str | None, str, bool]  # kind, target, text, whether it is a conflict


def a_version(*rows: tuple[str, str]) -> Library:
    numbers = [int(name[1:]) for name, _ in rows]
    return Library("lib", 1, tuple(Experience(*row) for row in rows), max(numbers, default=0) + 1)


def wishes(operations: tuple[Operation, ...]) -> list[Wish]:
    flagged = (any(flag.name == CONFLICT for flag in op.flags) for op in operations)
    return [(op.kind, op.target, op.text, f) for op, f in zip(operations, flagged, strict=True)]


def merged(base: Rows, ours: Rows, theirs: Rows) -> list[Wish]:
    return wishes(merge_operations(a_version(*base), a_version(*ours), a_version(*theirs)))


# -- the reference ---------------------------------------------------------------------------


def same_entries(old: Rows, new: Rows) -> dict[int, int]:
    return _same_entries(tuple(old), tuple(new))


alike = cache(similarity)


@cache
def _same_entries(old: tuple[Entry, ...], new: tuple[Entry, ...]) -> dict[int, int]:
    """Which of the old is which of the new: the rule of the manual, pair by pair."""
    found: dict[int, int] = {}

    def words(text: str) -> object:
        return tokens(text) or text

    def free() -> list[tuple[int, int]]:
        rest = [j for j in range(len(new)) if j not in found.values()]
        return [(i, j) for i in range(len(old)) if i not in found for j in rest]

    def likeness(i: int, j: int) -> float:
        score = alike(old[i][1], new[j][1])
        return score + (0.25 if old[i][0] == new[j][0] else 0)

    for same in (
        lambda i, j: old[i] == new[j],
        lambda i, j: old[i][1] == new[j][1],
        lambda i, j: old[i][0] == new[j][0] and words(old[i][1]) == words(new[j][1]),
        lambda i, j: words(old[i][1]) == words(new[j][1]),
    ):
        while pairs := [(i, j) for i, j in free() if same(i, j)]:
            i, j = min(pairs, key=lambda pair: (pair[1], pair[0]))
            found[i] = j
    while pairs := [(i, j) for i, j in free() if likeness(i, j) >= 0.6]:
        i, j = min(pairs, key=lambda pair: (-likeness(*pair), sum(pair), pair))
        found[i] = j
    while pairs := [(i, j) for i, j in free() if old[i][0] == new[j][0]]:
        i, j = pairs[0]
        found[i] = j
    return found


def reference(base: Rows, ours: Rows, theirs: Rows) -> list[Wish]:
    """The rules, one after the other, without a thought of speed."""
    in_ours, in_theirs = same_entries(base, ours), same_entries(base, theirs)
    changes: list[Wish] = []
    adds: list[Wish] = []
    for i, (_, text) in enumerate(base):
        we_have, they_have = i in in_ours, i in in_theirs
        our_id, our_text = ours[in_ours[i]] if we_have else ("", "")
        their_text = theirs[in_theirs[i]][1] if they_have else ""
        we_changed = not we_have or our_text != text
        they_changed = not they_have or their_text != text
        if not they_changed:
            continue
        if not we_changed:
            kind = "modify" if they_have else "delete"
            changes.append((kind, our_id, their_text, False))
        elif we_have and they_have:
            if our_text != their_text:
                changes.append(("modify", our_id, their_text, True))
        elif we_have:
            changes.append(("delete", our_id, "", True))
        elif they_have:
            adds.append(("add", None, their_text, True))
    adds += [
        ("add", None, text, False)
        for j, (_, text) in enumerate(theirs)
        if j not in in_theirs.values()
    ]
    touched = [target for _, target, _, _ in changes]
    stays = [text for name, text in ours if name not in touched]
    out = changes
    for wish in adds:
        if wish[2] not in stays and wish[2] not in [done[2] for done in out if done[0] == "add"]:
            out.append(wish)
    return out


# -- random cases ----------------------------------------------------------------------------

_WORDS = (
    "check", "every", "carry", "before", "adding", "the", "next", "column", "of", "long", "sums",
)  # fmt: skip


def a_text(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(2, 6))).capitalize() + "."


def reword(rng: random.Random, text: str) -> str:
    """A little, by case alone, or altogether."""
    match rng.randrange(4):
        case 0:
            return text.upper()
        case 1:
            return a_text(rng)
        case _:
            words = text.split()
            words[rng.randrange(len(words))] = rng.choice(_WORDS)
            return " ".join(words)


def edit(rng: random.Random, base: Rows) -> Rows:
    """What a curator makes of a library, with ids that the others give as well."""
    rows, number = list[tuple[str, str]](), len(base) + 1
    for name, text in base:
        match rng.randrange(8):
            case 0:
                continue
            case 1 | 2:
                rows.append((name, reword(rng, text)))
            case 3:  # the same under a new id
                rows.append((f"E{number}", text if rng.random() < 0.5 else reword(rng, text)))
                number += 1
            case _:
                rows.append((name, text))
    for _ in range(rng.randrange(3)):
        rows.append((f"E{number}", a_text(rng)))
        number += 1
    rows = list({text: (name, text) for name, text in rows}.values())  # no library says it twice
    return rng.sample(rows, len(rows)) if rng.random() < 0.2 else rows


def a_case(seed: int) -> tuple[Rows, Rows, Rows]:
    rng = random.Random(seed)
    texts = dict.fromkeys(a_text(rng) for _ in range(rng.randrange(7)))
    base = [(f"E{number}", text) for number, text in enumerate(texts, 1)]
    ours, theirs = edit(rng, base), edit(rng, base)
    if rng.random() < 0.3 and ours:  # both sides often learn the same
        text = rng.choice(ours)[1]
        if text not in [row[1] for row in theirs]:
            theirs.append((f"E{rng.randrange(20, 30)}", text))
    return base, ours, theirs


CASES = [a_case(seed) for seed in range(500)]


@cache
def merges() -> list[tuple[Rows, Rows, Rows, tuple[Operation, ...]]]:
    return [(*case, merge_operations(*(a_version(*rows) for rows in case))) for case in CASES]


def test_five_hundred_random_merges_equal_the_slow_reference() -> None:
    wrong = [case for *case, found in merges() if wishes(found) != reference(*case)]
    assert wrong == []
    kinds = Counter((kind, flagged) for *_, ops in merges() for kind, _, _, flagged in wishes(ops))
    assert min(kinds[kind] for kind in product(("add", "modify", "delete"), (True, False))) > 20


def test_with_all_of_theirs_approved_every_wording_of_theirs_is_there_and_nothing_else_goes() -> (
    None
):
    for base, ours, theirs, operations in merges():
        library = a_version(*ours)
        named = [
            Operation(f"op0.h{n}", op.kind, op.target, op.text) for n, op in enumerate(operations)
        ]
        done = library.commit(approved(*named))
        after = {entry.text for entry in done.library.experiences}
        unlost = {outcome.reason for outcome in done.outcomes if not outcome.applied}
        assert all("already says exactly this" in reason for reason in unlost)
        dropped_by_us = {text for _, text in base} - {text for _, text in ours}
        assert {text for _, text in theirs} - after <= dropped_by_us
        replaced = {library.get(op.target) for op in operations if op.kind in ("modify", "delete")}
        assert {text for _, text in ours} - after <= {one.text for one in replaced if one}


def test_no_entry_goes_without_an_operation_or_both_sides_having_let_it_go() -> None:
    for base, ours, theirs, operations in merges():
        in_ours, in_theirs = same_entries(base, ours), same_entries(base, theirs)
        asked = {op.target for op in operations}
        offered = {op.text for op in operations}
        for i in range(len(base)):
            if i in in_ours and i not in in_theirs:
                assert ours[in_ours[i]][0] in asked
        for j, (_, text) in enumerate(theirs):
            is_new = j not in in_theirs.values()
            if is_new:
                assert text in offered or text in {mine for _, mine in ours}


def test_theirs_alone_merged_into_an_untouched_library_gives_theirs_to_the_word() -> None:
    for base, _, theirs in CASES:
        library = a_version(*base)
        operations = merge_operations(library, library, a_version(*theirs))
        assert not any(op.flags for op in operations)
        named = [
            Operation(f"op0.h{n}", op.kind, op.target, op.text) for n, op in enumerate(operations)
        ]
        after = library.commit(approved(*named)).library
        assert {e.text for e in after.experiences} == {text for _, text in theirs}


@pytest.mark.parametrize("seed", range(0, 500, 25))
def test_merging_a_library_with_itself_or_with_its_base_asks_nothing(seed: int) -> None:
    base, ours, _ = CASES[seed]
    assert merged(base, ours, ours) == merged(base, ours, base) == merged(ours, ours, ours) == []


def test_both_sides_see_the_same_conflicts_but_for_a_wording_that_one_has_already() -> None:
    def in_conflict(operations: tuple[Operation, ...]) -> set[str]:
        flagged = (op.rationale for op in operations if op.flags)
        return {why.rpartition("base (")[2].partition(")")[0] for why in flagged}

    same = 0
    for base, ours, theirs, operations in merges():
        other_way = merge_operations(*(a_version(*rows) for rows in (base, theirs, ours)))
        odd = in_conflict(operations) ^ in_conflict(other_way)
        for i in (i for i, (name, _) in enumerate(base) if name in odd):
            sides = [(side, same_entries(base, side), other) for side, other in
                     ((ours, theirs), (theirs, ours))]  # fmt: skip
            back = [(side[kept[i]][1], other) for side, kept, other in sides if i in kept]
            assert any(text in {own for _, own in other} for text, other in back)
        same += not odd
    assert same > 450


BASE = [("E1", "Carry the one."), ("E2", "Check the units."), ("E3", "Read it twice.")]


@pytest.mark.parametrize(
    ("ours", "theirs", "asked"),
    [
        ([*BASE], [*BASE[:2]], [("delete", "E3", "", False)]),
        (
            [*BASE],
            [*BASE[1:], ("E1", "Carry the ten.")],
            [("modify", "E1", "Carry the ten.", False)],
        ),
        (
            [("E1", "Carry one over."), *BASE[1:]],
            [("E1", "Carry the ten."), *BASE[1:]],
            [("modify", "E1", "Carry the ten.", True)],
        ),
        ([("E1", "Carry one over."), *BASE[1:]], [*BASE[1:]], [("delete", "E1", "", True)]),
        (
            [*BASE[1:]],
            [("E1", "Carry the ten."), *BASE[1:]],
            [("add", None, "Carry the ten.", True)],
        ),
        ([*BASE[1:]], [*BASE[1:]], []),
        # Both gave the next id to something else.
        ([*BASE, ("E4", "Draw it.")], [*BASE, ("E4", "Guess.")], [("add", None, "Guess.", False)]),
        ([*BASE, ("E4", "Draw it.")], [*BASE, ("E7", "Draw it.")], []),
        # Renumbered by ours, reworded by theirs: the same entry, under the id of ours.
        (
            [*BASE[1:], ("E9", "Carry the one.")],
            [("E1", "Carry the ten."), *BASE[1:]],
            [("modify", "E9", "Carry the ten.", False)],
        ),
    ],
)
def test_each_rule_of_a_merge(ours: Rows, theirs: Rows, asked: list[Wish]) -> None:
    assert merged(BASE, ours, theirs) == asked == reference(BASE, ours, theirs)


def test_a_conflict_has_each_wording_once_and_auto_does_not_let_it_in() -> None:
    ours, theirs = [("E5", "Carry one over."), *BASE[1:]], [("E1", "Carry ten."), *BASE[1:]]
    (op,) = merge_operations(a_version(*BASE), a_version(*ours), a_version(*theirs), "ann.yaml")
    base = "base (E1): Carry the one."
    assert op.rationale == f"{base}\nours (E5): Carry one over.\nann.yaml: Carry ten."
    (gone,) = merge_operations(a_version(*BASE), a_version(*ours), a_version(*BASE[1:]))
    assert (gone.kind, gone.rationale) == ("delete", base)  # ours is what it takes away
    assert [flag.name for flag in op.flags] == [CONFLICT] and op.is_flagged
    assert CONFLICT in FLAG_NAMES and CONFLICT in REJECTED_BY_AUTO and AUTO == "auto"
