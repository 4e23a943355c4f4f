"""An agent file given on the command line: mounted as `agent:` of a run file.

Owns the exchange, and where the file's keys stand. What it may say is `AgentConfig`'s.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from engines.core.errors import ConfigError
from studio.config.compose import ComposedConfig
from studio.config.tree import Key, dotted_name, get_value, set_value, walk_texts
from studio.config.yaml_positions import file_positions

# Not what is escaped: an odd number of backslashes stands before that.
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{\s*([^:,}$]*)")


def mount_agent(composed: ComposedConfig, path: Path) -> None:
    """Put the file in the place of the run file's own agent; overrides of it still count.

    Raises:
        ConfigError: it cannot be read, holds no agent, or refers to what is not its own.
    """
    path = path.expanduser()
    if not path.is_file():
        move = "Give the agent.yaml of a run folder, or another agent file."
        raise ConfigError(f"--agent {path}", "There is no such file.", move)
    places = dict(file_positions(path, ("agent",)))  # also says what is wrong with its YAML
    agent: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8")) or {}
    if not agent:
        raise ConfigError(str(path), "The agent file is empty.", "Give the agent.yaml of a run.")
    if list(agent) == ["agent"] and isinstance(agent["agent"], dict):
        agent = agent["agent"]  # written as run files have it
        places = dict(file_positions(path, ()))
    typed = [key for key, place in composed.places.items() if key[0] == "agent" and place.override]
    kept = {key: get_value(composed.tree, key) for key in typed}
    if ("agent",) in kept:
        raise composed.error(
            ("agent",), "--agent puts another agent in its place.", "Leave one of them out."
        )
    composed.tree["agent"] = {str(key): value for key, value in agent.items()}
    if "experiences" in agent:  # those of older releases practised without being asked to cite
        composed.tree["agent"].setdefault("cite", False)
    others = {k: p for k, p in composed.places.items() if k[0] != "agent" or k in kept}
    composed.places = {**places, **others}
    for key, text in walk_texts(composed.tree):
        if key[0] == "agent" and not _is_allowed(key, text):
            cause = f'"{dotted_name(key)}" refers to something outside the agent file.'
            move = "Only its model may name environment variables: ${oc.env:NAME}."
            raise composed.error(key, cause, f"{move} For a literal ${{ write \\${{.")
    for key, value in kept.items():
        set_value(composed.tree, key, value)


def _is_allowed(key: Key, text: str) -> bool:
    """Agent files are passed around: one must not put the run file's secrets in a prompt."""
    references = _REFERENCE.findall(text)
    return not references or (
        key[:2] == ("agent", "model") and all(name.strip() == "oc.env" for name in references)
    )
