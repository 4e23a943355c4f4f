"""What stands beside the list: the change of one operation, what it rests on and resembles."""

from __future__ import annotations

from engines.core.types import Operation
from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import BLANK, Line, Row, line, paragraph
from studio.tui.page import Page
from studio.tui.pages.review import change_view
from studio.tui.pages.review.evidence_view import evidence_rows, record_files_text, similar_rows
from studio.tui.pages.review.loader import FindingsRequest, ReviewLoader
from studio.tui.pages.review.panes import ReviewPanes
from studio.tui.pages.review.queue import ItemQueue
from studio.tui.pages.review.view import Item, excerpt, legend_lines

_LATE_S = 0.15


class ChangePane:
    """The item under the cursor, whole, and the legend below the list."""

    def __init__(
        self, page: Page, panes: ReviewPanes, queue: ItemQueue, loader: ReviewLoader
    ) -> None:
        self.page, self.panes, self.queue, self.loader = page, panes, queue, loader
        self.mode = change_view.MODES[0]
        self.shows_all = False  # of a weight update
        self.reset()

    def reset(self) -> None:
        """Another run is shown, or none."""
        self.problems: dict[str, tuple[str, ...]] = {}  # of replies that were mended in vain
        self.lost_line = ""  # why the run's process is not heard just now
        self._made_of: tuple[object, ...] = ()  # what the panes were made of
        self._legend_of: object = None  # what the legend was made of
        self._looking_for = ""  # the operation whose findings are late, and are said to be
        self._shown: tuple[str, float] = ("", 0.0)  # operation, and since when it is looked at

    @property
    def looked_at_s(self) -> float:
        return max(0.0, round(self.page.host.clock() - self._shown[1], 3))

    def has_painted(self, item: Item) -> bool:
        token = self._token(item)
        return token is not None and token == self.panes.change.painted

    def _token(self, item: Item) -> object:
        """What a decision about it is made on; None while it is not known."""
        if item.unparsed is not None:
            return (item.id, item.unparsed)
        op = item.operation
        assert op is not None
        if not self.loader.knows_base:
            return None
        now = self.queue.texts.get(op.target or "")
        return (op.id, op.kind, op.target, op.text, op.flags, now)

    def draw(self) -> None:
        self.loader.request_base()
        item, state, panes = self.queue.item, self.page.state, self.panes
        banner = self._banner_lines()
        if item is None or state is None:
            empty = [line(("what an operation would change stands here", "dim"))]
            panes.change.show_change(None, banner or empty)
            self._show_findings(None)
            self._made_of = ()
            panes.place("", None)
            return
        self.loader.request_findings(self._findings_request(item))
        drafts = self.page.host.drafts
        draft = drafts.edits.get(item.id, "") if panes.editing is None else ""
        queue = self.queue
        made_of = (item, self.mode, self.shows_all, queue.made_of, queue.stamp, self.loader.found,
                   queue.notes.get(item.id), draft, banner, panes.widths,
                   self.problems.get(item.id), panes.opened_evidence)  # fmt: skip
        # What was found for the one before stands until this one's is there: it is a moment,
        # and drawing that nothing is known yet would cost as much as what is.
        is_early = self._is_looking(item) and self._looking_for != item.id
        about = (self.mode, self.shows_all, self.loader.found is None)
        if made_of == self._made_of:
            if not is_early:
                panes.place(item.id, about)
            return
        self._made_of = made_of
        if item.unparsed is not None:
            lines = change_view.unparsed_reply_lines(
                item.unparsed, self._place(item), panes.change.line_width,
                problems=self.problems.get(item.id, ()), draft=draft,
            )  # fmt: skip
        else:
            lines = self._change_lines(item, draft)
        op = item.operation
        has_parts = op is not None and op.kind == "modify" and not item.decision
        has_parts = has_parts and change_view.has_parts(item, self.queue.texts_without(item))
        panes.change.show_change(self._token(item), [*banner, *lines], has_parts=has_parts)
        if is_early:
            self.page.set_timer(_LATE_S, lambda: self._say_looking(item))
        else:
            self._show_findings(item)
            panes.place(item.id, about)
        if self._shown[0] != item.id:
            self._shown = (item.id, self.page.host.clock())

    def _is_looking(self, item: Item) -> bool:
        return item.operation is not None and self.loader.found is None

    def _say_looking(self, item: Item) -> None:
        """Reading takes long: what is shown of the one before would mislead."""
        if self.page.is_open and self.queue.item == item and self._is_looking(item):
            self._looking_for, self._made_of = item.id, ()
            self.draw()

    def _place(self, item: Item) -> tuple[int, int]:
        """Where it stands in the list, from 1, and how long that is."""
        return self.queue.items.index(item) + 1, len(self.queue.items)

    def _change_lines(self, item: Item, draft: str) -> list[Line]:
        state, op, found = self.page.state, item.operation, self.loader.found
        assert state is not None and op is not None
        texts = self.queue.texts_without(item)
        changes = found.changes if found is not None else None
        before, after, _ = change_view.wordings(item, texts)
        mode = self.mode
        if mode == "words" and changes is None and before and change_view.is_long(before, after):
            mode = "lines"  # until the word diff has been made
        return change_view.change_lines(
            item, texts, state, at=self._place(item), mode=mode,
            width=self.panes.change.line_width, changes=changes,
            note=self.queue.notes.get(item.id, ""), draft=draft,
            target=self.queue.target_experience(op), compact=self.panes.is_tabbed,
            pin=self.panes.signs.pinned if op.target in self.queue.pinned else "",
            uses=self.queue.target_uses(op), whole=self.shows_all, signs=self.panes.signs,
        )  # fmt: skip

    def _findings_request(self, item: Item) -> FindingsRequest | None:
        if (op := item.operation) is None or not self.loader.knows_base:
            return None
        texts = self.queue.texts_without(item)
        before, after, _ = change_view.wordings(item, texts)
        differ = bool(before) and before != after and change_view.is_long(before, after)
        return FindingsRequest(
            op, texts, self.queue.stamp, before, after, differ, self.panes.opened_evidence
        )

    def _banner_lines(self) -> list[Line]:
        """What stands above every operation: who decides, what moved, what is left to do."""
        session, state = self.page.session, self.page.state
        if session is None or state is None:
            return []
        out: list[Line] = []
        if self.panes.objection:
            text = one_line(self.panes.objection, 2_000)
            out += [*paragraph([(text, "flag")], self.panes.change.line_width), BLANK]
        if self.lost_line:
            text = f"{excerpt(self.lost_line)}: trying again; nothing is lost"
            out.append(line((text, "failed")))
        elif session.label:
            out.append(line((f"{session.label}: you look on, nothing can be decided", "flag")))
        elif session.living and not session.controls:
            who = excerpt(session.controller) or "nobody"
            out.append(line((f"{who} decides; you look on (T takes over)", "flag")))
        if state.flagged_stale is not None:
            moved = f"the library has moved to v{state.flagged_stale} under this lesson: what it"
            out.append(line((f"{moved} touched is asked again", "flag")))
        if self.loader.trouble:
            out.append(line((one_line(self.loader.trouble, 300), "failed")))
        if self.queue.is_all_decided:
            out.append(line(("all decided: c commits, u takes the last one back", "flag")))
        return out

    def draw_legend(self) -> None:
        """What the signs mean, below the list where there is room."""
        page, queue = self.page, self.queue
        session, sitting = page.session, queue.decider.sitting
        made_of = (queue.made_of, sitting.done, session and (session.controls, session.living))
        if self.panes.is_tabbed or made_of == self._legend_of:
            return
        self._legend_of = made_of
        now = "all decided: c commits" if queue.is_all_decided else ""
        if not now and session is not None and session.controls and not session.living:
            over = session.state.status == "finished"
            now = "no process: decided here" + ("; c commits" if over else ", s r resumes")
        lines = legend_lines(
            queue.items, words=page.filter_text, sort=queue.sort, done=sitting.done,
            person=page.host.person, now=now, signs=self.panes.signs,
        )  # fmt: skip
        for number, each in enumerate(lines):
            self.panes.legend.show_line(number, each)

    def _show_findings(self, item: Item | None) -> None:
        panes, found, op = self.panes, self.loader.found, item.operation if item else None
        if op is None or found is None:
            text = "what an operation rests on, and what it resembles, stands here"
            if op is not None:
                text = "looking …"
            elif item is not None:
                text = "nothing was drawn from this reply yet"
            for pane in (panes.evidence, panes.similar):
                pane.show_rows([_note(text)])
            panes.evidence.say_below()
        else:
            rows = evidence_rows(
                found.groups, panes.evidence.line_width, opened=panes.opened_evidence,
                answers=found.answers, signs=panes.signs,
            )  # fmt: skip
            if found.trouble:
                rows.insert(0, _note(one_line(found.trouble, 400), "failed"))
            nothing = "nothing else in the library is like it"
            no_rollouts = "no rollouts: it was not drawn from practice"
            if op.kind == "weights":
                nothing = "a weight update is like no experience"
                no_rollouts = "no rollout of its step is in the journal"
            panes.evidence.show_rows(rows or [_note(no_rollouts)])
            panes.evidence.say_below(excerpt(record_files_text(found.groups)))
            width, pinned = panes.similar.line_width - 2, self.queue.pinned
            deleting = {
                each.operation.target or "": each.id
                for each in self.queue.items
                if each.operation and each.operation.kind == "delete" and each.standing == "open"
            }
            near = similar_rows(found.near, width, pinned, panes.signs.pinned, deleting)
            panes.similar.show_rows(near or [_note(nothing)])
        self._show_source(op)

    def _show_source(self, op: Operation | None) -> None:
        pane, found, state = self.panes.source, self.loader.found, self.page.state
        if op is None or state is None:
            pane.show_rows([])
            return
        target = self.queue.target_experience(op)
        lines = change_view.source_lines(op, state, target, pane.line_width - 2)
        if found is not None and (files := record_files_text(found.groups)):
            lines.append(line(("records   ", "dim"), excerpt(files)))
        pane.show_rows([Row(str(n), each) for n, each in enumerate(lines)])


def _note(text: str, style: str = "dim") -> Row:
    return Row("", line((text, style)))
