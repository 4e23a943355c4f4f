"""What the two top lines say of a run: pure.

Fields give way as room runs out; the state, what waits for a person and "rehearsal" never do.
"""

from collections.abc import Mapping
from dataclasses import field

from engines.core.events import RunStarted
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from studio.facts.next_command import curation_text
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import fit
from studio.tui.drawing.lines import Line, Span, line, width_of
from studio.tui.pages import PAGES


@frozen
class SessionStatus:
    """What the state does not know: the line to the run, and the screen's own clock."""

    living: bool = False
    drives: bool = True
    driver: str = ""
    starting: bool = False
    starting_stage: str = ""  # what the process that starts says it does
    opening: bool = False  # a run was chosen, and nothing of it is known yet
    parted: bool = False  # the connection to its process is lost, and tried again
    ready: bool = False  # everything is decided, and the commit waits for a key
    tokens_per_s: float | None = None
    pace_tokens_per_s: float | None = None  # that each scripted reply is given
    eta: str = ""
    budget: Mapping[str, float] = field(default_factory=dict)  # calls, tokens, cost_usd: limits
    replay: str = ""  # "replay 10×": the run is over, and is played again


_WORDS = {
    "new": "STARTING",
    "running": "RUNNING",
    "paused": "PAUSED",
    "reviewing": "HELD for review",
    "held": "HELD for review",
    "stopped": "STOPPED",
    "failed": "FAILED",
    "finished": "FINISHED",
}
_SHORT = {
    "HELD for review": "HELD",
    "RUNNING": "RUN",
    "NO PROCESS": "NO PROC",
    "CONNECTION LOST": "NO CONN",
}


def status_word(state: RunState | None, facts: SessionStatus) -> str:
    if facts.starting:
        return "STARTING"
    if facts.opening:
        return "OPENING"
    if state is None or state.started is None:
        return "NO RUN"
    if not (facts.living or state.ending or facts.replay):
        return "NO PROCESS"
    if facts.parted and not state.ending:
        return "CONNECTION LOST"
    if state.status == "reviewing" and not state.undecided_operations:
        return "HELD: c commits" if facts.ready else "COMMITTING"
    if facts.living and state.hold_after is not None and state.status == "running":
        return "STEPPING"
    return "CURATION" if state.curates else _WORDS[state.status]


def waiting_text(state: RunState | None) -> str:
    """`REVIEW 9, 3 flagged`, or "" where nothing waits for a person."""
    if state is None:
        return ""
    waiting, flagged = _waiting_counts(state)
    parts = []
    if waiting:
        parts.append(f"REVIEW {waiting}" + (f", {flagged} flagged" if flagged else ""))
    if later := len(state.put_off_operations):
        parts.append(f"{later} later")
    if state.repairs:
        n = len(state.repairs)
        parts.append(f"{n} {'reply' if n == 1 else 'replies'} to mend")
    return ", ".join(parts)


def _waiting_counts(state: RunState) -> tuple[int, int]:
    """How many operations are to decide, and how many of these are flagged: the sign `!`."""
    later = {operation.id for operation in state.put_off_operations}
    waiting = [operation for operation in state.open_operations if operation.id not in later]
    return len(waiting), sum(operation.is_flagged for operation in waiting)


def tokens_text(tokens: float) -> str:
    """`412k`, `1.2M`."""
    if tokens < 1_000:
        return f"{tokens:.0f}"
    if tokens < 999_500:
        return f"{tokens / 1_000:.0f}k" if tokens >= 9_950 else f"{tokens / 1_000:.1f}k"
    return f"{tokens / 1_000_000:.1f}M"


def header_line(state: RunState | None, facts: SessionStatus, width: int) -> Line:
    """The first line: where the run stands, as much of it as fits."""
    narrow = width < 100
    word = status_word(state, facts)
    style = "failed" if word in ("FAILED", "NO PROCESS", "CONNECTION LOST") else "title"
    kept: list[tuple[int, Span]] = [(0, ("studio", "title"))]
    if state is not None and state.started is not None:
        kept += _run_fields(state, state.started, facts, narrow)
    kept.insert(3, (0, (_SHORT.get(word, word) if narrow else word, style)))
    gap = " " if narrow else " | "
    while True:
        first, *further = (span for _, span in kept)
        out = line(" ", first, *(part for span in further for part in ((gap, "dim"), span)))
        last = max(rank for rank, _ in kept)
        if width_of(out) <= width or not last:
            return out
        kept = [field for field in kept if field[0] != last]


def _run_fields(
    state: RunState, started: RunStarted, facts: SessionStatus, narrow: bool
) -> list[tuple[int, Span]]:
    """(rank, span): rank 0 always stays, the highest goes first. The status is put in fourth."""
    steps = started.steps_per_epoch * state.epochs
    epoch = state.steps[state.step].epoch if state.step in state.steps else 0
    names = ("e", "s") if narrow else ("epoch ", "step ")
    where = f"{names[0]}{epoch}/{state.epochs} {names[1]}{state.step}/{steps}"
    if state.curates:
        where = curation_text(state).removeprefix("curation: ")  # the status says that
    spent = state.total_usage
    budget = facts.budget
    most = f" of {tokens_text(budget['tokens'])}" if "tokens" in budget else ""
    tokens = f"{tokens_text(spent.tokens)}{most} tok" + ("" if narrow or most else " in all")
    fields: list[tuple[int, Span]] = [(1, (fit(sanitize(started.run), 24), "")), (2, (where, ""))]
    if spent.cost_usd is not None:  # an unknown price is no price of nothing
        most = f" of ${budget['cost_usd']:,.2f}" if "cost_usd" in budget else ""
        fields.append((3, (f"${spent.cost_usd:,.2f}{most}", "")))
    if "calls" in budget:
        fields.append((4, (f"{spent.calls:,} of {budget['calls']:,.0f} calls", "")))
    fields.append((4, (tokens, "dim")))
    if facts.tokens_per_s:
        fields.append((5, (f"{tokens_text(facts.tokens_per_s)}/s", "dim")))
    if facts.eta:
        fields.append((6, (f"ETA {facts.eta}", "dim")))
    if waiting := waiting_text(state):
        fields.append((0, (waiting + "!" * bool(_waiting_counts(state)[1]), "flag")))
    if started.rehearsal:
        fields.append((0, ("rehearsal", "dim")))
        if facts.living and facts.pace_tokens_per_s is not None:
            fields.append((7, (f"paced {facts.pace_tokens_per_s:g} tok/s", "dim")))
    if state.cassette:
        fields.append((0, ("cassette", "dim")))
    if facts.replay:
        fields.append((0, (facts.replay, "flag")))
    elif facts.living and not facts.drives:
        driver = fit(sanitize(facts.driver), 16)
        who = f"{driver} decides, T takes over" if driver else "T decides"
        fields += [(0, ("OBSERVER", "flag")), (3, (who, "flag"))]
    return fields


def tabs_line(state: RunState | None, page: str, width: int) -> Line:
    """The second line: the pages with their numbers, the open one in brackets."""
    waiting, flagged = _waiting_counts(state) if state is not None else (0, 0)
    spans: list[Span] = [(" ", "")]
    short = 4 if width < 72 else None
    for entry in PAGES[:-1]:
        label = f"{entry.key} {entry.title[:short]}"
        if entry.name == "review" and waiting:
            label += f" {waiting}" + "!" * bool(flagged)
        spans.append((f"[{label}]", "title") if entry.name == page else (f" {label} ", ""))
    out = tuple(spans)
    help: Line = (("? help", "dim"), (" ", ""))
    for more in (((": palette", "dim"), ("   ", ""), *help), help):
        if (room := width - width_of(out) - width_of(more)) > 0:
            return (*out, (" " * room, ""), *more)
    return out
