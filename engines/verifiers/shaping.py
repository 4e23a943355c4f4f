r"""Rewards that look at more than whether the answer is right: `length_penalty`, `step`, `format`.

Judges no answer itself: that is the verifier's below `of`, and where that one says nothing,
nothing is said here either. Every reward is in [0, 1]; what it was made of stands in its metrics.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engines.core.codec import digest
from engines.core.errors import VerifierError
from engines.core.protocols import Verifier, judges_whole_groups
from engines.core.settings import setting
from engines.core.types import Attempt, Problem, Rollout, Verdict
from engines.process.pool import Trouble
from engines.verifiers.stated_answer import short_text, trouble_verdict, unjudgeable_verdict
from engines.verifiers.text import pattern_pool

FORMAT_CHARS = 64_000
"""A longer answer is not tried against a pattern, and stays unjudged."""

# A line with an equation, or one that opens as "Step 2", "2." or "2)".
_LABEL = re.compile(r"[ \t>*_#-]*(?:step[ \t]*\d|\d+[.)][ \t])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AccuracySettings:
    """1 for a right answer, 0 for a wrong one."""

    by: Literal["math", "text"] = setting("math", "which verifier tells right from wrong")


@dataclass(frozen=True, slots=True)
class ShapedReward:
    """A reward before it is clipped to [0, 1], what it was made of, and that in words."""

    reward: float
    metrics: dict[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class LengthPenalty:
    """reward - penalty_weight · max(0, length - max_length), clipped to [0, 1].

    A wrong answer has nothing to lose: its length costs nothing. Tokens are those of all replies
    of the try, thoughts included, as the policy counted them.
    """

    max_length: int = setting(1024, "length that costs nothing", ge=0)
    penalty_weight: float = setting(0.001, "cost of each unit beyond max_length", gt=0)
    unit: Literal["tokens", "chars"] = setting("tokens", "what is counted")

    def shape_reward(self, reward: float, attempt: Attempt) -> ShapedReward | str:
        """Shape the reward of an answer; a text says why it cannot be done."""
        length = _token_length(attempt) if self.unit == "tokens" else _char_length(attempt)
        if length is None:
            return "length_penalty has no token count of this try; set unit: chars"
        beyond = max(0, length - self.max_length)
        penalty = self.penalty_weight * beyond
        note = f"{beyond:,} {self.unit} beyond {self.max_length:,} cost {penalty:.3g}"
        metrics = {"length": float(length), "penalty": penalty}
        return ShapedReward(reward - penalty, metrics, note if beyond else "")


@dataclass(frozen=True, slots=True)
class StepBonus:
    """reward + step_bonus · steps, at most 1.

    It may pay for padding: a wrong answer of many lines can earn as much as a right one,
    and a right one of reward 1 has nothing to gain. Look at the metric `steps` while it is
    in use, or weigh it against a criterion that cannot be padded. A step is a line that holds
    "=", or opens as "Step 2", "2." or "2)".
    """

    step_bonus: float = setting(0.1, "bonus for each shown step", gt=0)

    def shape_reward(self, reward: float, attempt: Attempt) -> ShapedReward:
        steps = count_steps(attempt.answer or "")
        bonus = self.step_bonus * steps
        note = f"{steps:,} {'step' if steps == 1 else 'steps'} shown" if steps else ""
        return ShapedReward(reward + bonus, {"steps": float(steps), "bonus": bonus}, note)


def count_steps(text: str) -> int:
    """How many lines of a text show a step, see `StepBonus`."""
    return sum("=" in line or bool(_LABEL.match(line)) for line in text.splitlines())


class ShapedVerifier:
    """Shapes the rewards of another verifier, which stand in the metrics under its `name`."""

    def __init__(self, shape: LengthPenalty | StepBonus, name: str, inner: Verifier) -> None:
        self._shape, self._name, self._inner = shape, name, inner

    @property
    def whole_groups(self) -> bool:
        return judges_whole_groups(self._inner)

    async def check(self) -> None:
        await self._inner.check()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        verdicts = await self._inner.verify(problem, rollouts)
        pairs = zip(rollouts, verdicts, strict=True)
        return tuple(self._shape_verdict(rollout.attempt, verdict) for rollout, verdict in pairs)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _shape_verdict(self, attempt: Attempt, verdict: Verdict) -> Verdict:
        """What was not judged, or could not be, stays so: its error passes through."""
        metrics = {f"{self._name}/{name}": value for name, value in verdict.metrics.items()}
        reward, critique, error = verdict.reward, verdict.critique, verdict.error
        if reward is not None:
            metrics = {self._name: reward, **metrics}
            shaped = self._shape.shape_reward(reward, attempt)
            if isinstance(shaped, str):
                reward, error = None, f"failed: {shaped}"
            else:
                reward = min(1.0, max(0.0, shaped.reward))
                metrics |= shaped.metrics
                critique = "\n".join(part for part in (critique, shaped.note) if part) or None
        return replace(verdict, reward=reward, critique=critique, metrics=metrics, error=error)


@dataclass(frozen=True, slots=True)
class FormatSettings:
    r"""1 where the answer has a form, whatever it says.

    The regular expression is searched in the whole answer (`.` crosses lines, `^` and `$` are its
    ends; `(?m)` in front makes them those of lines). It has a second, in a process of its own, and
    answers of up to 64,000 characters; beyond either the answer stays unjudged.
    """

    pattern: str = setting(
        "", "regular expression that is searched in the answer", examples=[r'''"'#### \d+'"''']
    )

    def __post_init__(self) -> None:
        place = 'verifier "format"'
        if not self.pattern:
            move = r"Give one, such as '^<think>.*</think>.*\\boxed'."
            raise VerifierError(place, "pattern is missing.", move)
        try:
            re.compile(self.pattern, re.DOTALL)
        except (re.error, OverflowError, RecursionError) as error:
            cause = f"pattern {short_text(repr(self.pattern), 80)} is not a regular expression"
            raise VerifierError(place, f"{cause} ({error}).", "Mend it.") from error


class FormatVerifier:
    """Judges by form alone; a problem needs no answer for it."""

    def __init__(self, settings: FormatSettings) -> None:
        self._pattern = settings.pattern
        self._pool = pattern_pool()

    async def check(self) -> None:
        """Nothing to load: its process starts with the first answer."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        return tuple(await asyncio.gather(*(self._judge(rollout) for rollout in rollouts)))

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _judge(self, rollout: Rollout) -> Verdict:
        if trouble := unjudgeable_verdict(rollout, ("",)):
            return trouble
        text = rollout.attempt.answer or ""
        if len(text) > FORMAT_CHARS:
            said = f"{len(text):,} characters; a pattern is tried on {FORMAT_CHARS:,} at most"
            return Verdict(None, error=f"too long: {said}")
        found = await self._pool.ask(
            {"pattern": self._pattern, "text": text, "flags": int(re.DOTALL)}
        )
        if isinstance(found, Trouble):
            return trouble_verdict(found)
        has = bool(found["found"])
        return Verdict(float(has), "has the form" if has else "has not the form that was asked for")


def recorded_verdict(problem: Problem, rollout: Rollout) -> Verdict:
    """Return what a recorded rollout was imported with; another one has no reward.

    It is known by what it says: equal ones are told apart by their place in the group.
    """
    rows = problem.meta.get("outcomes")
    outcomes = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    reply, n = digest(rollout.attempt.answer, 8), len(outcomes)
    turned = [outcomes[(rollout.index + more) % n] for more in range(n)]
    outcome = next((row for row in turned if row.get("reply") == reply), None)
    if outcome is None:
        said = "this try was not recorded" if outcomes else "its problem has no recorded tries"
        return Verdict(None, error=f"failed: {said}; verifier: recorded judges no other")
    reward, signals = outcome.get("reward"), ", ".join(map(str, outcome.get("signals") or ()))
    if not isinstance(reward, int | float) or not 0 <= reward <= 1:
        return Verdict(None, signals or None)
    return Verdict(float(reward), signals or None)


def own_verdict(problem: Problem, rollout: Rollout) -> Verdict:
    """Return the metric `reward` of a rollout, as workflows in AgentScope's form give it."""
    reward = rollout.attempt.metrics.get("reward")
    if reward is None or not 0 <= reward <= 1:
        said = "no reward" if reward is None else f"{reward:g}, outside 0 to 1"
        return Verdict(None, error=f"failed: the agent's function gave {said}")
    return Verdict(reward)


def _token_length(attempt: Attempt) -> int | None:
    """None where there is text, and an endpoint that counted nothing."""
    counted = attempt.usage.completion_tokens
    return counted if counted or not attempt.answer else None


def _char_length(attempt: Attempt) -> int:
    replies = [message for message in attempt.messages if message.role == "assistant"]
    if not replies:
        return len(attempt.answer or "")
    return sum(len(reply.content) + len(reply.reasoning) for reply in replies)
