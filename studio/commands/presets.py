"""`studio presets` and `studio init`: the run files people start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from studio.commands import AsJson
from studio.report.tables import print_result, table
from studio.secrets.sanitize import sanitize

presets = typer.Typer(
    help="The run files people start from.", no_args_is_help=True, rich_markup_mode=None
)


@presets.command("list")
def list_presets(json: AsJson = False) -> None:
    """List the presets; `studio init PRESET` writes one out to be edited."""
    from studio.presets import list_presets as find_presets

    found = find_presets()
    data = [{"name": name, "about": about} for name, about in found]
    print_result(data, table(("PRESET", "WHAT IT IS"), found, fold=1), json=json)


def init(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="See `studio presets list`.")
    ] = "rehearsal",
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: ./PRESET.yaml.")] = None,
) -> None:
    """Write a commented run file to start from; never overwrites one."""
    from shlex import quote

    from studio.presets import write_run_file

    file = write_run_file(preset, to.expanduser() if to else None)
    written = sanitize(quote(str(file)))
    command = "train" if "algorithm: grpo" in file.read_text("utf-8") else "headless"
    print(f"wrote {written}; edit it, then", file=sys.stderr)
    for line, what in ((f"try {written}", "one problem"), (f"{command} {written}", "the practice")):
        print(f"  studio {line:{len(written) + 10}} {what}", file=sys.stderr)
