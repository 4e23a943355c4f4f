"""What can happen to a library, as its journal tells; `engines.core.events` has all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.core.effects import Effect
from engines.core.library import Experience
from engines.core.review_memory import PastDecision
from engines.core.state.use_counts import UseCounts
from engines.core.types import Decision, Operation


@dataclass(frozen=True, slots=True)
class LibraryCreated:
    name: str
    next_number: int
    experiences: tuple[Experience, ...]
    copied_from: str | None = None  # "NAME@V", or "NAME@V (LABEL)" where a label meant it
    curated: tuple[PastDecision, ...] = ()
    uses: Mapping[str, UseCounts] = field(default_factory=dict)
    effects: Mapping[str, Effect] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LibraryCurated:
    """Decisions that changed no text and are to be remembered: rejections with their reasons."""

    run: str
    step: int
    reviewed: tuple[tuple[Operation, Decision], ...]


@dataclass(frozen=True, slots=True)
class LibraryCredited:
    """What the attempts of a run's step show of experiences: it changes no text."""

    run: str
    step: int
    credits: Mapping[str, UseCounts]  # of wordings that still stood


@dataclass(frozen=True, slots=True)
class LibraryMeasured:
    """What experiences were measured to be worth: it changes no text."""

    effects: Mapping[str, Effect]  # of wordings that still stood


@dataclass(frozen=True, slots=True)
class LibraryLabelled:
    """A label was given to a version, moved to it, or taken away: it changes no text."""

    label: str
    version: int | None  # None: there is no such label from now on
    who: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class LibraryCommitted:
    """One commit: replaying `reviewed` on the version before gives `content_hash`."""

    version: int
    run: str
    step: int
    reviewed: tuple[tuple[Operation, Decision], ...]
    content_hash: str
    limit: int | None = None
