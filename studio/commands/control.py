"""`studio ctl`: show where a living run stands, and control it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from studio.commands import AsObject, open_workspace
from studio.report.tables import print_json

app = typer.Typer(help="Show and control a living run.", no_args_is_help=True)

Run = Annotated[str | None, typer.Argument(help="Run-id; default: the newest living run.")]


@app.command()
def status(context: typer.Context, run: Run = None, json: AsObject = False) -> None:
    """Where a run stands, from its process or, without one, from its journal."""
    from studio.session import client
    from studio.workspace.run_control import choose_run

    if print_status(context.obj, run, json):
        return
    from studio.session.status import status_of

    folder = choose_run(open_workspace(context), run)
    alive = client.is_alive(folder)
    answer = client.ask(folder, "status") if alive else status_of(folder.state())
    _show({**answer, "alive": alive}, json)


def print_status(workspace: Path, run: str | None, json: bool) -> bool:
    """Print where a living run stands; False where its journal has to be read for that."""
    from studio.session import client
    from studio.workspace.run_control import find_live_run

    place = find_live_run(workspace, run)
    if place is None:
        return False
    _show({**client.ask(place, "status"), "alive": True}, json)
    return True


def parse_status(words: Sequence[str]) -> tuple[str | None, bool] | None:
    """The run and `--json` of `ctl status [RUN] [--json]`; None of any other words.

    Typer converts words with pydantic, which takes as long as all the rest of this command.
    """
    if list(words[:2]) != ["ctl", "status"]:
        return None
    runs = [word for word in words[2:] if word != "--json"]
    if len(runs) > 1 or any(word.startswith("-") for word in runs):
        return None
    return (runs[0] if runs else None), len(runs) < len(words) - 2


@app.command()
def watch(context: typer.Context, run: Run = None, json: AsObject = False) -> None:
    """Follow a living run as plain lines, or as its event stream with --json."""
    from studio.workspace.run_control import choose_run, follow

    follow(choose_run(open_workspace(context), run), as_json=json)


@app.command()
def pause(
    context: typer.Context,
    run: Run = None,
    now: Annotated[
        bool, typer.Option("--now", help="At once: no further call of a model begins.")
    ] = False,
    json: AsObject = False,
) -> None:
    """Begin no new rollout; what is under way goes on to its end."""
    _ask(context, run, json, "pause", now=now)


@app.command()
def resume(context: typer.Context, run: Run = None, json: AsObject = False) -> None:
    """Go on after a pause."""
    _ask(context, run, json, "resume")


@app.command()
def step(context: typer.Context, run: Run = None, json: AsObject = False) -> None:
    """Go on through the next commit, then pause."""
    _ask(context, run, json, "step")


@app.command()
def stop(
    context: typer.Context,
    run: Run = None,
    after_step: Annotated[
        bool, typer.Option("--after-step", help="End once the step under way is committed.")
    ] = False,
    json: AsObject = False,
) -> None:
    """End a run; everything recorded is kept and it can be resumed."""
    _ask(context, run, json, "stop", after_step=after_step)


def _ask(context: typer.Context, run: str | None, json: bool, do: str, **more: Any) -> None:
    from studio.session import client
    from studio.workspace.run_control import choose_run, find_live_run

    place = find_live_run(context.obj, run) or choose_run(open_workspace(context), run)
    _show(client.ask(place, do, **more), json)


def _show(answer: dict[str, Any], json: bool) -> None:
    from studio.session.protocol import strip_envelope
    from studio.workspace.run_control import status_lines

    if json:
        print_json(strip_envelope(answer))
    else:
        print("\n".join(status_lines(answer)))
