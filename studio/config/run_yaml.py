"""What is stored of a run's settings: the text of `run.yaml`, and what results depend on.

The text holds no secret, and `studio.config.loading` reads it back. The fingerprint is what a
resume compares, each setting written so that it means the same in a moved workspace.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from engines.core.codec import JsonMapping, JsonObject, digest
from engines.core.types import Names
from engines.grpo.settings import GRPOSettings, SFTSettings
from engines.policies.hf_local.settings import LoraSettings
from engines.record.yaml_text import dump_yaml, escape_interpolation
from engines.secrets.mask import MASK, NO_SECRETS, Mask
from engines.training_free.settings import TrainingFreeSettings
from studio.config.settings import base, policy, run
from studio.config.tree import Key, Tree, dotted_name, get_value, map_tree, replace_value, walk
from studio.secrets.run_files import is_secret, names_secret, storable_text, without_secrets


def dump_run_yaml(config: run.RunConfig, mask: Mask = NO_SECRETS) -> str:
    """The resolved run file as text: it loads to an equal config, and holds no secret.

    A secret that came from `${…}` is written as that text. One written as its value in a file or
    override, also beside a `${…}`, becomes `***`, and loading it asks for the key again.
    `mask` takes secrets out of all other texts too.
    """
    tree = storable_tree(config.model_dump(mode="python"), (), config.origins, mask)
    head = "# A resolved run file. Secrets stand here by the name of their variable only.\n"
    return head + dump_yaml(tree)


def storable_tree(
    settings: JsonObject, at: Key, origins: Mapping[str, str], mask: Mask = NO_SECRETS
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


_MODEL_FIELDS = ("model", "temperature", "top_p", "max_tokens", "extra_body")


def _names(section: str, kind: type) -> Names:
    return tuple(f"{section}.{name}" for name in base.declared_settings(kind))


ACTING_FIELDS = tuple(
    f"agent.{name}"
    for name in (
        *("tools", "team", "tool_protocol", "context_tokens", "command", "function", "files"),
        *("problem_as", "answer_from", "network"),
    )
)
"""Settings of agents that act. `files` are digests of one's own programs, by name."""
RESULT_FIELDS = (
    "seed",
    "practice.algorithm",
    "policy.adapter",
    "policy.local.dtype",
    "policy.local.quantise",
    *_names("grpo", GRPOSettings),
    "grpo.reject_kl_above",
    "grpo.reject_grad_norm_above",
    *_names("sft", SFTSettings),
    *_names("grpo.lora", LoraSettings),
    *(f"{role}.{name}" for role in ("policy", "reflector", "judge") for name in _MODEL_FIELDS),
    *(f"agent.{name}" for name in ("instructions", "experiences", "cite", "kind", "max_turns")),
    *ACTING_FIELDS,
    "agent.models",
    *(f"data.{name}" for name in ("practice", "digest", "fields", "truncate", "shuffle")),
    "practice.batch_size",
    "practice.group_size",
    "practice.sampling",
    "practice.weight_steps",
    "practice.dropout",
    "practice.reflect_on_worsened",
    *_names("practice", TrainingFreeSettings),
    *_names("lint", run.LintConfig),
    "verifier",
    "library.name",
    "library.start",
    "library.select_above",
)
"""Settings a resumed run must share; all others (epochs, keys, URLs, deadlines, review,
evaluation, concurrency) may change freely. `policy.temperature` is that of rollouts."""


def fingerprint(
    config: run.RunConfig, data_digest: str = "", verifier: JsonObject | None = None
) -> JsonObject:
    """What results depend on, as plain JSON values keyed by `RESULT_FIELDS`.

    `data_digest` is of the practised data: its path may change, its content not. `verifier` comes
    with what its files hold; None: as the run file says it.
    """
    plain = config.model_dump(mode="json")
    for role in ("policy", "reflector", "judge"):
        settings = config.role(role).model_dump(mode="json")
        settings["extra_body"] = without_secrets(
            _with_origins(config, role, settings["extra_body"])
        )
        settings["model"] = _portable_model(settings["model"])
        if settings["adapter"] is not None:  # a run's, as a moved workspace has it too
            settings["adapter"] = settings["adapter"].rpartition("/runs/")[2]
        plain[role] = settings
    plain["data"] |= {
        "practice": Path(config.data.practice or "").stem.removesuffix(".jsonl"),
        "digest": data_digest,
    }
    plain["agent"] |= {"files": {}} | _portable_programs(plain["agent"])
    embedding = config.lint.embedding
    plain["lint"]["embedding"] = None if embedding is None else embedding.model
    plain["verifier"] = without_secrets(config.verifier.spec) if verifier is None else verifier
    return {name: get_value(plain, tuple(name.split("."))) for name in RESULT_FIELDS}


def _with_origins(config: run.RunConfig, role: policy.Role, value: Any, key: Names = ()) -> Any:
    """Fields of a request, with what came from `${…}` as that text instead of its value.

    A short hash tells values apart, except those of variables that are named as secrets.
    """
    if isinstance(value, dict):
        return {k: _with_origins(config, role, inner, (*key, str(k))) for k, inner in value.items()}
    if isinstance(value, list):
        return [_with_origins(config, role, v, (*key, str(n))) for n, v in enumerate(value)]
    section = role if getattr(config, role) is not None else "policy"
    origin = config.origins.get(".".join((section, "extra_body", *key)))
    if origin is None:
        return value
    return origin if names_secret(origin) else f"{origin} #{digest(value, 4)}"


def differences(old: JsonMapping, new: JsonMapping) -> tuple[tuple[str, Any, Any], ...]:
    """Fields in which two fingerprints differ, with both values.

    A field that the older one lacks is a setting that did not exist when its run began: it
    is no change of the user's.
    """
    names = [*RESULT_FIELDS, *sorted(set(old) - {*RESULT_FIELDS, "cassette"})]
    return tuple((n, old[n], new.get(n)) for n in names if n in old and old[n] != new.get(n))


def _portable_programs(agent: JsonObject) -> JsonObject:
    """One's own programs by the names of their files, in whatever folder they are."""

    def shorten(text: str) -> str:
        return Path(text).name if text.startswith("/") else text

    def shorten_all(section: JsonObject) -> JsonObject:
        function = section["function"]
        return {
            "command": [shorten(part) for part in section["command"]],
            "function": None if function is None else shorten(function),
            **({"source": shorten(section["source"])} if section.get("source") else {}),
        }

    tools = [without_secrets({**tool, **shorten_all(tool)}) for tool in agent["tools"]]
    models = {name: _portable_settings(model) for name, model in agent["models"].items()}
    team = agent["team"] and {
        name: _portable_settings(said) if isinstance(said, dict) else said
        for name, said in agent["team"].items()
    }
    return {**shorten_all(agent), "tools": tools, "models": models, "team": team}


def _portable_settings(model: JsonObject) -> JsonObject:
    """What replies of a model depend on, without where and how fast it is reached."""
    kept = {name: model[name] for name in _MODEL_FIELDS}
    found: JsonObject = without_secrets({**kept, "model": _portable_model(model["model"])})
    return found


def _portable_model(model: str) -> str:
    scheme, _, rest = model.partition(":")
    if scheme == "hf" and Path(rest).is_absolute():
        return f"hf:{Path(rest).name}"  # a digest of its files identifies it
    if scheme == "handoff":
        return f"handoff:{Path(rest).name}"
    return f"replay:{Path(rest).stem}" if scheme == "replay" else model
