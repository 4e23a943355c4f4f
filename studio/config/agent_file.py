"""Agent and eval files as parts of a run file: mounted by it, in its place, or run on their own.

Owns the exchange, and where the file's keys stand. What they may say is the settings'.
"""

from pathlib import Path

from engines.core.errors import ConfigError
from studio.config.aliases import move_value
from studio.config.compose import ComposedConfig
from studio.config.settings.agent import AgentConfig
from studio.config.settings.base import declared_settings
from studio.config.tree import (
    ABSENT,
    REFERENCE,
    Key,
    dotted_name,
    get_value,
    pop_value,
    set_value,
    walk,
    walk_texts,
)
from studio.config.yaml_file import Place, read_yaml_file


def mount_agent(composed: ComposedConfig, path: Path) -> None:
    """Put the file in the place of the run file's own agent; overrides of it still count.

    Raises ConfigError: it cannot be read, holds no agent, or refers to what is not its own.
    """
    path = path.expanduser()
    if not path.is_file():
        move = "Give the agent.yaml of a run folder, or another agent file."
        raise ConfigError(f"--agent {path}", "There is no such file.", move)
    file = read_yaml_file(path)
    agent = file.tree
    mount: Key = ("agent",)
    if not agent:
        raise ConfigError(str(path), "The agent file is empty.", "Give the agent.yaml of a run.")
    if list(agent) == ["agent"] and isinstance(agent["agent"], dict):
        agent, mount = agent["agent"], ()  # written as run files have it
    places: dict[Key, Place] = {("agent",): Place(f"{path}:1")}
    places |= {(*mount, *key): place for key, place in file.places.items()}
    typed = [key for key, place in composed.places.items() if key[0] == "agent" and place.override]
    kept = {key: get_value(composed.tree, key) for key in typed}
    if ("agent",) in kept:
        move = "Leave one of them out."
        raise composed.error(("agent",), "--agent puts another agent in its place.", move)
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
