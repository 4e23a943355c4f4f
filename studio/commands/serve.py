"""`studio serve`, `chat` and `rehearsal`: use what was learned, and serve scripted replies."""

import os
import sys
from typing import Annotated

import typer

from studio import exit_codes
from studio.commands import (
    AsObject,
    Overrides,
    TokenEnv,
    TokenFile,
    argument,
    open_workspace,
    option,
)
from studio.render.json import print_json, print_result
from studio.render.lines import to_stderr

_TARGET = "An agent.yaml, or a library: NAME follows its commits, NAME@LABEL its label."
_Target = Annotated[str, argument("AGENT|LIBRARY", _TARGET)]
_RUN_FILE = "Ask its model, with its agent in front of a library."
_RunFile = Annotated[str | None, option("RUNFILE|PRESET", _RUN_FILE)]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")]
_HOST = "Address to listen on; one that others can reach needs a token."


def serve_calls(
    context: typer.Context,
    target: _Target,
    overrides: Overrides = None,
    run_file: _RunFile = None,
    port: _Port = 8312,
    host: Annotated[str, option("HOST", _HOST)] = "127.0.0.1",
    token_file: TokenFile = None,
    token_env: TokenEnv = None,
    json: AsObject = False,
) -> int:
    """Serve an agent with what it has learned. Any OpenAI or Anthropic client may ask.

    Examples:
        studio serve practice/runs/rehearsal/agent.yaml
        studio serve rehearsal policy=openai:gpt-4o-mini --host 0.0.0.0 --token-env MY_TOKEN
    """
    import asyncio

    from studio.process import serve_until_signal
    from studio.serving.enhanced_agent import load_enhanced, read_token, serving

    token = read_token(host, token_file, token_env, os.environ)
    agent = load_enhanced(target, overrides or [], open_workspace(context), run_file)

    def print_ready(base_url: str) -> None:
        facts = {"base_url": base_url, "model": agent.config.policy.model}
        print_result(facts, base_url, json=json)
        sys.stdout.flush()
        key = "the token" if token else "anything"
        clients = f"clients: OPENAI_BASE_URL={base_url}, OPENAI_API_KEY={key}"
        kind = agent.config.agent.kind
        if kind != "single_turn":
            clients += f"\nnote: this {kind} agent's model is asked directly, without its tools"
        to_stderr(f"{agent.description}\n{clients}\nCtrl-C ends it")

    asyncio.run(serve_until_signal(serving(agent, port, host, token), print_ready))
    return exit_codes.INTERRUPTED


def chat(
    context: typer.Context, target: _Target, overrides: Overrides = None, run_file: _RunFile = None
) -> int:
    """Talk with an agent and what it has learned. A line is a message.

    /library shows what stands in front, /reset forgets the talk, /exit ends it, Ctrl-C a reply.

    Examples:
        studio chat practice/runs/rehearsal/agent.yaml
        studio chat rehearsal --run-file rehearsal
    """
    from studio.serving.enhanced_agent import load_enhanced, talk_in_lines

    agent = load_enhanced(target, overrides or [], open_workspace(context), run_file)
    to_stderr(agent.description)
    return talk_in_lines(agent, sys.stdin)


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
        to_stderr(
            "rehearsal: replies are scripted, no model is asked\n"
            "try it: studio headless rehearsal policy=openai:rehearsal "
            f"policy.base_url={base_url}\n"
            "Ctrl-C ends it"
        )

    asyncio.run(serve_until_signal(background_server(port), print_ready))
    to_stderr("studio: the rehearsal server has ended")
    return exit_codes.INTERRUPTED
