"""How a wording came about, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engines.core.library import Provenance
from engines.core.library_notes import LibraryNotes, UseCounts
from engines.core.types import Decision, Operation
from engines.record.libraries import LibraryFolder
from studio.facts.library import history_facts
from studio.render.library_lines import history_lines, origin_line
from tests.support.builders import a_library


def a_mark(proposer: str, prompt_hash: str) -> Provenance:
    why = ("op1.h1", "mine", 1, "because", (), proposer, prompt_hash)
    return Provenance(2, "modify", "Carry one.", *why, "sam", "", False, 0.0)


def test_who_proposed_a_wording_is_told_without_hashes() -> None:
    assert "proposed by root; approved" in origin_line(a_mark("root", ""))
    assert "proposed by a-model; approved" in origin_line(a_mark("a-model", "ab12"))


def test_a_deletion_tells_what_the_wording_was_good_for(tmp_path: Path) -> None:
    folder = LibraryFolder(tmp_path / "lib")
    notes = LibraryNotes(uses={"E1": UseCounts(used=4, cited=2)})
    start = replace(a_library("Carry.", "Borrow."), notes=notes)
    folder.create(start)
    with folder.lock_for_commit() as library:
        gone = [
            (Operation(f"op{n}", "delete", f"E{n}", ""), Decision(f"op{n}", "approve"))
            for n in (1, 2)
        ]
        library.commit(gone)
    told = history_lines(history_facts(folder, "E1"))
    assert (
        told[-1].strip() == "attempts with the wording before: used 4, ignored 0, misled 0, cited 2"
    )
    assert not any("attempts" in line for line in history_lines(history_facts(folder, "E2")))
