"""`studio library`: what was learned, how it came about, and changes by hand."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

app = typer.Typer(
    help="What was learned, how it came about, and changes by hand.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a library.")]


@app.command("list")
def list_libraries(context: typer.Context, json: AsJson = False) -> None:
    """Every library of the workspace."""
    from engines.record.run_dir import Workspace
    from studio.library.text import row
    from studio.report.tables import print_json
    from studio.secrets.sanitize import inert

    rows = [row(folder) for folder in Workspace(context.obj).libraries()]
    if json:
        print_json(rows)
        return
    if not rows:
        print(
            f"no library in {inert(str(context.obj))} yet: studio headless rehearsal",
            file=sys.stderr,
        )
    for found in rows:
        print(
            f"{found['library']:30} v{found['version']:<4} {found['experiences']:>3} experiences "
            f"{found['tokens_per_call']:>5} tokens a call"
        )


@app.command()
def show(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="NAME[@V]", help="Also RUN@epoch:N, RUN@step:N or a file.")
    ],
    json: AsJson = False,
) -> None:
    """One version: its experiences and where each comes from."""
    from engines.record.run_dir import Workspace
    from studio.library.references import find
    from studio.library.text import library_data, library_lines
    from studio.report.tables import print_json

    library = find(reference, Workspace(context.obj)).library
    if json:
        print_json(library_data(library))
    else:
        print("\n".join(library_lines(library)))


@app.command()
def history(
    context: typer.Context,
    name: Name,
    experience: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only what concerns this one.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Every commit, with operations, evidence and who decided."""
    from engines.record.run_dir import Workspace
    from studio.library.references import named
    from studio.library.text import check_known, history_data, history_lines
    from studio.report.tables import print_json

    folder = named(name, Workspace(context.obj))
    check_known(folder, experience)
    if json:
        print_json(history_data(folder, experience))
    else:
        print("\n".join(history_lines(folder, experience) or ["nothing"]))


@app.command()
def edit(
    context: typer.Context,
    name: Name,
    experience: Annotated[
        str | None, typer.Argument(metavar="ID", help="The experience; none with --add.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Its new wording; without it $EDITOR opens.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it.")] = False,
    add: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Add an experience instead.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; recorded with the decision.")] = "",
) -> None:
    """Change, add or delete one experience; recorded as a decided operation."""
    from studio.current_user import person
    from studio.library.edit import asked_change, commit_changes
    from studio.library.references import named
    from studio.review.editor import edited
    from studio.secrets.workspace import masking_workspace

    workspace = masking_workspace(context.obj)
    head = named(name, workspace).head()
    change = asked_change(head, experience, text=text, delete=delete, add=add, edit=edited)
    if change is None:
        print(f"library {name}: nothing was changed")
        return
    done = commit_changes(workspace, name, lambda _: [change], person=person(), reason=reason)
    print(f"library {name} is at v{done.version}")


@app.command()
def revert(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="NAME@V", help="The version to return to.")],
    reason: Annotated[str, typer.Option(help="Why; recorded with the decisions.")] = "",
) -> None:
    """Make a new version with the texts of an older one; nothing is lost."""
    from engines.core.errors import ConflictError
    from studio.current_user import person
    from studio.library.edit import back_to, commit_changes
    from studio.library.references import named
    from studio.secrets.workspace import masking_workspace

    name, _, number = reference.rpartition("@")
    if not name or not number.isdecimal() or len(number) > 18:
        raise ConflictError(reference, "it is not NAME@V.", "See `studio library history NAME`.")
    workspace = masking_workspace(context.obj)
    older = named(name, workspace).at(int(number))
    why = reason or f"back to v{number}"
    done = commit_changes(workspace, name, back_to(older), person=person(), reason=why)
    print(f"library {name} is at v{done.version}, with the texts of v{number}")
