"""Libraries that go to other programs, and come from them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engines.core.errors import ConfigError
from studio import exit_codes
from studio.commands import AsObject, open_workspace
from studio.render.json import print_result
from studio.render.lines import tell_next, to_stderr
from studio.secrets.sanitize import sanitize

if TYPE_CHECKING:
    from engines.core.library import Library
    from engines.core.types import Operation, Problem
    from engines.record.run_dir import Workspace
    from studio.facts.library import FoundVersion

_Formats = Literal["youtu", "skill", "agents", "prompt", "ace", "kayba", "dspy", "gepa", "json"]


def export(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="NAME[@V]", help="A library, or a file.")],
    format: Annotated[_Formats, typer.Option("--format", help="Whose file it becomes.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="PATH", help="A file; of a skill its folder.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite other content.")] = False,
    evals: Annotated[int, typer.Option(min=0, metavar="N", help="Problems for a skill.")] = 0,
    json: AsObject = False,
) -> None:
    """Write a library as a file of another program.

    What was measured of it goes along; what the format cannot hold is named.

    Examples:
        studio library export rehearsal --format agents --to AGENTS.md
        studio library export rehearsal@1 --format skill --to skills/sums --evals 5
    """
    from dataclasses import replace

    from engines.record.formats.table import write_foreign
    from studio.library.card import evaluation_card
    from studio.library.references import find_version

    if str(to) == "-":
        raise ConfigError("--to -", "an export is a file, or a folder.", "Name one; ./- is a name.")
    workspace = open_workspace(context, masks=True)
    found = find_version(reference, workspace)
    card = evaluation_card(found, workspace)
    if evals:
        if format != "skill":
            cause = "only a skill takes problems along."
            raise ConfigError("--evals", cause, "Leave it out, or write --format skill.")
        card = replace(card, evals=_held_out_problems(found, workspace, evals))
        if len(card.evals) < evals:
            print(f"--evals {evals}: there are {len(card.evals)} held out", file=sys.stderr)
    files, losses = write_foreign(card, format, to.expanduser().absolute(), workspace, force=force)
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


Into = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The library to review for; one that is not there begins."),
]
OnlyLook = Annotated[bool, typer.Option("--dry-run", help="Only say what would be asked.")]
_VERSION = "NAME@V, RUN@step:N, or our own YAML or JSON file of one."


def merge(
    context: typer.Context,
    base: Annotated[str, typer.Argument(metavar="BASE", help=_VERSION)],
    ours: Annotated[str, typer.Argument(metavar="OURS", help=_VERSION)],
    theirs: Annotated[str, typer.Argument(metavar="THEIRS", help=_VERSION)],
    into: Into = None,
    dry_run: OnlyLook = False,
    json: AsObject = False,
) -> int:
    """Review what THEIRS changed since BASE. Nothing of OURS is lost.

    OURS is the head of a library, which the operations are for. What both changed differently is
    flagged `conflict`. Files are ours: YAML, or `export --format json`. With --into NAME a library
    begins as a copy of OURS, a file, say.

    Examples:
        studio library merge rehearsal@0 rehearsal theirs.yaml --dry-run
    """
    from studio.library.curation import merge_operations, merge_target
    from studio.library.references import find_version

    workspace = open_workspace(context, masks=True)
    old, mine, other = (find_version(name, workspace) for name in (base, ours, theirs))
    target = merge_target(workspace, mine, into, begin=not dry_run)
    wanted = merge_operations(old.library, mine.library, other.library, other.label)
    about = f"merge of {theirs} since {base}"
    return _put_up(workspace, target, wanted, about, dry_run=dry_run, json=json)


def import_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file, or a skill's folder.")],
    format: Annotated[
        str | None, typer.Option(metavar="F", help="What it is. Default: what it looks like.")
    ] = None,
    into: Into = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; it goes into every rationale.")
    ] = "",
    dry_run: OnlyLook = False,
    json: AsObject = False,
) -> int:
    """Review what a file of another program, or of ours, holds. Nothing is changed before.

    Without --into it is for the library that the file names, as exports of ours do, else for that
    of the file's own name. What the format holds and a library does not is told, with exit code 4.

    Examples:
        studio library import playbook.txt --into rehearsal --dry-run
        studio library import skillbook.json --format kayba --into shared --reason "from the lab"
    """
    from engines.record.formats.table import read_foreign
    from studio.library.curation import import_operations, target_library, version_of
    from studio.render.words import count_text

    read, workspace = read_foreign(file.expanduser(), format), open_workspace(context, masks=True)
    if format is None:
        held = count_text(len(read.entries), "experience")
        to_stderr(f"read as {read.format}: {held}; --format names another")
    target = target_library(workspace, read.name if into is None else into, begin=not dry_run)
    base = version_of(workspace, target.name, read.exported and read.exported[1])
    found = import_operations(read, target, base, str(file), reason, workspace.mask)
    # With nothing new in a copy of a version that is here, its uses and effects are here, too.
    is_copy = read.format == "json" and base is not None and not found.operations
    told = (f"{name} is pinned, so its other wording is left out" for name in found.pinned)
    return _put_up(
        workspace,
        target,
        found.operations,
        f"import of {file}",
        already=found.already,
        losses=[*(() if is_copy else read.losses), *told],
        dry_run=dry_run,
        json=json,
        format=read.format,
    )


def _put_up(
    workspace: Workspace,
    target: Library,
    operations: Sequence[Operation],
    about: str,
    *,
    dry_run: bool,
    json: bool,
    already: int = 0,
    losses: Sequence[str] = (),
    format: str = "",
) -> int:
    """Open a curation run, and print what waits in it."""
    from dataclasses import replace

    from studio.library.curation import open_curation
    from studio.process import login_name
    from studio.render.library_lines import curation_lines
    from studio.run.linter import LazyLinter

    linter_of = None if dry_run else partial(LazyLinter, workspace, tell=to_stderr)
    opened = open_curation(
        workspace, target, operations, about, person=login_name(), linter_of=linter_of
    )
    facts = replace(opened, already=already, losses=tuple(losses), format=format)
    print_result(facts, "\n".join(curation_lines(facts)), json=json)
    for loss in facts.losses:
        to_stderr(f"lost: {loss}")
    if waits := facts.run or next(iter(facts.waiting), None):
        tell_next(f"studio review {quote(waits)}", workspace.path)
    return exit_codes.WITH_LOSSES if facts.losses else exit_codes.DONE
