"""One run in full, as `studio runs show` prints it: facts first, text from the facts.

Pure, but that it looks which files there are.
"""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import Any, get_args

from engines.core.codec import fields_of
from engines.core.events import EvaluationFinished, RunStarted
from engines.core.state.run_state import RunState, Stage, StepState
from engines.record.run_dir import RunDir, Workspace
from studio.facts.evaluation import calls_per_try, interval_data
from studio.facts.next_command import shown_status
from studio.facts.run import origin_note, usage_data
from studio.render.diagnosis_lines import diagnosis_lines, diagnosis_title
from studio.render.evaluation_lines import cell_lines, evaluation_text, version_text
from studio.render.lines import indent_text, table
from studio.render.run_lines import agent_lines
from studio.render.training_lines import figure_text, training_lines
from studio.render.words import (
    counted_outcomes,
    lost_text,
    mean_acts_text,
    reward_rate_text,
    usage_text,
    withheld_text,
)
from studio.report.summary import change_lines, curation_lines, shared_facts
from studio.secrets.sanitize import one_line, sanitize

_SHOWN_LOSSES = 10
_SHOWN_STEPS = 50
_SHOWN_TEXT = 150


def state_facts(
    state: RunState, run: RunDir, workspace: Workspace, *, alive: bool
) -> dict[str, Any]:
    """Everything a journal adds up to, as plain JSON values; `alive`: it has a process."""
    started = state.started
    stages = [stage for stage in get_args(Stage) if stage in state.spent_on]
    row = fields_of(state, "status", "ending", "reason", "curates", "proposed")
    shown = shown_status(run.run, row | {"open": len(state.open_operations)}, alive=alive)
    return {
        "run": run.run,
        "exp_id": started.exp_id if started else run.run,
        "status": shown.word,
        "alive": shown.alive,
        "next": shown.move,
        "curates": state.curates or None,
        "curation_status": shown.curation or None,
        "reason": state.reason,
        **_plan_facts(state),
        **shared_facts(state),
        "training_lines": training_lines(state) if state.trains_weights else [],
        "epochs": [
            {"epoch": epoch, "mean_reward": pooled.mean, "n": pooled.n}
            for epoch, pooled in state.rewards_by_epoch().items()
        ],
        "steps": [_step_facts(step) for step in state.steps.values()],
        "evaluations": [evaluation_facts(state, found) for found in state.evaluations],
        "change_lines": change_lines(state),
        "cell_lines": cell_lines(state),
        **_review_facts(state),
        "agent": dict(state.agent_facts),
        "losses": [
            {"kind": loss.kind, "where": loss.where, "reason": loss.reason} for loss in state.losses
        ],
        "usage": usage_data(state.total_usage) | {"text": usage_text(state.total_usage)},
        "spent_on": {stage: usage_data(state.spent_on[stage]) for stage in stages},
        "places": _existing_places(run, workspace, started),
    }


def _plan_facts(state: RunState) -> dict[str, Any]:
    """What was settled as the run began, and how far it has come since."""
    started = state.started
    return {
        "rehearsal": bool(started and started.rehearsal),
        "scripted": origin_note(state),
        "reviewer": state.reviewer,
        "seed": started.seed if started else None,
        "forked_from": started.forked_from if started else None,
        "forked_steps": started.forked_steps if started else 0,
        "steps_finished": state.steps_finished,
        "steps_planned": started.steps_per_epoch * state.epochs if started else 0,
        "library": started.library if started else None,
        "library_before": started.library_version if started else 0,
        "library_after": state.library_version,
        "policy_before": started.policy_version if started else 0,
    }


def evaluation_facts(state: RunState, found: EvaluationFinished) -> dict[str, Any]:
    return {
        **fields_of(found, "step", "data", "library_version", "policy_version"),
        "version": version_text(state, found),
        "mean_reward": found.mean,
        "interval": interval_data(found),
        **fields_of(found, "n", "unjudged", "reused", "left_out"),
        "tool_calls_per_try": calls_per_try(found),
        "text": evaluation_text(found),
    }


def _review_facts(state: RunState) -> dict[str, Any]:
    return {
        "open": [
            {"id": op.id, "kind": op.kind, "target": op.target, "text": op.text}
            for op in state.open_operations
        ],
        "repairs": [
            {"id": r.id, "step": r.step, "kind": r.kind, "reasons": list(r.reasons)}
            for r in state.repairs.values()
        ],
        "repaired": dict(state.repaired),
        "curation_lines": curation_lines(state),
    }


def _existing_places(
    run: RunDir, workspace: Workspace, started: RunStarted | None
) -> dict[str, str]:
    places = {
        "folder": run.path,
        "run_file": run.run_file,
        "agent": run.agent_file,
        "best_agent": run.best_agent_file,
        "records": run.records,
    }
    if started is not None:
        places["library"] = workspace.library(started.library).path
    return {name: str(path) for name, path in places.items() if path.exists()}


def run_text(facts: dict[str, Any]) -> str:
    library = f"{facts['library']} v{facts['library_before']} -> v{facts['library_after']}"
    lines = [head_text(facts)]
    if facts["scripted"]:
        lines.append(facts["scripted"])
    if facts["forked_from"]:
        lines.append(f"steps 1-{facts['forked_steps']} adopted from run {facts['forked_from']}")
    training = facts["training"]
    learned = f"library {library}"
    if training:
        learned = f"policy v{facts['policy_before']} -> v{training['policy_version']}"
        learned += f"   library {library}"
    lines += [f"reviewer {facts['reviewer']}   {learned}", ""]
    # A curation run rolls nothing out, nor does practice on demonstrations.
    if not facts["curates"] and not (training and training["demonstrations"]):
        epochs = [
            f"epoch {e['epoch']}  {reward_rate_text(e['mean_reward'], e['n'], 'no reward known')}"
            for e in facts["epochs"]
        ]
        acted = acts_text(facts["steps"])
        lines += _section("practice", epochs + ([f"tools    {acted}"] if acted else []))
        lines.append(f"  groups  {counted_outcomes(facts['groups'])}")
        lines += [f"  {facts['nothing_read']}", ""] if facts["nothing_read"] else [""]
    lines += _section("training", facts["training_lines"])
    if facts["steps"]:
        steps, earlier = facts["steps"][-_SHOWN_STEPS:], len(facts["steps"]) - _SHOWN_STEPS
        if earlier > 0:
            lines.append(f"  … {earlier} earlier steps: --step N shows one, --json tells of all")
        shown = _training_table(training, steps) if training else _steps_table(steps)
        lines += [indent_text(shown), ""]
    evaluations = facts["evaluations"]
    held_out = [
        f"{e['data']} after step {e['step']}, {e['version']}  {e['text']}" for e in evaluations
    ]
    lines += _section("held out", held_out + facts["change_lines"])
    for one in facts["diagnosis"][-1:]:
        lines += _section(diagnosis_title(one), diagnosis_lines(one))
    lines += _section("weights and library, each without the other", facts["cell_lines"])
    updates = facts["open"] and all(op["kind"] == "weights" for op in facts["open"])
    waiting = "open weight updates" if updates else "open operations"
    lines += _section(waiting, [operation_line(op) for op in facts["open"]])
    lines += _section("replies to mend", _unparsed_reply_lines(facts))
    curated = list(facts["curation_lines"])
    if facts["withheld"]:
        curated.append(withheld_text(facts["withheld"]))
    lines += _section("curation", curated)
    lines += _section("lost", _loss_lines(facts))
    doubted = (facts["doubts"] or {}).items()
    lines += _section(
        "doubted verdicts", [f"{name}  {one_line(why, 200)}" for name, why in doubted]
    )
    lines += _section("acts with", agent_lines(facts["agent"]))
    lines += _section("notes", [one_line(remark, 300) for remark in facts["remarks"]])
    lines += _section("spent", [facts["usage"]["text"], *_spent_lines(facts["spent_on"])])
    places = facts["places"].items()
    lines += _section("places", [f"{name:<10} {sanitize(path)}" for name, path in places])
    return "\n".join(lines).rstrip()


def acts_text(steps: list[dict[str, Any]]) -> str:
    """Turns and tool calls of a try; "" where every one of them was a single reply."""
    turns, calls, failed, tries = (
        sum(step[name] for step in steps)
        for name in ("turns", "tool_calls", "failed_calls", "rollouts_done")
    )
    return mean_acts_text(turns, calls, failed, tries) if any(map(_acts, steps)) else ""


def _acts(step: dict[str, Any]) -> bool:
    return bool(step["tool_calls"] or step["turns"] > step["rollouts_done"])


def head_text(facts: dict[str, Any]) -> str:
    """Where it stands and what to do about it; of a curation run also what it is."""
    where = f"after step {facts['steps_finished']} of {facts['steps_planned']}"
    reason = f", {sanitize(facts['reason'])}" if facts["reason"] else ""
    move = f" ({facts['next']})" if facts["next"] else ""
    process = "its process is alive" if facts["alive"] else "no process"
    if facts["curates"]:
        where = sanitize(facts["curates"])
    status = facts["curation_status"] or facts["status"]
    return f"run {facts['run']}: {status}{move}\n{where}{reason}; {process}"


def _section(title: str, lines: list[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines), ""] if lines else []


def _spent_lines(stages: dict[str, Any]) -> list[str]:
    priced = any(one["cost_usd"] is not None for one in stages.values())
    headings = ["STAGE", "CALLS", "PROMPT TOKENS", "REPLY TOKENS", *["COST"] * priced]
    rows = []
    for stage, one in stages.items():
        counts = [one[name] for name in ("calls", "prompt_tokens", "completion_tokens")]
        cost = "unknown" if one["cost_usd"] is None else f"${one['cost_usd']:.4f}"
        rows.append([stage, *(f"{n:,}" for n in counts), *[cost] * priced])
    return table(headings, rows).split("\n") if len(rows) > 1 else []


def operation_line(operation: dict[str, Any]) -> str:
    """`op1.2  modify E3  Check the units.`."""
    target = f" {operation['target']}" if operation["target"] else ""
    return f"{operation['id']}  {operation['kind']}{target}  {sanitize(operation['text'])}".rstrip()


def _unparsed_reply_lines(facts: dict[str, Any]) -> list[str]:
    waiting = facts["repairs"]
    lines = []
    for found in waiting[:_SHOWN_LOSSES]:
        why = one_line(" ".join(found["reasons"]), _SHOWN_TEXT)
        lines.append(f"{found['id']}  {found['kind']} reply that could not be understood: {why}")
    if len(waiting) > _SHOWN_LOSSES:
        lines.append(f"… {len(waiting) - _SHOWN_LOSSES} more")
    if waiting:
        them = "it" if len(waiting) == 1 else "them"
        lines.append(f"open, mend or drop {them}: studio review {quote(facts['run'])}")
    return lines + [f"{name}  {sanitize(what)}" for name, what in facts["repaired"].items()]


def _loss_lines(facts: dict[str, Any]) -> list[str]:
    if not facts["lost"]:
        return ["nothing"]
    shown = [
        one_line(f"{loss['kind']} {loss['where']}: {loss['reason']}", _SHOWN_TEXT)
        for loss in facts["losses"][:_SHOWN_LOSSES]
    ]
    total = sum(facts["lost"].values())
    more = [f"… {total - len(shown)} more"] if total > len(shown) else []
    return [lost_text(facts["lost"]), *shown, *more]


def _step_facts(step: StepState) -> dict[str, Any]:
    applied = Counter(outcome.kind for outcome in step.outcomes if outcome.applied)
    return {
        **fields_of(step, "step", "epoch", "learns", "finished"),
        "problems": len(step.problems),
        "mean_reward": step.rewards.mean,
        "n": step.rewards.n,
        **fields_of(step, "failed", "rollouts_done", "turns", "tool_calls", "failed_calls"),
        **fields_of(step, "unjudged", "doubts", "operations"),
        "groups": dict(step.groups),
        "applied": dict(applied),
        "library_version": step.committed_version,
        "tokens": step.usage.tokens,
    }


def _steps_table(steps: list[dict[str, Any]]) -> str:
    tries = [max(1, step["rollouts_done"]) for step in steps]
    # Of agents that give a single reply there is nothing to say.
    more = ("turns", "tool_calls") if any(map(_acts, steps)) else ()
    rows = [
        (
            str(step["step"]),
            str(step["epoch"]),
            reward_rate_text(step["mean_reward"], step["n"], "-"),
            *(f"{step[name] / n:.1f}" for name in more),
            ", ".join(f"{n} {name}" for name, n in sorted(step["groups"].items())) or "-",
            str(step["operations"]),
            str(sum(n for kind, n in step["applied"].items() if kind != "keep")),
            "-" if step["library_version"] is None else f"v{step['library_version']}",
            "done" if step["finished"] else "under way",
        )
        for step, n in zip(steps, tries, strict=True)
    ]
    acted = ("TURNS/TRY", "TOOLS/TRY") if more else ()
    headings = ("STEP", "EPOCH", "REWARD", *acted, "GROUPS")
    return table((*headings, "PROPOSED", "CHANGED", "LIBRARY", "STATE"), rows)


_PRACTICE_COLUMNS = dict(
    kl="KL", clip_share="CLIP", entropy="ENTROPY", grad_norm="|G|", length="LENGTH"
)
_DEMONSTRATION_COLUMNS = dict(
    loss="LOSS", grad_norm="|G|", learning_rate="RATE", examples="EXAMPLES", tokens="TOKENS"
)
"""Figures of an update with their headings; a step on demonstrations has no reward besides."""


def _training_table(training: dict[str, Any], steps: list[dict[str, Any]]) -> str:
    has_reward = not training["demonstrations"]
    figures = _PRACTICE_COLUMNS if has_reward else _DEMONSTRATION_COLUMNS
    rows = []
    for step, facts in zip(training["steps"][-len(steps) :], steps, strict=True):
        cells = [str(step["step"])]
        if has_reward:
            cells.append(reward_rate_text(step["mean_reward"], step["n"], "-"))
        known = ((name, step["metrics"].get(name)) for name in figures)
        cells += ["-" if value is None else figure_text(name, value) for name, value in known]
        became = f"rolled back to {step['back_to']}" if step["back_to"] else step["update"]
        changed = sum(n for kind, n in facts["applied"].items() if kind not in ("keep", "weights"))
        version = f", {changed} changed: v{facts['library_version']}" if changed else ""
        cells.append(f"{became}{version}")
        rows.append(cells)
    headings = ["STEP", *(["REWARD"] if has_reward else []), *figures.values(), "UPDATE"]
    return table(headings, rows)
