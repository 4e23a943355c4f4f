"""How a person wants the screen: theme, keys, notification; kept in `screen.yaml`."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path

from textual.binding import Binding

from engines.core.codec import JsonObject
from engines.core.errors import ConfigError, suggest_name
from engines.core.frozen import frozen
from engines.core.settings import derived, setting
from studio.tui.drawing.themes import NAMES

FILE = "screen.yaml"
VALUES: Mapping[str, Sequence[str | bool | None]] = {
    "theme": (None, *NAMES),
    "ascii": (None, True, False),
    **dict.fromkeys(("mouse", "low_bandwidth", "bell", "desktop"), (True, False)),
}
"""What a setting may be; `auto` is None in the file. A command is any."""
NOTIFICATION = ("bell", "desktop", "command")
"""Settings that stand below `notify:` in the file."""


@frozen
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


MEANING = {
    declared.name: declared.metadata["description"]
    for declared in fields(ScreenSettings)
    if declared.name not in ("keys", "place")
}


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

    tree: JsonObject = {
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
    from studio.config.tree import Key, read_yaml_file

    file = read_yaml_file(path)
    settings: JsonObject = {}
    top = dict(file.tree)
    for section in ("notify", "keys"):
        if (inside := top.pop(section, None)) is not None and not isinstance(inside, dict):
            place = f"{file.places[section,].text}: {section}"
            raise ConfigError(place, "it holds no keys.", "Write key: value lines.")
        settings[section] = inside or {}
    notify, keys = settings.pop("notify"), settings.pop("keys")
    sections: tuple[tuple[Key, JsonObject], ...] = (((), top), (("notify",), notify))
    for above, values in sections:
        for name, value in values.items():
            place = f"{file.places[*above, name].text}: {name}"
            known = [known for known in MEANING if (known in NOTIFICATION) == bool(above)]
            if name not in known:
                raise ConfigError(place, "there is no such setting.", suggest_name(name, known))
            settings[name] = _check_value(name, value, place)
    settings["keys"] = {
        name: ",".join(canonical_key(key) for key in _split_keys(value))
        for name, value in keys.items()
    }
    return ScreenSettings(**settings, place=str(path))


def _check_value(name: str, value: object, place: str) -> object:
    if isinstance(value, (list, dict)):
        raise ConfigError(place, "it is a list or a group, not one value.", "Write it on one line.")
    if name == "command":
        try:
            shlex.split(str(value or ""))
        except ValueError as error:
            raise ConfigError(
                place, f"the command has a quote that does not end ({error}).", "Close it."
            ) from error
        return str(value or "")
    value = None if value == "auto" else value
    if value not in VALUES[name]:
        known = ["auto" if each is None else str(each).lower() for each in VALUES[name]]
        raise ConfigError(
            place, f'"{value}" is none of its values.', suggest_name(str(value), known)
        )
    return value


def _split_keys(value: object) -> list[str]:
    parts = [str(part) for part in value] if isinstance(value, list) else [str(value)]
    return [key.strip() for part in parts for key in ([part] if part == "," else part.split(","))]


def canonical_key(key: str) -> str:
    """A key by the name the screen knows it by: `?` is `question_mark`."""
    if len(key) != 1:
        return key
    return next(iter(Binding.make_bindings([(key, "none", "")]))).key
