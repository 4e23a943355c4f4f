"""What the gate answers to whoever decides: values that every session passes on."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core.types import Decision, Flag


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """The gate's answer to one decision: as it was journalled, and what it does."""

    decision: Decision
    note: str = ""


@dataclass(frozen=True, slots=True)
class DecisionPreview:
    """What would be said of a decision if it were made now: nothing of it is journalled."""

    objection: str = ""  # "": it fits
    flags: tuple[Flag, ...] = ()
