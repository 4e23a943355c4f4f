"""The errors: what a user can mend (`StudioError`), and a model call that failed (`CallFailed`).

With what their next moves name: the nearest known name, and how an extra is installed.
"""

import shlex
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.types import NO_USAGE, Usage

if TYPE_CHECKING:
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


class ToolError(StudioError):
    """A tool that cannot work at all; found before a run begins."""


class RecordError(StudioError):
    """A run folder or library that cannot be read or written."""


class DamagedError(RecordError):
    """A complete line that fails its checksum."""


class LockedError(RecordError):
    """Another process writes there."""


class ConflictError(StudioError):
    """What is asked contradicts what is on disk."""


class AnswersPending(StudioError):
    """Calls wait for answers that somebody writes to files: no failure, and nothing is lost.

    It passes through every job, and `gather_all` lets the others go on first.
    """

    def __init__(self, calls: Mapping[str, Collection[str]], refused: Collection[str] = ()) -> None:
        """`calls` are ids by folder; `refused` says of answers why they were not taken."""
        self.calls, self.refused = calls, tuple(refused)
        n = sum(map(len, calls.values()))
        what = "1 call waits for its answer" if n == 1 else f"{n:,} calls wait for answers"
        said = "".join(f" Refused: {why}." for why in self.refused[:5])
        move = "Answer each ID.call.json by ID.answer.txt beside it, then give the same command."
        place = ", ".join(calls)
        super().__init__(place, f"{what}.{said}", move)
        self.reason = f"{what} in {place}:{said} {move}"

    @classmethod
    def merge(cls, parts: "Iterable[AnswersPending]") -> "AnswersPending":
        """All that wait, in an order that does not depend on who came first."""
        calls: dict[str, set[str]] = {}
        refused: set[str] = set()
        for part in parts:
            refused.update(part.refused)
            for folder, names in part.calls.items():
                calls.setdefault(folder, set()).update(names)
        return cls(dict(sorted(calls.items())), sorted(refused))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`Did you mean "math"? `, the nearest of what is known; "" where none is near."""
    from difflib import get_close_matches  # only a mistake needs it

    names = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), names, n=1)
    return f'Did you mean "{names[near[0]]}"? ' if near else ""


def suggest_name(given: str, known: Iterable[str], *, workspace: Path | None = None) -> str:
    """The next move for an unknown name: the nearest one, and what there is (in `workspace`)."""
    names = list(known)
    if not names:
        if workspace is None or workspace.is_dir():
            return "There is none yet."
        return f"There is no folder {workspace}: name the workspace with --workspace DIR."
    shown = len(names) if len(names) <= 10 else 8
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{did_you_mean(given, names)}There are: {', '.join(names[:shown])}{more}."


class CallFailed(Exception):
    """A model call that gave no usable reply after its retries or within its deadline.

    `kind` is one word: "timeout", "refused", "status", "cut", "shape", "too long". `usage`
    is what its tries may have cost: a reply that was cut is paid for all the same.
    """

    def __init__(self, kind: str, text: str, usage: Usage = NO_USAGE) -> None:
        self.kind = kind
        self.usage = usage
        super().__init__(f"{kind}: {text}")


class WorkerLost(Exception):
    """The worker of a cluster that made or judged a try is gone: no fault of the try's."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"node {node} was lost: {reason}")


def lost_usage(cut: "CancelledError") -> Usage:
    """What a call that was cancelled after it was sent may have cost.

    A policy says so as the argument of the `CancelledError` that it passes on. No subclass
    does, since `asyncio.timeout` knows its own cancellation by the very class.
    """
    return reported_usage(cut) or NO_USAGE


def reported_usage(cut: "CancelledError") -> Usage | None:
    """What the policy itself said of a call that was cancelled; None where it said nothing."""
    return next((usage for usage in cut.args if isinstance(usage, Usage)), None)


_ROOT = Path(__file__).parents[2]


def install_command(extra: str) -> str:
    """The command that installs it into the environment of this process."""
    if not (_ROOT / "pyproject.toml").exists():
        return f"pip install 'practice-studio[{extra}]'"
    pip = Path(sys.executable).parent / "pip"  # an environment that is not activated has its own
    return f"{shlex.quote(str(pip))} install -e {shlex.quote(f'{_ROOT}[{extra}]')}"


def installed_version(package: str) -> str | None:
    """Read from its metadata: importing torch takes seconds."""
    from importlib.metadata import PackageNotFoundError, version  # not where nobody asks

    try:
        return version(package)
    except PackageNotFoundError:
        return None
