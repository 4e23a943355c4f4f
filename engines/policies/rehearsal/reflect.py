"""Rehearsal as reflector: retells attempts, extracts lessons, consolidates them.

Reads nothing but its prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from engines.core.text.objects import parse_objects
from engines.core.text.reply import ReplyProblem
from engines.policies.rehearsal import contrast, prompt, wording
from engines.policies.rehearsal.prompt import ShownProposal
from engines.policies.rehearsal.slips import Slip, reword_carelessly, slip_at

_TASK = re.compile(r"^# Task: (summarise|extract|merge|consolidate|repair)\s*$")
_LIMIT = re.compile(r"\bat most (\d+) objects?\b")
_ROOM = re.compile(r"\b(\d+) may be added\b")
_OF_ONE_PROBLEM = re.compile(r"“[^”]*\d[^”]*”|\d{2,}")  # its question, or its figures
_SAME, _NEAR = 0.8, 0.6  # shares of words that count as one wording, and as one idea
_TOUCH = 0.3  # below it two experiences of different names are about different things
_SUMMARY_WORDS = 190


@dataclass(frozen=True, slots=True)
class _ProposedOperation:
    """One wish for the library, resting on numbered attempts or proposals."""

    operation: str
    id: str | None
    experience: str
    reason: str
    numbers: tuple[int, ...]
    doubts: Mapping[str, object] = field(default_factory=dict)  # further fields of its row


def parse_task_name(text: str) -> str | None:
    """Which task a prompt's first line names; None for anything else."""
    match = _TASK.match(text.split("\n", 1)[0])
    return match[1] if match else None


def reflector_reply(text: str, fenced: bool, slips: Mapping[str, Slip] | None = None) -> str:
    """Reply to a reflector's prompt; `fenced` puts the JSON between fences.

    With `slips` it is careless: at the problems they name, and in taking over what is proposed.
    """
    slips = slips or {}
    match parse_task_name(text):
        case "summarise":
            return summarise(text)
        case "extract":
            slip = slip_at(_shown_problem(prompt.parse_sections(text)), slips)
            rows = _rows(extract(text, slip), "attempts")
            reply = _json_reply([*rows, *credit_rows(text)], fenced and slip != "broken")
            return reply.rstrip("]}\n") if slip == "broken" else reply
        case "repair":
            return repair(text, careful="broken" not in slips.values())
        case task:
            wishes, drops = consolidate(text, careful=not slips)
            if task == "merge":  # what stands alone goes on unnamed
                wishes, drops = [wish for wish in wishes if len(wish.numbers) > 1], []
            dropped = [{"drop": [number], "because": why} for number, why in drops]
            return _json_reply([*_rows(wishes, "proposals"), *dropped], fenced)


def _rows(wishes: Sequence[_ProposedOperation], evidence: str) -> list[dict[str, Any]]:
    names = ("operation", "id", "experience", "reason")
    plain = ({name: getattr(w, name) for name in names} for w in wishes)
    return [row | {evidence: w.numbers, **w.doubts} for row, w in zip(plain, wishes, strict=True)]


def repair(text: str, *, careful: bool) -> str:
    """The shown reply as a plain array, an empty one where too little of it is left.

    Where it is not `careful` the reply comes back as it was.
    """
    lines = prompt.parse_sections(text).get("The reply", [])
    shown = "\n".join(line[2:] for line in lines if line.startswith("|"))
    if not careful:
        return shown
    with suppress(ReplyProblem):
        return _json_reply(parse_objects(shown), fenced=False)
    return "[]"


def _json_reply(rows: Sequence[Mapping[str, Any]], fenced: bool) -> str:
    return prompt.fence(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode(), fenced)


def summarise(text: str) -> str:
    """The attempt's steps, numbered, each with its own words."""
    found = prompt.parse_sections(text)
    block = next((lines for name, lines in found.items() if name.startswith("Attempt")), [])
    steps, final = prompt.parse_attempt(prompt.unquote_lines(block))
    lines, used = [], 0
    for n, step in enumerate(steps, 1):
        line = f"{n}. ({step.label}) {step.body}" if step.label else f"{n}. {step.body}"
        used += len(line.split())
        if used > _SUMMARY_WORDS:
            break
        lines.append(line)
    return "\n".join([*lines, f"#### {final or 'no answer'}"])


def _shown_problem(found: dict[str, list[str]]) -> str:
    return " ".join(prompt.unquote_lines(found.get("Problem", [])))


def extract(text: str, slip: Slip | None = None) -> list[_ProposedOperation]:
    found = prompt.parse_sections(text)
    known = prompt.parse_library(found.get("Library now", []))
    truth = prompt.parse_expected_answers(found.get("Expected answer", []))
    problem = _shown_problem(found)
    limit = _parse_limit(_LIMIT, found)
    shown = prompt.parse_attempts(found.get("Attempts", []))
    winners, losers = prompt.split_winners(shown, truth)
    wishes: list[_ProposedOperation] = []
    for drawn in (
        contrast.find_lessons(winners, losers, problem)
        if winners
        else contrast.find_asked(shown, problem)
    ):
        if slip not in (None, "broken"):
            text = reword_carelessly(drawn.text, slip, problem, truth)
            return [_ProposedOperation("add", None, text, drawn.reason, drawn.attempts)]
        wish = _place_lesson(drawn.text, drawn.reason, drawn.attempts, known)
        if wish.id is None or all(w.id != wish.id for w in wishes):
            wishes.append(wish)
        wishes.extend(_delete_misleading(drawn, known, {w.id for w in wishes}))
    return wishes[:limit]


def credit_rows(text: str) -> list[dict[str, Any]]:
    """What each experience did in the attempts shown, where the prompt asks for it."""
    found = prompt.parse_sections(text)
    if not any('{"credit"' in line for line in found.get("Reply", [])):
        return []
    shown = prompt.parse_attempts(found.get("Attempts", []))
    rows = []
    for id, said in prompt.parse_library(found.get("Library now", [])).items():
        rule = wording.split_experience(said)[1]
        used = [s.number for s in shown if any(_follows(line.body, rule) for line in s.lines)]
        # What no attempt uses is about another kind of problem.
        ignored = [s.number for s in shown if used and s.number not in used]
        uses = {"used": used, "ignored": ignored}
        rows += [{"credit": id, "use": use, "attempts": of} for use, of in uses.items() if of]
    return rows


def _follows(step: str, rule: str) -> bool:
    return wording.word_coverage(step, rule) >= _SAME and (
        wording.has_negation(step) == wording.has_negation(rule)
    )


def _parse_limit(number: re.Pattern[str], found: dict[str, list[str]]) -> int | None:
    """A number that the instructions for the reply name; None where they do not."""
    match = number.search("\n".join(found.get("Reply", [])))
    return int(match[1]) if match else None


def _place_lesson(
    text: str, reason: str, numbers: tuple[int, ...], known: dict[str, str]
) -> _ProposedOperation:
    """Add a lesson, or keep or modify the experience that already holds its rule."""
    condition, _, rule = wording.split_experience(text)[1].partition(", ")
    condition, rule = (condition, rule) if rule else ("", condition)
    near = max(
        known,
        key=lambda id: (
            wording.word_coverage(known[id], rule),
            wording.word_similarity(known[id], text),
        ),
        default=None,
    )
    if (
        near is None
        or wording.word_coverage(known[near], rule) < _SAME
        or not (
            wording.word_similarity(known[near], text) >= _TOUCH
            or wording.has_same_name(known[near], text)
        )
    ):
        return _ProposedOperation("add", None, text, reason, numbers)
    # Half of the condition's words are enough: a person may have put it in other words.
    conditioned = wording.word_coverage(known[near], condition) >= 0.5
    if conditioned and wording.has_negation(known[near]) == wording.has_negation(text):
        return _ProposedOperation("keep", near, "", reason, numbers)
    why = "does not state the condition" if not conditioned else "turns the rule round"
    return _ProposedOperation("modify", near, text, f"{reason} {near} {why}.", numbers)


def _delete_misleading(
    drawn: contrast.ContrastLesson, known: dict[str, str], taken: set[str | None]
) -> list[_ProposedOperation]:
    """Experiences that tell the agent to do what the losers did."""
    why = "The worse attempts do what {} says."
    return [
        _ProposedOperation("delete", id, "", why.format(id), drawn.attempts)
        for id, text in known.items()
        if drawn.worse and id not in taken and wording.word_similarity(text, drawn.worse) >= _NEAR
    ]


def consolidate(
    text: str, *, careful: bool = True
) -> tuple[list[_ProposedOperation], list[tuple[int, str]]]:
    """One operation for what says the same, and the proposals that none needs, with the reason.

    Additions stay as they are where not `careful`. A prompt to merge shows the library in part.
    """
    found = prompt.parse_sections(text)
    library = found.get("Library now", found.get("Experiences they are about", []))
    known = prompt.parse_library(library)
    shown = prompt.parse_proposals(found.get("Proposals", []))
    room = _parse_limit(_ROOM, found)
    wishes = _operations_on_known([t for t in shown if t.target in known], known)
    fresh = [t for t in shown if t.kind == "add" or (t.kind == "modify" and t.target not in known)]
    no_room: set[int] = set()
    for same in _group_alike([t for t in fresh if t.text], careful=careful):
        best = max(same, key=lambda t: (sum(o.text == t.text for o in same), -t.number))
        numbers = tuple(t.number for t in same)
        reason = best.reason or "The proposals say so."
        wish = _place_lesson(best.text, reason, numbers, known if careful else {})
        if wish.operation == "add" and room is not None:
            if room == 0:
                no_room.update(numbers)
                continue
            room -= 1
        if wish.operation == "add" and careful:
            wish = replace(wish, doubts=_find_doubts(wish.experience, known))
        wishes = _merge_operation(wishes, wish)
    used = {number for wish in wishes for number in wish.numbers}
    missing = "It is about an experience that the library does not hold."
    drops = [
        (t.number, "The library has no room for it." if t.number in no_room else missing)
        for t in shown
        if t.number not in used
    ]
    return sorted(wishes, key=lambda w: w.numbers), drops


def _find_doubts(text: str, known: Mapping[str, str]) -> dict[str, object]:
    """What the experiences shown say of an addition, and whether it tells of one problem."""
    near = [id for id in known if wording.word_similarity(known[id], text) >= _NEAR]
    opposed = wording.has_negation(text)
    same = [id for id in near if wording.has_negation(known[id]) == opposed]
    return {
        "same_as": next(iter(same), None),
        "conflicts_with": [id for id in near if id not in same],
        "only_this_problem": bool(_OF_ONE_PROBLEM.search(text)),
    }


def _operations_on_known(
    shown: Sequence[ShownProposal], known: dict[str, str]
) -> list[_ProposedOperation]:
    """One operation for each experience that proposals name: what most of them want."""
    wishes: list[_ProposedOperation] = []
    for id in dict.fromkeys(t.target for t in shown):
        about = [t for t in shown if t.target == id and t.kind != "add"]
        if id is None or not about:
            continue
        votes = {k: sum(t.kind == k for t in about) for k in ("modify", "keep", "delete")}
        # A wording that is improved is kept as well, so keeping does not outvote it.
        kind = "delete" if votes["delete"] > votes["modify"] + votes["keep"] else "keep"
        if kind == "keep" and votes["modify"]:
            kind = "modify"
        best = next(t for t in about if t.kind == kind or kind == "keep")
        text = best.text if kind == "modify" else ""
        if kind == "modify" and wording.word_similarity(text, known[id]) == 1.0:
            kind, text = "keep", ""
        numbers = tuple(t.number for t in about)
        wishes.append(
            _ProposedOperation(kind, id, text, best.reason or "The proposals say so.", numbers)
        )
    return wishes


def _group_alike(shown: Sequence[ShownProposal], *, careful: bool) -> list[list[ShownProposal]]:
    """Proposals in groups that say the same: by name or wording, or letter by letter."""
    groups: list[list[ShownProposal]] = []
    for one in shown:
        for group in groups:
            pair = (group[0].text, one.text)
            alike = wording.has_same_name(*pair) or wording.word_similarity(*pair) >= _SAME
            if pair[0] == pair[1] or (careful and alike):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _merge_operation(
    wishes: list[_ProposedOperation], wish: _ProposedOperation
) -> list[_ProposedOperation]:
    """Let a wish about an experience that already has one join it."""
    for n, old in enumerate(wishes):
        if wish.id is not None and old.id == wish.id:
            # An earlier wish to keep gives way to a better wording; nothing revives a deletion.
            winner = wish if old.operation == "keep" else old
            numbers = tuple(sorted({*old.numbers, *wish.numbers}))
            return [*wishes[:n], replace(winner, numbers=numbers), *wishes[n + 1 :]]
    return [*wishes, wish]
