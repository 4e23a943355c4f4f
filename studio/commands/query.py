"""`studio query`: questions to all that was proposed, decided, learned and measured."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from studio.commands import AsJson, open_workspace
from studio.report.tables import print_json
from studio.secrets.sanitize import sanitize


def query(
    context: typer.Context,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Words that all stand in it.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="About E7, op3.1, a version NAME@7 or a rollout s3p0r1."),
    ] = None,
    reviewer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Decided by this person or these rules.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="ID", help="Drawn from, or measured on, this problem.")
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Of this run.")] = None,
    library: Annotated[str | None, typer.Option(metavar="NAME", help="Of this library.")] = None,
    effect: Annotated[
        str | None,
        typer.Option(metavar='helps|hurts|">0.05"', help="What it was measured to be worth."),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="DATE|7d", help="Not before this.")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DATE|7d", help="Not after this; a day is whole.")
    ] = None,
    kind: Annotated[
        Literal["operation", "experience", "rejection", "version", "evaluation"] | None,
        typer.Option(
            metavar="operation|experience|rejection|version|evaluation", help="Only these."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Hits at most.")] = 20,
    json: AsJson = False,
) -> None:
    """Find what was proposed, decided, learned and measured, newest first.

    It asks the catalogue, which is made from the journals of all runs and libraries.

    Examples:
        studio query carry
        studio query --id E1 --library rehearsal
        studio query --kind rejection --since 7d
        studio query --effect ">0.05" --json
    """
    from engines.record.catalogue.query import Wanted, find_rows
    from studio.library import find

    workspace = open_workspace(context)
    verdict, compare = find.parse_effect(effect)
    wanted = Wanted(
        words=" ".join(text or ()).split(),
        kind=kind,
        id=id,
        reviewer=reviewer,
        problem=problem,
        run=run,
        library=library,
        verdict=verdict,
        effect=compare,
        since=find.parse_time("--since", since),
        until=find.parse_time("--until", until, ends=True),
    )
    rows, errors = find_rows(workspace, wanted)
    if json:
        print_json([find.hit_data(row, workspace) for row in rows[:limit]])
    for row in () if json else rows[:limit]:
        print("\n".join(find.hit_lines(row, workspace)))
    if errors:
        print(find.not_asked_text(errors), file=sys.stderr)
    if not rows:
        print(f"nothing in {sanitize(str(context.obj))} fits", file=sys.stderr)
    elif len(rows) > limit:
        print(f"{len(rows) - limit} more: --limit {len(rows)}", file=sys.stderr)
