"""The model roles of a run file: what they take over from each other and the environment."""

from __future__ import annotations

from collections.abc import Mapping

from studio.config.compose import ComposedConfig
from studio.config.tree import Tree

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
    agent = tree.get("agent")
    for holder, name in [(tree, "policy"), (tree, "reflector"), (tree, "judge"), (agent, "model")]:
        if isinstance(holder, dict) and isinstance(holder.get(name), str):
            holder[name] = {"model": holder[name]}
    model = agent.get("model") if isinstance(agent, dict) else None
    if isinstance(model, dict):
        if tree.get("policy") is None:
            composed.places.setdefault(("policy",), composed.place(("agent", "model")))
            tree["policy"] = dict(model)
        elif isinstance(tree["policy"], dict) and "model" not in tree["policy"]:
            tree["policy"] = {**model, **tree["policy"]}
        elif isinstance(tree["policy"], dict) and "adapter" not in tree["policy"]:
            _take_weights(composed, tree["policy"], model)
    policy = tree.get("policy")
    for name in ("reflector", "judge"):
        role = tree.get(name)
        if isinstance(role, dict) and isinstance(policy, dict) and "model" not in role:
            own = ("temperature", "concurrency")
            shared = {key: value for key, value in policy.items() if key not in own}
            tree[name] = {**shared, **role}


def _take_weights(composed: ComposedConfig, policy: Tree, model: Tree) -> None:
    """A trained agent's weights come with it where the run file names the same model."""
    if model.get("adapter") is not None and model.get("model") == policy.get("model"):
        policy["adapter"] = model["adapter"]
        place = composed.place(("agent", "model", "adapter"))
        composed.places.setdefault(("policy", "adapter"), place)


def read_endpoints(tree: Tree, origins: dict[str, str], environ: Mapping[str, str]) -> None:
    """Addresses and keys that the environment has for openai:MODEL, with where they came from."""
    agent = tree.get("agent")
    holders = [(tree.get(role), role) for role in ROLES]
    holders.append((agent.get("model") if isinstance(agent, dict) else None, "agent.model"))
    for role, name in holders:
        if not isinstance(role, dict) or not str(role.get("model")).startswith("openai:"):
            continue
        for field, variable in (("base_url", "OPENAI_BASE_URL"), ("api_key", "OPENAI_API_KEY")):
            if role.get(field) is None and environ.get(variable):
                role[field] = environ[variable]
                origins[f"{name}.{field}"] = f"${{oc.env:{variable}}}"


def share_temperature(composed: ComposedConfig, tree: Tree) -> None:
    """Of policy.temperature and practice.temperature the more specific one, the latter, wins."""
    policy, practice = tree.get("policy"), tree.setdefault("practice", {})
    given = policy.get("temperature") if isinstance(policy, dict) else None
    if given is not None and isinstance(practice, dict) and "temperature" not in practice:
        practice["temperature"] = given
        composed.places["practice", "temperature"] = composed.place(("policy", "temperature"))
