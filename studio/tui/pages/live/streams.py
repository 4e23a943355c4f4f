"""Brings texts to the live page: those of rollouts as they come and from records, and questions.

Owns what is known of each text and what is subscribed to, and not the text itself.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from engines.core.errors import StudioError
from engines.core.text.tool_text import transcript_text
from engines.core.types import RecordRef
from studio.secrets.sanitize import one_line, sanitize
from studio.session.requests import ReadQuestions
from studio.session.session import Session, TextPiece
from studio.tui.drawing.canvas import StreamCanvas
from studio.tui.page import Page
from studio.tui.pages.live.cursor import BatchCursor

CHARS_A_TOKEN = 4
"""Roughly, of English: what a text under way is estimated by."""
_LEAST_TOKENS = 16


_Canvases = Callable[[], tuple[StreamCanvas, StreamCanvas]]


class Streams:
    """Texts of the rollouts that are looked at.

    `canvases` finds the canvas of all rollouts, and that of one, which is followed.
    """

    def __init__(self, page: Page, cursor: BatchCursor, canvases: _Canvases) -> None:
        self._page, self._cursor, self._canvases = page, cursor, canvases
        self._known: dict[str, int] = {}  # rollout → characters heard or read
        self._whole: set[str] = set()  # rollouts of which there is no more to come
        self._awaited: set[str] = set()  # whose text was asked for and has not begun to come
        self._asked: frozenset[str] = frozenset()  # subscribed to
        self._held: frozenset[str] = frozenset()  # ids of panes
        self._reading: set[str] = set()  # under way from the records

    def has_text(self, rollout: str) -> bool:
        return self._known.get(rollout, 0) > 0

    def estimate(self, rollout: str) -> int | None:
        """Tokens of its text so far, about; None while that says nothing."""
        tokens = self._known.get(rollout, 0) // CHARS_A_TOKEN
        return tokens if tokens >= _LEAST_TOKENS else None

    def add_piece(self, piece: TextPiece) -> bool:
        """Take a piece in; False where nobody looks at its rollout."""
        name, offset = piece.rollout, piece.offset
        if name not in self._held:
            return False
        if offset not in (0, self._known.get(name, 0)):
            # Sent before it was asked for anew, or else it is of another text than is here.
            if name not in self._awaited:
                asked = self._asked
                self._subscribe(asked - {name})
                self._subscribe(asked)
            return True
        if offset:
            for canvas in self._canvases():
                canvas.feed(name, piece.text)
        else:
            self._awaited.discard(name)
            self._set_text(name, piece.text)
        self._known[name] = offset + len(piece.text)
        return True

    def _set_text(self, name: str, text: str) -> None:
        for canvas in self._canvases():
            canvas.reset(name, text)

    def reset(self, name: str) -> None:
        """It begins anew: what it said before is worth nothing any more."""
        self._whole.discard(name)
        if self._known.pop(name, 0):
            self._set_text(name, "")

    def mark_ended(self, name: str) -> None:
        """Nothing more will be streamed of it; what was not heard is in the records."""
        if self._known.get(name) and name in self._asked - self._awaited:
            self._whole.add(name)
        self._awaited.discard(name)

    def handle_snapshot(self, anew: bool) -> None:
        """The session knows nothing of what was subscribed to, or is another one."""
        self._asked = frozenset()
        if anew:
            self.prune(())

    def prune(self, held: Collection[str]) -> None:
        """The canvas holds these alone from now on; it forgets the texts of others."""
        now = frozenset(held)
        gone = self._held - now
        self._held = now
        for name in gone:
            self._known.pop(name, None)
        self._whole -= gone
        self._awaited -= gone
        if gone & self._asked and self._page.session is not None:
            # Else they would go on from where they were when they are looked at again.
            self._subscribe(self._asked - gone)

    def subscribe(self) -> None:
        """Ask for the text under way of what is on screen, and read what has ended."""
        if not self._page.is_open or not self._cursor.is_showing_streams:
            self.unsubscribe()
            return
        wanted: set[str] = set()
        ended: dict[str, Sequence[RecordRef]] = {}
        for name in self._canvases()[0].visible_ids:
            one = self._cursor.rollout(name)
            if one is None:
                continue
            if not one.has_ended:
                wanted.add(name)
            elif name not in self._whole and name not in self._reading and one.refs:
                ended[name] = one.refs
        if wanted != self._asked:
            self._subscribe(frozenset(wanted))
        if ended:
            self._reading |= ended.keys()
            self._page.run_worker(self.read_records(ended), group="texts")

    def unsubscribe(self) -> None:
        """Nobody looks: ask for no text."""
        if self._asked:
            self._subscribe(frozenset())

    def _subscribe(self, wanted: frozenset[str]) -> None:
        session = self._page.session
        if session is None:
            return
        self._awaited = (self._awaited & wanted) | (wanted - self._asked)
        self._asked = wanted
        session.subscribe(wanted)

    async def read_records(self, refs: dict[str, Sequence[RecordRef]]) -> None:
        session = self._page.session
        if session is None:
            return
        try:
            texts = await asyncio.to_thread(load_rollout_texts, session.run.records, refs)
        finally:
            self._reading -= refs.keys()
        if session is not self._page.session or not self._page.is_attached:
            return  # another run, or the screen was left meanwhile
        for name, text in texts.items():
            if name in self._held:
                self._set_text(name, text)
                self._known[name] = len(text)
                self._whole.add(name)
        self._page.host.redraw_soon()


def load_rollout_texts(folder: Path, refs: dict[str, Sequence[RecordRef]]) -> dict[str, str]:
    """What each rollout said, from its records; why not, where they cannot be read. Blocks."""
    from engines.record.ledger import read_trajectory

    texts = {}
    for name, of_one in refs.items():
        try:
            texts[name] = transcript_text(read_trajectory(folder, of_one))
        except StudioError as error:
            texts[name] = f"its record cannot be read: {sanitize(str(error))}"
    return texts


_Refs = Mapping[str, Sequence[RecordRef]]  # problem → where a try at it is recorded, if one is
_MOST_CHARS = 4_000


class Questions:
    """What the problems of one run ask: told by its process, else found in its records."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.known: dict[str, str] = {}  # on one line each
        self._session: Session | None = None  # that was asked: another one may know
        # Problems with where they were looked for: once there is a record it may tell.
        self._tried: set[tuple[str, Sequence[RecordRef]]] = set()

    def load(self, wanted: _Refs) -> None:
        """Find out about those that are not known, unless that was tried."""
        if self._page.session is not self._session:
            self._session = self._page.session
            self._tried.clear()
        unknown = {(name, refs) for name, refs in wanted.items() if name not in self.known}
        new = unknown - self._tried
        if new and self._session is not None:
            self._tried |= new
            self._page.run_worker(self._load(dict(new)), group="questions")

    async def _load(self, new: _Refs) -> None:
        session = self._page.session
        if session is None:
            return
        found = dict[str, str]()
        if session.living:
            with contextlib.suppress(StudioError):  # its process may have just ended
                questions = await session.send(ReadQuestions(tuple(sorted(new))))
                found.update(questions)
        left = {name: refs for name, refs in new.items() if refs and name not in found}
        if left:
            found |= await asyncio.to_thread(load_questions, session.run.records, left)
        if session is self._page.session and self._page.is_attached:
            self.known |= {name: one_line(text, _MOST_CHARS) for name, text in found.items()}
            self._page.host.redraw_soon()


def load_questions(folder: Path, refs: _Refs) -> dict[str, str]:
    """What the first turns of these tries asked, as far as their records can be read. Blocks."""
    from engines.record.ledger import read_trajectory

    found: dict[str, str] = {}
    for name, of_one in refs.items():
        try:
            messages = read_trajectory(folder, of_one)
        except StudioError:
            continue  # its pane says so
        if asked := next((m.content for m in messages if m.role == "user"), ""):
            found[name] = asked
    return found
