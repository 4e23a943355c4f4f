"""A cassette: every reply of a command in one file, found again by the content of what was asked.

Stands round models, embedding models and tools. A secret is masked in the file, and found by what
it was or is. A call that failed, or that its try's deadline ended, comes back as it ended. What
is played costs nothing. No tool is started then; the models that one asked are asked again, so that
the record of the run is whole.
"""

import asyncio
import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson

from engines.core import errors, protocols, waiting
from engines.core.codec import digest, dumps, from_dict, to_dict
from engines.core.frozen import frozen
from engines.core.types import (
    CallKey,
    Completion,
    Message,
    Sampling,
    Tell,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from engines.policies.chat.embedding import Reserve
from engines.policies.limits import WrappedPolicy
from engines.record import appender, ledger, lines
from engines.secrets.mask import NO_SECRETS, Mask

VERSION = 3
Kind = Literal["start", "tools", "model", "tool", "vectors"]
Json = Mapping[str, Any]
_Place = tuple[CallKey | None, int]
"""The call that a reply was for, and how many equal requests of it came before."""
_Bytes = tuple[int, int]
"""Where an entry lies in the file: its offset and length."""


class CassetteError(errors.StudioError):
    """What is asked is not on the cassette: it stops whatever asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request and what came of it.

    `nth` counts equal requests for the same reply from 0, in the order in which they were made. Of
    two entries that agree in all of it the later one counts: the process that wrote the first was
    killed before the reply was used. `digest` is the hash of `asked` where a secret was taken out.
    """

    kind: Kind
    request: str = ""  # the hash of what was asked
    digest: str = ""
    key: CallKey | None = None
    nth: int = 0
    asked: Json = field(default_factory=dict)
    reply: Json = field(default_factory=dict)
    failed: Json = field(default_factory=dict)  # see `_failure_data`


@dataclass(slots=True)
class Cassette:
    """One that is being recorded (`writer`), or that is played."""

    path: Path
    mask: Mask = NO_SECRETS
    writer: appender.Appender | None = None
    tools: Json = field(default_factory=dict)
    _counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    # By kind and hash of a request: its replies in the order of recording.
    _replies: dict[tuple[str, str], dict[_Place, _Bytes]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _played: set[_Bytes] = field(default_factory=set)

    @property
    def plays(self) -> bool:
        return self.writer is None

    async def record(
        self,
        kind: Kind,
        asked: Json,
        make: Callable[[], Awaitable[Json]],
        *,
        interrupted: Json | None = None,
    ) -> Json:
        """Return the reply that is made to a request, as it is on disk: without secrets.

        That it fails is recorded, too. `interrupted` is the reply where this process is killed
        meanwhile; None: the request is made again.
        """
        key, request = waiting.current_call(), digest([kind, asked])
        nth = self._counts[kind, request, key]
        self._counts[kind, request, key] += 1
        entry = Entry(kind=kind, request=request, key=key, nth=nth, asked=asked)
        if interrupted is not None:
            await self.write(replace(entry, reply=interrupted))
        try:
            reply = await make()
        except BaseException as error:
            if failed := _failure_data(error):
                self._queue(replace(entry, failed=failed))
            raise
        return (await self.write(replace(entry, reply=reply))).reply

    async def write(self, entry: Entry) -> Entry:
        """Have it on disk; comes back as it is there, without secrets."""
        written, done = self._queue(entry)
        await asyncio.shield(done)
        return written

    def _queue(self, entry: Entry) -> tuple[Entry, asyncio.Future[None]]:
        assert self.writer is not None
        body = dumps(entry)
        masked = self.mask.line(body)
        if masked is not body:
            entry = from_dict(Entry, orjson.loads(masked))
            entry = replace(entry, digest=digest([entry.kind, entry.asked]))
            masked = dumps(entry)
        return entry, self.writer.queue(lines.encode(masked)[0])[1]

    async def play(self, kind: Kind, asked: Json) -> Json:
        """Return the next recorded reply to this request, or fail as the recorded call did.

        One that was recorded in another place of the run will do, but for a tool: its results may
        follow from what was called before.

        Raises CassetteError: there is none.
        """
        await asyncio.sleep(0)  # let other jobs run, as every real call does
        key = waiting.current_call()
        request = digest([kind, asked])
        replies = self._replies[kind, request]
        free = [place for place in replies if replies[place] not in self._played]
        here = [place for place in free if place[0] == key]
        if kind != "tool":
            here += free
        if not here:
            raise self._missing_error(kind, asked, request, key)
        found = replies[here[0]]
        self._played.add(found)
        entry = self._read(found)
        await _raise_failure(entry)
        return entry.reply

    async def aclose(self) -> None:
        """Have all of it on disk; the command's process may go on with it."""
        if self.writer is not None:
            await self.writer.wait_idle()

    def index(self, line: lines.StoredLine) -> None:
        """Note where the entry of a line lies."""
        data = orjson.loads(line.body)
        kind = data["kind"]
        if kind == "tools":
            self.tools = data["reply"]
            return
        key = None if data["key"] is None else from_dict(CallKey, data["key"])
        for request in {data["request"], data["digest"] or data["request"]}:
            self._replies[kind, request][key, data["nth"]] = line.offset, line.length

    def _read(self, at: _Bytes) -> Entry:
        return from_dict(Entry, orjson.loads(lines.read_at(self.path, *at)))

    def _missing_error(
        self, kind: Kind, asked: Json, request: str, key: CallKey | None
    ) -> CassetteError:
        same = self._replies[kind, request]
        cause = f"it holds no reply to what is asked at {call_place(key)}"
        if any(kind != "tool" or place[0] == key for place in same):
            cause += ": the same was asked less often when it was recorded."
        elif other := self._other_request(kind, key):
            now = self.mask.tree(orjson.loads(dumps(asked)))
            cause += f", which is another than was recorded:\n{first_difference(other, now)}\n"
        else:
            cause += ": nothing was recorded there."
        move = "Take back what was changed since, leave --cassette out to ask the model, or record "
        move += "another: --record FILE."
        return CassetteError(f"cassette {self.path}", cause, move)

    def _other_request(self, kind: Kind, key: CallKey | None) -> Json | None:
        """Return a request that was recorded in the same place of the run."""
        for (other_kind, _), replies in self._replies.items():
            for (other_key, _), at in replies.items():
                if (other_kind, other_key) == (kind, key):
                    return self._read(at).asked
        return None


@dataclass(slots=True)
class Tape:
    """The file that `--record` or `--cassette` names; the command opens it once."""

    path: Path
    plays: bool
    passed_over: dict[Path, int] = field(default_factory=dict)  # see `ScoreBook`
    _opened: Cassette | None = None

    def open(self, what: str, *, mask: Mask, resumes: bool, tell: Tell) -> Cassette:
        """Open it for `what`, such as "run mine"; one that `resumes` goes on recording.

        Raises ConflictError: the file is no cassette, or holds another's.
        """
        if self._opened is None:
            opened = _open_played(self.path, tell) if self.plays else None
            self._opened = opened or _open_recorded(self.path, what, mask, resumes, tell)
            self._opened.mask = mask
        return self._opened


def open_cassette(
    tape: Tape | None, what: str, stack: AsyncExitStack, mask: Mask, tell: Tell, *, resumes: bool
) -> Cassette | None:
    """Open the cassette that the command line names, if any; on disk when the stack is closed."""
    if tape is None:
        return None
    opened = tape.open(what, mask=mask, resumes=resumes, tell=tell)
    stack.push_async_callback(opened.aclose)
    return opened


def is_played(cassette: Cassette | Tape | None) -> bool:
    return cassette is not None and cassette.plays


def _open_played(path: Path, tell: Tell) -> Cassette:
    cassette = Cassette(path)
    contents = _read_lines(path, "--cassette", cassette.index)
    if not contents.end:
        cause = "it is empty." if path.exists() else "there is no such file."
        raise errors.ConflictError(f"--cassette {path}", cause, "Record one with --record FILE.")
    if contents.torn:
        tell(f"{path}: its last line is not whole; recording it was cut off there")
    return cassette


def _open_recorded(path: Path, what: str, mask: Mask, resumes: bool, tell: Tell) -> Cassette:
    place = f"--record {path}"
    starts: list[lines.StoredLine] = []
    contents = _read_lines(path, "--record", starts.append)
    if contents.end:
        before = orjson.loads(starts[0].body)["asked"].get("what")
        if not resumes or before != what:
            raise errors.ConflictError(
                place,
                f"the file holds a recording already, of {before}.",
                "Name another file; --cassette FILE plays this one.",
            )
    elif resumes and what.startswith("run "):
        raise errors.ConflictError(
            place,
            f"{what} has begun without it, and what was asked until then would be missing.",
            "Leave --record out, or begin another run: --restart-step 0.",
        )
    if contents.torn or contents.newline_missing:
        lines.repair_end(path, contents)
        tell(f"{path}: mended a last line that was being written")
    writer = appender.Appender(path)
    if not contents.end:
        start = Entry(kind="start", asked={"what": what, "version": VERSION})
        writer.append_now(lines.encode(dumps(start))[0])
    return Cassette(path, mask, writer)


def _read_lines(
    path: Path, option: str, visit: Callable[[lines.StoredLine], None]
) -> lines.Contents:
    foreign = errors.ConflictError(
        f"{option} {path}", "the file is no cassette.", "Name another file."
    )

    def check_first(line: lines.StoredLine) -> None:
        if line.number == 1:
            data = orjson.loads(line.body)
            if not isinstance(data, dict) or data.get("kind") != "start":
                raise foreign
            if (version := data["asked"]["version"]) != VERSION:
                raise errors.ConflictError(
                    f"{option} {path}",
                    f"it has format {version}, this studio reads format {VERSION}.",
                    "Record another.",
                )
        visit(line)

    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise foreign
    with suppress(OSError), path.open("rb") as file:
        if file.read(1) not in (b"", b"{"):
            raise foreign
    try:
        return lines.read(path, chained=False, visit=check_first)
    except errors.DamagedError as error:
        raise errors.ConflictError(
            f"{option} {error.place}", error.cause, "Restore it from a copy, or record another."
        ) from error


def plain_request(**fields: object) -> Json:
    """Return what is asked, as plain JSON values."""
    return to_dict(fields)


def model_request(policy: str, messages: Sequence[Message], sampling: Sampling) -> Json:
    return plain_request(policy=policy, messages=messages, sampling=sampling)


def _failure_data(error: BaseException) -> Json:
    """Return how a call failed, where that was the call's own fault or its time was over.

    Nothing of one that a person or the end of the process cut short: it will be made again.
    """
    if isinstance(error, errors.CallFailed):
        text = str(error).removeprefix(f"{error.kind}: ")
        return plain_request(kind=error.kind, reason=text, usage=error.usage)
    if isinstance(error, asyncio.CancelledError) and (at := waiting.expired_deadline()) is not None:
        return plain_request(kind="deadline", at=at, usage=errors.lost_usage(error))
    return {}


async def _raise_failure(entry: Entry) -> None:
    """Fail as the recorded call did; returns where it did not."""
    if not entry.failed:
        return
    usage = free_usage(from_dict(Usage, entry.failed["usage"]))
    if entry.failed["kind"] == "deadline":
        await waiting.expire_deadline(entry.failed["at"], usage)
    raise errors.CallFailed(entry.failed["kind"], entry.failed["reason"], usage)


def free_usage(usage: Usage) -> Usage:
    """Return the usage of what is played, at no cost; a cost that was not known stays unknown."""
    return usage if usage.cost_usd is None else replace(usage, cost_usd=0.0)


@frozen
class RecordingPolicy(WrappedPolicy):
    """A model whose replies go to a cassette; it gives them without secrets, as they are there."""

    cassette: Cassette

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
    ) -> Completion:
        if waiting.is_replayed():  # known already, and asked for its company alone
            return await self.inner.complete(messages, sampling, on_text)

        async def ask() -> Json:
            return to_dict(await self.inner.complete(messages, sampling, on_text))

        asked = model_request(self.name, messages, sampling)
        return from_dict(Completion, await self.cassette.record("model", asked, ask))


@frozen
class PlayedPolicy(protocols.Policy):
    """Answers from a cassette; no model is opened."""

    cassette: Cassette
    name: str  # last, since the property of the protocol looks like a default

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
    ) -> Completion:
        asked = model_request(self.name, messages, sampling)
        reply = from_dict(Completion, await self.cassette.play("model", asked))
        if on_text is not None and reply.text:
            on_text(reply.text)
        return replace(reply, usage=free_usage(reply.usage))


class TapedEmbedder:
    """An embedding model on its way to a cassette, or in its place (`open_inner` is not called)."""

    def __init__(
        self,
        name: str,
        cassette: Cassette,
        reserve: Reserve,
        open_inner: Callable[[Reserve], protocols.Embedder],
    ) -> None:
        self.name, self._cassette, self._reserve = name, cassette, reserve
        self._inner = None if cassette.plays else open_inner(reserve)

    async def embed(self, texts: Sequence[str]) -> protocols.EmbeddingResult:
        inner = self._inner
        asked = plain_request(model=self.name, texts=texts)
        if inner is None:
            reply = await self._cassette.play("vectors", asked)
            usage = free_usage(from_dict(Usage, reply["usage"]))
            if usage.calls:
                (await self._reserve(texts))(usage)
        else:

            async def ask() -> Json:
                result = await inner.embed(texts)
                # As numbers: what a secret looks like is a text.
                vectors = [list(vector) for vector in result.vectors]
                return plain_request(vectors=vectors, usage=result.usage)

            reply = await self._cassette.record("vectors", asked, ask)
            usage = from_dict(Usage, reply["usage"])
        vectors = tuple(array("f", numbers) for numbers in reply["vectors"])
        return protocols.EmbeddingResult(vectors, usage)

    async def ping(self) -> None:
        if self._inner is not None:
            await self._inner.ping()

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()


@frozen
class TapedToolbox:
    """Tools on their way to a cassette, or as they were when it was recorded, unstarted."""

    inner: protocols.Toolbox
    cassette: Cassette

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        if not self.cassette.plays:
            return self.inner.specs
        return tuple(from_dict(ToolSpec, spec) for spec in self.cassette.tools["specs"])

    async def check(self) -> None:
        """Test the tools. Refuse, as far as that is known unstarted, others than were recorded."""
        if not self.cassette.plays:
            await self.inner.check()
            return
        if not self.cassette.tools:
            raise self._changed_error("it holds no run with tools.")
        recorded = {spec["name"]: spec for spec in self.cassette.tools["unstarted"]}
        now = {spec.name: to_dict(spec) for spec in self.inner.specs}
        names = recorded.keys() | now.keys()
        if self.cassette.tools["facts"].get("absent"):  # its key may have been missing then
            names = {*recorded}
        for name in sorted(names):
            then, given = recorded.get(name, {}), now.get(name, {})
            if any(then.get(part) != given.get(part) for part in ("description", "parameters")):
                raise self._changed_error(f'the tool "{name}" was recorded in other words, or not.')

    async def call(self, call: ToolCall, within: protocols.ToolTry) -> ToolResult:
        request = plain_request(name=call.name, arguments=call.arguments)
        if not self.cassette.plays:
            return await self._record(call, within, request)
        reply = await self.cassette.play("tool", request)
        for asked in reply.get("asked", ()):
            messages = [from_dict(Message, message) for message in asked["messages"]]
            policy = PlayedPolicy(self.cassette, asked["policy"])
            with suppress(errors.CallFailed):  # the tool made something of it
                await within.ask(policy, messages, from_dict(Sampling, asked["sampling"]))
        result = from_dict(ToolResult, reply["result"])
        return replace(result, usage=free_usage(result.usage))

    async def _record(self, call: ToolCall, within: protocols.ToolTry, request: Json) -> ToolResult:
        asked: list[Json] = []

        async def ask(
            policy: protocols.Policy, messages: Sequence[Message], sampling: Sampling
        ) -> Completion:
            asked.append(model_request(policy.name, messages, sampling))
            return await within.ask(policy, messages, sampling)

        async def run() -> Json:
            result = await self.inner.call(call, replace(within, ask=ask))
            return {"result": to_dict(result), "asked": asked}

        has_effect = any(s.name == call.name and not s.repeatable for s in self.specs)
        # If this process is killed now, the next one does not make the call again.
        interrupted = {"result": to_dict(ledger.INTERRUPTED)} if has_effect else None
        reply = await self.cassette.record("tool", request, run, interrupted=interrupted)
        return from_dict(ToolResult, reply["result"])

    async def aclose(self) -> None:
        await self.inner.aclose()

    def _changed_error(self, cause: str) -> errors.ConfigError:
        return errors.ConfigError(
            f"agent.tools and cassette {self.cassette.path}",
            cause,
            "Take back what was changed since, or record another: --record FILE.",
        )


_MOST_LINES, _MOST_CHARS = 14, 200


def call_place(key: CallKey | None) -> str:
    """Return which reply of a run a call is for, in words that count from 1."""
    if key is None:
        return "a call outside any run"
    parts = [f"step {key.step}"]
    if key.problem:
        parts = [f"held-out problem {key.problem}"]
    elif key.position >= 0:
        parts.append(f"problem {key.position + 1}")
    if key.index >= 0:
        parts.append(f"try {key.index + 1}")
    return ", ".join([*parts, f"turn {key.turn + 1} ({key.purpose})"])


def first_difference(recorded: Json, asked: Json) -> str:
    """Return the first place, as in a unified diff, where a request differs from another."""
    before, now = _request_lines(recorded), _request_lines(asked)
    differences = unified_diff(before, now, "recorded", "asked", n=1, lineterm="")
    return "\n".join(line[:_MOST_CHARS] for line in islice(differences, _MOST_LINES))


def _request_lines(asked: Json) -> list[str]:
    """Return a request with its conversation first, since that is what people change."""
    talk = [f"[{message['role']}]\n{message['content']}" for message in asked.get("messages", ())]
    whole = json.dumps(asked, indent=1, ensure_ascii=False, sort_keys=True)
    return "\n".join([*talk, whole]).splitlines()
