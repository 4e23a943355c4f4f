"""`studio presets`: the run files people start from."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="The run files people start from.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the presets; `studio init PRESET` writes one out to be edited."""
    from studio.presets import list_presets
    from studio.report.tables import print_json, table

    found = list_presets()
    if json:
        print_json([{"name": name, "about": about} for name, about in found])
    else:
        print(table(("PRESET", "WHAT IT IS"), found, fold=1))
