"""The keys of the review page that decide, take back and commit, and those that change a wording.

Nothing counts as decided before the run has said so (`studio.review.decider`), and only what
has been painted is decided. What concerns many is shown before it is made. Wordings come from the
box or from $EDITOR; each letter is kept until a text is handed in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from shlex import quote

from textual.app import SuspendNotSupported

from engines.core.errors import StudioError
from engines.core.types import GATE, Decision, DecisionAction, Operation
from studio.review.decider import ActionResult, Decider, Pair, new_flags, renew_decision, toggle_pin
from studio.review.wording import changed_parts, flag_text, merge_decisions, text_with_parts
from studio.secrets.sanitize import sanitize
from studio.session.requests import Commit, Drop, Mend, Preview, TryOperations
from studio.session.session import Session
from studio.tui.drawing.lines import Line, paragraph
from studio.tui.page import Host
from studio.tui.pages.review.panes import Editing
from studio.tui.pages.review.queue import ChangePane
from studio.tui.pages.review.view import (
    Item,
    commit_lines,
    count_standings,
    counts_text,
    decided_lines,
    excerpt,
    has_parts,
    item_rows,
    part_rows,
    wordings,
)
from studio.tui.pages.training_view import WHOLE
from studio.tui.widgets.prompt import choose

_MERGED_UNASKED = 0.6
"""How like an experience must be that M merges into, where a person chose none."""


class DecisionKeys:
    """Decide one operation or many, take back and commit."""

    def __init__(self, change: ChangePane) -> None:
        self._change, self._page, self._panes = change, change.page, change.panes
        self._review_queue = change.queue
        self._warned_of_draft = ""  # the operation whose approval waits for a second press

    @property
    def _host(self) -> Host:
        return self._page.host

    @property
    def _decider(self) -> Decider:
        return self._review_queue.decider

    # -- what may be decided -------------------------------------------------------------------

    def require_session(self) -> Session | None:
        """The session, where this screen may decide; tells why not."""
        host, session, state = self._host, self._page.session, self._page.state
        if session is None or state is None:
            host.tell("no run is open here: 5 lists them, 0 starts one", "failed")
        elif host.is_small:
            host.tell("deciding wants 60x16: too little is seen here", "failed")
        elif session.label:
            host.tell(f"{session.label}: nothing can be decided in it", "failed")
        elif session.living and not session.controls:
            who = excerpt(session.controller) or "nobody"
            host.tell(f"{who} decides in this run; T takes over", "failed")
        # Without a process nobody else decides: what is asked waits until the record is open.
        else:
            return session
        return None

    def painted_item(self) -> Item | None:
        """What is under the cursor, where it may be decided: it has been drawn."""
        if self.require_session() is None:
            return None
        host, item = self._host, self._review_queue.item
        if item is None:
            host.tell("there is nothing to decide here")
        elif item.id in self._decider.busy:
            host.tell(f"{item.id} is being decided")
        elif item != self._review_queue.current_item(item) or not self._change.has_painted(item):
            host.tell(f"{item.id} is shown only now: press again")
            self._page.draw()
        else:
            return item
        return None

    def painted_operation(self) -> tuple[Item, Operation] | None:
        """The same, where it is an operation."""
        if (item := self.painted_item()) is None:
            return None
        if item.operation is None:
            self._host.tell(f"{item.id} is a reply to mend: e mends it, d lets it go")
            return None
        return item, item.operation

    def is_reworded(self, op: Operation) -> bool:
        """Whether it has a wording that can be changed; tells where it has none."""
        if op.kind == "weights":
            self._host.tell(f"{WHOLE}: a or r", "failed")
        return op.kind != "weights"

    def has_draft(self, name: str) -> bool:
        """Whether a wording of an operation was begun and not handed in."""
        return any(key.partition(">")[0] == name for key in self._host.drafts.edits)

    def make_decision(self, op: Operation, action: DecisionAction, reason: str = "") -> Decision:
        note = reason or self._review_queue.notes.get(op.id, "")
        person, took_s = self._host.person, self._change.looked_at_s
        return Decision(op.id, action, reason=note, reviewer=person, took_s=took_s)

    def decide(self, action: DecisionAction) -> None:
        if (here := self.painted_operation()) is None:
            return
        item, op = here
        if action == "defer" and not self.is_reworded(op):
            return
        host, standing = self._host, item.decision
        if standing is not None and (
            standing.action == action or (standing.action, action) == ("edit", "approve")
        ):
            host.tell(f"{op.id} is {item.standing} already; u takes it back")
            return
        if action == "approve" and self.has_draft(op.id) and self._warned_of_draft != op.id:
            self._warned_of_draft = op.id
            text = "you have a wording of your own: e takes it up, a again approves as proposed"
            host.tell(text, "flag")
            return
        decision = self.make_decision(op, action)
        refused = action == "approve" and standing is not None and standing.reviewer == GATE
        self.submit([(op, decision)], preview=refused)

    def submit(self, pairs: Sequence[Pair], *, preview: bool = False) -> None:
        """Queue decisions; nothing of them is shown as made before the run says so.

        With `preview` what the gate rejected is decided only where it would fit by now.
        """
        if (session := self.require_session()) is None:
            return

        async def send() -> None:
            try:
                objections = []
                if preview:
                    asked = tuple(decision for _, decision in pairs)
                    objections = [each.objection for each in await session.send(Preview(asked))]
                if any(objections):
                    text = f"it still does not fit: {objections[0]} (e rewords it, r rejects it)"
                    self._host.tell(text, "failed")
                else:
                    await self.send(session, pairs)
            finally:
                self._decider.busy -= names

        names = {op.id for op, _ in pairs}
        self._decider.busy |= names
        self._host.queue_request(send())

    async def send(self, session: Session, pairs: Sequence[Pair], text: str = "") -> bool:
        """Hand decisions in now, and forget the drafts of those that were made.

        `text` is what is told where all of them are taken; returns whether they are.
        """
        outcome = await self._decider.decide(session, pairs, self._review_queue.texts)
        drafts = self._host.drafts
        for made in outcome.made:
            drafts.notes.pop(made.id, None)
            for key in [k for k in drafts.edits if k.partition(">")[0] == made.id]:
                del drafts.edits[key]
        self._show_outcome(outcome if outcome.failed or not text else replace(outcome, text=text))
        # The message that the cursor has moved comes only after the save.
        drafts.cursor = self._panes.operations.key or drafts.cursor
        # Once it is drawn: nobody need wait for this file.
        self._page.app.call_after_refresh(drafts.save)
        return not outcome.failed

    def _show_outcome(self, outcome: ActionResult) -> None:
        """Say what came of it, and go where it leads, unless the person went elsewhere."""
        panes, queue = self._panes, self._review_queue
        self._host.tell(outcome.text, "failed" if outcome.failed else "")
        names = {made.id for made in outcome.made}
        if panes.editing is not None and panes.editing.item.id in names:
            panes.close_box()
        queue.draw()  # the list alone: the cursor leaves what was decided at once
        if panes.editing is None:
            if outcome.go_to:
                queue.go_to(outcome.go_to)
            elif panes.operations.key in names and not (outcome.failed and len(names) == 1):
                queue.go_to_undecided(1)
        self._page.draw()

    async def reject_because(self, op: Operation) -> None:
        host = self._host
        reason = await host.ask(f"reject {op.id} because:", self._review_queue.notes.get(op.id, ""))
        if reason is None or not reason.strip():
            host.tell(f"{op.id} is not rejected: no reason was given")
            return
        self.submit([(op, self.make_decision(op, "reject", reason.strip()))])

    async def ask_note(self, item: Item, op: Operation) -> None:
        """Ask for a note; it goes with the decision, or into the one that stands."""
        host, drafts = self._host, self._host.drafts
        before = self._review_queue.notes.get(op.id) or (
            item.decision.reason if item.decision else ""
        )
        text = await host.ask(f"note on {op.id}:", before)
        if text is None:
            return
        text, here = text.strip(), self._review_queue.current_item(item)
        if here is not None and here.decision is not None:
            noted = replace(renew_decision(here.decision), reason=text, reviewer=host.person)
            self.submit([(op, noted)])
            return
        drafts.notes.pop(op.id, None)
        if text:
            drafts.notes[op.id] = text
        host.tell(f"noted; it goes with the decision on {op.id}" if text else "no note")
        self._page.draw()

    def pin(self) -> None:
        """Pin what is under the cursor's target, or the similar one there; or unpin it."""
        queue, session, host = self._review_queue, self.require_session(), self._host
        item, similar = queue.item, self._panes.similar
        op = item.operation if item is not None else None
        target = similar.key if self._page.app.focused is similar else (op and op.target) or ""
        if session is None:
            return
        if target not in queue.texts:
            host.tell("p pins an experience of the library: this one is no change of any", "failed")
            return
        pinned = target in queue.pinned
        host.ask_run(partial(toggle_pin, target=target, pinned=pinned, person=host.person))

    def try_operations(self) -> None:
        """Have the run try those of the range, else what is under the cursor."""
        session, queue = self.require_session(), self._review_queue
        here = queue.range_items if queue.has_range else [queue.item]
        names = [item.id for item in here if item is not None and item.operation is not None]
        if session is None or not names:
            return
        if session.living:
            self._host.queue_request(self._try(session, names))
            return
        command = f"studio gate {quote(session.run.run)} {' '.join(names)}"
        self._host.tell(f"no process of the run goes on; in a shell: {command}")

    async def _try(self, session: Session, names: Sequence[str]) -> None:
        facts = await session.send(TryOperations(tuple(names)))
        smallest, most = facts["smallest_effect"], facts["most_rollouts"]
        sees = "" if smallest is None else f", likely to show {smallest:.2f} or more"
        text = f"trying {', '.join(names)}: at most {most} rollouts{sees}"
        if not facts["operations"]:
            text = f"{', '.join(names)}: tried already, as the library is"
        self._host.tell(text)

    def undo(self, *, again: bool) -> None:
        if (session := self.require_session()) is not None:
            self._host.queue_request(self._undo(session, again))

    async def _undo(self, session: Session, again: bool) -> None:
        decider = self._decider
        if again:
            outcome = replace(await decider.redo(session), made=())
        else:
            outcome = await decider.undo(session, self._review_queue.texts, self._host.person)
        self._show_outcome(outcome)

    # -- many at once --------------------------------------------------------------------------

    async def decide_range(self, action: DecisionAction) -> None:
        await self._decide_all(
            [item for item in self._review_queue.range_items if item.is_open and item.operation],
            action,
            "operation",
            nothing="nothing in the range is undecided",
        )
        self._review_queue.leave_range()

    async def approve_safe(self) -> None:
        safe = [item for item in self._review_queue.items if item.is_safe]
        nothing = "nothing is safe: what is open is flagged, a delete, reworded or no wording"
        if self._review_queue.is_all_decided:
            nothing = "every operation here is decided: c commits, u takes the last one back"
        await self._decide_all(safe, "approve", "safe operation", nothing=nothing)

    async def _decide_all(
        self, chosen: Sequence[Item], action: DecisionAction, what: str, *, nothing: str
    ) -> None:
        """Decide what was listed and left ticked, and still is as it was when it was listed."""
        host, word = self._host, "Approve" if action == "approve" else "Reject"
        if self.require_session() is None:
            return
        if action == "approve":  # nor is what somebody has begun to reword approved in passing
            chosen = [item for item in chosen if not self.has_draft(item.id)]
        if not chosen:
            host.tell(nothing)
            return
        since = host.clock()
        left = await choose(
            self._page.app,
            lambda n, of: f"{word} {n}{f' of {of}' * (n < of)} {what}{'s' * (of > 1)}?",
            lambda width: item_rows(chosen, self._review_queue.texts_without, width),
            enter=f"{word.lower()} what is ticked",
        )
        if left is None:
            host.tell("nothing was decided")
            return
        now = {item.id: item for item in self._review_queue.current_items()}
        took_s = round(max(0.0, host.clock() - since) / len(left), 3)
        pairs = [
            (op, replace(self.make_decision(op, action), took_s=took_s))
            for item in chosen
            if item.id in left and now.get(item.id) == item and (op := item.operation) is not None
            and op.id not in self._decider.busy
        ]  # fmt: skip
        self.submit(pairs)

    async def commit(self, session: Session) -> None:
        """Commit; after a look at it where something is left undecided or out of sight."""
        queue, found = self._review_queue, self._review_queue.current_items()
        waiting = [i.operation for i in found if i.operation is not None and i.is_open]
        if not any(item.operation for item in found):
            self._host.tell("there is nothing to commit")
        elif any(op.kind == "weights" for op in waiting):
            self._host.tell(f"{WHOLE}, and not put off: a or r, then c", "failed")
        elif session.state.undecided_operations or queue.hidden_count(found):
            # Not awaited: requests come in turn, and the person may take long to answer.
            asks = self._confirm_commit(session)
            self._page.run_worker(asks)
        else:
            await self._send_commit(session, dict(session.state.decisions))

    async def _confirm_commit(self, session: Session) -> None:
        host, queue = self._host, self._review_queue
        await host.wait_for_requests()  # what was asked in the same breath
        found, shown = queue.current_items(), dict(session.state.decisions)
        left, hidden = len(session.state.undecided_operations), queue.hidden_count(found)
        title = f"Commit, with {left} undecided?" if left else f"Commit, with {hidden} hidden?"
        counts, signs = commit_lines(session.state, found, hidden), self._panes.signs

        def lines(width: int) -> list[Line]:
            decided = decided_lines(found, queue.texts_without, width, signs)
            return [row for each in counts for row in paragraph(each, width, " " * 11)] + [*decided]

        if not await host.confirm(title, lines, {"enter": "commits"}):
            host.tell("nothing was committed")
            return
        host.queue_request(self._send_commit(session, shown))

    async def _send_commit(self, session: Session, shown: Mapping[str, Decision]) -> None:
        """Commit what was shown, and nothing else."""
        host, queue = self._host, self._review_queue
        if shown != session.state.decisions:
            host.tell("something else is decided by now: c shows it again", "failed")
            return
        counts = count_standings(queue.current_items())
        decided = {k: v for k, v in counts.items() if v and k not in ("open", "later")}
        answer = await session.send(Commit(session.state.step, session.who))
        host.tell(f"{counts_text(decided)}; {answer}" if decided else answer)
        host.drafts.save()
        self._page.draw()


class ReviewKeys(DecisionKeys):
    """The same, and edit, merge, mend a reply or let it go."""

    def __init__(self, change: ChangePane) -> None:
        super().__init__(change)
        self.in_editor: Callable[[str], str | None] = self._run_editor

    # -- beginning -----------------------------------------------------------------------------

    def edit(self, *, in_editor: bool) -> None:
        """Change the wording of what is under the cursor, in the box or in $EDITOR."""
        item = self.painted_item()
        if item is None or not (item.operation is None or self.is_reworded(item.operation)):
            return
        editing = self._make_editing(item)
        work = self._edit_in_editor(editing) if in_editor else self._open_box(editing)
        self._page.run_worker(work)

    def _make_editing(self, item: Item) -> Editing:
        """What editing an item begins with; also what is to be kept or deleted can be reworded."""
        if item.unparsed is not None:
            return Editing(item, item.unparsed.reply)
        op = item.operation
        assert op is not None
        if item.standing == "edited" and item.decision is not None:
            made = item.decision
            return Editing(item, made.text or op.text, made.kind, made.target)
        if not op.text:
            now = self._review_queue.texts_without(item).get(op.target or "", "")
            return Editing(item, now, "modify", op.target)
        return Editing(item, op.text)

    def mark(self) -> None:
        """Mark what is under the cursor for a merge, or take the mark away.

        Where the change has the focus, choose among its parts.
        """
        here, queue = self.painted_operation(), self._review_queue
        if here is None or not self.is_reworded(here[1]):
            return
        if self._page.app.focused is self._panes.change:
            asks = self.choose_parts(here[0])
            self._page.run_worker(asks)
            return
        if not here[1].text:
            self._host.tell(f"a {here[1].kind} has no wording to merge")
            return
        queue.toggle_mark(here[0].id)
        n = len(queue.marked_items)
        text = f"{n} marked: M merges them" if n > 1 else "1 marked: mark another one, then M"
        self._host.tell(text if n else "none is marked")

    async def choose_parts(self, item: Item) -> None:
        """Take some of the places at which a modify changes a wording; the result is an edit."""
        host, texts = self._host, self._review_queue.texts_without(item)
        before, after, _ = wordings(item, texts)
        if not has_parts(item, texts):
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
            self._submit(self._make_editing(item), " ".join(text.split()), anyway=False)

    def merge(self) -> None:
        """Edit a wording that takes in those that are marked, or what the library has already."""
        if marked := self._review_queue.marked_items:
            self._merge_marked(marked)
        else:
            self._merge_into_similar()

    def _merge_marked(self, marked: Sequence[Item]) -> None:
        host = self._host
        if self.require_session() is None:
            return
        if len(marked) < 2:
            host.tell("1 marked: mark another one, then M; esc takes the mark away")
            return
        # A modify keeps its target, into which the others go; else the first one is kept.
        first = next((one for one in marked if one.operation and one.operation.target), marked[0])
        others = tuple(one for one in marked if one is not first)
        texts = [wordings(one, self._review_queue.texts_without(one))[1] for one in marked]
        made = first.decision if first.standing == "edited" else None
        kind, target = (made.kind, made.target) if made is not None else (None, None)
        editing = Editing(first, " ".join(texts), kind, target, others)
        self._review_queue.go_to(first.id)
        self._page.run_worker(self._open_box(editing))

    def _merge_into_similar(self) -> None:
        here = self.painted_operation()
        if here is None or not self.is_reworded(here[1]):
            return
        item, op = here
        host, found, similar = self._host, self._change.loader.found, self._panes.similar
        near = {name: text for name, _, text in found.near} if found is not None else {}
        into = similar.key if self._page.app.focused is similar else ""
        if into not in near and found is not None:  # the likeliest, where that is like enough
            into = next((name for name, score, _ in found.near if score >= _MERGED_UNASKED), "")
        if not op.text or into not in near:
            host.tell("M merges two that are marked (space), or into one chosen in Similar")
            return
        editing = Editing(item, f"{near[into]} {op.text}", "modify", into)
        self._page.run_worker(self._open_box(editing))

    # -- the box -------------------------------------------------------------------------------

    async def _open_box(self, editing: Editing, text: str | None = None) -> None:
        host, unparsed = self._host, editing.item.unparsed
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
        drafts, text = self._host.drafts, self._panes.box.text
        if text.strip() and text != sanitize(editing.before):
            drafts.edits[editing.draft_key] = text
        else:
            drafts.edits.pop(editing.draft_key, None)
        self._panes.forget_objection(changed=True)

    def answer_question(self, *, goes_back: bool) -> None:
        """A key came while the text in the box may not change."""
        if goes_back:
            self._panes.forget_objection()
        else:
            self._host.tell("nothing was typed: a question or a check is open", "flag")

    def leave_box(self) -> None:
        if (editing := self._panes.editing) is None:
            return
        kept = editing.draft_key in self._host.drafts.edits
        self._panes.close_box()
        self._host.tell(
            "kept for later; the same key goes on with it" if kept else "left as it was"
        )
        self._page.draw()

    # -- handing in ----------------------------------------------------------------------------

    def hand_in(self, text: str, *, anyway: bool) -> None:
        """The box was handed in; `anyway`: also where something new speaks against it."""
        editing = self._panes.editing
        if editing is None or not self._submit(editing, text, anyway=anyway):
            self._panes.box.release()

    def _submit(self, editing: Editing, text: str, *, anyway: bool) -> bool:
        """Ask the run to take a text; False where that is not even asked."""
        session, item = self.require_session(), editing.item
        if session is None:
            return False
        host, busy, op = self._host, self._decider.busy, item.operation
        names = {item.id, *(one.id for one in editing.others)}
        is_changed = any(one != self._review_queue.current_item(one) for one in editing.others)
        if is_changed or names & busy or not text.strip():
            why = "nothing is written, so nothing is decided"
            if text.strip():
                why = "one of them has changed or is being decided: esc, and begin again"
            host.tell(why, "failed")
            return False
        if op is None:
            busy.add(item.id)
            host.queue_request(self._resubmit_reply(session, editing, text))
        elif text == sanitize(op.text) and not (editing.kind or item.decision or editing.others):
            # Nothing was changed.
            self.submit([(op, self.make_decision(op, "approve"))])
        else:
            plain = self.make_decision(op, "edit")
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
            if await self.send(session, pairs, text) and editing.others:
                self._review_queue.forget_marks()
        finally:
            self._decider.busy -= {op.id, *(one.id for one in editing.others)}
            if not self._panes.box.asks:
                self._panes.box.release()

    async def _object(
        self, editing: Editing, wording: str | None, text: str, *, asks: bool = False
    ) -> None:
        """Say what speaks against a text; one that came from an editor is shown in the box."""
        if self._panes.editing is None:
            await self._open_box(editing, wording)
        self._panes.object(text, asks=asks)
        self._host.tell(excerpt(text), "flag")
        self._page.draw()

    # -- in $EDITOR ----------------------------------------------------------------------------

    async def _edit_in_editor(self, editing: Editing) -> None:
        host, drafts = self._host, self._host.drafts
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
        host, drafts, name = self._host, self._host.drafts, editing.item.id
        try:
            problems = (await session.send(Mend(name, text, host.person))).problems
        finally:
            self._decider.busy.discard(name)
            self._panes.box.release()
        if problems:
            self._change.problems[name], drafts.edits[name] = problems, text
            await self._object(editing, text, f"still not understood: {'; '.join(problems)}")
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
        item = self.painted_item()
        if item is not None and item.unparsed is not None:
            self._page.run_worker(self._drop_reply(item.id))
        elif item is not None:
            text = "only a reply that could not be understood is let go; r rejects this"
            self._host.tell(text)

    async def _drop_reply(self, name: str) -> None:
        reason = await self._host.ask(f"let {name} go because:")
        if reason is None or not reason.strip():
            self._host.tell(f"{name} stays: no reason was given")
            return

        async def drop(session: Session) -> str:
            await session.send(Drop(name, reason.strip(), self._host.person))
            return f"{name}: let go; it stays counted as lost"

        self._host.ask_run(drop)
