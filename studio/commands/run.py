"""`studio run`: start or resume a run as a process of its own, and attach the screen to it."""

from __future__ import annotations

from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio.commands.options import AcceptChanges, Name, Overrides, RestartStep, RunFile


def run(
    context: typer.Context,
    runfile: RunFile = None,
    overrides: Overrides = None,
    name: Name = None,
    restart_step: RestartStep = None,
    review: Annotated[
        str | None,
        typer.Option(
            metavar="wait|auto|rules:FILE",
            help="Who decides operations. Default: the run file's review.by, else you (wait); a "
            "resumed run keeps its reviewer.",
        ),
    ] = None,
    accept_changes: AcceptChanges = False,
) -> int:
    """Practise with the screen; starts a run, resumes it, or attaches to it where it goes on.

    The run is a process of its own: leaving the screen (q) or losing the terminal ends nothing.
    """
    from studio.commands.screen import check_terminal, show
    from studio.run.detached import start

    if runfile is None:
        raise ConfigError(
            "studio run",
            "it needs a run file or a preset.",
            "Try `studio run rehearsal`, or see `studio presets list`.",
        )
    check_terminal("studio run")
    # All else is for its process to check: reading the run file twice would take a second.
    options = {"name": name, "restart-step": restart_step, "review": review}
    given = [f"--{option}={value}" for option, value in options.items() if value is not None]
    changes = ["--accept-changes"] if accept_changes else []
    words = [*given, *changes, "--", runfile, *(overrides or [])]
    return show(context.obj, starting=start(words, context.obj))
