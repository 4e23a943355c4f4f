"""Draws the pictures of README.md: pages of the screen over a run of the preset `demo`.

    python -m tests.studio.tui.screenshots .github/screens

The run is a real one, practised and decided on without a screen. The screen then shows it at
some of its moments, and what streamed in is sent again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import CallKey
from engines.data.dataset import read_problems
from engines.record.journal import Journal
from engines.record.run_dir import Workspace
from studio.session.session import EventReceived, TextPiece, TextReceived
from tests.studio.tui.scenes import Stage, in_order
from tests.studio.tui.stage import FakeSession, app_on
from tests.studio.tui.svg import Frame, draw_svg, frame_of

PICTURES = Path(__file__).parents[3] / ".github/screens"
MOVING, STILLS = "demo.svg", ("review-120x36.svg", "progress-120x36.svg")
_PROBLEMS = Path(__file__).parents[3] / "sample_data/arithmetic-demo.jsonl"

_SETTINGS = (
    "policy.pace_tokens_per_s=null",
    "practice.batch_size=8",
    "practice.epochs=2",
    "evaluation.strategy=steps",
    "evaluation.every_steps=1",
    "evaluation.limit=100",
    "review.hold_s=0.001",
)
_ANSWERS = (("a", "a", "a"), ("r gives an answer away", "a", "a", "d cut off"), ("a", "a"), ("a",))
"""What is answered to `studio review` after each step."""

_AS_SAM = """
import runpy, studio.process
studio.process.login_name = lambda: "sam"
runpy.run_module("studio", run_name="__main__")
"""


def practise(folder: Path) -> Workspace:
    """A workspace whose run `demo` is finished, each of its operations decided."""
    for answers in (*_ANSWERS, ()):
        _studio(folder, "headless", "demo", "--name", "demo", "--review", "wait", *_SETTINGS)
        if answers:
            _studio(folder, "review", "demo", typed="\n".join(answers) + "\n")
    workspace = Workspace(folder)
    last = workspace.run("demo").entries()[-1].event
    assert isinstance(last, ev.RunEnded) and last.how == "finished", f"undecided: {last}"
    in_order(workspace.run("demo"))
    return workspace


def _studio(folder: Path, *arguments: str, typed: str = "") -> None:
    command = [sys.executable, "-c", _AS_SAM, "--workspace", str(folder), *arguments]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 3, 4), done.stderr  # 4: the lost reply


def _cut(events: Sequence[ev.DurableEvent], kind: type, step: int) -> int:
    """Where the first event of a kind in a step stands."""
    for at, event in enumerate(events):
        if isinstance(event, kind) and getattr(event, "step", step) == step:
            return at
    raise LookupError(f"no {kind.__name__} in step {step}")


@asynccontextmanager
async def _opened(
    finished: Workspace, size: tuple[int, int], upto: Callable[[list[ev.DurableEvent]], int] = len
) -> AsyncIterator[Stage]:
    """The screen over a copy of the run that goes only so far."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(finished.path, Path(place) / "practice")
        workspace = Workspace(Path(place) / "practice")
        run = workspace.run("demo")
        events = [entry.event for entry in run.entries()]
        at = upto(events)
        session = FakeSession(run, living=at < len(events))
        if session.living:
            kept = [event for event in events[:at] if not isinstance(event, ev.RunEnded)]
            run.journal.unlink()
            journal = Journal(run.journal)
            session.state = RunState()
            for event in kept:
                journal.append_now(event)
                fold(session.state, event)
            journal.close()
        session.recorded = events  # type: ignore[attr-defined]
        session.asks = {one.id: one.question for one in read_problems(_PROBLEMS)}
        app = app_on(session, workspace)
        app.person = "sam"
        async with app.run_test(size=size) as pilot:
            stage = Stage(app, pilot, session)
            await stage.rest()
            yield stage


def _second_step(events: list[ev.DurableEvent]) -> int:
    return _cut(events, ev.StepStarted, 2)


def _second_review(events: list[ev.DurableEvent]) -> int:
    return _cut(events, ev.LessonProposed, 2) + 1


def _texts(finished: Workspace, step: int) -> dict[str, str]:
    """What each rollout of a step answered."""
    path = finished.run("demo").records / f"step-{step:04d}.jsonl"
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)["e"]
        key = record["key"]
        if key["purpose"] == "rollout":
            found[f"s{step}p{key['position']}r{key['index']}"] = record["reply"]["text"]
    return found


async def _live(finished: Workspace, size: tuple[int, int]) -> list[Frame]:
    """Step 2 streams: at first few groups are through, then half of them."""
    async with _opened(finished, size, _second_step) as stage:
        assert stage.session is not None
        events: list[ev.DurableEvent] = stage.session.recorded  # type: ignore[attr-defined]
        step = events[_second_step(events)]
        texts = _texts(finished, 2)
        keys = [CallKey("rollout", 1, 2, at, i) for at in range(8) for i in range(5)]
        started = [EventReceived(ev.RolloutStarted(key, "")) for key in keys]
        await stage.hear(EventReceived(step), *started)
        frames = []
        heard = 0
        for through, share, shown_s in ((2, 0.35, 1.2), (2, 0.6, 1.2), (4, 0.8, 2.6)):
            ended = [event for event in events if heard <= _group_ended(event) < through]
            await stage.hear(*map(EventReceived, ended))
            heard = through
            while stage.app.navigation.page("live").cursor.position < through:  # type: ignore[attr-defined]
                await stage.press("right_square_bracket")
            said = [
                TextPiece(name, 0, text[: int(len(text) * (share - 0.06 * (at % 5)))])
                for at, (name, text) in enumerate(sorted(texts.items()))
                if int(name.split("p")[1].split("r")[0]) >= through
            ]
            await stage.hear(TextReceived(tuple(said)))
            caption = "Practice: the model tries each problem several times"
            frames.append(frame_of(stage.app, caption, shown_s))
        return frames


def _group_ended(event: ev.DurableEvent) -> int:
    """The position of the group of step 2 that an event is about, -1 of any other."""
    kinds = (ev.RolloutFinished, ev.RolloutJudged, ev.GroupReflected)
    return event.position if isinstance(event, kinds) and event.step == 2 else -1


async def _review(finished: Workspace, size: tuple[int, int]) -> list[Frame]:
    async with _opened(finished, size, _second_review) as stage:
        await stage.press("2")
        told = "A lesson is proposed, with the tries it comes from: it gives an answer away"
        frames = [frame_of(stage.app, told, 4)]
        await stage.press("o", "w")
        frames.append(frame_of(stage.app, "A winner beside a loser, and where they part", 3.5))
        await stage.press("2", "r")
        frames.append(frame_of(stage.app, "r rejects it", 2))
        await stage.press("A")
        frames.append(
            frame_of(stage.app, "A approves those that are safe, but not the unticked", 3)
        )
        return frames


async def _afterwards(finished: Workspace, size: tuple[int, int]) -> list[Frame]:
    async with _opened(finished, size) as stage:
        await stage.press("3", "j", "j")
        library = frame_of(stage.app, "The library goes in front of the next prompts", 3)
        await stage.press("7")
        return [library, frame_of(stage.app, "Did it help? Reward, and held-out problems", 4.5)]


async def draw(folder: Path) -> list[Path]:
    """Every picture; returns the files written."""
    with tempfile.TemporaryDirectory() as place:
        finished = practise(Path(place) / "practice")
        size = (120, 32)
        moving = [
            *await _live(finished, size),
            *await _review(finished, size),
            *await _afterwards(finished, size),
        ]
        held, progress = STILLS
        made = {
            MOVING: moving,
            held: (await _review(finished, (120, 36)))[:1],
            progress: (await _afterwards(finished, (120, 36)))[1:],
        }
    for name, frames in made.items():
        title = "practice studio over a rehearsal: replies are scripted"
        (folder / name).write_text(draw_svg(frames, title), encoding="utf-8")
    return [folder / name for name in made]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for path in asyncio.run(draw(folder)):
        print(path, f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
