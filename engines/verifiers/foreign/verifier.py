"""A verifier that is a function in the user's own file, written for any of three frameworks.

The file itself runs in a process of its own (`process`), never in ours.
"""

import asyncio
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from engines.core import codec, waiting
from engines.core.errors import AnswersPending, CallFailed, VerifierError, lost_usage
from engines.core.frozen import frozen
from engines.core.settings import derived, setting
from engines.core.types import NO_USAGE, Message, Problem, RecordRef, Role, Rollout, Usage, Verdict
from engines.process.pool import Answer, Child, ChildMessage, ModelAccess, ProcessPool, Trouble
from engines.process.start import ScratchFolder, kill_session, start_python
from engines.verifiers.foreign.calls import WrongReturn, build_question, rescale_reward
from engines.verifiers.independent import failed_verdict
from engines.verifiers.judge import JudgeContext, judge_key
from engines.verifiers.stated_answer import short_text, trouble_verdict

_ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}


@frozen
class FunctionSettings:
    """How a function is found and called.

    Without `function` it is the only public one of a known signature in the file, else
    `verify_func`. `timeout_score`, within `range`, is the reward of an answer whose check ran
    out of time; None leaves it unjudged. Youtu-Agent's functions receive it.
    """

    function: str | None = setting(
        None, "name of the function; null: the only one of a known form", examples=["verify_func"]
    )
    timeout_score: float | None = setting(
        None, "reward after the deadline, inside range; null leaves it unjudged", examples=[0]
    )
    deadline_s: float = setting(30.0, "seconds for one call, without the models that it asks", gt=0)
    workers: int = setting(1, "processes that call it", ge=1)
    concurrency: int = derived(16)  # calls of a coroutine at a time in one process
    range: tuple[float, float] = setting(
        (0.0, 1.0), "lowest and highest of its rewards, mapped to 0 to 1", examples=["[0,10]"]
    )

    def __post_init__(self) -> None:
        place = 'verifier "function"'
        low, high = self.range
        if self.function is not None and not self.function.isidentifier():
            raise VerifierError(
                place, "function is not the name of a function.", "Set it to verify_func."
            )
        if low >= high:
            raise VerifierError(
                place, "range is not a lower and a higher number.", "Set it to [0, 1]."
            )
        if self.timeout_score is not None and not low <= self.timeout_score <= high:
            raise VerifierError(
                place,
                f"timeout_score is outside {low:g} to {high:g}.",
                "Set it to 0, or to null to leave such answers unjudged.",
            )


class FunctionVerifier:
    """Judges by a function of the file at `path`.

    The file is read once, at the first `check` that succeeds: an edit in the middle of a
    run changes nothing, not even in a process that replaces another. What the file imports
    is found anew in each. Its processes have deadlines and no limit of memory: the code
    is the user's own and may need what a model of its own needs.

    `columns` are those of the data beside question and answer; None where they are not known.
    """

    def __init__(
        self,
        settings: FunctionSettings,
        path: Path,
        judging: JudgeContext | None = None,
        *,
        columns: frozenset[str] | None = None,
        load_s: float = 60.0,  # for loading the file
    ) -> None:
        self._settings, self._judging = settings, judging
        self._path = path.absolute()
        self._load = {
            "file": str(self._path),
            "function": settings.function,
            "columns": None if columns is None else sorted(columns),
        }
        concurrency, workers = settings.concurrency, settings.workers
        self._launcher = FunctionLauncher(str(path), concurrency=concurrency, load_s=load_s)
        self._pool = ProcessPool(self._launcher, workers=workers, deadline_s=settings.deadline_s)

    @property
    def whole_groups(self) -> bool:
        """Functions of TRL may compare the tries: there they always get all of them."""
        return self._launcher.loaded is not None and self._launcher.loaded["signature"] == "trl"

    async def check(self) -> None:
        """Load file and function.

        Raises VerifierError: the file is not there, does not load, or has no function of a
        known signature; or its function needs a column that the data does not have.
        """
        if self._launcher.loaded is not None:
            return
        if self._path.suffix != ".py":
            raise VerifierError(
                str(self._path), "it is not a Python file.", "Give a file that ends in .py."
            )
        try:
            source = self._path.read_bytes()
        except OSError as error:
            raise VerifierError(
                str(self._path),
                f"it cannot be read ({error.strerror or error}).",
                "Give a Python file.",
            ) from error
        # Latin 1 takes any byte through JSON and back; the file names its own encoding.
        if not self._pool.is_starting:
            self._launcher.load = {**self._load, "source": source.decode("latin-1")}
        await self._pool.start()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        """Judge by the function. VerifierError as `check`, where that was not called before."""
        # A truth is not required: the function may do without.
        verdicts = [failed_verdict(rollout) for rollout in rollouts]
        todo = [n for n, verdict in enumerate(verdicts) if verdict is None]
        if todo:
            await self.check()
            calls = [todo] if self.whole_groups else [[n] for n in todo]
            answers = await waiting.gather_all(
                self._call(problem, [rollouts[n] for n in call]) for call in calls
            )
            for n, verdict in zip(todo, itertools.chain(*answers), strict=True):
                verdicts[n] = verdict
        return tuple(verdict for verdict in verdicts if verdict is not None)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _call(self, problem: Problem, rollouts: Sequence[Rollout]) -> list[Verdict]:
        score = self._settings.timeout_score
        # A function that hands back our NaN, as Youtu-Agent's do after a timeout of their
        # own, has no verdict; its default of 0 would say "wrong". Others never see it.
        given = build_question(problem, rollouts, math.nan if score is None else score)
        access = _JudgeAccess(self._judging, problem, rollouts[0])

        def open_access() -> ModelAccess:
            nonlocal access
            access = _JudgeAccess(self._judging, problem, rollouts[0])
            return access.answer

        answer = await self._pool.ask(given, open_access)
        if access.pending is not None:
            raise access.pending
        first, *others = self._verdicts(answer, access, len(rollouts))
        return [replace(first, usage=access.usage, refs=tuple(access.refs)), *others]

    def _verdicts(self, answer: Answer, access: "_JudgeAccess", count: int) -> list[Verdict]:
        if isinstance(answer, Trouble):
            score = self._settings.timeout_score
            reward = None if score is None else rescale_reward(score, *self._settings.range)
            return [trouble_verdict(answer, 400, timeout_score=reward)] * count
        if access.unanswered:
            # Functions are known to make a reward of this; it is nobody's verdict.
            text = short_text(f"the judge gave no reply: {access.unanswered}", 400)
            return [Verdict(None, error=f"failed: {text}")] * count
        return [self._verdict(result) for result in answer["results"]]

    def _verdict(self, result: codec.JsonMapping) -> Verdict:
        reward, metrics = result["reward"], result["metrics"]
        critique = codec.fix_surrogates(result["critique"]) if result["critique"] else None
        if reward is None:
            return Verdict(None, critique, metrics)
        loaded = self._launcher.loaded
        assert loaded is not None
        given_up = loaded["signature"] == "youtu" and self._settings.timeout_score is None
        if math.isnan(reward) and given_up:
            return Verdict(None, critique, metrics, "timeout: the function gave up on it")
        steps = tuple(result.get("step_rewards") or ())
        try:
            scaled = rescale_reward(reward, *self._settings.range)
            return Verdict(scaled, critique, metrics, step_rewards=steps)
        except WrongReturn as error:
            place = f"{loaded['function']} in {self._path.name}"
            return Verdict(None, critique, metrics, f"failed: {error} ({place})")


@dataclass(slots=True)
class _JudgeAccess:
    """What one call of the function asks the judge, each question once in the record."""

    judging: JudgeContext | None
    problem: Problem
    rollout: Rollout
    turn: int = 0
    usage: Usage = NO_USAGE
    refs: list[RecordRef] = field(default_factory=list)
    unanswered: str = ""  # why the last question has no reply
    pending: AnswersPending | None = None

    async def answer(self, messages: list[dict[str, str]]) -> str:
        key = judge_key(self.problem, self.rollout, self.turn)
        self.turn += 1
        try:
            if self.judging is None:
                raise CallFailed("refused", "no judge is configured (`judge:` in the run file)")
            judging = self.judging
            completion, ref = await judging.ledger.ask(
                key, judging.policy, [_parse_message(m) for m in messages], judging.sampling
            )
        except AnswersPending as pending:
            self.pending = pending
            raise CallFailed("waiting", str(pending)) from None
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
    return Message(role, codec.fix_surrogates(given["content"]))


DIED = {
    "cause": "the process ended while it loaded the file.",
    "move": "Look for what exits or crashes at its top level.",
}


def parse_message(line: bytes) -> ChildMessage | None:
    """A message of the worker; None where it is none."""
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match message:
        case (
            {"loaded": {"signature": str(), "async": bool()}}
            | {"refused": {"cause": str(), "move": str()}}
            | {"done": int(), "error": str()}
            | {"done": int(), "results": list()}
            | {"ask": int(), "call": int(), "messages": list()}
        ):
            whole: ChildMessage = message
            return whole
    return None


class FunctionLauncher:
    """Starts processes that have loaded a user's file, within `load_s`.

    `concurrency` is how many calls run at a time in one process where the function is a
    coroutine.
    """

    exit_text = "the verifier's process ended (crash, exit or out of memory)"

    def __init__(self, place: str, *, concurrency: int, load_s: float) -> None:
        self._place, self._concurrency, self._load_s = place, concurrency, load_s
        self.load: ChildMessage = {}  # the order that loads the file, in every process
        self.loaded: codec.JsonMapping | None = None  # function, signature and async, once known

    async def start(
        self, on_message: Callable[[ChildMessage], None], on_exit: Callable[[], None]
    ) -> Child:
        """Start a process and load the file.

        Raises VerifierError: the file cannot serve, or there can be no further process.
        """
        first: asyncio.Future[ChildMessage] = asyncio.get_running_loop().create_future()

        def handle_message(message: ChildMessage) -> None:
            if first.done():
                on_message(message)
            else:
                first.set_result(message)

        def handle_exit() -> None:
            if not first.done():
                first.set_result({"refused": DIED})
            on_exit()

        try:
            child = await _start_child(handle_message, handle_exit)
        except OSError as error:
            raise VerifierError(
                self._place,
                f"no process can be started for it ({error}).",
                "Free processes and memory, and start again.",
            ) from error
        try:
            child.send({"load": self.load})
            async with asyncio.timeout(self._load_s):
                message = await first
        except TimeoutError:
            cause = f"it was not loaded within {self._load_s:g} s."
            message = {"refused": {"cause": cause, "move": "Look for what it waits for."}}
        except BaseException:
            await child.close()
            raise
        if refused := message.get("refused", None if "loaded" in message else DIED):
            await child.close()
            place = f"{self._place}:{refused['line']}" if refused.get("line") else self._place
            # An exception's text is the file's own: no escape sequence reaches a terminal.
            cause, move = (short_text(refused[name], 500) for name in ("cause", "move"))
            raise VerifierError(place, cause, move)
        self.loaded = message["loaded"]
        child.capacity = self._concurrency if message["loaded"]["async"] else 1
        return child

    async def aclose(self) -> None:
        """Nothing is left once the processes are ended."""


async def _start_child(
    on_message: Callable[[ChildMessage], None], on_exit: Callable[[], None]
) -> Child:
    folder = ScratchFolder("studio-verifier-")
    # Our environment is passed on whole: the file is the user's code and may need its keys.
    environment = {**os.environ, "TMPDIR": folder.path}
    try:
        process, ours = start_python(
            ["-m", "engines.verifiers.foreign.worker"], environment, paths=sys.path
        )
    except BaseException:
        folder.remove()
        raise

    def clean_up() -> None:
        process.wait()
        folder.remove()

    async def kill() -> None:
        kill_session(process)  # here and now: a thread may have to be waited for
        await asyncio.to_thread(clean_up)

    child = Child(on_message, on_exit, parse_message, kill)
    await child.connect(ours)
    return child
