"""How a person wants the screen: theme, keys, notification; kept in `screen.yaml`."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.binding import Binding

from engines.core.errors import ConfigError
from engines.core.settings import derived, setting
from studio.tui.drawing.themes import NAMES

if TYPE_CHECKING:
    import yaml

FILE = "screen.yaml"
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_AUTO = ("auto", "null", "~", "")
CHOICES: Mapping[str, Mapping[str, str | bool | None]] = {
    "theme": {**dict.fromkeys(_AUTO), **dict(zip(NAMES, NAMES, strict=True))},
    "ascii": {**dict.fromkeys(_AUTO), **_SWITCH},
    **dict.fromkeys(("mouse", "low_bandwidth", "bell", "desktop"), _SWITCH),
}
"""What may be written for a setting, and what it means; a command is any."""
NOTIFICATION = ("bell", "desktop", "command")
"""Settings that stand below `notify:` in the file."""


@dataclass(frozen=True, slots=True)
class ScreenSettings:
    theme: str | None = setting(
        None, "auto: by NO_COLOR, TERM, SSH and background", examples=["studio-light"]
    )
    ascii: bool | None = setting(
        None, "ASCII borders and signs; auto: by the locale", examples=["true"]
    )
    mouse: bool = setting(True, "off: the terminal selects; at the next start")
    low_bandwidth: bool = setting(False, "5 frames a second, not 10; at the next start")
    bell: bool = setting(True, "rings once when a run begins to need you")
    desktop: bool = setting(True, "a note of the terminal then (OSC 9 and 777)")
    command: str = setting(
        "", "started then; the text is its last argument", examples=["ntfy publish practice"]
    )
    keys: Mapping[str, str] = field(  # key id → keys, see keymap
        default_factory=dict,
        metadata={
            "description": "keys by their ids, which `?` shows",
            "examples": ["{review.approve: f5}"],
        },
    )
    place: str = derived("screen.yaml")  # the file they come from, for messages


def user_settings_path() -> Path:
    return Path.home() / ".config" / "practice-studio" / FILE


def read_settings(workspace: Path) -> ScreenSettings:
    """The workspace's settings, else the person's own, else the shipped ones."""
    for path in (workspace / FILE, user_settings_path()):
        if path.exists():
            return _read(path)
    return ScreenSettings(place=str(workspace / FILE))


def write_settings(settings: ScreenSettings, workspace: Path) -> Path:
    """Write the workspace's settings; returns the file."""
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
        "notify": {name: getattr(settings, name) for name in NOTIFICATION},
        "keys": dict(settings.keys),
    }
    head = "# How the screen looks and calls. The ids of keys stand in its help (?).\n"
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=96)


def _read(path: Path) -> ScreenSettings:
    from studio.config.tree import parse_yaml

    given: dict[str, Any] = {}
    known = (*(name for name in CHOICES if name not in NOTIFICATION), "notify", "keys")
    for name, value, place in _fields(parse_yaml(path), path, known, ""):
        if name == "keys":
            keys = _fields(value, path, None, name)
            given[name] = {key: _parse_keys(one, at) for key, one, at in keys}
        elif name == "notify":
            for part, one, at in _fields(value, path, NOTIFICATION, name):
                given[part] = _parse_value(part, one, at)
        else:
            given[name] = _parse_value(name, value, place)
    return ScreenSettings(**given, place=str(path))


def _fields(
    node: "yaml.Node | None", path: Path, known: tuple[str, ...] | None, inside: str
) -> "Iterator[tuple[str, yaml.Node, str]]":
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


def _parse_text(node: "yaml.Node", place: str) -> str:
    import yaml

    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(place, "it is a list or a group, not one value.", "Write it on one line.")
    return str(node.value).strip()


def _parse_value(name: str, node: "yaml.Node", place: str) -> str | bool | None:
    text = _parse_text(node, place)
    if name == "command":
        try:
            shlex.split(text)
        except ValueError as error:
            cause = f"the command has a quote that does not end ({error})."
            raise ConfigError(place, cause, "Close it.") from error
        return text
    known = CHOICES[name]
    if text.lower() not in known:
        near = get_close_matches(text, known, n=1)
        there = ", ".join(filter(None, known))
        move = f"Did you mean {near[0]}?" if near else f"There are: {there}."
        raise ConfigError(place, f'"{text}" is none of its values.', move)
    return known[text.lower()]


def _parse_keys(node: "yaml.Node", place: str) -> str:
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
