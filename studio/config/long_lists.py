"""Keeps long lists of experiences away from OmegaConf while a run file is composed.

It takes a third of a millisecond for each value, and reads each file four times: an agent with
10,000 experiences cost 19 s. The list is cut out of the text, and put back into what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from engines.record.yaml_text import load_yaml
from studio.config.tree import REFERENCE, map_tree, walk_texts
from studio.config.yaml_positions import ParsedFiles

_TEXT = "tag:yaml.org,2002:str"
LONG = 200
"""Entries from which a list is kept away."""


@contextmanager
def keep_long_lists_away(nodes: ParsedFiles) -> Iterator[Mapping[str, list[Any]]]:
    """Let OmegaConf read a name in the place of each long list in these files.

    Gives the lists by those names. Files are read by `OmegaConf.load`, also by Hydra: the caller
    holds the lock that keeps others from composing.
    """
    lists: dict[str, list[Any]] = {}
    texts: dict[Path, str] = {}
    for file, node in nodes.items():
        if (found := _long_list(node)) is None:
            continue
        text = file.read_text(encoding="utf-8")
        start, end = found[0].end_mark.index, found[1].end_mark.index
        end = len(text[:end].rstrip(" "))  # not the indent of the next key
        name = f"long-list-{len(lists)}"
        # What follows keeps its line; PyYAML takes a while for each of them.
        gap = "\n" * text.count("\n", start, end) if text[end:].strip() else "\n"
        cut = f"{text[:start]}: {name}{gap}{text[end:]}"
        try:
            # An alias of what stands in the list leads nowhere in the rest, `? experiences` is cut
            # amiss, and the value of an alias stands before its key.
            whole = name in [value for _, value in walk_texts(load_yaml(cut))]
            whole = whole and start <= found[1].start_mark.index
            if not whole or _has_twins(found[1]):
                continue
            entries = [_entry_of(node) for node in found[1].value]
        except (yaml.YAMLError, ValueError):  # OmegaConf has the words for it
            continue
        # OmegaConf resolves a reference; a mark of the encoding moves all.
        if not _is_plain(entries) or text.startswith("\ufeff"):
            continue
        lists[name] = entries
        texts[file.resolve()] = cut
    read = OmegaConf.load

    def read_cut(file: Any) -> Any:
        # A path has a name, too: its last part.
        place = Path(file if isinstance(file, str | Path) else str(file.name)).resolve()
        return read(StringIO(texts[place])) if place in texts else read(file)

    if texts:
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
    return [] if isinstance(tree, list) and len(tree) >= LONG and _is_plain(tree) else tree


def _entry_of(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode) and {value.tag for _, value in node.value} == {_TEXT}:
        return {key.value: value.value for key, value in node.value}  # in an eighth of the time
    return yaml.constructor.SafeConstructor().construct_document(node)


def _is_plain(entries: Any) -> bool:
    return not any("${" in text and REFERENCE.search(text) for _, text in walk_texts(entries))


def _has_twins(entries: yaml.Node) -> bool:
    """Whether an entry has a key twice, which OmegaConf refuses and PyYAML does not."""
    pairs = [entry.value for entry in entries.value if isinstance(entry, yaml.MappingNode)]
    return any(len({str(key.value) for key, _ in entry}) < len(entry) for entry in pairs)


def _long_list(node: yaml.Node | None) -> tuple[yaml.Node, yaml.Node] | None:
    """Key and value of the long list of experiences in a file, at its top or below `agent`."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "agent" and (inner := _long_list(value)):
            return inner
        if key.value == "experiences" and isinstance(value, yaml.SequenceNode):
            return (key, value) if len(value.value) >= LONG else None
    return None
