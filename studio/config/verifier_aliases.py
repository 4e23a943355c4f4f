"""The ways to write `verifier:` in a run file, brought to one.

Owns the forms (a name, a mapping, a file, a list) and which verifier files are pinned to
their whole path. What a verifier's settings mean is `engines.verifiers.open`'s.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.verifiers.spec import find_file
from studio.config.compose import ComposedConfig, Tree, replace_value, walk


def normalise_verifier(composed: ComposedConfig) -> None:
    """Write every form as a mapping with a name, in place, with the places of its keys.

    A list becomes `{name: weighted, of: [...]}`, and what names a file or a function
    `{name: function, ...}`. What cannot be any of these is left for validation.

    Raises:
        ConfigError: the mapping is empty.
    """
    given = composed.tree.get("verifier")
    if given == {}:
        raise composed.error(
            ("verifier",), '"verifier" is empty.', "Name one: math, text or judge; or a file."
        )
    if isinstance(given, list):
        composed.tree["verifier"] = _add_name({"name": "weighted", "of": given})
        for key in [k for k in composed.places if k[0] == "verifier" and len(k) > 1]:
            composed.places["verifier", "of", *key[1:]] = composed.places.pop(key)
    elif given is not None:
        composed.tree["verifier"] = _add_name(given)


def _add_name(given: Any) -> Any:
    if isinstance(given, str):
        return {"name": given}
    if not isinstance(given, dict):
        return given
    if isinstance(entries := given.get("of"), list):
        given = {**given, "of": [_add_name(entry) for entry in entries]}
    elif isinstance(entries, dict):  # the one that is shaped
        given = {**given, "of": _add_name(entries)}
    if given.get("name") is not None:
        return given
    if "file" in given or "function" in given:
        return {**given, "name": "function"}
    return {**given, "name": "weighted"} if "of" in given else given


def pin_verifiers(
    composed: ComposedConfig, tree: Tree, roots: Sequence[Path], own: Sequence[Path], cwd: Path
) -> None:
    """Make verifier files absolute, unless they lie in one of the folders of `own`.

    Args:
        composed: tells what an override typed.
        tree: changed in place.
        roots: folders of lookup, in order.
        own: the workspace's and the shipped folder, whose names mean the same anywhere.
        cwd: where a path of an override is meant from.
    """
    for key, name in list(walk(tree.get("verifier"), ("verifier",))):
        if key[-1] != "file" or not isinstance(name, str) or not name.strip():
            continue
        typed = composed.place(key).override and (os.sep in name or "." in name)
        found = find_file(name, (cwd, *roots) if typed else roots)
        if found is None or any(found.is_relative_to(folder) for folder in own):
            continue  # what is nowhere is told where it is opened, with its line
        replace_value(tree, key, str(found.resolve()))
