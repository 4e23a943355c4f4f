"""A text, or a file, edited in the person's own editor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from engines.core.errors import ConfigError


def edit_text(text: str) -> str | None:
    """Open $VISUAL or $EDITOR on a text; None when it was not saved."""
    try:
        return click.edit(text, extension=".txt")
    except (click.ClickException, ValueError) as error:
        raise _failed_error(error) from error


def edit_file(path: Path) -> bool:
    """Open $VISUAL or $EDITOR on a file; whether it was saved. Ctrl-C is the editor's meanwhile."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not named and os.environ.get("TERM", "dumb") == "dumb":
        cause = "it is not set, and the terminal has no screen for an editor."
        raise ConfigError("$EDITOR", cause, "Set it; or decide in line mode: `studio review RUN`.")
    stat = path.stat()
    # Two seconds back, since some file systems keep no finer times.
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 2 * 10**9))
    before = path.stat().st_mtime_ns
    # A handler, which the editor does not inherit, where SIG_IGN would be.
    kept = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        click.edit(filename=str(path))
        return path.stat().st_mtime_ns != before
    except (click.ClickException, ValueError) as error:
        raise _failed_error(error) from error
    finally:
        signal.signal(signal.SIGINT, kept)


def _failed_error(error: click.ClickException | ValueError) -> ConfigError:
    text = error.message if isinstance(error, click.ClickException) else str(error)
    move = "Set it to an editor that is installed, or give the text on the command line."
    if isinstance(error, click.ClickException) and not isinstance(error.__cause__, OSError):
        move = "It ended with an error, so nothing is decided."
    return ConfigError("$EDITOR", f"{text}.", move)
