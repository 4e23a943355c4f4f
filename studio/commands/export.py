"""`studio export`: what a run trained, as a folder of its own."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio.commands import AsJson, Run, flag, open_workspace, option
from studio.render.json import print_json
from studio.render.lines import tell_next
from studio.secrets.sanitize import sanitize

_ServeWith = Annotated[
    str | None,
    option(
        "SERVER", "Print the command that serves it with vllm, and run it where it is installed."
    ),
]


def export(
    context: typer.Context,
    run: Run,
    to: Annotated[Path, option("DIR", "A new or empty folder to write to.", "--to")],
    merged: Annotated[bool, flag("Write base model and adapter as one model.", "--merged")] = False,
    adapter: Annotated[bool, flag("Write the adapter alone.", "--adapter")] = False,
    step: Annotated[
        int | None,
        option("N", "Take the checkpoint of step N.", show_default="newest"),
    ] = None,
    best: Annotated[
        bool, flag("Take the checkpoint that did best on held-out problems.", "--best")
    ] = False,
    serve_with: _ServeWith = None,
    json: AsJson = False,
) -> None:
    """Export trained weights with tokenizer and model card. Give --merged or --adapter.

    Examples:
        studio export grpo-tiny --adapter --to tiny-adapter
        studio export grpo-tiny --merged --best --to tiny-model --serve-with vllm
    """
    from studio.training import export as exporting

    if merged == adapter:
        wrong = "they contradict each other." if merged else "both are missing."
        raise ConfigError("--merged, --adapter", wrong, "Give exactly one of the two.")
    if best and step is not None:
        raise ConfigError("--best", "--step names a checkpoint too.", "Give one of them.")
    if serve_with is not None:
        exporting.check_server(serve_with)
    exported = exporting.prepare_export(
        open_workspace(context),
        run,
        to.expanduser().absolute(),
        "merged" if merged else "adapter",
        step=step,
        best=best,
    )
    exported.write()
    for remark in exported.remarks:
        print(sanitize(remark), file=sys.stderr)
    command = None if serve_with is None else exported.command(serve_with)
    if json:
        print_json({**exported.facts, "command": command})
    else:
        print(sanitize(shlex.join(command) if command else str(exported.folder)))
        tell_next("" if command else exporting.try_command(exported, context.obj), context.obj)
    sys.stdout.flush()  # before a server takes the terminal over
    if command and not exporting.serve(command):
        print("vLLM is not installed here: run that command where it is.", file=sys.stderr)
