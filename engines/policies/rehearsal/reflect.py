"""Rehearsal as reflector: finds where attempts part, and retells, extracts and consolidates.

Reads nothing but its prompt. Steps with labels tell most; where they have none, how far attempts go
is the lesson. On purpose it is careless here and there, so that a reviewer has something to find.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import orjson

from engines.core.codec import JsonObject, seed_for
from engines.core.frozen import frozen
from engines.core.text.reply import ReplyProblem, parse_objects
from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.prompt import AttemptLine, ShownAttempt

Slip = Literal["copy", "opposite", "leak", "broken"]
"""Says again what the library says, says its opposite, gives the problem and its answer away,
or leaves the end of the reply away."""
_WARM = 0.7  # temperature from which one reader is not like another

# How near two wordings of a lesson are, judged by their words alone: it plays the part of a model's
# judgement, so it shares no code with the check of the studio.
_SAME, _NEAR = 0.8, 0.6  # shares of words that count as one wording, and as one idea
_TOUCH = 0.3  # below it two experiences of different names are about different things
_SMALL_WORDS = """
a an the of to in into it its is are be one that this which what when if and or as at by
for from on so than then there with you your do does up
"""
_PLAIN = frozenset(_SMALL_WORDS.split())
_NEGATION = re.compile(r"\b(?:never|not|no|don't|dont|without|avoid|instead)\b", re.I)


def split_experience(text: str) -> tuple[str, str]:
    """Return name and sentence of an experience; the name is empty where there is none."""
    name, colon, sentence = text.partition(": ")
    return (name.strip(), sentence.strip()) if colon else ("", text.strip())


def content_words(text: str) -> frozenset[str]:
    """Return the words that carry meaning, with plain endings cut."""
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.lower())
    return frozenset(re.sub(r"(?<=..)(?:ing|ed|es|s)$", "", word) for word in words) - _PLAIN


def word_similarity(a: str, b: str) -> float:
    """Return the shared words as a share of all words of both sentences, names left out."""
    words_a, words_b = (content_words(split_experience(text)[1]) for text in (a, b))
    return len(words_a & words_b) / max(len(words_a | words_b), 1)


def word_coverage(text: str, part: str) -> float:
    """Return how much of the part's words the text has; 0 to 1."""
    words = content_words(part)
    return len(words & content_words(text)) / len(words) if words else 1.0


def _is_denied_alike(a: str, b: str) -> bool:
    return bool(_NEGATION.search(a)) == bool(_NEGATION.search(b))


def _has_same_name(a: str, b: str) -> bool:
    names = {split_experience(text)[0].casefold() for text in (a, b)}
    return len(names) == 1 and names != {""}


_CONDITION = re.compile(
    r"((?:when(?:ever)?|if|as soon as|where|wenn|sobald|falls|quand|si)\b.*?), (.*)", re.I | re.S
)
_RULE = re.compile(r"(?<!\ba )\b[^\W\d]{2,}")
"""A word besides those that stand for the problem's numbers."""
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@frozen
class Lesson:
    """A lesson with what supports it."""

    name: str
    sentence: str
    reason: str
    attempts: tuple[int, ...]
    worse: str = ""  # what the losers do where they part; empty where that is not known

    @property
    def text(self) -> str:
        return f"{self.name}: {self.sentence}."


def find_lessons(
    winners: Sequence[ShownAttempt], losers: Sequence[ShownAttempt], problem: str
) -> list[Lesson]:
    """Return lessons of different names, those with the most support first."""
    lessons: dict[str, Lesson] = {}
    for loser in losers:
        # The winner that goes along longest shows the parting most clearly.
        winner = max(winners, key=lambda winner: _shared_count(winner.lines, loser.lines))
        lesson: Lesson | None = _lesson_from_lengths(winner, loser)
        if any(line.label for line in winner.lines):
            lesson = _lesson_from_labels(winner, loser, winners, losers, problem)
        if lesson:
            first = lessons.setdefault(lesson.name, lesson)
            attempts = tuple(sorted({*first.attempts, *lesson.attempts}))
            lessons[lesson.name] = replace(first, attempts=attempts)
    return sorted(lessons.values(), key=lambda lesson: -len(lesson.attempts))


def _shared_count(a: Sequence[AttemptLine], b: Sequence[AttemptLine]) -> int:
    """Return how many steps two attempts have in common from their start."""
    shared = 0
    for step_a, step_b in zip(a, b, strict=False):
        if step_a != step_b:
            break
        shared += 1
    return shared


def _lesson_from_labels(
    winner: ShownAttempt,
    loser: ShownAttempt,
    winners: Sequence[ShownAttempt],
    losers: Sequence[ShownAttempt],
    problem: str,
) -> Lesson | None:
    n = _shared_count(winner.lines, loser.lines)
    if n == len(winner.lines):
        return None  # the loser only goes on longer: no step of the winners to learn from
    step = winner.lines[n]
    worse = generalise_step(loser.lines[n].body, problem) if n < len(loser.lines) else ""
    clause = generalise_step(step.body, problem)
    if clause == worse or not _RULE.search(clause) or "=" in clause:
        return None  # a calculation, or the same thing with another outcome: nothing general in it
    condition, rule = _split_condition(clause)
    condition = condition or _condition_before(winner.lines[:n], problem)
    better_numbers = [attempt.number for attempt in winners if step in attempt.lines]
    worse_numbers = [
        attempt.number
        for attempt in losers
        if attempt.lines[:n] == winner.lines[:n] and attempt.lines[n : n + 1] != (step,)
    ]
    contrast = f"“{worse}”" if worse else "nothing of the kind"
    return Lesson(
        name=step.label[:1].upper() + step.label[1:],
        sentence=f"{condition}, {rule}" if condition else rule,
        reason=(
            f"Where they part: “{clause}” in {_attempts_text(better_numbers)}; "
            f"{contrast} in {_attempts_text(worse_numbers)}."
        ),
        attempts=tuple(sorted([*better_numbers, *worse_numbers])),
        worse=worse,
    )


def generalise_step(body: str, problem: str) -> str:
    """Return a step up to its last colon, where its instance begins, without its numbers.

    Before a colon only the problem's own numbers go.
    """
    clause, colon, _ = body.rpartition(": ")
    text = (clause if colon else body).strip().rstrip(".:")
    own = set(_NUMBER.findall(problem if colon else body))
    return _NUMBER.sub(lambda m: "a number" if m[0] in own else m[0], text)


def _split_condition(clause: str) -> tuple[str, str]:
    """Return condition and rule; the condition is empty where the clause begins with none."""
    match = _CONDITION.fullmatch(clause)
    return (match[1].strip(), match[2].strip()) if match else ("", clause)


def _condition_before(lines: Sequence[AttemptLine], problem: str) -> str:
    """Return the nearest condition that the shared steps state, or the step one comes from."""
    for line in reversed(lines):
        if condition := _split_condition(generalise_step(line.body, problem))[0]:
            return condition
    return f"when “{lines[-1].label}” is done" if lines and lines[-1].label else ""


def _attempts_text(numbers: Sequence[int]) -> str:
    *most, last = (str(n) for n in numbers)
    return f"attempts {', '.join(most)} and {last}" if most else f"attempt {last}"


def _lesson_from_lengths(winner: ShownAttempt, loser: ShownAttempt) -> Lesson:
    """Return a lesson from two attempts whose steps have no labels: which of them goes further."""
    if len(loser.lines) < len(winner.lines):
        name = "Go on to what is asked"
        sentence = (
            "when a number has been found, compare it with what the problem asks for and go on "
            "while something is left to do"
        )
    else:
        name = "Check each result"
        sentence = "when a calculation is done, work it out a second time before you go on"
    return Lesson(
        name=name,
        sentence=sentence,
        reason=f"Attempt {winner.number} is better than attempt {loser.number}.",
        attempts=(winner.number, loser.number),
    )


_TASK = re.compile(r"# Task: (summarise|extract|consolidate|repair|judge)\s*$", re.M)
_LIMIT = re.compile(r"\bat most (\d+) objects?\b")
_ROOM = re.compile(r"\b(\d+) may be added\b")
_BECAUSE = "because: "
_PROPOSAL = re.compile(
    r"^### Proposal (\d+)\b.*·\s*(add|modify|delete|keep)\b\s*(?:\[?([A-Za-z]*\d+)\]?)?"
)


@frozen
class Operation:
    """One wish for the library, resting on numbered attempts or proposals."""

    operation: str
    id: str | None
    experience: str
    reason: str
    numbers: tuple[int, ...]


def parse_task_name(text: str) -> str | None:
    """Return which task a prompt's first line names; None for anything else."""
    match = _TASK.match(text)
    return match[1] if match else None


def chance_slips(seed: int, temperature: float) -> dict[str, Slip]:
    """What a warm reader does at any problem: one in three rewords, one turns a rule round."""
    draw = seed_for(seed, "slip") % 3
    if temperature < _WARM or not draw:
        return {}
    return {"": "copy" if draw == 1 else "opposite"}


def reflector_reply(
    text: str, fenced: bool = False, slips: Mapping[str, Slip] | None = None
) -> str:
    """Reply to a reflector's prompt; `fenced` puts the JSON between fences.

    With `slips` it is careless: at the problems they name, and in taking over what is proposed.
    """
    slips = slips or {}
    task = parse_task_name(text)
    sections = prompt.parse_sections(text)
    if task == "summarise":
        return summarise(sections)
    if task == "repair":
        return repair(sections, careful="broken" not in slips.values())
    if task != "extract":
        rows = consolidate(sections, careful=not slips)
        return _json_reply(rows, fenced)
    problem = prompt.quoted_text(sections, "Problem")
    slip = next((slip for words, slip in slips.items() if words in problem), None)
    rows = [_row(operation, "attempts") for operation in extract(sections, slip)]
    if any('{"credit"' in line for line in sections["Reply"]):
        rows += credit_rows(sections)
    reply = _json_reply(rows, fenced and slip != "broken")
    return reply.rstrip("]}\n") if slip == "broken" else reply


def _row(operation: Operation, evidence: str) -> JsonObject:
    return {
        "operation": operation.operation,
        "id": operation.id,
        "experience": operation.experience,
        "reason": operation.reason,
        evidence: operation.numbers,
    }


def _json_reply(rows: Sequence[Mapping[str, Any]], fenced: bool = False) -> str:
    return prompt.fence(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode(), fenced)


def repair(sections: Mapping[str, Sequence[str]], *, careful: bool) -> str:
    """Return the shown reply as a plain array, an empty one where too little of it is left.

    Where it is not `careful` the reply comes back as it was.
    """
    shown = "\n".join(line[2:] for line in sections["The reply"] if line.startswith("|"))
    if not careful:
        return shown
    with suppress(ReplyProblem):
        return _json_reply(parse_objects(shown))
    return "[]"


def summarise(sections: Mapping[str, Sequence[str]]) -> str:
    """Return the attempt's steps, numbered, each with its own words."""
    block = next((lines for name, lines in sections.items() if name.startswith("Attempt")), ())
    steps, final = prompt.parse_attempt(prompt.unquote_lines(block))
    lines = []
    for n, step in enumerate(steps, 1):
        lines.append(f"{n}. ({step.label}) {step.body}" if step.label else f"{n}. {step.body}")
    return "\n".join([*lines, f"#### {final or 'no answer'}"])


def extract(sections: Mapping[str, Sequence[str]], slip: Slip | None = None) -> list[Operation]:
    library = prompt.parse_library(sections["Library now"])
    truth = prompt.parse_expected_answers(sections["Expected answer"])
    problem = prompt.quoted_text(sections, "Problem")
    attempts = prompt.parse_attempts(sections["Attempts"])
    operations: list[Operation] = []
    for lesson in find_lessons(*prompt.split_winners(attempts, truth), problem):
        if slip in ("copy", "opposite", "leak"):
            text = _reword_carelessly(lesson, slip, problem, truth)
            return [Operation("add", None, text, lesson.reason, lesson.attempts)]
        operation = _place_lesson(lesson.text, lesson.reason, lesson.attempts, library)
        if operation.id is None or all(o.id != operation.id for o in operations):
            operations.append(operation)
        # Experiences that tell the agent to do what the losers did are deleted.
        for id, text in library.items():
            fresh = all(o.id != id for o in operations)
            if lesson.worse and fresh and word_similarity(text, lesson.worse) >= _NEAR:
                operations.append(
                    Operation(
                        "delete", id, "", f"The worse attempts do what {id} says.", lesson.attempts
                    )
                )
    return operations[: _parse_limit(_LIMIT, sections)]


def _reword_carelessly(lesson: Lesson, slip: Slip, problem: str, truth: Sequence[str]) -> str:
    """Return a lesson as the slip has it."""
    condition, _, rule = lesson.sentence.partition(", ")
    if slip == "leak":
        answers = " or ".join(truth)
        return f"{lesson.name}: {lesson.sentence}, as in “{problem}”, which gives {answers}."
    if not rule:
        return lesson.text
    if slip == "copy":
        return f"{lesson.name}: {rule} {condition}."
    return f"{lesson.name}: {condition}, never {rule}."


def credit_rows(sections: Mapping[str, Sequence[str]]) -> list[JsonObject]:
    """Return what each experience did in the attempts shown."""
    attempts = prompt.parse_attempts(sections["Attempts"])
    rows: list[JsonObject] = []
    for id, text in prompt.parse_library(sections["Library now"]).items():
        rule = split_experience(text)[1]
        uses: dict[str, list[int]] = {"used": [], "ignored": []}
        for attempt in attempts:
            follows = any(
                word_coverage(line.body, rule) >= _SAME and _is_denied_alike(line.body, rule)
                for line in attempt.lines
            )
            uses["used" if follows else "ignored"].append(attempt.number)
        # What no attempt uses is about another kind of problem.
        if uses["used"]:
            rows += [{"credit": id, "use": use, "attempts": of} for use, of in uses.items() if of]
    return rows


def _parse_limit(number: re.Pattern[str], sections: Mapping[str, Sequence[str]]) -> int | None:
    """Return a number that the instructions for the reply name; None where they do not."""
    match = number.search("\n".join(sections["Reply"]))
    return int(match[1]) if match else None


def _place_lesson(
    text: str, reason: str, numbers: tuple[int, ...], library: Mapping[str, str]
) -> Operation:
    """Add a lesson, or keep or modify the experience that already holds its rule."""
    condition, rule = _split_condition(split_experience(text)[1])
    candidates = [
        (word_similarity(held, text), id)
        for id, held in library.items()
        if word_coverage(held, rule) >= _SAME
    ]
    similarity, id = max(candidates, default=(0.0, ""))
    if not id or not (similarity >= _TOUCH or _has_same_name(library[id], text)):
        return Operation("add", None, text, reason, numbers)
    # Half of the condition's words are enough: a person may have put it in other words.
    if word_coverage(library[id], condition) < 0.5:
        return Operation(
            "modify", id, text, f"{reason} {id} does not state the condition.", numbers
        )
    if not _is_denied_alike(library[id], text):
        return Operation("modify", id, text, f"{reason} {id} turns the rule round.", numbers)
    return Operation("keep", id, "", reason, numbers)


def consolidate(sections: Mapping[str, Sequence[str]], *, careful: bool = True) -> list[JsonObject]:
    """Return one operation for what says the same, and the proposals that none needs, with why.

    Additions stay as they are where not `careful`.
    """
    library = prompt.parse_library(sections["Library now"])
    groups: list[list[Operation]] = []
    for heading, lines in prompt.split_blocks(sections["Proposals"], _PROPOSAL):
        text = " ".join(line for line in lines if not line.startswith(_BECAUSE))
        reason = " ".join(
            line.removeprefix(_BECAUSE) for line in lines if line.startswith(_BECAUSE)
        )
        wish = Operation(heading[2], heading[3], text, reason, (int(heading[1]),))
        if text and wish.id not in library:
            wish = _place_lesson(text, reason, wish.numbers, library if careful else {})
        alike = (group for group in groups if _says_the_same(group[0], wish, careful))
        group = next(alike, None)
        if group is None:
            group = []
            groups.append(group)
        group.append(wish)
    room = _parse_limit(_ROOM, sections)
    rows: list[JsonObject] = []
    for group in groups:
        best = _choose_operation(group)
        numbers = tuple(number for wish in group for number in wish.numbers)
        row = _row(replace(best, numbers=numbers), "proposals")
        if best.id not in {None, *library}:
            missing = "It is about an experience that the library does not hold."
            row = {"drop": numbers, "because": missing}
        elif best.id is None and room is not None:
            room -= 1
            if room < 0:
                row = {"drop": numbers, "because": "The library has no room for it."}
        rows.append(row)
    return rows


def _says_the_same(a: Operation, b: Operation, careful: bool) -> bool:
    if a.id or b.id or a.experience == b.experience:
        return a.id == b.id
    alike = word_similarity(a.experience, b.experience) >= _SAME
    return careful and (alike or _has_same_name(a.experience, b.experience))


def _choose_operation(group: Sequence[Operation]) -> Operation:
    """Return what most wishes of a group want, in the wording that occurs most often."""
    kinds = [wish.operation for wish in group]
    kind = "keep" if "keep" in kinds else kinds[0]
    if kinds.count("delete") * 2 > len(kinds):
        kind = "delete"
    elif "modify" in kinds:  # a wording that is improved is kept as well
        kind = "modify"
    wishes = [wish for wish in group if wish.operation == kind]
    texts = Counter(wish.experience for wish in wishes)
    return max(wishes, key=lambda wish: texts[wish.experience])
