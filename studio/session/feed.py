"""What a run's process sends to clients that follow it: every event, and text as it is written.

Owns the text of each running rollout, and the queue of each client. Text is never queued: a
client is sent all that is new when it has read the rest, so a slow reader costs the memory of
its events and no more.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from engines.core import codec
from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, try_id
from studio.session.requests import format_line

BATCH_S = 0.1
"""Seconds between two batches of text: a screen draws no more often."""
MAX_WAITING_BYTES = 64_000_000
"""Kept for a reader slower than the run; beyond them its connection is closed."""
_PIECES = 512
"""Pieces kept before they are joined: a token by itself takes as much memory as a line."""
_MOST_CHARS = 500_000
"""Of text in one line; JSON may write six bytes for a character."""
_WRITE_BYTES = 1_000_000

_Place = tuple[str, int, int, int]  # purpose, step, position, index
_Piece = tuple[str, int, str]  # rollout, offset, text


@dataclass(slots=True, eq=False)
class RolloutText:
    """The text of one rollout so far, in chunks that do not change once they are made."""

    rollout: str
    started: ev.RolloutStarted | None = None  # None: its beginning was not seen
    watched: bool = False
    chunks: list[str] = field(default_factory=list)
    recent: list[str] = field(default_factory=list)  # pieces since the last chunk

    def merge_recent(self, *, whole: bool = False) -> None:
        """Join the recent pieces into a chunk; `whole`: no piece will follow."""
        if not self.recent:
            return
        text = "".join(self.recent)
        self.recent.clear()
        if not whole and text and "\ud800" <= text[-1] <= "\udbff":
            self.recent.append(text[-1])  # half a character: the other half may follow
            text = text[:-1]
        if text:  # as it arrives, else the two ends would count characters differently
            self.chunks.append(text if text.isascii() else codec.fix_surrogates(text))


class Outbox:
    """What one client is sent, in order. Filled by the event loop, emptied by `send`."""

    def __init__(self, feed: "Feed") -> None:
        self._feed = feed
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        # rollout → its text, and how many chunks and characters of it
        self._sent: dict[str, tuple[RolloutText, int, int]] = {}
        self.subscribed: frozenset[str] = frozenset()
        self._texts_due = False
        self.ended = False  # nothing more will be enqueued
        self.dropped = False  # the client did not read, so its connection is closed
        self.on_dropped: Callable[[], object] = lambda: None

    def enqueue(self, line: bytes) -> None:
        """Queue a line, unless the client was dropped."""
        if self.dropped or self.ended:
            return
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > MAX_WAITING_BYTES:
            self.dropped = True
            self._lines.clear()
            self.on_dropped()
        self._empty.clear()
        self._wake.set()

    def end(self) -> None:
        """Let `send` return once everything has been written."""
        self.ended = True
        self._wake.set()

    async def wait_until_sent(self) -> None:
        await self._empty.wait()

    def subscribe(self, rollouts: Collection[str]) -> None:
        """Send the text of these rollouts, from its beginning where they are new."""
        self.subscribed = frozenset(rollouts)
        self._sent = {name: at for name, at in self._sent.items() if name in self.subscribed}
        self.notify_text()

    def notify_text(self) -> None:
        if self.subscribed and not self.ended:
            self._texts_due = True
            self._empty.clear()
            self._wake.set()

    def enqueue_rest(self, text: RolloutText) -> None:
        """Queue the rest of a text, since its rollout has finished."""
        if text.rollout in self.subscribed:
            for piece in self._unsent_pieces(text):
                self.enqueue(format_line(streams=[piece]))
            self._sent.pop(text.rollout, None)

    async def send(self, writer: asyncio.StreamWriter) -> None:
        """Write everything, as fast as it is read, until `end` or until the client is dropped."""
        while not self.dropped:
            await self._wake.wait()
            self._wake.clear()
            while (data := self._take_batch()) and not self.dropped:
                writer.write(data)
                await writer.drain()
            self._empty.set()
            if self.ended and not self._lines:
                return

    def _take_batch(self) -> bytes:
        taken: list[bytes] = []
        size = 0
        while self._lines and size < _WRITE_BYTES:
            line = self._lines.popleft()
            size += len(line)
            taken.append(line)
        self._bytes -= size
        if self._texts_due and not self._lines:
            self._texts_due = False
            taken += self._stream_lines()
        return b"".join(taken)

    def _stream_lines(self) -> list[bytes]:
        lines: list[bytes] = []
        pieces: list[_Piece] = []
        chars = 0
        for text in self._feed.texts_of(self.subscribed):
            for piece in self._unsent_pieces(text):
                pieces.append(piece)
                chars += len(piece[2])
                if chars >= _MOST_CHARS:
                    lines.append(format_line(streams=pieces))
                    pieces, chars = [], 0
        if pieces:
            lines.append(format_line(streams=pieces))
        return lines

    def _unsent_pieces(self, text: RolloutText) -> Sequence[_Piece]:
        """What of a text was not sent yet, in pieces of bounded length."""
        known, chunks, offset = self._sent.get(text.rollout, (text, 0, 0))
        if known is not text:  # the rollout began anew
            chunks = offset = 0
        new = "".join(text.chunks[chunks:])
        self._sent[text.rollout] = (text, len(text.chunks), offset + len(new))
        return [
            (text.rollout, offset + at, new[at : at + _MOST_CHARS])
            for at in range(0, len(new), _MOST_CHARS)
        ]


class Feed:
    """A listener of a run's recorder that fills every client's outbox."""

    def __init__(self, state: RunState, batch_s: float = BATCH_S) -> None:
        self._state = state
        self._batch_s = batch_s
        self._texts: dict[_Place, RolloutText] = {}
        self._outboxes: dict[Outbox, None] = {}  # in the order in which they came
        self._scheduled: asyncio.TimerHandle | None = None
        self._watched: frozenset[str] = frozenset()

    @property
    def rollouts(self) -> list[str]:
        """Ids of the running ones of practice."""
        tries = self._state.live.tries.items()
        return [name for name, one in tries if one is None or one.key.purpose == "rollout"]

    def is_followed(self) -> bool:
        """Whether anybody follows the text of some rollout."""
        return bool(self._watched)

    def __call__(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        # Up to 100,000 tokens a second come here: each check costs.
        if event.__class__ is ev.TextStreamed:
            key = event.key
            place = key.purpose, key.step, key.position, key.index
            text = self._texts.get(place) or self._begin_text(key)
            recent = text.recent
            recent.append(event.text)
            if len(recent) >= _PIECES:
                text.merge_recent()
            if text.watched and self._scheduled is None:
                loop = asyncio.get_running_loop()
                self._scheduled = loop.call_later(self._batch_s, self._flush)
            return
        self._publish(event)

    def add(self, outbox: Outbox) -> None:
        """Send this client every event from now on, and what a step's own events do not tell."""
        self._outboxes[outbox] = None
        live = self._state.live
        if live.evaluation or live.nodes or live.stage_name == "restore":
            # Later: the answer to the client comes first.
            asyncio.get_running_loop().call_soon(self._send_progress, outbox)

    def _send_progress(self, outbox: Outbox) -> None:
        live = self._state.live
        restoring = live.stage if live.stage_name == "restore" else None
        tries = (one for one in live.tries.values() if one and one.key.purpose == "evaluation")
        for event in (restoring, live.evaluation, live.nodes, *tries, *live.placed.values()):
            if event is not None and outbox in self._outboxes:
                outbox.enqueue(self._event_line(event))

    def _event_line(self, event: ev.DurableEvent | ev.TransientEvent) -> bytes:
        return format_line(seq=self._state.events, event=ev.event_to_dict(event))

    def remove(self, outbox: Outbox) -> None:
        self._outboxes.pop(outbox, None)
        self._update_watched()

    def subscribe(self, outbox: Outbox, rollouts: Collection[str]) -> None:
        """Send this client the text of these rollouts, and of no other."""
        for text in self._texts.values():
            if text.rollout in rollouts:
                text.merge_recent()
        outbox.subscribe(rollouts)
        self._update_watched()

    def texts_of(self, rollouts: Collection[str]) -> list[RolloutText]:
        return [text for text in self._texts.values() if text.rollout in rollouts]

    def close(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _begin_text(self, key: CallKey) -> RolloutText:
        name = try_id(key)
        text = RolloutText(name, self._state.live.tries.get(name), name in self._watched)
        self._texts[_place(key)] = text
        return text

    def _end_text(self, place: _Place) -> None:
        text = self._texts.pop(place)
        if text.watched:
            text.merge_recent(whole=True)
            for outbox in self._outboxes:
                outbox.enqueue_rest(text)

    def _publish(self, event: ev.DurableEvent | ev.TransientEvent) -> None:
        tries = self._state.live.tries
        for place, text in tuple(self._texts.items()):
            # A rollout that begins once more is another one: the text of the first is dropped.
            if tries.get(text.rollout) is not text.started:
                self._end_text(place)
        if self._outboxes:
            line = self._event_line(event)
            for outbox in self._outboxes:
                outbox.enqueue(line)

    def _update_watched(self) -> None:
        self._watched = frozenset().union(*(outbox.subscribed for outbox in self._outboxes))
        for text in self._texts.values():
            text.watched = text.rollout in self._watched

    def _flush(self) -> None:
        self._scheduled = None
        for text in self._texts.values():
            if text.watched:
                text.merge_recent()
        for outbox in self._outboxes:
            outbox.notify_text()


def _place(key: CallKey) -> _Place:
    return key.purpose, key.step, key.position, key.index
