"""The errors: what a user can mend (`StudioError`), and a model call that failed (`CallFailed`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engines.core.types import NO_USAGE, Usage

if TYPE_CHECKING:  # every command loads this page, and few need an event loop
    from asyncio import CancelledError


class StudioError(Exception):
    """A mistake the user can mend: where it was found, what is wrong there, what to do next."""

    def __init__(self, place: str, cause: str, move: str) -> None:
        self.place, self.cause, self.move = place, cause, move
        super().__init__(f"{place}: {cause} {move}".strip())


class ConfigError(StudioError):
    """In a run file, an override or an option."""


class DataError(StudioError):
    """In a data set."""


class PolicyError(StudioError):
    """A model role that cannot be used at all (unknown, unreachable)."""


class VerifierError(StudioError):
    """A verifier that cannot be loaded."""


class RecordError(StudioError):
    """A run folder or library that cannot be read or written."""


class DamagedError(RecordError):
    """A complete line that fails its checksum."""


class LockedError(RecordError):
    """Another process writes there."""


class ConflictError(StudioError):
    """What is asked contradicts what is on disk."""


class CallFailed(Exception):
    """A model call that gave no usable reply after its retries or within its deadline.

    `kind` is one word: "timeout", "refused", "status", "cut", "shape", "too long". `usage`
    is what its tries may have cost: a reply that was cut is paid for all the same.
    """

    def __init__(self, kind: str, text: str, usage: Usage = NO_USAGE) -> None:
        self.kind = kind
        self.usage = usage
        super().__init__(f"{kind}: {text}")


def lost_usage(cut: CancelledError) -> Usage:
    """What a call that was cancelled after it was sent may have cost.

    A policy says so as the argument of the `CancelledError` that it passes on. No subclass
    does, since `asyncio.timeout` knows its own cancellation by the very class.
    """
    return reported_usage(cut) or NO_USAGE


def reported_usage(cut: CancelledError) -> Usage | None:
    """What the policy itself said of a call that was cancelled; None where it said nothing."""
    return next((usage for usage in cut.args if isinstance(usage, Usage)), None)
