"""What a request to a run's process does.

Owns the meaning of each request, and that one which is sent again is not done twice. Knows
no connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from engines.core import events as ev
from engines.core.codec import from_dict, to_dict
from engines.core.errors import ConflictError
from engines.core.types import KILLED, Decision, Operation
from engines.pipeline.context import RunContext
from engines.record.run_dir import RunDir
from studio.session.base import ReviewQueue
from studio.session.idempotency import events_since, prior_result
from studio.session.status import status_of
from studio.session.unparsed_replies import resubmit_reply

DECIDING = frozenset(("decide", "undo", "propose", "mend", "drop", "commit"))
"""What nobody asks past a screen that drives."""
STEERING = frozenset((*DECIDING, "kill", "pause", "resume", "step", "stop"))
"""What a screen may ask only while it drives."""
_READING = ("status", "watch", "attach", "subscribe", "drive", "review", "lint")
_ROLLOUT = re.compile(r"s(\d{1,9})p(\d{1,9})r(\d{1,9})")
COMMIT_S = 60.0
"""How long a commit is waited for: it may wait for another process at the library's lock."""


class RequestHandler:
    """Does what is asked of one run."""

    def __init__(self, practice: RunContext) -> None:
        self._practice = practice
        self._run = RunDir(practice.records.parent)
        # A request that is sent again may come while its first is still being written: only
        # after that does the journal tell.
        self._turn = asyncio.Lock()
        self._committing: dict[asyncio.Future[dict[str, Any]], int] = {}  # → step

    def status(self) -> dict[str, Any]:
        return status_of(self._practice.recorder.state, self._practice.budget)

    def close(self) -> None:
        """The run ends: nobody need wait for a commit any more."""
        for waiting in tuple(self._committing):
            if not waiting.done():
                waiting.set_result({"said": "the run's process ends; nothing is lost"})

    async def handle(
        self,
        do: str,
        request: Mapping[str, Any],
        *,
        who: str | None,
        check: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Do it and return the answer.

        Args:
            do: what.
            request: its fields.
            who: at the screen that asks; None: it is no screen.
            check: raises where who asks may not steer. What is sent again and was done is
                answered all the same: it may have been asked before somebody took over.

        Raises:
            StudioError: it is refused.
        """
        if do not in STEERING:
            return await self._handle_query(do, request)
        async with self._turn:
            again = request.get("again") is True
            if again and (done := await self._prior_result(do, request)) is not None:
                return done
            waiting = (
                self._pending_commit(request.get("step")) if again and do == "commit" else None
            )
            if waiting is None:
                check()
                if do != "commit":
                    return await self._handle_command(do, request, who)
                self._check_step(request.get("step"))
                waiting = await self._release_commit(who or text_fields(request, "reviewer")[0])
        return await self._wait_for_commit(waiting)

    def _pending_commit(self, step: Any) -> asyncio.Future[dict[str, Any]] | None:
        """The commit of a step that was asked for and has not come yet."""
        return next((one for one, of in self._committing.items() if of == step), None)

    async def _prior_result(self, do: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        since = request.get("since")
        if not isinstance(since, int) or since < 0:
            raise ConflictError(
                f"request {do}", 'it is sent again without "since".', "Say how many events it saw."
            )
        # In a thread: it reads the journal, and the run must not stand still meanwhile.
        events = await asyncio.to_thread(events_since, self._run, since)
        try:
            done = prior_result(do, request, events)
        except (KeyError, TypeError, ValueError, AssertionError):
            return None  # it lacks a field, as will be said
        if done is None:
            return None
        if do == "commit":
            return {"said": self._commit_text(done["version"]), **done}
        return done if done else self.status()

    async def _handle_query(self, do: str, request: Mapping[str, Any]) -> dict[str, Any]:
        match do:
            case "status" | "watch":
                return self.status()
            case "review":
                state, draft = self._practice.recorder.state, self._practice.gate.draft()
                return to_dict(ReviewQueue.read(state, draft))
            case "lint":
                return to_dict(await self._practice.gate.lint(_parse_decision(request)))
        known = ", ".join((*_READING, *sorted(STEERING)))
        raise ConflictError(f"request {do!r}", "a run knows no such request.", f"Known: {known}.")

    async def _handle_command(
        self, do: str, request: Mapping[str, Any], who: str | None
    ) -> dict[str, Any]:
        control, gate = self._practice.control, self._practice.gate
        match do:
            case "pause":
                await control.pause(bool(request.get("now")))
            case "resume":
                await control.resume()
            case "step":
                await control.step()
            case "stop":
                # Answered first: stopping closes this very connection.
                after_step = bool(request.get("after_step"))
                asyncio.get_running_loop().call_soon(
                    control.stop, *_stop_arguments(after_step, who)
                )
                return {**self.status(), "status": "stopping"}
            case "kill":
                (rollout,) = text_fields(request, "rollout")
                return self._kill(rollout, who or "studio ctl")
            case "decide":
                return to_dict(await gate.decide(_parse_decision(request)))
            case "undo":
                return {"undone": list(await gate.undo(*text_fields(request, "operation")))}
            case "propose":
                (reviewer,) = text_fields(request, "reviewer")
                proposed = await gate.propose(_parse_operation(request), reviewer)
                return {"operation": to_dict(proposed)}
            case "mend":
                repair, text, reviewer = text_fields(request, "repair", "text", "reviewer")
                return to_dict(await resubmit_reply(self._run, gate, repair, text, reviewer))
            case "drop":
                repair, reason, reviewer = text_fields(request, "repair", "reason", "reviewer")
                await gate.drop(repair, reason, reviewer)
                return {}
        return self.status()

    def _kill(self, rollout: str, who: str) -> dict[str, Any]:
        found = _ROLLOUT.fullmatch(rollout)
        if found is None:
            raise ConflictError(
                "request kill", f"{rollout!r} is no rollout's id.", "Send one such as s1p0r2."
            )
        step, position, index = map(int, found.groups())
        return {"killed": self._practice.rollouts.kill(step, position, index, f"{KILLED}{who}")}

    def _check_step(self, step: Any) -> None:
        """What was looked at must be what is committed."""
        now = self._practice.recorder.state.step
        if step not in (None, now):
            raise ConflictError(
                f"step {step}", f"step {now} is under way by now.", "Look at what waits, and again."
            )

    async def _release_commit(self, who: str) -> asyncio.Future[dict[str, Any]]:
        """Put off what is undecided and let the lesson go; the future tells what came of it."""
        state, gate = self._practice.recorder.state, self._practice.gate
        if not state.under_review:
            raise ConflictError(
                f"run {self._run.run}",
                "no lesson waits to be committed.",
                "What is decided joins the next commit.",
            )
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
                    asked = len(event.asked_again)
                    waiting.set_result(
                        {"said": f"the library moved to v{event.head}: {asked} are asked again"}
                    )
                case ev.DecisionUndone():
                    waiting.set_result({"said": "not committed: a decision was taken back"})

        stop = self._practice.recorder.listen(on_event)
        self._committing[waiting] = step
        waiting.add_done_callback(lambda done: self._committing.pop(done, None))
        waiting.add_done_callback(lambda _: stop())
        try:
            await gate.defer_undecided(who)
        except BaseException:
            waiting.cancel()
            raise
        gate.release_once()
        return waiting

    async def _wait_for_commit(self, waiting: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(asyncio.shield(waiting), COMMIT_S)
        except TimeoutError:
            return {"said": "the commit is under way; it waits for the run"}

    def _commit_text(self, version: int) -> str:
        state = self._practice.recorder.state
        if state.trains_weights:
            return f"committed: the policy is at v{state.policy_version}"
        library = state.started.library if state.started else ""
        return f"committed: library {library} is at v{version}"


def text_fields(request: Mapping[str, Any], *names: str) -> list[str]:
    """The texts of a request's fields, "" of one that is missing.

    Raises:
        ConflictError: one is something else than a text.
    """
    found = [request.get(name, "") for name in names]
    for name, value in zip(names, found, strict=True):
        if not isinstance(value, str):
            raise ConflictError(
                f"request {request.get('do')}", f'its "{name}" is no text.', "Send a string."
            )
    return found


def _stop_arguments(after_step: bool, who: str | None) -> tuple[str, bool]:
    if after_step:
        return "after this step", True
    return ("studio ctl stop" if who is None else f"by {who}"), False


def _parse_decision(request: Mapping[str, Any]) -> Decision:
    try:
        return from_dict(Decision, request["decision"])
    except (KeyError, ValueError) as error:
        raise ConflictError(
            "request decide",
            f"its decision cannot be read ({error}).",
            "Give operation_id, action and reviewer; an edit also text, kind or target.",
        ) from error


def _parse_operation(request: Mapping[str, Any]) -> Operation:
    try:
        return from_dict(Operation, request["operation"])
    except (KeyError, ValueError) as error:
        raise ConflictError(
            "request propose",
            f"its operation cannot be read ({error}).",
            "Give id, kind and text; a change of an experience also target.",
        ) from error
