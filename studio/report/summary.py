"""How a run went, in numbers and in words: what the end of `studio headless` prints.

Pure: from the folded state and two versions of the library. Every rate comes with its n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from engines.core import events as ev
from engines.core.codec import fields_of
from engines.core.library import Experience, Library, LibraryDiff
from engines.core.state.run_state import Rewards, RunState, comparable_evaluations
from engines.core.text.similarity import format_changes, word_diff
from engines.core.types import GATE, GroupOutcome, Usage
from studio.render.lines import LEVELS
from studio.render.words import (
    count_text,
    difference_text,
    prompt_tokens_text,
    reward_rate_text,
    signs_text,
    usage_text,
)
from studio.report.decisions import curation_text
from studio.report.diagnosis import (
    diagnosis_lines,
    diagnosis_title,
    epoch_diagnoses,
    last_diagnosis,
    nothing_read_text,
)
from studio.report.rates import (
    cell_data,
    cell_lines,
    change_data,
    evaluation_text,
    interval_data,
    left_out_text,
    rate_changes,
    version_text,
)
from studio.report.training import is_fine_tuning, training_data, training_lines
from studio.secrets.sanitize import one_line, sanitize

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


def group_data(state: RunState) -> dict[GroupOutcome, int]:
    """How many groups had which outcome, zeros included."""
    found = state.group_outcomes()
    return {name: found[name] for name in GROUP_OUTCOMES}


def counted_outcomes(groups: Mapping[GroupOutcome, int]) -> str:
    """`9 used, 3 all-wrong`: what did not happen is left out."""
    return ", ".join(f"{n} {name}" for name, n in groups.items() if n) or "none"


def doubts_text(state: RunState) -> str:
    """How many verdicts the reflector doubts; "" where there is none."""
    n = sum(step.doubts for step in state.steps.values())
    first = "".join(f", as {name}: {why}" for name, why in [*state.doubts.items()][:1])
    what = "verdict contradicts its" if n == 1 else "verdicts contradict their"
    return f"{n} {what} attempt, says the reflector{first}" if n else ""


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


def lost_text(lost: Mapping[str, int]) -> str:
    """`6 extractions, 1 rollout`."""
    return ", ".join(count_text(n, kind) for kind, n in sorted(lost.items()))


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


def withheld_text(n: int) -> str:
    return f"{count_text(n, 'idea')} not proposed again: rejected before"


def unparsed_replies_text(n: int, run: str) -> str:
    """How many replies wait for a correction, and the command to correct them."""
    return f"{count_text(n, 'reply', 'replies')} to be mended: studio review {run}"


def next_command(state: RunState) -> str:
    """The command that resumes a run which ended early; "" where there is none."""
    if state.started is None:
        return ""
    resume = f"studio headless --resume {quote(state.started.run)}"
    if state.ending == "budget":
        return f"{resume} {budget_override(state.reason)}"
    if state.ending == "waiting":
        return f"{resume} (once the calls are answered)"
    failed = state.ending == "failed"
    return f"{resume} (tries again what failed in the step under way)" if failed else ""


def budget_override(reason: str) -> str:
    """The override that gives more of the budget a run ended for, its amount left open."""
    key, equals, _ = reason.partition("=")
    return f"{key}=…" if equals and key.startswith("budget.") else "budget.calls=…"


def mean_reward_text(rewards: Rewards) -> str:
    return reward_rate_text(rewards.mean, rewards.n)


def change_counts_text(added: int, reworded: int, removed: int, renamed: int, equal: int) -> str:
    """`2 added, 1 removed, 3 equal`: what did not happen is left out."""
    counts = {"added": added, "reworded": reworded, "removed": removed,
              "under another id": renamed, "equal": equal}  # fmt: skip
    return ", ".join(f"{n} {word}" for word, n in counts.items() if n) or "both are empty"


def diff_counts_text(diff: LibraryDiff) -> str:
    """`2 added, 1 reworded, 3 equal; 120 -> 180 tokens a call (estimated)`."""
    renamed = len(diff.renamed)
    counts = change_counts_text(len(diff.added), len(diff.modified), len(diff.removed), renamed,
                                len(diff.unchanged) - renamed)  # fmt: skip
    pins = {"pinned": len(diff.pinned), "unpinned": len(diff.unpinned)}
    counts += "".join(f", {n} {word}" for word, n in pins.items() if n)
    held = max(len(diff.added), len(diff.removed)) + len(diff.modified) + len(diff.unchanged)
    tokens = prompt_tokens_text(f"{diff.tokens_before} -> {diff.tokens_after}", held)
    return f"{counts}; {tokens} (estimated)"


def was_text(before: str, after: str) -> str:
    """` (was E7)`: that a lesson is called otherwise; "" where it is not."""
    return "" if before == after else f" (was {before})"


def diff_changes(diff: LibraryDiff) -> list[tuple[tuple[str, ...], str]]:
    """A line for each experience that differs, behind its ids: the new one, and what it was.

    Removed, modified and added ones in that order, then those with another id alone, then pins.
    """

    def change_line(before: Experience, after: Experience) -> str:
        words = sanitize(format_changes(word_diff(before.text, after.text)))
        return f"~ {after.id}{was_text(before.id, after.id)}  {words}"

    return [
        *(((e.id,), f"- {e.id}  {sanitize(e.text)}") for e in diff.removed),
        *((tuple(dict.fromkeys((a.id, b.id))), change_line(b, a)) for b, a in diff.modified),
        *(((e.id,), f"+ {e.id}  {sanitize(e.text)}") for e in diff.added),
        *(((a.id, b.id), f"= {a.id} (was {b.id})  {sanitize(a.text)}") for b, a in diff.renamed),
        *(((e.id,), f"* {e.id}  pinned: nothing may change it") for e in diff.pinned),
        *(((e.id,), f"* {e.id}  unpinned") for e in diff.unpinned),
    ]


def diff_lines(diff: LibraryDiff) -> list[str]:
    return [text for _, text in diff_changes(diff)]


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


def _losses_text(state: RunState) -> str:
    if not state.lost or state.started is None:
        return "nothing"
    total = lost_text(state.lost)
    shown = [f"{loss.kind} {loss.where}: {one_line(loss.reason, 140)}" for loss in state.losses[:3]]
    more = sum(state.lost.values()) - len(shown)
    if more > 0:
        shown.append(f"and {more} more: studio runs show {state.started.run}")
    return "\n           ".join([total, *shown])
