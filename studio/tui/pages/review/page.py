"""Review: decide each operation with what it changes, rests on and resembles before one's eyes.

Owns wordings under way: edits, merges, replies to mend. The panes are those of
`studio.tui.pages.review.panes`, the other keys those of `studio.tui.pages.review.answers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported
from textual.widgets import TextArea

from engines.core.errors import StudioError
from engines.core.types import Decision, Operation
from studio.secrets.sanitize import sanitize
from studio.session.base import Session
from studio.tui.pages.review.answers import ReviewDecisions
from studio.tui.pages.review.change_view import flag_text
from studio.tui.pages.review.panes import Editing
from studio.tui.pages.review.view import Item, excerpt
from studio.tui.widgets.edit_box import EditBox

if TYPE_CHECKING:
    pass


class ReviewPage(ReviewDecisions):
    """The queue on the left, one operation whole on the right."""

    def __init__(self) -> None:
        super().__init__()
        self.in_editor: Callable[[str], str | None] = self._run_editor

    # -- changing the wording ---------------------------------------------------------------------

    def action_edit(self) -> None:
        item = self._editable_item()
        if item is not None and (editing := self._make_editing(item)) is not None:
            self.run_worker(self._open_box(editing))

    def _editable_item(self) -> Item | None:
        """What is under the cursor, where it has a wording that can be changed."""
        item = self._decidable_item()
        if (
            item is not None
            and item.operation is not None
            and self._is_all_or_nothing(item.operation)
        ):
            return None
        return item

    def _make_editing(self, item: Item) -> Editing | None:
        """What editing an item begins with; also what is to be kept or deleted can be reworded."""
        if item.repair is not None:
            return Editing(item, item.repair.reply)
        op = item.operation
        assert op is not None
        if item.standing == "edited" and item.decision is not None:
            made = item.decision
            return Editing(item, made.text or op.text, made.kind, made.target)
        if op.kind in ("delete", "keep"):
            now = self._texts_without(item).get(op.target or "", "")
            if not now:
                self.host.tell(f"{op.target} is not in the library: it has no wording", "failed")
                return None
            return Editing(item, now, "modify", op.target)
        return Editing(item, op.text)

    async def _open_box(self, editing: Editing, text: str | None = None) -> None:
        item, drafts, room = editing.item, self.host.drafts, self._room
        if item.repair is not None and room is not None:
            try:
                whole = await asyncio.to_thread(room.load_reply, item.repair)
                editing = replace(editing, before=whole)
            except StudioError as error:
                self.host.tell(str(error), "failed")
        self._editing = editing
        kept = drafts.edits.get(editing.draft_key)
        begin = text if text is not None else editing.before if kept is None else kept
        several = item.repair is not None
        end = "ctrl+o hands it in" if several else "enter approves it so"
        what = f"into {editing.target}, merged" if self._is_merge(editing) else "new wording"
        self._set_title("review-edit", f"{item.id} {'reply' if several else what}")
        self._set_title("review-edit", f"{end}, esc keeps it for later", below=True)
        self.add_class("-editing")
        self._arrange()
        self.box.open(begin, several_lines=several)
        if kept is not None and text is None:
            self.host.tell("as you left it; esc keeps it again")
        self._drawn = ()
        self.draw()
        self.host.draw_chrome()  # other keys are heard now

    @staticmethod
    def _is_merge(editing: Editing) -> bool:
        op = editing.item.operation
        return op is not None and editing.target is not None and editing.target != op.target

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Each letter is kept, so that a line that drops loses two seconds of typing at most."""
        event.stop()
        if (editing := self._editing) is None:
            return
        drafts, text = self.host.drafts, self.box.text
        if text.strip() and text != sanitize(editing.before):
            drafts.edits[editing.draft_key] = text
        else:
            drafts.edits.pop(editing.draft_key, None)
        drafts.mark_changed()

    def on_edit_box_left(self, event: EditBox.Left) -> None:
        event.stop()
        if (editing := self._editing) is None:
            return
        kept = editing.draft_key in self.host.drafts.edits
        key = "M" if self._is_merge(editing) else "e"
        self._close_box()
        self.host.tell(f"kept for later; {key} goes on with it" if kept else "left as it was")
        self.draw()

    def on_edit_box_handed_in(self, event: EditBox.HandedIn) -> None:
        event.stop()
        if self._editing is not None:
            self._submit_edit(self._editing, event.text, anyway=event.anyway)

    def _submit_edit(self, editing: Editing, text: str, *, anyway: bool) -> None:
        """A text was handed in, from the box or an editor."""
        session, item = self._deciding_session(), editing.item
        if session is None:
            return
        if item.id in self.deciding.busy:
            self.host.tell(f"{item.id} is being decided")
        elif not text.strip():
            self.host.tell("nothing is written, so nothing is decided", "failed")
        elif item.repair is not None:
            self.deciding.busy.add(item.id)
            self.host.queue_request(self._resubmit_reply(session, editing, text))
        else:
            op = item.operation
            assert op is not None
            if text == sanitize(op.text) and editing.kind is None and item.decision is None:
                self._submit_decisions(
                    [(op, self._make_decision(op, "approve"))]
                )  # nothing was changed
                return
            plain = self._make_decision(op, "edit")
            decision = replace(plain, kind=editing.kind, target=editing.target, text=text)
            self.deciding.busy.add(op.id)
            self.host.queue_request(self._check_and_decide(session, editing, op, decision, anyway))

    async def _check_and_decide(
        self, session: Session, editing: Editing, op: Operation, decision: Decision, anyway: bool
    ) -> None:
        """Decide an edit once it fits, and what is new about it was seen."""
        try:
            if not anyway:
                found = await session.preview(decision)
                if found.objection:
                    await self._say_in_box(editing, decision, f"does not fit: {found.objection}")
                    return
                if new := [flag for flag in found.flags if flag not in op.flags]:
                    told = ", ".join(flag_text(flag) for flag in new)
                    text = f"enter or y approves it anyway: FLAG {told}"
                    await self._say_in_box(editing, decision, text)
                    self.box.warned = decision.text or ""
                    return
            await self._send_decisions(session, [(op, decision)])
        finally:
            self.deciding.busy.discard(op.id)

    async def _say_in_box(self, editing: Editing, decision: Decision, text: str) -> None:
        """What speaks against a text, beside it; one that came from an editor is shown there."""
        if self._editing is None:
            await self._open_box(editing, decision.text)
        text = excerpt(text)
        self._set_title("review-edit", text, below=True)
        self.host.tell(text, "flag")

    def action_merge(self) -> None:
        if (here := self._decidable_operation()) is None:
            return
        item, op = here
        if self._is_all_or_nothing(op):
            return
        if not op.text:
            self.host.tell(f"a {op.kind} has no wording to merge")
        elif self._found is None:
            self.host.tell("similar experiences are still being looked for")
        elif not self._found.near:
            self.host.tell("nothing in the library is like it: there is nothing to merge into")
        else:
            near = {name: text for name, _, text in self._found.near}
            target = self.similar.key if self.similar.key in near else next(iter(near))
            both = f"{near[target]} {op.text}"
            self.run_worker(self._open_box(Editing(item, both, "modify", target)))

    def action_editor(self) -> None:
        item = self._editable_item()
        if item is not None and (editing := self._make_editing(item)) is not None:
            self.run_worker(self._edit_in_editor(editing))

    async def _edit_in_editor(self, editing: Editing) -> None:
        item, drafts, room = editing.item, self.host.drafts, self._room
        before = drafts.edits.get(editing.draft_key, editing.before)
        try:
            if item.repair is not None and room is not None:
                from studio.session.unparsed_replies import with_comments, without_comments

                if editing.draft_key not in drafts.edits:
                    before = await asyncio.to_thread(room.load_reply, item.repair)
                text = self.in_editor(with_comments(before, item.repair.reasons))
                text = without_comments(text or "").strip() or None
            else:
                text = self.in_editor(before)
                text = " ".join(text.split()) if text is not None else None
        except (StudioError, SuspendNotSupported) as error:
            self.host.tell(str(error) or "this terminal cannot be lent to an editor", "failed")
            return
        if text is None:
            self.host.tell("nothing was saved, so nothing is decided")
            return
        if " ".join(text.split()) == " ".join(sanitize(before).split()):
            self.host.tell("nothing was changed, so nothing is decided")
            return
        drafts.edits[editing.draft_key] = text
        drafts.mark_changed()
        self._submit_edit(editing, text, anyway=False)

    def _run_editor(self, text: str) -> str | None:
        from studio.review.editor import edit_text

        with self.app.suspend():
            return edit_text(text)

    # -- replies to mend --------------------------------------------------------------------------

    async def _resubmit_reply(self, session: Session, editing: Editing, text: str) -> None:
        name = editing.item.id
        try:
            problems = await session.resubmit(name, text, self.host.person)
        finally:
            self.deciding.busy.discard(name)
        if problems:
            self._problems[name] = problems
            self.host.drafts.edits[name] = text
            self.host.drafts.mark_changed()
            if self._editing is None:
                await self._open_box(editing, text)
            self._set_title(
                "review-edit", f"still not understood: {excerpt(problems[0])}", below=True
            )
            self.host.tell(f"{name}: still not understood, so nothing of it is taken", "failed")
            self.draw()
            return
        self._problems.pop(name, None)
        self.host.drafts.edits.pop(name, None)
        self.host.drafts.mark_changed()
        if self._editing is not None and self._editing.item.id == name:
            self._close_box()
        self.host.tell(f"{name}: mended; what it holds is to be decided like all others")
        self.host.drafts.save()
        self.draw()

    def action_drop(self) -> None:
        item = self._decidable_item()
        if item is None:
            return
        if item.repair is None:
            self.host.tell("only a reply that could not be understood is let go; r rejects this")
            return
        self.run_worker(self._drop_reply(item.id))

    async def _drop_reply(self, name: str) -> None:
        reason = await self.host.ask(f"let {name} go because:")
        if reason is None or not reason.strip():
            self.host.tell(f"{name} stays: no reason was given")
            return

        async def drop(session: Session) -> str:
            await session.drop(name, reason.strip(), self.host.person)
            return f"{name}: let go; it stays counted as lost"

        self.host.ask_run(drop)
