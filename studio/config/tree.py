"""Settings as nested dicts and lists, before they are validated, and the keys into them."""

import re
from collections.abc import Callable, Iterable
from typing import Any

Key = tuple[str, ...]
Tree = dict[str, Any]

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
