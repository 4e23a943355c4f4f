"""What a run left behind, for holding one that was killed against one that never was."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from engines.core import events as ev
from engines.core.codec import to_dict
from engines.record.journal import read_journal
from engines.record.run_dir import Workspace


def left(workspace: Path, name: str) -> tuple[dict[str, Any], list[dict[str, Any]], Counter[str]]:
    """The library and the decisions without their times, and how often each was made.

    The counter's keys are operations, steps of the run and commits of the library.
    """
    space = Workspace(workspace)
    folder, run = space.library(name), space.run(name)
    head = to_dict(folder.head())
    for experience in head["experiences"]:
        for origin in experience.get("history", ()):
            origin.pop("at", None)
    library = {name: head[name] for name in ("version", "next_number", "experiences")}
    decisions, decided = [], Counter[str]()
    for entry in read_journal(run.journal):
        match entry.event:
            case ev.OperationDecided() | ev.OperationsDecided() as made:
                for decision in made.decisions:
                    data = to_dict(decision)
                    decisions.append({k: v for k, v in data.items() if k not in ("at", "took_s")})
                    decided[decision.operation_id] += 1
            case ev.LessonCommitted(step=step):
                decided[f"step {step}"] += 1
    for _, commit in folder.history():
        if commit is not None:
            decided[f"commit {commit.step}"] += 1
    return library, decisions, decided
