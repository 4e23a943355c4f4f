"""A YAML file as it is read for a run file: its values, and the line of each of its keys.

Owns the errors of broken files. Does not compose: `studio.config.compose` does.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engines.core.errors import ConfigError
from engines.record.seal import refuse_altered
from engines.record.yaml_text import QUICK_LOADER
from studio.config.tree import Key, Tree, map_tree

MOST_VALUES = 100_000
"""Of a file: a few lines of aliases to aliases stand for millions."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key got its value."""

    text: str
    override: bool = False


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The values of one file with the places of their keys."""

    path: Path
    tree: Tree
    places: dict[Key, Place]
    package: str | None  # of its line `# @package NAME`


class _Loader(QUICK_LOADER):  # type: ignore[misc]
    """Reads numbers and refuses repeated keys as OmegaConf does, which Hydra reads files with."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        names = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names and key.value != "<<":
                problem = f"found duplicate key {key.value}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            names.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 takes a number without a point for a text: 1e-5.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)
_PACKAGE = re.compile(r"#\s*@package\s+(\S+)\s*")


def read_yaml_file(path: Path) -> YamlFile:
    """Read the values and places of a file. Raises ConfigError: it is broken, by its line."""
    node = parse_yaml(path)
    try:
        tree = _Loader("").construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        raise syntax_error(path, error) from error
    except ValueError as error:  # as `!!int x`
        cause = f"A value in it cannot be read: {error}."
        raise ConfigError(str(path), cause, "Correct it.") from error
    places = dict(_node_places(node, (), path))
    return YamlFile(path, map_tree(tree), places, _package_of(path))


def _package_of(file: Path) -> str | None:
    """Return what `# @package NAME` says in front of the first key."""
    for line in file.read_text(encoding="utf-8-sig").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if match := _PACKAGE.fullmatch(line.strip()):
            return match[1]
    return None


def parse_yaml(file: Path) -> yaml.Node | None:
    """Return the file's mapping as PyYAML reads it; None of an empty file. Raises ConfigError."""
    refuse_altered(file)
    try:
        text = file.read_text(encoding="utf-8")
        try:
            node = yaml.compose(text, Loader=_Loader)
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


def _expanded_size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Return how many values a node holds once aliases are followed; inf where it holds itself."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # met again while it is counted: it holds itself
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        sizes[id(node)] = 1 + sum(_expanded_size(part, sizes) for part in inner)
    return sizes[id(node)]


def syntax_error(file: Path, error: yaml.MarkedYAMLError) -> ConfigError:
    """Return the refusal of a broken file, with line and column."""
    mark = error.problem_mark or error.context_mark
    place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
    cause = f"The YAML is broken: {error.problem or error.context}."
    move = "Look at indentation, quotes and colons there."
    if "\\t" in cause:
        move = "Indent with spaces: YAML takes no tab there."
    return ConfigError(place, cause, move)


def _node_places(node: yaml.Node | None, key: Key, file: Path) -> Iterator[tuple[Key, Place]]:
    named: list[tuple[str, yaml.Node, yaml.Node]] = []  # each value with what begins its line
    if isinstance(node, yaml.MappingNode):
        named = [(str(name.value), name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        named = [(str(number), value, value) for number, value in enumerate(node.value)]
    for name, first, value in named:
        inner = (*key, name)
        yield inner, Place(f"{file}:{first.start_mark.line + 1}")
        yield from _node_places(value, inner, file)
