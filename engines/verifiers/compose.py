r"""Verifiers that are made of others, of a function, of a learned reward, or shape a reward.

Several criteria become one verifier: one reward, each criterion a metric. `length_penalty`, `step`
and `format` look at more than whether the answer is right: where the verifier below `of` says
nothing, nothing is said here either. Every reward is in [0, 1]; what it was made of stands in its
metrics.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum
from typing import Literal

from engines.core import codec, errors, protocols, waiting
from engines.core.frozen import frozen
from engines.core.settings import setting
from engines.core.types import NO_USAGE, Attempt, Problem, Rollout, Verdict
from engines.process.pool import Trouble
from engines.verifiers import answers, stated_answer
from engines.verifiers.independent import IndependentVerifier


@frozen
class PlainVerifier(IndependentVerifier):
    """Judges by a function that has nothing to load or to wait for."""

    function: Callable[[Problem, Rollout], Verdict]

    async def judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        return self.function(problem, rollout)


@frozen
class WeightedCriterion:
    """One criterion: the name of its metric, its weight, not 0, and who judges it."""

    name: str
    weight: float
    verifier: protocols.Verifier


class WeightedVerifier:
    """Judges by all parts at once, on the same rollouts."""

    def __init__(self, parts: Sequence[WeightedCriterion]) -> None:
        self._parts = tuple(parts)

    @property
    def whole_groups(self) -> bool:
        return any(protocols.judges_whole_groups(part.verifier) for part in self._parts)

    async def check(self) -> None:
        await waiting.gather_all(part.verifier.check() for part in self._parts)

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        columns = await waiting.gather_all(
            part.verifier.verify(problem, rollouts) for part in self._parts
        )
        rows = zip(*columns, strict=True)
        return tuple(combine_verdicts(self._parts, row) for row in rows)

    async def aclose(self) -> None:
        await waiting.gather_all(part.verifier.aclose() for part in self._parts)


def combine_verdicts(parts: Sequence[WeightedCriterion], verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of aligned ones: the mean by weight over those that have a reward.

    A negative weight takes from the reward. The lowest and the highest that the weights allow
    are mapped to 0 and 1, which leaves the mean where none is negative.

    One that failed leaves the whole unjudged: leaving its weight out would change what
    the reward means from rollout to rollout. One without an opinion is left out, because
    it has none on any answer to that problem.
    """
    metrics: dict[str, float] = {}
    critiques, failed, known = [], [], []
    for part, verdict in zip(parts, verdicts, strict=True):
        if verdict.reward is not None:
            metrics[part.name] = verdict.reward
            known.append((part.weight, verdict.reward))
        elif verdict.error is not None:
            failed.append((part.name, verdict.error))
        metrics |= {f"{part.name}/{name}": value for name, value in verdict.metrics.items()}
        if critique := " ".join((verdict.critique or "").split()):
            critiques.append(f"{part.name}: {critique}")
    reward = None
    if known and not failed:
        low = fsum(min(weight, 0.0) for weight, _ in known)
        total = fsum(weight * found for weight, found in known)
        # Rounding may lead a hair outside.
        reward = min(1.0, max(0.0, (total - low) / fsum(abs(weight) for weight, _ in known)))
    return Verdict(
        reward,
        "\n".join(critiques) or None,
        metrics,
        _combined_error(failed),
        sum((verdict.usage for verdict in verdicts), NO_USAGE),
        tuple(ref for verdict in verdicts for ref in verdict.refs),
    )


def _combined_error(failed: Sequence[tuple[str, str]]) -> str | None:
    """Begins with the kind of the first error, as every error does, then names criteria."""
    if not failed:
        return None
    if len({error for _, error in failed}) == 1 and failed[1:]:
        return failed[0][1]  # the rollout itself failed: no criterion did
    kind = failed[0][1].partition(": ")[0]
    named = "; ".join(f"{name}: {error.removeprefix(f'{kind}: ')}" for name, error in failed)
    return f"{kind}: {named}"


Score = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
"""Rewards of pairs of question and answer; called in a thread."""


@frozen
class LearnedSettings:
    """Settings of `reward_model`."""

    folder: str = setting(
        "", "its folder, or run:RUN for that of a run", examples=["run:grpo-tiny"]
    )

    def __post_init__(self) -> None:
        if not self.folder:
            raise errors.VerifierError(
                'verifier "reward_model"', "folder is missing.", "Set it: folder: run:RUN."
            )


@frozen
class LearnedVerifier(protocols.Verifier):
    """`about` says from what it was learned, and how often it agrees with that."""

    score: Score
    about: str

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        judged = [r for r in rollouts if r.attempt.answer]
        pairs = [(problem.question, r.attempt.answer or "") for r in judged]
        scores = await asyncio.to_thread(self.score, pairs) if pairs else ()
        found = {
            id(rollout): Verdict(round(score, 4), f"learned reward {score:.2f} ({self.about})")
            for rollout, score in zip(judged, scores, strict=True)
        }
        nothing = "failed: there is no answer to judge"
        return [found.get(id(one), Verdict(None, error=nothing)) for one in rollouts]


FORMAT_CHARS = 64_000
"""A longer answer is not tried against a pattern, and stays unjudged."""

# A line with an equation, or one that opens as "Step 2", "2." or "2)".
_LABEL = re.compile(r"[ \t>*_#-]*(?:step[ \t]*\d|\d+[.)][ \t])", re.IGNORECASE)


@frozen
class AccuracySettings:
    """1 for a right answer, 0 for a wrong one."""

    by: Literal["math", "text"] = setting("math", "which verifier tells right from wrong")


@frozen
class ShapedReward:
    """A reward before it is clipped to [0, 1], what it was made of, and that in words."""

    reward: float
    metrics: dict[str, float]
    note: str = ""


@frozen
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


@frozen
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


@frozen
class ShapedVerifier:
    """Shapes the rewards of another verifier, which stand in the metrics under its `name`."""

    shape: LengthPenalty | StepBonus
    name: str
    inner: protocols.Verifier

    @property
    def whole_groups(self) -> bool:
        return protocols.judges_whole_groups(self.inner)

    async def check(self) -> None:
        await self.inner.check()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        verdicts = await self.inner.verify(problem, rollouts)
        pairs = zip(rollouts, verdicts, strict=True)
        return tuple(self._shape_verdict(rollout.attempt, verdict) for rollout, verdict in pairs)

    async def aclose(self) -> None:
        await self.inner.aclose()

    def _shape_verdict(self, attempt: Attempt, verdict: Verdict) -> Verdict:
        """What was not judged, or could not be, stays so: its error passes through."""
        metrics = {f"{self.name}/{name}": value for name, value in verdict.metrics.items()}
        reward, critique, error = verdict.reward, verdict.critique, verdict.error
        if reward is not None:
            metrics = {self.name: reward, **metrics}
            shaped = self.shape.shape_reward(reward, attempt)
            if isinstance(shaped, str):
                reward, error = None, f"failed: {shaped}"
            else:
                reward = min(1.0, max(0.0, shaped.reward))
                metrics |= shaped.metrics
                critique = "\n".join(part for part in (critique, shaped.note) if part) or None
        return replace(verdict, reward=reward, critique=critique, metrics=metrics, error=error)


@frozen
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
        answers.check_pattern('verifier "format"', self.pattern)


class FormatVerifier(IndependentVerifier):
    """Judges by form alone; a problem needs no answer for it."""

    def __init__(self, settings: FormatSettings) -> None:
        self._pattern = settings.pattern
        self._pool = answers.pattern_pool()

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        text = rollout.attempt.answer or ""
        if len(text) > FORMAT_CHARS:
            said = f"{len(text):,} characters; a pattern is tried on {FORMAT_CHARS:,} at most"
            return Verdict(None, error=f"too long: {said}")
        found = await self._pool.ask(
            {"pattern": self._pattern, "text": text, "flags": int(re.DOTALL)}
        )
        if isinstance(found, Trouble):
            return stated_answer.trouble_verdict(found)
        has = bool(found["found"])
        return Verdict(float(has), "has the form" if has else "has not the form that was asked for")


def recorded_verdict(problem: Problem, rollout: Rollout) -> Verdict:
    """Return what a recorded rollout was imported with; another one has no reward.

    It is known by what it says: equal ones are told apart by their place in the group.
    """
    rows = problem.meta.get("outcomes")
    outcomes = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    reply, n = codec.digest(rollout.attempt.answer, 8), len(outcomes)
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
