"""Reads what one group shows: its attempts, as the reflector sees them, become proposals.

Owns what the reflector is shown, how it is asked, and how its replies are read. Every line of
foreign text is prefixed, so that a heading can only be ours. A question is asked once, and once
more with what was wrong with the reply. A row that cannot be used is a problem, worded in a
sentence that the repair turn shows to the model. What is only left out of a row, or is no lesson
anyway, is a note: recorded, and no reason to ask again.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from engines.core import codec, errors, library_notes, protocols, waiting
from engines.core import types as names
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.text import sanitize, tool_text
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import (
    FoundObjects,
    ParsedReply,
    RepairResult,
    ReplyProblem,
    ask_with_repair,
    find_objects,
    parse_experience_id,
)
from engines.core.types import (
    NO_USAGE,
    Attempt,
    CallKey,
    Completion,
    Credit,
    Doubt,
    Flag,
    Group,
    GroupOutcome,
    LostWork,
    Message,
    Names,
    Operation,
    OperationKind,
    Problem,
    Proposal,
    RecordRef,
    Reflection,
    Usage,
    Verdict,
)
from engines.training_free.settings import TrainingFreeSettings

MOST_OF_A_SIDE = 2
"""Attempts shown of the better ones, and of the worse: a third with another answer adds little."""
_FINAL_CHARS = 60
_CUT_ROOM = 80  # characters that tell of a cut, at most
_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_MARKER = re.compile(r"^[\s>*_`#-]*(?:a|(?:the )?(?:final )?answer(?: is)?)[\s*_]*[:：]\s*", re.I)
# What the built-in verifiers say of an answer that equals the expected one.
_EQUALITY = re.compile(r"(?:[\w-]+: )?(?:.+ == |matches )(.+?)…?")
_VERDICT_WORDS = re.compile(
    r"\b(?:right|wrong|(?:in)?correct|true|false|pass(?:ed)?|fail(?:ed|s)?|not?|yes|ok|bad|good"
    r"|the|answer|result|is|was|reward|score)\b|[\W\d_]",
    re.I,
)


@frozen
class ShownAttempt:
    """One attempt as the reflector reads it."""

    index: int
    reward: float | None
    text: str
    critique: Names = ()  # the verifier's lines, never summarised and never cut
    final: str = ""  # its last line as far as it states an answer, to tell attempts apart

    @property
    def reward_note(self) -> str:
        return "" if self.reward is None else f" · reward {self.reward:.2f}"


def shown_attempts(group: Group, rewards_known: bool) -> tuple[ShownAttempt, ...]:
    """The attempts that did not fail and, where rewards are shown, have one.

    The verifier's critique names the expected answer, so it goes with the rewards.
    """
    return tuple(
        ShownAttempt(
            rollout.index,
            verdict.reward if rewards_known else None,
            _attempt_text(rollout.attempt),
            _critique_lines(verdict, group.problem) if rewards_known else (),
            _final_answer(rollout.attempt.answer or ""),
        )
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
        if rollout.attempt.status != "failed" and (verdict.reward is not None or not rewards_known)
    )


def library_seen(
    library: Library, groups: Sequence[Group], targets: Collection[str | None] = ()
) -> Library:
    """The experiences that stood in the prompts of these groups, where not all of it did.

    Those that `targets` name are kept, too.
    """
    shown = [rollout.shown for group in groups for rollout in group.rollouts]
    if None in shown:
        return library
    seen = {name for ids in shown for name in ids or ()}.union(targets)
    return replace(library, experiences=tuple(e for e in library.experiences if e.id in seen))


def says_why(group: Group) -> bool:
    """Whether a group tells what was wanted: by an expected answer, or by more than a verdict."""
    said = (line for v in group.verdicts for line in _critique_lines(v, group.problem))
    return bool(group.problem.accepted_answers) or any(_VERDICT_WORDS.sub("", x) for x in said)


def choose_attempts(
    attempts: Sequence[ShownAttempt], min_contrast: float
) -> tuple[tuple[ShownAttempt, ...], tuple[ShownAttempt, ...]]:
    """Those to be read and the rest, each in their order.

    Of the better ones and of the others two of different final answers, the shortest first.
    Where no reward is known, how often an answer was given is all there is: everything is read.
    """
    known = [attempt.reward for attempt in attempts if attempt.reward is not None]
    if not known:
        return tuple(attempts), ()
    best = max(known)
    chosen: set[int] = set()
    for worse in (False, True):
        finals: set[str] = set()
        for attempt in sorted(attempts, key=lambda a: (len(a.text), a.index)):
            gap = 0.0 if attempt.reward is None else best - attempt.reward
            is_worse = gap > 0 and gap >= min_contrast - 1e-9
            if is_worse == worse and attempt.final not in finals and len(finals) < MOST_OF_A_SIDE:
                finals.add(attempt.final)
                chosen.add(attempt.index)
    shown = tuple(attempt for attempt in attempts if attempt.index in chosen)
    return shown, tuple(attempt for attempt in attempts if attempt.index not in chosen)


def cut_middle(text: str, most: int) -> str:
    """A text of at most so many characters and a note, which says how many are left out."""
    if len(text) <= most + _CUT_ROOM:
        return text
    head = most * 2 // 3
    tail = most - head
    left_out = f"… {len(text) - most:,} characters left out in the middle …"
    return f"{text[:head]}\n{left_out}\n{text[len(text) - tail :]}"


def attempts_block(attempts: Sequence[ShownAttempt]) -> str:
    blocks = []
    for attempt in attempts:
        text = quote("\n".join([attempt.text, *_verifier_notes(attempt.critique)]))
        blocks.append(f"### Attempt {attempt.index}{attempt.reward_note}\n{text}")
    return "\n\n".join(blocks)


def rest_block(rest: Sequence[ShownAttempt], shown: Sequence[ShownAttempt]) -> str:
    """Attempts that are not shown, counted by how they ended; "" where there are none.

    What the verifier says of them stands here unless it says it of one that is shown.
    """
    alike: dict[tuple[str, str, Names], list[int]] = {}
    said = {attempt.critique for attempt in shown}
    for attempt in rest:
        critique = () if attempt.critique in said else attempt.critique
        alike.setdefault((attempt.final, attempt.reward_note, critique), []).append(attempt.index)
    lines = []
    for (final, reward, critique), numbers in alike.items():
        named = ", ".join(str(n) for n in numbers)
        lines.append(f"{len(numbers)} more ({named}){reward}, ended with: {final or '(nothing)'}")
        lines += _verifier_notes(critique)
    return "\n\n## Attempts that are not shown\n\n" + quote("\n".join(lines)) if lines else ""


def library_before_text(group: Group, library: Library) -> str:
    """Which of the library stood in front of the attempts, as a sentence."""
    if not library.experiences:
        return "No experience stood in front of them."
    versions = [rollout.library_version for rollout in group.rollouts]
    if len(set(versions)) > 1:
        rows = [f"version {version} before attempt {i}" for i, version in enumerate(versions)]
        return f"The library changed between the attempts: {', '.join(rows)}."
    if len({rollout.shown for rollout in group.rollouts}) > 1:
        return "Not all of it stood in front of every attempt."
    shown = group.rollouts[0].shown
    if shown is None:
        return "The whole library stood in front of them."
    return f"Of the library, {', '.join(shown) or 'nothing'} stood in front of them."


PAST_DECISIONS = 8
"""Decisions that a prompt shows, the newest first."""
_DECISION_CHARS = 400


def past_decisions_block(library: Library) -> str:
    """The newest rejections and edits as quoted blocks; "(none)" where there are none.

    Nothing in it tells when or in which run: equal decisions give equal prompts.
    """
    blocks: dict[tuple[str, str], None] = {}
    for idea in reversed(library.notes.curated):
        lines = [_shorten(idea.text)]
        if idea.became:
            lines.append(f"became: {_shorten(idea.became)}")
        lines.append(f"because: {_shorten(idea.reason) or '(no reason given)'}")
        heading = f"{'Reworded' if idea.became else 'Rejected'} · {idea.kind}"
        blocks[heading, quote("\n".join(lines))] = None
        if len(blocks) == PAST_DECISIONS:
            break
    return "\n\n".join(f"### {heading}\n{text}" for heading, text in blocks) or "(none)"


def _shorten(text: str) -> str:
    return " ".join(text.split())[:_DECISION_CHARS]


def proposals_block(proposals: Sequence[tuple[Proposal, str]]) -> str:
    """Proposals numbered from 1, each with its kind, what it rests on, its text and reason."""
    blocks = []
    for number, (proposal, rests_on) in enumerate(proposals, 1):
        kind = proposal.kind if proposal.target is None else f"{proposal.kind} {proposal.target}"
        lines = [proposal.text] if proposal.text else []
        lines.append(f"because: {proposal.rationale or '(no reason given)'}")
        heading = f"### Proposal {number} · {kind}\nrests on {rests_on}"
        blocks.append(f"{heading}\n{quote(chr(10).join(lines))}")
    return "\n\n".join(blocks)


def _verifier_notes(critique: Sequence[str]) -> list[str]:
    return [f"(verifier: {line})" for line in critique]


def _critique_lines(verdict: Verdict, problem: Problem) -> Names:
    """What the verifier says, without lines that only equate the answer with the expected one."""

    def equates(line: str) -> bool:
        found = _EQUALITY.fullmatch(line) if verdict.reward else None
        return found is not None and any(
            found[1] in " ".join(text.split()) for text in problem.accepted_answers
        )

    lines = (line.strip() for line in (verdict.critique or "").splitlines())
    return tuple(line for line in lines if line and not equates(line))


def _attempt_text(attempt: Attempt) -> str:
    """What the attempt said and did, from its first reply on."""
    said = [m for m in attempt.messages if m.role in ("assistant", "tool")]
    if len(said) == 1 and not said[0].tool_calls:
        text = said[0].content or said[0].reasoning
    else:
        text = "\n".join(line for m in said for line in _message_lines(m))
    if attempt.metrics.get("grounded") == 0:
        text += "\n(rests on no evidence: no tool gave anything)"
    return text + "\n(cut off at the length limit)" if attempt.status == "truncated" else text


def _final_answer(text: str) -> str:
    """The last line without the marks around an answer: equal for equal answers as a rule."""
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    boxes = _BOX.findall(last)
    bare = boxes[-1] if boxes else _MARKER.sub("", last).strip(" \t*_`#.")
    return " ".join(bare.split()).casefold()[:_FINAL_CHARS]


def _message_lines(message: Message) -> list[str]:
    """A reply with what it calls, or a result, each line marked: none is the agent's own words."""
    if message.role == "tool":
        return [f"[tool] {line}" for line in message.content.splitlines() or [""]]
    said = [f"[assistant] {message.content}"] if message.content or not message.tool_calls else []
    if message.speaker:
        said = [f"[{message.speaker}] {line}" for line in tool_text.said_text(message).splitlines()]
    called = (f"[calls {call.name}] {call.arguments}" for call in message.tool_calls)
    return [*said, *(" ".join(call.splitlines()) for call in called)]


MAX_PROBLEMS = 20
"""That are told in the repair turn and journalled with the reply: 60,000 fit into one."""
_KINDS: tuple[OperationKind, ...] = ("add", "modify", "delete", "keep")
"""What a model may propose: pins are people's, weights the trainer's."""
_SYNONYMS = {"update": "modify", "remove": "delete", "none": "keep", "create": "add"}
_NOTES = ("credit", "doubt", "drop")
_ALIASES = {
    "option": "operation",
    "kind": "operation",
    "target": "id",
    "text": "experience",
    "content": "experience",
    "rationale": "reason",
    "because": "reason",
}
"""Names that models use for a field, and its own."""
_FIELDS = {*_NOTES, *_ALIASES, *_ALIASES.values(), "attempts", "proposals", "use"}
Use = Literal["used", "ignored", "misled"]
_USES: tuple[Use, ...] = ("used", "ignored", "misled")
_NUMBER = re.compile(r"(?:r|p|attempt|proposal)?\s*#?\s*([0-9]{1,9})", re.IGNORECASE)
_Fields = codec.JsonMapping
_Row = TypeVar("_Row")


@frozen
class Suggestion:
    """One operation of a reply. `sources` are the attempt or proposal numbers it names."""

    kind: OperationKind
    target: str | None
    text: str
    reason: str
    sources: tuple[int, ...]
    same_as: str | None = None  # the experience that says the same already
    conflicts_with: Names = ()  # experiences that say the opposite
    only_this_problem: bool = False  # it holds for no other problem

    def as_operation(
        self, *, evidence: Iterable[str], problems: Iterable[str], proposer: str, prompt_hash: str
    ) -> Operation:
        """An operation that has no id yet; what stands behind it counts once."""
        return Operation(
            id="",
            kind=self.kind,
            target=self.target,
            text=self.text,
            rationale=self.reason,
            evidence=tuple(dict.fromkeys(evidence)),
            proposer=proposer,
            prompt_hash=prompt_hash,
            problems=tuple(dict.fromkeys(problems)),
            flags=self.flags,
        )

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What the model itself says against it; it measures nothing, so none has a score."""
        if self.kind not in ("add", "modify"):
            return ()
        flags = []
        if self.same_as:
            flags.append((names.DUPLICATE, f"{self.same_as} says it already"))
        if self.conflicts_with:
            flags.append((names.CONFLICT, f"it contradicts {', '.join(self.conflicts_with)}"))
        if self.only_this_problem:
            flags.append((names.ONE_PROBLEM, "it holds for no other problem"))
        return tuple(Flag(name, None, f"the reflector: {what}") for name, what in flags)


@frozen
class CreditRow:
    """What became of one experience in the attempts with these numbers."""

    experience: str
    use: Use
    sources: tuple[int, ...]  # () where it names none


@frozen
class DoubtRow:
    """Verdicts that contradict their attempts."""

    reason: str
    sources: tuple[int, ...]  # at least one


@frozen
class DropRow:
    """Proposals that no operation needs."""

    sources: tuple[int, ...]  # at least one
    reason: str


ExtractionRow = Suggestion | CreditRow | DoubtRow
ConsolidationRow = Suggestion | DropRow


def rank_rows(rows: Sequence[object]) -> tuple[int, int]:
    """For `ask_with_repair`: more suggestions are worth more than any number of other rows."""
    return sum(isinstance(row, Suggestion) for row in rows), len(rows)


def parse_extraction(
    reply: str, library: Library, *, known: Sequence[int], limit: int | None
) -> ParsedReply[ExtractionRow]:
    """Read what a group shows; ReplyProblem where there is no list of objects in it.

    `known` are the numbers of the attempts shown. A suggestion that says nothing of attempts
    rests on all of them: it was drawn from them. `limit` is the most changes that may come,
    None for any number; `keep` changes nothing and does not count.
    """
    reading = _Reading(library, "attempts", known)

    def read(fields: _Fields) -> Sequence[ExtractionRow]:
        if (note := _note_of(fields)) == "credit":
            return reading.read_credits(fields)
        return reading.read_doubt(fields) if note == "doubt" else [reading.read_operation(fields)]

    parsed = reading.read_rows(find_objects(reply, _FIELDS), read)
    changes = _changes(parsed.items)
    if limit is None or len(changes) <= limit:
        return parsed
    problem = f"It holds {len(changes)} changes and at most {limit} are wanted."
    late = {id(row) for row in changes[limit:]}
    items = tuple(row for row in parsed.items if id(row) not in late)
    return replace(parsed, items=items, problems=(*parsed.problems, problem))


def parse_consolidation(
    reply: str, library: Library, *, known: Sequence[int], bound: int | None
) -> ParsedReply[ConsolidationRow]:
    """Read what the batch should change; ReplyProblem where that cannot be told.

    `known` are the numbers of the proposals. An operation that names none rests on none: which
    of the whole batch it would be is nobody's to guess. More changes than `bound` are no reply
    to read at all; None: any number.
    """
    reading = _Reading(library, "proposals", known)

    def read(fields: _Fields) -> Sequence[ConsolidationRow]:
        is_drop = _note_of(fields) == "drop"
        return reading.read_drop(fields) if is_drop else [reading.read_operation(fields)]

    parsed = reading.read_rows(find_objects(reply, _FIELDS), read)
    changes = len(_changes(parsed.items))
    if bound is not None and changes > bound:
        raise ReplyProblem(f"it holds {changes:,} operations, and at most {bound:,} are taken.")
    return parsed


def _changes(rows: Iterable[object]) -> list[Suggestion]:
    return [row for row in rows if isinstance(row, Suggestion) and row.kind != "keep"]


@dataclass(slots=True)
class _Reading:
    """Reads the rows of one reply, and notes what it leaves out of them."""

    library: Library
    sources: str
    known: Sequence[int]
    notes: list[str] = field(default_factory=list)

    def read_rows(
        self, found: FoundObjects, read: Callable[[_Fields], Sequence[_Row]]
    ) -> ParsedReply[_Row]:
        items: list[_Row] = []
        problems, notes = list(found.problems), list(found.notes)
        for number, row in enumerate(found.rows, 1):
            self.notes = []
            try:
                if isinstance(row, ReplyProblem):
                    raise row
                items += read(_name_fields(row))
            except ReplyProblem as problem:
                problems.append(f"Object {number}: {problem}")
            notes += [f"Object {number}: {note}" for note in self.notes]
        problems, notes = problems[:MAX_PROBLEMS], notes[:MAX_PROBLEMS]
        return ParsedReply(tuple(items), tuple(problems), tuple(notes), found.unclosed)

    def read_operation(self, fields: _Fields) -> Suggestion:
        kind = _parse_kind(fields.get("operation"))
        target = parse_experience_id(fields.get("id"))
        text = _line(fields.get("experience"))
        if kind in ("add", "modify") and not text:
            raise ReplyProblem(f'"experience" must be a text, since the operation is {kind}.')
        if kind == "add" and target is not None:
            if self.library.get(target) is not None:
                raise ReplyProblem(f'add takes no id; to change {target}, use "modify".')
            target = None
        if kind != "add" and self.library.get(target) is None:
            raise ReplyProblem(self._unknown(target))
        sources = fields.get(self.sources)
        if sources is None and self.sources == "attempts":
            sources = list(self.known)
        same_as = [name for name in self._read_ids(fields, "same_as") if name != target]
        conflicts = [name for name in self._read_ids(fields, "conflicts_with") if name != target]
        return Suggestion(
            kind=kind,
            target=target,
            text=text if kind in ("add", "modify") else "",
            reason=_line(fields.get("reason")),
            sources=self._read_numbers(sources),
            same_as=same_as[0] if same_as else None,
            conflicts_with=tuple(conflicts),
            only_this_problem=fields.get("only_this_problem") is True,
        )

    def read_credits(self, fields: _Fields) -> list[CreditRow]:
        names = self._read_ids(fields, "credit" if "credit" in fields else "id")
        numbers = self._read_numbers(fields.get("attempts"))
        said = str(fields.get("use", "")).strip().lower()
        for use in _USES:
            if use == said:
                return [CreditRow(name, use, numbers) for name in names]
        self.notes.append(f'"use" must be used, ignored or misled, not {said!r:.40}.')
        return []

    def read_doubt(self, fields: _Fields) -> list[DoubtRow]:
        reason = _line(fields.get("doubt")) or _line(fields.get("reason"))
        if numbers := self._read_numbers(fields.get("attempts")):
            return [DoubtRow(reason, numbers)]
        self.notes.append("a doubt must name the attempts it is about.")
        return []

    def read_drop(self, fields: _Fields) -> list[DropRow]:
        if numbers := self._read_numbers(fields.get("drop", fields.get("proposals"))):
            return [DropRow(numbers, _line(fields.get("reason")))]
        self.notes.append('"drop" must name proposals.')
        return []

    def _read_ids(self, fields: _Fields, name: str) -> Names:
        """Ids that are in the library; others are left out."""
        ids: dict[str, None] = {}
        for entry in as_list(fields.get(name)):
            try:
                target = parse_experience_id(entry)
                if target is not None and self.library.get(target) is None:
                    raise ReplyProblem(self._unknown(target))
            except ReplyProblem as problem:
                self.notes.append(f'"{name}": {problem}')
            else:
                ids |= {target: None} if target else {}
        return tuple(ids)

    def _read_numbers(self, value: object) -> tuple[int, ...]:
        """Numbers of what was shown; others are left out."""
        numbers: dict[int, None] = {}
        for entry in as_list(value):
            match = _NUMBER.fullmatch(str(entry).strip())
            if match and int(match[1]) in self.known:
                numbers[int(match[1])] = None
            else:
                known = ", ".join(map(str, self.known))
                note = f'"{self.sources}" names {entry!r:.40}, and there are {known}.'
                self.notes.append(note)
        return tuple(numbers)

    def _unknown(self, target: str | None) -> str:
        ids = ", ".join(e.id for e in self.library.experiences) or "it is empty"
        return f"{target or 'no id'} is not in the library ({ids})."


def _name_fields(row: codec.JsonMapping) -> _Fields:
    """Return the fields of a row by their own names; of two for one the first counts."""
    fields: dict[str, Any] = {}
    for key, value in row.items():
        name = key.strip().lower()
        fields.setdefault(_ALIASES.get(name, name), value)
    return fields


def _note_of(fields: _Fields) -> str | None:
    """Which row that is no operation this is: by its own field, or by the word of one."""
    operation = fields.get("operation")
    if operation is None:
        return next((name for name in _NOTES if name in fields), None)
    return next((name for name in _NOTES if name == str(operation).strip().lower()), None)


def as_list(value: object) -> list[object]:
    """Return a list as it is, nothing as an empty one, and anything else as its only entry."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _parse_kind(value: object) -> OperationKind:
    word = value.strip().lower() if isinstance(value, str) else ""
    for kind in _KINDS:
        if kind == _SYNONYMS.get(word, word):
            return kind
    raise ReplyProblem(f'"operation" must be one of {", ".join(_KINDS)}, not {value!r}.')


def _line(value: object) -> str:
    return sanitize.one_line(value) if isinstance(value, str) else ""


PACKAGE = "engines.training_free"
DRAFTS_APART = 4
"""Numbers that the calls of one lesson have: what is asked again for another one draws anew."""
REPAIRED_CHARS = 40_000
"""Of a reply that is shown to be mended."""
Row = TypeVar("Row")

Reply = Coroutine[Any, Any, tuple[Completion, RecordRef]]


@dataclass(slots=True)
class Reflector:
    """The model that reads, with the settings and the ledger of its run.

    Another `policy` may be put in its place before the first question. `draft` is the number of
    the lesson that it draws from a batch, from 0.
    """

    settings: TrainingFreeSettings
    policy: protocols.Policy
    ledger: protocols.Ledger
    draft: int = 0

    def ask_once(self, key: CallKey, messages: Sequence[Message]) -> Reply:
        return self.ledger.ask(key, self.policy, messages, self.settings.replies)

    async def ask(
        self,
        key: CallKey,
        prompt: str,
        parse: Callable[[str], ParsedReply[Row]],
        rank: Callable[[Sequence[Row]], tuple[int, ...]] = rank_rows,
        *,
        system: str = "",
    ) -> RepairResult[Row]:
        """Ask for a list; raises CallFailed where the first reply does not come.

        `system` stands before the prompt, as what many questions of a step begin with. The
        repair turn shows the reply and what is wrong with it, not what it was drawn from.
        """
        key = replace(key, index=key.index + DRAFTS_APART * self.draft)
        asked = [*([Message("system", system)] if system else []), Message("user", prompt)]

        def send(number: int, messages: Sequence[Message]) -> Reply:
            if number:
                reply, problem = messages[-2].content, messages[-1].content
                messages = [Message("user", _repair_prompt(problem, reply, asked))]
            return self.ask_once(replace(key, turn=number), messages)

        return await ask_with_repair(send, asked, parse, lambda problem: problem, rank)

    @property
    def objectives(self) -> dict[str, str]:
        """The two objectives as the prompts name and quote them."""
        return {
            "agent_objective": quote(self.settings.agent_objective),
            "learning_objective": quote(self.settings.learning_objective),
        }


def _repair_prompt(problem: str, reply: str, asked: Sequence[Message]) -> str:
    lines = (line for message in asked for line in message.content.splitlines())
    form = "\n".join(line for line in lines if line.startswith("    "))  # quotes begin with `| `
    shown = cut_middle(reply.strip() or "(nothing)", REPAIRED_CHARS)
    return load_prompt(PACKAGE, "repair").render(problem=problem, form=form, reply=quote(shown))


def library_text(library: Library, counts: bool = False) -> str:
    """The experiences a quoted line each, with what is pinned below them.

    With `counts` there is a line more of each that attempts tell of.
    """
    rows = []
    for e in library.experiences:
        rows.append(f"[{e.id}] {e.text}")
        if counts and (counted := library.notes.uses.get(e.id, library_notes.NO_USES).text):
            rows.append(f"    (attempts so far: {counted})")
    block = quote("\n".join(rows)) if rows else "(empty)"
    if pinned := library.pinned_ids:
        block += "\n\n" + load_prompt(PACKAGE, "pinned").render(ids=", ".join(pinned))
    return block


def reply_losses(kind: str, where: str, answered: RepairResult[Row]) -> tuple[LostWork, ...]:
    """What one repair turn could not mend: a whole reply, or single proposals of it."""
    if answered.items:
        return tuple(
            LostWork("proposal", where, problem, answered.reply) for problem in answered.problems
        )
    said = " ".join(answered.problems)
    return (LostWork(kind, where, said, answered.reply),) if said else ()


ANY_OF = "any one of:"
"""Stands above several accepted answers in a prompt."""


class GroupReader:
    """Reads groups, one call each besides the summaries."""

    def __init__(self, reflector: Reflector) -> None:
        self._reflector, self._settings = reflector, reflector.settings
        self._summarise = load_prompt(PACKAGE, "summarise")
        self._extract = load_prompt(PACKAGE, "extract")
        self._credit = load_prompt(PACKAGE, "credit")
        self._reviewed = load_prompt(PACKAGE, "reviewed")
        self._questions = {
            "used": load_prompt(PACKAGE, "contrast"),
            "critique": load_prompt(PACKAGE, "critique"),
        }

    async def reflect(
        self, group: Group, library: Library, earlier: protocols.Earlier = ()
    ) -> Reflection:
        """Draw a group's lessons. A group that is not read costs no call."""
        outcome = await self._outcome(group, earlier)
        if outcome not in self._questions:
            return Reflection(group.step, group.position, outcome)
        attempts = shown_attempts(group, self._settings.given_ground_truth)
        chosen, rest = choose_attempts(attempts, self._settings.min_contrast)
        shown, losses, usage, refs = await self._shorten_attempts(group, chosen)

        def fail(reason: str, usage: Usage) -> Reflection:
            lost = (*losses, LostWork("extraction", group.id, reason))
            return Reflection(
                group.step, group.position, "failed", losses=lost, usage=usage, refs=refs
            )

        if len(shown) + len(rest) < (2 if outcome == "used" else 1) or not shown:
            return fail("too few attempts could be read", usage)
        numbers = sorted(attempt.index for attempt in (*shown, *rest))
        limit = self._settings.experiences_per_query
        question = self._questions[outcome]
        prompt = question.render(
            problem=quote(group.problem.asked),
            truth=quote(self._expected_answer(group)),
            attempts=attempts_block(shown),
            rest=rest_block(rest, shown),
            before=library_before_text(group, library),
        )

        def parse(text: str) -> ParsedReply[ExtractionRow]:
            return parse_extraction(text, library, known=numbers, limit=limit)

        key = CallKey("extraction", group.epoch, group.step, group.position)
        system = self._instructions(library_seen(library, (group,)))
        try:
            answered = await self._reflector.ask(key, prompt, parse, system=system)
        except errors.CallFailed as error:
            return fail(str(error), usage + error.usage)
        return replace(
            _rows_as_reflection(group, answered.items),
            outcome=outcome if answered.items or not answered.problems else "failed",
            prompt_hash=codec.digest([self._extract.hash, question.hash], 6),
            losses=(*losses, *reply_losses("extraction", group.id, answered)),
            usage=usage + answered.usage,
            refs=(*refs, *answered.refs),
            notes=answered.notes,
        )

    def _instructions(self, library: Library) -> str:
        """What every question of a step begins with, byte for byte, so that models cache it."""
        reviewed = self._reviewed.render(curated=past_decisions_block(library))
        return self._extract.render(
            **self._reflector.objectives,
            library=library_text(library),
            credit=f"\n\n{self._credit.render()}" if library.experiences else "",
            reviewed=f"\n\n{reviewed}" if library.notes.curated else "",
            limit=str(self._settings.experiences_per_query),
            max_words=str(self._settings.max_words),
        )

    async def _outcome(self, group: Group, earlier: protocols.Earlier) -> GroupOutcome:
        if not self._settings.given_ground_truth:
            return "failed" if all(r.attempt.status == "failed" for r in group.rollouts) else "used"
        if self._waits_for_words(group) and await self._is_within_limit(earlier):
            return "critique"
        return group.outcome_at(self._settings.min_contrast)

    def _waits_for_words(self, group: Group) -> bool:
        """Whether only what the verifier says can teach anything here, and it says something."""
        outcome = group.outcome_at(self._settings.min_contrast)
        return outcome in ("all-wrong", "all-equal") and says_why(group)

    async def _is_within_limit(self, earlier: protocols.Earlier) -> bool:
        """Whether fewer such groups than are read stand before this one in its batch.

        Their place decides and not who ends first, so that a resumed step reads the same.
        """
        left = self._settings.read_without_contrast
        for at, judged in enumerate(earlier):
            if left <= 0 or len(earlier) - at < left:
                break
            # Shielded: it is waited for by others, too.
            left -= self._waits_for_words(await asyncio.shield(judged))
        return left > 0

    def _expected_answer(self, group: Group) -> str:
        """The expected answer; of several each on a line of its own below a heading."""
        if not self._settings.given_ground_truth:
            return "(not shown)"
        accepted = group.problem.accepted_answers
        if len(accepted) < 2:
            return group.problem.answer or "(not given)"
        return "\n".join([ANY_OF, *(" ".join(text.split()) for text in accepted)])

    async def _shorten_attempts(
        self, group: Group, attempts: Sequence[ShownAttempt]
    ) -> tuple[tuple[ShownAttempt, ...], tuple[LostWork, ...], Usage, tuple[RecordRef, ...]]:
        """The attempts with texts that fit together, summarised or cut where they did not."""
        above = self._settings.summarise_above_chars
        is_long = sum(len(a.text) for a in attempts) > self._settings.read_chars
        long = [a for a in attempts if is_long and len(a.text) > above]
        replies = await waiting.gather_all(self._ask_summary(group, attempt) for attempt in long)
        read = {attempt.index: attempt for attempt in attempts if attempt not in long}
        losses: list[LostWork] = []
        usage, refs = NO_USAGE, []
        for attempt, reply in zip(long, replies, strict=True):
            if isinstance(reply, LostWork):
                losses.append(reply)
                continue
            completion, ref = reply
            if not self._reflector.draft:  # all drafts read the same summaries
                usage += completion.usage
            refs.append(ref)
            read[attempt.index] = replace(attempt, text=completion.text.strip())
        shown = [read[a.index] for a in attempts if a.index in read]
        if sum(len(a.text) for a in shown) > self._settings.read_chars:
            most = self._settings.read_chars // len(shown)
            shown = [replace(a, text=cut_middle(a.text, most)) for a in shown]
        return tuple(shown), tuple(losses), usage, tuple(refs)

    async def _ask_summary(
        self, group: Group, attempt: ShownAttempt
    ) -> tuple[Completion, RecordRef] | LostWork:
        prompt = self._summarise.render(
            problem=quote(group.problem.asked),
            reward=attempt.reward_note,
            attempt=quote(cut_middle(attempt.text, self._settings.read_chars)),
        )
        key = CallKey("summary", group.epoch, group.step, group.position, attempt.index)
        try:
            completion, ref = await self._reflector.ask_once(key, [Message("user", prompt)])
        except errors.CallFailed as error:
            return LostWork("summary", f"{group.id}r{attempt.index}", str(error))
        if not completion.text.strip():
            return LostWork("summary", f"{group.id}r{attempt.index}", "the summary is empty")
        return completion, ref


def _rows_as_reflection(group: Group, rows: Sequence[ExtractionRow]) -> Reflection:
    """A reply's rows with rollouts for the numbers of attempts.

    An experience is credited only with attempts that had it before them.
    """
    ids = {rollout.index: rollout.id for rollout in group.rollouts}
    before = {rollout.index: rollout.shown for rollout in group.rollouts}
    proposals, credits, doubts = [], [], []
    for row in rows:
        if isinstance(row, Suggestion):
            evidence = tuple(ids[n] for n in row.sources)
            proposals.append(Proposal(row.kind, row.target, row.text, row.reason, evidence))
        elif isinstance(row, DoubtRow):
            doubts += [Doubt(ids[n], row.reason) for n in row.sources]
        else:
            had = [
                n for n in row.sources if (shown := before[n]) is None or row.experience in shown
            ]
            if had or not row.sources:
                credits.append(Credit(row.experience, row.use, tuple(ids[n] for n in had)))
    return Reflection(
        step=group.step,
        position=group.position,
        outcome="used",
        proposals=tuple(proposals),
        credits=tuple(credits),
        doubts=tuple(dict((doubt.rollout, doubt) for doubt in doubts).values()),
    )
