"""Decisions that come all at once, from a script, a file or a client: read, checked, recorded.

A batch is checked as a whole against the queue as it is, and nothing of it is recorded where
anything is wrong. What stands already is not recorded twice, so a batch may be sent again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast, get_args

from engines.core.codec import to_dict
from engines.core.errors import DataError
from engines.core.ids import digest
from engines.core.library import Library, effective_operation
from engines.core.state.run_state import RunState
from engines.core.text.sanitize import one_line
from engines.core.text.similarity import word_diff
from engines.core.types import Decision, DecisionAction, Operation, OperationKind
from engines.pipeline.gate.draft import Draft
from engines.record.run_dir import RunDir, Workspace
from studio.report.decisions import DONE, misfit_text
from studio.review.actions import Pair
from studio.review.evidence import GroupEvidence
from studio.session.base import ReviewQueue, Session

ACTIONS = (*get_args(DecisionAction), "open")
"""What may become of an operation; `open` takes a decision back, and else changes nothing."""
OWN = ("add", "modify", "delete", "pin", "unpin")
"""What a person may do to the library without anybody's proposal."""
_EDITED = ("add", "modify", "delete", "keep")
_MOST_TOLD = 8


@dataclass(frozen=True, slots=True)
class Wish:
    """What shall become of an operation; without one, a change of one's own."""

    place: str  # where it was asked for, for whoever has to correct it
    action: str
    operation: str = ""
    text: str | None = None
    kind: str | None = None  # like text and target, of an edit or of a change of one's own
    target: str | None = None
    reason: str = ""
    fingerprint: str = ""  # as the listing gave it; "": whatever the operation is by now


_FIELDS = tuple(field.name for field in fields(Wish))[1:]


@dataclass(frozen=True, slots=True)
class Checked:
    """A wish that can be carried out. Without an id its operation is still to be proposed."""

    operation: Operation
    decision: Decision | None  # None: the standing one is taken back
    stands: bool = False  # so that nothing need be done


def read_wishes(data: bytes, name: str) -> list[Wish]:
    """The wishes of a JSON array. Raises DataError: by item and field, all that is wrong."""
    try:
        items = json.loads(data)
    except (ValueError, RecursionError) as error:
        cause = f"it is not JSON: {error or 'nested too deeply'}."
        raise DataError(name, cause, "Nothing was recorded.") from error
    if not isinstance(items, list):
        move = "Write [{…}, …], as `studio guide review` shows; nothing was recorded."
        raise DataError(name, "it is no JSON array of decisions.", move)
    wishes, problems = [], []
    for number, item in enumerate(items, 1):
        place, wrong = f"item {number}", []
        if not isinstance(item, dict):
            wrong = ["it is no object"]
        else:
            for field, value in item.items():
                if field not in _FIELDS:
                    wrong.append(f'field "{field}" is none of {", ".join(_FIELDS)}')
                elif not isinstance(value, str | None):
                    wrong.append(f'field "{field}" must be a text, and is {json.dumps(value):.40}')
            if not item.get("action"):
                wrong.append('field "action" is missing')
        problems += [f"{place}: {what}" for what in wrong]
        if not wrong:
            wishes.append(Wish(place, **{k: v for k, v in item.items() if v is not None}))
    _refuse(name, problems)
    return wishes


def _refuse(name: str, problems: Sequence[str]) -> None:
    if problems:
        more = len(problems) - _MOST_TOLD
        told = [*problems[:_MOST_TOLD], *([f"and {more} more"] if more > 0 else [])]
        raise DataError(name, f"{'; '.join(told)}.", "Nothing was recorded.")


def check_wishes(
    name: str, wishes: Sequence[Wish], state: RunState, base: Library, person: str
) -> list[Checked]:
    """What is to be done, in order, on the base library with the standing decisions.

    Raises DataError: something fits neither the queue nor the library; `name` is the file's.
    """
    assert state.started is not None
    trial = replace(state, decisions=dict(state.decisions), operations=dict(state.operations))
    draft = Draft(
        trial, base, state.started.run, state.settings.get("practice.library_limit"), None
    )
    texts = {e.id: e.text for e in draft.library.experiences}
    problems, read, seen = list[str](), list[tuple[str, Checked]](), Counter[str]()
    for wish in wishes:
        try:
            one = _read_wish(wish, state, texts, person)
        except ValueError as error:
            problems.append(f"{wish.place}: {error}")
            continue
        read.append((wish.place, one))
        seen[one.operation.id] += bool(one.operation.id)
        if seen[one.operation.id] > 1:
            problems.append(f"{wish.place}: {one.operation.id} is decided twice")
        if one.decision is None:
            trial.decisions.pop(one.operation.id, None)
    draft.discard()
    as_it_stands = draft.copy()  # on which the run itself checks what is proposed
    for number, (place, one) in enumerate(read):
        operation, decision = one.operation, one.decision
        if decision is None or one.stands:
            continue
        objection = as_it_stands.objection(operation) if not operation.id else None
        if not operation.id:
            operation = replace(operation, id=f"own {number}")
            trial.operations[operation.id] = operation
        if operation.kind != "weights" and decision.action in ("approve", "edit"):
            objection = objection or draft.check(operation, decision)[2]
        if objection:
            problems.append(f"{place}: {objection}")
        else:
            draft.hold(operation, replace(decision, operation_id=operation.id))
    _refuse(name, problems)
    return [one for _, one in read]


def _read_wish(wish: Wish, state: RunState, texts: Mapping[str, str], person: str) -> Checked:
    """A wish by itself; ValueError says what is wrong with it."""
    if not wish.operation:
        return _read_own(wish, state, person)
    operation, action = state.operations.get(wish.operation), wish.action
    if operation is None:
        listed = ", ".join(op.id for op in state.open_operations) or "none"
        raise ValueError(f"operation {wish.operation} is not open in this run; open are: {listed}")
    if action not in ACTIONS:
        raise ValueError(f'"{action}" is none of {", ".join(ACTIONS)}')
    named = [field for field in ("text", "kind", "target") if getattr(wish, field) is not None]
    if (action == "edit") != bool(named):
        raise ValueError(f"an edit, and nothing else, has a text, a kind or a target: {action}")
    if wish.kind is not None and wish.kind not in _EDITED:
        raise ValueError(f'kind "{wish.kind}" is none of {", ".join(_EDITED)}')
    if operation.kind == "weights" and action in ("edit", "defer"):
        raise ValueError("a weight update is approved or rejected as a whole")
    if wish.fingerprint not in ("", fingerprint(operation, texts)):
        raise ValueError(f"{operation.id} is not what it was when it was listed: list it again")
    standing = state.decisions.get(operation.id)
    if action == "open":
        return Checked(operation, None, stands=standing is None)
    decision = Decision(
        operation.id,
        cast("DecisionAction", action),
        kind=cast("OperationKind | None", wish.kind),
        target=wish.target,
        text=wish.text,
        reason=wish.reason or state.notes.get(operation.id, ""),
        reviewer=person,
    )
    kind = effective_operation(operation, decision).kind
    if wish.text is not None and kind not in ("add", "modify"):
        raise ValueError(f"a {kind} has no text: make it a modify, which has one")
    return Checked(
        operation, decision, standing is not None and _says_so(operation, standing, decision)
    )


def _read_own(wish: Wish, state: RunState, person: str) -> Checked:
    """A change of one's own: as it was proposed before where it was cut off then."""
    if wish.action not in OWN:
        raise ValueError(f'"{wish.action}" without an operation is none of {", ".join(OWN)}')
    if (wish.action in ("add", "modify")) != (wish.text is not None) or wish.kind is not None:
        raise ValueError(f"add and modify, and nothing else, have a text: {wish.action}")
    kind, text = cast("OperationKind", wish.action), " ".join((wish.text or "").split())
    wanted = Operation("", kind, wish.target, text, proposer=person)
    for known in (state.operations[name] for name in state.own if name in state.operations):
        asked = (known.kind, known.target, known.text, known.proposer)
        if asked == (kind, wish.target, text, person):
            wanted = known
    decision = Decision(wanted.id, "approve", reason=wish.reason, reviewer=person)
    standing = state.decisions.get(wanted.id)
    return Checked(wanted, decision, standing is not None and _says_so(wanted, standing, decision))


def _says_so(operation: Operation, standing: Decision, wanted: Decision) -> bool:
    """Whether a decision would change nothing of what stands."""
    if wanted.reason not in ("", standing.reason):
        return False
    if not {standing.action, wanted.action} <= {"approve", "edit"}:
        return standing.action == wanted.action
    was, now = (effective_operation(operation, one) for one in (standing, wanted))
    return (was.kind, was.target, one_line(was.text)) == (now.kind, now.target, one_line(now.text))


async def carry_out(session: Session, checked: Sequence[Checked]) -> list[dict[str, Any]]:
    """Record what was checked, all decisions as one record; what became of each, in order.

    What is taken back and what is proposed is recorded before, each by itself: cut off there, the
    same wishes go on from it. Raises ConflictError: the run refuses; nothing is decided.
    """
    for one in checked:
        if one.decision is None and not one.stands:
            await session.undo(one.operation.id)
    pairs: list[Pair | None] = []
    for one in checked:
        operation, decision = one.operation, one.decision
        if decision is None or one.stands:
            pairs.append(None)
            continue
        if not operation.id:
            operation = await session.propose(operation)
        pairs.append((operation, replace(decision, operation_id=operation.id)))
    asked = [pair[1] for pair in pairs if pair is not None]
    results = iter(await session.decide_all(asked) if asked else ())
    done = []
    for one, pair in zip(checked, pairs, strict=True):
        if pair is None:
            action = one.decision.action if one.decision is not None else "open"
            note = "as it was" if one.stands else "open again"
            done.append({"operation": one.operation.id, "action": action, "note": note})
            continue
        result = next(results)
        made = to_dict(effective_operation(pair[0], result.decision))
        told = {name: getattr(result.decision, name) for name in ("assigned", "reviewer", "reason")}
        what = {name: made[name] for name in ("kind", "target")}
        action = result.decision.action
        done.append(
            {"operation": pair[0].id, "action": action, **what, **told, "note": result.note}
        )
    return done


def result_text(result: Mapping[str, Any]) -> str:
    """`op1.2: approved (becomes E3)`."""
    name, note = result["operation"], result["note"]
    if note.startswith("rejected: "):  # by the run itself: something was decided meanwhile
        return f"{name} {misfit_text(result['reason'])}"
    done = DONE.get(result["action"], note)
    return f"{name}: {done}" + (f" ({note})" if note and note != done else "")


def base_library(workspace: Workspace, state: RunState) -> Library:
    """The version that a run's standing decisions are about."""
    assert state.started is not None
    return workspace.library(state.started.library).at(state.base_version)


def fingerprint(operation: Operation, texts: Mapping[str, str]) -> str:
    """Changes as soon as the operation does, or what its experience says."""
    before = texts.get(operation.target or "", "")
    return digest([operation.kind, operation.target, operation.text, before], 8)


def queue_facts(
    run: RunDir,
    queue: ReviewQueue,
    groups_of: Callable[[Operation], Collection[GroupEvidence]],
) -> dict[str, Any]:
    """What is open with all that a reviewer sees, and the library as it would become."""
    state, texts = run.state(), dict(queue.draft)
    assert state.started is not None
    return {
        "run": run.run,
        "library": state.started.library,
        "base_version": queue.base_version,
        "moved_to": queue.stale,
        "operations": [_facts_of(op, state, queue, texts, groups_of(op)) for op in queue.open],
        "decided": [to_dict(decision) for decision in queue.decided],
        "experiences": [
            {"id": name, "text": text, "pinned": name in queue.pinned} for name, text in queue.draft
        ],
        "to_mend": [{"id": one.id, "reasons": list(one.reasons)} for one in queue.repairs],
        "dropped": list(queue.dropped),
    }


def _facts_of(
    operation: Operation,
    state: RunState,
    queue: ReviewQueue,
    texts: Mapping[str, str],
    groups: Collection[GroupEvidence],
) -> dict[str, Any]:
    before, measured = texts.get(operation.target or "", ""), state.effect_of(operation.id)
    after = operation.text if operation.kind in ("add", "modify") else before
    uses = queue.uses.get(operation.target or "")
    keys = ("id", "kind", "target", "rationale", "proposer", "evidence", "problems", "flags")
    data = to_dict(operation)
    return {
        **{key: data[key] for key in keys},
        "before": before,
        "after": "" if operation.kind == "delete" else after,
        "words": word_diff(before, after) if operation.kind == "modify" else (),
        "groups": [{"id": g.id, "question": g.question, "won": g.won, "n": g.n} for g in groups],
        "effect": to_dict(measured.effect) if measured else None,
        "uses": to_dict(uses) if uses else None,
        "merges": queue.merged.get(operation.id, ""),
        "note": queue.notes.get(operation.id, ""),
        "put_off": operation in state.put_off_operations,
        "fingerprint": fingerprint(operation, texts),
    }
