"""Rehearsal as reflector: retells attempts, extracts lessons, consolidates them.

Reads nothing but its prompt. Owns what is proposed for a lesson when the library
already says something like it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from engines.policies.rehearsal import contrast, prompt, wording
from engines.policies.rehearsal.prompt import Told

_TASK = re.compile(r"^# Task: (summarise|extract|consolidate)\s*$")
_LIMIT = re.compile(r"\bat most (\d+) objects?\b")
_ROOM = re.compile(r"\b(\d+) may be added\b")
_SAME, _NEAR = 0.8, 0.6  # shares of words that count as one wording, and as one idea
_TOUCH = 0.3  # below it two experiences of different names are about different things
_SUMMARY_WORDS = 190


@dataclass(frozen=True, slots=True)
class _Wish:
    """One wish for the library, resting on numbered attempts or proposals."""

    operation: str
    id: str | None
    experience: str
    reason: str
    numbers: tuple[int, ...]


def task_of(text: str) -> str | None:
    """Which task a prompt's first line names; None for anything else."""
    match = _TASK.match(text.split("\n", 1)[0])
    return match[1] if match else None


def answer(text: str, fenced: bool) -> str:
    """Reply to a reflector's prompt; `fenced` puts the JSON between fences."""
    match task_of(text):
        case "summarise":
            return summarise(text)
        case "extract":
            return _json(extract(text), "attempts", fenced)
        case _:
            return _json(consolidate(text), "proposals", fenced)


def _json(wishes: Sequence[_Wish], evidence: str, fenced: bool) -> str:
    rows = [
        {
            "operation": w.operation,
            "id": w.id,
            "experience": w.experience,
            "reason": w.reason,
            evidence: w.numbers,
        }
        for w in wishes
    ]
    text = orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode()
    return f"```json\n{text}\n```" if fenced else text


def summarise(text: str) -> str:
    """The attempt's steps, numbered, each with its own words."""
    found = prompt.sections(text)
    block = next((lines for name, lines in found.items() if name.startswith("Attempt")), [])
    steps, final = prompt.read_attempt(prompt.quoted(block))
    lines, used = [], 0
    for n, step in enumerate(steps, 1):
        line = f"{n}. ({step.label}) {step.body}" if step.label else f"{n}. {step.body}"
        used += len(line.split())
        if used > _SUMMARY_WORDS:
            break
        lines.append(line)
    return "\n".join([*lines, f"#### {final or 'no answer'}"])


def extract(text: str) -> list[_Wish]:
    found = prompt.sections(text)
    known = prompt.library(found.get("Library now", []))
    truth = prompt.expected(found.get("Expected answer", []))
    problem = " ".join(prompt.quoted(found.get("Problem", [])))
    limit = _told(_LIMIT, found)
    winners, losers = prompt.sides(prompt.attempts(found.get("Attempts", [])), truth)
    wishes: list[_Wish] = []
    for drawn in contrast.draw(winners, losers, problem) if winners else []:
        wish = _placed(drawn.text, drawn.reason, drawn.attempts, known)
        if wish.id is None or all(w.id != wish.id for w in wishes):
            wishes.append(wish)
        wishes.extend(_misleading(drawn, known, {w.id for w in wishes}))
    return wishes[:limit]


def _told(number: re.Pattern[str], found: dict[str, list[str]]) -> int | None:
    """A number that the instructions for the reply name; None where they do not."""
    match = number.search("\n".join(found.get("Reply", [])))
    return int(match[1]) if match else None


def _placed(text: str, reason: str, numbers: tuple[int, ...], known: dict[str, str]) -> _Wish:
    """Add a lesson, or keep or modify the experience that already holds its rule."""
    condition, _, rule = wording.split(text)[1].partition(", ")
    condition, rule = (condition, rule) if rule else ("", condition)
    near = max(
        known,
        key=lambda id: (wording.covers(known[id], rule), wording.likeness(known[id], text)),
        default=None,
    )
    if near is None or wording.covers(known[near], rule) < _SAME:
        return _Wish("add", None, text, reason, numbers)
    if wording.likeness(known[near], text) < _TOUCH and not wording.same_name(known[near], text):
        return _Wish("add", None, text, reason, numbers)
    # Half of the condition's words are enough: a person may have put it in other words.
    conditioned = wording.covers(known[near], condition) >= 0.5
    if conditioned and wording.denies(known[near]) == wording.denies(text):
        return _Wish("keep", near, "", reason, numbers)
    why = "does not state the condition" if not conditioned else "turns the rule round"
    return _Wish("modify", near, text, f"{reason} {near} {why}.", numbers)


def _misleading(
    drawn: contrast.Drawn, known: dict[str, str], taken: set[str | None]
) -> list[_Wish]:
    """Experiences that tell the agent to do what the losers did."""
    return [
        _Wish("delete", id, "", f"The worse attempts do what {id} says.", drawn.attempts)
        for id, text in known.items()
        if drawn.worse and id not in taken and wording.likeness(text, drawn.worse) >= _NEAR
    ]


def consolidate(text: str) -> list[_Wish]:
    found = prompt.sections(text)
    known = prompt.library(found.get("Library now", []))
    told = prompt.proposals(found.get("Proposals", []))
    room = _told(_ROOM, found)
    wishes = _about_known([t for t in told if t.target in known], known)
    fresh = [t for t in told if t.kind == "add" or (t.kind == "modify" and t.target not in known)]
    for same in _alike([t for t in fresh if t.text]):
        best = max(same, key=lambda t: (sum(o.text == t.text for o in same), -t.number))
        numbers = tuple(t.number for t in same)
        reason = best.reason or "The proposals say so."
        wish = _placed(best.text, reason, numbers, known)
        if wish.operation == "add" and room is not None:
            if room == 0:
                continue
            room -= 1
        wishes = _joined(wishes, wish)
    return sorted(wishes, key=lambda w: w.numbers)


def _about_known(told: Sequence[Told], known: dict[str, str]) -> list[_Wish]:
    """One operation for each experience that proposals name: what most of them want."""
    wishes: list[_Wish] = []
    for id in dict.fromkeys(t.target for t in told):
        about = [t for t in told if t.target == id and t.kind != "add"]
        if id is None or not about:
            continue
        votes = {k: sum(t.kind == k for t in about) for k in ("modify", "keep", "delete")}
        # A wording that is improved is kept as well, so keeping does not outvote it.
        kind = "delete" if votes["delete"] > votes["modify"] + votes["keep"] else "keep"
        if kind == "keep" and votes["modify"]:
            kind = "modify"
        best = next(t for t in about if t.kind == kind or kind == "keep")
        text = best.text if kind == "modify" else ""
        if kind == "modify" and wording.likeness(text, known[id]) == 1.0:
            kind, text = "keep", ""
        numbers = tuple(t.number for t in about)
        wishes.append(_Wish(kind, id, text, best.reason or "The proposals say so.", numbers))
    return wishes


def _alike(told: Sequence[Told]) -> list[list[Told]]:
    """Proposals in groups that say the same, by name or by wording."""
    groups: list[list[Told]] = []
    for one in told:
        for group in groups:
            first = group[0].text
            if wording.same_name(first, one.text) or wording.likeness(first, one.text) >= _SAME:
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _joined(wishes: list[_Wish], wish: _Wish) -> list[_Wish]:
    """Let a wish about an experience that already has one join it."""
    for n, old in enumerate(wishes):
        if wish.id is not None and old.id == wish.id:
            # An earlier wish to keep gives way to a better wording; nothing revives a deletion.
            winner = wish if old.operation == "keep" else old
            numbers = tuple(sorted({*old.numbers, *wish.numbers}))
            merged = _Wish(winner.operation, winner.id, winner.experience, winner.reason, numbers)
            return [*wishes[:n], merged, *wishes[n + 1 :]]
    return [*wishes, wish]
