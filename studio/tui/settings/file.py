"""`screen.yaml`: how a person wants the screen, as a file of a few lines.

Owns its spelling and its errors. The values are `studio.tui.settings.values.ScreenSettings`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.binding import Binding

from engines.core.errors import ConfigError
from studio.tui.drawing.themes import NAMES
from studio.tui.settings.values import ScreenSettings

if TYPE_CHECKING:
    import yaml

FILE = "screen.yaml"
_TRUE = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_AUTO = ("auto", "null", "~", "")
_TOP = ("theme", "ascii", "mouse", "low_bandwidth", "notify", "keys")
_NOTIFY = ("bell", "desktop", "command")


def user_settings_path() -> Path:
    """Where the person's settings for every workspace lie."""
    return Path.home() / ".config" / "practice-studio" / FILE


def read_settings(workspace: Path) -> ScreenSettings:
    """The workspace's settings, else the person's own, else the shipped ones.

    Raises:
        ConfigError: the file cannot be read or says something that nobody understands.
    """
    for path in (workspace / FILE, user_settings_path()):
        if path.exists():
            return _read(path)
    return ScreenSettings(place=str(workspace / FILE))


def write_settings(settings: ScreenSettings, workspace: Path) -> Path:
    """Write the workspace's settings; returns the file.

    Raises:
        RecordError: it cannot be written.
    """
    from engines.record.appender import make_folder, write_atomic

    path = workspace / FILE
    make_folder(workspace)
    write_atomic(path, format_settings(settings).encode())
    return path


def format_settings(settings: ScreenSettings) -> str:
    """The file's text: every setting, so that the file explains itself."""
    import yaml

    tree: dict[str, Any] = {
        "theme": settings.theme or "auto",
        "ascii": "auto" if settings.ascii is None else settings.ascii,
        "mouse": settings.mouse,
        "low_bandwidth": settings.low_bandwidth,
        "notify": {
            "bell": settings.bell,
            "desktop": settings.desktop,
            "command": settings.command,
        },
        "keys": dict(settings.keys),
    }
    head = "# How the screen looks and calls. The ids of keys stand in its help (?).\n"
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=96)


def _read(path: Path) -> ScreenSettings:
    from studio.config.yaml_positions import parse_yaml

    node = parse_yaml(path)
    settings = ScreenSettings(place=str(path))
    for name, value, place in _fields(node, path, _TOP, ""):
        match name:
            case "theme":
                settings = replace(settings, theme=_parse_theme(value, place))
            case "ascii":
                settings = replace(settings, ascii=_parse_switch(value, place, auto=True))
            case "mouse":
                settings = replace(settings, mouse=_parse_bool(value, place))
            case "low_bandwidth":
                settings = replace(settings, low_bandwidth=_parse_bool(value, place))
            case "notify":
                settings = _parse_notify(settings, value, path)
            case "keys":
                found = {
                    key: _parse_keys(one, at) for key, one, at in _fields(value, path, None, "keys")
                }
                settings = replace(settings, keys=found)
    return settings


def _parse_notify(settings: ScreenSettings, node: yaml.Node, path: Path) -> ScreenSettings:
    for name, value, place in _fields(node, path, _NOTIFY, "notify"):
        match name:
            case "bell":
                settings = replace(settings, bell=_parse_bool(value, place))
            case "desktop":
                settings = replace(settings, desktop=_parse_bool(value, place))
            case "command":
                settings = replace(settings, command=_parse_command(value, place))
    return settings


def _fields(
    node: yaml.Node | None, path: Path, known: tuple[str, ...] | None, inside: str
) -> Iterator[tuple[str, yaml.Node, str]]:
    """Name, value and place of each key; of `known` names only, where they are given."""
    import yaml

    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in _AUTO):
        return
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise ConfigError(
            f"{path}:{line}: {inside}", "it holds no keys.", "Write key: value lines."
        )
    seen: set[str] = set()
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        place = f"{path}:{key.start_mark.line + 1}: {f'{inside}.' if inside else ''}{name}"
        if known is not None and name not in known:
            near = get_close_matches(name, known, n=1)
            move = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
            raise ConfigError(place, "there is no such setting.", move)
        if name in seen:
            raise ConfigError(place, "it stands there twice.", "Leave one of them out.")
        seen.add(name)
        yield name, value, place


def _parse_text(node: yaml.Node, place: str) -> str:
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(place, "it is a list or a group, not one value.", "Write it on one line.")
    return str(node.value).strip()


def _parse_switch(node: yaml.Node, place: str, *, auto: bool = False) -> bool | None:
    text = _parse_text(node, place).lower()
    if auto and text in _AUTO:
        return None
    if text not in _TRUE:
        choices = "true, false or auto" if auto else "true or false"
        raise ConfigError(place, f'"{text}" is neither on nor off.', f"Write {choices}.")
    return _TRUE[text]


def _parse_bool(node: yaml.Node, place: str) -> bool:
    return _parse_switch(node, place) is True


def _parse_theme(node: yaml.Node, place: str) -> str | None:
    text = _parse_text(node, place)
    if text in _AUTO:
        return None
    if text not in NAMES:
        near = get_close_matches(text, NAMES, n=1)
        there = f"There are: auto, {', '.join(NAMES)}."
        move = f"Did you mean {near[0]}?" if near else there
        raise ConfigError(place, f'there is no theme "{text}".', move)
    return text


def _parse_command(node: yaml.Node, place: str) -> str:
    text = _parse_text(node, place)
    try:
        shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            place, f"the command has a quote that does not end ({error}).", "Close it."
        ) from error
    return text


def _parse_keys(node: yaml.Node, place: str) -> str:
    import yaml

    parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
    written = [_parse_text(part, place) for part in parts]
    single = [one for text in written for one in ([text] if text == "," else text.split(","))]
    return ",".join(canonical_key(one.strip()) for one in single)


def canonical_key(key: str) -> str:
    """A key by the name the screen knows it by: `?` is `question_mark`."""
    if len(key) != 1:
        return key
    return next(iter(Binding.make_bindings([(key, "none", "")]))).key
