"""Before the screen and after it: whether it can be drawn, and what is told once it is left.

Owns these words and the exit code. Draws nothing; `studio.tui.app` does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Protocol, TextIO

from engines.core.errors import ConfigError
from studio import exit_codes

if TYPE_CHECKING:
    from studio.run.detached import StartingProcess

WITHOUT = "Use `studio headless` to practise and `studio review` to decide: both need no screen."


class ClosedScreen(Protocol):
    """A screen that was left, as far as is told of it."""

    shown_run: str | None  # the run it showed last
    ended_here: str  # how that ended while it was shown; "" where it did not


Screen = Callable[..., "tuple[ClosedScreen, int]"]
"""`studio.tui.app.open_screen`."""


def why_no_screen(
    stdin: TextIO, stderr: TextIO, environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """The place and the cause where no screen can be drawn; None where one can."""
    if not stdin.isatty():
        return "standard input", "it is no terminal, and the screen is steered by keys"
    if not stderr.isatty():  # where it is drawn, so that stdout stays free for data
        return "standard error", "it is no terminal, and the screen is drawn there"
    if environ.get("TERM", "") in ("", "dumb"):
        named = environ.get("TERM") or "not set"
        return "TERM", f"it is {named}: such a terminal cannot draw a screen"
    return None


def check_terminal(command: str) -> None:
    """Raise ConfigError where no screen can be drawn."""
    if (found := why_no_screen(sys.stdin, sys.stderr, os.environ)) is not None:
        raise ConfigError(f"{command}, {found[0]}", f"{found[1]}.", WITHOUT)


def has_screen() -> bool:
    """Whether somebody sits at a terminal that a screen can be drawn on."""
    return sys.stdout.isatty() and why_no_screen(sys.stdin, sys.stderr, os.environ) is None


def show(
    workspace: Path,
    *,
    run: str | None = None,
    starting: StartingProcess | None = None,
    screen: Screen | None = None,
) -> int:
    """Open the screen and, once it is left, tell how to come back or how the run ended.

    Args:
        workspace: the folder of runs.
        run: to be attached to.
        starting: a run that is being started; with neither it is the start screen.
        screen: what to open; None: the real one.

    Returns:
        The exit code: that of a run that ended meanwhile, else 0.
    """
    from studio.run.detached import RefusedStart

    left, code = (screen or _load_screen())(workspace, run=run, starting=starting)
    outcome = starting.outcome if starting is not None else None
    if isinstance(outcome, RefusedStart):
        print(outcome.text, file=sys.stderr)
        return outcome.code
    if outcome is not None and outcome.warning:  # it may have scrolled by on the screen
        print(outcome.warning, file=sys.stderr)
    shown = left.shown_run or (outcome.run if outcome is not None else None)
    if code:
        return code
    if shown is None:
        if starting is not None:
            print("the run is being started, and goes on by itself: studio", file=sys.stderr)
        return exit_codes.DONE
    return _print_outcome(workspace, shown, ended=bool(left.ended_here))


def _load_screen() -> Screen:
    configure_textual()
    from studio.tui.app import open_screen

    return open_screen


def configure_textual() -> None:
    """Say how Textual is to draw: it reads its environment once, when it is imported.

    A key waits half as long for its frame as at the usual 60 a second; streams are drawn by a
    beat of their own, so that this costs nothing.
    """
    os.environ.setdefault("TEXTUAL_FPS", "120")
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")


def _print_outcome(workspace: Path, run: str, *, ended: bool) -> int:
    from engines.record.run_dir import RunDir
    from studio.report.summary import exit_code, status_line
    from studio.session.client import is_alive

    folder = RunDir(workspace / "runs" / run)
    if is_alive(folder) and not ended:
        print(f"run {run} goes on: studio attach {quote(run)}", file=sys.stderr)
        return exit_codes.DONE
    state = folder.state()
    print(status_line(state), file=sys.stderr)
    return exit_code(state) if ended else exit_codes.DONE
