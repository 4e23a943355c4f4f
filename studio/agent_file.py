"""An agent file given on the command line: mounted as `agent:` of a run file.

Owns the exchange, and where the file's keys stand. What it may say is `AgentConfig`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from engines.core.errors import ConfigError
from studio.compose import Composed
from studio.yaml_marks import marks_of


def mount_agent(composed: Composed, path: Path) -> None:
    """Put the file in the place of the run file's own agent.

    Raises:
        ConfigError: it cannot be read, or holds no agent.
    """
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(
            f"--agent {path}",
            "There is no such file.",
            "Give the agent.yaml of a run folder, or another agent file.",
        )
    places = dict(marks_of(path, ("agent",)))  # also says what is wrong with its YAML
    agent: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8")) or {}
    if not agent:
        raise ConfigError(str(path), "The agent file is empty.", "Give the agent.yaml of a run.")
    composed.tree["agent"] = {str(key): value for key, value in agent.items()}
    for key in [key for key in composed.places if key[0] == "agent"]:
        del composed.places[key]
    composed.places.update(places)
