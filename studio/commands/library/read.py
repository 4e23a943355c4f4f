"""What libraries hold, and how it came about."""

from __future__ import annotations

import sys
from shlex import quote
from typing import Annotated

import typer

from studio.commands import AsJson, open_workspace
from studio.render.json import print_json, print_result
from studio.render.lines import tell_next
from studio.secrets.sanitize import sanitize

Name = Annotated[str, typer.Argument(metavar="LIBRARY", help="Name of a library.")]


def list_libraries(context: typer.Context, json: AsJson = False) -> None:
    """List the libraries of the workspace.

    Examples:
        studio library list
        studio library list --json
    """
    from studio.facts.library import listed_library
    from studio.render.library_lines import list_lines

    listed = [listed_library(folder) for folder in open_workspace(context).libraries()]
    if json:
        print_json(listed)
        return
    if not listed:
        print(f"no library in {sanitize(str(context.obj))} yet", file=sys.stderr)
        tell_next("studio headless rehearsal", context.obj)
        return
    print("\n".join(list_lines(listed)))
    first = max(listed, key=lambda facts: bool(facts.experiences))  # an empty one shows nothing
    tell_next(f"studio library show {quote(first.library)}", context.obj)


def show(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@V]",
            help="A library, or a version by number or label; also RUN@epoch:N or a file.",
        ),
    ],
    json: AsJson = False,
) -> None:
    """Show one version: its experiences and where each comes from.

    Examples:
        studio library show rehearsal
        studio library show rehearsal@1 --json
    """
    from studio.facts.library import version_facts
    from studio.library.references import find_version
    from studio.render.library_lines import library_lines

    version = find_version(reference, open_workspace(context))
    library = version.library
    lines = library_lines(library, version.labels, version.copied_from)
    print_result(version_facts(version), "\n".join(lines), json=json)
    if not json and (context.obj / "libraries" / library.name).is_dir():
        tell_next(f"studio library history {quote(library.name)}", context.obj)


def history(
    context: typer.Context,
    name: Name,
    experience: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only what concerns this experience.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show every commit, with operations, evidence and who decided.

    Examples:
        studio library history rehearsal
        studio library history rehearsal E1
    """
    from studio.facts.library import history_facts
    from studio.library.references import library_folder
    from studio.render.library_lines import history_lines

    folder = library_folder(name, open_workspace(context))
    entries = history_facts(folder, experience)
    lines = history_lines(entries, rejections=experience is None)
    print_result(entries, "\n".join(lines or ["nothing"]), json=json)
