"""What a library remembers of rejections, and which of them are held against an idea."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core import types as flags
from engines.core.library_notes import LibraryNotes
from engines.core.types import Decision, Flag
from tests.support.builders import an_operation


@pytest.mark.parametrize(
    ("flag", "reviewer", "counts"),
    [
        (flags.HURTS, flags.AUTO, True),
        (flags.UNPROVEN, flags.AUTO, False),  # trying it was too little to tell
        (flags.DUPLICATE, "rules:mine.yaml", False),
        (flags.UNPROVEN, "ann", True),  # a person has a reason of her own
    ],
)
def test_what_was_only_unproven_is_not_held_against_an_idea(
    flag: str, reviewer: str, counts: bool
) -> None:
    operation = replace(an_operation(), flags=(Flag(flag),))
    decision = Decision(operation.id, "reject", reason=flag, reviewer=reviewer)
    notes = LibraryNotes().remember([(operation, operation, decision, "")], "run", 1)
    (found,) = notes.curated
    assert found.is_rejection and found.doubled is not counts
