"""Which rollouts Inspect shows, and the reading of their group.

Owns the choice, and when records are read again. What was read is the loader's.
"""

from __future__ import annotations

import asyncio

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.core.types import group_id
from engines.record.run_dir import RunDir
from studio.tui.page import Page
from studio.tui.pages.background import draw_if_open
from studio.tui.pages.inspect import view
from studio.tui.pages.inspect.loader import GroupRecords, load_evidence
from studio.tui.pages.inspect.transcript import Transcripts


class Selection:
    """The choice on one page, which is drawn once records were read."""

    def __init__(self, page: Page, records: GroupRecords, transcripts: Transcripts) -> None:
        self._page, self._records, self._transcripts = page, records, transcripts
        self.chosen = ""  # the rollout
        self.split: tuple[str, str] | None = None  # a winner and a loser
        self.trouble = ""
        self.is_reading = False
        self.is_stale = False  # something of the group ended since it was read
        self._target = ""  # asked for, and not looked up yet
        self._subscribed: frozenset[str] = frozenset()

    def open_target(self, target: str) -> None:
        """Show what an id means; "": what was shown before, or the newest group."""
        if target or not self._records.group:
            self._target = target or _newest_group(self._page.state)
        self.is_stale = True
        self.reload_if_due()

    def forget_run(self) -> None:
        """Another run is open: nothing that is shown is of it."""
        self.chosen, self.trouble, self.split = "", "", None
        self._records.forget_run()
        self._transcripts.forget_parts()

    def subscribe(self, *, anew: bool = False) -> None:
        """Ask for the text of what is under way; `anew`: from its beginning."""
        session = self._page.session
        if session is None or not self._page.is_open:
            return
        under_way = ("streaming", "queued")
        wanted = frozenset(one.id for one in self._records.members if one.state in under_way)
        if anew:
            session.subscribe(())
        if anew or wanted != self._subscribed:
            session.subscribe(wanted)
        self._subscribed = wanted

    def unsubscribe(self) -> None:
        """The page is hidden; what it asked for is the Live page's own business there."""
        session = self._page.session
        if session is not None and self._subscribed and self._page.host.page_name != "live":
            session.subscribe(())
        self._subscribed = frozenset()

    def reload_if_due(self) -> None:
        session = self._page.session
        if session is not None and not self.is_reading and (self.is_stale or self._target):
            self.is_reading = True
            self._page.run_worker(self._read(session.run, session.state), group="inspect")

    async def _read(self, run: RunDir, state: RunState) -> None:
        target, self._target, self.is_stale = self._target, "", False
        records, before = self._records, self._records.group
        try:
            where = self.chosen or records.group
            if target:
                where = await self._find_target(run, state, target)
            if (group := where.partition("r")[0]) != records.group:
                self.split, self.chosen = None, ""
                records.open_group(group)
                self._transcripts.forget_parts()
            self.chosen = where if "r" in where else self.chosen
            if records.group:
                await asyncio.to_thread(records.load_group, run, state)
                if self.chosen not in records.ids:
                    self.chosen = records.ids[0] if records.ids else ""
            self.trouble = ""
        except (StudioError, OSError) as error:
            self.trouble = str(error)
        finally:
            self.is_reading = False
        if not self._page.children:
            return  # the screen was left meanwhile
        if self._page.session is None or self._page.session.run.path != run.path:
            self.forget_run()
            return
        self.subscribe(anew=records.group != before)
        draw_if_open(self._page)
        if records.needs_answers(run):
            self._page.run_worker(self._read_answers(run), group="truths")

    async def _find_target(self, run: RunDir, state: RunState, target: str) -> str:
        found = find_rollouts(state, target)
        if not found and target.startswith("op"):
            found = await asyncio.to_thread(load_evidence, run, target)
        if not found:
            text = f"{target}: no rollout, group, operation or problem of this run"
            self._page.host.tell(text, "failed")
        return found or self.chosen or self._records.group

    async def _read_answers(self, run: RunDir) -> None:
        await asyncio.to_thread(self._records.load_answers, run)
        if self._page.is_open and self._page.children:
            self._page.host.redraw_soon()


def _newest_group(state: RunState | None) -> str:
    """Of a run that is opened: the group under way, else the last one."""
    known = [step for step in state.steps.values() if step.problems] if state else []
    return group_id(max(step.step for step in known), 0) if known else ""


def find_rollouts(state: RunState, name: str) -> str:
    """The group or rollout that an id means; "" where the state knows of none."""
    steps = {number: step.problems for number, step in state.steps.items()}
    known = {op.id: op.evidence for op in state.operations.values()}
    return view.resolve_target(name, steps, known)
