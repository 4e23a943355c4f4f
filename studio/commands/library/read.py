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
    from studio.library.text import labels_text, library_row
    from studio.render.words import count_text, prompt_tokens_text

    rows = [library_row(folder) for folder in open_workspace(context).libraries()]
    if json:
        print_json(rows)
        return
    if not rows:
        print(f"no library in {sanitize(str(context.obj))} yet", file=sys.stderr)
        tell_next("studio headless rehearsal", context.obj)
    for found in rows:
        held = count_text(found["experiences"], "experience")
        print(
            f"{found['library']:30} v{found['version']:<4} {held:>15} "
            f"{prompt_tokens_text(format(found['tokens_per_call'], '>5'), found['experiences'])}"
            f"  {labels_text(found['labels'])}".rstrip()
        )
    if rows:
        first = max(rows, key=lambda row: bool(row["experiences"]))  # an empty one shows nothing
        tell_next(f"studio library show {quote(str(first['library']))}", context.obj)


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
    from engines.record.formats.own import library_data
    from studio.library.references import find_version
    from studio.library.text import library_lines

    found = find_version(reference, open_workspace(context))
    library, labels, source = found.library, found.labels, found.copied_from
    lines = library_lines(library, labels)
    lines[1:1] = [f"begun as a copy of {sanitize(source)}"] if source else []
    data = {**library_data(library), "labels": labels, "copied_from": source}
    print_result(data, "\n".join(lines), json=json)
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
    from studio.library.references import library_folder
    from studio.library.text import check_experience, history_data, history_lines

    folder = library_folder(name, open_workspace(context))
    check_experience(folder, experience)
    text = "\n".join(history_lines(folder, experience) or ["nothing"])
    print_result(history_data(folder, experience), text, json=json)
