"""What a run's process tells those who watch it: every event, and the text under way.

Owns the text of each rollout that goes on, and what waits for whoever reads slowly. Text
never queues: it is taken from here when there is room, all that came meanwhile at once, so a
slow reader costs the memory of its events and no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence

from engines.core.codec import fix_surrogates
from engines.core.events import (
    DurableEvent,
    EvaluationFinished,
    EvaluationProgressed,
    RolloutFinished,
    RolloutStarted,
    StepFinished,
    TextStreamed,
    TransientEvent,
    event_to_dict,
)
from engines.core.state.run_state import RunState
from engines.core.types import rollout_id
from studio.session.protocol import format_line

BATCH_S = 0.1
"""Between two batches of text: a screen draws no more often."""
MAX_WAITING = 50_000
"""Lines kept for a reader that is slower than the run writes; then it is let go of."""
MAX_WAITING_BYTES = 64_000_000
_PIECES = 512
"""Pieces kept apart before they are joined: a token apart takes the memory of a line."""
_MOST_CHARS = 500_000
"""Of text in one line; JSON may write six bytes for a character."""
_WRITE_BYTES = 1_000_000

_Place = tuple[int, int, int]  # step, position, index


class RolloutText:
    """The text of one rollout so far, in chunks that never change once they are made."""

    __slots__ = ("chunks", "recent", "rollout", "watched")

    def __init__(self, rollout: str) -> None:
        self.rollout = rollout
        self.watched = False
        self.chunks: list[str] = []
        self.recent: list[str] = []  # pieces since the last chunk

    def merge_recent(self, *, whole: bool = False) -> None:
        """Make a chunk of the recent pieces; `whole` where none will follow."""
        if not self.recent:
            return
        text = "".join(self.recent)
        self.recent.clear()
        if not whole and text and "\ud800" <= text[-1] <= "\udbff":
            self.recent.append(text[-1])  # half a character: the other half may follow
            text = text[:-1]
        if not text:
            return
        if not text.isascii():
            # As it will arrive, or else both ends would count characters differently.
            text = fix_surrogates(text)
        self.chunks.append(text)


class Outbox:
    """What one connection is sent, in order. Written to by the loop, emptied by `send`."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._sent: dict[
            str, tuple[RolloutText, int, int]
        ] = {}  # rollout → text, chunks, characters
        self._following: frozenset[str] = frozenset()
        self._texts_due = False
        self.ended = False  # nothing more will be said
        self.gone = False  # it stopped reading, and was let go of
        self.let_go: Callable[[], object] = lambda: None  # called then

    def enqueue(self, line: bytes) -> None:
        """Queue a line, unless the reader has been let go of."""
        if self.gone or self.ended:
            return
        self._lines.append(line)
        self._bytes += len(line)
        if len(self._lines) > MAX_WAITING or self._bytes > MAX_WAITING_BYTES:
            self.gone = True
            self._lines.clear()
            self.let_go()
        self._empty.clear()
        self._wake.set()

    def end(self) -> None:
        """Let `send` return once everything has been written."""
        self.ended = True
        self._wake.set()

    async def wait_until_sent(self) -> None:
        """Wait until all that was said has been written."""
        await self._empty.wait()

    def subscribe(self, rollouts: Collection[str]) -> None:
        """Send the text of these rollouts, from its beginning where they are new."""
        self._following = frozenset(rollouts)
        self._sent = {name: at for name, at in self._sent.items() if name in self._following}
        self.notify_text()

    @property
    def subscriptions(self) -> frozenset[str]:
        return self._following

    def notify_text(self) -> None:
        if self._following and not self.ended:
            self._texts_due = True
            self._empty.clear()
            self._wake.set()

    def enqueue_rest(self, text: RolloutText) -> None:
        """Say all that is left of a text, since its rollout is over."""
        if text.rollout in self._following:
            for piece in self._unsent_pieces(text):
                self.enqueue(format_line(streams=[piece]))
            self._sent.pop(text.rollout, None)

    async def send(self, writer: asyncio.StreamWriter) -> None:
        """Write everything, as fast as it is read, until the end or until it is let go of."""
        while not self.gone:
            await self._wake.wait()
            self._wake.clear()
            while (data := self._take_batch()) and not self.gone:
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
        pieces: list[tuple[str, int, str]] = []
        chars = 0
        for text in self._feed.texts_of(self._following):
            for piece in self._unsent_pieces(text):
                pieces.append(piece)
                chars += len(piece[2])
                if chars >= _MOST_CHARS:
                    lines.append(format_line(streams=pieces))
                    pieces, chars = [], 0
        if pieces:
            lines.append(format_line(streams=pieces))
        return lines

    def _unsent_pieces(self, text: RolloutText) -> Sequence[tuple[str, int, str]]:
        """What of a text was not sent yet, as (rollout, offset, text) of bounded length each."""
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
    """A listener of a run's recorder that tells every outlet what comes."""

    def __init__(self, state: RunState, batch_s: float = BATCH_S) -> None:
        self._state = state
        self._batch_s = batch_s
        self._texts: dict[_Place, RolloutText] = {}
        self._outlets: dict[Outbox, None] = {}  # in the order in which they came
        self._scheduled: asyncio.TimerHandle | None = None
        self._watched: frozenset[str] = frozenset()
        self._measuring: EvaluationProgressed | None = None  # how far that under way has come

    @property
    def seq(self) -> int:
        """How many durable events there are."""
        return self._state.events

    @property
    def rollouts(self) -> list[str]:
        """Those under way, by their ids."""
        return [text.rollout for text in self._texts.values()]

    def is_followed(self) -> bool:
        """Whether anybody follows the text of some rollout."""
        return bool(self._watched)

    def __call__(self, event: DurableEvent | TransientEvent) -> None:
        # Tokens come by the hundred thousand a second: everything on their way is counted.
        if event.__class__ is TextStreamed:
            key = event.key
            if key.purpose != "rollout":
                return
            text = self._texts.get((key.step, key.position, key.index))
            if text is None:
                text = self._begin_text((key.step, key.position, key.index))
            recent = text.recent
            recent.append(event.text)
            if len(recent) >= _PIECES:
                text.merge_recent()
            if text.watched and self._scheduled is None:
                self._schedule()
            return
        self._publish(event)

    def add(self, outlet: Outbox) -> None:
        """Tell this outlet every event from now on, and how far a measuring is under way."""
        self._outlets[outlet] = None
        if self._measuring is not None:  # soon: behind the answer to who has asked for this
            asyncio.get_running_loop().call_soon(self._send_progress, outlet)

    def _send_progress(self, outlet: Outbox) -> None:
        if self._measuring is not None and outlet in self._outlets:
            outlet.enqueue(
                format_line(seq=self._state.events, event=event_to_dict(self._measuring))
            )

    def remove(self, outlet: Outbox) -> None:
        self._outlets.pop(outlet, None)
        self._update_watched()

    def subscribe(self, outlet: Outbox, rollouts: Collection[str]) -> None:
        """Tell this outlet the text of these rollouts, and no longer of any other."""
        for text in self._texts.values():
            if text.rollout in rollouts:
                text.merge_recent()
        outlet.subscribe(rollouts)
        self._update_watched()

    def texts_of(self, rollouts: Collection[str]) -> list[RolloutText]:
        return [text for text in self._texts.values() if text.rollout in rollouts]

    def close(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _begin_text(self, place: _Place) -> RolloutText:
        text = self._texts[place] = RolloutText(rollout_id(*place))
        text.watched = text.rollout in self._watched
        return text

    def _publish(self, event: DurableEvent | TransientEvent) -> None:
        match event:
            case RolloutStarted() if event.key.purpose == "rollout":
                # Also where it was tried before: that text is worth nothing any more.
                self._begin_text((event.key.step, event.key.position, event.key.index))
            case RolloutFinished():
                text = self._texts.pop((event.step, event.position, event.index), None)
                if text is not None and text.watched:
                    text.merge_recent(whole=True)
                    for outlet in self._outlets:
                        outlet.enqueue_rest(text)
            case StepFinished():
                self._texts.clear()  # of rollouts that were cut
            case EvaluationProgressed():
                self._measuring = event
            case EvaluationFinished():
                self._measuring = None
        if self._outlets:
            line = format_line(seq=self._state.events, event=event_to_dict(event))
            for outlet in self._outlets:
                outlet.enqueue(line)

    def _update_watched(self) -> None:
        """Note which rollouts anybody follows."""
        self._watched = frozenset().union(*(outlet.subscriptions for outlet in self._outlets))
        for text in self._texts.values():
            text.watched = text.rollout in self._watched

    def _schedule(self) -> None:
        self._scheduled = asyncio.get_running_loop().call_later(self._batch_s, self._flush)

    def _flush(self) -> None:
        self._scheduled = None
        for text in self._texts.values():
            if text.watched:
                text.merge_recent()
        for outlet in self._outlets:
            outlet.notify_text()
