"""What lies on the review page: its panes, what they show, the cursor and what is read for it.

Owns what has been painted. Decides nothing: `studio.tui.pages.review.answers` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker

from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.types import Operation, OperationKind
from studio.review.actions import Decider
from studio.secrets.sanitize import one_line
from studio.session.base import Disconnected, EventReceived, Message, Session
from studio.tui.drawing.cells import GLYPHS_ASCII, GLYPHS_UNICODE, Glyphs
from studio.tui.drawing.lines import BLANK, Line, Row, line
from studio.tui.keymap import Key, bindings
from studio.tui.page import Page
from studio.tui.pages.review.change_view import (
    MODES,
    change_lines,
    is_long,
    source_lines,
    unparsed_reply_lines,
    wordings,
)
from studio.tui.pages.review.evidence_view import (
    evidence_rows,
    record_files_text,
    rollout_of,
    similar_rows,
)
from studio.tui.pages.review.loader import Findings, FindingsLoader, FindingsRequest
from studio.tui.pages.review.view import (
    SORTS,
    Item,
    draft_and_deleted,
    draft_texts,
    empty_lines,
    excerpt,
    item_row,
    items,
    legend_lines,
)
from studio.tui.widgets.chrome import Chrome
from studio.tui.widgets.edit_box import EDIT_KEYS, MEND_KEYS, EditBox
from studio.tui.widgets.line_view import LineView
from studio.tui.widgets.row_list import RowList

_TABS = ("review-evidence", "review-similar", "review-source")
_BRINGS_ANOTHER = ("LessonProposed", "LessonCommitted")


class ChangeView(LineView):
    """Knows which change stands on the screen: keys decide nothing that was never drawn."""

    def __init__(self, *, id: str, classes: str) -> None:
        super().__init__(id=id, classes=classes)
        self._shows: object = None
        self._painted: object = None
        self._tells_more = False

    def show_change(self, token: object, lines: Sequence[Line]) -> None:
        """Show lines of what `token` stands for; None: of nothing that could be decided."""
        if token != self._shows:
            self._shows = token
            self.scroll_to(y=0, animate=False, force=True)
            self.refresh(Region(0, 0, self.size.width, 1))
        self.show_lines(lines)
        self._update_more_hint()

    def _update_more_hint(self) -> None:
        """In the border: whether there is more than is seen, and how it is reached."""
        height = self.scrollable_content_region.height
        more = len(self.lines) > round(self.scroll_y) + height > 0
        if more != self._tells_more:
            self._tells_more = more
            self.border_subtitle = Content("more below (tab, j)") if more else None

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._update_more_hint()

    def has_painted(self, token: object) -> bool:
        return token is not None and token == self._painted

    def render_line(self, y: int) -> Strip:
        self._painted = self._shows
        return super().render_line(y)

    def on_resize(self) -> None:
        super().on_resize()
        self._update_more_hint()
        _rewrap_page(self)


class TabRows(RowList):
    """A list that shares its place with others where there is room for one."""

    def focus(self, scroll_visible: bool = True) -> Self:
        page = next((each for each in self.ancestors if isinstance(each, ReviewPanes)), None)
        if page is not None:
            page.show_tab(self.id or "")
        super().focus(scroll_visible)
        return self

    def on_resize(self) -> None:
        super().on_resize()
        _rewrap_page(self)


def _rewrap_page(pane: Widget) -> None:
    """A pane has another width: what was wrapped for the old one is wrapped again."""
    page = next((each for each in pane.ancestors if isinstance(each, ReviewPanes)), None)
    if page is not None:
        page.call_later(page.rewrap_panes)


@dataclass(frozen=True, slots=True)
class Editing:
    """A text in the box, and what becomes of it when it is handed in."""

    item: Item
    before: str  # as it stood when the box was opened
    kind: OperationKind | None = None
    target: str | None = None

    @property
    def draft_key(self) -> str:
        """Where the text is kept; a merge is another text than an edit."""
        return f"{self.item.id}>{self.target}" if self.target else self.item.id


class ReviewPanes(Page):
    """The queue on the left, one operation whole on the right."""

    scope = "review"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("review")]
    DEFAULT_CSS = """
    ReviewPanes { layout: vertical; }
    ReviewPanes #review-left { height: 7fr; width: 100%; }
    ReviewPanes #review-ops { height: 1fr; }
    ReviewPanes #review-legend { height: 8; display: none; padding: 0 1; }
    ReviewPanes #review-right { height: 13fr; width: 100%; }
    ReviewPanes #review-change { height: 7fr; }
    ReviewPanes #review-edit { height: 7fr; }
    ReviewPanes TabRows { height: 6fr; display: none; }
    ReviewPanes.-side { layout: horizontal; }
    ReviewPanes.-side #review-left { width: 34%; max-width: 52; height: 100%; }
    ReviewPanes.-side #review-right { width: 1fr; height: 100%; }
    ReviewPanes.-side #review-change { height: 12fr; }
    ReviewPanes.-side #review-edit { height: 8fr; }
    ReviewPanes.-side #review-evidence { height: 12fr; }
    ReviewPanes.-all #review-legend { display: block; }
    ReviewPanes.-all #review-similar { height: 8; }
    ReviewPanes.-editing #review-evidence { display: none; }
    ReviewPanes.-editing #review-source { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.sort = SORTS[0]
        self.mode = MODES[0]
        self.opened_evidence = False
        self.deciding = Decider()
        self._of: Session | None = None
        self._room: FindingsLoader | None = None
        self._base: Library | None = None
        self._base_key: tuple[str, int] | None = None
        self._base_trouble = ""
        self._stamp = 0  # of the texts: changes when they do
        self._texts: dict[str, str] = {}
        self._items: list[Item] = []
        self._rows: dict[str, tuple[tuple[object, ...], Row]] = {}  # from what, and how drawn
        self._seen: tuple[Any, ...] = ()  # what the rows were made from
        self._drawn: tuple[Any, ...] = ()  # what the change was drawn from
        self._wanted: FindingsRequest | None = None
        self._found: Findings | None = None
        self._reading: Worker[None] | None = None
        self._shown: tuple[str, float] = ("", 0.0)  # operation, and since when it is looked at
        self._editing: Editing | None = None
        self._anchor = ""  # where a range begins
        self._tab = _TABS[0]
        self._titles: dict[str, str] = {}
        self._widths: tuple[Any, ...] = ()  # of the panes, when they were wrapped
        self._problems: dict[str, tuple[str, ...]] = {}  # of replies that were mended in vain
        self._deleted: dict[str, str] = {}  # what decisions delete, by operation id
        self._is_anew = False  # another lesson is there, or a commit was made
        self._said_draft = ""  # the operation whose approval was held back for a wording begun
        self._parted = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="review-left"):
            yield RowList(id="review-ops", classes="pane")
            yield Chrome(id="review-legend")
        with Vertical(id="review-right"):
            yield ChangeView(id="review-change", classes="pane")
            yield EditBox(id="review-edit")
            for name in _TABS:
                yield TabRows(id=name, classes="pane")

    def on_mount(self) -> None:
        self.box.add_class("pane")
        self._arrange()

    # -- the parts ---------------------------------------------------------------------------

    @property
    def operation_list(self) -> RowList:
        return self.query_one("#review-ops", RowList)

    @property
    def change(self) -> ChangeView:
        return self.query_one("#review-change", ChangeView)

    @property
    def box(self) -> EditBox:
        return self.query_one("#review-edit", EditBox)

    @property
    def evidence(self) -> RowList:
        return self.query_one("#review-evidence", RowList)

    @property
    def similar(self) -> RowList:
        return self.query_one("#review-similar", RowList)

    @property
    def source(self) -> RowList:
        return self.query_one("#review-source", RowList)

    def initial_focus(self) -> Widget:
        return self.box if self._editing is not None else self.operation_list

    def panes(self) -> list[Widget]:
        if self._editing is not None:
            return [self.box]
        tabs: list[Widget] = [self.evidence, self.similar]
        if self.is_tabbed:
            tabs.append(self.source)
        return [self.operation_list, self.change, *tabs]

    @property
    def is_tabbed(self) -> bool:
        """Whether evidence, similar ones and source share one place."""
        return not self.has_class("-all")

    def on_resize(self, event: Resize) -> None:
        self._arrange()
        self._seen = ()
        self.host.redraw_soon()

    def rewrap_panes(self) -> None:
        """Draw the change and what is beside it for the panes as they are now."""
        widths = tuple(
            pane.size for pane in (self.change, self.evidence, self.similar, self.source)
        )
        if self.is_open and widths != self._widths:
            self._widths = widths
            self._drawn = ()
            self.draw()

    def _arrange(self) -> None:
        """Where the panes stand follows from the size alone, never from what they hold."""
        width, height = self.size.width or 120, self.size.height or 32
        self.set_class(width >= 100, "-side")
        self.set_class(width >= 100 and height >= 26, "-all")
        tabbed = self.is_tabbed
        room = height >= 14 and self._editing is None
        for name in _TABS:
            tab = self.query_one(f"#{name}", RowList)
            if not tabbed:
                wide = name == "review-evidence" or (
                    name == "review-similar" and not self.opened_evidence
                )
                tab.display = wide and (self._editing is None or name == "review-similar")
            else:
                tab.display = room and name == self._tab
        self.change.display = self._editing is None or self.has_class("-side") or height >= 18
        self._name_panes()

    def show_tab(self, name: str) -> None:
        if self.is_tabbed and name in _TABS and name != self._tab:
            self._tab = name
            self._arrange()

    def _name_panes(self) -> None:
        """Titles; set only where they differ, since each draws its pane anew."""
        self._set_title("review-change", "Change")
        names = {
            "review-evidence": "Evidence",
            "review-similar": "Similar",
            "review-source": "Source",
        }
        for name, word in names.items():
            if self.is_tabbed:
                shown = " ".join(f"[{w}]" if n == name else w for n, w in names.items())
                self._set_title(name, f"{shown}  (tab)")
            else:
                self._set_title(name, "Similar in library" if word == "Similar" else word)

    def _set_title(self, pane: str, title: str, *, below: bool = False) -> None:
        key = f"{pane}/" if below else pane
        if self._titles.get(key) != title:
            self._titles[key] = title
            widget = self.query_one(f"#{pane}")
            # Content: text in a title is never markup.
            if below:
                widget.border_subtitle = Content(title)
            else:
                widget.border_title = Content(title)

    # -- hearing and drawing -------------------------------------------------------------------

    def handle_message(self, message: Message) -> None:
        self.deciding.handle_message(message)
        if isinstance(message, EventReceived) and type(message.event).__name__ in _BRINGS_ANOTHER:
            self._is_anew = True
        if isinstance(message, Disconnected):
            self._parted = message.reason if not message.ended else ""
        else:
            self._parted = ""

    def _reset_for(self, session: Session | None) -> None:
        """Another run is shown, or none."""
        self._of = session
        self.deciding = Decider()
        self._room = None
        if session is not None:
            self._room = FindingsLoader(self.host.workspace, session.run)
            self.filter_text = self.host.drafts.filter
        self._base, self._base_key, self._base_trouble = None, None, ""
        self._wanted = self._found = None
        self._anchor, self._problems, self._parted = "", {}, ""
        self._seen = self._drawn = ()
        self._rows.clear()
        if self._editing is not None:
            self._close_box()

    def draw(self) -> None:
        if self.session is not self._of:
            self._reset_for(self.session)
        state = self.state
        signs = self._signs
        seen = (state, state.events if state else 0, len(self.deciding.just), self.sort,
                self.filter_text, self._stamp, self.session and self.session.living)  # fmt: skip
        if self._seen != seen:
            self._seen = seen
            self._items = []
            n = 0
            if state is not None:
                reviewed = self.deciding.decided_pairs(state)
                texts, self._deleted = draft_and_deleted(self._base_texts, reviewed)
                self._items = items(
                    state, self.deciding.just, sort=self.sort, words=self.filter_text,
                    texts={**dict(self._base_texts), **texts} if self.filter_text else None,
                )  # fmt: skip
                n = len(state.operations) + len(state.repairs)
                if texts != self._texts:
                    self._texts = texts
                    self._stamp += 1
                    self._seen = (*seen[:5], self._stamp, seen[6])
            rows = [self._row(item, signs) for item in self._items]
            if not rows:
                living = self.session is not None and self.session.living
                told = empty_lines(state, words=self.filter_text, living=living)
                rows = [Row("", each) for each in told]
            self.operation_list.show_rows(rows, key=self._cursor_target())
            shown = f"{len(self._items)} of {n}" if self.filter_text else f"{n}"
            what = "Weight update" if state is not None and state.trains_weights else "Operations"
            self._set_title("review-ops", f"{what} {shown}")
        self._draw_legend()
        self._draw_change()

    def _row(self, item: Item, signs: Glyphs) -> Row:
        """As it was drawn before, where nothing of it is new: a queue may hold thousands."""
        text = ""
        if (op := item.operation) is not None:
            # What is about to be deleted still stands in its own row.
            text = self._texts.get(op.target or "", "") or self._deleted.get(op.id, "")
        of = (item.operation, item.decision, item.repair, item.deferred, text, signs)
        known = self._rows.get(item.id)
        if known is None or any(
            a is not b and a != b for a, b in zip(known[0], of, strict=True)
        ):  # fmt: skip
            known = self._rows[item.id] = (of, item_row(item, text, signs))
        return known[1]

    @property
    def _signs(self) -> Any:
        return GLYPHS_ASCII if self.host.settings.ascii else GLYPHS_UNICODE

    @property
    def _base_texts(self) -> list[tuple[str, str]]:
        return [(e.id, e.text) for e in self._base.experiences] if self._base else []

    def _cursor_target(self) -> str:
        """What the cursor belongs on: where it is, but on what is new once something is."""
        anew, self._is_anew = self._is_anew, False
        is_typing = self._editing is not None or self.host.is_asking
        if anew and not is_typing and not self._anchor:
            return next((item.id for item in self._items if item.is_open), self.operation_list.key)
        return self.operation_list.key or self._first_item()

    def _first_item(self) -> str:
        """Where the person was, else the first undecided one."""
        left_at = self.host.drafts.cursor
        if any(item.id == left_at for item in self._items):
            return left_at
        return next((item.id for item in self._items if item.is_open), "")

    def _draw_legend(self) -> None:
        if not self.has_class("-all"):
            return
        sitting = self.deciding.sitting
        lines = legend_lines(
            self._items,
            words=self.filter_text,
            sort=self.sort,
            done=sitting.done,
            mean_s=sitting.mean_s,
            person=self.host.person,
            signs=self._signs,
        )
        session, last = self.session, BLANK
        if self._is_all_decided:
            last = line(("all decided: c commits", "flag"))
        elif session is not None and session.controls and not session.living:
            last = line(("no process: decided here, 1 r resumes", "dim"))
        shown = self.query_one("#review-legend", Chrome)
        for number, each in enumerate([*lines, last]):
            shown.show_line(number, each)

    @property
    def _is_all_decided(self) -> bool:
        state = self.state
        if state is None or not any(item.decision for item in self._items):
            return False
        decided = self.deciding.decisions(state)
        return not any(op.id not in decided for op in state.undecided_operations)

    @property
    def item(self) -> Item | None:
        """What is under the cursor."""
        name = self.operation_list.key
        return next((item for item in self._items if item.id == name), None)

    def _banner_lines(self) -> list[Line]:
        """What stands above every operation: who decides, what moved, what is left to do."""
        session, state = self.session, self.state
        if session is None or state is None:
            return []
        out: list[Line] = []
        if self._parted:
            out.append(line((f"{excerpt(self._parted)}: trying again; nothing is lost", "failed")))
        elif session.living and not session.controls:
            who = excerpt(session.controller) or "nobody"
            out.append(line((f"{who} decides; you look on (T takes over)", "flag")))
        if state.flagged_stale is not None:
            moved = f"the library has moved to v{state.flagged_stale} under this lesson: what it"
            out.append(line((f"{moved} touched is asked again", "flag")))
        if self._base_trouble:
            out.append(line((one_line(self._base_trouble, 300), "failed")))
        if self._is_all_decided:
            out.append(line(("all decided: c commits, u takes the last one back", "flag")))
        return out

    def _draw_change(self) -> None:
        self._load_base_if_stale()
        item, state = self.item, self.state
        if item is None or state is None:
            self.change.show_change(None, [*self._banner_lines()])
            self._show_findings(None)
            self._drawn = ()
            return
        self._request_findings(item)
        drafts = self.host.drafts
        key = (item, self.mode, self._stamp, self._found, drafts.notes.get(item.id),
               drafts.edits.get(item.id), self._banner_lines(), self.change.line_width,
               len(self._items),
               self._problems.get(item.id), self._seen, self.opened_evidence)  # fmt: skip
        if key == self._drawn:
            return
        self._drawn = key
        at = (self._items.index(item) + 1, len(self._items))
        width = self.change.line_width
        draft = drafts.edits.get(item.id, "") if self._editing is None else ""
        if item.repair is not None:
            problems = self._problems.get(item.id, ())
            lines = unparsed_reply_lines(item.repair, at, width, problems=problems, draft=draft)
            self.change.show_change(self._decision_token(item), [*self._banner_lines(), *lines])
            self._show_findings(None)
            self._record_shown(item.id)
            return
        assert item.operation is not None
        texts = self._texts_without(item)
        changes = self._found.changes if self._found is not None else None
        before, after, _ = wordings(item, texts)
        mode = self.mode
        if mode == "words" and changes is None and before and is_long(before, after):
            mode = "lines"  # until the word diff has been made
        lines = change_lines(
            item, texts, state, at=at, mode=mode, width=width, changes=changes,
            note=drafts.notes.get(item.id, ""), draft=draft,
            target=self._target_experience(item.operation), source=not self.is_tabbed,
            compact=self.is_tabbed,
        )  # fmt: skip
        self.change.show_change(self._decision_token(item), [*self._banner_lines(), *lines])
        self._show_findings(item.operation)
        self._record_shown(item.id)

    def _record_shown(self, name: str) -> None:
        if self._shown[0] != name:
            self._shown = (name, self.host.clock())

    def _target_experience(self, op: Operation) -> Any:
        return self._base.get(op.target) if self._base is not None and op.target else None

    def _texts_without(self, item: Item) -> dict[str, str]:
        """Of the library as the other decisions leave it."""
        if item.decision is None or item.decision.action in ("reject", "defer"):
            return self._texts
        assert self.state is not None
        reviewed = self.deciding.decided_pairs(self.state, without=item.id)
        return draft_texts(self._base_texts, reviewed)

    def _decision_token(self, item: Item) -> object:
        """What a decision about it is made on; None while it is not known."""
        if item.repair is not None:
            return (item.id, item.repair)
        op = item.operation
        assert op is not None
        if self._base is None and not self._base_trouble:
            return None
        return (op.id, op.kind, op.target, op.text, op.flags, self._texts.get(op.target or ""))

    def _show_findings(self, op: Operation | None) -> None:
        evidence, similar, found = self.evidence, self.similar, self._found
        if op is None or found is None:
            here = self.item
            told = "of each operation, what it rests on and resembles"
            if op is not None:
                told = "looking …"
            elif here is not None:
                told = "nothing was drawn from this reply yet"
            for each in (evidence, similar):
                each.show_rows([Row("", line((told, "dim")))])
            self._set_title("review-evidence", "", below=True)
        else:
            rows = evidence_rows(
                found.groups, evidence.line_width, opened=self.opened_evidence,
                answers=found.answers, signs=self._signs,
            )  # fmt: skip
            if found.trouble:
                rows.insert(0, Row("", line((one_line(found.trouble, 400), "failed"))))
            if not rows and op.kind == "weights":
                rows = [Row("", line(("no rollout of its step is in the journal", "dim")))]
            if not rows:
                rows = [Row("", line(("no rollouts: a person proposed it", "dim")))]
            evidence.show_rows(rows)
            self._set_title("review-evidence", excerpt(record_files_text(found.groups)), below=True)
            near = similar_rows(found.near, similar.line_width - 2)
            nothing = "nothing in the library is like it" if op.text else "it has no wording"
            if op.kind == "weights":
                nothing = "a weight update is like no experience"
            similar.show_rows(near or [Row("", line((nothing, "dim")))])
        if op is None or self.state is None:
            self.source.show_rows([])
            return
        lines = source_lines(
            op, self.state, self._target_experience(op), self.source.line_width - 2
        )
        if found is not None and (files := record_files_text(found.groups)):
            lines.append(line(("records   ", "dim"), excerpt(files)))
        self.source.show_rows([Row(str(n), each) for n, each in enumerate(lines)])

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        event.stop()
        if event.rows is not self.operation_list:
            return
        self.host.drafts.cursor = event.key
        if self._anchor:
            self._show_range()
        self._draw_change()

    # -- reading, in a thread --------------------------------------------------------------------

    def _load_base_if_stale(self) -> None:
        state = self.state
        if state is None or state.started is None or self._room is None:
            return
        if self._base_key != (state.started.library, state.base_version):
            self._start_reading()

    def _request_findings(self, item: Item) -> None:
        op = item.operation
        if op is None or self._room is None or (self._base is None and not self._base_trouble):
            self._wanted = self._found = None
            return
        texts = self._texts_without(item)
        before, after, _ = wordings(item, texts)
        wanted = FindingsRequest(op, texts, self._stamp, before, after,
                        bool(before) and before != after and is_long(before, after),
                        self.opened_evidence)  # fmt: skip
        before_it, self._wanted = self._wanted, wanted
        found = self._room.cached_findings(wanted)
        if found is None:
            self._start_reading()
            if before_it is not None and before_it.operation.id == op.id:
                found = self._found  # until it has been read again
        self._found = found

    def _start_reading(self) -> None:
        if self._reading is None or self._reading.is_finished:
            self._reading = self.run_worker(self._read_pending(), group="load")

    async def wait_until_read(self) -> None:
        """Wait until nothing is left to be read for what is shown."""
        while self._reading is not None and not self._reading.is_finished:
            await self._reading.wait()

    async def _read_pending(self) -> None:
        """The library first, then what the cursor stands on by then; one at a time."""
        while (room := self._room) is not None and self.is_attached:
            state = self.state
            if state is None or state.started is None:
                return
            key = (state.started.library, state.base_version)
            if key != self._base_key:
                trouble, base = "", None
                try:
                    base = await asyncio.to_thread(room.load_library, *key)
                except (StudioError, OSError) as error:
                    trouble = str(error)
                if room is not self._room:
                    continue
                self._base, self._base_key, self._base_trouble = base, key, trouble
                self._stamp += 1
            elif self._wanted is not None and room.cached_findings(self._wanted) is None:
                await asyncio.to_thread(room.load_findings, self._wanted)
                if room is not self._room:
                    continue
            else:
                return
            if self.is_open:
                self.draw()

    # -- moving ------------------------------------------------------------------------------

    def open_at(self, target: str = "") -> None:
        if target:
            self.go_to(target)

    def go_to(self, name: str) -> bool:
        state = self.state
        if state is None or not (name in state.operations or name in state.repairs):
            return False
        self._is_anew = False
        if self.is_attached and not self.operation_list.go_to(name):
            if self.filter_text:
                self.filter_text = self.host.drafts.filter = ""
            self.draw()
            self.operation_list.go_to(name)
        self.host.drafts.cursor = name
        return True

    def apply_filter(self, text: str) -> None:
        self.host.drafts.filter = text
        super().apply_filter(text)

    def footer_keys(self) -> Sequence[Key]:
        if self._editing is None:
            return ()
        return EDIT_KEYS if self._editing.item.repair is None else MEND_KEYS

    def go_back(self) -> bool:
        if self._anchor:
            self._leave_range()
            return True
        if self.opened_evidence:
            self._open_evidence(False)
            return True
        return super().go_back()

    def action_next_open(self) -> None:
        self._go_to_undecided(1)

    def action_previous_open(self) -> None:
        self._go_to_undecided(-1)

    def _go_to_undecided(self, by: int) -> bool:
        """The next undecided one from the cursor on, round the end."""
        names = [item.id for item in self._items]
        if self.operation_list.key not in names:
            return False
        at = names.index(self.operation_list.key)
        order = self._items[at + 1 :] + self._items[: at + 1]
        if by < 0:
            order = self._items[:at][::-1] + self._items[at:][::-1]
        busy = self.deciding.busy
        following = next((item for item in order if item.is_open and item.id not in busy), None)
        if following is None:
            if not self._is_all_decided:
                self.host.tell("nothing is undecided")
            return False
        return self.operation_list.go_to(following.id)

    def action_sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.host.tell(f"sorted: {self.sort}")
        self.draw()

    def action_words(self) -> None:
        self.mode = MODES[(MODES.index(self.mode) + 1) % len(MODES)]
        self.host.tell(f"the change by {self.mode}")
        self.draw()

    def action_evidence(self) -> None:
        self._open_evidence(not self.opened_evidence)

    def _open_evidence(self, opened: bool) -> None:
        self.opened_evidence = opened
        self._tab = _TABS[0]
        self._arrange()
        self._draw_change()
        (self.evidence if opened else self.operation_list).focus(scroll_visible=False)

    def action_open(self) -> None:
        name = rollout_of(self.evidence.key)
        if not name:
            self.host.tell("no rollout is behind it")
            return
        if self.item is not None:
            self.host.drafts.cursor = self.item.id
        self.host.open_page("inspect", name)

    def _leave_range(self) -> None:
        self._anchor = ""
        self.operation_list.mark_range(frozenset())

    def _range_items(self) -> list[Item]:
        names = [item.id for item in self._items]
        if self._anchor not in names or self.operation_list.key not in names:
            return []
        low, high = sorted((names.index(self._anchor), names.index(self.operation_list.key)))
        return self._items[low : high + 1]

    def _show_range(self) -> None:
        self.operation_list.mark_range(frozenset(item.id for item in self._range_items()))

    def _close_box(self) -> None:
        self._editing = None
        self.remove_class("-editing")
        self.box.close()
        self._arrange()
        self._drawn = ()
        if self.is_open:
            self.host.draw_chrome()
            self.operation_list.focus(scroll_visible=False)
