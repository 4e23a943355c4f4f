"""`studio run`: start or resume a run as a process of its own, and attach the screen to it."""

from __future__ import annotations

from typing import Annotated

import typer

from engines.core.errors import ConfigError

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to override.")
]


def run(
    context: typer.Context,
    runfile: Annotated[
        str | None, typer.Argument(metavar="RUNFILE|PRESET", help="What to practise.")
    ] = None,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run instead of exp_id.")] = None,
    restart_step: Annotated[
        str | None,
        typer.Option(
            metavar="null|0|N",
            help="null resumes the newest run of the name (default), 0 starts a new one, N "
            "starts a new one that adopts the first N steps.",
        ),
    ] = None,
    review: Annotated[
        str | None,
        typer.Option(
            metavar="wait|auto|rules:FILE",
            help="Who decides operations. Default: the run file's review.by, else you (wait); a "
            "resumed run keeps its reviewer.",
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Resume although settings that change results differ."
        ),
    ] = False,
) -> int:
    """Practise with the screen; starts a run, resumes it, or attaches to it where it goes on.

    The run is a process of its own: leaving the screen (q) or losing the terminal ends nothing.
    """
    from studio.attaching import check_terminal, show
    from studio.detached import start

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
