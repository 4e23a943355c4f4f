"""Every reply is paid for once: asked, recorded, and taken from the record ever after.

Owns `records/step-NNNN.jsonl` (and `eval-NNNN.jsonl`). A record holds the key, the
hash of the request, the messages that are new since the previous turn of the same try,
and the reply. It is on disk before `ask` returns, hence before the journal names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import dumps, from_dict
from engines.core.errors import CallFailed, ConflictError, lost_usage
from engines.core.ids import call_seed, digest
from engines.core.protocols import OnText, Policy
from engines.core.text.masking import NO_SECRETS, Mask
from engines.core.types import NO_USAGE, CallKey, Completion, Message, RecordRef, Sampling, Usage
from engines.core.waiting.replayed_call import mark_replayed
from engines.record import lines
from engines.record.appender import Appender

NO_REPLY = Completion("")
_Known = dict[tuple[CallKey, str], tuple[Completion, RecordRef]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One recorded reply. `messages[:base]` of the request are those of the turn before.

    Where `lost` is not empty there was no usable reply: it says why, and `reply` holds
    nothing but what the tries may have cost. Such a record answers no later question.
    """

    key: CallKey
    request: str = ""
    policy: str
    base: int = 0
    messages: tuple[Message, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    reply: Completion = NO_REPLY
    elapsed_s: float = 0.0
    at: float = 0.0
    lost: str = ""


class RecordLedger:
    """Implements `engines.core.protocols.Ledger` on a folder of record files."""

    def __init__(
        self,
        folder: Path,
        run_seed: int,
        *,
        clock: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda _: None,
        mask: Mask = NO_SECRETS,
    ) -> None:
        """Nothing is opened or written until something is asked.

        Args:
            folder: of the record files.
            run_seed: what the seed of every call follows from.
            clock: gives the time stamp of a record.
            tell: is told what was mended.
            mask: takes secrets out of replies and of what is written.
        """
        self._folder = folder
        self._seed = run_seed
        self._clock = clock
        self._tell = tell
        self._mask = mask
        self._files: dict[str, Appender] = {}
        self._known: dict[str, _Known] = {}
        # Try → hashes of its latest request: the texts themselves would add up over a step.
        self._turns: dict[CallKey, tuple[int, ...]] = {}
        self.reused = 0
        self.asked = 0
        self.paid = NO_USAGE  # for what was asked, not for what was taken from the record

    async def ask(
        self,
        key: CallKey,
        policy: Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
        *,
        again: bool = False,
    ) -> tuple[Completion, RecordRef]:
        """See `engines.core.protocols.Ledger.ask`."""
        name = record_file_name(key)
        known = self._open(name)
        sampling = replace(sampling, seed=call_seed(self._seed, key))
        request = request_hash(policy.name, messages, sampling)
        this_try = replace(key, turn=0)
        hashes = tuple(hash(message) for message in messages)
        base = _shared_prefix(self._turns.get(this_try, ()), hashes) if key.turn else 0
        self._turns[this_try] = hashes
        found = known.get((key, request))
        if found is not None:
            self.reused += 1
            if again:
                with suppress(CallFailed), mark_replayed():
                    await policy.complete(messages, sampling)
            return found
        self.asked += 1
        asked = Record(
            key=key,
            request=request,
            policy=policy.name,
            base=base,
            messages=tuple(messages[base:]),
            sampling=sampling,
        )
        known[key, request] = answer = await self._ask_policy(policy, messages, on_text, asked)
        return answer

    async def _ask_policy(
        self, policy: Policy, messages: Sequence[Message], on_text: OnText | None, asked: Record
    ) -> tuple[Completion, RecordRef]:
        """Ask, and record what came of it: also what was paid for a reply that was lost."""
        began = time.monotonic()

        def write_reply(
            reply: Completion, lost: str = ""
        ) -> tuple[Completion, RecordRef, asyncio.Future[None]]:
            took_s = round(time.monotonic() - began, 4)
            now = self._clock()
            return self._write(replace(asked, reply=reply, elapsed_s=took_s, at=now, lost=lost))

        heard = None if on_text is None else self._mask.stream(on_text)
        try:
            reply = await policy.complete(messages, asked.sampling, heard)
        except CallFailed as failed:
            if failed.usage.calls:
                lost = Completion("", finish="lost", usage=failed.usage)
                await asyncio.shield(write_reply(lost, str(failed))[2])
            raise
        except asyncio.CancelledError as cut:
            if (spent := lost_usage(cut)).calls:
                # Written without waiting for it: who cancels must not be kept.
                write_reply(Completion("", finish="lost", usage=spent), "cancelled")
            raise
        finally:
            if heard is not None:
                heard.flush()
        reply, ref, written = write_reply(reply)
        await asyncio.shield(written)
        return reply, ref

    def record_cost(self, key: CallKey, policy: str, usage: Usage, what: str) -> None:
        """Record what something else than a reply has cost; `what` says what it was.

        Written without waiting for it, as a lost call is: nothing will ask for it again.
        """
        self._open(record_file_name(key))
        reply = Completion("", finish="lost", usage=usage)
        self._write(Record(key=key, policy=policy, reply=reply, at=self._clock(), lost=what))

    def release_files(self) -> None:
        """Close the files of a finished step and drop what was read from them."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._known.clear()
        self._turns.clear()

    async def aclose(self) -> None:
        for file in self._files.values():
            await file.wait_idle()
        self.release_files()

    def _write(self, record: Record) -> tuple[Completion, RecordRef, asyncio.Future[None]]:
        """Have a record written; the reply comes back as it is written, without secrets."""
        name, reply = record_file_name(record.key), record.reply
        self.paid += reply.usage
        body = dumps(record)
        masked = self._mask.line(body)
        if masked is not body:
            reply = from_dict(Record, orjson.loads(masked)).reply
        raw, checksum = lines.encode(masked)
        offset, written = self._files[name].queue(raw)
        return reply, RecordRef(name, offset, len(raw), checksum), written

    def _open(self, name: str) -> _Known:
        if name not in self._known:
            path = self._folder / name
            known: _Known = {}

            def index_line(line: lines.StoredLine) -> None:
                record = from_dict(Record, orjson.loads(line.body))
                if record.lost:
                    return
                ref = RecordRef(name, line.offset, line.length, line.digest)
                known[record.key, record.request] = (record.reply, ref)

            contents = lines.read(path, chained=False, visit=index_line)
            if contents.torn or contents.newline_missing:
                lines.repair_end(path, contents)
                self._tell(f"{path}: mended a last record that was being written")
            self._known[name] = known
            self._files[name] = Appender(path)
        return self._known[name]


def record_file_name(key: CallKey) -> str:
    prefix = "eval" if key.problem else "step"
    return f"{prefix}-{key.step:04d}.jsonl"


def request_hash(policy: str, messages: Sequence[Message], sampling: Sampling) -> str:
    """Identifies a request: who is asked, what, and how the reply is drawn."""
    asked = _to_plain(messages)
    for message in asked:
        if not message["token_ids"]:  # as if there were no such field: older records have none
            del message["token_ids"]
    return digest([policy, asked, _to_plain(sampling)])


def read_record(folder: Path, ref: RecordRef) -> Record:
    """Read one record back.

    Raises:
        DamagedError: it fails its checksum, or is not the record that the reference means.
        ConflictError: the file is gone.
    """
    try:
        body = lines.read_at(folder / ref.file, ref.offset, ref.length, ref.digest)
    except FileNotFoundError as error:
        raise ConflictError(
            str(folder / ref.file),
            "the journal refers to this file and it is not there.",
            lines.RESTORE,
        ) from error
    return from_dict(Record, orjson.loads(body))


def read_usage(folder: Path) -> Iterator[tuple[str, Usage]]:
    """Policy and usage of every record below a folder, lost calls included.

    Counts what the journal does not name yet, and leaves out a last record that is torn.

    Raises:
        DamagedError: a record fails its checksum.
    """
    for path in sorted(folder.glob("*.jsonl")):
        found: list[tuple[str, Usage]] = []

        def collect(line: lines.StoredLine, found: list[tuple[str, Usage]] = found) -> None:
            record = orjson.loads(line.body)
            found.append((record["policy"], from_dict(Usage, record["reply"]["usage"])))

        lines.read(path, chained=False, visit=collect)
        yield from found


def read_trajectory(folder: Path, refs: Sequence[RecordRef]) -> tuple[Message, ...]:
    """The messages of a try, put together from its records in order."""
    return join_messages(read_record(folder, ref) for ref in refs)


def join_messages(records: Iterable[Record]) -> tuple[Message, ...]:
    """The messages of a try."""
    messages: tuple[Message, ...] = ()
    for record in records:
        messages = (*messages[: record.base], *record.messages, record.reply.as_message())
    return messages


def _shared_prefix(before: Sequence[int], now: Sequence[int]) -> int:
    """How many messages both begin with: an agent may rewrite its context between turns."""
    pairs = zip(before, now, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), len(before))


def _to_plain(value: Any) -> Any:
    return orjson.loads(dumps(value))
