"""TODO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studio.secrets.sanitize import one_line

_NAME_CHARS, _TIER_CHARS = 80, 200
NO_WORKER = "no worker of the cluster is left; tries wait until it has room for one"


def sandbox_text(facts: Mapping[str, Any]) -> str:
    """The layers that contain programs, and what an agent of one's own may reach; "" for none."""
    text = one_line(str(facts.get("sandbox") or ""), _TIER_CHARS)
    return f"{text}; network {facts['network']}" if "network" in facts else text


def tool_texts(facts: Mapping[str, Any]) -> list[str]:
    """Each tool with what contains it and what it may reach."""
    shown = []
    for tool in facts.get("tools") or ():
        inside = one_line(str(tool["tier"] or ""), _TIER_CHARS) or "in the studio's process"
        once = "" if tool["repeatable"] else "; made once, never again after a kill"
        name = one_line(str(tool["name"]), _NAME_CHARS)
        shown.append(f"{name}: {inside}; network {tool['network']}{once}")
    return shown


def agent_lines(facts: Mapping[str, Any]) -> list[str]:
    sandbox = sandbox_text(facts)
    lines = [f"sandbox: {sandbox}"] if sandbox else []
    absent = [one_line(str(said), _TIER_CHARS) for said in facts.get("absent") or ()]
    return lines + [f"tool {text}" for text in tool_texts(facts)] + absent
