"""The model roles of a run file: what they take over from each other and the environment."""

from __future__ import annotations

from collections.abc import Mapping

from engines.core.team import FIXED
from studio.config.compose import ComposedConfig
from studio.config.tree import ABSENT, Key, Tree, get_value, replace_value

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
        *(("agent", "team", name) for name in FIXED),
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
