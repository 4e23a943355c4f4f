"""`studio guide`, `presets`, `init` and `version`: what comes with the studio."""

import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from engines.core.errors import ConfigError, installed_version
from studio.commands import AsJson, AsObject, argument, option
from studio.presets import list_presets, write_run_file
from studio.render.json import print_result
from studio.render.lines import table, to_stderr
from studio.secrets.sanitize import sanitize

WIDEST = 100
"""Longer lines are hard to read."""


def guide(
    topic: Annotated[str | None, argument("TOPIC", "A page. Without one all are listed.")] = None,
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
            to_stderr("next: studio guide first-session")
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


presets = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@presets.callback()
def about_presets() -> None:
    """List the run files that people start from.

    Examples:
        studio presets
    """


@presets.command("list")
def list_all(json: AsJson = False) -> None:
    """List the presets. `studio init PRESET` writes one out to be edited.

    Examples:
        studio presets list
        studio presets list --json
    """
    data = [{"name": name, "about": about} for name, about in list_presets()]
    print_result(data, _presets_table(), json=json)
    if not json:
        to_stderr("next: studio init rehearsal")


def _presets_table() -> str:
    return table(("PRESET", "WHAT IT IS"), list_presets(), fold=1)


def init(
    preset: Annotated[
        str | None,
        argument("PRESET", "What to start from. Without it and --to they are listed."),
    ] = None,
    to: Annotated[Path | None, option("FILE", "The new file. Default: PRESET.yaml here.")] = None,
) -> None:
    """Write a commented run file to start from. None is overwritten.

    Examples:
        studio init api
        studio init rehearsal --to mine.yaml
    """
    from shlex import quote

    if preset is None and to is None:
        to_stderr(_presets_table())
        raise ConfigError(
            "studio init", "it needs the name of a preset.", "Write `studio init rehearsal`."
        )
    file = write_run_file(preset or "rehearsal", to.expanduser() if to else None)
    written = sanitize(quote(str(file)))
    command = "train" if "algorithm: grpo" in file.read_text("utf-8") else "headless"
    to_stderr(f"wrote {written}; edit it, then")
    for line, what in ((f"try {written}", "one problem"), (f"{command} {written}", "the practice")):
        to_stderr(f"  studio {line:{len(written) + 10}} {what}")


PACKAGES = ("practice-studio", "textual", "httpx2", "torch", "transformers", "peft")


def version(json: AsObject = False) -> None:
    """Print the versions of the studio and of its libraries.

    Examples:
        studio version
        studio version --json
    """
    found = {"practice-studio": installed_version(PACKAGES[0]), "python": platform.python_version()}
    found |= {name: installed_version(name) for name in PACKAGES[1:]}
    rows = [(name, number or "not installed") for name, number in found.items()]
    print_result(found, table(("NAME", "VERSION"), rows), json=json)
