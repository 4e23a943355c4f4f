"""`studio data`: the problems one can practise on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="List, add and look at data sets.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A path, or a name as run files have it.")
]
Question = Annotated[
    str | None, typer.Option("--question", metavar="FIELD", help="Field of the question.")
]
Answer = Annotated[
    str | None, typer.Option("--answer", metavar="FIELD", help="Field of the answer.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_data(context: typer.Context, json: AsJson = False) -> None:
    """List the workspace's data sets and the bundled ones."""
    from engines.record.run_dir import Workspace
    from studio.datasets import listed_data
    from studio.printing import print_json, table

    found = listed_data(Workspace(context.obj))
    if json:
        print_json([entry.data for entry in found])
    else:
        rows = [(e.name, "-" if e.n is None else str(e.n), e.where, e.path) for e in found]
        print(table(("NAME", "N", "FROM", "PATH"), rows))
    for entry in found:
        if entry.trouble:
            print(f"note: {entry.trouble}", file=sys.stderr)


@app.command()
def add(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL, one problem a line.")],
    name: Annotated[str | None, typer.Option(help="What to call it; default: as the file.")] = None,
    question: Question = None,
    answer: Answer = None,
    json: AsJson = False,
) -> None:
    """Check a file and copy it into the workspace."""
    from engines.record.run_dir import Workspace
    from studio.datasets import add_data, field_names
    from studio.printing import print_json

    fields = field_names(question, answer)
    added = add_data(Workspace(context.obj), file.expanduser(), name, fields)
    if json:
        print_json({"name": added.name, "path": str(added.path), "n": added.n, "new": added.new})
    elif added.new:
        print(f"{added.name}: {added.n} problems added as {added.path}")
    else:
        print(f"{added.name}: nothing changed, {added.path} has this content already")
    if added.without_answer:
        print(f"note: {added.without_answer} of {added.n} have no answer", file=sys.stderr)
    if added.hides_bundled:
        print(f"note: it hides the bundled data set {added.name}", file=sys.stderr)
    if fields:
        print("note: in the copy the fields are called question and answer", file=sys.stderr)


@app.command()
def preview(
    context: typer.Context,
    name: Name,
    n: Annotated[int, typer.Option("-n", min=1, help="Problems to show.")] = 5,
    question: Question = None,
    answer: Answer = None,
    json: AsJson = False,
) -> None:
    """Show the first problems as practice would meet them."""
    from engines.data.dataset import read_numbered
    from engines.record.run_dir import Workspace
    from studio.data_text import preview_text, problem_data
    from studio.datasets import field_names, find_data
    from studio.printing import print_json

    path = find_data(name, Workspace(context.obj))
    fields = field_names(question, answer)
    shown = read_numbered(path, fields=fields, needs_answer=False, limit=n)
    if json:
        print_json([problem_data(line, problem) for line, problem in shown])
    else:
        print(preview_text(shown))


@app.command()
def check(
    context: typer.Context,
    name: Name,
    question: Question = None,
    answer: Answer = None,
    json: AsJson = False,
) -> None:
    """Look for what usually is a mistake in a data set."""
    from engines.data.dataset import check as examined
    from engines.data.dataset import read_numbered
    from engines.record.run_dir import Workspace
    from studio.data_text import report_data, report_text
    from studio.datasets import field_names, find_data
    from studio.printing import print_json

    path = find_data(name, Workspace(context.obj))
    fields = field_names(question, answer)
    report = examined(read_numbered(path, fields=fields, needs_answer=False))
    if json:
        print_json(report_data(path.stem, str(path), report))
    else:
        print(report_text(path.stem, str(path), report))
