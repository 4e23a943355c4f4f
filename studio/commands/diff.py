"""`studio diff`: what changed between two versions of what was learned."""

from shlex import quote
from typing import Annotated, Literal

import typer

from studio.commands import argument, choose_form, flag, open_workspace, option
from studio.render.lines import tell_next


def diff(
    context: typer.Context,
    a: Annotated[
        str,
        argument("A", "The older one: NAME@V, RUN@epoch:N, RUN@step:N or a FILE."),
    ],
    b: Annotated[str, argument("B", "The newer one, named in the same way.")],
    format: Annotated[
        Literal["text", "json", "html"] | None,
        option("text|json|html", "How to print the comparison.", show_default="text"),
    ] = None,
    json: Annotated[bool, flag("Print JSON, as --format json does.", "--json")] = False,
) -> None:
    """Compare two versions of what was learned.

    Examples:
        studio diff rehearsal@0 rehearsal@1
        studio diff rehearsal@epoch:0 rehearsal@epoch:1 --json
    """
    from studio.facts.library import difference
    from studio.library.references import find_version
    from studio.render.comparison_page import difference_page
    from studio.render.library_lines import COLOURS, difference_lines
    from studio.render.page import print_facts

    form = choose_form(json, format)
    workspace = open_workspace(context)
    older, newer = find_version(a, workspace), find_version(b, workspace)
    facts = difference(older, newer)
    if form != "text":
        print_facts(facts, difference_page(facts), form)
        return
    for line in difference_lines(facts):
        typer.secho(line, fg=COLOURS.get(line[0]))  # it only repeats what its sign says
    name = newer.library.name
    if any(folder.name == name for folder in workspace.libraries()):
        tell_next(f"studio library history {quote(name)}", context.obj)
