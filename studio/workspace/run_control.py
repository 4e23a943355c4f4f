"""Finding the run that a command controls, and printing its status and events."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core import codec, errors
from engines.core.frozen import frozen
from studio.secrets.sanitize import sanitize
from studio.session import control_socket

if TYPE_CHECKING:
    from engines.record.run_dir import RunDir, Workspace


@frozen
class LiveRun:
    """A run whose process answers, by its folder alone: nothing of its journal was read."""

    path: Path

    @property
    def run(self) -> str:
        return self.path.name

    @property
    def socket(self) -> Path:
        return self.path / "control.sock"


def find_live_run(workspace: Path, run: str | None) -> LiveRun | None:
    """The named run, or the only one, if its process answers.

    None where journals must be read: no process answers, or several do and the newest is meant.
    """
    found = [LiveRun(path.parent) for path in workspace.glob("runs/*/control.sock")]
    if run is not None:
        found = [LiveRun(workspace / "runs" / run)] if Path(run).name == run else []
    living = [one for one in found if control_socket.is_alive(one)]
    return living[0] if len(living) == 1 else None


def choose_run(workspace: "Workspace", run: str | None) -> "RunDir":
    """The named run; else the newest living one, else the newest. Raises ConflictError: none."""
    if run is not None:
        return workspace.run(run)
    runs = workspace.runs()
    if not runs:
        raise errors.ConflictError(
            str(workspace.path),
            "there is no run in this workspace.",
            "Start one with `studio run rehearsal`, or name another --workspace.",
        )
    living = [found for found in runs if control_socket.is_alive(found)]
    return (living or list(runs))[-1]


def check_alive(run: "RunDir", do: str) -> None:
    """Raise ConflictError where no process of the run is left to be asked to `do` something."""
    if control_socket.is_alive(run):
        return
    from engines.record.derived.catalogue import run_row
    from studio.facts.next_command import status_of_row

    shown = status_of_row(run.run, run_row(run), alive=False)
    what = "a curation" if shown.curation_status else shown.status
    cause = f"it is {what} and has no process, so there is nothing to {do}."
    move = shown.next or f"see how it went: studio runs show {run.run}"
    raise errors.ConflictError(f"run {run.run}", cause, f"{move[0].upper()}{move[1:]}.")


def status_lines(answer: codec.JsonMapping) -> list[str]:
    reason = f" ({sanitize(answer['reason'])})" if answer["reason"] else ""
    status, alive = answer["status"], ""
    if not answer.get("alive", True):
        from studio.facts.next_command import status_of_row

        status, alive = status_of_row(answer["run"], answer, alive=False).status, ", no process"
    where = f"epoch {answer['epoch']} of {answer['epochs']}, step {answer['step']} of "
    where += f"{answer['steps']}, {answer['steps_finished']} finished"
    if answer.get("curates"):
        from studio.facts.next_command import curation_text

        where, status = f"{curation_text(answer)}: {sanitize(answer['curates'])}", "curation"
    cost = "" if answer["cost_usd"] is None else f", ${answer['cost_usd']:.4f}"
    lines = [
        f"run {answer['run']}: {status}{reason}{alive}",
        where,
        f"{_subject_text(answer)}, review: {answer['reviewer']}",
        *([f"training: {answer['training']}"] if answer.get("training") else []),
        f"{answer['tokens']:,} tokens{cost}, {answer['lost']} lost",
    ]
    if left := answer.get("budget_left"):
        amounts = (
            f"${amount:,.4f}" if name == "cost_usd" else f"{amount:,.0f} {name}"
            for name, amount in left.items()
        )
        lines.append(f"left of the budget: {', '.join(amounts)}")
    if answer.get("nodes") == {}:
        from studio.render.run_lines import NO_WORKER

        lines.append(NO_WORKER)
    for node, tries in answer.get("nodes", {}).items():
        shown = ", ".join(tries[:12]) + (f" and {len(tries) - 12} more" if len(tries) > 12 else "")
        lines.append(f"node {sanitize(node)}: {shown or 'idle'}")
    if waiting := answer.get("repairs"):
        from studio.render.words import unparsed_replies_text

        lines.append(unparsed_replies_text(waiting, answer["run"]))
    if answer["rehearsal"]:
        lines.append("rehearsal: replies are scripted")
    if answer["open"]:
        what = "weight update is" if answer.get("training") else "operation is"
        if answer["open"] > 1:
            what = "operations are"
        lines.append(f"{answer['open']} {what} open: studio review {answer['run']}")
    return lines


def _subject_text(answer: codec.JsonMapping) -> str:
    """What practice changes, and how far it is: a policy's weights, or a library."""
    if answer.get("policy_version") is not None:
        return f"policy v{answer['policy_version']}"
    return f"library {answer['library']} v{answer['library_version']}"


def follow(run: "RunDir", *, as_json: bool) -> None:
    """Print a living run's events until its process ends. Raises ConflictError: none answers."""
    from engines.core.events import event_from_dict
    from engines.core.state.fold import fold
    from engines.core.state.run_state import RunState
    from engines.record.derived.run_state import read_run
    from studio.render.json import print_json
    from studio.report.progress import LinePrinter

    say, state = partial(print, flush=True), RunState()
    seen = LinePrinter(state, say)
    for data in control_socket.watch(run):
        if as_json:
            print_json(data)
            continue
        if data["kind"] == "Watching":
            state = read_run(run.journal, data["events"]).state
            seen = LinePrinter(state, say)
            print("\n".join(status_lines(data)), flush=True)
            continue
        event = event_from_dict(data)
        fold(state, event)
        seen(event)
