"""How a wording came about, in words."""

from __future__ import annotations

from engines.core.library import Provenance
from studio.library.text import origin_line


def a_mark(proposer: str, prompt_hash: str) -> Provenance:
    why = ("op1.h1", "mine", 1, "because", (), proposer, prompt_hash)
    return Provenance(2, "modify", "Carry one.", *why, "sam", "", False, 0.0)


def test_who_proposed_a_wording_is_told_without_hashes() -> None:
    assert "proposed by root; approved" in origin_line(a_mark("root", ""))
    assert "proposed by a-model; approved" in origin_line(a_mark("a-model", "ab12"))
