"""Settings as nested dicts and lists before they are validated, and the YAML files they come from.

Owns the keys into them, the line of each key of a file, and the errors of broken files. Does not
compose: `studio.config.compose` does.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from engines.core.errors import ConfigError
from engines.core.frozen import frozen
from engines.record import seal, yaml_text

Key = tuple[str, ...]
Tree = dict[str, Any]
Variables = Mapping[str, str]
"""Variables of an environment, by name."""

ABSENT = object()
# Not what is escaped: an odd number of backslashes stands before that.
REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{\s*([^:,}$]*)")


def dotted_name(key: Key) -> str:
    return ".".join(key)


def walk(tree: Any, key: Key = ()) -> list[tuple[Key, Any]]:
    """Every leaf with its key; list elements are keyed by their number."""
    found: list[tuple[Key, Any]] = []

    def visit(at: Key, value: Any) -> None:
        if isinstance(value, dict):
            children: Iterable[tuple[Any, Any]] = value.items()
        elif isinstance(value, list | tuple):
            children = enumerate(value)
        else:
            found.append((at, value))
            return
        for name, inner in children:
            below = (*at, str(name))
            if isinstance(inner, str):  # most are, and a call costs more than all the rest
                found.append((below, inner))
            else:
                visit(below, inner)

    visit(key, tree)
    return found


def walk_texts(tree: Any) -> list[tuple[Key, str]]:
    """Every leaf that is a text, as `walk` has it; a list, so that the tree may be changed."""
    return [(key, value) for key, value in walk(tree) if isinstance(value, str)]


def map_tree(tree: Any, change: Callable[[Any], Any] = lambda value: value) -> Any:
    """A copy with every value changed; its keys are texts and its tuples lists.

    YAML reads a bare 1 or true as no text, and safe YAML has no tuples.
    """
    if isinstance(tree, dict):
        return {str(name): map_tree(value, change) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [map_tree(value, change) for value in tree]
    return change(tree)


def get_value(tree: Any, key: Key) -> Any:
    """ABSENT where there is none."""
    for part in key:
        if isinstance(tree, dict) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return ABSENT
    return tree


def pop_value(tree: Any, key: Key) -> Any:
    """The value at a key, no longer in the tree; or ABSENT."""
    parent = get_value(tree, key[:-1])
    return parent.pop(key[-1], ABSENT) if isinstance(parent, dict) else ABSENT


def set_value(tree: Any, key: Key, value: Any) -> None:
    for part in key[:-1]:
        # A null section is an empty one: `evaluation:` with nothing below it.
        if tree.get(part) is None:
            tree[part] = {}
        tree = tree[part]
        if not isinstance(tree, dict):
            return
    tree[key[-1]] = value


def replace_value(tree: Any, key: Key, value: Any) -> None:
    parent = get_value(tree, key[:-1])
    parent[int(key[-1]) if isinstance(parent, list) else key[-1]] = value


def merge_value(tree: Tree, key: Key, value: Any) -> None:
    """Put a value at a key: mappings are merged, all else is replaced, what is above is made.

    Raises TypeError: a list stands above the key.
    """
    if key:
        inner = tree.get(key[0])
        if len(key) == 1:
            tree[key[0]] = _merged(inner, value)
            return
        if isinstance(inner, list):
            raise TypeError(dotted_name(key))
        if not isinstance(inner, dict):
            inner = tree[key[0]] = {}
        merge_value(inner, key[1:], value)
        return
    for name, own in value.items():
        tree[name] = _merged(tree[name], own) if name in tree else own


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        merged = dict(old)
        merge_value(merged, (), new)
        return merged
    return old if new == "???" and old is not None else new


MOST_VALUES = 100_000
"""Of a file: a few lines of aliases to aliases stand for millions."""


@frozen
class Place:
    """Where a key got its value."""

    text: str
    override: bool = False


@frozen
class YamlFile:
    """The values of one file with the places of their keys."""

    path: Path
    tree: Tree
    places: dict[Key, Place]
    package: str | None  # of its line `# @package NAME`


class _Loader(yaml_text.QUICK_LOADER):  # type: ignore[misc]
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
        raise ConfigError(
            str(path), f"A value in it cannot be read: {error}.", "Correct it."
        ) from error
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
    seal.refuse_altered(file)
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
        raise ConfigError(
            str(file), "It is nested too deeply to be read.", "Write it flatter."
        ) from error
    except OSError as error:
        raise ConfigError(
            str(file), f"It cannot be read: {error.strerror or error}.", "Check its permissions."
        ) from error
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
