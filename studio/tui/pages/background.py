"""What several pages do beside the screen: write a file, and resume a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from engines.core.errors import RecordError, StudioError
from engines.record.appender import write_atomic
from engines.record.run_dir import Workspace
from studio.tui.host import Host
from studio.tui.page import Page


def export_file(page: Page, write: Callable[[], str], what: str) -> None:
    """Write a file in a thread, and tell its path, or why there is none.

    `write` blocks and returns the path; `what` is such as "the difference is".
    """

    async def export() -> None:
        try:
            path = await asyncio.to_thread(write)
        except StudioError as error:
            page.host.tell(str(error), "failed")
        else:
            page.host.tell(f"{what} written to {path}")

    page.run_exclusive("export", export)


def write_export(workspace: Workspace, name: str, data: bytes) -> str:
    """Write into `exports/` of the workspace, in place of an older file; returns the path.

    Raises RecordError: it cannot be written.
    """
    target = workspace.path / "exports" / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            str(target.parent), f"it could not be made: {error.strerror}.", "Make room for it."
        ) from error
    write_atomic(target, data)
    return str(target)


async def resume_run(host: Host, run: str, how: str, why: str, given: Sequence[str] = ()) -> None:
    """Start a run's process again; where a budget ended it, ask for a larger one.

    `how` and `why` it ended; `given` are settings for the rest of it.
    """
    words = ["--resume", run, *given]
    if how == "budget" and not any(word.startswith("budget.") for word in given):
        from studio.report.summary import budget_override

        key = budget_override(why).removesuffix("…")
        more = (await host.ask("budget reached; resume with", key) or "").strip()
        if more in ("", key):
            host.tell("not resumed: the budget is still the one that was reached")
            return
        words += more.split()
    host.start_run(words)
