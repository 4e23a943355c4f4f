"""Which version of a library is in use, and serving it to agents."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio import exit_codes
from studio.commands import AsObject, TokenEnv, TokenFile, open_workspace, require_mcp
from studio.process import login_name


def label(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="NAME[@V]", help="A version of a library. Default: its head.")
    ],
    label: Annotated[str, typer.Argument(metavar="LABEL", help="What it is called from now on.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Take the label away.")] = False,
) -> None:
    """Call a version by a label. NAME@LABEL then names it wherever a version is named.

    Examples:
        studio library label rehearsal@1 production --reason "62 % on AIME24"
        studio library label rehearsal@production stable
        studio library label rehearsal stable --remove
    """
    from studio.library.edit import set_label

    workspace = open_workspace(context, masks=True)
    print(set_label(workspace, reference, label, person=login_name(), reason=reason, remove=remove))


_SERVED = "A library: NAME follows its commits, NAME@LABEL its label, NAME@V stays."
_HTTP = "Listen here, not on stdio; an address that others can reach needs a token."


def serve(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="NAME[@V]", help=_SERVED)],
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_HTTP)] = None,
    token_file: TokenFile = None,
    token_env: TokenEnv = None,
    json: AsObject = False,
) -> int:
    """Serve a library to agents by MCP, as a skill and a prompt. They are told when it changes.

    Examples:
        studio library serve rehearsal@production
        studio library serve rehearsal --http 127.0.0.1:8313
        studio library serve rehearsal --http 0.0.0.0:8313 --token-env MY_TOKEN
    """
    import asyncio

    from studio.process import serve_until_signal
    from studio.render.json import print_result
    from studio.render.lines import to_stderr
    from studio.secrets.sanitize import sanitize
    from studio.serving.enhanced_agent import read_token

    if http is None and (token_file or token_env or json):
        cause = "they are for --http, and this serves on stdio."
        raise ConfigError("--token-file, --token-env, --json", cause, "Add --http HOST:PORT.")
    host, _, port = (http or ":0").rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port[:9]) > 65535:
        raise ConfigError(f"--http {http}", "it is not HOST:PORT.", "Write 127.0.0.1:8313, say.")
    token = read_token(host, token_file, token_env, os.environ, "library")
    require_mcp()
    from studio.serving.library_mcp import LibraryService, serve_http, serve_stdio

    service = LibraryService(reference, open_workspace(context, masks=True))
    served = service.served
    library, described = served.library, f"{sanitize(reference)} as {served.uri}"
    told = f"serving {described}: v{library.version}, experiences {len(library.experiences)}"
    if http is None:
        to_stderr(f"{told}\non stdio; Ctrl-C, or the end of the input, ends it")
        asyncio.run(serve_stdio(service.server))
        return exit_codes.DONE

    def print_ready(url: str) -> None:
        print_result({"url": url, "skill": served.uri}, url, json=json)
        sys.stdout.flush()
        to_stderr(f"{told}\nCtrl-C ends it")

    serving = serve_http(service.server, host, int(port), token, f"--http {http}")
    asyncio.run(serve_until_signal(serving, print_ready))
    return exit_codes.INTERRUPTED
