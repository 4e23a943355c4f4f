"""Other spellings of our settings: aliases, plain texts, roles, and agent and eval files.

Owns the table of aliases, Youtu-Agent's field names, the rule for a setting with two names, and how
an agent file takes the place of a run file's agent.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from engines.core import errors, team
from studio.config.compose import ComposedConfig
from studio.config.settings.agent import AgentConfig
from studio.config.settings.base import declared_settings
from studio.config.tree import (
    ABSENT,
    REFERENCE,
    Key,
    Place,
    Tree,
    dotted_name,
    get_value,
    pop_value,
    read_yaml_file,
    replace_value,
    set_value,
    walk,
    walk_texts,
)

ALIASES = {
    "evaluation.agent": "agent",
    "agent.agent": "agent",
    "data.practice_dataset_name": "data.practice",
    "data.rollout_data_truncate": "data.truncate",
    "data.shuffle_data": "data.shuffle",
    "practice.rollout_data_truncate": "data.truncate",
    "practice.shuffle_data": "data.shuffle",
    "practice.grpo_n": "practice.group_size",
    "practice.rollout_concurrency": "practice.concurrency",
    "practice.rollout_temperature": "practice.temperature",
    "practice.task_timeout": "practice.task_timeout_s",
    "practice.num_experiences_per_query": "practice.experiences_per_query",
    "practice.do_eval": "evaluation.do_eval",
    "practice.eval_strategy": "evaluation.strategy",
    "practice.eval_steps": "evaluation.every_steps",
    "practice.eval_data": "evaluation.data",
    "practice.eval_data_truncate": "evaluation.limit",
    "evaluation.pass_k": "evaluation.k",
    "evaluation.verify_filename": "verifier.file",
    "evaluation.verify_func_name": "verifier.function",
    "verifier.verify_filename": "verifier.file",
    "verifier.verify_func_name": "verifier.function",
    "verify_filename": "verifier.file",
    "verify_func_name": "verifier.function",
    "evaluation.judge_model": "judge",
    "judge_model": "judge",
    "evaluation.judge_concurrency": "judge.concurrency",
    "judge_concurrency": "judge.concurrency",
    "tracing.endpoint": "tracing.base_url",
    "grpo.tensorboard": "tensorboard",
}
"""Alias → our name. Moved in this order: an agent mounted below `evaluation` comes first."""


def apply_aliases(composed: ComposedConfig) -> None:
    """Move every alias to our own name, in place, with the places of its keys.

    Of two spellings an override beats a file; otherwise ConfigError: a setting is given twice.
    """
    judge = composed.tree.get("judge")
    if isinstance(judge, str) and not judge.startswith("${"):
        composed.tree["judge"] = {"model": judge}  # so that judge_concurrency finds its place
    _rewrite_held_out(composed)
    for alias, name in ALIASES.items():
        move_value(composed, tuple(alias.split(".")), tuple(name.split(".")))
    _choose_verifier(composed)


def suggest_key(key: Key, siblings: Iterable[str], every: Iterable[str]) -> str:
    """The next move for an unknown key: the nearest of its `siblings`, else of `every` setting."""
    known, parent = sorted(siblings), dotted_name(key[:-1])
    aliases = [a.rpartition(".")[2] for a in ALIASES if a.rpartition(".")[0] == parent]
    if close := get_close_matches(key[-1], [*known, *aliases], n=1, cutoff=0.6):
        return f'Did you mean "{dotted_name((*key[:-1], close[0]))}"?'
    # Of settings with one name the first counts: practice comes before the stages of training.
    leaves = {name.rpartition(".")[2]: name for name in reversed((*every, *ALIASES))}
    if close := get_close_matches(key[-1], list(leaves), n=1, cutoff=0.7):
        return f'Did you mean "{leaves[close[0]]}"?'
    return f"Known here: {', '.join(known)}."


def move_value(composed: ComposedConfig, old: Key, new: Key) -> None:
    """Give the value at `old` its place at `new`, with the places of its keys; merge sections.

    Of two values an override beats a file; otherwise ConfigError: a setting is given twice.
    """
    value = pop_value(composed.tree, old)
    if value is ABSENT:
        return
    if old[: len(new)] == new and not isinstance(value, dict):
        # `agent.agent: x` is no mounted agent file; validation says what is wrong with it.
        set_value(composed.tree, old, value)
        return
    present = get_value(composed.tree, new)
    if isinstance(value, dict) and isinstance(present, dict):
        set_value(composed.tree, old, value)
        for name in list(value):
            composed.places.setdefault((*old, name), composed.place(old))
            move_value(composed, (*old, name), (*new, name))
        if not value:
            pop_value(composed.tree, old)
        return
    taken = new if present is not ABSENT else _text_section_above(composed.tree, new)
    if taken is not None:
        first, second = composed.place(old), composed.place(taken)
        if first.override == second.override:
            where = "" if first == second else f" (the other at {second.text})"
            cause = f'"{dotted_name(old)}" and "{dotted_name(taken)}" are two names of one setting'
            raise composed.error(old, f"{cause}{where}.", f'Keep "{dotted_name(taken)}".')
        if second.override:
            return
        pop_value(composed.tree, taken)
        composed.places = {k: p for k, p in composed.places.items() if k[: len(taken)] != taken}
    set_value(composed.tree, new, value)
    for key in [k for k in composed.places if k[: len(old)] == old]:
        composed.places[(*new, *key[len(old) :])] = composed.places.pop(key)


def _text_section_above(tree: Any, key: Key) -> Key | None:
    """The section above `key` that may be written as a text or a list, and is."""
    above = key[:1]
    if len(key) == 1 or above[0] not in ("policy", "judge", "verifier"):
        return None  # `evaluation: foo`; validation refuses it under its own name
    return above if isinstance(get_value(tree, above), str | list) else None


def _rewrite_held_out(composed: ComposedConfig) -> None:
    """Youtu-Agent's `evaluation.data: {dataset: NAME, type: single}` as our `data: NAME`."""
    at: Key = ("evaluation", "data")
    held_out = get_value(composed.tree, at)
    if not isinstance(held_out, dict):
        return
    for theirs, ours in (("question_field", "question"), ("gt_field", "answer")):
        if held_out.get(theirs) in (ours, None):  # as they are called here anyway
            held_out.pop(theirs, None)
        move_value(composed, (*at, theirs), ("data", "fields", ours))
    kind = held_out.pop("type", "single")
    if kind not in ("single", None):
        note = f"data.type {kind} has no counterpart here: the set is measured as a single one"
        composed.warnings.append(f"{composed.place((*at, 'type')).text}: {note}")
    if "dataset" in held_out and len(held_out) == 1:
        composed.tree["evaluation"]["data"] = held_out["dataset"]
        composed.places[at] = composed.place((*at, "dataset"))
    elif not held_out:
        del composed.tree["evaluation"]["data"]


def _choose_verifier(composed: ComposedConfig) -> None:
    """Of a name and a file the one that an override gives, where the other is a file's."""
    verifier = composed.tree.get("verifier")
    if not isinstance(verifier, dict) or not {"name", "file"} <= set(verifier):
        return
    by_name, by_file = (composed.place(("verifier", key)).override for key in ("name", "file"))
    if by_name != by_file:
        for key in ("file", "function") if by_name else ("name",):
            verifier.pop(key, None)


def normalise_verifier(composed: ComposedConfig) -> None:
    """Write every form as a mapping with a name, in place, with the places of its keys.

    A list becomes `{name: weighted, of: [...]}`, and what names a file or a function
    `{name: function, ...}`. What cannot be any of these is left for validation, but {} is refused.
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
    if isinstance(inner := given.get("of"), list):
        given = {**given, "of": [_add_name(entry) for entry in inner]}
    elif isinstance(inner, dict):  # the one that is shaped
        given = {**given, "of": _add_name(inner)}
    if given.get("name") is not None:
        return given
    if "file" in given or "function" in given:
        return {**given, "name": "function"}
    return {**given, "name": "weighted"} if "of" in given else given


ROLES = ("policy", "reflector", "judge")


def expand_roles(composed: ComposedConfig) -> None:
    """Write plain model names as mappings, and let roles take over from each other.

    A role without a `model` is the policy with some settings changed; an agent's own
    model is the policy where the run file sets none.
    """
    tree = composed.tree
    for name in ROLES:
        # Copied as written: resolving it would lose where its secrets came from.
        if (other := str(tree.get(name)).removeprefix("${").removesuffix("}")) in ROLES:
            tree[name] = tree.get(other) if other != name else None
    for key in model_keys(tree):
        if isinstance(model := get_value(tree, key), str):
            replace_value(tree, key, {"model": model})
    model = get_value(tree, ("agent", "model"))
    policy = tree.get("policy")
    if isinstance(model, dict) and policy is None:
        composed.places.setdefault(("policy",), composed.place(("agent", "model")))
        policy = tree["policy"] = dict(model)
    elif isinstance(model, dict) and isinstance(policy, dict):
        # A trained agent's weights come with it where the run file names the same model.
        is_trained = model.get("adapter") is not None and model.get("model") == policy.get("model")
        if "model" not in policy:
            policy = tree["policy"] = {**model, **policy}
        elif is_trained and "adapter" not in policy:
            policy["adapter"] = model["adapter"]
            place = composed.place(("agent", "model", "adapter"))
            composed.places.setdefault(("policy", "adapter"), place)
    for name in ("reflector", "judge"):
        role = tree.get(name)
        if isinstance(role, dict) and isinstance(policy, dict) and "model" not in role:
            own = ("temperature", "concurrency")
            shared = {key: value for key, value in policy.items() if key not in own}
            tree[name] = {**shared, **role}


def model_keys(tree: Tree) -> list[Key]:
    """Where a run file may name a model: roles, and those that its agent names."""
    tools = get_value(tree, ("agent", "tools"))
    numbers = range(len(tools)) if isinstance(tools, list) else ()
    named = get_value(tree, ("agent", "models"))
    return [
        *((name,) for name in ROLES),
        ("agent", "model"),
        *(("agent", "team", name) for name in team.FIXED),
        *(("agent", "tools", str(number), "model") for number in numbers),
        *(("agent", "models", name) for name in (named if isinstance(named, dict) else ())),
    ]


def read_endpoints(tree: Tree, origins: dict[str, str], environ: Mapping[str, str]) -> None:
    """Addresses and keys that the environment has for openai:MODEL, with where they came from."""
    for key in model_keys(tree):
        name, role = ".".join(key), get_value(tree, key)
        if not isinstance(role, dict) or not str(role.get("model")).startswith("openai:"):
            continue
        for field, variable in (("base_url", "OPENAI_BASE_URL"), ("api_key", "OPENAI_API_KEY")):
            if role.get(field) is None and environ.get(variable):
                role[field] = environ[variable]
                origins[f"{name}.{field}"] = f"${{oc.env:{variable}}}"


def share_temperature(composed: ComposedConfig, tree: Tree) -> None:
    """Of policy.temperature and practice.temperature the more specific one, the latter, wins."""
    given, practice = get_value(tree, ("policy", "temperature")), tree.setdefault("practice", {})
    if given not in (None, ABSENT) and isinstance(practice, dict) and "temperature" not in practice:
        practice["temperature"] = given
        composed.places["practice", "temperature"] = composed.place(("policy", "temperature"))


def mount_agent(composed: ComposedConfig, path: Path) -> None:
    """Put the file in the place of the run file's own agent; overrides of it still count.

    Raises ConfigError: it cannot be read, holds no agent, or refers to what is not its own.
    """
    path = path.expanduser()
    if not path.is_file():
        raise errors.ConfigError(
            f"--agent {path}",
            "There is no such file.",
            "Give the agent.yaml of a run folder, or another agent file.",
        )
    file = read_yaml_file(path)
    agent = file.tree
    mount: Key = ("agent",)
    if not agent:
        raise errors.ConfigError(
            str(path), "The agent file is empty.", "Give the agent.yaml of a run."
        )
    if list(agent) == ["agent"] and isinstance(agent["agent"], dict):
        agent, mount = agent["agent"], ()  # written as run files have it
    places: dict[Key, Place] = {("agent",): Place(f"{path}:1")}
    places |= {(*mount, *key): place for key, place in file.places.items()}
    typed = [key for key, place in composed.places.items() if key[0] == "agent" and place.override]
    kept = {key: get_value(composed.tree, key) for key in typed}
    if ("agent",) in kept:
        raise composed.error(
            ("agent",), "--agent puts another agent in its place.", "Leave one of them out."
        )
    composed.tree["agent"] = agent
    others = {k: p for k, p in composed.places.items() if k[0] != "agent" or k in kept}
    composed.places = {**places, **others}
    _refuse_references(composed)
    for key, value in kept.items():
        set_value(composed.tree, key, value)


_AGENT = frozenset(declared_settings(AgentConfig)) | {"agent", "type", "toolkits"}
_EVAL = frozenset(("exp_id", "agent", "data", "evaluation", "verifier", "concurrency", "pass_k"))


def mount_parts(composed: ComposedConfig) -> None:
    """Move the keys of agent and eval files to where a run file has them, in place.

    They stand elsewhere where such a file is run on its own, or mounted by its group alone
    (`/agents/practice: x`) and says itself of no package.
    """
    tree = composed.tree
    for group, known, to in (("agents", _AGENT, ("agent",)), ("eval", _EVAL, ())):
        at: Key = (group,)
        while isinstance(part := get_value(tree, at), dict) and part:
            if len(part) > 1 or known & set(part):
                for key, _ in walk(part):
                    places = ((*to, *key), ("evaluation", *key))
                    if any(get_value(tree, place) is not ABSENT for place in places):
                        pop_value(part, key)  # the run file's own goes before
                for name in list(part):
                    move_value(composed, (*at, name), (*to, name))
                pop_value(tree, (group,))
                break
            at = (*at, next(iter(part)))  # a folder of the group
    their_agent = "model" in tree and get_value(tree, ("agent", "instructions")) is not ABSENT
    if {"instructions", "experiences"} & set(tree) or their_agent:
        for name in sorted(_AGENT & set(tree) - {"agent"}):
            move_value(composed, (name,), ("agent", name))
        if get_value(tree, ("agent", "type")) == "simple":
            pop_value(tree, ("agent", "type"))
        _refuse_references(composed)


def _refuse_references(composed: ComposedConfig) -> None:
    """Agent files are passed around: one must not put the run file's secrets in a prompt."""
    for key, text in walk_texts(composed.tree):
        allowed = (
            names_only_variables(text) if key[1:2] == ("model",) else not REFERENCE.search(text)
        )
        if key[0] == "agent" and not allowed:
            cause = f'"{dotted_name(key)}" refers to something outside the agent file.'
            move = "Only its model may name environment variables: ${oc.env:NAME}."
            raise composed.error(key, cause, f"{move} For a literal ${{ write \\${{.")


def names_only_variables(text: str) -> bool:
    """Whether a text refers to nothing but environment variables."""
    return all(name.strip() == "oc.env" for name in REFERENCE.findall(text))
