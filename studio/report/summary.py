"""How a run went, in numbers and in words: what the end of `studio headless` prints.

Pure: from the folded state and two versions of the library. Every rate comes with its n.
"""

from __future__ import annotations

from typing import Any

from engines.core.codec import fields_of
from engines.core.library import Library
from engines.core.state.best import comparable_evaluations
from engines.core.state.run_state import RunState
from engines.core.types import GATE
from studio.facts.diagnosis import epoch_diagnoses, last_diagnosis
from studio.facts.evaluation import cell_data, change_data, interval_data, rate_changes
from studio.facts.next_command import next_command
from studio.facts.run import (
    curation_data,
    group_data,
    origin_note,
    run_nothing_read,
    run_progress,
    usage_data,
)
from studio.facts.training import is_fine_tuning, training_data
from studio.render.diagnosis_lines import diagnosis_lines, diagnosis_title
from studio.render.evaluation_lines import cell_lines, evaluation_text, left_out_text, version_text
from studio.render.lines import LEVELS
from studio.render.training_lines import training_lines
from studio.render.words import (
    count_text,
    counted_outcomes,
    curation_text,
    diff_counts_text,
    diff_lines,
    difference_text,
    lost_text,
    mean_reward_text,
    signs_text,
    unparsed_replies_text,
    usage_text,
    withheld_text,
)
from studio.secrets.sanitize import one_line, sanitize


def summary_data(state: RunState, before: Library, after: Library, place: str) -> dict[str, Any]:
    """The same facts as `summary_text`, for `--json`."""
    started = state.started
    assert started is not None
    diff = after.diff(before)
    return {
        "kind": "Summary",
        "run": started.run,
        "status": state.status,
        "ending": state.ending,
        "reason": state.reason,
        "next": next_command(state),
        "rehearsal": started.rehearsal,
        "cassette": state.cassette or None,
        "steps": state.steps_finished,
        "epochs": {
            str(epoch): {"mean_reward": pooled.mean, "n": pooled.n}
            for epoch, pooled in state.rewards_by_epoch().items()
        },
        **shared_facts(state),
        "library": {
            "name": after.name,
            "before": before.version,
            "after": after.version,
            "experiences": [{"id": e.id, "text": e.text} for e in after.experiences],
            "added": [e.id for e in diff.added],
            "modified": [e.id for _, e in diff.modified],
            "removed": [e.id for e in diff.removed],
            "unchanged": len(diff.unchanged),
            "tokens_per_call_before": diff.tokens_before,
            "tokens_per_call_after": diff.tokens_after,
        },
        "evaluations": [
            fields_of(e, "step", "data", "mean", "n", "unjudged", "reused", "policy_version")
            | {"interval": interval_data(e), "left_out": e.left_out}
            for e in state.evaluations
        ],
        "open": [operation.id for operation in state.open_operations],
        "repairs": list(state.repairs),
        **usage_data(state.total_usage),
        "folder": place,
    }


def shared_facts(state: RunState) -> dict[str, Any]:
    """What the end of a run and `studio runs show` tell alike, as plain values."""
    return {
        "groups": group_data(state),
        "nothing_read": run_nothing_read(state) or None,
        "doubts": dict(state.doubts) or None,
        "training": training_data(state) if state.trains_weights else None,
        "cells": cell_data(state),
        "changes": [change_data(change) for change in rate_changes(state.evaluations)],
        "best_step": state.best_step,
        "withheld": state.withheld,
        "curation": curation_data(state),
        "lost": dict(state.lost),
        "remarks": list(state.remarks),
        "diagnosis": epoch_diagnoses(state),
    }


def doubts_text(state: RunState) -> str:
    """How many verdicts the reflector doubts; "" where there is none."""
    n = sum(step.doubts for step in state.steps.values())
    first = "".join(f", as {name}: {why}" for name, why in [*state.doubts.items()][:1])
    what = "verdict contradicts its" if n == 1 else "verdicts contradict their"
    return f"{n} {what} attempt, says the reflector{first}" if n else ""


def practice_sections(
    state: RunState, levels: str = LEVELS, *, place: str = ""
) -> list[tuple[str, list[str]]]:
    """Rewards, training and held-out sets, each as a heading and lines, for every face.

    See `training_lines` for `levels` and `place`.
    """
    what = "policy" if state.trains_weights else "library"
    what = "library and the policy" if state.alternates else what
    groups, found = group_data(state), []
    if not is_fine_tuning(state):
        epochs = state.rewards_by_epoch().items()
        lines = [f"epoch {epoch}  {mean_reward_text(pooled)}" for epoch, pooled in epochs]
        lines.append(f"groups   {counted_outcomes(groups)}")
        if unread := run_nothing_read(state):
            lines.append(unread)
        elif state.trains_weights and 0 < groups["unjudged"] == sum(groups.values()):
            lines.append(
                "the verifier had no opinion on any try, so nothing was learned: look at it"
            )
        found.append((f"practice reward (with the {what} as it was at each step)", lines))
    if state.trains_weights:
        found.append(("training", training_lines(state, levels, place=place)))
    if state.evaluations:
        measured = [
            f"{one_line(e.data, 80)} after step {e.step}, "
            f"{version_text(state, e)}  {evaluation_text(e)}"
            for e in state.evaluations
        ]
        heading = f"held-out reward (one version of the {what} each)"
        found.append((heading, [*change_lines(state), *measured]))
    if (last := last_diagnosis(state)) and (lines := diagnosis_lines(last)):
        found.append((diagnosis_title(last), lines))
    if state.cells:
        heading = "weights and library, each without the other (held-out reward)"
        found.append((heading, cell_lines(state)))
    return found


def summary_text(state: RunState, before: Library, after: Library, place: str) -> str:
    started = state.started
    assert started is not None
    diff = after.diff(before)
    lines = [status_line(state)]
    if note := origin_note(state):
        lines.append(note)
    if started.forked_from:
        lines.append(f"steps 1-{started.forked_steps} adopted from run {started.forked_from}")
    for heading, texts in practice_sections(state, place=place):
        lines += ["", heading, *(f"  {text}" for text in texts)]
    if not state.trains_weights or before.version != after.version:
        versions = f"v{before.version} -> v{after.version}"
        lines += ["", f"library {after.name}  {versions}  {diff_counts_text(diff)}"]
        lines += [f"  {line}" for line in diff_lines(diff)]
    elif after.experiences:
        held = count_text(len(after.experiences), "experience")
        lines += ["", f"library {after.name}  v{after.version}, unchanged: {held} in the prompt"]
    lines += ["", f"spent    {usage_text(state.total_usage)}"]
    lines.append(f"lost     {_losses_text(state)}")
    lines += [f"note     {one_line(remark, 300)}" for remark in state.remarks]
    if doubted := doubts_text(state):
        lines.append(f"doubted  {one_line(doubted, 200)}: studio runs show {started.run}")
    lines += [f"curated  {line}" for line in curation_lines(state)]
    if state.withheld:
        lines.append(f"withheld {withheld_text(state.withheld)}")
    if state.repairs:
        lines.append(f"to mend  {unparsed_replies_text(len(state.repairs), started.run)}")
    if state.open_operations:
        updates = all(one.kind == "weights" for one in state.open_operations)
        what = count_text(len(state.open_operations), "weight update" if updates else "operation")
        lines.append(f"open     {what}: studio review {started.run}")
    lines.append(f"folder   {sanitize(place)}")
    return "\n".join(lines)


def status_line(state: RunState) -> str:
    """How far a run came, and why no further, in one line."""
    # Its first clause only: the whole reason was printed as the run ended; `runs show` has it.
    reason = f" ({one_line(state.reason.partition(': ')[0], 120)})" if state.reason else ""
    run = state.started.run if state.started else ""
    if curation := curation_text(state):
        return f"run {run}: {curation}"
    status = "budget reached" if state.ending == "budget" else state.status
    where = f"step {state.steps_finished} of {run_progress(state).steps}"
    return f"run {run}: {status}{reason} after {where}"


def change_lines(state: RunState) -> list[str]:
    """Whether practice helped, set by set, and which step was the best."""
    lines = []
    for change in rate_changes(state.evaluations):
        found = change.comparison
        versions = " -> ".join(version_text(state, e) for e in (change.first, change.last))
        result = f"{difference_text(found)}, {found.verdict} ({signs_text(found)})"
        lines.append(f"{change.first.data} {versions}: {result}{left_out_text(change.last)}")
    if state.best_step is not None and state.started is not None:
        n = len(comparable_evaluations(state.evaluations))
        run = state.started.run
        # The maximum of noisy means is biased upwards.
        of = f"best of {n} evaluations (optimistic)" if n > 1 else "the only evaluation of its kind"
        # The names stand for versions of a library, which a training run leaves as it was.
        names = "" if state.trains_weights else f" ({run}@best); last: {run}@last"
        lines.append(f"{of}: after step {state.best_step}{names}")
    return lines


def curation_lines(state: RunState) -> list[str]:
    """The same in words, one reviewer a line; what the gate itself refused comes last."""
    lines = []
    for name, found in state.curation.items():
        if name == GATE or found.accept_rate is None:
            continue
        line = f"{sanitize(name)}: accepted {found.accept_rate:.3f} (n={found.n})"
        if found.edited:
            line += f", {found.edited} edited"
        if found.flagged:
            which = ", since auto lets such flags pass" if name == "auto" else ""
            line += f", {count_text(found.flagged, 'flagged operation')} approved{which}"
        if timed := len(found.times_s):
            line += f"; median {found.median_s:.1f} s, mean {found.mean_s:.1f} s (n={timed})"
        lines.append(line)
    if refused := state.curation.get(GATE):
        lines.append(f"the gate: {count_text(refused.n, 'approval')} did not fit the library")
    return lines


def _losses_text(state: RunState) -> str:
    if not state.lost or state.started is None:
        return "nothing"
    total = lost_text(state.lost)
    shown = [f"{loss.kind} {loss.where}: {one_line(loss.reason, 140)}" for loss in state.losses[:3]]
    more = sum(state.lost.values()) - len(shown)
    if more > 0:
        shown.append(f"and {more} more: studio runs show {state.started.run}")
    return "\n           ".join([total, *shown])
