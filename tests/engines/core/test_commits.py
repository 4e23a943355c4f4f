"""The index of a library's experiences after any changes is that of what it holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.types import OperationKind
from tests.support.builders import a_decision, a_library, an_operation

NAMES = [f"E{n}" for n in range(1, 9)]
TEXTS = ["one", "two", "three", "four", "five"]
KINDS: list[OperationKind] = ["add", "add", "modify", "delete", "pin", "unpin"]
CHANGE = st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.sampled_from(TEXTS))


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(CHANGE, max_size=14), at_once=st.booleans())
def test_an_experience_is_found_by_id_and_text_after_any_changes(
    changes: list[tuple[OperationKind, str, str]], at_once: bool
) -> None:
    library = a_library("one", "two", "twelve")
    reviewed = []
    for number, (kind, name, text) in enumerate(changes):
        # An addition under an id brings a deleted experience back.
        target = None if kind == "add" and number % 2 else name
        operation = an_operation(kind, target, text, id=f"op1.{number}")
        reviewed.append((operation, a_decision(operation, "approve")))
    first = library
    for part in [reviewed] if at_once else [[one] for one in reviewed]:
        library = library.commit(part).library
    held = {one.id: one for one in library.experiences}
    assert {name: library.get(name) for name in [*NAMES, "E99"]} == {
        name: held.get(name) for name in [*NAMES, "E99"]
    }
    for text in [*TEXTS, "twelve"]:
        objection = library.objection(an_operation("add", None, text)) or ""
        is_held = text in [one.text for one in held.values()]
        assert ("already says exactly this" in objection) is is_held
    # What was there before is as it was.
    assert [first.get(f"E{n}") for n in (1, 2, 3, 4)] == [*first.experiences, None]
