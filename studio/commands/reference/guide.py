"""`studio guide`, `presets`, `init`, `version` and `config`: what comes with the studio."""

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engines.core.codec import dumps
from engines.core.errors import ConfigError, installed_version
from studio.commands import AsJson, AsObject, argument, flag, option
from studio.presets import list_presets, write_run_file
from studio.render.json import print_result
from studio.render.lines import table, to_stderr, wrap_text
from studio.secrets.sanitize import one_line, sanitize

if TYPE_CHECKING:
    from studio.config.settings.reference import Setting


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


SCREEN_FILE = "screen.yaml"
_AS_POLICY = ("reflector.", "judge.", "agent.model.")
"""Settings of a model are listed once, as the policy's."""

config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@config_app.callback()
def config() -> None:
    """List and explain the settings of run files and of the screen.

    Run files may name variables of the environment as ${oc.env:NAME}. What the environment does
    not set is read from a file .env in the working folder, as lines of NAME=VALUE.

    Examples:
        studio config
        studio config explain practice.group_size
    """


@config_app.command("list")
def list_settings(
    section: Annotated[
        str | None,
        argument("SECTION", "Only the settings of this section, as `practice`."),
    ] = None,
    all: Annotated[
        bool, flag("Every setting, not only those that people mostly set.", "--all")
    ] = False,
    json: AsJson = False,
) -> None:
    """List settings with their defaults and what they mean.

    Examples:
        studio config list
        studio config list --all
        studio config list practice
        studio config list grpo --json
    """
    from studio.config.settings.reference import COMMON

    settings = [s for s in every_setting() if s.kind != "section"]
    if section is not None:
        settings = [s for s in settings if s.key == section or s.key.startswith(f"{section}.")]
        if not settings:
            raise _unknown_key(section)
    elif not all:
        settings = [s for s in settings if s.key in COMMON]
    print_result([asdict(s) for s in settings], _table(settings), json=json)
    if not json:
        more = "" if all or section is not None else ", or studio config list --all"
        to_stderr(f"next: studio config explain {settings[-1].key}{more}")


@config_app.command()
def explain(
    key: Annotated[str, argument("KEY", "A setting, or a section of them.")],
    json: AsJson = False,
) -> None:
    """Explain a setting. It says meaning, default, bounds and choices, and gives an example.

    Examples:
        studio config explain practice.group_size
        studio config explain policy
        studio config explain theme
    """
    every = every_setting()
    for role in _AS_POLICY:
        if key.startswith(role):
            key = f"policy.{key.removeprefix(role)}"
    found = [s for s in every if key == s.key or key in s.aliases]
    if not found:
        raise _unknown_key(key)
    text = "\n\n".join(wrap_text("\n".join(_lines(setting)), 80) for setting in found)
    if found[0].kind == "section":
        text += "\n\n" + _table([s for s in every if s.key.startswith(f"{found[0].key}.")])
    data = [asdict(setting) for setting in found]
    print_result(data[0] if len(data) == 1 else data, text, json=json)


@cache
def every_setting() -> "list[Setting]":
    """Of run files, then of the screen."""
    from studio.config.settings.reference import run_settings

    return [*run_settings(), *_screen_settings()]


def _screen_settings() -> "Iterator[Setting]":
    from studio.config.settings.reference import section_settings
    from studio.tui.drawing.themes import NAMES
    from studio.tui.settings import NOTIFICATION, ScreenSettings

    for setting in section_settings(ScreenSettings):
        key, value = setting.key, setting.example.partition("=")[2]
        if key in NOTIFICATION:
            yield replace(
                setting,
                key=f"notify.{key}",
                example=f"notify: {{{key}: {value}}}",
                file=SCREEN_FILE,
            )
        else:
            default = "auto" if setting.default is None else setting.default
            choices = ("auto", *NAMES) if key == "theme" else ()
            example = f"{key}: {value}"
            yield replace(
                setting, default=default, choices=choices, example=example, file=SCREEN_FILE
            )


def _table(settings: "list[Setting]") -> str:
    rows = [
        (s.key, "" if s.kind == "section" else one_line(_value_text(s), 12), _meaning(s))
        for s in settings
    ]
    return table(("KEY", "DEFAULT", "MEANING"), rows, fold=2)


def _meaning(setting: "Setting") -> str:
    return f"{setting.meaning} ({SCREEN_FILE})" if setting.file == SCREEN_FILE else setting.meaning


def _lines(setting: "Setting") -> Iterator[str]:
    yield f"{setting.key}: {setting.meaning}"
    facts: dict[str, Any] = {
        "type": setting.kind,
        "default": "" if setting.kind == "section" else _value_text(setting),
        "choices": ", ".join(setting.choices),
        "bounds": setting.bounds,
        "example": setting.example,
        "also": ", ".join(setting.aliases),
        "file": setting.file,
    }
    yield from (f"  {name:<9}{text}" for name, text in facts.items() if text)


def _value_text(setting: "Setting") -> str:
    """The default as a run file has it."""
    if setting.required:
        return "none"
    return setting.default if isinstance(setting.default, str) else dumps(setting.default).decode()


def _unknown_key(key: str) -> ConfigError:
    names = [setting.key for setting in every_setting()]
    close = [name for name in names if key in name.rpartition(".")[2]] or get_close_matches(
        key, names, n=1
    )
    quoted = " or ".join(f'"{name}"' for name in close[:5])
    move = f"Did you mean {quoted}? " if close else ""
    return ConfigError(
        f'setting "{key}"', "there is no such setting.", f"{move}See `studio config list`."
    )
