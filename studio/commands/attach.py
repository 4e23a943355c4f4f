"""`studio attach`: the screen on a run that lives, or on one that can be resumed."""

from __future__ import annotations

from typing import Annotated

import typer


def attach(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run-id; default: the newest living run, else the newest.")
    ] = None,
) -> int:
    """Open the screen on a run; one without a process is opened from its journal."""
    from engines.record.run_dir import Workspace
    from studio.commands.screen import check_terminal, show
    from studio.workspace.run_control import choose_run

    folder = choose_run(Workspace(context.obj), run)
    folder.state()  # a damaged journal is told before the screen is drawn
    check_terminal("studio attach")
    return show(context.obj, run=folder.run)
