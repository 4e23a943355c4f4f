"""Two curators' work in one library: what theirs changed since the base, as operations. Pure.

An entry is followed by its wording first and by its id second (`pair_entries`), so that one that
was renumbered or reworded stays the same entry.
"""

from __future__ import annotations

from engines.core.library import Library
from engines.core.text.sanitize import one_line
from engines.core.text.similarity import Entry, pair_entries
from engines.core.types import CONFLICT, Flag, Operation, OperationKind


def merge_operations(
    base: Library, ours: Library, theirs: Library, source: str = "theirs"
) -> tuple[Operation, ...]:
    """What is to be done to `ours`, in the order of the base, additions last; ids are given later.

    Of each entry of the base: what theirs left alone, or changed as ours did, asks nothing; what
    theirs alone changed is a modify or delete; what both changed differently is the same with the
    flag `conflict`, and an add where ours deleted it. Entries new in theirs are adds without an id,
    whatever ours gave theirs to, unless ours has the wording.
    """
    before, mine, other = _entries(base), _entries(ours), _entries(theirs)
    kept, came = dict(pair_entries(before, mine)), dict(pair_entries(before, other))
    changes, adds = list[Operation](), list[Operation]()
    for at, was in enumerate(before):
        own = mine[kept[at]] if at in kept else None
        new = other[came[at]][1] if at in came else None
        if (change := _merge_entry(was, own, new, source)) is not None:
            (adds if change.kind == "add" else changes).append(change)
    new_here = set(range(len(other))) - set(came.values())
    adds += [
        Operation("", "add", text=other[at][1], rationale=f"new in {source} ({other[at][0]})")
        for at in sorted(new_here)
    ]
    # A wording that an operation may take away is offered all the same.
    asked = {change.target for change in changes}
    here = {text for name, text in mine if name not in asked}
    fresh = dict[str, Operation]()
    for add in adds:
        if add.text not in here:
            fresh.setdefault(add.text, add)
    return (*changes, *fresh.values())


def _entries(library: Library) -> list[Entry]:
    """Ids and wordings, each on one line; an entry without words is none."""
    lines = ((entry.id, one_line(entry.text)) for entry in library.experiences)
    return [(name, text) for name, text in lines if text]


def _merge_entry(was: Entry, own: Entry | None, new: str | None, source: str) -> Operation | None:
    """What becomes of one entry of the base; `own` and `new` are None where a side deleted it."""
    name, text = was
    if own is None:
        if new is None or new == text:
            return None
        return _conflict("add", None, new, f"ours deleted {name}, {source} reworded it", was)
    target, kept = own
    if new in (text, kept):
        return None
    kind: OperationKind = "delete" if new is None else "modify"
    did = f"{source} {'deleted' if new is None else 'reworded'} it"
    if kept == text:
        return Operation("", kind, target, new or "", did)
    # What a delete takes away and what an add says is shown anyway.
    others = (f"ours ({target}): {kept}", f"{source}: {new}") if new is not None else ()
    return _conflict(kind, target, new or "", f"ours reworded it, {did}", was, *others)


def _conflict(
    kind: OperationKind, target: str | None, text: str, what: str, was: Entry, *others: str
) -> Operation:
    why = "\n".join((f"base ({was[0]}): {was[1]}", *others))
    return Operation("", kind, target, text, why, flags=(Flag(CONFLICT, detail=what),))
