"""Reading YAML for its places: which line a key or a mention of another file stands on.

Owns marks and the errors of broken files. Does not compose: `studio.config.compose` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from engines.core.errors import ConfigError
from engines.record.seal import refuse_altered
from engines.record.yaml_text import QUICK_LOADER
from studio.config.tree import Key

MOST_VALUES = 100_000
"""Of a file: a few lines of aliases to aliases stand for millions."""

ParsedFiles = dict[Path, yaml.Node | None]
"""What stands in each file that one composition has read."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key got its value."""

    text: str
    override: bool = False


def parse_yaml(file: Path) -> yaml.Node | None:
    refuse_altered(file)
    try:
        text = file.read_text(encoding="utf-8")
        try:
            node = yaml.compose(text, Loader=QUICK_LOADER)
        except yaml.MarkedYAMLError:
            node = yaml.compose(text, Loader=yaml.SafeLoader)  # which has the better words
    except yaml.MarkedYAMLError as error:
        raise syntax_error(file, error) from error
    except (UnicodeDecodeError, yaml.reader.ReaderError) as error:
        raise ConfigError(str(file), f"It is not UTF-8 text: {error}.", "Save it so.") from error
    except RecursionError as error:
        cause = "It is nested too deeply to be read."
        raise ConfigError(str(file), cause, "Write it flatter.") from error
    except OSError as error:
        cause = f"It cannot be read: {error.strerror or error}."
        raise ConfigError(str(file), cause, "Check its permissions.") from error
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{file}:1", "The file holds no keys.", "Write key: value lines.")
    if node is not None and (size := _expanded_size(node, {})) > MOST_VALUES:
        holds = "itself" if size == math.inf else f"{size:,.0f} values"
        raise ConfigError(str(file), f"By its YAML aliases it holds {holds}.", "Write them out.")
    return node


def _expanded_size(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values stand there once aliases are followed; inf where a value holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf  # met again while it is counted: it holds itself
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        known[id(node)] = 1 + sum(_expanded_size(part, known) for part in inner)
    return known[id(node)]


def syntax_error(file: Path, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    named = mark.name if mark and Path(mark.name).is_file() else str(file)
    place = f"{named}:{mark.line + 1}:{mark.column + 1}" if mark else named
    cause = f"The YAML is broken: {error.problem or error.context}."
    move = "Look at indentation, quotes and colons there."
    if "\\t" in cause:
        move = "Indent with spaces: YAML takes no tab there."
    return ConfigError(place, cause, move)


def find_defaults(
    file: Path, group: str, folders: Sequence[Path], nodes: ParsedFiles
) -> Iterator[tuple[str, str]]:
    """Config names in `defaults` lists, with file:line, through all files they reach.

    Reading them all here also finds broken YAML with its column before Hydra looks.
    """
    if file in nodes:
        return
    nodes[file] = parse_yaml(file)
    for entry in _default_entries(nodes[file]):
        names = [entry.value]
        if isinstance(entry, yaml.MappingNode):
            names = [
                f"{key.value.split()[-1].split('@')[0]}/{option.value}"
                for key, value in entry.value
                for option in (value.value if isinstance(value, yaml.SequenceNode) else [value])
                if isinstance(option, yaml.ScalarNode)
            ]
        for name in names:
            target = str(name).split("@")[0].removesuffix(".yaml")
            absolute = target.startswith("/") or not group
            target = target.lstrip("/") if absolute else f"{group}/{target}"
            if target == "_self_":
                continue
            yield target, f"{file}:{entry.start_mark.line + 1}"
            if found := find_config(target, folders):
                yield from find_defaults(found, target.rpartition("/")[0], folders, nodes)


def _default_entries(node: yaml.Node | None) -> list[yaml.Node]:
    for key, value in node.value if node else ():
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            return list(value.value)
    return []


def find_config(target: str, folders: Sequence[Path]) -> Path | None:
    files = (folder / f"{target}.yaml" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def config_positions(
    target: str, package: str, folders: Sequence[Path], nodes: ParsedFiles
) -> Iterator[tuple[Key, Place]]:
    file = find_config(target, folders)
    mount = tuple(package.split(".")) if package and package != "_global_" else ()
    if file is not None:
        node = nodes[file] if file in nodes else parse_yaml(file)
        yield from _mounted_positions(node, mount, file)


def file_positions(file: Path, mount: Key) -> Iterator[tuple[Key, Place]]:
    """Every key of a file that is mounted below `mount`, with its line."""
    return _mounted_positions(parse_yaml(file), mount, file)


def _mounted_positions(
    node: yaml.Node | None, mount: Key, file: Path
) -> Iterator[tuple[Key, Place]]:
    if mount:
        yield mount, Place(f"{file}:1")
    yield from _node_positions(node, mount, file)


def _node_positions(node: yaml.Node | None, key: Key, file: Path) -> Iterator[tuple[Key, Place]]:
    named: list[tuple[str, yaml.Node, yaml.Node]] = []  # each value with what begins its line
    if isinstance(node, yaml.MappingNode):
        named = [(str(name.value), name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        named = [(str(number), value, value) for number, value in enumerate(node.value)]
    for name, first, value in named:
        inner = (*key, name)
        yield inner, Place(f"{file}:{first.start_mark.line + 1}")
        yield from _node_positions(value, inner, file)
