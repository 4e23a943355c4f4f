"""Messages of the session as the live page takes them: into the batch, the texts, the activity."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from engines.core import events as ev
from engines.core.errors import StudioError
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import rollout_id, try_id
from engines.record.derived.run_state import load_closed
from engines.record.journal import read_journal
from engines.record.run_dir import RunDir
from studio.facts.training import is_fine_tuning
from studio.session.session import (
    Disconnected,
    EventReceived,
    Message,
    Session,
    SnapshotReceived,
    TextReceived,
)
from studio.tui.page import Page
from studio.tui.pages.live import sentences
from studio.tui.pages.live.batch import Batch, current_batch
from studio.tui.pages.live.batch_tracker import BatchTracker
from studio.tui.pages.live.cursor import BatchCursor
from studio.tui.pages.live.streams import Streams
from studio.tui.widgets.line_view import Activity

_Event = ev.DurableEvent | ev.TransientEvent
_HISTORY = 200
"""Things that happened before the screen was opened: the journal has the rest."""


class Feed:
    """What comes from the run that is shown."""

    def __init__(
        self, page: Page, tracker: BatchTracker, cursor: BatchCursor, streams: Streams
    ) -> None:
        self._page, self._tracker, self._cursor, self._streams = page, tracker, cursor, streams
        self._attached: Session | None = None
        self._print_line: Callable[[_Event], None] | None = None

    @property
    def activity(self) -> Activity:
        return self._page.query_one(Activity)

    def handle_message(self, message: Message) -> None:
        match message:
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    if self._streams.add_piece(piece):
                        self._tracker.handle_text(piece.rollout)
            case EventReceived(event=event):
                self._handle_event(event)
            case SnapshotReceived(under_way=under_way, events=events):
                self._handle_snapshot(under_way, events)
            case Disconnected(reason=reason, ended=ended):
                self._tracker.handle_disconnect()
                # Of a run that is over only the end of its process is told, and not as a failure.
                is_over = self._page.state is not None and bool(self._page.state.ending)
                if ended or not is_over:
                    self.activity.say(reason, "" if is_over else "failed")

    def _handle_snapshot(self, under_way: Collection[str] | None, events: int | None) -> None:
        """The state is another object: everything that was taken from the old one is stale."""
        session, state = self._page.session, self._page.state
        anew = session is not self._attached
        self._attached = session
        self._print_line = None
        self._cursor.shows_past = False
        if anew:
            self.activity.clear_lines()
            self._cursor.position = 0
        self._tracker.handle_snapshot(state, under_way, anew=anew)
        self._streams.handle_snapshot(anew)
        if session is not None and session.label:
            return  # of a replay the journal holds what has not been shown yet
        if session is not None and (anew or state is None or state.current is None):
            work = self._load_history(session, anew, events)
            self._page.run_worker(work, group="recall", exclusive=anew)

    def _handle_event(self, event: _Event) -> None:
        state = self._page.state
        self._tracker.handle_event(event, state, self._page.host.clock())
        match event:
            case ev.RolloutStarted(key=key):
                self._streams.reset(try_id(key))
            case ev.RolloutFinished():
                self._streams.mark_ended(rollout_id(event.step, event.position, event.index))
            case ev.StepStarted():
                self._cursor.position = 0
            case ev.RunEnded() | ev.RunResumed():
                self._cursor.shows_past = False
        if state is None:
            return
        if self._print_line is None:
            from studio.report.progress import LinePrinter

            self._print_line = LinePrinter(state, self.activity.say)
        _say_event(event, state, self.activity.say, self._print_line)

    async def _load_history(self, session: Session, anew: bool, events: int | None) -> None:
        """Let the activity begin with what the journal holds of the time before: so many events.

        What came since is told by its own events, also where the journal has it by now.
        """
        texts, batch = await asyncio.to_thread(load_event_history, session.run, events)
        # Else the screen was left.
        if session is self._attached and self._page.is_attached and self._page.children:
            if anew:
                self.activity.prepend_history(texts)
            self._tracker.restore_batch(batch, self._page.state)
            self._page.host.redraw_soon()


def load_event_history(
    run: RunDir, events: int | None = None
) -> tuple[tuple[tuple[float, str], ...], Batch | None]:
    """What happened in the first so many events, and the last batch of all of them. Blocks.

    Only the growing part of a long journal is read, which holds a step at least. Of what happened
    the newest things, oldest first, each with its seconds since the epoch.
    """
    from studio.report.progress import LinePrinter

    texts: deque[tuple[float, str]] = deque(maxlen=_HISTORY)
    now = 0.0
    batch: Batch | None = None

    def say(text: str) -> None:
        texts.append((now, text))

    try:
        state = load_closed(run.journal)[0].state
        print_line = LinePrinter(state, say)
        for entry in read_journal(run.journal, since=state.events):
            now = entry.at
            fold(state, entry.event)
            if isinstance(entry.event, ev.StepStarted):
                batch = current_batch(state)  # its mappings go on being filled until it is through
            if events is None or state.events <= events:
                _say_event(entry.event, state, say, print_line)
    except StudioError as error:  # a damaged journal: 5 says so, with the move
        say(str(error))
    return tuple(texts), batch


def _say_event(
    event: _Event, state: RunState, say: Callable[[str], None], print_line: Callable[[_Event], None]
) -> None:
    """Say it in the words of this page, or as `studio headless` would."""
    trains, shown = state.step_trains, is_fine_tuning(state)
    texts = sentences.event_texts(event, trains=trains, shown=shown)
    if texts is None:
        print_line(event)
    for text in texts or ():
        say(text)
