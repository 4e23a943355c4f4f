"""Where the person looks on the live page: which batch, which of its groups, and how near."""

from __future__ import annotations

from collections.abc import Sequence

from studio.tui.drawing.layout import Mode
from studio.tui.page import Page
from studio.tui.pages.live.batch import Batch, RolloutStatus
from studio.tui.pages.live.batch_tracker import BatchTracker

_ZOOMS: tuple[Mode, ...] = ("wall", "group", "solo")


class BatchCursor:
    """The cursor of one page: its run and the size of its terminal count."""

    def __init__(self, page: Page, tracker: BatchTracker) -> None:
        self._page, self._tracker = page, tracker
        self.zoom: Mode | None = None  # None: as the width suggests
        self.position = 0  # of the group that is looked at
        self.shows_past = False  # the rollouts of a run that ended, instead of its summary
        self.shown_groups: tuple[str, ...] = ()  # ids that the filter leaves

    @property
    def batch(self) -> Batch | None:
        """The batch that is looked at."""
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
    def is_showing_streams(self) -> bool:
        return self.batch is not None and not self.is_showing_end

    @property
    def group(self) -> str | None:
        """The id of the group that is looked at."""
        return self.batch.group(self.position) if self.batch and self.shown_groups else None

    def show_groups(self, ids: Sequence[str]) -> None:
        """Let the group that is looked at be one of these, if there are any."""
        self.shown_groups = tuple(ids)
        if self.batch is None or not ids:
            return
        last = len(self.batch.problems) - 1
        if self.batch.group(min(self.position, last)) not in ids:
            self.position = self.find_group(ids[0]) or 0

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
        if self.batch is None or not shown or not self.is_showing_streams:
            return None
        here = self.batch.group(self.position)
        at = shown.index(here) if here in shown else 0
        return self.find_group(shown[(at + by) % len(shown)])

    def rollout(self, name: str | None) -> RolloutStatus | None:
        """A rollout of the batch as it is now."""
        place = self.batch.place(name or "") if self.batch else None
        if self.batch is None or place is None:
            return None
        return self.batch.rollout_at(*place, self._tracker.under_way)

    def shown_rollouts(self) -> Sequence[RolloutStatus]:
        """What the canvas holds: the whole batch on the wall, else one group."""
        batch, under_way = self.batch, self._tracker.under_way
        if batch is None:
            return ()
        positions: list[int | None] = [self.position]
        if self.mode == "wall":
            positions = [self.find_group(group) for group in self.shown_groups]
        return [
            one for at in positions if at is not None for one in batch.group_rollouts(at, under_way)
        ]

    def zoom_in(self) -> Mode:
        """To the next zoom, from the last to the first."""
        self.zoom = _ZOOMS[(_ZOOMS.index(self.mode) + 1) % len(_ZOOMS)]
        return self.zoom
