"""One rollout, whole: what it was asked, what it said, and the verdict.

Reads the run's journal and records; changes nothing.
"""

from __future__ import annotations

from typing import Any

from engines.core.codec import to_dict
from engines.record.run_dir import RunDir
from studio.evidence import EvidenceRoom
from studio.inert import inert
from studio.rates import metrics_text


def rollout_facts(run: RunDir, name: str) -> dict[str, Any]:
    """Everything about one rollout, as plain data.

    Raises:
        ConflictError: the run has no such rollout.
        DamagedError: its record fails its checksum.
    """
    room = EvidenceRoom(run)
    found = room.witness(name)
    return {
        "id": found.id,
        "status": found.rollout.status,
        "error": found.rollout.error,
        "seed": found.rollout.seed,
        "elapsed_s": found.rollout.elapsed_s,
        "tokens": found.rollout.usage.tokens,
        "verdict": to_dict(found.verdict) if found.verdict else None,
        "messages": [to_dict(message) for message in room.messages(found)],
        "records": [f"records/{ref.file}@{ref.offset}" for ref in found.rollout.refs],
    }


def rollout_text(facts: dict[str, Any]) -> str:
    verdict = facts["verdict"] or {}
    reward = verdict.get("reward")
    lines = [
        f"{facts['id']}  {facts['status']}  reward {'?' if reward is None else f'{reward:g}'}"
        f"{metrics_text(verdict.get('metrics') or {})}  "
        f"{facts['tokens']} tokens  seed {facts['seed']}  {', '.join(facts['records'])}"
    ]
    for message in facts["messages"]:
        lines += ["", f"[{message['role']}]", inert(message["content"])]
        if message["reasoning"]:
            lines += ["[reasoning]", inert(message["reasoning"])]
    for what in (verdict.get("critique"), verdict.get("error"), facts["error"]):
        if what:
            lines += ["", inert(what)]
    return "\n".join(lines)
