"""Decisions that come all at once, from a script, a file or a client: read, checked, recorded.

A batch is checked as a whole against the queue as it is, and nothing of it is recorded where
anything is wrong. What stands already is not recorded twice, so a batch may be sent again.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from engines.core import codec, errors
from engines.core.frozen import frozen
from engines.core.library import effective_operation
from engines.core.state.run_state import RunState
from engines.core.text import sanitize, similarity
from engines.core.types import Decision, DecisionAction, Operation, OperationKind
from studio.errors import plain_words
from studio.render.json import print_json, print_result
from studio.render.words import DONE
from studio.review import decider, evidence, review_run, wording
from studio.session.requests import Decide, Preview, Propose, ReviewQueue, Undo
from studio.session.session import Session

DECIDES = ("approve", "edit", "reject", "defer", "open")
BOM = b"\xef\xbb\xbf"
KINDS = ("add", "modify", "delete", "keep")
OWN = ("add", "modify", "delete", "pin", "unpin")
Todo = tuple[Operation, Decision | None]
"""Without an id an operation is still to be proposed; without a decision the standing one goes."""


@frozen
class Wish:
    """What shall become of an operation; without one, a change of one's own (`OWN`).

    `open` takes a decision back. An edit names at least one of text, kind and target.
    """

    action: str
    operation: str = ""
    text: str | None = None
    kind: str | None = None
    target: str | None = None
    reason: str = ""
    fingerprint: str = ""  # as it was listed; "": whatever the operation is by now
    anyway: bool = False  # also where its text has flags that nobody was shown
    place: str = ""  # where it was asked for


def read_wishes(name: str, data: bytes) -> list[Wish]:
    """The wishes of a JSON array. Raises DataError: all that is wrong with its form, by field."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

    with_config(ConfigDict(extra="forbid"))(Wish)
    try:
        wishes = TypeAdapter(list[Wish]).validate_json(data.removeprefix(BOM))
    except ValidationError as error:
        problems = []
        for one in error.errors():
            what = plain_words(one["msg"]).replace("Unexpected keyword argument", "unknown")
            places = [f"item {at + 1}" if isinstance(at, int) else at for at in one["loc"]]
            problems.append(": ".join(filter(None, (", ".join(places), what))))
        raise refuse(name, problems) from error
    return [replace(wish, place=f"item {at}") for at, wish in enumerate(wishes, 1)]


def refuse(name: str, problems: Sequence[str], move: str = "") -> errors.DataError:
    """What is wrong with some wishes as one error; nothing of them is recorded."""
    told = [problem.rstrip(".") for problem in problems[:8]]
    told += [f"And {len(problems) - 8} more"] if len(problems) > 8 else []
    return errors.DataError(name, f"{'. '.join(told)}.", f"Nothing was recorded. {move}".rstrip())


async def check_wishes(
    name: str, wishes: Sequence[Wish], session: Session, queue: ReviewQueue
) -> tuple[list[Todo], list[str]]:
    """What is to be done, in order, where it does not stand already; and flags of new texts.

    Raises DataError: something fits neither the queue nor the library as it would become.
    """
    state, texts = session.state, dict(queue.draft)
    problems, todo = dict[int, str](), dict[str, tuple[Operation, Decision | None, int]]()
    for at, wish in enumerate(wishes):
        try:
            operation, decision = _read_wish(wish, state, texts, session.who)
        except ValueError as error:
            problems[at] = str(error)
            continue
        key = operation.id or wish.place
        if key in todo:
            problems[at] = f"{key} is decided twice"
            continue
        todo[key] = operation, decision, at
    changes = {k: v for k, v in todo.items() if not _stands(v[0], state.decisions.get(k), v[1])}
    own = [replace(op, id=key) for key, (op, _, _) in changes.items() if not op.id]
    # A text of one's own is linted as that of an edit is.
    worded = {op.id: Decision(op.id, "edit", text=op.text) for op in own if op.text}
    asked = [worded.get(k) or replace(v[1], operation_id=k) for k, v in changes.items() if v[1]]
    gone = [one.operation_id for one in asked if one.action == "reject"]
    undone = [key for key, (_, decision, _) in changes.items() if decision is None]
    preview = Preview(tuple(asked), tuple(own), tuple(undone))
    found = await session.send(preview) if changes else ()
    flags = list[str]()
    for decision, would_be in zip(asked, found, strict=True):
        operation, _, at = changes[decision.operation_id]
        if would_be.objection:
            problems[at] = would_be.objection
        if not wishes[at].anyway:
            new = decider.new_flags(operation, would_be.flags, gone)
            flags += [f"{wishes[at].place}, flag {wording.flag_text(flag)}" for flag in new]
    if problems:
        told = [f"{wishes[at].place}: {problems[at]}" for at in sorted(problems)]
        raise refuse(name, told, f"`studio review {session.run.run} --json` lists what is there.")
    return [(operation, decision) for operation, decision, _ in changes.values()], flags


def _read_wish(wish: Wish, state: RunState, texts: Mapping[str, str], person: str) -> Todo:
    """A wish by itself; ValueError says what is wrong with it."""
    action, named = wish.action, {wish.text, wish.kind, wish.target} != {None}
    if action not in (DECIDES if wish.operation else OWN):
        known = ", ".join(DECIDES) if wish.operation else f"{', '.join(OWN)} (without an operation)"
        raise ValueError(f'"{action}" is none of {known}')
    if not wish.operation:
        if (action in ("add", "modify")) != (wish.text is not None):
            raise ValueError("add and modify have a text, and nothing else has one")
        kind, text = cast("OperationKind", action), " ".join((wish.text or "").split())
        own = Operation("", kind, wish.target, text, proposer=person)
        for known_one in state.operations.values():  # proposed before, and cut off then
            if known_one.id in state.own and replace(known_one, id="", flags=()) == own:
                own = known_one
        return own, Decision(own.id, "approve", reason=wish.reason, reviewer=person)
    if (operation := state.operations.get(wish.operation)) is None:
        listed = ", ".join(op.id for op in state.open_operations) or "none"
        raise ValueError(f"operation {wish.operation} is not open in this run; open are: {listed}")
    if wish.kind not in (None, *KINDS):
        raise ValueError(f'kind "{wish.kind}" is none of {", ".join(KINDS)}')
    if (action == "edit") != named:
        raise ValueError("an edit, and nothing else, has a text, a kind or a target")
    if wish.fingerprint not in ("", fingerprint(operation, texts)):
        raise ValueError(f"{operation.id} has changed since: list it again with --json")
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
    return operation, None if action == "open" else decision


def _stands(operation: Operation, standing: Decision | None, wanted: Decision | None) -> bool:
    """Whether nothing need be recorded for it."""
    if standing is None or wanted is None:
        return standing is wanted
    was, now = (effective_operation(operation, one) for one in (standing, wanted))
    same = (
        sanitize.one_line(was.text) == sanitize.one_line(now.text)
        and replace(was, text=now.text) == now
    )
    kinds = [one.action.replace("edit", "approve") for one in (standing, wanted)]
    return kinds[0] == kinds[1] and same and wanted.reason in ("", standing.reason)


async def carry_out(session: Session, todo: Sequence[Todo]) -> tuple[Decision, ...]:
    """Record what was checked, all decisions as one record.

    What is taken back and what is proposed is recorded before, each by itself: cut off there, the
    same wishes go on from it. Raises ConflictError: the run refuses; nothing is decided.
    """
    for operation, decision in todo:
        if decision is None:
            await session.send(Undo(operation.id))
    decisions = []
    for operation, decision in todo:
        if decision is not None:
            name = operation.id
            if not name:
                name = (await session.send(Propose(operation, session.who))).id
            decisions.append(replace(decision, operation_id=name))
    return await session.send(Decide(tuple(decisions))) if decisions else ()


def result_text(made: Decision) -> str:
    """`op1.2: approved (becomes E3)`; what the run itself rejected says why."""
    note = f" ({made.note})" if made.note else ""
    return f"{made.operation_id}: {DONE[made.action]}{note}"


def fingerprint(operation: Operation, texts: Mapping[str, str]) -> str:
    """Changes as soon as the operation does, or what its experience says."""
    before = texts.get(operation.target or "", "")
    return codec.digest([operation.kind, operation.target, operation.text, before], 8)


def review_by_script(review: review_run.RunReview, path: Path, *, json: bool) -> None:
    """Check and record what a JSON file says, or standard input (`-`); print what came of it."""
    name = "standard input" if str(path) == "-" else str(path)
    wishes = read_wishes(name, sys.stdin.read().encode() if str(path) == "-" else path.read_bytes())
    session, wait_for = review.session, review.wait_for
    queue = review.read_queue()  # by it the library is followed to its head
    todo, flags = wait_for(check_wishes(name, wishes, session, queue))
    if flags:
        raise refuse(name, flags, 'Reword it, or add "anyway": true.')
    results = wait_for(carry_out(session, todo))
    closing, left = review.closing_text(), session.state.open_operations
    told = [{"decision": made, "note": made.note} for made in results]
    facts = {"results": told, "open": [one.id for one in left], "closing": closing}
    lines = [*map(result_text, results), f"{len(todo)} decided, {len(left)} open", closing]
    print_result(facts, "\n".join(lines).rstrip(), json=json)


def print_queue(review: review_run.RunReview) -> None:
    """Print as JSON what is open with all that a reviewer sees, and the library as it would be."""
    queue, run = review.read_queue(), review.session.run
    state, texts, loader = review.session.state, dict(queue.draft), evidence.EvidenceLoader(run)
    operations = []
    for op in queue.open:
        before, measured = texts.get(op.target or "", ""), state.effect_of(op.id)
        groups = loader.operation_groups(op)
        seen = {
            "before": before,
            "words": similarity.word_diff(before, op.text) if op.kind == "modify" else (),
            "groups": [codec.fields_of(group, "id", "won", "n", "question") for group in groups],
            "effect": measured.effect if measured else None,
            "fingerprint": fingerprint(op, texts),
        }
        operations.append({**codec.to_dict(op), **seen})
    about = {"run": run.run, "library": state.started.library if state.started else ""}
    print_json({**about, **codec.to_dict(queue), "open": operations})
