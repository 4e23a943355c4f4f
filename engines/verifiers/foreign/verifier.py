"""A verifier that is a function in the user's own file, written for any of three frameworks.

Owns its settings and what its answers mean as verdicts. The file itself runs in a
process of its own (`process`), never in ours.
"""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from engines.core.codec import fix_surrogates
from engines.core.errors import CallFailed, VerifierError, lost_usage
from engines.core.types import NO_USAGE, Message, Problem, RecordRef, Role, Rollout, Usage, Verdict
from engines.verifiers.foreign.calls import WrongReturn, build_question, rescale_reward
from engines.verifiers.foreign.process import FunctionLauncher
from engines.verifiers.foreign.signature import Signature
from engines.verifiers.judge_context import JudgeContext, judge_key
from engines.verifiers.process_pool.call import Answer, Trouble
from engines.verifiers.process_pool.pool import ProcessPool
from engines.verifiers.stated_answer import short_text, unjudgeable_verdict

Completions = Literal["auto", "text", "messages"]

LOAD_S = 60.0
_PLACE = 'verifier "function"'
_ROLES: Mapping[str, Role] = {
    **{role: role for role in get_args(Role)},
    "developer": "system",
}


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """How a function is found and called.

    Args:
        function: its name; None takes the only public one of a known signature in the
            file, else `verify_func`.
        signature: the framework it is written for; auto tells it by the parameter names.
        timeout_score: reward, within `range`, of an answer whose check ran out of time;
            None leaves it unjudged. Youtu-Agent's functions receive it.
        deadline_s: for one call, not counting what a model that it asks takes.
        workers: processes.
        concurrency: calls at a time in one process, of functions that are coroutines.
        range: lowest and highest reward of the function; mapped to 0 to 1.
        completions: what TRL's functions get; auto gives messages to those that read
            `[…]["content"]`.
    """

    function: str | None = None
    signature: Signature | Literal["auto"] = "auto"
    timeout_score: float | None = None
    deadline_s: float = 30.0
    workers: int = 1
    concurrency: int = 16
    range: tuple[float, float] = (0.0, 1.0)
    completions: Completions = "auto"

    def __post_init__(self) -> None:
        _check_choice("signature", self.signature, ("auto", *get_args(Signature)))
        _check_choice("completions", self.completions, get_args(Completions))
        if self.function is not None and not (
            isinstance(self.function, str) and self.function.isidentifier()
        ):
            raise VerifierError(
                _PLACE, "function is not the name of a function.", "Set it to verify_func."
            )
        if not 0 < self.deadline_s < math.inf:
            raise VerifierError(_PLACE, "deadline_s is not above 0.", "Set it to 30, for instance.")
        for name in ("workers", "concurrency"):
            if getattr(self, name) < 1:
                raise VerifierError(_PLACE, f"{name} is below 1.", "Set it to 1 or more.")
        try:
            bounds = tuple(float(bound) for bound in self.range)
        except (TypeError, ValueError):
            bounds = ()
        if len(bounds) != 2 or not -math.inf < bounds[0] < bounds[1] < math.inf:
            raise VerifierError(
                _PLACE, "range is not a lower and a higher number.", "Set it to [0, 1]."
            )
        object.__setattr__(self, "range", bounds)  # run files have lists
        if self.timeout_score is not None and not bounds[0] <= self.timeout_score <= bounds[1]:
            raise VerifierError(
                _PLACE,
                f"timeout_score is outside {bounds[0]:g} to {bounds[1]:g}.",
                "Set it to 0, or to null to leave such answers unjudged.",
            )


class FunctionVerifier:
    """Judges by a function of the file at `path`.

    The file is read once, at the first `check` that succeeds: an edit in the middle of a
    run changes nothing, not even in a process that replaces another. What the file imports
    is found anew in each. Its processes have deadlines and no limit of memory: the code
    is the user's own and may need what a model of its own needs.

    Args:
        settings: how it is found and called.
        path: the Python file.
        judging: the model that the function may ask; None where the run has none.
        columns: of the data beside question and answer; None where they are not known.
        load_s: for loading the file.
    """

    def __init__(
        self,
        settings: FunctionSettings,
        path: Path,
        judging: JudgeContext | None = None,
        *,
        columns: frozenset[str] | None = None,
        load_s: float = LOAD_S,
    ) -> None:
        self._settings, self._judging = settings, judging
        self._path = path.absolute()
        load = {
            "file": str(self._path),
            "function": settings.function,
            "signature": settings.signature,
            "completions": settings.completions,
            "columns": None if columns is None else sorted(columns),
        }
        self._load = load
        self._launcher = FunctionLauncher(
            str(path), concurrency=settings.concurrency, load_s=load_s
        )
        self._pool = ProcessPool(
            self._launcher, workers=settings.workers, deadline_s=settings.deadline_s
        )

    async def check(self) -> None:
        """Load file and function.

        Raises:
            VerifierError: the file is not there, does not load, or has no function of a
                known signature; or its function needs a column that the data does not have.
        """
        if self._launcher.loaded is not None:
            return
        if not self._path.is_file():
            raise _missing_file_error(self._path)
        if self._path.suffix != ".py":
            raise VerifierError(
                str(self._path), "it is not a Python file.", "Give a file that ends in .py."
            )
        try:
            source = self._path.read_bytes()
        except OSError as error:
            cause = f"it cannot be read ({error.strerror or error})."
            raise VerifierError(str(self._path), cause, "Check its rights.") from error
        # Latin 1 takes any byte through JSON and back; the file names its own encoding.
        if not self._pool.is_starting:
            self._launcher.load = {**self._load, "source": source.decode("latin-1")}
        await self._pool.start()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        """Judge by the function.

        Raises:
            VerifierError: as `check`, where that was not called before.
        """
        # A truth is not required: the function may do without.
        verdicts = [unjudgeable_verdict(rollout, (problem,)) for rollout in rollouts]
        todo = [n for n, verdict in enumerate(verdicts) if verdict is None]
        if todo:
            if self._launcher.loaded is None:
                await self.check()
            assert self._launcher.loaded is not None
            together = self._launcher.loaded["signature"] == "trl"  # a whole group in one call
            calls = [todo] if together else [[n] for n in todo]
            answers = await asyncio.gather(
                *(self._call(problem, [rollouts[n] for n in call]) for call in calls)
            )
            for call, answer in zip(calls, answers, strict=True):
                for n, verdict in zip(call, answer, strict=True):
                    verdicts[n] = verdict
        return tuple(verdict for verdict in verdicts if verdict is not None)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _call(self, problem: Problem, rollouts: Sequence[Rollout]) -> list[Verdict]:
        score = self._settings.timeout_score
        # A function that hands back our NaN, as Youtu-Agent's do after a timeout of their
        # own, has no verdict; its default of 0 would say "wrong". Others never see it.
        given = build_question(problem, rollouts, math.nan if score is None else score)
        attempts: list[_JudgeAccess] = []

        def open_access() -> _JudgeAccess:
            attempts.append(_JudgeAccess(self._judging, problem, rollouts[0]))
            return attempts[-1]

        answer = await self._pool.ask(given, open_access)
        access = attempts[-1] if attempts else open_access()
        verdicts = self._verdicts(answer, access, len(rollouts))
        paid = [(access.usage, tuple(access.refs)), *[(NO_USAGE, ())] * (len(rollouts) - 1)]
        return [
            Verdict(v.reward, v.critique, v.metrics, v.error, usage, refs)
            for v, (usage, refs) in zip(verdicts, paid, strict=True)
        ]

    def _verdicts(self, answer: Answer, access: _JudgeAccess, count: int) -> list[Verdict]:
        if isinstance(answer, Trouble):
            return [self._trouble_verdict(answer)] * count
        if access.unanswered:
            # Functions are known to make a reward of this; it is nobody's verdict.
            text = short_text(f"the judge gave no reply: {access.unanswered}", 400)
            return [Verdict(None, error=f"failed: {text}")] * count
        return [self._verdict(result) for result in answer["results"]]

    def _verdict(self, result: Mapping[str, Any]) -> Verdict:
        reward, metrics = result["reward"], result["metrics"]
        critique = fix_surrogates(result["critique"]) if result["critique"] else None
        if reward is None:
            return Verdict(None, critique, metrics)
        given_up = (
            self._launcher.loaded is not None and self._launcher.loaded["signature"] == "youtu"
        )
        if math.isnan(reward) and given_up and self._settings.timeout_score is None:
            return Verdict(None, critique, metrics, "timeout: the function gave up on it")
        try:
            return Verdict(rescale_reward(reward, *self._settings.range), critique, metrics)
        except WrongReturn as error:
            assert self._launcher.loaded is not None
            place = f"{self._launcher.loaded['function']} in {self._path.name}"
            return Verdict(None, critique, metrics, f"failed: {error} ({place})")

    def _trouble_verdict(self, trouble: Trouble) -> Verdict:
        text = f"{trouble.kind}: {short_text(trouble.text, 400)}"
        score = self._settings.timeout_score
        if trouble.kind == "timeout" and score is not None:
            return Verdict(rescale_reward(score, *self._settings.range), text, {"timeout": 1.0})
        return Verdict(None, error=text)


class _JudgeAccess:
    """What one call of the function asks the judge, each question once in the record."""

    def __init__(self, judging: JudgeContext | None, problem: Problem, rollout: Rollout) -> None:
        self._judging, self._problem, self._rollout = judging, problem, rollout
        self._turn = 0
        self.usage: Usage = NO_USAGE
        self.refs: list[RecordRef] = []
        self.unanswered = ""  # why the last question has no reply

    async def answer(self, messages: list[dict[str, str]]) -> str:
        key = judge_key(self._problem, self._rollout, self._turn)
        self._turn += 1
        try:
            if self._judging is None:
                raise CallFailed("refused", "no judge is configured (`judge:` in the run file)")
            judging = self._judging
            completion, ref = await judging.ledger.ask(
                key, judging.policy, [_parse_message(m) for m in messages], judging.sampling
            )
        except CallFailed as error:
            self.unanswered = str(error)
            self.usage += error.usage
            raise
        except asyncio.CancelledError as cut:
            self.usage += lost_usage(cut)
            raise
        self.unanswered = ""
        self.usage += completion.usage
        self.refs.append(ref)
        return completion.text


def _parse_message(given: Mapping[str, str]) -> Message:
    role = _ROLES.get(given["role"])
    if role is None:
        raise CallFailed("shape", f"no message has the role {short_text(given['role'])!r}")
    return Message(role, fix_surrogates(given["content"]))


def _check_choice(name: str, given: object, known: Sequence[str]) -> None:
    if given not in known:
        raise VerifierError(
            _PLACE, f'{name} "{given}" is unknown.', f"Use one of: {', '.join(known)}."
        )


def _missing_file_error(path: Path) -> VerifierError:
    if path.is_dir():
        return VerifierError(str(path), "it is a folder.", "Give a Python file.")
    there = sorted(other.name for other in path.parent.glob("*.py"))
    nearest = difflib.get_close_matches(path.name, there, n=3)
    move = f"Did you mean {' or '.join(nearest)}?" if nearest else "Give a Python file."
    return VerifierError(str(path), "there is no such file.", move)
