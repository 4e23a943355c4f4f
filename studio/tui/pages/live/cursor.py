"""Where the person looks on the live page: which batch, which of its groups, and how near."""

from collections.abc import Sequence

from studio.tui.drawing.canvas import Mode
from studio.tui.page import Page
from studio.tui.pages.live.batch import Batch, BatchTracker, RolloutStatus

_ZOOMS: tuple[Mode, ...] = ("wall", "group", "solo")


class BatchCursor:
    """The cursor of one page: its run and the size of its terminal count."""

    def __init__(self, page: Page, tracker: BatchTracker) -> None:
        self._page, self._tracker = page, tracker
        self.zoom: Mode | None = None  # None: as the width suggests
        self.position = 0  # of the group that is looked at
        self.shows_past = False  # the rollouts of a run that ended, instead of its summary
        self.shown_groups: tuple[int, ...] = ()  # positions that the filter leaves

    @property
    def batch(self) -> Batch | None:
        return self._tracker.batch if self._page.session is not None else None

    @property
    def is_narrow(self) -> bool:
        return self._page.app.size.width < 100

    @property
    def mode(self) -> Mode:
        return self.zoom or ("wall" if self.is_narrow else "group")

    @property
    def is_showing_end(self) -> bool:
        """Whether the summary of a run that ended is shown instead of rollouts."""
        state = self._page.state
        return state is not None and bool(state.ending) and not self.shows_past

    @property
    def is_measuring(self) -> bool:
        """Whether tries of an evaluation are shown instead of a batch."""
        return bool(self._page.session and self._tracker.held_out.tries)

    @property
    def is_showing_streams(self) -> bool:
        return (self.batch is not None or self.is_measuring) and not self.is_showing_end

    @property
    def left_width(self) -> int:
        """Cells of the column of groups."""
        width = self._page.app.size.width
        return 34 if width < 120 else 40 if width < 170 else 56

    @property
    def group(self) -> str | None:
        """The id of the group that is looked at."""
        return self.batch.group(self.position) if self.batch and self.shown_groups else None

    def show_groups(self, ids: Sequence[str]) -> None:
        """Let the group that is looked at be one of these, if there are any."""
        found = map(self.find_group, ids)
        self.shown_groups = tuple(at for at in found if at is not None)
        if self.shown_groups and self.position not in self.shown_groups:
            self.position = self.shown_groups[0]

    def find_group(self, group: str) -> int | None:
        """The position of a group by its id."""
        place = self.batch.place(f"{group}r0") if self.batch and group else None
        return place[0] if place is not None else None

    def find(self, name: str) -> tuple[int, int] | None:
        """The place of a rollout, a group or a problem: position and index."""
        batch = self.batch
        if batch is None:
            return None
        place = batch.place(name) or batch.place(f"{name}r0")
        if place is None and name in batch.problems:
            return batch.problems.index(name), 0
        return place

    def next_group(self, by: int) -> int | None:
        """The position of the shown group before or behind; None where none is shown."""
        shown = self.shown_groups
        if self.batch is None or not shown or not self.is_showing_streams or self.is_measuring:
            return None
        at = shown.index(self.position) if self.position in shown else 0
        return shown[(at + by) % len(shown)]

    def rollout(self, name: str | None) -> RolloutStatus | None:
        """A rollout of the batch, or a try of the evaluation, as it is now."""
        if held_out := self._tracker.held_out.find(name or ""):
            return held_out.shown
        place = self.batch.place(name or "") if self.batch else None
        if self.batch is None or place is None:
            return None
        return self.batch.rollout_at(*place, self._tracker.under_way)

    def shown_rollouts(self) -> Sequence[RolloutStatus]:
        """What the canvas holds: the whole batch on the wall, else as many groups as fit."""
        batch, under_way = self.batch, self._tracker.under_way
        if self.is_measuring:
            return [one.shown for one in self._tracker.held_out.tries]
        if batch is None:
            return ()
        shown = self.shown_groups if self.mode == "wall" else (self.position,)
        known = [at for at in shown if at < len(batch.problems)]  # they may be of the batch before
        return [one for at in known for one in batch.group_rollouts(at, under_way)]

    def zoom_in(self) -> Mode:
        """To the next zoom, from the last to the first."""
        self.zoom = _ZOOMS[(_ZOOMS.index(self.mode) + 1) % len(_ZOOMS)]
        return self.zoom
