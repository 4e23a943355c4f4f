"""`studio config`: what every setting of a run file and of the screen means."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engines.core.codec import dumps
from engines.core.errors import ConfigError
from studio.commands import AsJson, argument, flag
from studio.render.json import print_result
from studio.render.lines import table, to_stderr, wrap_text
from studio.secrets.sanitize import one_line

if TYPE_CHECKING:
    from studio.config.settings.reference import Setting

SCREEN_FILE = "screen.yaml"
_AS_POLICY = ("reflector.", "judge.", "agent.model.")
"""Settings of a model are listed once, as the policy's."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def config() -> None:
    """List and explain the settings of run files and of the screen.

    Run files may name variables of the environment as ${oc.env:NAME}. What the environment does
    not set is read from a file .env in the working folder, as lines of NAME=VALUE.

    Examples:
        studio config
        studio config explain practice.group_size
    """


@app.command("list")
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


@app.command()
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
