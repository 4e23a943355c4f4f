"""Rehearsal as reflector: finds where attempts part, and retells, extracts and consolidates.

Reads nothing but its prompt. Steps tell most; where attempts are plain sentences with calculations,
the kind of calculation that differs is the lesson.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from engines.core.text.reply import ReplyProblem, parse_objects
from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.families import (
    Calculation,
    Slip,
    compare_chains,
    has_negation,
    has_same_name,
    parse_calculations,
    reword_carelessly,
    shared_prefix_length,
    slip_at,
    split_experience,
    word_coverage,
    word_similarity,
)
from engines.policies.rehearsal.prompt import AttemptLine, ShownAttempt, ShownProposal

_CONDITION = re.compile(
    r"^(?:when(?:ever)?|if|as soon as|where|wenn|sobald|falls|quand|si)\b", re.I
)
_MARKER = re.compile(r"\b(?:when(?:ever)?|if|always|because|must|should)\b", re.I)
_REASON = re.compile(r"^.*?\bbecause (?=(?:when(?:ever)?|if|where)\b)", re.I)
_RULE = re.compile(r"(?<!\ba )\b[^\W\d]{2,}")
"""A word besides those that stand for the problem's numbers."""
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class ContrastLesson:
    """A lesson with what supports it."""

    name: str
    sentence: str
    worse: str  # what the losers do where they part; empty where that is not known
    reason: str
    attempts: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"{self.name}: {self.sentence}."


def find_lessons(
    winners: Sequence[ShownAttempt], losers: Sequence[ShownAttempt], problem: str
) -> list[ContrastLesson]:
    """Lessons of different names, those with the most support first."""
    drawn: dict[str, ContrastLesson] = {}
    for loser in losers:
        # The winner that goes along longest shows the parting most clearly.
        winner = max(winners, key=lambda w: (_shared_step_count(w, loser), -w.number))
        if _has_labels(winner) and _has_labels(loser):
            lesson = _lesson_from_labels(winner, loser, winners, losers, problem)
        else:
            lesson = _lesson_from_chains(winner, loser, problem)
        if lesson:
            first = drawn.setdefault(lesson.name, lesson)
            together = tuple(sorted({*first.attempts, *lesson.attempts}))
            drawn[lesson.name] = replace(first, attempts=together)
    return sorted(drawn.values(), key=lambda d: -len(d.attempts))


def find_asked(shown: Sequence[ShownAttempt], problem: str) -> list[ContrastLesson]:
    """Lessons from what the verifier says of every attempt, where it names a rule."""
    drawn: dict[str, ContrastLesson] = {}
    numbers = tuple(s.number for s in shown)
    for line in shown[0].critique if shown else ():
        rule = _REASON.sub("", line, count=1)
        if all(line in s.critique for s in shown) and (found := _lesson_in(rule, problem)):
            name, sentence = found
            reason = f"The verifier says so of {_attempts_text(numbers)}."
            drawn.setdefault(name, ContrastLesson(name, sentence, "", reason, numbers))
    return list(drawn.values())


def _has_labels(shown: ShownAttempt) -> bool:
    return any(line.label for line in shown.lines)


def _calculations(shown: ShownAttempt) -> tuple[Calculation, ...]:
    return parse_calculations([line.body for line in shown.lines])


def _shared_step_count(one: ShownAttempt, other: ShownAttempt) -> int:
    if _has_labels(one) and _has_labels(other):
        return shared_prefix_length(one.lines, other.lines)
    return shared_prefix_length(_calculations(one), _calculations(other))


def _lesson_from_chains(
    winner: ShownAttempt, loser: ShownAttempt, problem: str
) -> ContrastLesson | None:
    finding = compare_chains(_calculations(winner), _calculations(loser))
    if finding is None:
        return _lesson_from_words(winner, loser, problem)
    numbers = (winner.number, loser.number)
    reason = f"Attempt {winner.number} against attempt {loser.number}: {finding.seen}."
    return ContrastLesson(finding.name, finding.sentence, "", reason, numbers)


def _lesson_from_labels(
    winner: ShownAttempt,
    loser: ShownAttempt,
    winners: Sequence[ShownAttempt],
    losers: Sequence[ShownAttempt],
    problem: str,
) -> ContrastLesson | None:
    n = shared_prefix_length(winner.lines, loser.lines)
    if n == len(winner.lines):
        return None  # the loser only goes on longer: no step of the winners to learn from
    step = winner.lines[n]
    worse = generalise_step(loser.lines[n].body, problem) if n < len(loser.lines) else ""
    clause = generalise_step(step.body, problem)
    if clause == worse or not _RULE.search(clause) or "=" in clause:
        return None  # a calculation, or the same thing with another outcome: nothing general in it
    condition, rule = _split_condition(clause)
    condition = condition or _condition_before(winner.lines[:n], problem)
    name = step.label[:1].upper() + step.label[1:]
    better_numbers = [w.number for w in winners if step in w.lines]
    worse_numbers = [
        s.number
        for s in losers
        if s.lines[:n] == winner.lines[:n] and s.lines[n : n + 1] != (step,)
    ]
    reason = (
        f"Where they part: “{clause}” in {_attempts_text(better_numbers)}; "
        f"{f'“{worse}”' if worse else 'nothing of the kind'} in {_attempts_text(worse_numbers)}."
    )
    return ContrastLesson(
        name,
        f"{condition}, {rule}" if condition else rule,
        worse,
        reason,
        tuple(sorted([*better_numbers, *worse_numbers])),
    )


def _lesson_from_words(
    winner: ShownAttempt, loser: ShownAttempt, problem: str
) -> ContrastLesson | None:
    """Attempts without labels and calculations: only a general sentence can be a lesson."""
    seen = {line.body for line in loser.lines}
    for line in winner.lines:
        if line.body in seen or not _MARKER.search(line.body):
            continue
        reason = f"Attempt {winner.number} says so and attempt {loser.number} does not."
        lesson = _lesson_in(line.body, problem)
        return (
            ContrastLesson(*lesson, "", reason, (winner.number, loser.number)) if lesson else None
        )
    return None


def _lesson_in(line: str, problem: str) -> tuple[str, str] | None:
    """Name and sentence of the rule that a line states from its marker on; None where none."""
    if not (found := _MARKER.search(line)):
        return None
    clause = generalise_step(line[found.start() :], problem).rstrip(".")
    condition, rule = _split_condition(clause)
    sentence = clause if condition else f"at such a problem, {clause}"
    name = " ".join(re.findall(r"[^\W\d]+", rule)[:3]).capitalize()
    return (name, sentence) if name else None


def generalise_step(body: str, problem: str) -> str:
    """A step up to its last colon, where its instance begins, without the problem's numbers."""
    clause, colon, _ = body.rpartition(": ")
    text = (clause if colon else body).strip().rstrip(".:")
    own = set(_NUMBER.findall(problem))
    if not colon:
        return _NUMBER.sub("a number", text)
    return _NUMBER.sub(lambda m: "a number" if m.group() in own else m.group(), text)


def _split_condition(clause: str) -> tuple[str, str]:
    """Condition and rule; the condition is empty where the clause begins with none."""
    before, comma, after = clause.partition(", ")
    if comma and _CONDITION.match(clause):
        return before.strip(), after.strip()
    return "", clause


def _condition_before(lines: Sequence[AttemptLine], problem: str) -> str:
    """The nearest condition that the shared steps state, or the step one comes from."""
    for line in reversed(lines):
        if condition := _split_condition(generalise_step(line.body, problem))[0]:
            return condition
    return f"when “{lines[-1].label}” is done" if lines and lines[-1].label else ""


def _attempts_text(numbers: Sequence[int]) -> str:
    *most, last = (str(n) for n in numbers)
    return f"attempts {', '.join(most)} and {last}" if most else f"attempt {last}"


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
        case _:
            wishes, drops = consolidate(text, careful=not slips)
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
    for drawn in find_lessons(winners, losers, problem) if winners else find_asked(shown, problem):
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
        rule = split_experience(said)[1]
        used = [s.number for s in shown if any(_follows(line.body, rule) for line in s.lines)]
        # What no attempt uses is about another kind of problem.
        ignored = [s.number for s in shown if used and s.number not in used]
        uses = {"used": used, "ignored": ignored}
        rows += [{"credit": id, "use": use, "attempts": of} for use, of in uses.items() if of]
    return rows


def _follows(step: str, rule: str) -> bool:
    return word_coverage(step, rule) >= _SAME and (has_negation(step) == has_negation(rule))


def _parse_limit(number: re.Pattern[str], found: dict[str, list[str]]) -> int | None:
    """A number that the instructions for the reply name; None where they do not."""
    match = number.search("\n".join(found.get("Reply", [])))
    return int(match[1]) if match else None


def _place_lesson(
    text: str, reason: str, numbers: tuple[int, ...], known: dict[str, str]
) -> _ProposedOperation:
    """Add a lesson, or keep or modify the experience that already holds its rule."""
    condition, _, rule = split_experience(text)[1].partition(", ")
    condition, rule = (condition, rule) if rule else ("", condition)
    near = max(
        known,
        key=lambda id: (
            word_coverage(known[id], rule),
            word_similarity(known[id], text),
        ),
        default=None,
    )
    if (
        near is None
        or word_coverage(known[near], rule) < _SAME
        or not (word_similarity(known[near], text) >= _TOUCH or has_same_name(known[near], text))
    ):
        return _ProposedOperation("add", None, text, reason, numbers)
    # Half of the condition's words are enough: a person may have put it in other words.
    conditioned = word_coverage(known[near], condition) >= 0.5
    if conditioned and has_negation(known[near]) == has_negation(text):
        return _ProposedOperation("keep", near, "", reason, numbers)
    why = "does not state the condition" if not conditioned else "turns the rule round"
    return _ProposedOperation("modify", near, text, f"{reason} {near} {why}.", numbers)


def _delete_misleading(
    drawn: ContrastLesson, known: dict[str, str], taken: set[str | None]
) -> list[_ProposedOperation]:
    """Experiences that tell the agent to do what the losers did."""
    why = "The worse attempts do what {} says."
    return [
        _ProposedOperation("delete", id, "", why.format(id), drawn.attempts)
        for id, text in known.items()
        if drawn.worse and id not in taken and word_similarity(text, drawn.worse) >= _NEAR
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
    near = [id for id in known if word_similarity(known[id], text) >= _NEAR]
    opposed = has_negation(text)
    same = [id for id in near if has_negation(known[id]) == opposed]
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
        if kind == "modify" and word_similarity(text, known[id]) == 1.0:
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
            alike = has_same_name(*pair) or word_similarity(*pair) >= _SAME
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
