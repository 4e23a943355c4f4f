"""Libraries that go to other programs, and come from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engines.core.errors import ConfigError
from studio.commands import AsObject
from studio.report.tables import print_result
from studio.secrets.sanitize import sanitize

if TYPE_CHECKING:
    from engines.core.types import Problem
    from engines.record.run_dir import Workspace
    from studio.library.references import FoundVersion

_Formats = Literal["youtu", "skill", "agents", "prompt", "ace", "kayba", "dspy", "gepa", "json"]


def export(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="NAME[@V]", help="A library, or a version of it; or a file.")
    ],
    format: Annotated[_Formats, typer.Option("--format", help="Whose file it becomes.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="PATH", help="The file, or the folder of a skill.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite what stands there with other content.")
    ] = False,
    evals: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Held-out problems that a skill takes along."),
    ] = 0,
    json: AsObject = False,
) -> None:
    """Write a library as a file of another program.

    What was measured of it goes along; what the format cannot hold is named.

    Examples:
        studio library export rehearsal --format agents --to AGENTS.md
        studio library export rehearsal@1 --format skill --to skills/sums --evals 5
    """
    from dataclasses import replace

    from engines.record.formats.writing import write_foreign
    from studio.library.card import evaluation_card
    from studio.library.references import find_version
    from studio.secrets.workspace import masking_workspace

    workspace = masking_workspace(context.obj)
    found = find_version(reference, workspace)
    card = evaluation_card(found, workspace)
    if evals:
        if format != "skill":
            cause = "only a skill takes problems along."
            raise ConfigError("--evals", cause, "Leave it out, or write --format skill.")
        card = replace(card, evals=_held_out_problems(found, workspace, evals))
    files, losses = write_foreign(card, format, to.expanduser().absolute(), force=force)
    for loss in losses:
        print(f"left out: {sanitize(loss)}", file=sys.stderr)
    data = {"format": format, "files": [str(f) for f in files], "losses": losses}
    text = "\n".join(sanitize(str(file)) for file in files)
    print_result({**data, "evaluation": card.data()}, text, json=json)


def _held_out_problems(found: FoundVersion, workspace: Workspace, n: int) -> tuple[Problem, ...]:
    """Of the newest run that made the library, as its data is now."""
    from dataclasses import replace

    from studio.config.loading import load_run
    from studio.library.card import practised_runs
    from studio.run.held_out import held_out_sets

    problems, mask = [], workspace.mask
    for run in practised_runs(found, workspace)[-1:]:
        loaded = load_run(str(run.run_file), [], workspace.path, keyless=True)
        problems = [p for one in held_out_sets(loaded) for p in one.problems][:n]
    if not problems:
        cause = "no run that made this library has held-out problems."
        raise ConfigError("--evals", cause, "Leave it out.")
    return tuple(
        replace(p, question=mask(p.question), answer=p.answer and mask(p.answer)) for p in problems
    )
