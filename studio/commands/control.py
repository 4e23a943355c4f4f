"""`studio ctl`: show where a living run stands, and control it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engines.core.codec import JsonMapping
from studio.commands import AsObject, argument, flag, open_workspace
from studio.render.json import print_json

if TYPE_CHECKING:
    from studio.session.control_socket import RunAddress
    from studio.session.requests import Request

app = typer.Typer(no_args_is_help=True)


@app.callback()
def control() -> None:
    """Show and control a living run. Alone it shows where the newest one stands.

    Examples:
        studio ctl
        studio ctl pause
    """


Run = Annotated[str | None, argument("RUN", "Id of a run. Default: the newest living run.")]


@app.command()
def status(context: typer.Context, run: Run = None, json: AsObject = False) -> None:
    """Show where a run stands. Without a process its journal says it.

    Examples:
        studio ctl status
        studio ctl status rehearsal --json
    """
    from studio.session import control_socket
    from studio.workspace.run_control import choose_run

    if print_status(context.obj, run, json):
        return
    from studio.session import requests

    folder = choose_run(open_workspace(context), run)
    alive = control_socket.is_alive(folder)
    answer = (
        control_socket.ask(folder, requests.Status())
        if alive
        else requests.status_of(folder.state())
    )
    _show(answer | {"alive": alive}, json)


def print_status(workspace: Path, run: str | None, json: bool) -> bool:
    """Print where a living run stands; False where its journal has to be read for that."""
    from studio.session import control_socket, requests
    from studio.workspace.run_control import find_live_run

    place = find_live_run(workspace, run)
    if place is None:
        return False
    _show(control_socket.ask(place, requests.Status()) | {"alive": True}, json)
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
    """Follow a living run, line by line. With --json it prints the stream of events.

    Examples:
        studio ctl watch
        studio ctl watch mine --json
    """
    from studio.workspace.run_control import check_alive, choose_run, follow

    place = choose_run(open_workspace(context), run)
    check_alive(place, "watch")
    follow(place, as_json=json)


@app.command()
def pause(
    context: typer.Context,
    run: Run = None,
    now: Annotated[
        bool, flag("Pause at once: no further call of a model begins.", "--now")
    ] = False,
    json: AsObject = False,
) -> None:
    """Pause a run. No new rollout begins; what is under way goes on to its end.

    Examples:
        studio ctl pause
        studio ctl pause mine --now
    """
    from studio.session.requests import Pause

    _ask(context, run, json, Pause(now=now))


@app.command()
def resume(context: typer.Context, run: Run = None, json: AsObject = False) -> None:
    """Let a run go on after a pause.

    Examples:
        studio ctl resume
        studio ctl resume mine
    """
    from studio.session.requests import Resume

    _ask(context, run, json, Resume())


@app.command()
def step(context: typer.Context, run: Run = None, json: AsObject = False) -> None:
    """Let a run go on through its next commit, then pause it.

    Examples:
        studio ctl step
        studio ctl step mine
    """
    from studio.session.requests import Step

    _ask(context, run, json, Step())


@app.command()
def stop(
    context: typer.Context,
    run: Run = None,
    after_step: Annotated[
        bool, flag("End once the step under way is committed.", "--after-step")
    ] = False,
    json: AsObject = False,
) -> None:
    """End a run. Everything recorded is kept, and the run can be resumed.

    Examples:
        studio ctl stop
        studio ctl stop mine --after-step
    """
    from studio.session.requests import Stop

    _ask(context, run, json, Stop(after_step=after_step))


def _ask(
    context: typer.Context, run: str | None, json: bool, request: "Request[JsonMapping]"
) -> None:
    from studio.session import control_socket
    from studio.workspace.run_control import check_alive, choose_run, find_live_run

    place: RunAddress | None = find_live_run(context.obj, run)
    if place is None:
        check_alive(folder := choose_run(open_workspace(context), run), request.do)
        place = folder
    _show(control_socket.ask(place, request), json)


def _show(answer: JsonMapping, json: bool) -> None:
    from studio.workspace.run_control import status_lines

    if json:
        print_json(answer)
    else:
        print("\n".join(status_lines(answer)))
