"""Every reply is paid for once: asked, recorded, and taken from the record ever after.

Owns `records/step-NNNN.jsonl` (and `eval-NNNN.jsonl`). A record holds the key, the
hash of the request, the messages that are new since the previous turn of the same try,
and the reply. It is on disk before `ask` returns, hence before the journal names it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import dumps, from_dict
from engines.core.errors import CallFailed, ConflictError
from engines.core.ids import call_seed, digest
from engines.core.masking import NO_SECRETS, Mask
from engines.core.protocols import OnText, Policy, Purse
from engines.core.types import NO_USAGE, CallKey, Completion, Message, RecordRef, Sampling
from engines.record import lines
from engines.record.appender import Appender

_Known = dict[tuple[CallKey, str], tuple[Completion, RecordRef]]


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded reply. `messages[:base]` of the request are those of the turn before.

    Where `lost` is not empty there was no usable reply: it says why, and `reply` holds
    nothing but what the tries may have cost. Such a record answers no later question.
    """

    key: CallKey
    request: str
    policy: str
    base: int
    messages: tuple[Message, ...]
    sampling: Sampling
    reply: Completion
    elapsed_s: float
    at: float
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
        purse: Purse | None = None,
    ) -> None:
        """Nothing is opened or written until something is asked.

        Args:
            folder: of the record files.
            run_seed: what the seed of every call follows from.
            clock: gives the time stamp of a record.
            tell: is told what was mended.
            mask: takes secrets out of replies and of what is written.
            purse: must grant every call; None: there is no budget.
        """
        self._folder = folder
        self._seed = run_seed
        self._clock = clock
        self._tell = tell
        self._mask = mask
        self._purse = purse
        self._files: dict[str, Appender] = {}
        self._known: dict[str, _Known] = {}
        self._turns: dict[CallKey, tuple[Message, ...]] = {}  # try → its latest request
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
    ) -> tuple[Completion, RecordRef]:
        """See `engines.core.protocols.Ledger.ask`."""
        name = file_name(key)
        known = self._open(name)
        sampling = replace(sampling, seed=call_seed(self._seed, key))
        request = request_hash(policy.name, messages, sampling)
        this_try = replace(key, turn=0)
        base = _shared(self._turns.get(this_try, ()), messages) if key.turn else 0
        self._turns[this_try] = tuple(messages)
        found = known.get((key, request))
        if found is not None:
            self.reused += 1
            return found
        self.asked += 1
        began = time.monotonic()

        async def keep(reply: Completion, lost: str = "") -> tuple[Completion, RecordRef]:
            """Write what came of it; the reply comes back as it was written."""
            self.paid += reply.usage
            elapsed_s = round(time.monotonic() - began, 4)
            new = tuple(messages[base:])
            record = Record(
                key,
                request,
                policy.name,
                base,
                new,
                sampling,
                reply,
                elapsed_s,
                self._clock(),
                lost,
            )
            body = dumps(record)
            masked = self._mask.line(body)
            if masked is not body:
                reply = from_dict(Record, orjson.loads(masked)).reply
            raw, checksum = lines.encode(masked)
            offset = await self._files[name].append(raw)
            return reply, RecordRef(name, offset, len(raw), checksum)

        settle = None
        if self._purse is not None:
            settle = await self._purse.reserve(policy.name, messages, sampling)
        spent = NO_USAGE
        try:
            reply = await policy.complete(messages, sampling, on_text)
            spent = reply.usage
        except CallFailed as failed:
            spent = failed.usage
            if spent.calls:
                await keep(Completion("", finish="lost", usage=spent), str(failed))
            raise
        finally:
            if settle is not None:
                settle(spent)
        known[key, request] = await keep(reply)
        return known[key, request]

    def forget(self, prefix: str = "") -> None:
        """Close the files of a finished step and drop what was read from them."""
        for name in [name for name in self._files if name.startswith(prefix)]:
            self._files.pop(name).close()
            self._known.pop(name)
        self._turns.clear()

    async def aclose(self) -> None:
        for file in self._files.values():
            await file.settle()
        self.forget()

    def _open(self, name: str) -> _Known:
        if name not in self._known:
            path = self._folder / name
            known: _Known = {}

            def keep(line: lines.Line) -> None:
                record = from_dict(Record, orjson.loads(line.body))
                if record.lost:
                    return
                ref = RecordRef(name, line.offset, line.length, line.digest)
                known[record.key, record.request] = (record.reply, ref)

            contents = lines.read(path, chained=False, visit=keep)
            if contents.torn or contents.newline_missing:
                whole = contents.end - 1 if contents.newline_missing else contents.end
                os.truncate(path, whole)
                if contents.newline_missing:
                    with path.open("ab") as file:
                        file.write(b"\n")
                self._tell(f"{path}: mended a last record that was being written")
            self._known[name] = known
            self._files[name] = Appender(path)
        return self._known[name]


def file_name(key: CallKey) -> str:
    prefix = "eval" if key.problem else "step"
    return f"{prefix}-{key.step:04d}.jsonl"


def request_hash(policy: str, messages: Sequence[Message], sampling: Sampling) -> str:
    """Identifies a request: who is asked, what, and how the reply is drawn."""
    return digest([policy, _plain(messages), _plain(sampling)])


def read_record(folder: Path, ref: RecordRef) -> Record:
    """Read one record back.

    Raises:
        DamagedError: it fails its checksum.
        ConflictError: the file is gone.
    """
    try:
        body = lines.read_at(folder / ref.file, ref.offset, ref.length)
    except FileNotFoundError as error:
        raise ConflictError(
            str(folder / ref.file),
            "the journal refers to this file and it is not there.",
            "Restore it from a copy.",
        ) from error
    return from_dict(Record, orjson.loads(body))


def trajectory(folder: Path, refs: Sequence[RecordRef]) -> tuple[Message, ...]:
    """The messages of a try, put together from its records in order."""
    messages: tuple[Message, ...] = ()
    for ref in refs:
        record = read_record(folder, ref)
        messages = (*messages[: record.base], *record.messages, record.reply.as_message())
    return messages


def _shared(before: Sequence[Message], now: Sequence[Message]) -> int:
    """How many messages both begin with: an agent may rewrite its context between turns."""
    pairs = zip(before, now, strict=False)
    return next((n for n, (one, other) in enumerate(pairs) if one != other), len(before))


def _plain(value: Any) -> Any:
    return orjson.loads(dumps(value))
