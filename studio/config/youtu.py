"""Running on Youtu-Agent's configs as they stand.

Owns where a checkout keeps its configs, data, verifiers and `.env`, how a model is written there,
and what is said about keys that have no counterpart here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engines.core.errors import ConfigError, suggest_name
from studio.config.aliases import apply_aliases, move_value, similar_names, suggest_key
from studio.config.compose import ComposedConfig, resolve
from studio.config.env_file import read_env_file
from studio.config.settings.base import declared_settings
from studio.config.settings.evaluation import VerifierConfig
from studio.config.settings.run import RunConfig, every_setting, section_of
from studio.config.tree import ABSENT, Key, dotted_name, get_value, pop_value
from studio.config.yaml_positions import Place

Kind = Literal["practice", "eval"]
PROVIDER, SETTINGS, PARAMS = "model_provider", "model_settings", "model_params"
_SAMPLING = ("temperature", "top_p", "max_tokens")
_REQUEST = {
    ("extra_body",): ("extra_body",),
    ("extra_headers",): ("headers",),
    ("extra_args", "timeout"): ("timeout_s",),
    ("frequency_penalty",): ("extra_body", "frequency_penalty"),
    ("presence_penalty",): ("extra_body", "presence_penalty"),
}


@dataclass(frozen=True, slots=True)
class YoutuConfig:
    """One config of a checkout. `root` is the checkout, `file` the config in it."""

    root: Path
    file: Path
    kind: Kind

    @property
    def data_folders(self) -> tuple[Path, ...]:
        return (self.root / "utu" / "practice" / "dataset", self.root / "data")

    @property
    def verifiers(self) -> Path:
        return self.root / "utu" / "practice" / "verify"

    @property
    def env_file(self) -> Path:
        return self.root / ".env"

    def environment(self) -> dict[str, str]:
        """What `.env` sets; empty where there is none. Raises ConfigError: it cannot be read."""
        return read_env_file(self.env_file, foreign=True)


def find_youtu_config(folder: str, name: str, kind: Kind) -> YoutuConfig:
    """`configs/KIND/NAME.yaml` of a checkout or its configs folder. Raises ConfigError: none."""
    given = Path(folder).expanduser().resolve()
    configs = given if (given / kind).is_dir() else given / "configs"
    home = configs / kind
    if not home.is_dir():
        move = "Give the folder of a Youtu-Agent checkout, or its configs folder."
        raise ConfigError(f"--from-youtu {folder}", f"There is no configs/{kind} in it.", move)
    file = (home / f"{name.removesuffix('.yaml')}.yaml").resolve()
    if file.is_file() and file.is_relative_to(home):
        root = configs.parent if configs.name == "configs" else configs
        return YoutuConfig(root, file, kind)
    names = sorted(str(f.relative_to(home).with_suffix("")) for f in home.glob("**/*.yaml"))
    cause = f"There is no {name}.yaml in {home}." if name else f"It names a config of {home}."
    move = suggest_name(name, names)
    raise ConfigError(f"--config-name {name}" if name else "--config-name", cause, move)


def translate(composed: ComposedConfig, config: YoutuConfig, environ: Mapping[str, str]) -> None:
    """Put a composed config into our names, in place; what is left out becomes a warning."""
    notes: list[str] = []
    if config.kind == "eval":
        _mount_root(composed)
    pop_value(composed.tree, ("evaluation", "exp_id"))  # names its table rows; the run has its own
    _drop_mixed(composed, notes, config, environ)
    judges: tuple[Key, ...] = (("evaluation", "judge_model"), ("judge_model",))
    judged = any(get_value(composed.tree, key) is not ABSENT for key in judges)
    _split_temperatures(composed, notes, config)
    apply_aliases(composed)
    for role in (("agent", "model"), ("judge",)):
        flatten(composed, role, environ)
    _let_agent_bring_policy(composed, environ)
    if judged and composed.tree.get("verifier") is None:
        composed.tree["verifier"] = {"name": "judge"}
        notes.append("no verify_filename is set: the judge model judges, by its own rubric here")
    composed.warnings += [*notes, *_leave_out(composed, config)]


def flatten(composed: ComposedConfig, role: Key, environ: Mapping[str, str]) -> None:
    """Move the blocks of a model below `role` to our names, in place, where there are any.

    `model_provider` says where it is, `model_settings` how an agent samples from it, and
    `model_params` how everything else does; what stays in them has no counterpart. An agent samples
    by its settings and else by its params; a judge the other way round.
    """
    model = get_value(composed.tree, role)
    if not isinstance(model, dict) or not {PROVIDER, SETTINGS, PARAMS} & set(model):
        return
    provider = (*role, PROVIDER)
    name = get_value(composed.tree, (*provider, "model"))
    if name not in (ABSENT, None):
        model[PROVIDER]["model"] = f"openai:{name}"
    for field in ("model", "base_url", "api_key"):
        move_value(composed, (*provider, field), (*role, field))
    kind = get_value(composed.tree, (*provider, "type"))
    if kind is not ABSENT:
        protocol = value_of(composed, kind, environ)
        model[PROVIDER]["type"] = None if protocol == "chat.completions" else protocol
    first, second = (PARAMS, SETTINGS) if role == ("judge",) else (SETTINGS, PARAMS)
    for block in (first, second):
        for field in _SAMPLING:
            theirs, ours = (*role, block, field), (*role, field)
            given, known = get_value(composed.tree, theirs), get_value(composed.tree, ours)
            if given is not None and (block == first or known is ABSENT):
                move_value(composed, theirs, ours)
            elif given in (None, known):
                pop_value(composed.tree, theirs)
        for old, new in _REQUEST.items():
            move_value(composed, (*role, block, *old), (*role, *new))
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


def _mount_root(composed: ComposedConfig) -> None:
    """An eval config is what a practice config mounts below `evaluation`."""
    for name in ("dataset", "type", "question_field", "gt_field"):
        move_value(composed, ("data", name), ("evaluation", "data", name))
    for name in ("concurrency", "pass_k"):
        move_value(composed, (name,), ("evaluation", name))


def _drop_mixed(
    composed: ComposedConfig, notes: list[str], config: YoutuConfig, environ: Mapping[str, str]
) -> None:
    key: Key = ("evaluation", "data", "type")
    place = composed.place(key)
    written = pop_value(composed.tree, key)
    if written is not ABSENT:
        kind = value_of(composed, written, environ)
        if kind not in ("single", None):
            instead = "the set is measured as a single one"
            notes.append(_unsupported_text(config, place, f"data.type {kind}", instead))


def _split_temperatures(composed: ComposedConfig, notes: list[str], config: YoutuConfig) -> None:
    """There, rollouts have a temperature of their own; the agent's is for evaluation."""
    for at in (("evaluation", "agent", "model"), ("agent", "model")):
        own, params = ((*at, block, "temperature") for block in (SETTINGS, PARAMS))
        for key in (own, params):
            if get_value(composed.tree, key) is None:
                pop_value(composed.tree, key)
        first = params if get_value(composed.tree, own) is ABSENT else own
        temperature = get_value(composed.tree, first)
        move_value(composed, first, ("evaluation", "temperature"))
        place = composed.place(params)
        if pop_value(composed.tree, params) not in (ABSENT, temperature):
            instead = _NO_COUNTERPART["model_params"]
            notes.append(_unsupported_text(config, place, "model_params.temperature", instead))


def _let_agent_bring_policy(composed: ComposedConfig, environ: Mapping[str, str]) -> None:
    """The agent's model practises, unless an override puts another in its place."""
    tree = composed.tree
    if isinstance(tree.get("policy"), str):
        tree["policy"] = {"model": tree["policy"]}
    given = get_value(tree, ("policy", "model"))
    if given is ABSENT:
        defaults = {"model": "openai:${oc.env:UTU_LLM_MODEL}"}
        for field in ("base_url", "api_key"):
            if f"UTU_LLM_{field.upper()}" in environ:
                defaults[field] = f"${{oc.env:UTU_LLM_{field.upper()}}}"
        if tree.get("agent") is None:
            tree["agent"] = {}
        agent = tree["agent"]
        own = agent.get("model") if isinstance(agent, dict) else ABSENT
        own = {} if own is None else own
        if isinstance(own, dict) and "model" not in own:
            agent["model"] = {**defaults, **own}
    elif not str(given).startswith("openai:"):
        for field in ("base_url", "api_key", "headers", "extra_body"):
            pop_value(tree, ("agent", "model", field))
    move_value(composed, ("agent", "model"), ("policy",))


_NO_COUNTERPART = {
    "agent.max_turns": "the agent answers in one turn",
    "agent.toolkits": "the agent has no tools",
    "agent.type": "one agent answers by itself",
    "agent.context_manager": "the agent sees the whole problem, once",
    "agent.env": "the agent has no environment",
    "agent.enabled_skills": "the agent has no tools",
    "agent.stop_at_tool_names": "the agent has no tools",
    "model_provider.type": "the endpoint is asked for chat completions",
    "model_settings": "it is not sent",
    "model_params": "the agent's model_settings are used",
    "termination_max_tokens": "max_tokens bounds a reply",
    "evaluation.tags": "a set is measured whole, or evaluation.limit of it",
    "evaluation.agent_type": "it is a label only",
    "evaluation.model_name": "it is a label only",
    "db_url": "results are kept in the workspace",
    "eval_method": "the verifier judges",
}
"""Keys that Youtu-Agent has and we have not, by the end of their dotted name, with what
happens instead."""

_TYPO = 0.85
"""Similarity from which an unknown key is taken for a typing error: epoch and epochs have 0.91."""


def _leave_out(composed: ComposedConfig, config: YoutuConfig) -> Iterator[str]:
    """Take out what files say beyond our settings, one line each.

    An unknown key of an override stays, and is refused as in any run file.

    Raises:
        ConfigError: a key is a near miss of a setting, which would silently keep its default.
    """
    for key in list(_unsupported_keys(composed.tree, ())):
        below = (at for at in composed.places if at[: len(key)] == key)
        place = composed.place(next(below, key))
        known = _unsupported_reason(key)
        if known is None and place.override:
            continue
        value = without_empty(pop_value(composed.tree, key))
        if get_value(composed.tree, key[:-1]) == {} and section_of(key[:-1]) is None:
            pop_value(composed.tree, key[:-1])  # the last of its block
        name = dotted_name(key)
        if value is None or (name, value) == ("agent.type", "simple"):
            continue
        shown = ".".join(key[1:] if len(key) > 1 else key)
        if known is not None:
            inside = f" ({', '.join(value)})" if isinstance(value, dict) else ""
            inside = inside or (f" {value}" if shown.endswith("type") else "")
            yield _unsupported_text(config, place, shown + inside, known)
        else:
            where = _relative_place(config, place)
            parent = section_of(key[:-1]) or RunConfig
            if close := similar_names(key, declared_settings(parent), cutoff=_TYPO):
                move = f'Did you mean "{dotted_name((*key[:-1], close[0]))}"?'
                raise ConfigError(where, f'"{name}" is unknown.', move)
            hint = suggest_key(key, declared_settings(parent), every_setting())
            yield f'{where}: "{name}" is unknown and left out. {hint}'


def _unsupported_keys(tree: object, key: Key) -> Iterator[Key]:
    section = section_of(key)
    if not isinstance(tree, dict) or section in (None, VerifierConfig):
        return
    for name, value in tree.items():
        inner = (*key, name)
        # Turns of their agents are calls of tools; ours has them only where its kind is given.
        theirs = inner == ("agent", "max_turns") and "kind" not in tree
        if name in declared_settings(section) and not theirs:
            yield from _unsupported_keys(value, inner)
        elif name in (PROVIDER, SETTINGS, PARAMS) and value:
            yield from ((*inner, field) for field in value)
        else:
            yield inner


def _unsupported_reason(key: Key) -> str | None:
    name = dotted_name(key)
    if key[-2:-1] in ((SETTINGS,), (PARAMS,)):
        return _NO_COUNTERPART[key[-2]]
    every = _NO_COUNTERPART.items()
    return next((why for end, why in every if f".{name}".endswith(f".{end}")), None)


def _unsupported_text(config: YoutuConfig, place: Place, what: str, instead: str) -> str:
    where = _relative_place(config, place)
    return f"{where}: {what} has no counterpart here yet: {instead}"


def _relative_place(config: YoutuConfig, place: Place) -> str:
    return place.text.removeprefix(f"{config.root}/")
