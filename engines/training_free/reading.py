"""What the reflector is shown: attempts, library and proposals as quoted blocks.

Every line of foreign text is prefixed, so that a heading can only be ours.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from engines.core.library import Library
from engines.core.state.use_counts import NO_USES
from engines.core.text.prompts import quote
from engines.core.text.tool_text import said_text
from engines.core.types import Attempt, Group, Message, Problem, Proposal, Verdict

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


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """One attempt as the reflector reads it."""

    index: int
    reward: float | None
    text: str
    critique: tuple[str, ...] = ()  # the verifier's lines, never summarised and never cut
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
    alike: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
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
    rollout = group.rollouts[0]
    if len({one.library_version for one in group.rollouts}) > 1:
        had = (f"version {r.library_version} before attempt {r.index}" for r in group.rollouts)
        return f"The library changed between the attempts: {', '.join(had)}."
    if len({one.shown for one in group.rollouts}) > 1:
        return "Not all of it stood in front of every attempt: chance left some out of each."
    if rollout.shown is None and rollout.library_version != library.version:
        return f"Version {rollout.library_version} of the library stood in front of them."
    ids = {experience.id for experience in library.experiences}
    if not ids:
        return "No experience stood in front of them."
    shown = [name for name in rollout.shown or () if name in ids]
    if rollout.shown is None or len(shown) == len(ids):
        return "The whole library stood in front of them."
    return f"Of the library, {', '.join(shown) or 'nothing'} stood in front of them."


def library_block(library: Library, counts: bool = False) -> str:
    """The experiences a line each; with `counts` a line more of each that attempts tell of."""
    if not library.experiences:
        return "(empty)"
    rows = []
    for e in library.experiences:
        rows.append(f"[{e.id}] {e.text}")
        if counts and (counted := library.uses.get(e.id, NO_USES).text):
            rows.append(f"    (attempts so far: {counted})")
    return quote("\n".join(rows))


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


def _critique_lines(verdict: Verdict, problem: Problem) -> tuple[str, ...]:
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
        said = [f"[{message.speaker}] {line}" for line in said_text(message).splitlines()]
    called = (f"[calls {call.name}] {call.arguments}" for call in message.tool_calls)
    return [*said, *(" ".join(call.splitlines()) for call in called)]
