"""Running on Youtu-Agent's configs as they stand.

Owns how a model is written there, what is refused because it does not exist here, and what is said
about keys that have no counterpart.
"""

from collections.abc import Iterator

from engines.core.errors import ConfigError
from studio.config.aliases import apply_aliases, move_value, suggest_key
from studio.config.compose import ComposedConfig, compose_run, resolve
from studio.config.settings import base, run
from studio.config.source import YoutuConfig
from studio.config.tree import (
    ABSENT,
    Key,
    Place,
    Variables,
    dotted_name,
    get_value,
    pop_value,
    set_value,
)

PROVIDER, SETTINGS, PARAMS = "model_provider", "model_settings", "model_params"
_SAMPLING = ("temperature", "top_p", "max_tokens")
_REQUEST = {
    ("extra_body",): ("extra_body",),
    ("extra_headers",): ("headers",),
    ("extra_args", "timeout"): ("timeout_s",),
    ("frequency_penalty",): ("extra_body", "frequency_penalty"),
    ("presence_penalty",): ("extra_body", "presence_penalty"),
}


def translate(
    composed: ComposedConfig, config: YoutuConfig, environ: Variables, *, own_agent: bool
) -> None:
    """Put a composed config into our names, in place; what is left out becomes a warning.

    Without `own_agent` another agent will take the place of the config's.

    Raises ConfigError: the agent needs what does not exist here.
    """
    notes: list[str] = []
    if (name := pop_value(composed.tree, ("agent_config",))) not in (ABSENT, None):
        _mount_agent_config(composed, config, str(name))
    if config.kind == "eval":
        mount_root(composed)
    pop_value(composed.tree, ("evaluation", "exp_id"))  # names its table rows; the run has its own
    judges: tuple[Key, ...] = (("evaluation", "judge_model"), ("judge_model",))
    judged = any(get_value(composed.tree, key) is not ABSENT for key in judges)
    _split_temperatures(composed)
    apply_aliases(composed)
    if own_agent:
        _refuse_missing(composed, config, environ)
    for role in (("agent", "model"), ("judge",)):
        flatten(composed, role, environ)
    _let_agent_bring_policy(composed)
    for role in (("policy",), ("judge",)):
        _fall_back(composed, role, environ)
    if judged and composed.tree.get("verifier") is None:
        composed.tree["verifier"] = {"name": "judge"}
        notes.append("no verify_filename is set: the judge model judges, by its own rubric here")
    composed.warnings += [*notes, *_leave_out(composed, config)]


def flatten(composed: ComposedConfig, role: Key, environ: Variables) -> None:
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
        if value_of(composed, name, environ) == "":
            raise composed.error(
                (*provider, "model"),
                "The name of the model is empty.",
                "Give the model a name there, or in the variable that it names.",
            )
        model[PROVIDER]["model"] = f"openai:{name}"
    for field in ("model", "base_url", "api_key"):
        move_value(composed, (*provider, field), (*role, field))
    kind = get_value(composed.tree, (*provider, "type"))
    if kind is not ABSENT:
        protocol = value_of(composed, kind, environ)
        model[PROVIDER]["type"] = None if protocol in ("chat.completions", "") else protocol
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


def value_of(composed: ComposedConfig, written: object, environ: Variables) -> object:
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


def mount_root(composed: ComposedConfig) -> None:
    """An eval config is what a practice config mounts below `evaluation`."""
    for name in ("dataset", "type", "question_field", "gt_field"):
        move_value(composed, ("data", name), ("evaluation", "data", name))
    for name in ("concurrency", "pass_k"):
        move_value(composed, (name,), ("evaluation", name))


def _split_temperatures(composed: ComposedConfig) -> None:
    """There, rollouts have a temperature of their own; the agent's is for evaluation."""
    for at in (("evaluation", "agent", "model"), ("agent", "model")):
        keys = [(*at, block, "temperature") for block in (SETTINGS, PARAMS)]
        given = [key for key in keys if get_value(composed.tree, key) not in (None, ABSENT)]
        if given:  # of both blocks the agent goes by the first
            move_value(composed, given[0], ("evaluation", "temperature"))
        for key in keys:
            pop_value(composed.tree, key)


def _let_agent_bring_policy(composed: ComposedConfig) -> None:
    """The agent's model practises, unless an override puts another in its place."""
    tree = composed.tree
    if isinstance(tree.get("policy"), str):
        tree["policy"] = {"model": tree["policy"]}
    given = get_value(tree, ("policy", "model"))
    if given is ABSENT:
        if tree.get("agent") is None:
            tree["agent"] = {}
        agent = tree["agent"]
        own = agent.get("model") if isinstance(agent, dict) else ABSENT
        own = {} if own is None or own is ABSENT else own
        if isinstance(own, dict) and "model" not in own:
            agent["model"] = {"model": "openai:${oc.env:UTU_LLM_MODEL}", **own}
    elif not str(given).startswith("openai:"):
        for field in ("base_url", "api_key", "headers", "extra_body"):
            pop_value(tree, ("agent", "model", field))
    move_value(composed, ("agent", "model"), ("policy",))


def _fall_back(composed: ComposedConfig, role: Key, environ: Variables) -> None:
    """The address and key that their client takes from variables where a model names none."""
    model = get_value(composed.tree, role)
    if not isinstance(model, dict) or not str(model.get("model")).startswith("openai:"):
        return
    for field in ("base_url", "api_key"):
        written, variable = model.get(field), f"UTU_LLM_{field.upper()}"
        is_empty = written is None or value_of(composed, written, environ) == ""
        if is_empty and environ.get(variable):
            model[field] = f"${{oc.env:{variable}}}"
        elif is_empty:
            model.pop(field, None)


def _mount_agent_config(composed: ComposedConfig, config: YoutuConfig, name: str) -> None:
    """Put `configs/agents/NAME.yaml` in the place of the agent that the config mounts."""
    file = config.agent_file(name)
    agent = compose_run(file, (), ())
    at: Key = ("agent",) if config.kind == "eval" else ("evaluation", "agent")
    places = {key: place for key, place in composed.places.items() if key[: len(at)] != at}
    composed.places = {**places, **{(*at, *key): place for key, place in agent.places.items()}}
    set_value(composed.tree, at, agent.tree)


_COMPUTES = {"python_executor", "calculator"}
"""Toolkits that only work out what a model can reason out: it tries without them, and is told."""


def _refuse_missing(composed: ComposedConfig, config: YoutuConfig, environ: Variables) -> None:
    """Refuse agents whose parts do not exist here: as a bare chat they would be another agent.

    An override that takes the part away (`agent.toolkits=null`) runs without it knowingly.
    """
    agent = composed.tree.get("agent")
    if not isinstance(agent, dict):
        return
    kind = value_of(composed, agent.pop("type", None), environ)
    env = agent.get("env")
    missing = {
        "type": [] if kind in (None, "simple") else [kind],
        "toolkits": sorted(set(agent.get("toolkits") or ()) - _COMPUTES),
        "env": [env.get("name")] if isinstance(env, dict) else [],
        "enabled_skills": agent.get("enabled_skills") or [],
    }
    for field, names in missing.items():
        if not (named := ", ".join(str(name) for name in names if name not in (None, "base"))):
            continue
        cause = f"The agent has {field} that do not exist here: {named}."
        move = f"Write agent.{field}=null to run it knowingly without."
        if field == "type":
            cause = f"The agent is of type {named}: agents of several roles do not exist here."
            move = "Choose a config whose agent is of type simple, or name one: agent_config=NAME."
        below = (at for at in composed.places if at[:2] == ("agent", field))
        place = composed.place(next(below, ("agent", field)))
        raise ConfigError(_relative_place(config, place), cause, move)


_NO_COUNTERPART = {
    "agent.max_turns": "the agent answers in one turn",
    "agent.toolkits": "the agent has no tools",
    "agent.context_manager": "the agent sees the whole problem, once",
    "agent.env": "the agent has no environment",
    "agent.enabled_skills": "the agent has no tools",
    "agent.runner": "the agent answers in one turn",
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
"""Keys that Youtu-Agent has and we have not, by the end of their dotted name, with what happens
instead."""


def _leave_out(composed: ComposedConfig, config: YoutuConfig) -> Iterator[str]:
    """Take out what files say beyond our settings, one line each.

    An unknown key of an override stays, and is refused as in any run file.
    """
    for key in list(_unsupported_keys(composed.tree, ())):
        below = (at for at in composed.places if at[: len(key)] == key)
        place = composed.place(next(below, key))
        reason = _unsupported_reason(key)
        if reason is None and place.override:
            continue
        value = without_empty(pop_value(composed.tree, key))
        if get_value(composed.tree, key[:-1]) == {} and run.section_of(key[:-1]) is None:
            pop_value(composed.tree, key[:-1])  # the last of its block
        name = dotted_name(key)
        if value is None or (name, value) == ("agent.type", "simple"):
            continue
        where = _relative_place(config, place)
        if reason is not None:
            said = ", ".join(value) if isinstance(value, dict) else value
            yield f"{where}: {name} ({said}) has no counterpart here yet: {reason}"
        else:
            parent = run.section_of(key[:-1]) or run.RunConfig
            hint = suggest_key(key, base.declared_settings(parent), run.every_setting())
            yield f'{where}: "{name}" is unknown and left out. {hint}'


def _unsupported_keys(tree: object, key: Key) -> Iterator[Key]:
    section = run.section_of(key)
    if not isinstance(tree, dict) or section in (None, run.VerifierConfig):
        return
    for name, value in tree.items():
        inner = (*key, name)
        # Turns of their agents are calls of tools; ours has them only where its kind is given.
        theirs = inner == ("agent", "max_turns") and "kind" not in tree
        if name in base.declared_settings(section) and not theirs:
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


def _relative_place(config: YoutuConfig, place: Place) -> str:
    return place.text.removeprefix(f"{config.root}/")
