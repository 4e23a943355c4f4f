"""Keeps long lists of experiences away from OmegaConf while a run file is composed.

It takes a third of a millisecond for each value, and reads each file four times: an agent with
10,000 experiences cost 19 s. A name stands in the place of the list until the rest is composed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from studio.config.tree import REFERENCE, get_value, map_tree, replace_value, walk_texts

LONG = 200
"""Entries from which a list is kept away."""
# OmegaConf's own rules, read in C where PyYAML was built with it: a tenth of the time.
_LOADER: Any = type(
    "Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader), get_yaml_loader()), {}
)


@contextmanager
def keep_long_lists_away() -> Iterator[Mapping[str, list[Any]]]:
    """Let OmegaConf read a name in the place of each long list; gives the lists by those names.

    Files are read by `OmegaConf.load`, also by Hydra: the caller holds the lock that keeps others
    from composing.
    """
    lists: dict[str, list[Any]] = {}
    trees: dict[str, Any] = {}

    def read_cut(file: Any) -> Any:
        name = str(file if isinstance(file, str | Path) else file.name)
        if name not in trees:
            with open(name, encoding="utf-8") as stream:
                tree = yaml.load(stream, Loader=_LOADER)
            for key in (("experiences",), ("agent", "experiences")):
                if _is_long(found := get_value(tree, key)):
                    stand_in = f"long-list-{len(lists)}"
                    lists[stand_in] = found
                    replace_value(tree, key, stand_in)
            trees[name] = tree
        return OmegaConf.create({} if trees[name] is None else trees[name])

    read = OmegaConf.load
    OmegaConf.load = read_cut  # type: ignore[method-assign,assignment]
    try:
        yield lists
    finally:
        OmegaConf.load = staticmethod(read)  # type: ignore[method-assign]


def put_back(tree: Any, lists: Mapping[str, list[Any]]) -> Any:
    """The tree with the lists in the places of their names."""

    def list_of(value: Any) -> Any:
        return map_tree(lists[value]) if isinstance(value, str) and value in lists else value

    return map_tree(tree, list_of) if lists else tree


def without_plain_lists(tree: Any, asked: str) -> Any:
    """Without the entries of long lists, but where all references (`asked`) may name them."""
    if isinstance(tree, dict):
        rest = {name: value for name, value in tree.items() if str(name) not in asked}
        return tree | {name: without_plain_lists(value, asked) for name, value in rest.items()}
    return [] if _is_long(tree) else tree


def _is_long(found: Any) -> bool:
    """Whether it is a long list in which nothing refers to anything else."""
    texts = walk_texts(found) if isinstance(found, list) and len(found) >= LONG else None
    return texts is not None and not any("${" in t and REFERENCE.search(t) for _, t in texts)
