"""The requests of a session: each writes and reads itself, and carries itself out.

A request travels as one line of JSON over `control.sock`: `{"v": 3, "id": "9f…", "do": "pause",
…}` with the fields of its class. Its answer is `{"v": 3, "id": "9f…", "ok": true, "result": …}`,
or `{…, "ok": false, "place": …, "cause": …, "move": …}`. After `watch` or `attach` come, between
answers, `{"v": 3, "seq": n, "event": …}`, where a durable event is the nth of the run's journal;
after `attach` also `{"v": 3, "streams": [[rollout, offset, text], …]}` and `{"v": 3, "driver":
{"mine": …, "who": …}}`.

The id of a request stands in every event that it causes. So one that is sent again, with `since`
(how many events the client had seen when it first asked), is carried out once, also where the
process was killed in between and another one took the run up.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from engines.core.codec import JsonMapping, JsonObject, dumps, fields_of, from_dict, read_json
from engines.core.errors import ConflictError, StudioError
from engines.core.frozen import frozen
from engines.core.library_notes import UseCounts
from engines.core.types import KILLED, Decision, DecisionPreview, Names, Operation, UnparsedReply

if TYPE_CHECKING:  # `studio ctl status` sends a request, and is to answer at once
    from engines.core.library import Library
    from engines.core.state.run_state import RunState
    from engines.pipeline.budget import Budget
    from engines.pipeline.context import RunContext
    from engines.pipeline.gate.gate import Gate
    from engines.record.run_dir import RunDir
    from engines.training_free.consolidation import Resubmission

T = TypeVar("T")
Events = Sequence[Any]
"""The events that a request has caused: it knows their class."""

PROTOCOL = 3
"""3: ids are texts, answers stand in `result`, and events hold the id of their request."""
MAX_LINE = 4_000_000
"""Bytes of one request: an edit is short, a mended reply is not. An answer may be longer."""
LONGEST_ID = 64
_ROLLOUT = re.compile(r"s(\d{1,9})p(\d{1,9})r(\d{1,9})")


# -- what is refused -------------------------------------------------------------------------


class NotRunningError(ConflictError):
    """No process of the run answers, or it ended before it did."""


class ControlledElsewhereError(ConflictError):
    """Somebody decides on a screen, and one person decides at a time."""


def silent_error(run: str) -> ConflictError:
    return ConflictError(
        f"run {run}",
        "its process is there and does not answer: it may be suspended.",
        "Let it go on (fg, or kill -CONT), then look again: what was asked may still be done.",
    )


def not_running_error(run: str, cause: str = "no process of it is running.") -> NotRunningError:
    return NotRunningError(
        f"run {run}", cause, f"Start it with `studio headless --resume {quote(run)}`."
    )


def ended_early_error(run: str) -> NotRunningError:
    return NotRunningError(
        f"run {run}",
        "its process ended before it answered.",
        f"Look at `studio runs list`, and start it with `studio headless --resume {run}`.",
    )


def controlled_elsewhere_error(run: str, who: str) -> ControlledElsewhereError:
    return ControlledElsewhereError(
        f"run {run}",
        f"{who} decides on a screen, and one decides at a time.",
        f"Take over there (studio attach {quote(run)}, then T), or wait until that screen is "
        f"left: studio review {quote(run)} --wait.",
    )


def too_long_error(do: str, size: int) -> ConflictError:
    """Refuse a request of so many bytes."""
    return ConflictError(
        f"request {do}".rstrip(),
        f"it is too long to be sent: {size:,} bytes, where {MAX_LINE:,} are the most.",
        "Shorten its text.",
    )


def no_trials_error(run: str) -> ConflictError:
    return ConflictError(
        f"run {run}",
        "its operations cannot be tried: it trains weights, knows no answers, or has too few "
        "problems outside a batch.",
        "Name a set of problems in review.gate.data.",
    )


# -- what a request is carried out on --------------------------------------------------------


class OpenRun(ABC):
    """A run that requests are carried out on: in its process, or under the lock of its journal."""

    def __init__(self, run: RunDir, gate: Gate) -> None:
        self.run = run
        self.gate = gate

    @property
    def state(self) -> RunState:
        return self.gate.recorder.state

    @property
    def practice(self) -> RunContext:
        """What only a process has; ConflictError where there is none."""
        raise not_running_error(self.run.run)

    def status(self) -> JsonObject:
        return status_of(self.state)

    def try_operations(self, names: Sequence[str]) -> JsonObject:
        """Begin to try open operations beside the review; returns what is tried, and on what."""
        raise not_running_error(self.run.run)

    @abstractmethod
    async def commit(self, step: int, reviewer: str) -> str:
        """Commit what is decided; returns what happened."""


def status_of(state: RunState, budget: Budget | None = None) -> JsonObject:
    """Where a run stands, as JSON has it; `budget` adds what is left of each limit."""
    started = state.started
    current = state.current
    return {
        "run": started.run if started else "",
        **fields_of(state, "status", "events", "reason", "epochs", "step", "steps_finished"),
        **fields_of(state, "library_version", "reviewer", "curates", "proposed"),
        "rehearsal": bool(started and started.rehearsal),
        "epoch": state.steps[state.step].epoch if state.step in state.steps else 0,
        "steps": started.steps_per_epoch * state.epochs if started else 0,
        "rollouts_done": current.rollouts_done if current else 0,
        "library": started.library if started else "",
        "policy_version": state.policy_version if state.trains_weights else None,
        "training": _training_line(state),
        "undecided": len(state.undecided_operations),
        "open": len(state.open_operations),
        "lost": sum(state.lost.values()),
        "repairs": len(state.repairs),
        **fields_of(state.total_usage, "tokens", "cost_usd"),
        "budget": budget.limits.amounts if budget else {},
        "budget_left": budget.remaining if budget else {},
    }


def _training_line(state: RunState) -> str | None:
    """The last finished step in one line; None for a run that trains no weights."""
    if not state.trains_weights:
        return None
    from studio.facts.training import measured_steps, trained_steps
    from studio.render.training_lines import figures_text

    measured = measured_steps(trained_steps(state))
    return f"step {measured[-1].step}: {figures_text(measured[-1])}" if measured else "no step yet"


@frozen
class ReviewQueue:
    """The operations that wait for a reviewer, and those decided and not committed yet.

    `draft` is the library as the standing decisions would leave it, in its order. `repairs`
    are replies that could not be parsed, each with no more text than a list shows;
    `studio.session.unparsed_replies.find_reply_source` has the whole.
    """

    open: tuple[Operation, ...] = ()
    decided: tuple[Decision, ...] = ()
    draft: tuple[tuple[str, str], ...] = ()
    stale: int | None = None  # the version the library had moved to under the lesson
    repairs: tuple[UnparsedReply, ...] = ()
    base_version: int = 0
    pinned: Names = ()  # ids of experiences of the draft
    notes: Mapping[str, str] = field(default_factory=dict)  # by operation, kept as it was put off
    uses: Mapping[str, UseCounts] = field(default_factory=dict)  # of wordings that still stand
    merged: Mapping[str, str] = field(default_factory=dict)  # by operation, the proposals in it
    dropped: Names = ()  # proposals of the step under way, each with the reason

    @classmethod
    def of(cls, state: RunState, draft: Library) -> ReviewQueue:
        """The queue of a run at this state, whose gate has this draft."""
        from studio.render.words import dropped_texts, fates_under_review, merged_text

        fates, texts = fates_under_review(state)
        return cls(
            open=state.open_operations,
            decided=tuple(state.decisions.values()),
            draft=tuple((experience.id, experience.text) for experience in draft.experiences),
            stale=state.flagged_stale,
            repairs=tuple(state.repairs.values()),
            base_version=state.base_version,
            pinned=draft.pinned_ids,
            notes=dict(state.notes),
            uses=draft.notes.uses,
            merged={op.id: merged_text(op.id, fates) for op in state.open_operations},
            dropped=tuple(dropped_texts(fates, texts)),
        )


# -- the requests ----------------------------------------------------------------------------


def new_id() -> str:
    return os.urandom(8).hex()


@frozen
class Request(Generic[T]):
    """A request to a run: of its process, or of its journal where it has none.

    T is the type of its answer, which `result` names for the wire.
    """

    do: ClassVar[str]
    result: ClassVar[Any] = Any
    changes: ClassVar[bool] = True  # it is carried out once, and by whoever controls the run
    decides: ClassVar[bool] = False  # a script may not ask it while a screen controls the run
    needs_process: ClassVar[bool] = False
    id: str = field(default_factory=new_id, kw_only=True)

    async def perform(self, run: OpenRun) -> T:
        """Carry it out. Raises ConflictError: the run refuses it."""
        raise NotImplementedError

    def answer_again(self, done: Events, state: RunState) -> T | None:
        """Return the answer it had; None: it is not done yet. `done` are the events it caused."""
        return None

    def read_answer(self, data: Any) -> T:
        answer: T = read_json(self.result, data)
        return answer


class _Query(Request[T]):
    """One that changes nothing, so that it may be asked twice."""

    __slots__ = ()
    changes = False


class _Decision(Request[T]):
    __slots__ = ()
    decides = True


class _Steering(Request[JsonMapping]):
    """One that steers the process of a run; the answer is where it stands then."""

    __slots__ = ()
    needs_process = True

    def answer_again(self, done: Events, state: RunState) -> JsonMapping | None:
        return status_of(state) if done else None


@frozen
class Decide(_Decision[tuple[Decision, ...]]):
    """Journal decisions as one record: on disk all of them stand, or none."""

    do = "decide"
    result = tuple[Decision, ...]
    decisions: tuple[Decision, ...]

    async def perform(self, run: OpenRun) -> tuple[Decision, ...]:
        return await run.gate.decide_all(self.decisions)

    def answer_again(self, done: Events, state: RunState) -> tuple[Decision, ...] | None:
        return done[0].decisions if done else None


@frozen
class Undo(_Decision[Names]):
    """Take a decision back; the answer names every operation that is asked again."""

    do = "undo"
    result = Names
    operation: str

    async def perform(self, run: OpenRun) -> Names:
        return await run.gate.undo(self.operation)

    def answer_again(self, done: Events, state: RunState) -> Names | None:
        return tuple(event.operation_id for event in done) or None


@frozen
class Propose(_Decision[Operation]):
    """Put a person's own operation into the queue; the answer has its id and flags."""

    do = "propose"
    result = Operation
    operation: Operation
    reviewer: str

    async def perform(self, run: OpenRun) -> Operation:
        return await run.gate.propose(self.operation, self.reviewer)

    def answer_again(self, done: Events, state: RunState) -> Operation | None:
        return done[0].operation if done else None


@frozen
class Mend(_Decision["Resubmission"]):
    """Hand in a corrected reply; the operations it holds are open from then on."""

    do = "mend"
    repair: str
    text: str
    reviewer: str

    async def perform(self, run: OpenRun) -> Resubmission:
        from studio.session.unparsed_replies import resubmit_reply

        return await resubmit_reply(run.run, run.gate, self.repair, self.text, self.reviewer)

    def answer_again(self, done: Events, state: RunState) -> Resubmission | None:
        from engines.training_free.consolidation import Resubmission

        return Resubmission(done[0].operations) if done else None

    def read_answer(self, data: Any) -> Resubmission:
        from engines.training_free.consolidation import Resubmission

        return from_dict(Resubmission, data)


@frozen
class Drop(_Decision[str]):
    """Give up a reply that could not be understood; the answer is its id."""

    do = "drop"
    result = str
    repair: str
    reason: str
    reviewer: str

    async def perform(self, run: OpenRun) -> str:
        await run.gate.drop(self.repair, self.reason, self.reviewer)
        return self.repair

    def answer_again(self, done: Events, state: RunState) -> str | None:
        return self.repair if done else None


@frozen
class Commit(_Decision[str]):
    """Commit what is decided, the undecided being deferred; the answer says what happened.

    A run holds its commit while a screen controls it, until this is asked or the screen leaves.
    """

    do = "commit"
    result = str
    step: int  # that was looked at
    reviewer: str

    async def perform(self, run: OpenRun) -> str:
        return await run.commit(self.step, self.reviewer)

    def answer_again(self, done: Events, state: RunState) -> str | None:
        # Whoever committed the step: this request is about no other one.
        step = state.steps.get(self.step)
        return committed_text(state) if step is not None and step.committed else None


def committed_text(state: RunState) -> str:
    if state.step_trains:
        return f"committed: the policy is at v{state.policy_version}"
    library = state.started.library if state.started else ""
    return f"committed: library {library} is at v{state.library_version}"


@frozen
class TryOperations(_Decision[JsonMapping]):
    """Have the run's process try open operations; verdicts come as events. () means all."""

    do = "gate"
    needs_process = True
    operations: Names = ()

    async def perform(self, run: OpenRun) -> JsonMapping:
        return run.try_operations(self.operations)


@frozen
class Pause(_Steering):
    """Begin nothing new; with `now` no further call of a model either."""

    do = "pause"
    now: bool = False

    async def perform(self, run: OpenRun) -> JsonMapping:
        await run.practice.control.pause(self.now)
        return run.status()


@frozen
class Resume(_Steering):
    do = "resume"

    async def perform(self, run: OpenRun) -> JsonMapping:
        await run.practice.control.resume()
        return run.status()


@frozen
class Step(_Steering):
    """Go on through the next commit, then pause."""

    do = "step"

    async def perform(self, run: OpenRun) -> JsonMapping:
        await run.practice.control.step()
        return run.status()


@frozen
class Stop(_Steering):
    """End the run, now or once the step under way is committed."""

    do = "stop"
    after_step: bool = False
    reviewer: str = ""  # "": a script

    async def perform(self, run: OpenRun) -> JsonMapping:
        who = f"by {self.reviewer}" if self.reviewer else "studio ctl stop"
        reason = "after this step" if self.after_step else who
        run.practice.control.stop_soon(reason, after_step=self.after_step)
        return {**run.status(), "status": "stopping"}


@frozen
class Kill(Request[bool]):
    """End one rollout as failed; the answer is False where it was not under way."""

    do = "kill"
    result = bool
    needs_process = True
    rollout: str
    reviewer: str = ""

    async def perform(self, run: OpenRun) -> bool:
        match = _ROLLOUT.fullmatch(self.rollout)
        if match is None:
            raise ConflictError(
                "request kill", f"{self.rollout!r} is no rollout's id.", "Send one such as s1p0r2."
            )
        step, position, index = map(int, match.groups())
        reason = f"{KILLED}{self.reviewer or 'studio ctl'}"
        if run.practice.rollouts.kill(step, position, index, reason):
            return True
        # Asked again: it was killed before the answer came.
        under_way = run.state.steps.get(step)
        ended = under_way.rollouts.get((position, index)) if under_way is not None else None
        return ended is not None and ended.error == reason


@frozen
class ChangeSpeed(_Query[JsonMapping]):
    """Play a replay faster or slower; a run itself knows no speed."""

    do = "speed"
    needs_process = True
    faster: bool


@frozen
class Status(_Query[JsonObject]):
    do = "status"
    needs_process = True

    async def perform(self, run: OpenRun) -> JsonObject:
        return run.status()


@frozen
class ReadQueue(_Query[ReviewQueue]):
    """List what waits for a reviewer."""

    do = "review"
    result = ReviewQueue
    decides = True  # who asks is about to

    async def perform(self, run: OpenRun) -> ReviewQueue:
        return ReviewQueue.of(run.state, run.gate.draft())


@frozen
class Preview(_Query[tuple[DecisionPreview, ...]]):
    """Check decisions, once others are undone and one's own operations proposed."""

    do = "lint"
    result = tuple[DecisionPreview, ...]
    decisions: tuple[Decision, ...]
    own: tuple[Operation, ...] = ()
    undone: Names = ()

    async def perform(self, run: OpenRun) -> tuple[DecisionPreview, ...]:
        return tuple(await run.gate.lint(self.decisions, self.own, self.undone))


@frozen
class ReadQuestions(_Query[Mapping[str, str]]):
    """Tell what problems ask, by id: as far as the process knows it."""

    do = "questions"
    needs_process = True
    problems: Names

    async def perform(self, run: OpenRun) -> Mapping[str, str]:
        return run.practice.questions(frozenset(self.problems))


# -- the requests that are about a connection, which the server of a process carries out ---------


@frozen
class Watch(_Query[JsonObject]):
    """Send every event from now on."""

    do = "watch"
    needs_process = True


@frozen
class Attach(_Query[JsonObject]):
    """Send every event to a screen, which controls the run where it asks to and nobody does."""

    do = "attach"
    needs_process = True
    who: str = "somebody"
    session: str = ""  # the same for each connection of one screen; "": not given
    drive: bool = False


@frozen
class Subscribe(_Query[bool]):
    """Send the text of these running rollouts, and of no other."""

    do = "subscribe"
    needs_process = True
    rollouts: Names


@frozen
class TakeControl(_Query[JsonObject]):
    """Decide from now on; the screen before observes."""

    do = "drive"
    needs_process = True


REQUESTS: Mapping[str, type[Request[Any]]] = {
    cls.do: cls
    for cls in (
        Decide, Undo, Propose, Mend, Drop, Commit, TryOperations,
        Pause, Resume, Step, Stop, Kill,
        Status, ReadQueue, Preview, ReadQuestions,
        Watch, Attach, Subscribe, TakeControl,
    )
}  # fmt: skip


def find_answer(request: Request[T], run: RunDir, state: RunState, since: int) -> T | None:
    """Look in the journal for what a request has caused; None: nothing. Blocks.

    `since` is how many events whoever sends it again had seen when it was first sent.
    """
    done = [entry.event for entry in run.entries(since) if entry.request == request.id]
    return request.answer_again(done, state)


# -- the wire --------------------------------------------------------------------------------


def format_line(**values: Any) -> bytes:
    """Write one line, with the version in front."""
    return dumps({"v": PROTOCOL, **values}) + b"\n"


def request_line(request: Request[Any], since: int | None = None) -> bytes:
    """Write a request; `since` where it is sent again."""
    own = {each.name: getattr(request, each.name) for each in fields(request)}
    again = {} if since is None else {"since": since}
    line = format_line(do=request.do, **own, **again)
    if len(line) > MAX_LINE:
        raise too_long_error(request.do, len(line))
    return line


def parse_line(line: bytes) -> JsonObject:
    """Read the envelope of a request."""
    try:
        message: JsonObject = json.loads(line)
        version, name = message.get("v"), message.get("id")
    except (ValueError, RecursionError, AttributeError) as error:
        raise ConflictError(
            "request", "it is no JSON object, or nested too deeply.", "Send one object a line."
        ) from error
    if version != PROTOCOL:
        raise ConflictError(
            "request",
            f"it speaks protocol {version}, this run speaks {PROTOCOL}.",
            "Use the studio release that started the run.",
        )
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        raise ConflictError(
            "request",
            f"its id is no text of 1 to {LONGEST_ID} characters.",
            "Give each request an id of its own.",
        )
    return message


def parse_request(message: JsonMapping) -> tuple[Request[Any], int | None]:
    """Read a request, and since when it is sent again; None: it is sent for the first time."""
    do = message.get("do")
    cls = REQUESTS.get(do) if isinstance(do, str) else None
    if cls is None:
        raise ConflictError(
            f"request {do!r}", "a run knows no such request.", f"Known: {', '.join(REQUESTS)}."
        )
    since = message.get("since")
    if since is not None and (not isinstance(since, int) or since < 0):
        raise ConflictError(f"request {do}", 'its "since" is no count.', "Say how many events.")
    own = {key: value for key, value in message.items() if key not in ("v", "do", "since")}
    try:
        return from_dict(cls, own), since
    except ValueError as error:
        names = ", ".join(each.name for each in fields(cls))
        raise ConflictError(
            f"request {do}", f"it cannot be read ({error}).", f"Its fields are: {names}."
        ) from error


def answer_line(request: Request[Any], answer: object) -> bytes:
    return format_line(id=request.id, ok=True, result=answer)


def refusal_line(name: str | None, error: StudioError) -> bytes:
    kind = "controlled" if isinstance(error, ControlledElsewhereError) else ""
    return format_line(id=name, ok=False, kind=kind, **fields_of(error, "place", "cause", "move"))


def parse_answer(request: Request[T], answer: JsonMapping) -> T:
    """Read the answer to a request, where it is none of another protocol.

    Raises ConflictError: the run refused, with its own words; those of a run of an older release,
    which knows another protocol, among them.
    """
    if not answer.get("ok"):
        # Read with care: who refuses may speak any version.
        place, cause, move = (str(answer.get(name, "")) for name in ("place", "cause", "move"))
        refuse = ConflictError
        if answer.get("kind") == "controlled":
            refuse = ControlledElsewhereError
        raise refuse(place or "request", cause or "the run refused it.", move)
    if answer.get("v") != PROTOCOL:
        raise ConflictError(
            "the run's process",
            f"it speaks protocol {answer.get('v')}, this studio speaks {PROTOCOL}.",
            "Use the studio release that started the run.",
        )
    return request.read_answer(answer.get("result"))
