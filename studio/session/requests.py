"""What each request to a run's process does, and that one which is sent again is done once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from engines.core import events as ev
from engines.core.codec import from_dict, to_dict
from engines.core.errors import ConflictError
from engines.core.types import KILLED, Decision, Operation
from engines.pipeline.context import RunContext
from engines.pipeline.effect.effect_gate import open_trials
from engines.record.run_dir import RunDir
from studio.session.base import ReviewQueue
from studio.session.idempotency import events_since, prior_result
from studio.session.status import status_of
from studio.session.unparsed_replies import resubmit_reply

T = TypeVar("T")

DECIDING = frozenset(("decide", "decide_all", "undo", "propose", "gate", "mend", "drop", "commit"))
"""Only the controlling screen may ask these, where there is one."""
STEERING = frozenset((*DECIDING, "kill", "pause", "resume", "step", "stop"))
"""A screen may ask these only while it controls the run."""
_READING = ("status", "watch", "attach", "subscribe", "drive", "review", "lint", "questions")
_ROLLOUT = re.compile(r"s(\d{1,9})p(\d{1,9})r(\d{1,9})")
COMMIT_S = 60.0
"""How long a commit is waited for: another process may hold the library's lock."""


class RequestHandler:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._run = RunDir(context.records.parent)
        # One at a time: a request that is sent again may come while its first is still being
        # written, and only the journal tells that it was done.
        self._turn = asyncio.Lock()
        self._trying: asyncio.Task[None] | None = None  # operations, as somebody asked
        self._trial_failure = ""  # why the last of these ended early
        self._committing: dict[asyncio.Future[dict[str, Any]], int] = {}  # → step

    def status(self) -> dict[str, Any]:
        trying = self._trying is not None and not self._trying.done()
        found = status_of(self._context.recorder.state, self._context.budget)
        if (nodes := self._context.nodes()) is not None:
            found["nodes"] = {name: list(tries) for name, tries in nodes.items()}
        return found | {"trying": trying, "trial_failure": self._trial_failure}

    def close(self) -> None:
        """The run ends: answer everyone who waits for a commit; what is tried is kept so far."""
        if self._trying is not None:
            self._trying.cancel()
        for waiting in tuple(self._committing):
            if not waiting.done():
                waiting.set_result({"said": "the run's process ends; nothing is lost"})

    async def handle(
        self, do: str, request: Mapping[str, Any], *, who: str | None, check: Callable[[], None]
    ) -> dict[str, Any]:
        """Do what is asked and return the answer.

        `who` is the person at the screen that asks; None: it is no screen. `check` raises where
        the client may not steer.
        """
        if do not in STEERING:
            return await self._handle_query(do, request)
        async with self._turn:
            waiting, step = None, request.get("step")
            if request.get("again") is True:
                # Before the check: somebody may have taken over since it was first sent.
                if (done := await self._prior_result(do, request)) is not None:
                    return done
                if do == "commit":
                    pending = (one for one, of in self._committing.items() if of == step)
                    waiting = next(pending, None)
            if waiting is None:
                check()
                if do != "commit":
                    return await self._handle_command(do, request, who)
                now = self._context.recorder.state.step
                if step not in (None, now):  # not the one the person looked at
                    move = "Look at what is open now, and try again."
                    raise ConflictError(f"step {step}", f"step {now} is under way by now.", move)
                waiting = await self._release_commit(who or text_fields(request, "reviewer")[0])
        try:
            return await asyncio.wait_for(asyncio.shield(waiting), COMMIT_S)
        except TimeoutError:
            return {"said": "the commit is under way, and not finished yet"}

    async def _prior_result(self, do: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        since = request.get("since")
        if not isinstance(since, int) or since < 0:
            move = "Say how many events it saw."
            raise ConflictError(f"request {do}", 'it is sent again without "since".', move)
        # In a thread: it reads the whole journal.
        events = await asyncio.to_thread(events_since, self._run, since)
        try:
            done = prior_result(do, request, events)
        except (KeyError, TypeError, ValueError, AssertionError):
            return None  # it lacks a field: handling it says so
        if done is not None and do == "commit":
            return {"said": self._commit_text(done["version"]), **done}
        return self.status() if done == {} else done

    async def _handle_query(self, do: str, request: Mapping[str, Any]) -> dict[str, Any]:
        match do:
            case "status" | "watch":
                return self.status()
            case "review":
                state, draft = self._context.recorder.state, self._context.gate.draft()
                return to_dict(ReviewQueue.read(state, draft))
            case "questions":
                wanted = _list_field(request, "problems")
                return {"questions": self._context.questions(frozenset(map(str, wanted)))}
            case "lint":
                asked, own = _parse_all(Decision, request), _parse_all(Operation, request)
                undone = list(map(str, _list_field(request, "undone")))
                found = await self._context.gate.lint(asked, own, undone)
                return {"results": [to_dict(one) for one in found]}
        known = ", ".join((*_READING, *sorted(STEERING)))
        raise ConflictError(f"request {do!r}", "a run knows no such request.", f"Known: {known}.")

    async def _handle_command(
        self, do: str, request: Mapping[str, Any], who: str | None
    ) -> dict[str, Any]:
        control, gate = self._context.control, self._context.gate
        match do:
            case "pause":
                await control.pause(bool(request.get("now")))
            case "resume":
                await control.resume()
            case "step":
                await control.step()
            case "stop":
                # After the answer: stopping closes this very connection.
                after_step = bool(request.get("after_step"))
                by = "studio ctl stop" if who is None else f"by {who}"
                reason = "after this step" if after_step else by
                asyncio.get_running_loop().call_soon(control.stop, reason, after_step)
                return {**self.status(), "status": "stopping"}
            case "kill":
                (rollout,) = text_fields(request, "rollout")
                return self._kill(rollout, who or "studio ctl")
            case "decide":
                return to_dict(await gate.decide(_parse_field(Decision, "decision", request)))
            case "decide_all":
                asked = _parse_all(Decision, request)
                return {"results": [to_dict(one) for one in await gate.decide_all(asked)]}
            case "undo":
                return {"undone": list(await gate.undo(*text_fields(request, "operation")))}
            case "propose":
                (reviewer,) = text_fields(request, "reviewer")
                wanted = _parse_field(Operation, "operation", request)
                return {"operation": to_dict(await gate.queue.propose(wanted, reviewer))}
            case "gate":
                return self._start_trying(request)
            case "mend":
                repair, text, reviewer = text_fields(request, "repair", "text", "reviewer")
                return to_dict(await resubmit_reply(self._run, gate, repair, text, reviewer))
            case "drop":
                repair, reason, reviewer = text_fields(request, "repair", "reason", "reviewer")
                await gate.queue.drop(repair, reason, reviewer)
                return {}
        return self.status()

    def _start_trying(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Try open operations beside the review; each verdict comes as an event."""
        context, named = self._context, _list_field(request, "operations", "of ids, [] for all")
        state = context.recorder.state
        if self._trying is not None and not self._trying.done():
            cause = "operations are being tried already."
            raise ConflictError(f"run {self._run.run}", cause, "Wait for their verdicts.")
        wanted = open_trials(state, [str(name) for name in named])
        if context.effects is None:
            raise no_trials_error(self._run.run)
        facts = context.effects.describe_asked(state, context.trial_base, wanted)
        self._trial_failure = ""
        self._trying = asyncio.create_task(context.try_asked(wanted))
        self._trying.add_done_callback(self._tell_of_trial)
        return facts

    def _tell_of_trial(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._trial_failure = str(error)
            self._context.tell(f"operations could not be tried: {error}")

    def _kill(self, rollout: str, who: str) -> dict[str, Any]:
        if (found := _ROLLOUT.fullmatch(rollout)) is None:
            move = "Send one such as s1p0r2."
            raise ConflictError("request kill", f"{rollout!r} is no rollout's id.", move)
        step, position, index = map(int, found.groups())
        return {"killed": self._context.rollouts.kill(step, position, index, f"{KILLED}{who}")}

    async def _release_commit(self, who: str) -> asyncio.Future[dict[str, Any]]:
        """Defer what is undecided and release the commit; the future holds what came of it."""
        state, gate = self._context.recorder.state, self._context.gate
        if not state.under_review:
            move = "What is decided joins the next commit."
            raise ConflictError(f"run {self._run.run}", "there is no lesson to commit now.", move)
        step = state.step
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def on_event(event: ev.DurableEvent | ev.TransientEvent) -> None:
            if waiting.done():
                return
            match event:
                case ev.LessonCommitted() if event.step == step:
                    version = event.library_version
                    waiting.set_result({"said": self._commit_text(version), "version": version})
                case ev.LessonReturned():
                    asked = f"{len(event.asked_again)} are asked again"
                    waiting.set_result({"said": f"the library moved to v{event.head}: {asked}"})
                case ev.DecisionUndone():
                    waiting.set_result({"said": "not committed: a decision was taken back"})

        stop = self._context.recorder.listen(on_event)
        self._committing[waiting] = step
        waiting.add_done_callback(lambda done: self._committing.pop(done, None))
        waiting.add_done_callback(lambda _: stop())
        try:
            await gate.defer_undecided(who)
        except BaseException:
            waiting.cancel()
            raise
        gate.hold.release_once()
        return waiting

    def _commit_text(self, version: int) -> str:
        state = self._context.recorder.state
        if state.step_trains:
            return f"committed: the policy is at v{state.policy_version}"
        library = state.started.library if state.started else ""
        return f"committed: library {library} is at v{version}"


def text_fields(request: Mapping[str, Any], *names: str) -> list[str]:
    """The texts of a request's fields, "" of one that is missing; refuses what is no text."""
    found = [request.get(name, "") for name in names]
    for name, value in zip(names, found, strict=True):
        if not isinstance(value, str):
            move = "Send a string."
            raise ConflictError(f"request {request.get('do')}", f'its "{name}" is no text.', move)
    return found


def no_trials_error(run: str) -> ConflictError:
    return ConflictError(
        f"run {run}",
        "its operations cannot be tried: it trains weights, knows no answers, or has too few "
        "problems outside a batch.",
        "Name a set of problems in review.gate.data.",
    )


_FIELDS = {
    "decision": "operation_id, action and reviewer; an edit also text, kind or target",
    "operation": "id, kind and text; a change of an experience also target",
}


def _parse_field(cls: type[T], name: str, request: Mapping[str, Any]) -> T:
    try:
        return from_dict(cls, request[name])
    except (KeyError, ValueError) as error:
        cause, move = f"its {name} cannot be read ({error}).", f"Give {_FIELDS[name]}."
        raise ConflictError(f"request {request.get('do')}", cause, move) from error


def _parse_all(cls: type[T], request: Mapping[str, Any]) -> list[T]:
    name = cls.__name__.lower()
    listed = _list_field(request, f"{name}s", f"with of each {_FIELDS[name]}")
    return [_parse_field(cls, name, {**request, name: one}) for one in listed]


def _list_field(request: Mapping[str, Any], name: str, what: str = "of ids") -> list[Any]:
    if isinstance(value := request.get(name), list):
        return value
    place, cause = f"request {request.get('do')}", f'its "{name}" is no list.'
    raise ConflictError(place, cause, f"Send a list {what}.")
