"""What a run's status is called, and the command to go on with."""

from shlex import quote

from engines.core.codec import JsonMapping, fields_of
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from studio.facts.subject import Subject


def next_command(state: RunState) -> str:
    """The command that resumes a run which ended early; "" where there is none."""
    if state.started is None:
        return ""
    resume = f"studio headless --resume {quote(state.started.run)}"
    if state.ending == "budget":
        return f"{resume} {budget_override(state.reason)}"
    if state.ending == "waiting":
        return f"{resume} (once the calls are answered)"
    failed = state.ending == "failed"
    return f"{resume} (tries again what failed in the step under way)" if failed else ""


def budget_override(reason: str) -> str:
    """The override that gives more of the budget a run ended for, its amount left open."""
    key, equals, _ = reason.partition("=")
    return f"{key}=…" if equals and key.startswith("budget.") else "budget.calls=…"


_LIVING = ("new", "running", "reviewing", "paused")
"""Statuses in the journal of a run whose process lives, or was killed."""


@frozen
class RunStatus(Subject):
    """A status as people read it, and the command that goes on from there ("": none)."""

    status: str
    alive: bool
    next: str = ""
    curation_status: str = ""  # how far a curation run is, see `curation_text`

    @property
    def text(self) -> str:
        word = self.curation_status or self.status
        return f"{word} ({self.next})" if self.next else word


def status_of_row(run: str, row: JsonMapping, *, alive: bool) -> RunStatus:
    """Return a run's status; `alive`: a process answers its socket.

    Of `row` are read `status`, `open` (a number), `ending` and `reason`, as the journal has them,
    and what `curation_text` reads.
    """
    status, name = str(row["status"]), quote(run)
    resume, move = f"studio headless --resume {name}", ""
    if status in _LIVING and not alive:
        return RunStatus("interrupted", False, f"resume: {resume}")
    if row.get("ending") == "budget":
        move = f"budget reached: {resume} {budget_override(str(row['reason']))}"
    elif status == "paused":
        move = f"go on: studio ctl resume {name}"
    elif row["open"] and status in ("reviewing", "held", "finished"):
        move = f"decide: studio review {name}"
    elif status in ("stopped", "held", "failed"):
        move = f"resume: {resume}"
    word = "held" if status == "reviewing" else status
    return RunStatus(word, alive, move, curation_text(row))


def run_status(state: RunState, run: str, *, alive: bool) -> RunStatus:
    """Return the status of a folded run; see `status_of_row`."""
    row = fields_of(state, "status", "ending", "reason", "curates", "proposed")
    return status_of_row(run, row | {"open": len(state.open_operations)}, alive=alive)


def curation_text(of: RunState | JsonMapping) -> str:
    """`curation: 12 of 40 decided`; "" of a run that practises. `of`: its state or its row."""
    if isinstance(of, RunState):
        of = {**fields_of(of, "curates", "proposed"), "open": len(of.open_operations)}
    if not of.get("curates"):
        return ""
    return f"curation: {of['proposed'] - of['open']} of {of['proposed']} decided"


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
