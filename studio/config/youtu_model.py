"""A model as Youtu-Agent writes it, in our names.

There a model has three blocks: `model_provider` says where it is, `model_settings` how
an agent samples from it, `model_params` how everything else does. Owns how these become
one of our roles. What it leaves in the blocks has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping

from engines.core.errors import ConfigError
from studio.config.aliases import move_value
from studio.config.compose import ComposedConfig, resolve
from studio.config.tree import ABSENT, Key, get_value, pop_value

PROVIDER, SETTINGS, PARAMS = "model_provider", "model_settings", "model_params"
SPOKEN = "chat.completions"

_SAMPLING = ("temperature", "top_p", "max_tokens")
_REQUEST = {
    ("extra_body",): ("extra_body",),
    ("extra_headers",): ("headers",),
    ("extra_args", "timeout"): ("timeout_s",),
    ("frequency_penalty",): ("extra_body", "frequency_penalty"),
    ("presence_penalty",): ("extra_body", "presence_penalty"),
}


def flatten(composed: ComposedConfig, role: Key, environ: Mapping[str, str]) -> None:
    """Move the blocks below `role` to our names, in place; does nothing where there are none.

    An agent samples by its settings and else by its params; a judge the other way round.

    Raises:
        ConfigError: a setting is given in both spellings.
    """
    model = get_value(composed.tree, role)
    if not isinstance(model, dict) or not {PROVIDER, SETTINGS, PARAMS} & set(model):
        return
    provider = (*role, PROVIDER)
    name = get_value(composed.tree, (*provider, "model"))
    if name is not ABSENT and name is not None:
        model[PROVIDER]["model"] = f"openai:{name}"
    for field in ("model", "base_url", "api_key"):
        move_value(composed, (*provider, field), (*role, field))
    kind = get_value(composed.tree, (*provider, "type"))
    if kind is not ABSENT:
        spoken = value_of(composed, kind, environ)
        model[PROVIDER]["type"] = None if spoken == SPOKEN else spoken
    first, second = (PARAMS, SETTINGS) if role == ("judge",) else (SETTINGS, PARAMS)
    for block in (first, second):
        for field in _SAMPLING:
            given = get_value(composed.tree, (*role, block, field))
            if given is None:
                pop_value(composed.tree, (*role, block, field))
            elif block == first or get_value(composed.tree, (*role, field)) is ABSENT:
                move_value(composed, (*role, block, field), (*role, field))
            elif given == get_value(composed.tree, (*role, field)):
                pop_value(composed.tree, (*role, block, field))
        for theirs, ours in _REQUEST.items():
            move_value(composed, (*role, block, *theirs), (*role, *ours))
        pop_value(composed.tree, (*role, block, "include_usage"))  # usage is always asked for
    for block in (PROVIDER, SETTINGS, PARAMS):
        if without_empty(model.get(block)) is None:
            model.pop(block, None)


def value_of(composed: ComposedConfig, written: object, environ: Mapping[str, str]) -> object:
    """What a text comes to once interpolated; None where it cannot be resolved."""
    try:
        return resolve(ComposedConfig(composed.path, {"it": written}, {}), environ)["it"]
    except ConfigError:
        return None


def without_empty(tree: object) -> object:
    """A tree without its nulls and empty sections; None when that leaves nothing."""
    if not isinstance(tree, dict):
        return tree
    kept = {key: without_empty(value) for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value is not None} or None
