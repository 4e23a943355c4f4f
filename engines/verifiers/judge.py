"""The `judge` verifier: a model says whether a response meets a rubric.

A reply that cannot be read, and a call that failed, leave the response unjudged: neither says
anything about it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from engines.core import errors, protocols
from engines.core.codec import fix_surrogates
from engines.core.frozen import frozen
from engines.core.settings import setting
from engines.core.text import maths, reply
from engines.core.text.prompts import load_prompt, quote
from engines.core.types import (
    CallKey,
    Completion,
    Message,
    Problem,
    RecordRef,
    Rollout,
    Sampling,
    Verdict,
)
from engines.verifiers.answers import TextSettings, TextVerifier
from engines.verifiers.independent import IndependentVerifier
from engines.verifiers.stated_answer import short_text, strip_thoughts


@frozen
class JudgeContext:
    """The judge role of a run."""

    policy: protocols.Policy
    sampling: Sampling
    ledger: protocols.Ledger


def judge_key(problem: Problem, rollout: Rollout, turn: int = 0) -> CallKey:
    """The key of one question about a rollout; turns count over all questions about it."""
    held_out = problem.id if rollout.epoch == 0 else ""
    return CallKey(
        purpose="judge",
        epoch=rollout.epoch,
        step=rollout.step,
        position=rollout.position,
        index=rollout.index,
        turn=turn,
        problem=held_out,
    )


Score = Literal["binary", "graded"]

RESPONSE_CHARS = 24_000
"""How much of a response is shown; of a longer one the end, where the answer stands."""
CRITIQUE_CHARS = 1_000

_PACKAGE = "engines.verifiers"
DEFAULT_RUBRIC = load_prompt(_PACKAGE, "rubric").render()
_WORDS = {"true": True, "yes": True, "false": False, "no": False}


@frozen
class JudgeSettings:
    """What is asked.

    With `fallback` text a response is right, where the judge gives no verdict, that holds the
    words of an expected answer, hedged or denied ones too; the critique says so and the metric
    `fallback` is 1. None leaves it unjudged.
    """

    rubric: str = setting(
        DEFAULT_RUBRIC, "what decides, in words", examples=["'The answer cites a source.'"]
    )
    score: Score = setting("binary", "right or wrong; graded: a reward from 0 to 1")
    fallback: Literal["text"] | None = setting(
        None, "what judges where the judge gives no verdict; null: nothing does", examples=["text"]
    )

    def __post_init__(self) -> None:
        if not self.rubric.strip():
            raise errors.VerifierError(
                'verifier "judge"', "rubric is empty.", "Say what decides, or leave it out."
            )


@frozen
class Judgement:
    reward: float
    reasoning: str


class JudgeVerifier(IndependentVerifier):
    """Judges by asking a model once for each response."""

    def __init__(self, settings: JudgeSettings, judging: JudgeContext) -> None:
        self._settings = settings
        self._judging = judging
        self._prompt = load_prompt(_PACKAGE, "judge")
        self._form = load_prompt(_PACKAGE, f"form_{settings.score}").render()
        self._repair = load_prompt(_PACKAGE, "repair")
        self._fallback = TextVerifier(TextSettings("contains")) if settings.fallback else None

    async def judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        judged = await self._ask_judge(problem, rollout)
        if self._fallback is None:
            return judged
        if judged.reward is not None:
            return replace(judged, metrics={"fallback": 0.0})
        (found,) = await self._fallback.verify(problem, (rollout,))
        if found.reward is None:
            return judged  # there is no answer to look for
        said = f"fallback, a text match: {found.critique}. The judge: {judged.error}"
        critique, metrics = short_text(said, CRITIQUE_CHARS), {"fallback": 1.0}
        return Verdict(found.reward, critique, metrics, usage=judged.usage, refs=judged.refs)

    async def _ask_judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        prompt = self._prompt.render(
            problem=quote(fix_surrogates(problem.asked)),
            expected=_expected_text(problem),
            response=_response_text(strip_thoughts(rollout.attempt.answer or "")),
            rubric=quote(fix_surrogates(self._settings.rubric)),
            form=self._form,
        )

        async def ask(turn: int, messages: Sequence[Message]) -> tuple[Completion, RecordRef]:
            key = judge_key(problem, rollout, turn)
            judging = self._judging
            return await judging.ledger.ask(key, judging.policy, messages, judging.sampling)

        try:
            answered = await reply.ask_with_repair(
                ask,
                [Message("user", prompt)],
                lambda text: reply.ParsedReply((parse_judgement(text, self._settings.score),)),
                lambda trouble: self._repair.render(problem=trouble),
            )
        except errors.CallFailed as error:
            text = str(error) if error.kind == "timeout" else f"failed: {error}"
            return Verdict(None, error=short_text(text, 300), usage=error.usage)
        usage, refs = answered.usage, answered.refs
        if not answered.items:
            text = short_text(f"unparsable: {' '.join(answered.problems)}", 300)
            return Verdict(None, error=text, usage=usage, refs=refs)
        (found,) = answered.items
        critique = short_text(found.reasoning, CRITIQUE_CHARS) or None
        return Verdict(found.reward, critique, usage=usage, refs=refs)


def parse_judgement(text: str, score: Score) -> Judgement:
    r"""Read a reply, without what it thought first.

    Several objects that hold a verdict must agree: one of them may be a draft, or quoted
    from the response. ReplyProblem: there is no verdict in it, or there are two.
    """
    text = reply.drop_thoughts(text)
    name = "correct" if score == "binary" else "score"
    rows = reply.parse_objects(text, (name, "reasoning"))
    row = next((row for row in reversed(rows) if name in row), None)
    if row is None:
        raise reply.ReplyProblem(f'there is no JSON object with "{name}" in it.')
    reader = _parse_correct if score == "binary" else _parse_score
    reward = reader(row[name])
    others = (*rows, *reply.objects_with((name,), maths.escape_tex(text)))
    said_too = [other[name] for other in others if name in other]
    if any(reader(value) != reward for value in said_too):
        raise reply.ReplyProblem(f'it holds several objects whose "{name}" differs.')
    reasoning = row.get("reasoning")
    return Judgement(reward, reasoning if isinstance(reasoning, str) else "")


def _parse_correct(value: Any) -> float:
    known = _WORDS.get(value.strip().lower()) if isinstance(value, str) else value
    # 0 and 1 count; None and 0.5 do not.
    if known not in (True, False):
        raise reply.ReplyProblem(f'"correct" is {value!r:.40}, and must be true or false.')
    return float(known)


def _parse_score(value: Any) -> float:
    try:
        score = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        score = float("nan")
    if not 0 <= score <= 1:
        raise reply.ReplyProblem(f'"score" is {value!r:.40}, and must be a number from 0 to 1.')
    return score


def _expected_text(problem: Problem) -> str:
    expected = problem.accepted_answers
    if not expected:
        return "None is given."
    quoted = "\n\nor\n\n".join(quote(fix_surrogates(answer)) for answer in expected)
    return quoted if len(expected) == 1 else f"Any one of these counts:\n\n{quoted}"


def _response_text(response: str) -> str:
    left_out = len(response) - RESPONSE_CHARS
    if left_out <= 0:
        return quote(fix_surrogates(response)) if response.strip() else "It is empty."
    tail = quote(fix_surrogates(response[-RESPONSE_CHARS:]))
    return f"The first {left_out} characters are left out.\n\n{tail}"
