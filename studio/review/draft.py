"""The texts of the library as the standing decisions would leave it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from engines.core.library import effective_operation
from engines.core.text.sanitize import one_line
from engines.core.types import Decision, Operation


def draft_texts(
    base: Iterable[tuple[str, str]], reviewed: Iterable[tuple[Operation, Decision]]
) -> dict[str, str]:
    """Texts of the library as the standing decisions would leave it, by id.

    The gate has checked each decision against those before it, so that no objection is left
    to be looked for: `Library.commit` gives the same, a thousand times slower.
    """
    return draft_and_deleted(base, reviewed)[0]


def draft_and_deleted(
    base: Iterable[tuple[str, str]], reviewed: Iterable[tuple[Operation, Decision]]
) -> tuple[dict[str, str], dict[str, str]]:
    """The same, and by operation id what the experiences said that decisions delete."""
    texts, deleted = dict(base), {}
    for operation, decision in reviewed:
        if decision.action not in ("approve", "edit"):
            continue
        wanted = effective_operation(operation, decision)
        match wanted.kind:
            case "add":
                name = wanted.target or decision.assigned
                if name:
                    texts[name] = one_line(wanted.text)
            case "modify":
                if wanted.target in texts:
                    texts[wanted.target] = one_line(wanted.text)
            case "delete":
                deleted[operation.id] = texts.pop(wanted.target or "", "")
            case "keep":
                pass
    return texts, deleted
