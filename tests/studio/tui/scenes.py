"""Every page in every state it can be found in, made once for pictures and for hostile text.

Owns how the app is brought there; what is looked at there is up to the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, Flag, Operation, UnparsedReply, Verdict
from engines.data.dataset import read_problems
from engines.record.journal import Journal
from engines.record.run_dir import RunDir, Workspace
from studio.session.session import (
    ControllerChanged,
    Disconnected,
    EventReceived,
    TextPiece,
    TextReceived,
)
from studio.tui.app import StudioApp
from studio.tui.settings import ScreenSettings
from studio.tui.widgets.prompt import Prompt
from tests.studio.tui.stage import (
    FakeSession,
    app_on,
    copy_workspace,
    finished_workspace,
    held_workspace,
)
from tests.support import training_runs
from tests.support.made_once import made_once
from tests.support.training_runs import training_workspace

SIZES = [(120, 36), (80, 24)]
WIDE = (200, 50)
SHOWN_WIDE = {
    "start-held",
    "live-group",
    "live-wall",
    "review-held",
    "library-finished",
    "diff-finished",
    "runs-finished",
    "inspect-split",
    "progress-finished",
    "training-running",
}
"""A full state of each page, which is looked at on a big terminal, too."""
_WAIT_FOR_A_PERSON = frozenset({"default", "asks", "type", "search", "set", "detach", "attach"})

_DATA = Path(__file__).parents[3] / "sample_data/arithmetic.jsonl"


@dataclass
class Stage:
    """An app that runs, and the session it is on."""

    app: StudioApp
    pilot: Pilot[int]
    session: FakeSession | None

    async def press(self, *keys: str) -> None:
        """Each key once all that the one before it led to is drawn."""
        for key in keys:
            await self.pilot.press(key)
            await self.rest()

    async def answer(self, text: str) -> None:
        """Type into the line at the bottom, in place of what stands there."""
        prompt = self.app.screen.query_one(Prompt)
        assert prompt.is_asking
        prompt.query_one("_Field").value = text  # type: ignore[attr-defined]
        await self.press("enter")

    async def hear(self, *messages: Any) -> None:
        assert self.session is not None
        await self.session.push(*messages)
        await self.rest()

    async def rest(self) -> None:
        """Until everything asked is answered, what is read is read, and all of it is drawn."""
        for _ in range(20):
            await self.pilot.pause()
            await self.app.wait_for_requests()
            reading = [
                worker
                for worker in self.app.workers
                if worker.group not in _WAIT_FOR_A_PERSON and not worker.is_finished
            ]
            if not reading:
                break
            await asyncio.gather(*(one.wait() for one in reading), return_exceptions=True)
        await self.draw()
        await self._draw_frame()  # what the first pass gave another height or width

    async def draw(self) -> None:
        self.app.redraw_soon()
        await self._draw_frame()

    async def _draw_frame(self) -> None:
        self.app.draw_frame()
        self.app.navigation.page("live").wall.canvas.flush()  # type: ignore[attr-defined]
        await self.pilot.pause()


@dataclass(frozen=True)
class Scene:
    """How a state comes about: a session on a workspace, what is changed in it, what is pressed."""

    run: str = "mine"  # "mine" is held, "rehearsal" finished; "": no run, "nothing": not even one
    living: bool = True
    change: Callable[[FakeSession], None] | None = None
    act: Callable[[Stage], Awaitable[None]] | None = None
    events: Callable[[], list[ev.DurableEvent]] = list  # of "tiny", a run that trains weights


def _orderly_workspace(run: str, folder: Path) -> Workspace:
    """A copy of the one with the finished run, or of the one with the held run."""

    def make(made: Path) -> None:
        workspace = finished_workspace(made) if run == "rehearsal" else held_workspace(made)
        for one in workspace.runs():
            in_order(one)

    kind = "finished" if run == "rehearsal" else "held"
    return copy_workspace(made_once(f"stage-{kind}-in-order", make) / "practice", folder)


def in_order(run: RunDir) -> None:
    """Let the groups of a step end one after another, as chance had it otherwise."""
    found = [entry.event for entry in run.entries()]
    at = 0
    while at < len(found):
        end = at
        while end < len(found) and isinstance(found[end], _OF_GROUPS):
            end += 1
        found[at:end] = sorted(found[at:end], key=_place)
        at = end + 1
    run.journal.unlink()
    journal = Journal(run.journal)
    for event in found:
        journal.append_now(event)
    journal.close()


_OF_GROUPS = (ev.RolloutFinished, ev.RolloutJudged, ev.GroupReflected)


def _place(event: Any) -> tuple[int, int, int]:
    kind = _OF_GROUPS.index(type(event))
    return (event.position, kind, getattr(event, "index", 0))


@asynccontextmanager
async def on_stage(
    scene: Scene, folder: Path, size: tuple[int, int], settings: ScreenSettings | None = None
) -> AsyncIterator[Stage]:
    """Bring the app to a scene; `folder` is relative where pictures are taken."""
    if scene.run == "nothing":
        workspace = Workspace(folder / "practice")
    elif scene.run == "tiny":
        workspace = training_workspace(folder, scene.events())
    else:
        workspace = _orderly_workspace(scene.run, folder)
    session = None
    if scene.run not in ("", "nothing"):
        session = FakeSession(workspace.run(scene.run), living=scene.living)
        session.asks = {one.id: one.question for one in read_problems(_DATA)}
        if scene.change is not None:
            scene.change(session)
    app = app_on(session, workspace, settings)
    app.person = "sam"
    async with app.run_test(size=size) as pilot:
        stage = Stage(app, pilot, session)
        await stage.rest()
        if scene.act is not None:
            await scene.act(stage)
        yield stage


# -- what is changed before the app opens -----------------------------------------------------


def _events(session: FakeSession) -> list[ev.DurableEvent]:
    return [entry.event for entry in session.run.entries()]


def _nothing_known(session: FakeSession) -> None:
    session.state = RunState()


def _upto(kind: type, session: FakeSession, after: int = 0) -> None:
    """The run as it was right before an event of a kind, `after` so many; also on disk."""
    found = _events(session)
    session.recorded = found  # type: ignore[attr-defined]
    at = [number for number, event in enumerate(found) if isinstance(event, kind)][after]
    lines = session.run.journal.read_bytes().splitlines(keepends=True)
    session.run.journal.write_bytes(b"".join(lines[:at]))
    session.state = RunState()
    for event in found[:at]:
        fold(session.state, event)


def _before_the_first_batch(session: FakeSession) -> None:
    _upto(ev.StepStarted, session)


def _between_batches(session: FakeSession) -> None:
    _upto(ev.StepStarted, session, 1)


def a_full_queue(session: FakeSession) -> None:
    """The second lesson, with every kind of operation in it, some of them flagged."""
    _upto(ev.LessonCommitted, session, 1)
    library = session.run.path.parents[1] / "libraries" / "rehearsal" / "journal.jsonl"
    lines = library.read_bytes().splitlines(keepends=True)
    library.write_bytes(b"".join(takewhile(lambda line: b'"step":2' not in line, lines)))
    state = session.state
    state.decisions.clear()
    found = list(state.operations.values())
    evidence = found[0].evidence
    carry = "Carry: when a column adds up to ten or more, carry one into the next column"
    more = f"{carry}, write it down, and add it to the digits of that column."
    made = (
        *found,
        Operation(
            id="op2.8",
            kind="modify",
            target="E1",
            text=more,
            rationale="losers dropped the carry they had written",
            evidence=evidence,
            proposer="rehearsal",
            flags=(Flag("similar", 0.78, "E4"),),
        ),
        Operation(
            id="op2.9",
            kind="delete",
            target="E2",
            text="",
            rationale="never of use",
            evidence=evidence,
            proposer="rehearsal",
        ),
        Operation(
            id="op2.10",
            kind="keep",
            target="E1",
            text="",
            rationale="it was cited twice",
            evidence=evidence,
            proposer="rehearsal",
        ),
    )
    state.operations = {op.id: op for op in made}


def _a_reply_to_mend(session: FakeSession) -> None:
    reply = '{"operations": [{"kind": "add", "text": "Check the carry."'
    repair = UnparsedReply(
        "s1p3", 1, "extraction", ("the JSON ends in the midst of a list",), reply
    )
    session.state.repairs = {repair.id: repair}


def _observed(session: FakeSession) -> None:
    session.controls, session.controller = False, "ann"


def _failed(session: FakeSession) -> None:
    _before_the_first_batch(session)
    ended = ev.RunEnded("failed", "the model refused every call: 401 Unauthorized")
    journal = Journal(session.run.journal)
    journal.append_now(ended)
    journal.close()
    fold(session.state, ended)


# -- what is heard and pressed ------------------------------------------------------------------


def keys(*pressed: str) -> Callable[[Stage], Awaitable[None]]:
    async def press(stage: Stage) -> None:
        await stage.press(*pressed)

    return press


def began(position: int, index: int) -> EventReceived:
    return EventReceived(ev.RolloutStarted(CallKey("rollout", 1, 1, position, index), ""))


_SAID = "First I add the ones: 7 + 9 = 16, so 6 and carry 1. Then the tens with the carry"
_PIECES = TextReceived(
    tuple(TextPiece(f"s1p1r{i}", 0, _SAID[:cut]) for i, cut in enumerate((80, 52, 31, 7)))
)


async def _streaming(stage: Stage) -> None:
    """Group 0 is through, group 1 streams, the others wait."""
    assert stage.session is not None
    found = stage.session.recorded  # type: ignore[attr-defined]
    step = next(event for event in found if isinstance(event, ev.StepStarted))
    kinds = (ev.RolloutFinished, ev.RolloutJudged, ev.GroupReflected)
    through = [e for e in found if isinstance(e, kinds) and e.step == 1 and e.position == 0]
    journal = Journal(stage.session.run.journal)
    for event in (step, *through):
        journal.append_now(event)
    journal.close()
    await stage.hear(EventReceived(step), *(began(at, i) for at in (0, 1) for i in range(4)))
    await stage.hear(*(EventReceived(event) for event in through))
    await stage.press("right_square_bracket")
    await stage.hear(_PIECES)


async def _evaluating(stage: Stage) -> None:
    """Five tries at held-out problems, one of them through."""
    asked = list(stage.session.asks)[:5] if stage.session else []
    tries = [CallKey("evaluation", 0, 0, at, 0) for at in range(5)]
    begun = [ev.RolloutStarted(key, name) for key, name in zip(tries, asked, strict=True)]
    so_far = ev.EvaluationProgressed(0, "arithmetic-heldout", 36, 100, 35, 15.0)
    through = ev.EvaluationProgressed(0, "arithmetic-heldout", 37, 100, 36, 16.0, 1, tries[0], 1.0)
    said = tuple(TextPiece(f"h0p{at}r0", 0, _SAID[: 80 - 15 * at]) for at in range(5))
    await stage.hear(*map(EventReceived, (so_far, *begun)))
    await stage.hear(TextReceived(said))
    await stage.hear(EventReceived(through))


def _then(
    *steps: Callable[[Stage], Awaitable[None]],
) -> Callable[[Stage], Awaitable[None]]:
    async def all_of_them(stage: Stage) -> None:
        for step in steps:
            await step(stage)

    return all_of_them


def hearing(*messages: Any) -> Callable[[Stage], Awaitable[None]]:
    async def hear(stage: Stage) -> None:
        await stage.hear(*messages)

    return hear


async def _starting(stage: Stage) -> None:
    """A process was started and has not said yet which run it is."""

    class Waiting:
        stage = "loading hf:tiny …"

        async def wait_ready(self) -> None:
            await asyncio.Event().wait()

    stage.app.open_page("live")
    stage.app.attachment.wait_for(Waiting())  # type: ignore[arg-type]
    await stage.rest()


def _lost(*, ended: bool) -> Callable[[Stage], Awaitable[None]]:
    async def lose(stage: Stage) -> None:
        assert stage.session is not None
        stage.session.living = not ended
        reason = "the run's process has died" if ended else "the line to the run's process is gone"
        await stage.hear(Disconnected(reason, ended))

    return lose


def zoomed(mode: str) -> Callable[[Stage], Awaitable[None]]:
    async def zoom(stage: Stage) -> None:
        while stage.app.navigation.page("live").cursor.mode != mode:  # type: ignore[attr-defined]
            await stage.press("z")

    return zoom


async def _mending(stage: Stage) -> None:
    async def load_reply(unparsed: UnparsedReply) -> str:
        return unparsed.reply

    page = stage.app.navigation.page("review")
    page.loader.load_reply = load_reply  # type: ignore[attr-defined]
    await stage.press("e")


async def _all_decided(stage: Stage) -> None:
    """The run says so itself once its last operation is decided."""
    await stage.press("2", "a", "r")
    counts = {"approved": 1, "edited": 0, "rejected": 1, "deferred": 0, "version": 1}
    await stage.hear(EventReceived(ev.StageEntered(1, "ready", counts)))


async def _laid_over(stage: Stage) -> None:
    """The run beside a copy of itself whose third step went otherwise."""
    workspace = stage.app.workspace
    journal = Journal(workspace.runs_folder / "other" / "journal.jsonl")
    assert stage.session is not None
    for event in _events(stage.session):
        journal.append_now(_otherwise(event))
    journal.close()
    await stage.press("7", "b")
    await stage.press(*"other", "enter")


def _otherwise(event: ev.DurableEvent) -> ev.DurableEvent:
    if isinstance(event, ev.RunStarted):
        return replace(event, run="other")
    if isinstance(event, ev.RolloutJudged) and event.step == 3:
        return replace(event, verdict=Verdict(float(event.index > 1)))
    return event


def goes_to(name: str) -> Callable[[Stage], Awaitable[None]]:
    async def go(stage: Stage) -> None:
        await stage.press("g")
        await stage.answer(name)

    return go


def _training(*more: ev.DurableEvent) -> Callable[[], list[ev.DurableEvent]]:
    """Six steps of a training run, and what comes after them."""
    return lambda: [*training_runs.history(), *more]


_SEVENTH = training_runs.tried(7)
_UNDER_WAY = [e for e in _SEVENTH if getattr(e, "position", 0) < 1]


async def _seventh(stage: Stage) -> None:
    """Group 1 of the step streams."""
    said = tuple(TextPiece(f"s7p1r{i}", 0, _SAID[:cut]) for i, cut in enumerate((80, 52, 31, 7)))
    heard = [EventReceived(ev.RolloutStarted(CallKey("rollout", 1, 7, 1, i), "")) for i in range(4)]
    await stage.hear(*heard)
    await stage.press("right_square_bracket")
    await stage.hear(TextReceived(said))


_WAITS = _training(*_SEVENTH, training_runs.proposed(7))
_BATCH = _before_the_first_batch
_QUEUE = a_full_queue

SCENES: dict[str, Scene] = {
    "start-empty": Scene("nothing"),
    "start-held": Scene(""),
    "live-starting": Scene("", act=_starting),
    "live-none": Scene("", act=keys("1")),
    "live-loading": Scene(change=_nothing_known),
    "live-before": Scene(change=_BATCH),
    "live-between": Scene("rehearsal", change=_between_batches),
    "live-group": Scene(change=_BATCH, act=_then(_streaming, zoomed("group"))),
    "live-wall": Scene(change=_BATCH, act=_then(_streaming, zoomed("wall"))),
    "live-solo": Scene(change=_BATCH, act=_then(_streaming, zoomed("solo"))),
    "live-paused": Scene(change=_BATCH, act=_then(_streaming, keys("s", "p"))),
    "live-evaluating": Scene(change=_BATCH, act=_evaluating),
    "live-held": Scene(),
    "live-observer": Scene(change=_observed, act=hearing(ControllerChanged(False, "ann"))),
    "live-disconnected": Scene(change=_BATCH, act=_then(_streaming, _lost(ended=False))),
    "live-died": Scene(change=_BATCH, act=_then(_streaming, _lost(ended=True))),
    "live-failed": Scene(living=False, change=_failed),
    "live-finished": Scene("rehearsal", living=False),
    "review-none": Scene("", act=keys("2")),
    "review-loading": Scene(change=_nothing_known, act=keys("2")),
    "review-running": Scene(change=_BATCH, act=_then(_streaming, keys("2"))),
    "review-held": Scene("rehearsal", change=_QUEUE, act=keys("2")),
    "review-delete": Scene("rehearsal", change=_QUEUE, act=_then(keys("2"), goes_to("op2.9"))),
    "review-decided": Scene(act=_all_decided),
    "review-evidence": Scene("rehearsal", change=_QUEUE, act=keys("2", "enter")),
    "review-range": Scene("rehearsal", change=_QUEUE, act=keys("2", "g", "g", "v", "j")),
    "review-edit": Scene(act=keys("2", "e")),
    "review-safe": Scene("rehearsal", change=_QUEUE, act=keys("2", "A")),
    "review-commit": Scene("rehearsal", change=_QUEUE, act=keys("2", "a", "c")),
    "review-mend": Scene(change=_a_reply_to_mend, act=_then(keys("2"), goes_to("s1p3"))),
    "review-mending": Scene(
        change=_a_reply_to_mend, act=_then(keys("2"), goes_to("s1p3"), _mending)
    ),
    "review-observer": Scene(change=_observed, act=keys("2")),
    "review-disconnected": Scene(act=_then(keys("2"), _lost(ended=False))),
    "review-finished": Scene("rehearsal", living=False, act=keys("2")),
    "review-failed": Scene(living=False, change=_failed, act=keys("2")),
    "library-empty": Scene("nothing", act=keys("3")),
    "library-loading": Scene(change=_nothing_known, act=keys("3")),
    "library-held": Scene("rehearsal", change=_QUEUE, act=keys("2", "a", "3")),
    "library-finished": Scene("rehearsal", living=False, act=keys("3")),
    "library-history": Scene("rehearsal", living=False, act=keys("3", "H")),
    "diff-empty": Scene("nothing", act=keys("4")),
    "diff-held": Scene(act=keys("4")),
    "diff-finished": Scene("rehearsal", living=False, act=keys("4")),
    "diff-choices": Scene("rehearsal", living=False, act=keys("4", "b")),
    "runs-empty": Scene("nothing", act=keys("5")),
    "runs-held": Scene(act=keys("5")),
    "runs-finished": Scene("rehearsal", living=False, act=keys("5")),
    "progress-empty": Scene(change=_BATCH, act=keys("7")),
    "progress-running": Scene("tiny", events=_training(*_UNDER_WAY), act=keys("7", "k")),
    "progress-finished": Scene("rehearsal", living=False, act=keys("7")),
    "progress-over": Scene("rehearsal", living=False, act=_laid_over),
    "inspect-empty": Scene("", act=keys("6")),
    "inspect-held": Scene(act=keys("6")),
    "inspect-split": Scene(act=keys("6", "w")),
    "training-before": Scene("tiny", events=training_runs.begun),
    "training-running": Scene("tiny", events=_training(*_UNDER_WAY), act=_seventh),
    "training-waits": Scene("tiny", events=_WAITS),
    "training-rolled-back": Scene("tiny", events=_training()),
    "training-failed": Scene(
        "tiny",
        events=_training(
            *_SEVENTH,
            training_runs.proposed(7, failed="out of memory, also with half of the batch"),
            *training_runs.settled(7, 3, decided=False),
        ),
    ),
    "training-finished": Scene("tiny", living=False, events=training_runs.finished),
    "training-review": Scene("tiny", events=_WAITS, act=keys("2")),
    "training-diff": Scene("tiny", living=False, events=training_runs.finished, act=keys("4")),
    "training-runs": Scene("tiny", living=False, events=training_runs.finished, act=keys("5")),
    "inspect-streaming": Scene(
        change=_BATCH, act=_then(_streaming, keys("6"), goes_to("s1p1r0"), hearing(_PIECES))
    ),
}
