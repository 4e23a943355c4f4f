"""Loading a run file where no model will be asked: it needs no key.

Owns which settings then count as absent. A dry run loads so, and the linter of `studio review`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from engines.core.text.masking import MASK
from studio.config.compose import ComposedConfig
from studio.config.tree import Key, Tree, dotted_name, get_value, pop_value, walk_texts
from studio.secrets.rules import is_masked, is_secret, names_secret

_UNCONDITIONAL = re.compile(r"oc\.env\s*:\s*(\w+)\s*}")  # one with a default is never missing


def unknown_keys(composed: ComposedConfig, environ: Mapping[str, str]) -> dict[Key, str]:
    """What only a model is asked with, and the variable that is not set; "" for a masked value."""
    found: dict[Key, str] = {}
    for key, text in walk_texts(composed.tree):
        if is_masked(key, text):
            found[key] = ""
        elif is_secret(key) or names_secret(text) or key[-1] == "base_url":
            for name in _UNCONDITIONAL.findall(text):
                if name not in environ:
                    found[key] = name
    return found


def masked_environment(
    composed: ComposedConfig, unknown: Iterable[Key], environ: Mapping[str, str]
) -> dict[str, str]:
    """The environment with a mask for every variable that such a setting misses."""
    texts = " ".join(str(get_value(composed.tree, key)) for key in unknown)
    return {**dict.fromkeys(_UNCONDITIONAL.findall(texts), MASK), **environ}


def leave_out(tree: Tree) -> None:
    """Take keys and addresses away that are not known; in other places the mask does no harm."""
    for key, value in walk_texts(tree):
        if MASK in value and key[-1] in ("api_key", "base_url"):
            pop_value(tree, key)


def left_out_notes(unknown: Mapping[Key, str]) -> tuple[str, ...]:
    """What counted as absent, a sentence each."""
    return tuple(
        f"{dotted_name(key)} is left out, since "
        + (f"the environment variable {name} is not set" if name else "it is masked")
        + ": only a run needs it."
        for key, name in unknown.items()
    )
