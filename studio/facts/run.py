"""TODO."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import Any

from engines.core import events as ev
from engines.core.codec import fields_of
from engines.core.state.run_state import RunState
from engines.core.types import GroupOutcome, Usage
from studio.facts.diagnosis import nothing_read_text
from studio.render.words import (
    count_text,
)
from studio.secrets.sanitize import one_line

REHEARSAL = "replies were scripted (rehearsal): this shows the loop, not a model's skill"


PARTLY = "the policy is a model, what it was told or judged by was scripted (rehearsal)"


LOGGED = "the policy's replies came from a log, what judged or read them was scripted (rehearsal)"


GROUP_OUTCOMES: tuple[GroupOutcome, ...] = (
    "used", "critique", "all-right", "all-equal", "all-wrong", "failed", "unjudged",
)  # fmt: skip


def origin_note(state: RunState) -> str | None:
    """Where replies come from and what a run with them shows; None where models were asked."""
    started, notes = state.started, list[str]()
    if started is not None and started.rehearsal:
        notes.append(_scripted_text(started))
    if state.cassette:
        cassette = one_line(state.cassette, 80)
        notes.append(f"replies were played from the cassette {cassette}: nothing was asked or paid")
    return "; ".join(notes) or None


def _scripted_text(started: ev.RunStarted) -> str:
    policy = str(started.settings.get("policy.model", "rehearsal")).partition(":")
    if "rehearsal" in policy:
        return REHEARSAL
    return LOGGED if policy[0] == "replay" else PARTLY


def group_data(state: RunState) -> dict[GroupOutcome, int]:
    """How many groups had which outcome, zeros included."""
    found = state.group_outcomes()
    return {name: found[name] for name in GROUP_OUTCOMES}


def run_nothing_read(state: RunState) -> str:
    """Why no step of the run proposed anything; "" where one did, or where weights learn."""
    groups = group_data(state)
    read = [s for s in state.steps.values() if s.groups["used"] + s.groups["critique"]]
    if state.trains_weights or any(step.operations for step in state.steps.values()):
        return ""
    if not read or not read[0].committed or state.started is None:
        return nothing_read_text(groups, state.settings)
    said = count_text(groups["used"] + groups["critique"], "group")
    where = f"studio runs show {quote(state.started.run)} --step {read[0].step}"
    return f"{said} read, and no operation came of it: {where} tells what the reflector said"


def curation_data(state: RunState) -> dict[str, dict[str, Any]]:
    """How each reviewer decided, over committed decisions; seconds where they were measured."""
    return {
        name: {
            **fields_of(found, "n", "approved", "edited", "rejected", "accept_rate"),
            "approved_flagged": found.flagged,
            "timed": len(found.times_s),
            **fields_of(found, "median_s", "mean_s"),
        }
        for name, found in state.curation.items()
    }


def usage_data(usage: Usage) -> dict[str, Any]:
    counts = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
    return fields_of(usage, *counts)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run has come; `steps` is 0 while nothing is known."""

    epoch: int
    epochs: int
    step: int
    steps: int


def run_progress(state: RunState) -> RunProgress:
    if state.started is None:
        return RunProgress(0, 0, 0, 0)
    step = state.steps.get(state.step)
    steps = state.started.steps_per_epoch * state.epochs
    return RunProgress(step.epoch if step else 0, state.epochs, state.step, steps)
