"""`studio presets` and `studio init`: the run files people start from."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio.commands import AsJson
from studio.presets import list_presets, write_run_file
from studio.render.json import print_result
from studio.render.lines import table
from studio.secrets.sanitize import sanitize

presets = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@presets.callback()
def about_presets() -> None:
    """List the run files that people start from.

    Examples:
        studio presets
    """


@presets.command("list")
def list_all(json: AsJson = False) -> None:
    """List the presets. `studio init PRESET` writes one out to be edited.

    Examples:
        studio presets list
        studio presets list --json
    """
    data = [{"name": name, "about": about} for name, about in list_presets()]
    print_result(data, _presets_table(), json=json)
    if not json:
        print("next: studio init rehearsal", file=sys.stderr)


def _presets_table() -> str:
    return table(("PRESET", "WHAT IT IS"), list_presets(), fold=1)


def init(
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET", help="What to start from. Without it and --to they are listed."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The new file. Default: PRESET.yaml here.")
    ] = None,
) -> None:
    """Write a commented run file to start from. None is overwritten.

    Examples:
        studio init api
        studio init rehearsal --to mine.yaml
    """
    from shlex import quote

    if preset is None and to is None:
        print(_presets_table(), file=sys.stderr)
        move = "Write `studio init rehearsal`."
        raise ConfigError("studio init", "it needs the name of a preset.", move)
    file = write_run_file(preset or "rehearsal", to.expanduser() if to else None)
    written = sanitize(quote(str(file)))
    command = "train" if "algorithm: grpo" in file.read_text("utf-8") else "headless"
    print(f"wrote {written}; edit it, then", file=sys.stderr)
    for line, what in ((f"try {written}", "one problem"), (f"{command} {written}", "the practice")):
        print(f"  studio {line:{len(written) + 10}} {what}", file=sys.stderr)
