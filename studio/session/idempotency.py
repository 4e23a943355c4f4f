"""Whether a request that is sent again was done already, by what the journal holds.

A client says how many durable events it had seen when it first asked (`since`). An event after
those that does what is asked was its own doing, also where the process was killed after it wrote
the event, and another one resumed the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.core import events as ev
from engines.core.codec import to_dict
from engines.core.state.run_state import RunState
from engines.core.types import GATE, KILLED, Decision, human_operation_id, rollout_id
from engines.record.run_dir import RunDir


def events_since(run: RunDir, since: int) -> tuple[ev.DurableEvent, ...]:
    """What a run's journal holds after so many events. Reads a part of it: call it in a thread."""
    return tuple(entry.event for entry in run.entries(since))


def prior_result(
    do: str, request: Mapping[str, Any], events: Sequence[ev.DurableEvent]
) -> dict[str, Any] | None:
    """The answer to a request that these events show to be done; None where they do not.

    The request's values are as they are or as JSON has them; `events` are those after which it
    was first sent.
    """
    if do == "undo":
        return _find_undo(str(request["operation"]), events)
    answers = (_answer_shown_by(event, do, request) for event in events)
    return next((answer for answer in answers if answer is not None), None)


def _answer_shown_by(
    event: ev.DurableEvent, do: str, request: Mapping[str, Any]
) -> dict[str, Any] | None:
    match do, event:
        case "decide", ev.OperationDecided(decision=found) if _is_same_decision(
            request["decision"], found
        ):
            return _result_data(found)
        case "decide_all", ev.OperationDecided() | ev.OperationsDecided() if _is_same_batch(
            request["decisions"], event.decisions
        ):
            return {"results": [_result_data(found) for found in event.decisions]}
        case "propose", ev.OperationProposed() if _is_same_proposal(request, event):
            return {"operation": to_dict(event.operation)}
        case "mend", ev.ReplyMended() if event.repair == request["repair"]:
            operations = [to_dict(operation) for operation in event.operations]
            return {"operations": operations, "problems": [], "doubled": []}
        case "drop", ev.ReplyDropped() if event.repair == request["repair"]:
            return {}
        case "resume" | "step", ev.RunContinued() if event.steps == (1 if do == "step" else None):
            return {}
        # A stop ends the process that was asked, not the one that goes on after it.
        case "stop", ev.RunEnded():
            return {}
        case "kill", ev.RolloutFinished() if request["rollout"] == rollout_id(
            event.step, event.position, event.index
        ):
            return {"killed": (event.error or "").startswith(KILLED)}
        case "commit", ev.LessonCommitted() if event.step == request["step"]:
            return {"version": event.library_version}
    return None


def free_operation_id(state: RunState) -> str:
    """The next free id for a person's operation, by which it is known if it is sent again."""
    number = 1
    while human_operation_id(state.step, number) in state.own:
        number += 1
    return human_operation_id(state.step, number)


def _result_data(found: Decision) -> dict[str, Any]:
    note = f"becomes {found.assigned}" if found.assigned else ""  # as the gate said it
    note = f"rejected: {found.reason}" if found.reviewer == GATE else note
    return {"decision": to_dict(found), "note": note}


def _is_same_batch(asked: Sequence[Any], found: Sequence[Decision]) -> bool:
    return len(asked) == len(found) and all(map(_is_same_decision, asked, found))


def _is_same_decision(asked: Any, found: Decision) -> bool:
    wanted = to_dict(asked)
    if any(wanted.get(name) != getattr(found, name) for name in ("operation_id", "kind", "target")):
        return False
    measured = wanted.get("took_s")
    if measured != found.took_s:
        return False
    refused = found.reviewer == GATE and found.action == "reject"
    if not refused and wanted["action"] != found.action:
        return False
    if measured is not None:
        return True  # it tells one decision from another; a secret in the words may be masked
    words = ("text",) if refused else ("text", "reason", "reviewer")
    return all((wanted.get(name) or "") == (getattr(found, name) or "") for name in words)


def _is_same_proposal(request: Mapping[str, Any], event: ev.OperationProposed) -> bool:
    wanted, found = to_dict(request["operation"]), event.operation
    if (event.reviewer, found.kind) != (str(request["reviewer"]), wanted["kind"]):
        return False
    # Its id is the gate's where the one it came with was taken.
    same = found.text == wanted.get("text", "") or found.id == wanted.get("id")
    return same and found.target == wanted.get("target")


def _find_undo(operation: str, events: Sequence[ev.DurableEvent]) -> dict[str, Any] | None:
    undone: list[str] = []
    for event in events:
        if isinstance(event, ev.DecisionUndone):
            if event.operation_id == operation and not event.reason:
                undone = [operation]
            elif undone and event.reason == f"rested on {operation}":
                undone.append(event.operation_id)
    return {"undone": undone} if undone else None
