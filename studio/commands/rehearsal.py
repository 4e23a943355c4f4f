"""`studio rehearsal`: the scripted stand-in for a model, over real HTTP."""

import sys
from typing import Annotated

import typer

from studio import exit_codes
from studio.commands import AsObject
from studio.render.json import print_json

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def rehearsal() -> None:
    """Serve the scripted stand-in for a model. `studio headless rehearsal` needs no server.

    Examples:
        studio rehearsal serve
    """


@app.command("serve")
def serve_replies(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any that is free.")
    ] = 8311,
    json: AsObject = False,
) -> int:
    """Serve scripted replies to any OpenAI client, until Ctrl-C.

    Examples:
        studio rehearsal serve
        studio rehearsal serve --port 0 --json
    """
    import asyncio

    from engines.policies.rehearsal.server import background_server
    from studio.process import serve_until_signal

    def print_ready(base_url: str) -> None:
        if json:
            print_json({"base_url": base_url, "model": "rehearsal", "rehearsal": True})
        else:
            print(base_url, flush=True)
        print(
            "rehearsal: replies are scripted, no model is asked\n"
            "try it: studio headless rehearsal policy=openai:rehearsal "
            f"policy.base_url={base_url}\n"
            "Ctrl-C ends it",
            file=sys.stderr,
            flush=True,
        )

    asyncio.run(serve_until_signal(background_server(port), print_ready))
    print("studio: the rehearsal server has ended", file=sys.stderr)
    return exit_codes.INTERRUPTED
