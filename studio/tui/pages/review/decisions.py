"""The keys of the review page that decide, take back and commit, and those that change a wording.

Nothing counts as decided before the run has said so (`studio.review.decider`), and only what
has been painted is decided. What concerns many is shown before it is made. Wordings come from the
box or from $EDITOR; each letter is kept until a text is handed in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from shlex import quote
from typing import ClassVar

from textual.app import SuspendNotSupported
from textual.binding import BindingType

from engines.core.errors import StudioError
from engines.core.types import Decision, DecisionAction, Flag, Operation
from studio.review import decider, undo, wording
from studio.review.decider import Decider, Pair
from studio.secrets.sanitize import sanitize
from studio.session.requests import Commit, Drop, Mend, TryOperations
from studio.session.session import Session
from studio.tui.drawing.lines import Line, paragraph
from studio.tui.page import Page
from studio.tui.pages.review import view
from studio.tui.pages.review.panes import Editing, ReviewPanes
from studio.tui.pages.review.queue import ChangePane, ItemQueue, ReviewLoader
from studio.tui.pages.review.view import Item
from studio.tui.pages.training_view import WHOLE
from studio.tui.widgets.prompt import choose

_MERGED_UNASKED = 0.6
"""How like an experience must be that M merges into, where a person chose none."""


class DecidingPage(Page):
    """Decide one operation or many, take back and commit."""

    BINDINGS: ClassVar[list[BindingType]] = []  # those of its scope are the whole page's

    def __init__(self) -> None:
        super().__init__()
        self.shown = ReviewPanes(self)
        self.loader = ReviewLoader(self)
        self.queue = ItemQueue(self, self.shown, self.loader)
        self.change = ChangePane(self, self.shown, self.queue, self.loader)
        self._warned_of_draft = ""  # the operation whose approval waits for a second press

    @property
    def decider(self) -> Decider:
        return self.queue.decider

    # -- what may be decided -------------------------------------------------------------------

    def require_session(self) -> Session | None:
        """The session, where this screen may decide; tells why not."""
        host, session, state = self.host, self.session, self.state
        if session is None or state is None:
            host.tell("no run is open here: 5 lists them, 0 starts one", "failed")
        elif host.is_small:
            host.tell("deciding wants 60x16: too little is seen here", "failed")
        elif session.label:
            host.tell(f"{session.label}: nothing can be decided in it", "failed")
        elif session.living and not session.controls:
            who = view.excerpt(session.controller) or "nobody"
            host.tell(f"{who} decides in this run; T takes over", "failed")
        # Without a process nobody else decides: what is asked waits until the record is open.
        else:
            return session
        return None

    def painted_item(self) -> Item | None:
        """What is under the cursor, where it may be decided: it has been drawn."""
        if self.require_session() is None:
            return None
        item = self.queue.item
        if item is None:
            self.host.tell("there is nothing to decide here")
        elif item.id in self.decider.busy:
            self.host.tell(f"{item.id} is being decided")
        elif item != self.queue.current_item(item) or item != self.shown.change.painted:
            self.host.tell(f"{item.id} is shown only now: press again")
            self.draw()
        else:
            return item
        return None

    def painted_operation(self) -> tuple[Item, Operation] | None:
        """The same, where it is an operation."""
        if (item := self.painted_item()) is None:
            return None
        if item.operation is None:
            self.host.tell(f"{item.id} is a reply to mend: e mends it, d lets it go")
            return None
        return item, item.operation

    def is_reworded(self, op: Operation) -> bool:
        """Whether it has a wording that can be changed; tells where it has none."""
        if op.kind == "weights":
            self.host.tell(f"{WHOLE}: a or r", "failed")
        return op.kind != "weights"

    def has_draft(self, name: str) -> bool:
        """Whether a wording of an operation was begun and not handed in."""
        return any(key.partition(">")[0] == name for key in self.host.drafts.edits)

    def make_decision(self, op: Operation, action: DecisionAction, reason: str = "") -> Decision:
        note = reason or self.queue.notes.get(op.id, "")
        person, took_s = self.host.person, self.change.looked_at_s
        return Decision(op.id, action, reason=note, reviewer=person, took_s=took_s)

    def decide(self, action: DecisionAction) -> None:
        if (here := self.painted_operation()) is None:
            return
        item, op = here
        if action == "defer" and not self.is_reworded(op):
            return
        standing = item.decision.action if item.decision is not None else None
        if standing == action or (standing, action) == ("edit", "approve"):
            self.host.tell(f"{op.id} is {item.standing} already; u takes it back")
            return
        if action == "approve" and self.has_draft(op.id) and self._warned_of_draft != op.id:
            self._warned_of_draft = op.id
            text = "you have a wording of your own: e takes it up, a again approves as proposed"
            self.host.tell(text, "flag")
            return
        self.submit([(op, self.make_decision(op, action))])

    def submit(self, pairs: Sequence[Pair]) -> None:
        """Queue decisions; nothing of them is shown as made before the run says so."""
        if (session := self.require_session()) is not None:
            self.decider.busy |= {op.id for op, _ in pairs}
            self.host.queue_request(self.send(session, pairs))

    async def send(self, session: Session, pairs: Sequence[Pair], text: str = "") -> bool:
        """Hand decisions in now, and forget the drafts of those that were made.

        `text` is what is told where all of them are taken; returns whether they are.
        """
        outcome = await self.decider.decide(session, pairs, self.queue.draft.texts)
        drafts = self.host.drafts
        for entry in outcome.made:
            drafts.notes.pop(entry.id, None)
            for key in [key for key in drafts.edits if key.partition(">")[0] == entry.id]:
                del drafts.edits[key]
        self._show_outcome(outcome if outcome.failed or not text else replace(outcome, text=text))
        # The message that the cursor has moved comes only after the save.
        drafts.cursor = self.shown.operations.key or drafts.cursor
        # Once it is drawn: nobody need wait for this file.
        self.app.call_after_refresh(drafts.save)
        return not outcome.failed

    def _show_outcome(self, outcome: undo.ActionResult) -> None:
        """Say what came of it, and go where it leads, unless the person went elsewhere."""
        panes, queue = self.shown, self.queue
        self.host.tell(outcome.text, "failed" if outcome.failed else "")
        names = {entry.id for entry in outcome.made}
        if panes.editing is not None and panes.editing.item.id in names:
            panes.close_box()
        queue.draw()  # the list alone: the cursor leaves what was decided at once
        if panes.editing is None:
            if outcome.go_to:
                queue.go_to(outcome.go_to)
            elif panes.operations.key in names and not (outcome.failed and len(names) == 1):
                queue.go_to_undecided(1)
        self.draw()

    async def reject_because(self, item: Item, op: Operation) -> None:
        note = self.queue.notes.get(op.id, "")
        reason = (await self.host.ask(f"reject {op.id} because:", note) or "").strip()
        if reason:
            self.submit([(op, self.make_decision(op, "reject", reason))])
        else:
            self.host.tell(f"{op.id} is not rejected: no reason was given")

    async def ask_note(self, item: Item, op: Operation) -> None:
        """Ask for a note; it goes with the decision, or into the one that stands."""
        host, notes = self.host, self.host.drafts.notes
        before = item.decision.reason if item.decision else ""
        text = await host.ask(f"note on {op.id}:", self.queue.notes.get(op.id) or before)
        if text is None:
            return
        text, current = text.strip(), self.queue.current_item(item)
        if current is not None and current.decision is not None:
            again = undo.renew_decision(current.decision)
            self.submit([(op, replace(again, reason=text, reviewer=host.person))])
            return
        notes.pop(op.id, None)
        if text:
            notes[op.id] = text
        host.tell(f"noted; it goes with the decision on {op.id}" if text else "no note")
        self.draw()

    def action_pin(self) -> None:
        """Pin what is under the cursor's target, or the similar one there; or unpin it."""
        queue, host, similar = self.queue, self.host, self.shown.similar
        op = queue.item.operation if queue.item is not None else None
        target = similar.key if self.app.focused is similar else (op and op.target) or ""
        if self.require_session() is None:
            return
        if target not in queue.draft.texts:
            host.tell("p pins an experience of the library: this one is no change of any", "failed")
            return
        pinned = target in queue.draft.pinned
        toggle = partial(decider.toggle_pin, target=target, pinned=pinned, person=host.person)
        host.ask_run(toggle)

    def action_try(self) -> None:
        """Have the run try those of the range, else what is under the cursor."""
        session, queue = self.require_session(), self.queue
        chosen = queue.range_items if queue.has_range else [queue.item]
        names = [item.id for item in chosen if item is not None and item.operation is not None]
        if session is None or not names:
            return
        if session.living:
            self.host.queue_request(self._try(session, names))
            return
        command = f"studio gate {quote(session.run.run)} {' '.join(names)}"
        self.host.tell(f"no process of the run goes on; in a shell: {command}")

    async def _try(self, session: Session, names: Sequence[str]) -> None:
        facts = await session.send(TryOperations(tuple(names)))
        smallest, most = facts["smallest_effect"], facts["most_rollouts"]
        sees = "" if smallest is None else f", likely to show {smallest:.2f} or more"
        text = f"trying {', '.join(names)}: at most {most} rollouts{sees}"
        if not facts["operations"]:
            text = f"{', '.join(names)}: tried already, as the library is"
        self.host.tell(text)

    def action_undo(self, again: bool = False) -> None:
        if (session := self.require_session()) is not None:
            self.host.queue_request(self._undo(session, again))

    async def _undo(self, session: Session, again: bool) -> None:
        if again:
            outcome = replace(await self.decider.sitting.redo(session), made=())
        else:
            texts = self.queue.draft.texts
            outcome = await self.decider.sitting.undo(session, texts, self.host.person)
        self._show_outcome(outcome)

    # -- many at once --------------------------------------------------------------------------

    async def decide_range(self, action: DecisionAction) -> None:
        chosen = [item for item in self.queue.range_items if item.is_open and item.operation]
        nothing = "nothing in the range is undecided"
        await self._decide_all(chosen, action, "operation", nothing=nothing)
        self.queue.leave_range()

    async def approve_safe(self) -> None:
        safe = [item for item in self.queue.items if item.is_safe]
        nothing = "nothing is safe: what is open is flagged, a delete, reworded or no wording"
        if self.queue.is_all_decided:
            nothing = "every operation here is decided: c commits, u takes the last one back"
        await self._decide_all(safe, "approve", "safe operation", nothing=nothing)

    async def _decide_all(
        self, chosen: Sequence[Item], action: DecisionAction, what: str, *, nothing: str
    ) -> None:
        """Decide what was listed and left ticked, and still is as it was when it was listed."""
        host, word = self.host, "Approve" if action == "approve" else "Reject"
        if self.require_session() is None:
            return
        if action == "approve":  # nor is what somebody has begun to reword approved in passing
            chosen = [item for item in chosen if not self.has_draft(item.id)]
        if not chosen:
            host.tell(nothing)
            return
        since = host.clock()
        ticked = await choose(
            self.app,
            lambda n, of: f"{word} {n}{f' of {of}' * (n < of)} {what}{'s' * (of > 1)}?",
            lambda width: view.item_rows(chosen, width),
            enter=f"{word.lower()} what is ticked",
        )
        if ticked is None:
            host.tell("nothing was decided")
            return
        took_s = round(max(0.0, host.clock() - since) / len(ticked), 3)
        pairs: list[Pair] = []
        for item in chosen:
            is_as_listed = (
                self.queue.current_item(item) == item and item.id not in self.decider.busy
            )
            if item.id in ticked and is_as_listed and item.operation is not None:
                decision = replace(self.make_decision(item.operation, action), took_s=took_s)
                pairs.append((item.operation, decision))
        self.submit(pairs)

    def commit(self) -> None:
        """Commit what is decided; its key is heard on every page."""
        if (session := self.require_session()) is not None:
            # In turn: decisions whose keys came before it belong to it, those after it do not.
            self.host.queue_request(self._commit(session))

    async def _commit(self, session: Session) -> None:
        """Commit; after a look at it where something is left undecided."""
        state = session.state
        undecided = state.undecided_operations
        if not state.operations:
            self.host.tell("there is nothing to commit")
        elif any(op.kind == "weights" for op in undecided):
            self.host.tell(f"{WHOLE}, and not put off: a or r, then c", "failed")
        elif undecided:
            # Not awaited: requests come in turn, and the person may take long to answer.
            self.run_worker(self._confirm_commit(session))
        else:
            await self._send_commit(session, dict(state.decisions))

    async def _confirm_commit(self, session: Session) -> None:
        host = self.host
        await host.wait_for_requests()  # what was asked in the same breath
        self.queue.draw()
        listed, standing = self.queue.everything, dict(session.state.decisions)
        counts = view.commit_lines(session.state, listed)

        def lines(width: int) -> list[Line]:
            rows = [row for each in counts for row in paragraph(each, width, " " * 11)]
            return [*rows, *view.decided_lines(listed, width)]

        title = f"Commit, with {len(session.state.undecided_operations)} undecided?"
        if await host.confirm(title, lines, {"enter": "commits"}):
            host.queue_request(self._send_commit(session, standing))
        else:
            host.tell("nothing was committed")

    async def _send_commit(self, session: Session, standing: Mapping[str, Decision]) -> None:
        """Commit what was shown, and nothing else."""
        host = self.host
        if standing != session.state.decisions:
            host.tell("something else is decided by now: c shows it again", "failed")
            return
        counts = view.count_standings(view.items(session.state))
        decided = {k: v for k, v in counts.items() if k not in ("open", "later")}
        answer = await session.send(Commit(session.state.step, session.who))
        host.tell(f"{view.counts_text(decided)}; {answer}" if decided else answer)
        host.drafts.save()
        self.draw()


class RewordingPage(DecidingPage):
    """The same, and edit, merge, mend a reply or let it go."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self) -> None:
        super().__init__()
        self.in_editor: Callable[[str], str | None] = self._run_editor

    # -- beginning -----------------------------------------------------------------------------

    def edit(self, *, in_editor: bool) -> None:
        """Change the wording of what is under the cursor, in the box or in $EDITOR."""
        item = self.painted_item()
        if item is None or not (item.operation is None or self.is_reworded(item.operation)):
            return
        editing = self._make_editing(item)
        self.run_worker(self._edit_in_editor(editing) if in_editor else self._open_box(editing))

    def _make_editing(self, item: Item) -> Editing:
        """What editing an item begins with; also what is to be kept or deleted can be reworded."""
        if item.unparsed is not None:
            return Editing(item, item.unparsed.reply)
        wanted, decision = item.wanted, item.decision
        if not wanted.text:
            return Editing(item, item.before, "modify", wanted.target)
        if decision is not None and item.standing == "edited":
            return Editing(item, wanted.text, decision.kind, decision.target)
        return Editing(item, wanted.text)

    def mark(self) -> None:
        """Mark what is under the cursor for a merge, or take the mark away.

        Where the change has the focus, choose among its parts.
        """
        here = self.painted_operation()
        if here is None or not self.is_reworded(here[1]):
            return
        if self.app.focused is self.shown.change:
            self.run_worker(self.choose_parts(here[0]))
            return
        if not here[1].text:
            self.host.tell(f"a {here[1].kind} has no wording to merge")
            return
        self.queue.toggle_mark(here[0].id)
        n = len(self.queue.marked_items)
        text = f"{n} marked: M merges them" if n > 1 else "1 marked: mark another one, then M"
        self.host.tell(text if n else "none is marked")

    async def choose_parts(self, item: Item) -> None:
        """Take some of the places at which a modify changes a wording; the result is an edit."""
        if not view.has_parts(item):
            self.host.tell("its change has no parts that could be chosen: e edits it")
            return
        parts = wording.changed_parts(item.before, item.after)
        ticked = await choose(
            self.app,
            lambda n, of: f"Take {n} of {of} parts of {item.id}?",
            lambda width: view.part_rows(item.before, item.after, parts, width),
            enter="take what is ticked",
        )
        if ticked is None:
            self.host.tell("nothing was decided")
        elif self.queue.current_item(item) != item:
            self.host.tell("it was decided meanwhile, or has changed", "failed")
        else:
            numbers = {int(name) for name in ticked}
            text = wording.text_with_parts(item.before, item.after, numbers)
            self._submit_text(self._make_editing(item), " ".join(text.split()), anyway=False)

    def merge(self) -> None:
        """Edit a wording that takes in those that are marked, or what the library has already."""
        if marked := self.queue.marked_items:
            self._merge_marked(marked)
        else:
            self._merge_into_similar()

    def _merge_marked(self, marked: Sequence[Item]) -> None:
        if self.require_session() is None:
            return
        if len(marked) < 2:
            self.host.tell("1 marked: mark another one, then M; esc takes the mark away")
            return
        # A modify keeps its target, into which the others go; else the first one is kept.
        first = next((one for one in marked if one.operation and one.operation.target), marked[0])
        others = tuple(one for one in marked if one is not first)
        text = " ".join(one.after for one in marked)
        editing = replace(self._make_editing(first), before=text, others=others)
        self.queue.go_to(first.id)
        self.run_worker(self._open_box(editing))

    def _merge_into_similar(self) -> None:
        here = self.painted_operation()
        if here is None or not self.is_reworded(here[1]):
            return
        item, op = here
        findings, similar = self.loader.find(item), self.shown.similar
        chosen = similar.key if self.app.focused is similar else ""
        into: dict[str, str] = {}
        for name, score, text in findings.near if findings is not None else ():
            # The likeliest, where that is like enough.
            if name == chosen or (not chosen and not into and score >= _MERGED_UNASKED):
                into[name] = text
        if not op.text or not into:
            text = "M merges two that are marked (space), or into one chosen in Similar"
            self.host.tell(text)
            return
        ((name, text),) = into.items()
        self.run_worker(self._open_box(Editing(item, f"{text} {op.text}", "modify", name)))

    # -- the box -------------------------------------------------------------------------------

    async def _open_box(self, editing: Editing, text: str | None = None) -> None:
        host, unparsed = self.host, editing.item.unparsed
        if unparsed is not None:
            try:
                whole = await self.loader.load_reply(unparsed)
                editing = replace(editing, before=whole or editing.before)
            except StudioError as error:
                host.tell(str(error), "failed")
        if text is None:
            text = host.drafts.edits.get(editing.draft_key)
            if text is not None:
                host.tell("as you left it; esc keeps it again")
        self.shown.open_box(editing, editing.before if text is None else text)
        self.draw()
        host.draw_chrome()  # other keys are heard now

    def keep_draft(self) -> None:
        """Each letter is kept, so that a line that drops loses two seconds of typing at most."""
        if (editing := self.shown.editing) is None:
            return
        edits, text = self.host.drafts.edits, self.shown.box.text
        if text.strip() and text != sanitize(editing.before):
            edits[editing.draft_key] = text
        else:
            edits.pop(editing.draft_key, None)
        self.shown.forget_objection(changed=True)

    def leave_box(self) -> None:
        if (editing := self.shown.editing) is None:
            return
        is_kept = editing.draft_key in self.host.drafts.edits
        self.shown.close_box()
        text = "kept for later; the same key goes on with it" if is_kept else "left as it was"
        self.host.tell(text)
        self.draw()

    # -- handing in ----------------------------------------------------------------------------

    def hand_in(self, text: str, *, anyway: bool) -> None:
        """The box was handed in; `anyway`: also where something new speaks against it."""
        editing = self.shown.editing
        if editing is None or not self._submit_text(editing, text, anyway=anyway):
            self.shown.box.release()

    def _submit_text(self, editing: Editing, text: str, *, anyway: bool) -> bool:
        """Ask the run to take a text; False where that is not even asked."""
        session, item = self.require_session(), editing.item
        if session is None:
            return False
        host, busy, op = self.host, self.decider.busy, item.operation
        names = {item.id, *(one.id for one in editing.others)}
        if not text.strip():
            host.tell("nothing is written, so nothing is decided", "failed")
            return False
        if names & busy or any(one != self.queue.current_item(one) for one in editing.others):
            text = "one of them has changed or is being decided: esc, and begin again"
            host.tell(text, "failed")
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
        others = [one.operation for one in editing.others if one.operation is not None]
        names = [other.id for other in others]
        objection, new = "", tuple[Flag, ...]()
        try:
            if not anyway:
                objection, new = await decider.check_wording(session, op, decision, names)
            if objection:
                await self._object(editing, decision.text, f"does not fit: {objection}")
            elif new:
                flags = "; ".join(wording.flag_text(flag) for flag in new)
                text = f"new FLAG: {flags}. Approve it anyway? (y, or e to go on editing)"
                await self._object(editing, decision.text, text, asks=True)
            else:
                pairs = wording.merge_decisions(op, others, decision)
                merged = ", ".join(each.id for each, _ in pairs)
                text = f"merged {merged} into one wording; u undoes" if others else ""
                if await self.send(session, pairs, text) and others:
                    self.queue.forget_marks()
        finally:
            self.decider.busy -= {op.id, *names}
            if not self.shown.box.asks:
                self.shown.box.release()

    async def _object(
        self, editing: Editing, text: str | None, objection: str, *, asks: bool = False
    ) -> None:
        """Say what speaks against a text; one that came from an editor is shown in the box."""
        if self.shown.editing is None:
            await self._open_box(editing, text)
        self.shown.object(objection, asks=asks)
        self.host.tell(view.excerpt(objection), "flag")
        self.draw()

    # -- in $EDITOR ----------------------------------------------------------------------------

    async def _edit_in_editor(self, editing: Editing) -> None:
        edits, unparsed = self.host.drafts.edits, editing.item.unparsed
        before = edits.get(editing.draft_key, editing.before)
        try:
            if unparsed is None:
                text = " ".join((self.in_editor(before) or "").split())
            else:
                from studio.session.unparsed_replies import with_comments, without_comments

                if editing.draft_key not in edits:
                    before = await self.loader.load_reply(unparsed) or before
                opened = self.in_editor(with_comments(before, unparsed.reasons))
                text = without_comments(opened or "").strip()
        except (StudioError, SuspendNotSupported) as error:
            self.host.tell(str(error) or "this terminal cannot be lent to an editor", "failed")
            return
        if not text or text.split() == sanitize(before).split():
            what = "changed" if text else "saved"
            self.host.tell(f"nothing was {what}, so nothing is decided")
            return
        edits[editing.draft_key] = text
        self._submit_text(editing, text, anyway=False)

    def _run_editor(self, text: str) -> str | None:
        from studio.review.editor import edit_text

        with self.app.suspend():
            return edit_text(text)

    # -- replies to mend -----------------------------------------------------------------------

    async def _resubmit_reply(self, session: Session, editing: Editing, text: str) -> None:
        drafts, name = self.host.drafts, editing.item.id
        try:
            problems = (await session.send(Mend(name, text, self.host.person))).problems
        finally:
            self.decider.busy.discard(name)
            self.shown.box.release()
        if problems:
            self.change.problems[name], drafts.edits[name] = problems, text
            await self._object(editing, text, f"still not understood: {'; '.join(problems)}")
        else:
            self.change.problems.pop(name, None)
            drafts.edits.pop(name, None)
            if self.shown.editing is not None and self.shown.editing.item.id == name:
                self.shown.close_box()
            self.host.tell(f"{name}: mended; what it holds is to be decided like all others")
            drafts.save()
        self.draw()

    def drop(self) -> None:
        """Let a reply go that cannot be understood."""
        item = self.painted_item()
        if item is not None and item.unparsed is not None:
            self.run_worker(self._drop_reply(item.id))
        elif item is not None:
            text = "only a reply that could not be understood is let go; r rejects this"
            self.host.tell(text)

    async def _drop_reply(self, name: str) -> None:
        reason = (await self.host.ask(f"let {name} go because:") or "").strip()
        if not reason:
            self.host.tell(f"{name} stays: no reason was given")
            return

        async def drop(session: Session) -> str:
            await session.send(Drop(name, reason, self.host.person))
            return f"{name}: let go; it stays counted as lost"

        self.host.ask_run(drop)
