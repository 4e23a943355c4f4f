"""What a file of experiences asks of a library: an operation for each that is new to it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.core.library import Library
from engines.core.types import Operation, OperationKind
from engines.record.formats.source import ForeignEntry, ForeignLibrary


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What is to be asked, and why that is less than the file holds."""

    operations: tuple[Operation, ...]  # ids are given later
    already: int  # the library, or the file itself, has the wording
    pinned: tuple[str, ...]  # another wording of these pinned ones is in the file


def import_operations(
    found: ForeignLibrary,
    head: Library,
    base: Library | None,
    source: str,
    reason: str = "",
    mask: Callable[[str], str] = str,
) -> Arrivals:
    """Each entry as an add, or as a modify of the one that it is another wording of.

    Where the file says that it is of this library, its ids mean what they mean here, and what reads
    as in `base`, the version that it was made of, is nothing new.
    """
    is_own = found.exported is not None and found.exported[0] == head.name
    unedited = {(e.id, e.text) for e in base.experiences} if base and is_own else set()
    known = {entry.text for entry in head.experiences}
    operations, pinned = list[Operation](), list[str]()
    for entry in found.entries:
        text, before = mask(entry.text), head.get(entry.id) if is_own else None
        if text in known or (entry.id, text) in unedited:
            continue
        if before is not None and before.pinned:
            pinned.append(before.id)
            continue
        known.add(text)
        why = "; ".join(filter(None, (reason, _origin(found, entry, source))))
        kind: OperationKind = "modify" if before else "add"
        target = before.id if before else None
        operations.append(Operation("", kind, target, text, why))
    already = len(found.entries) - len(operations) - len(pinned)
    return Arrivals(tuple(operations), already, tuple(pinned))


def _origin(found: ForeignLibrary, entry: ForeignEntry, source: str) -> str:
    """`imported from notes.md (ace math-00003, Fractions), helpful=5 harmful=0`."""
    name = ", ".join(filter(None, (f"{found.format} {entry.id}".rstrip(), entry.section)))
    return f"imported from {source} ({name}){f', {entry.note}' if entry.note else ''}"
