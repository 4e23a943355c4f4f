"""`studio query`: questions to all that was proposed, decided, learned and measured."""

from typing import Annotated, Literal, get_args

import typer

from studio.commands import AsJson, argument, open_workspace, option
from studio.render.json import print_json
from studio.render.lines import to_stderr

Kind = Literal["operation", "experience", "rejection", "version", "evaluation"]


def query(
    context: typer.Context,
    text: Annotated[list[str] | None, argument("TEXT", "Words that all stand in it.")] = None,
    id: Annotated[str | None, option("ID", "About E7, op3.1, NAME@7|LABEL or s3p0r1.")] = None,
    reviewer: Annotated[str | None, option("NAME", "Decided by this person or rules.")] = None,
    problem: Annotated[str | None, option("ID", "Drawn from or measured on this problem.")] = None,
    run: Annotated[str | None, option("RUN", "Of this run.")] = None,
    library: Annotated[str | None, option("NAME", "Of this library.")] = None,
    effect: Annotated[str | None, option('helps|hurts|">0.05"', "Its measured worth.")] = None,
    since: Annotated[str | None, option("DATE|7d", "Not before this.")] = None,
    until: Annotated[str | None, option("DATE|7d", "Not after this; a day is whole.")] = None,
    kind: Annotated[Kind | None, option("|".join(get_args(Kind)), "Only these.")] = None,
    limit: Annotated[int, option("N", "Hits at most.", min=1)] = 20,
    json: AsJson = False,
) -> None:
    """Find what was proposed, decided and learned, newest first.

    Examples:
        studio query carry
        studio query --id E1 --library rehearsal
        studio query --kind rejection --since 7d
        studio query --effect ">0.05" --json
    """
    from engines.record.derived.catalogue import condition, find_rows
    from studio.library import find
    from studio.library.references import follow_version, library_folder

    workspace = open_workspace(context)
    if id and "@" in id and not id.rpartition("@")[2].isdecimal():
        folder, read_version = follow_version(id, workspace)
        id = f"{folder.name}@{read_version().version}"
    verdict, compare = find.parse_effect(effect)
    times = find.parse_times(since, until)
    asked = (" ".join(text or ()).split(), kind, id, problem, compare, *times)
    fits = condition(*asked, reviewer=reviewer, run=run, library=library, verdict=verdict)
    rows, errors = find_rows(workspace, fits)
    if not rows and run is not None:
        workspace.run(run)  # says which there are
    if not rows and library is not None:
        library_folder(library, workspace).versions()
    if json:
        print_json([find.hit_data(row, workspace) for row in rows[:limit]])
    for row in () if json else rows[:limit]:
        print("\n".join(find.hit_lines(row, workspace)))
    told = [f"left out: {error}" for error in errors]
    if not rows:
        told.append(f"nothing fits in workspace {context.obj}")
    elif len(rows) > limit:
        told.append(f"{len(rows) - limit} more: --limit {len(rows)}")
    for line in told:
        to_stderr(line)
