"""The text panes of Inspect: parts of a rollout, which are folded, and what is found in them."""

from __future__ import annotations

from collections.abc import Collection

from textual.content import Content

from studio.review.divergence import MOST_OF_A_SIDE, Divergence, choose_pair
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.lines import Row, line
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.loader import GroupRecords
from studio.tui.pages.inspect.view import GroupSummary, MarkedParts, Part
from studio.tui.widgets.row_list import RowList


class Transcripts:
    def __init__(self, records: GroupRecords) -> None:
        self._records = records
        self.wanted = ""  # what is searched for
        self.shows_calls = False  # tokens and times of each call
        self._turned: frozenset[str] = frozenset()  # parts that a person folded or unfolded
        self._hit = 0
        self._group = ""  # whose parts are kept
        self._parts: dict[str, tuple[object, tuple[Part, ...]]] = {}  # and what they are made of
        self._drawn: dict[RowList, object] = {}  # what each pane was drawn from
        self.shows_parting = False
        self._compared: tuple[object, tuple[str, str, Divergence] | None] = (None, None)

    def forget_rows(self) -> None:
        self._drawn.clear()

    def parts(self, name: str, group: GroupSummary) -> tuple[Part, ...]:
        whole, live = self._records.rollouts.get(name), self._records.live
        if whole is None:
            return view.live_parts(live[name]) if name in live else ()
        version = group.library_version
        experiences = self._records.experiences.get(version)
        made_of = (whole, version, experiences, self.shows_calls)
        before, parts = self._parts.get(name, (None, ()))
        if before != made_of:  # sanitized once, not with every key
            parts = view.rollout_parts(whole, version, experiences, calls=self.shows_calls)
            self._parts[name] = made_of, parts
        return parts

    def compare(self, group: GroupSummary) -> tuple[str, str, Divergence] | None:
        """A winner and a loser that part late, the chosen rollout among them, and where."""
        sides = view.winners_and_losers(group.members, self._records.chosen)
        names = [side[:MOST_OF_A_SIDE] for side in sides]
        made_of = [(name, self.parts(name, group)) for side in names for name in side]
        if self._compared[0] != made_of:
            said = {name: view.said_pieces(parts) for name, parts in made_of}
            winners, losers = ({name: said[name] for name in side} for side in names)
            found = choose_pair(winners, losers, self._records.question)
            self._compared = made_of, found
        return self._compared[1]

    def mark_parts(self, name: str, group: GroupSummary) -> MarkedParts:
        """The parts of a rollout, marked where it parts from another if that is shown."""
        parts = self.parts(name, group)
        if not self.shows_parting or (found := self.compare(group)) is None:
            return MarkedParts(parts)
        winner, loser, divergence = found
        if name == winner:
            return view.mark_parting(parts, divergence.winner, "added")
        if name == loser:
            return view.mark_parting(parts, divergence.loser, "removed")
        return MarkedParts(parts)

    def go_to_parting(self, pane: RowList, name: str, group: GroupSummary) -> bool:
        marked = self.mark_parts(name, group)
        if marked.step is None:
            return False
        row = view.find_hit_row(marked.step, marked.parts, pane.line_width - 2)
        return pane.go_to(row, margin=8)

    def draw(self, pane: RowList, name: str, group: GroupSummary) -> None:
        """Show a rollout in a pane; cheap where it is the same as before."""
        if self._group != group.id:
            self._group = group.id
            self._parts.clear()
        marked = self.mark_parts(name, group)
        parts, step = marked.parts, marked.step
        about = ""
        if (whole := self._records.rollouts.get(name)) is not None:
            turns = len({call.turn for call in whole.calls})
            about = f"turns {turns}   {whole.finish_reason}   "
        title = f"{name}   {about}{group.version_text}"
        pane.border_title = Content(sanitize(title))
        hits = view.find_hits(parts, self.wanted) or marked.hits
        count = f"{len(hits)} x {sanitize(self.wanted)}" if self.wanted and hits else ""
        if not count and step is not None and (found := self.compare(group)) is not None:
            count = f"> parts here from {found[1] if name == found[0] else found[0]}"
        pane.say_below(count)
        drawn_from = (name, parts, pane.line_width, self._turned, self.wanted, step)
        if self._drawn.get(pane) == drawn_from:
            return
        self._drawn[pane] = drawn_from
        if not parts:
            pane.show_rows([Row("", line("not begun yet" if name else "nothing is chosen"))])
            return
        width = pane.line_width - 2
        rows = view.rollout_rows(parts, width, self._turned, hits, step)
        at_end = bool(pane.rows) and pane.key == pane.rows[-1].key
        follows = name in self._records.live and at_end
        pane.show_rows(rows, rows[-1].key if follows else None)

    def fold_all(self, parts: tuple[Part, ...], labels: Collection[str]) -> bool | None:
        """Fold or unfold all parts of these labels; whether they are unfolded, None of none."""
        found = frozenset(part.key for part in parts if part.label in labels)
        before = self._turned  # all of them begin folded
        self._turned = before - found if found <= before else before | found
        return found <= self._turned if found else None

    def fold(self, key: str) -> None:
        self._turned ^= {key}

    def go_to_hit(self, pane: RowList, parts: tuple[Part, ...], *, again: bool) -> tuple[int, int]:
        """Move to the first hit, or the next one where it was searched before: number and count."""
        hits = view.find_hits(parts, self.wanted)
        if hits:
            self._hit = (self._hit + 1) % len(hits) if again else 0
            pane.go_to(view.find_hit_row(hits[self._hit], parts, pane.line_width - 2))
        return self._hit + 1, len(hits)
