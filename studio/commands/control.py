"""`studio ctl`: look at a living run and steer it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

app = typer.Typer(help="Look at a living run and steer it.", no_args_is_help=True)

Run = Annotated[str | None, typer.Argument(help="Run-id; default: the newest living run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def status(context: typer.Context, run: Run = None, json: AsJson = False) -> None:
    """Where a run stands, from its process or, without one, from its journal."""
    from engines.record.run_dir import Workspace
    from studio import link
    from studio.steering import chosen_run

    folder = chosen_run(Workspace(context.obj), run)
    alive = link.is_alive(folder)
    answer = link.ask(folder, "status") if alive else link.status_of(folder.state())
    _show({**answer, "alive": alive}, json)


@app.command()
def watch(context: typer.Context, run: Run = None, json: AsJson = False) -> None:
    """Follow a living run as plain lines, or as its event stream with --json."""
    from engines.record.run_dir import Workspace
    from studio.steering import chosen_run, follow

    follow(chosen_run(Workspace(context.obj), run), as_json=json)


@app.command()
def pause(context: typer.Context, run: Run = None, json: AsJson = False) -> None:
    """Begin nothing new; what is under way ends."""
    _ask(context, run, json, "pause")


@app.command()
def resume(context: typer.Context, run: Run = None, json: AsJson = False) -> None:
    """Go on after a pause."""
    _ask(context, run, json, "resume")


@app.command()
def step(context: typer.Context, run: Run = None, json: AsJson = False) -> None:
    """Go on through the next commit, then pause."""
    _ask(context, run, json, "step")


@app.command()
def stop(
    context: typer.Context,
    run: Run = None,
    after_step: Annotated[
        bool, typer.Option("--after-step", help="End once the step under way is committed.")
    ] = False,
    json: AsJson = False,
) -> None:
    """End a run; everything recorded is kept and it can be resumed."""
    _ask(context, run, json, "stop", after_step=after_step)


def _ask(context: typer.Context, run: str | None, json: bool, do: str, **more: Any) -> None:
    from engines.record.run_dir import Workspace
    from studio import link
    from studio.steering import chosen_run

    _show(link.ask(chosen_run(Workspace(context.obj), run), do, **more), json)


def _show(answer: dict[str, Any], json: bool) -> None:
    from studio.link import without_envelope
    from studio.steering import status_lines

    if json:
        from studio.printing import print_json

        print_json(without_envelope(answer))
    else:
        print("\n".join(status_lines(answer)))
