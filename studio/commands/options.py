"""The words that `studio run` and `studio headless` have in common."""

from __future__ import annotations

from typing import Annotated

import typer

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
