"""What to do next: one command that fits what has just happened, the last line of most commands."""

from __future__ import annotations

from shlex import quote

from engines.core.state.run_state import RunState
from studio.report.summary import next_command


def command_after_run(state: RunState) -> str:
    """What follows after a run's process has ended: what waits first, then what came of it."""
    if state.started is None:
        return ""
    run = quote(state.started.run)
    if resume := next_command(state):
        return resume
    if state.open_operations or state.repairs:
        return f"studio review {run}"
    if state.status != "finished":
        return f"studio headless --resume {run}"
    if state.checkpoints:
        return f"studio export {run} --merged --to {run}-model"
    if not state.trains_weights and state.library_version != state.started.library_version:
        last = f"{run}@last" if state.curates else f"{run}@epoch:{state.epochs}"
        return f"studio diff {run}@epoch:0 {last}"
    return f"studio runs show {run}"


def command_after_review(state: RunState, *, committed: bool) -> str:
    """What follows after decisions: what waits first, then the version that was `committed`."""
    waits = state.open_operations or state.repairs or state.checkpoints
    if state.started is None or state.status != "finished" or waits:
        return command_after_run(state)
    name = state.started.library
    return command_after_version(name, state.library_version) if committed else ""


def command_after_version(name: str, version: int) -> str:
    """What follows after a library got a new version by hand."""
    before = f"{quote(name)}@{version - 1}"
    return f"studio diff {before} {quote(name)}@{version}"
