"""Every reply is paid for once: asked, recorded, and taken from the record ever after.

A record of `records/step-NNNN.jsonl` (or `eval-NNNN.jsonl`) is on disk before `ask` returns, hence
before the journal names it.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

import orjson

from engines.core import errors, protocols, waiting
from engines.core.codec import call_seed, digest, dumps, from_dict, to_dict
from engines.core.types import (
    NO_USAGE,
    CallKey,
    Completion,
    Message,
    RecordRef,
    Sampling,
    Tell,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    as_status,
)
from engines.record import appender, lines
from engines.secrets.mask import NO_SECRETS, Mask

NO_REPLY = Completion("")
TOOL = "tool:"
"""What `Record.policy` begins with where a tool answered: its name follows."""
_STARTED = "started"
"""`Record.lost` of a call of a tool with an effect, written before it runs."""
INTERRUPTED = ToolResult(
    "interrupted: the studio ended while this call ran. It may have had its effect, so it was not "
    "made again.",
    "interrupted",
)
Answer = tuple[Completion, RecordRef]
_APART = 100_000
"""More than a rollout has calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One recorded reply, of a model or of a tool.

    A tool's text is `reply.text`, how it ended `reply.finish`, and `reply.tool_calls` the call that
    it answers, whose arguments are in the model's reply before it.

    Where `lost` is not empty there was no usable reply: it says why, and `reply` holds nothing but
    what the tries may have cost. Such a record answers no later question.
    """

    key: CallKey
    request: str = ""  # its hash
    policy: str
    base: int = 0  # messages of the request before this one are those of the turn before
    messages: tuple[Message, ...] = ()  # that are new since that turn
    sampling: Sampling = field(default_factory=Sampling)
    reply: Completion = NO_REPLY
    elapsed_s: float = 0.0
    at: float = 0.0
    lost: str = ""

    @property
    def is_tool_result(self) -> bool:
        return self.policy.startswith(TOOL)

    def extend(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages of the try so far, put together from its earlier records, with this one."""
        if self.is_tool_result:
            return (*messages, Message("tool", self.reply.text, tool_call_id=self._call.id))
        return (*messages[: self.base], *self.messages, self.reply.as_message())

    @property
    def _call(self) -> ToolCall:
        return self.reply.tool_calls[0]


@dataclass(slots=True)
class _Calls:
    """The calls of one rollout, or of another place of the run, with their replies.

    An agent that makes calls at the same time may make them in another order when it is started
    again. So a reply is found by its content, and answers once: equal questions keep their replies.
    """

    replies: dict[str, dict[int, Answer]] = field(default_factory=lambda: defaultdict(dict))
    """By the hash of the request and the turn that it was recorded under."""
    given: dict[tuple[str, int], int] = field(default_factory=dict)
    """The turn that each reply was given to since turn 0 was asked."""
    messages: tuple[int, ...] = ()
    """Hashes of the messages so far: the texts themselves would add up over a step."""

    def find(self, request: str, turn: int) -> int | None:
        """Return the turn under which a call's reply lies; None: it has to be asked."""
        if turn == 0:
            self.given.clear()
        free = [
            recorded
            for recorded in self.replies[request]
            if self.given.get((request, recorded), turn) == turn
        ]
        if turn in free:
            return turn
        own = [recorded for recorded in free if (request, recorded) in self.given]
        return min(own or free, default=None)

    def new_turn(self, request: str, turn: int) -> int:
        """Return the turn to record a reply under: its own, unless that has answered another."""
        return turn + _APART if turn in self.replies[request] else turn

    def shared_prefix(self, messages: Sequence[int], turn: int) -> int:
        """Return how many messages a call has in common with the one before.

        An agent may rewrite its context between turns. Where calls come in another order than they
        were recorded in, a record holds all of its messages.
        """
        keeps_order = all(
            self.given.get((request, recorded)) == recorded
            for request, replies in self.replies.items()
            for recorded in replies
        )
        if turn == 0 or not keeps_order:
            return 0
        pairs = zip(self.messages, messages, strict=False)
        return next((n for n, (one, other) in enumerate(pairs) if one != other), len(self.messages))


@dataclass(eq=False)
class RecordLedger:
    """Implements `engines.core.protocols.TryLedger` on a folder of record files.

    Nothing is opened or written until something is asked.
    """

    folder: Path
    run_seed: int  # what the seed of every call follows from
    _: KW_ONLY
    clock: Callable[[], float] = time.time
    tell: Tell = lambda _: None  # is told what was mended
    mask: Mask = NO_SECRETS  # takes secrets out of replies and of what is written

    def __post_init__(self) -> None:
        self._files: dict[str, appender.Appender] = {}
        self._calls: dict[CallKey, _Calls] = defaultdict(_Calls)
        self._results: dict[tuple[CallKey, str], Answer] = {}  # of tools
        self._begun: set[tuple[CallKey, str]] = set()  # calls of tools that have an effect
        self.reused = 0
        self.asked = 0
        self.paid = NO_USAGE  # for what was asked, not for what was taken from the record

    async def ask(
        self,
        key: CallKey,
        policy: protocols.Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
        *,
        again: bool = False,
    ) -> Answer:
        self._open(record_file_name(key))
        calls = self._calls[replace(key, turn=0)]
        hashes = tuple(hash(message) for message in messages)
        request = request_hash(self.run_seed, policy.name, messages, sampling)
        recorded = calls.find(request, key.turn)
        turn = calls.new_turn(request, key.turn) if recorded is None else recorded
        place = replace(key, turn=turn)
        sampling = replace(sampling, seed=call_seed(self.run_seed, place))
        if recorded is not None:
            self.reused += 1
            answer = calls.replies[request][recorded]
            calls.given[request, recorded] = key.turn
            calls.messages = (*hashes, hash(answer[0].as_message()))
            if again:
                with suppress(errors.CallFailed), waiting.mark_replayed():
                    await policy.complete(messages, sampling)
            return answer
        self.asked += 1
        base = calls.shared_prefix(hashes, key.turn)
        record = Record(
            key=place,
            request=request,
            policy=policy.name,
            base=base,
            messages=tuple(messages[base:]),
            sampling=sampling,
        )
        answer = await self._ask_policy(policy, messages, on_text, record)
        calls.replies[request][turn] = answer
        calls.given[request, turn] = key.turn
        calls.messages = (*hashes, hash(answer[0].as_message()))
        return answer

    async def run_tools(
        self,
        key: CallKey,
        calls: Sequence[ToolCall],
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        specs: Sequence[ToolSpec] = (),
        on_restored: Callable[[ToolCall], None] = lambda _: None,
    ) -> list[tuple[ToolResult, RecordRef]]:
        self._open(record_file_name(key))
        effects = {spec.name for spec in specs if not spec.repeatable}
        tool_key = replace(key, purpose="tool")

        async def run_once(place: int, call: ToolCall) -> Answer:
            request = digest([call.name, call.arguments, place])
            name = tool_key, request
            if name in self._results:
                self.reused += 1
                on_restored(call)
                return self._results[name]
            record = Record(key=tool_key, request=request, policy=TOOL + call.name)
            began, result = time.monotonic(), INTERRUPTED
            if name not in self._begun:
                if call.name in effects:
                    self._begun.add(name)
                    started = replace(record, at=self.clock(), lost=_STARTED)
                    await asyncio.shield(self._write(started)[2])
                with waiting.name_call(tool_key):
                    result = await run(call)
            answer = Completion(
                result.text,
                tool_calls=(replace(call, arguments=""),),
                finish=result.status,
                usage=result.usage,
            )
            took_s = round(time.monotonic() - began, 4)
            record = replace(record, reply=answer, elapsed_s=took_s, at=self.clock())
            reply, ref, written = self._write(record)
            await asyncio.shield(written)
            self._results[name] = reply, ref
            return reply, ref

        answers = await waiting.gather_all(
            run_once(place, call) for place, call in enumerate(calls)
        )
        talk = self._calls[replace(key, turn=0)]
        results: list[tuple[ToolResult, RecordRef]] = []
        for call, (reply, ref) in zip(calls, answers, strict=True):
            talk.messages += (hash(Message("tool", reply.text, tool_call_id=call.id)),)
            results.append((ToolResult(reply.text, as_status(reply.finish), reply.usage), ref))
        return results

    async def _ask_policy(
        self,
        policy: protocols.Policy,
        messages: Sequence[Message],
        on_text: protocols.OnText | None,
        asked: Record,
    ) -> Answer:
        """Ask, and record what came of it: also what was paid for a reply that was lost."""
        began = time.monotonic()

        def write_reply(
            reply: Completion, lost: str = ""
        ) -> tuple[Completion, RecordRef, asyncio.Future[None]]:
            took_s = round(time.monotonic() - began, 4)
            now = self.clock()
            return self._write(replace(asked, reply=reply, elapsed_s=took_s, at=now, lost=lost))

        masked = None if on_text is None else self.mask.stream(on_text)
        try:
            with waiting.name_call(asked.key):
                reply = await policy.complete(messages, asked.sampling, masked)
        except errors.CallFailed as failed:
            if failed.usage.calls:
                await asyncio.shield(write_reply(_lost_reply(failed.usage), str(failed))[2])
            raise
        except asyncio.CancelledError as cut:
            if (spent := errors.lost_usage(cut)).calls:
                # Written without waiting for it: who cancels must not be kept.
                write_reply(_lost_reply(spent), "cancelled")
            raise
        finally:
            if masked is not None:
                masked.flush()
        reply, ref, written = write_reply(reply)
        await asyncio.shield(written)
        return reply, ref

    def record_cost(self, key: CallKey, policy: str, usage: Usage, what: str) -> None:
        """Record what something else than a reply has cost; `what` says what it was.

        Written without waiting for it, as a lost call is: nothing will ask for it again.
        """
        self._open(record_file_name(key))
        reply = _lost_reply(usage)
        self._write(Record(key=key, policy=policy, reply=reply, at=self.clock(), lost=what))

    def release_files(self) -> None:
        """Close the files of a finished step and drop what was read from them."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._calls.clear()
        self._results.clear()
        self._begun.clear()

    async def aclose(self) -> None:
        for file in self._files.values():
            await file.wait_idle()
        self.release_files()

    def _write(self, record: Record) -> tuple[Completion, RecordRef, asyncio.Future[None]]:
        """Have a record written; the reply comes back as it is written, without secrets."""
        name, reply = record_file_name(record.key), record.reply
        if not record.is_tool_result:  # models that a tool asked have records of their own
            self.paid += reply.usage
        body = dumps(record)
        masked = self.mask.line(body)
        if masked is not body:
            reply = from_dict(Record, orjson.loads(masked)).reply
        raw, checksum = lines.encode(masked)
        offset, written = self._files[name].queue(raw)
        return reply, RecordRef(name, offset, len(raw), checksum), written

    def _open(self, name: str) -> None:
        """Open a file of records and learn what it holds."""
        if name in self._files:
            return
        path = self.folder / name

        def index_line(line: lines.StoredLine) -> None:
            record = from_dict(Record, orjson.loads(line.body))
            key, request = record.key, record.request
            answer = record.reply, RecordRef(name, line.offset, line.length, line.digest)
            if record.lost:
                if record.lost == _STARTED and record.is_tool_result:
                    self._begun.add((key, request))
            elif record.is_tool_result:
                self._results[key, request] = answer
            else:
                self._calls[replace(key, turn=0)].replies[request][key.turn] = answer

        contents = lines.read(path, chained=False, visit=index_line)
        if contents.torn or contents.newline_missing:
            lines.repair_end(path, contents)
            self.tell(f"{path}: mended a last record that was being written")
        self._files[name] = appender.Appender(path)


def _lost_reply(usage: Usage) -> Completion:
    return Completion("", finish="lost", usage=usage)


def record_file_name(key: CallKey) -> str:
    prefix = "eval" if key.problem else "step"
    return f"{prefix}-{key.step:04d}.jsonl"


def request_hash(
    run_seed: int, policy: str, messages: Sequence[Message], sampling: Sampling
) -> str:
    """Identify a request: who is asked, what, and how the reply is drawn, but for its seed."""
    drawn = to_dict(replace(sampling, seed=run_seed))
    return digest([policy, [to_dict(message) for message in messages], drawn])


def read_record(folder: Path, ref: RecordRef) -> Record:
    """Read one record back; raises DamagedError where it is another, ConflictError without file."""
    try:
        body = lines.read_at(folder / ref.file, ref.offset, ref.length, ref.digest)
    except FileNotFoundError as error:
        raise errors.ConflictError(
            str(folder / ref.file),
            "the journal refers to this file and it is not there.",
            lines.RESTORE,
        ) from error
    return from_dict(Record, orjson.loads(body))


def file_usage(path: Path) -> list[tuple[str, Usage]]:
    """Policy and usage of every whole record of a file, lost calls included."""
    found: list[tuple[str, Usage]] = []

    def collect(line: lines.StoredLine) -> None:
        record = orjson.loads(line.body)
        if not record["policy"].startswith(TOOL):
            found.append((record["policy"], from_dict(Usage, record["reply"]["usage"])))

    lines.read(path, chained=False, visit=collect)
    return found


def read_trajectory(folder: Path, refs: Sequence[RecordRef]) -> tuple[Message, ...]:
    """The messages of a try, put together from its records in order."""
    return join_messages(read_record(folder, ref) for ref in refs)


def find_trajectory(folder: Path, key: CallKey) -> tuple[Message, ...]:
    """The messages of a held-out try by its step, problem and index; () where none is recorded."""
    found: list[Record] = []

    def take(line: lines.StoredLine) -> None:
        record = from_dict(Record, orjson.loads(line.body))
        own = (record.key.problem, record.key.index) == (key.problem, key.index)
        if own and not record.lost and (record.key.purpose == key.purpose or record.is_tool_result):
            found.append(record)

    lines.read(folder / record_file_name(key), chained=False, visit=take)
    return join_messages(found)


def join_messages(records: Iterable[Record]) -> tuple[Message, ...]:
    messages: tuple[Message, ...] = ()
    for record in records:
        messages = record.extend(messages)
    return messages
