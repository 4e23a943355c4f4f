"""What commands share: options and arguments of one meaning, and the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from engines.record.run_dir import Workspace

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsObject = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
EventsAsJson = Annotated[bool, typer.Option("--json", help="Print the event stream on stdout.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Run-id, see `studio runs list`.")]
NewestRun = Annotated[
    str | None, typer.Argument(help="Run-id; default: the newest living run, else the newest.")
]
RunFile = Annotated[str | None, typer.Argument(metavar="RUNFILE|PRESET", help="What to practise.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to override.")
]
Name = Annotated[str | None, typer.Option(help="Name of the run instead of exp_id.")]
RestartStep = Annotated[
    str | None,
    typer.Option(
        metavar="null|0|N",
        help="null resumes the newest run of the name (default), 0 starts a new one, N "
        "starts a new one that adopts the first N steps.",
    ),
]
AcceptChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="Resume although settings that change results differ."),
]


def open_workspace(context: typer.Context) -> Workspace:
    from engines.record.run_dir import Workspace  # a good third of the start of `ctl status`

    return Workspace(context.obj)
