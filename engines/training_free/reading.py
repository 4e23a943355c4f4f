"""What the reflector is shown: attempts, library and proposals as quoted blocks.

Every line of foreign text is prefixed, so that a heading can only be ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.core.library import Library
from engines.core.state.use_counts import NO_USES
from engines.core.text.prompts import quote
from engines.core.types import Attempt, Group, Proposal


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """One attempt as the reflector reads it."""

    index: int
    reward: float | None
    text: str

    def reward_note(self, known: bool) -> str:
        return f" · reward {self.reward:.2f}" if known and self.reward is not None else ""


def shown_attempts(group: Group, rewards_known: bool) -> tuple[ShownAttempt, ...]:
    """The attempts that did not fail and, where rewards are shown, have one."""
    return tuple(
        ShownAttempt(
            rollout.index,
            verdict.reward,
            _attempt_text(rollout.attempt, verdict.critique, rewards_known),
        )
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
        if rollout.attempt.status != "failed" and (verdict.reward is not None or not rewards_known)
    )


def attempts_block(attempts: Sequence[ShownAttempt], rewards_known: bool) -> str:
    return "\n\n".join(
        f"### Attempt {attempt.index}{attempt.reward_note(rewards_known)}\n{quote(attempt.text)}"
        for attempt in attempts
    )


def library_block(library: Library, counts: bool = False) -> str:
    """The experiences a line each; with `counts` a line more of each that attempts tell of."""
    if not library.experiences:
        return "(empty)"
    rows = []
    for e in library.experiences:
        rows.append(f"[{e.id}] {e.text}")
        if counts and (counted := use_counts_text(library, e.id)):
            rows.append(f"    (attempts so far: {counted})")
    return quote("\n".join(rows))


def use_counts_text(library: Library, experience: str) -> str:
    """`used 12, ignored 3, misled 1` of its present wording; "" where nothing is counted."""
    return library.uses.get(experience, NO_USES).text


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


def _attempt_text(attempt: Attempt, critique: str | None, rewards_known: bool) -> str:
    """What the attempt said and did, from its first reply on.

    The verifier's critique names the expected answer, so it goes with the rewards.
    """
    said = [m for m in attempt.messages if m.role in ("assistant", "tool")]
    if len(said) == 1:
        text = said[0].content or said[0].reasoning
    else:
        text = "\n".join(f"[{m.role}] {_reply_text(m.content, m.tool_calls)}" for m in said)
    if attempt.status == "truncated":
        text += "\n(cut off at the length limit)"
    if rewards_known and critique:
        text += f"\n(verifier: {critique})"
    return text


def _reply_text(content: str, calls: Sequence[object]) -> str:
    return f"{content} {' '.join(str(call) for call in calls)}".strip()
