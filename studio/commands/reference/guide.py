"""`studio guide`: the manual in the terminal."""

import sys
from typing import Annotated

import typer

from studio.commands import AsJson
from studio.render.json import print_result
from studio.render.lines import table

WIDEST = 100
"""Longer lines are hard to read."""


def guide(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A page. Without one all are listed.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Read the manual: list its pages, or show one.

    A terminal gets it formatted and in your $PAGER; a pipe gets Markdown.

    Examples:
        studio guide
        studio guide first-session
    """
    from studio.guide import TOPICS, read_page, title_of

    if topic is None:
        rows = [(name, title_of(name)) for name in TOPICS]
        data = [{"topic": name, "title": title} for name, title in rows]
        print_result(data, table(("TOPIC", "WHAT IT IS ABOUT"), rows), json=json)
        if not json:
            print("next: studio guide first-session", file=sys.stderr)
        return
    text = read_page(topic)
    if json:
        print_result({"topic": topic, "text": text}, "", json=True)
    elif sys.stdout.isatty():
        from click import echo_via_pager

        echo_via_pager(format_page(text), color=True)
    else:
        print(text, end="")


def format_page(text: str) -> str:
    """A page as a terminal shows it, as wide as that is."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console = Console(width=min(WIDEST, console.width), force_terminal=True)
    with console.capture() as captured:
        console.print(Markdown(text, hyperlinks=False))
    return captured.get()
