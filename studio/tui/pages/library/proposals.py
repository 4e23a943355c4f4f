"""Changes that a person proposes on the library page: edit, delete, merge, insert.

Each becomes an operation that waits in the review like all others.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from functools import partial

from textual.content import Content

from engines.core.types import Operation, OperationKind
from studio.review.decider import toggle_pin
from studio.session.requests import Propose
from studio.session.session import Session
from studio.tui.drawing.lines import line
from studio.tui.page import Page
from studio.tui.pages.library.view import Item
from studio.tui.pages.text import display_text
from studio.tui.widgets.edit_box import EditBox

_Key = tuple[str, str | None]  # what a wording is for: the change and its target


class ProposalKeys:
    """Each asks for what it needs, one at a time."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.box = EditBox(id="library-edit", classes="pane")
        self._typed: dict[_Key, str] = {}  # wordings that were not taken yet
        self._wording: Future[str | None] | None = None  # asked for in the box

    @property
    def is_asking(self) -> bool:
        return self._wording is not None

    async def edit(self, one: Item) -> None:
        now = one.drafted or one.text
        key = ("modify", one.id)
        text = await self._ask_wording(f"{display_text(one.id)}: new wording", key, now)
        if text is None or " ".join(text.split()) in ("", now):
            self._page.host.tell(f"{one.id} stays as it is")
            return
        self._propose(self._make_operation("modify", one.id, text))

    async def delete(self, one: Item) -> None:
        host, name = self._page.host, display_text(one.id)
        experience = line((f"{name}  ", "title"), display_text(one.drafted or one.text))
        lines = [experience, ()]
        if one.won_count:
            lines.append(line((f"{one.won_count} rollouts that cite it won.", "flag")))
        lines.append(
            line("It is decided in 2 Review like any other operation; its id is never reused.")
        )
        if await host.confirm(f"Propose to delete {name}?", lines, {"d": "propose"}):
            self._propose(self._make_operation("delete", one.id, ""))
        else:
            host.tell(f"{one.id} stays")

    async def merge(
        self, one: Item, others: dict[str, Item], likeliest: str, into: str = ""
    ) -> None:
        """Two operations: the other takes this one's wording in, and this one goes.

        `others` are all there are, by id; `likeliest` is offered to merge `into`, where that
        is not known.
        """
        host = self._page.host
        into = into or (await host.ask(f"merge {one.id} into:", likeliest) or "").strip()
        other = others.get(into)
        if not into:
            host.tell(f"{one.id} stays")
            return
        if other is None or other.id == one.id:
            itself, unknown = "it cannot be merged into itself", "there is no such experience"
            host.tell(f"{into}: {itself if other else unknown}", "failed")
            return
        now = other.drafted or other.text
        key = (f"merge {one.id}", other.id)
        joined = f"{now} {one.drafted or one.text}"
        title = f"{display_text(other.id)} with {display_text(one.id)} in it"
        text = await self._ask_wording(title, key, joined)
        if text is None or not text.strip():
            host.tell(f"{one.id} stays")
            return
        why = f"merged: {one.id} into {other.id}"
        changes = [self._make_operation("delete", one.id, "", why)]
        if " ".join(text.split()) != now:
            changes.insert(0, self._make_operation("modify", other.id, text, why))
        self._propose(*changes, typed=key)

    def pin(self, one: Item) -> None:
        host = self._page.host
        pin = partial(toggle_pin, target=one.id, pinned=one.pinned, person=host.person)
        host.ask_run(pin)

    async def insert(self) -> None:
        text = await self._ask_wording("new experience", ("add", None), "")
        if text is None or not text.strip():
            self._page.host.tell("nothing was proposed")
            return
        self._propose(self._make_operation("add", None, text))

    async def _ask_wording(self, title: str, key: _Key, text: str) -> str | None:
        """Ask for a wording in the box; None where it was left. What was typed is kept."""
        page, box, wording = self._page, self.box, get_running_loop().create_future()
        self._wording = wording
        box.border_title, box.border_subtitle = Content(title), "enter proposes it, esc leaves"
        page.add_class("-editing")
        box.open(self._typed.get(key, text))
        begun = box.text
        page.host.draw_now()
        try:
            found: str | None = await wording
            if not box.text.strip():
                self._typed.pop(key, None)
            elif box.text != begun or found is not None:
                self._typed[key] = box.text
            return found
        finally:
            if self._wording is wording and page.children:  # else it is torn down
                self._wording = None
                box.close()
                page.remove_class("-editing")
                if page.is_open and (home := page.initial_focus()) is not None:
                    home.focus(scroll_visible=False)
                    page.call_after_refresh(page.draw_if_open)

    def answer(self, text: str | None) -> None:
        if self._wording is not None and not self._wording.done():
            self._wording.set_result(text)

    def _make_operation(
        self, kind: OperationKind, target: str | None, text: str, why: str = ""
    ) -> Operation:
        person = self._page.host.person
        return Operation("", kind, target, " ".join(text.split()), why, proposer=person)

    def _propose(self, *operations: Operation, typed: _Key | None = None) -> None:
        """Ask the run; what was typed is kept until it was taken."""
        key = typed or (operations[0].kind, operations[0].target)

        async def ask(session: Session) -> str:
            made = [await session.send(Propose(operation, session.who)) for operation in operations]
            self._typed.pop(key, None)
            names = " and ".join(one.id for one in made)
            flagged = " (flagged)" if any(one.is_flagged for one in made) else ""
            return f"{names}{flagged} {'is' if len(made) == 1 else 'are'} to be decided in 2 Review"

        self._page.host.ask_run(ask)
