"""The resolved run file as text, without a secret in it.

Owns what stands in a run folder's `run.yaml`. `studio.config.loading` reads it back.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from engines.record.yaml_text import dump_yaml, escape_interpolation
from engines.secrets.mask import MASK, NO_SECRETS, Mask
from studio.config.settings.run import RunConfig
from studio.config.tree import Key, Tree, dotted_name, map_tree, replace_value, walk
from studio.secrets.run_files import is_secret, storable_text


def dump_run_yaml(config: RunConfig, mask: Mask = NO_SECRETS) -> str:
    """The resolved run file as text: it loads to an equal config, and holds no secret.

    A secret that came from `${…}` is written as that text. One written as its value in a file or
    override, also beside a `${…}`, becomes `***`, and loading it asks for the key again.
    `mask` takes secrets out of all other texts too.
    """
    tree = storable_tree(config.model_dump(mode="python"), (), config.origins, mask)
    head = "# A resolved run file. Secrets stand here by the name of their variable only.\n"
    return head + dump_yaml(tree)


def storable_tree(
    settings: Mapping[str, Any], at: Key, origins: Mapping[str, str], mask: Mask = NO_SECRETS
) -> Tree:
    """Settings that stand at `at` as they may be written: see `dump_run_yaml`."""
    tree: Tree = map_tree(settings)
    for below, value in walk(tree):
        key = (*at, *below)
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value
        if (origin := origins.get(dotted_name(key))) is not None:
            plain = storable_text(key, origin)
        elif plain is not None and is_secret(key, plain):
            plain = MASK
        elif isinstance(plain, str) and "${" in plain:
            plain = escape_interpolation(plain)
        if isinstance(plain, str) and origin is None:
            plain = mask(plain)
        replace_value(tree, below, plain)
    return tree
