"""A library as a list and one experience in detail: marks, uses, neighbours, hostile text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core.library import Library
from engines.core.library_notes import LibraryNotes
from engines.core.text.citations import find_cited_ids
from studio.facts.library import ListedLibrary
from studio.tui.drawing.lines import plain_text, width_of
from studio.tui.pages.library import page as view
from studio.tui.pages.library.page import Citation, LibraryState
from tests.support.builders import a_library, an_effect, an_operation, approved

HOSTILE = "[red]x[/] \x1b[2J \u202eevil\u202c 中文字符 👩‍👩‍👧 e\u0301 \t end"


def drafted(library: Library, *operations: object) -> LibraryState:
    return LibraryState(library, library.commit(approved(*operations)).library)  # type: ignore[arg-type]


def test_a_draft_marks_what_is_added_reworded_and_deleted() -> None:
    shelf = drafted(
        a_library("stays", "is reworded", "goes"),
        an_operation("modify", "E2", "reads differently"),
        an_operation("delete", "E3", "", id="op1.2"),
        an_operation("add", None, "is new", id="op1.3"),
    )
    assert [(one.id, one.mark) for one in view.items(shelf)] == [
        ("E1", " "),
        ("E2", "~"),
        ("E3", "-"),
        ("E4", "+"),
    ]
    assert view.items(shelf)[1].drafted == "reads differently"


def test_an_undecided_operation_marks_its_target_with_a_question() -> None:
    shelf = LibraryState(a_library("one", "two"), open=(an_operation("delete", "E2", ""),))
    marks = [one.mark for one in view.items(shelf)]
    assert marks == [" ", "?"]
    shown = view.detail_lines(view.items(shelf)[1], None, (), 60)
    assert any("op1.1 delete (2 Review)" in plain_text(row) for row in shown)


def test_what_is_pinned_has_a_mark_of_its_own() -> None:
    shelf = drafted(a_library("stays", "other"), an_operation("pin", "E1", ""))
    rows = view.item_rows(view.items(shelf), 40)
    assert [plain_text(row.line)[2:6] for row in rows] == ["E1⚲ ", "E2  "]
    shown = view.detail_lines(view.items(shelf)[0], None, (), 80)
    assert any("nothing may change or delete it" in plain_text(row) for row in shown)


def test_the_title_keeps_the_version_of_a_label_where_it_is_cut() -> None:
    title = view.title_text(LibraryState(a_library("one")), 1, 1, "production v4")
    assert title.startswith("lib v0  production v4  1 experience")


def uses(*cited: tuple[str, float | None]) -> dict[str, Citation]:
    """Rollouts that cite one experience each, by id, with their rewards."""
    found = [Citation(f"s1p0r{n}", 1, reward, (name,)) for n, (name, reward) in enumerate(cited)]
    return {use.rollout: use for use in found}


def test_most_used_come_first_and_wins_decide_between_equals() -> None:
    cited = uses(("E1", 0.0), ("E2", 1.0), ("E3", 1.0), ("E3", 0.0), ("E3", None))
    shelf = LibraryState(a_library("a", "b b", "c"), citations=cited)
    assert [one.id for one in view.items(shelf, "uses")] == ["E3", "E2", "E1"]
    assert [one.id for one in view.items(shelf, "length")] == ["E2", "E1", "E3"]


def test_uses_are_told_only_where_something_cites() -> None:
    shelf = LibraryState(a_library("a"), citations=uses(("E1", 1.0), ("E1", 0.0)))
    detail = view.detail_lines(view.items(shelf)[0], None, (), 60)
    assert "cited by  2 rollouts: 1 won, 1 lost (enter)" in [plain_text(line) for line in detail]
    bare = view.detail_lines(view.items(LibraryState(a_library("a")))[0], None, (), 60)
    assert not any("cited" in plain_text(line) for line in bare)


def test_what_was_measured_stands_beside_the_wording_and_sorts() -> None:
    effects = {"E1": an_effect(-0.03, -0.1, 0.04), "E3": an_effect(0.1, 0.05, 0.15)}
    shelf = LibraryState(replace(a_library("a", "b b", "c"), notes=LibraryNotes(effects=effects)))
    assert [one.id for one in view.items(shelf, "worth")] == ["E3", "E1", "E2"]
    for width in (34, 70):
        ends = [plain_text(r.line)[-7:] for r in view.item_rows(view.items(shelf), width)]
        assert ends == ["   -3 ?", " " * 7, "  +10 +"]
    detail = view.detail_lines(view.items(shelf)[2], None, (), 70)
    assert "worth     +0.100 [+0.05, +0.15] helps (1,024 rollouts, inclusion)" in [
        plain_text(line) for line in detail
    ]


@pytest.mark.parametrize("width", [24, 40, 76])
def test_rows_and_details_fit_whatever_a_model_wrote(width: int) -> None:
    library = a_library(HOSTILE, "中" * 80)
    shelf = drafted(library, an_operation("modify", "E1", HOSTILE[::-1]))
    found = view.items(shelf)
    lines = [row.line for row in view.item_rows(found, width)]
    assert all(width_of(line) == width for line in lines)
    near = (("E2", 0.5, "near"),)
    lines += view.detail_lines(found[0], library.experiences[0], near, width)
    for line in lines:
        assert width_of(line) <= width
        assert "\x1b" not in plain_text(line)
        assert "\u202e" not in plain_text(line)


def test_evidence_of_another_run_is_not_offered() -> None:
    change = an_operation("add", None, "new", evidence=("s1p0r0", "s1p0r1"))
    library = a_library().commit(approved(change), run="mine", step=1).library
    one = view.items(LibraryState(library))[0]
    experience = library.experiences[0]
    known = {"s1p0r0": Citation("s1p0r0", 1, 1.0)}
    keys = [row.key for row in view.use_rows(one, experience, "mine", 60, known)]
    assert keys == ["", "", "s1p0r0", "s1p0r1"]
    assert [row.key for row in view.use_rows(one, experience, "other", 60, known)] == [""]


def test_ids_in_brackets_are_citations_and_numbers_are_not() -> None:
    assert {"E1", "E14"} <= find_cited_ids("By [E14] and [E1, E3], so [1, 2].")
    assert find_cited_ids("[1, 2] and E5 without brackets") == frozenset()


def test_the_libraries_of_a_workspace_are_listed_and_a_damaged_one_says_so() -> None:
    found = (
        ListedLibrary("good", version=3, experiences=4, tokens_per_call=120),
        ListedLibrary("bad", trouble="line 3 fails its checksum"),
    )
    shown = [plain_text(row.line) for row in view.library_rows(found, "", 70)]
    assert "v3" in shown[0]
    assert "fails its checksum" in shown[1]
    assert [row.key for row in view.library_rows(found, "goo", 70)] == ["good"]
