"""`studio rehearsal`: the scripted stand-in for a model, over real HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="The scripted stand-in for a model.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def rehearsal() -> None:
    """The scripted stand-in for a model."""


@app.command()
def serve(
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes any free port.")] = 8311,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Serve scripted replies (rehearsal) to any OpenAI client until Ctrl-C."""
    import asyncio

    from studio.commands.rehearsal_server import serve_until_stopped

    return asyncio.run(serve_until_stopped(port, json=json))
