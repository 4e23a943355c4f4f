"""`studio presets`, `studio init` and `studio try`: from nothing to a run file and one problem."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from studio.commands import AsJson, AsObject, Overrides, open_workspace
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
    command = "train   " if "algorithm: grpo" in file.read_text("utf-8") else "headless"
    print(f"wrote {written}; edit it, then", file=sys.stderr)
    print(f"  studio try {written}        one problem", file=sys.stderr)
    print(f"  studio {command} {written}   the whole practice", file=sys.stderr)


def try_once(
    context: typer.Context,
    runfile: Annotated[str, typer.Argument(metavar="RUNFILE|PRESET", help="What to try.")],
    overrides: Overrides = None,
    problem: Annotated[
        str | None, typer.Option(metavar="ID", help="Default: the first of the data.")
    ] = None,
    question: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Ask this instead of a problem.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The expected answer to it.")
    ] = None,
    library: Annotated[
        str | None,
        typer.Option(metavar="NAME[@V]|none", help="Experiences; default: as the run begins."),
    ] = None,
    json: AsObject = False,
) -> int:
    """Take one problem from prompt to verdict; keeps nothing."""
    import asyncio
    from functools import partial

    from studio.config.loading import load_run
    from studio.evaluation.trial import Trial, choose_problem, run_trial
    from studio.evaluation.trial_text import (
        after_text,
        before_text,
        exit_code,
        print_piece,
        trial_data,
    )
    from studio.report.progress import to_stderr
    from studio.run.budget import limits_of
    from studio.run.library_start import choose_library

    loaded = load_run(runfile, overrides or [], context.obj)
    if limits_of(loaded.config):
        to_stderr("note: a try asks once and keeps nothing, so the budget is not kept either")
    chosen = choose_problem(loaded, problem, question, answer)
    workspace = open_workspace(context)
    trial = Trial(loaded, chosen, *choose_library(loaded, workspace, library))
    if json:
        tried = asyncio.run(run_trial(trial, workspace))
    else:
        shown = partial(print, before_text(trial), flush=True)
        tried = asyncio.run(run_trial(trial, workspace, print_piece, shown))
    print_result(trial_data(trial, tried), after_text(trial, tried), json=json)
    return exit_code(tried)
