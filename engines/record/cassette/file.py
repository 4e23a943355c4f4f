"""A cassette: every reply of a command in one file, found again by the content of what was asked.

Owns the file. What is asked and how a reply is given back is known by `replies` and `tools`, which
stand round models and tools. A secret is masked in the file, and found by what it was or is.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from engines.core.codec import dumps, from_dict, to_dict
from engines.core.errors import ConflictError, DamagedError, StudioError
from engines.core.ids import digest
from engines.core.types import CallKey
from engines.core.waiting import current_call
from engines.record import lines
from engines.record.appender import Appender
from engines.record.cassette.difference import call_place, first_difference
from engines.secrets.mask import NO_SECRETS, Mask

VERSION = 1
Kind = Literal["start", "tools", "notes", "model", "tool", "vectors"]
Tell = Callable[[str], None]


class CassetteError(StudioError):
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
    asked: Mapping[str, Any] = field(default_factory=dict)
    reply: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, Any] = field(default_factory=dict)  # see `replies.failure_of`


@dataclass(slots=True)
class Cassette:
    """One that is being recorded (`writer`), or that is played."""

    path: Path
    mask: Mask = NO_SECRETS
    writer: Appender | None = None
    tools: Mapping[str, Any] = field(default_factory=dict)
    _notes: tuple[str, ...] = ()
    _counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    # Where the entries of a request lie, by offset and length, in the order of recording.
    _places: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    _by_request: dict[tuple[str, str], list[tuple[object, ...]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _by_key: dict[tuple[str, CallKey | None], list[tuple[object, ...]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _taken: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def plays(self) -> bool:
        return self.writer is None

    def begin(self, kind: Kind, asked: Mapping[str, Any]) -> Entry:
        """A request that is being made, which `write` completes."""
        asked = _prune(asked)
        key, request = current_call(), digest([kind, asked])
        nth = self._counts[kind, request, key]
        self._counts[kind, request, key] += 1
        return Entry(kind=kind, request=request, key=key, nth=nth, asked=asked)

    async def write(self, entry: Entry) -> Entry:
        """Have it on disk; comes back as it is there, without secrets."""
        written, done = self.queue(entry)
        await asyncio.shield(done)
        return written

    def queue(self, entry: Entry) -> tuple[Entry, asyncio.Future[None]]:
        assert self.writer is not None
        body = dumps(entry)
        masked = self.mask.line(body)
        if masked is not body:
            entry = from_dict(Entry, orjson.loads(masked))
            entry = replace(entry, digest=digest([entry.kind, entry.asked]))
            masked = dumps(entry)
        return entry, self.writer.queue(lines.encode(masked)[0])[1]

    def take(self, kind: Kind, asked: Mapping[str, Any]) -> Entry:
        """The next recorded reply to this request; raises CassetteError where there is none.

        One that was recorded in another place of the run will do, but for a tool: its results may
        follow from what was called before.
        """
        asked = _prune(asked)
        request, key = digest([kind, asked]), current_call()
        free = [one for one in self._by_request[kind, request] if one not in self._taken]
        here = [one for one in free if one[2] == key]
        for found in (*here, *(() if kind == "tool" else free)):
            self._taken.add(found)
            return self._read(found)
        raise self._missing_error(kind, asked, request, key)

    def notes(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """What is to be told of the endpoints: as found, and as it was found when recording."""
        if not self.plays and found != self._notes:
            self.queue(Entry(kind="notes", reply={"notes": found}))
            self._notes = found
        return self._notes

    async def aclose(self) -> None:
        """Have all of it on disk; the command's process may go on with it."""
        if self.writer is not None:
            await self.writer.wait_idle()

    def index(self, line: lines.StoredLine) -> None:
        """Note where the entry of a line lies."""
        data = orjson.loads(line.body)
        match data["kind"]:
            case "tools":
                self.tools = data["reply"]
            case "notes":
                self._notes = tuple(data["reply"]["notes"])
            case "model" | "tool" | "vectors" as kind:
                key = None if data["key"] is None else from_dict(CallKey, data["key"])
                place = (kind, data["request"], key, data["nth"])
                if place not in self._places:
                    for request in {data["request"], data["digest"] or data["request"]}:
                        self._by_request[kind, request].append(place)
                    self._by_key[kind, key].append(place)
                self._places[place] = line.offset, line.length

    def _read(self, place: tuple[object, ...]) -> Entry:
        body = lines.read_at(self.path, *self._places[place])
        return from_dict(Entry, orjson.loads(body))

    def _missing_error(
        self, kind: Kind, asked: Mapping[str, Any], request: str, key: CallKey | None
    ) -> CassetteError:
        cause = f"it holds no reply to what is asked at {call_place(key)}"
        if kind == "vectors":
            cause = "it holds no vectors of texts that are compared"
        elif any(kind != "tool" or one[2] == key for one in self._by_request[kind, request]):
            cause += ": the same was asked less often when it was recorded"
        elif near := [self._read(place).asked for place in self._by_key[kind, key]]:
            now = self.mask.tree(orjson.loads(dumps(asked)))
            cause += f", which is another than was recorded:\n{first_difference(near, now)}\n"
        else:
            cause += ": nothing was recorded there"
        dot = "" if cause.endswith("\n") else "."
        move = "Take back what was changed since, leave --cassette out to ask the model, or record "
        move += "another: --record FILE."
        return CassetteError(f"cassette {self.path}", f"{cause}{dot}", move)


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
    """The cassette that the command line names, if any; on disk when the stack is closed."""
    if tape is None:
        return None
    opened = tape.open(what, mask=mask, resumes=resumes, tell=tell)
    stack.push_async_callback(opened.aclose)
    return opened


def is_played(cassette: Cassette | Tape | None) -> bool:
    return cassette is not None and cassette.plays


def _open_played(path: Path, tell: Tell) -> Cassette:
    found = Cassette(path)
    contents = _read_lines(path, "--cassette", found.index)
    if not contents.end:
        cause = "it is empty." if path.exists() else "there is no such file."
        raise ConflictError(f"--cassette {path}", cause, "Record one with --record FILE.")
    if contents.torn:
        tell(f"{path}: its last line is not whole; recording it was cut off there")
    return found


def _open_recorded(path: Path, what: str, mask: Mask, resumes: bool, tell: Tell) -> Cassette:
    starts: list[lines.StoredLine] = []
    contents = _read_lines(path, "--record", starts.append)
    place = f"--record {path}"
    if contents.end:
        known = orjson.loads(starts[0].body)["asked"].get("what")
        if not resumes or known != what:
            cause = f"the file holds a recording already, of {known}."
            raise ConflictError(place, cause, "Name another file; --cassette FILE plays this one.")
    elif resumes and what.startswith("run "):
        cause = f"{what} has begun without it, and what was asked until then would be missing."
        move = "Leave --record out, or begin another run: --restart-step 0."
        raise ConflictError(place, cause, move)
    if contents.torn or contents.newline_missing:
        lines.repair_end(path, contents)
        tell(f"{path}: mended a last line that was being written")
    found = Cassette(path, mask, Appender(path))
    if not contents.end:
        start = Entry(kind="start", asked={"what": what, "version": VERSION})
        assert found.writer is not None
        found.writer.append_now(lines.encode(dumps(start))[0])
    return found


def _read_lines(
    path: Path, option: str, visit: Callable[[lines.StoredLine], None]
) -> lines.Contents:
    def check_first(line: lines.StoredLine) -> None:
        if line.number == 1:
            data = orjson.loads(line.body)
            if not isinstance(data, dict) or data.get("kind") != "start":
                raise _no_cassette_error(path, option)
            if (version := data["asked"]["version"]) != VERSION:
                cause = f"it has format {version}, this studio reads format {VERSION}."
                raise ConflictError(f"{option} {path}", cause, "Record another.")
        visit(line)

    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise _no_cassette_error(path, option)
    with suppress(OSError), path.open("rb") as file:
        if not (head := b'{"n":').startswith(file.read(len(head))):
            raise _no_cassette_error(path, option)
    try:
        return lines.read(path, chained=False, visit=check_first)
    except DamagedError as error:
        move = "Restore it from a copy, or record another."
        raise ConflictError(f"{option} {error.place}", error.cause, move) from error


def _no_cassette_error(path: Path, option: str) -> ConflictError:
    return ConflictError(f"{option} {path}", "the file is no cassette.", "Name another file.")


def plain_request(**fields: object) -> Mapping[str, Any]:
    """What is asked, as plain JSON values."""
    return to_dict(fields)


def _prune(value: Any) -> Any:
    """Without fields that hold nothing, so that those of a later release change no hash."""
    if isinstance(value, Mapping):
        return {name: _prune(v) for name, v in value.items() if not _is_empty(v)}
    if isinstance(value, list | tuple):
        return [_prune(inner) for inner in value]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {}, ())
