"""Other wordings on the review page: edits, merges, and replies to mend.

From the box or from $EDITOR; each letter is kept until a text is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from textual.app import SuspendNotSupported

from engines.core.errors import StudioError
from engines.core.types import Decision, Operation
from studio.review.decider import new_flags
from studio.review.wording import changed_parts, merge_decisions, text_with_parts
from studio.secrets.sanitize import sanitize
from studio.session.requests import Drop, Mend, Preview
from studio.session.session import Session
from studio.tui.pages.review.change_view import flag_text, has_parts, part_rows, wordings
from studio.tui.pages.review.decisions import DecisionKeys
from studio.tui.pages.review.panes import Editing
from studio.tui.pages.review.view import Item, excerpt
from studio.tui.widgets.confirm import choose

_MERGED_UNASKED = 0.6
"""How like an experience must be that M merges into, where a person chose none."""


class WordingKeys:
    """Edit here or in $EDITOR, merge, mend a reply or let it go."""

    def __init__(self, decisions: DecisionKeys) -> None:
        change = decisions.change
        self._decisions, self._change = decisions, change
        self._page, self._panes, self._review_queue = change.page, change.panes, change.queue
        self.in_editor: Callable[[str], str | None] = self._run_editor

    # -- beginning -----------------------------------------------------------------------------

    def edit(self, *, in_editor: bool) -> None:
        """Change the wording of what is under the cursor, in the box or in $EDITOR."""
        item = self._decisions.painted_item()
        op = item.operation if item is not None else None
        if item is None or (op is not None and self._decisions.is_all_or_nothing(op)):
            return
        if (editing := self._make_editing(item)) is not None:
            work = self._edit_in_editor(editing) if in_editor else self._open_box(editing)
            self._page.run_worker(work)

    def _make_editing(self, item: Item) -> Editing | None:
        """What editing an item begins with; also what is to be kept or deleted can be reworded."""
        if item.unparsed is not None:
            return Editing(item, item.unparsed.reply)
        op = item.operation
        assert op is not None
        if item.standing == "edited" and item.decision is not None:
            made = item.decision
            return Editing(item, made.text or op.text, made.kind, made.target)
        if op.kind in ("delete", "keep", "pin", "unpin"):
            now = self._review_queue.texts_without(item).get(op.target or "", "")
            if not now:
                text = f"{op.target} is not in the library: it has no wording"
                self._page.host.tell(text, "failed")
                return None
            return Editing(item, now, "modify", op.target)
        return Editing(item, op.text)

    def mark(self) -> None:
        """Mark what is under the cursor for a merge, or take the mark away.

        Where the change has the focus, choose among its parts.
        """
        here, queue = self._decisions.painted_operation(), self._review_queue
        if here is None or self._decisions.is_all_or_nothing(here[1]):
            return
        if self._page.app.focused is self._panes.change:
            asks = self._page.host.expect_question(self.choose_parts(here[0]))
            self._page.run_worker(asks)
            return
        if not here[1].text:
            self._page.host.tell(f"a {here[1].kind} has no wording to merge")
            return
        queue.toggle_mark(here[0].id)
        n = len(queue.marked_items)
        text = f"{n} marked: M merges them" if n > 1 else "1 marked: mark another one, then M"
        self._page.host.tell(text if n else "none is marked")

    async def choose_parts(self, item: Item) -> None:
        """Take some of the places at which a modify changes a wording; the result is an edit."""
        host, texts = self._page.host, self._review_queue.texts_without(item)
        before, after, _ = wordings(item, texts)
        editing = self._make_editing(item) if has_parts(item, texts) else None
        if editing is None:
            host.tell("its change has no parts that could be chosen: e edits it")
            return
        parts = changed_parts(before, after)
        taken = await choose(
            self._page.app,
            lambda n, of: f"Take {n} of {of} parts of {item.id}?",
            lambda width: part_rows(before, after, parts, width),
            enter="take what is ticked",
        )
        if taken is None:
            host.tell("nothing was decided")
        elif self._review_queue.current_item(item) != item:
            host.tell("it was decided meanwhile, or has changed", "failed")
        else:
            text = text_with_parts(before, after, {int(name) for name in taken})
            self._submit(editing, " ".join(text.split()), anyway=False)

    def merge(self) -> None:
        """Edit a wording that takes in those that are marked, or what the library has already."""
        if marked := self._review_queue.marked_items:
            self._merge_marked(marked)
        else:
            self._merge_into_similar()

    def _merge_marked(self, marked: Sequence[Item]) -> None:
        host = self._page.host
        if self._decisions.require_session() is None:
            return
        if len(marked) < 2:
            host.tell("1 marked: mark another one, then M; esc takes the mark away")
            return
        targets = {one.operation.target for one in marked if one.operation} - {None}
        if len(targets) > 1:
            names = " and ".join(sorted(filter(None, targets)))
            host.tell(f"{names} are two experiences: edit one, and reject the other", "failed")
            return
        # A modify keeps its target, into which the others go; else the first one is kept.
        first = next((one for one in marked if one.operation and one.operation.target), marked[0])
        others = tuple(one for one in marked if one is not first)
        texts = [wordings(one, self._review_queue.texts_without(one))[1] for one in marked]
        made = first.decision if first.standing == "edited" else None
        kind, target = (made.kind, made.target) if made is not None else (None, None)
        editing = Editing(first, " ".join(filter(None, texts)), kind, target, others)
        self._review_queue.go_to(first.id)
        self._page.run_worker(self._open_box(editing))

    def _merge_into_similar(self) -> None:
        here = self._decisions.painted_operation()
        if here is None or self._decisions.is_all_or_nothing(here[1]):
            return
        item, op = here
        host, found, similar = self._page.host, self._change.loader.found, self._panes.similar
        if not op.text:
            host.tell(f"a {op.kind} has no wording to merge")
        elif found is None:
            host.tell("similar experiences are still being looked for")
        elif not found.near:
            host.tell("nothing in the library is like it: there is nothing to merge into")
        else:
            near = {name: text for name, _, text in found.near}
            target, score, _ = found.near[0]
            if self._page.app.focused is similar and similar.key in near:
                target = similar.key
            elif score < _MERGED_UNASKED:
                host.tell("M merges two that are marked (space), or into one chosen in Similar")
                return
            both = f"{near[target]} {op.text}"
            self._page.run_worker(self._open_box(Editing(item, both, "modify", target)))

    # -- the box -------------------------------------------------------------------------------

    async def _open_box(self, editing: Editing, text: str | None = None) -> None:
        host, unparsed = self._page.host, editing.item.unparsed
        if unparsed is not None:
            try:
                whole = await self._change.loader.load_reply(unparsed)
                editing = replace(editing, before=whole or editing.before)
            except StudioError as error:
                host.tell(str(error), "failed")
        kept = host.drafts.edits.get(editing.draft_key)
        begin = text if text is not None else editing.before if kept is None else kept
        self._panes.open_box(editing, begin)
        if kept is not None and text is None:
            host.tell("as you left it; esc keeps it again")
        self._page.draw()
        host.draw_chrome()  # other keys are heard now

    def keep_draft(self) -> None:
        """Each letter is kept, so that a line that drops loses two seconds of typing at most."""
        if (editing := self._panes.editing) is None:
            return
        drafts, text = self._page.host.drafts, self._panes.box.text
        if text.strip() and text != sanitize(editing.before):
            drafts.edits[editing.draft_key] = text
        else:
            drafts.edits.pop(editing.draft_key, None)
        self._panes.forget_objection(changed=True)

    def answer_question(self, *, goes_back: bool) -> None:
        """A key came while the text in the box may not change."""
        if goes_back:
            self._panes.forget_objection()
        elif self._panes.box.asks:
            text = "nothing was typed: y or enter approves it anyway, e or esc goes back to it"
            self._page.host.tell(text, "flag")
        else:
            self._page.host.tell("nothing was typed: the text is being checked", "flag")

    def leave_box(self) -> None:
        if (editing := self._panes.editing) is None:
            return
        kept = editing.draft_key in self._page.host.drafts.edits
        key = "M" if editing.is_merge else "e"
        self._panes.close_box()
        self._page.host.tell(f"kept for later; {key} goes on with it" if kept else "left as it was")
        self._page.draw()

    # -- handing in ----------------------------------------------------------------------------

    def hand_in(self, text: str, *, anyway: bool) -> None:
        """The box was handed in; `anyway`: also where something new speaks against it."""
        editing = self._panes.editing
        if editing is None or not self._submit(editing, text, anyway=anyway):
            self._panes.box.release()

    def _submit(self, editing: Editing, text: str, *, anyway: bool) -> bool:
        """Ask the run to take a text; False where that is not even asked."""
        session, item = self._decisions.require_session(), editing.item
        if session is None:
            return False
        host, busy, op = self._page.host, self._review_queue.decider.busy, item.operation
        names = {item.id, *(one.id for one in editing.others)}
        if any(one != self._review_queue.current_item(one) for one in editing.others):
            host.tell("one of them has changed meanwhile: esc, and mark them again", "failed")
            return False
        if names & busy or not text.strip():
            is_busy = f"{item.id} is being decided"
            nothing = "nothing is written, so nothing is decided"
            host.tell(is_busy if names & busy else nothing, "failed")
            return False
        if op is None:
            busy.add(item.id)
            host.queue_request(self._resubmit_reply(session, editing, text))
        elif text == sanitize(op.text) and not (editing.kind or item.decision or editing.others):
            # Nothing was changed.
            self._decisions.submit([(op, self._decisions.make_decision(op, "approve"))])
        else:
            plain = self._decisions.make_decision(op, "edit")
            decision = replace(plain, kind=editing.kind, target=editing.target, text=text)
            busy |= names
            host.queue_request(self._check_and_decide(session, editing, op, decision, anyway))
        return True

    async def _check_and_decide(
        self, session: Session, editing: Editing, op: Operation, decision: Decision, anyway: bool
    ) -> None:
        """Decide an edit once it fits, and what is new about it was seen."""
        try:
            if not anyway:
                (found,) = await session.send(Preview((decision,)))
                if found.objection:
                    text = f"does not fit: {found.objection}"
                    await self._object(editing, decision.text, text)
                    return
                if new := new_flags(op, found, [one.id for one in editing.others]):
                    flags = "; ".join(flag_text(flag) for flag in new)
                    text = f"new FLAG: {flags}. Approve it anyway? (y, or e to go on editing)"
                    await self._object(editing, decision.text, text, asks=True)
                    return
            pairs = [(op, decision)]
            if others := [one.operation for one in editing.others if one.operation is not None]:
                *rejected, (_, edit) = merge_decisions(op, others, decision.text or "",
                                                       reviewer=decision.reviewer)  # fmt: skip
                pairs = [*rejected, (op, replace(decision, evidence=edit.evidence))]
            names = ", ".join(one.id for one, _ in pairs)
            text = f"merged {names} into one wording; u undoes" if editing.others else ""
            if await self._decisions.send(session, pairs, text) and editing.others:
                self._review_queue.forget_marks()
        finally:
            self._review_queue.decider.busy -= {op.id, *(one.id for one in editing.others)}
            if not self._panes.box.asks:
                self._panes.box.release()

    async def _object(
        self, editing: Editing, wording: str | None, text: str, *, asks: bool = False
    ) -> None:
        """Say what speaks against a text; one that came from an editor is shown in the box."""
        if self._panes.editing is None:
            await self._open_box(editing, wording)
        self._panes.object(text, asks=asks)
        self._page.host.tell(excerpt(text), "flag")
        self._page.draw()

    # -- in $EDITOR ----------------------------------------------------------------------------

    async def _edit_in_editor(self, editing: Editing) -> None:
        host, drafts = self._page.host, self._page.host.drafts
        before = drafts.edits.get(editing.draft_key, editing.before)
        text: str | None
        try:
            if (unparsed := editing.item.unparsed) is not None:
                from studio.session.unparsed_replies import with_comments, without_comments

                if editing.draft_key not in drafts.edits:
                    before = await self._change.loader.load_reply(unparsed) or before
                text = self.in_editor(with_comments(before, unparsed.reasons))
                text = without_comments(text or "").strip() or None
            else:
                text = self.in_editor(before)
                text = " ".join(text.split()) if text is not None else None
        except (StudioError, SuspendNotSupported) as error:
            host.tell(str(error) or "this terminal cannot be lent to an editor", "failed")
            return
        if text is None or " ".join(text.split()) == " ".join(sanitize(before).split()):
            what = "saved" if text is None else "changed"
            host.tell(f"nothing was {what}, so nothing is decided")
            return
        drafts.edits[editing.draft_key] = text
        self._submit(editing, text, anyway=False)

    def _run_editor(self, text: str) -> str | None:
        from studio.review.editor import edit_text

        with self._page.app.suspend():
            return edit_text(text)

    # -- replies to mend -----------------------------------------------------------------------

    async def _resubmit_reply(self, session: Session, editing: Editing, text: str) -> None:
        host, drafts, name = self._page.host, self._page.host.drafts, editing.item.id
        try:
            problems = (await session.send(Mend(name, text, host.person))).problems
        finally:
            self._review_queue.decider.busy.discard(name)
            self._panes.box.release()
        if problems:
            self._change.problems[name], drafts.edits[name] = problems, text
            if self._panes.editing is None:
                await self._open_box(editing, text)
            why = f"still not understood: {'; '.join(problems)}"
            self._panes.object(why, asks=False)
            host.tell(f"{name}: still not understood, so nothing of it is taken", "failed")
        else:
            self._change.problems.pop(name, None)
            drafts.edits.pop(name, None)
            if self._panes.editing is not None and self._panes.editing.item.id == name:
                self._panes.close_box()
            host.tell(f"{name}: mended; what it holds is to be decided like all others")
            drafts.save()
        self._page.draw()

    def drop(self) -> None:
        """Let a reply go that cannot be understood."""
        item = self._decisions.painted_item()
        if item is not None and item.unparsed is not None:
            self._page.run_worker(self._drop_reply(item.id))
        elif item is not None:
            text = "only a reply that could not be understood is let go; r rejects this"
            self._page.host.tell(text)

    async def _drop_reply(self, name: str) -> None:
        reason = await self._page.host.ask(f"let {name} go because:")
        if reason is None or not reason.strip():
            self._page.host.tell(f"{name} stays: no reason was given")
            return

        async def drop(session: Session) -> str:
            await session.send(Drop(name, reason.strip(), self._page.host.person))
            return f"{name}: let go; it stays counted as lost"

        self._page.host.ask_run(drop)
