"""A run played again: its events, its text, its time, and that nothing of it can be changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from engines.core import events as ev
from engines.core.codec import dumps, from_dict
from engines.core.errors import ConflictError
from engines.core.text.tool_text import transcript_text
from engines.core.types import CallKey, Decision, rollout_id, try_id
from engines.record import lines
from engines.record.ledger import Record, read_trajectory
from studio.session.replay import (
    MOST_WAIT_S,
    Moment,
    ReplaySession,
    Span,
    TryText,
    cut_waits,
    read_texts,
)
from studio.session.requests import (
    ChangeSpeed,
    Commit,
    Decide,
    Kill,
    Pause,
    Preview,
    ReadQuestions,
    ReadQueue,
    Step,
    Stop,
)
from studio.session.session import Disconnected, EventReceived, SnapshotReceived, TextReceived
from tests.studio.tui.stage import finished_workspace
from tests.support.run_studio import studio


class Time:
    """Passes at once, and is added up."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.on_tick: Callable[[], None] = lambda: None

    async def __call__(self, seconds: float) -> None:
        self.slept += seconds
        self.on_tick()
        await asyncio.sleep(0)


async def played(
    session: ReplaySession, *, watch: bool = False
) -> tuple[list[object], dict[str, str]]:
    """Every message up to the end, and the text of the rollouts as it came piece by piece."""
    messages: list[object] = []
    texts: dict[str, str] = {}
    async for message in session.messages():
        messages.append(message)
        match message:
            case EventReceived(event=ev.RolloutStarted(key=key)) if watch:
                session.subscribe({*session._subscribed, try_id(key)})
            case TextReceived(pieces=pieces):
                for piece in pieces:
                    known = texts.get(piece.rollout, "")
                    assert piece.offset in (0, len(known))
                    texts[piece.rollout] = known[: piece.offset] + piece.text
            case Disconnected():
                await session.close()
    return messages, texts


async def test_a_replay_ends_in_the_state_of_the_run_and_its_text_is_what_was_said(
    tmp_path: Path,
) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    session = ReplaySession(workspace, run, 1.0, Time())
    messages, texts = await played(session, watch=True)
    events = [m.event for m in messages if isinstance(m, EventReceived)]
    durable = [event for event in events if isinstance(event, ev.DurableEvent)]
    assert durable == [entry.event for entry in run.entries()]
    assert session.state == run.state() and not session.living
    assert isinstance(messages[0], SnapshotReceived)
    finished = [event for event in events if isinstance(event, ev.RolloutFinished)]
    for one in finished:
        said = transcript_text(read_trajectory(run.records, one.refs))
        assert texts[rollout_id(one.step, one.position, one.index)] == said
    stages = [event.stage for event in events if isinstance(event, ev.StageEntered)]
    assert stages == ["consolidation", "review"] * len(
        [event for event in durable if isinstance(event, ev.LessonProposed)]
    )


async def test_the_speed_is_how_much_faster_than_it_went(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    took = {}
    for speed in (1.0, 10.0):
        time = Time()
        await played(ReplaySession(workspace, workspace.run("rehearsal"), speed, time))
        took[speed] = time.slept
    assert took[10.0] == pytest.approx(took[1.0] / 10, rel=0.01) and took[1.0] > 0.1


def test_text_comes_by_tokens_over_the_time_that_a_reply_took() -> None:
    key = CallKey("rollout", 1, 1, 0, 0)
    spans = Span(10.0, 14.0, 8, 4), Span(14.0, 15.0, 20, 1), Span(20.0, 22.0, 30, 10)
    text = TryText(key, "", "x" * 30, spans)
    # 4 tokens of 2 characters, one a second; a result comes whole at its end; 10 tokens in 2 s.
    at = {9: 0, 10.5: 0, 11: 2, 13.9: 6, 14: 8, 14.9: 8, 15: 20, 19: 20, 20.3: 21, 21: 25, 23: 30}
    assert {now: text.length_at(now) for now in at} == at


def test_long_waits_are_cut_and_what_took_long_is_not() -> None:
    key = CallKey("rollout", 1, 1, 0, 0)
    text = TryText(key, "", "slow", (Span(5.0, 65.0, 4, 4),))
    begins = Moment(5.0, ev.RolloutStarted(key, "p"), text)
    moments = [Moment(0.0, ev.RunPaused()), begins, Moment(1_065.0, ev.RunContinued())]
    out, cut_s, previous = cut_waits(moments, 0.0, 0.0)
    # 5 s of waiting become 3, the reply keeps its minute, and of 1,000 s 3 are left.
    assert [moment.at for moment in out] == [0.0, 3.0, 66.0]
    assert out[1].text is not None and out[1].text.spans[0].ended == 63.0
    assert (cut_s, previous) == (2 + 997, 1_065.0)
    again, _, _ = cut_waits([Moment(1_066.0, ev.RunPaused())], cut_s, previous)
    assert again[0].at == 66.0 + 1 and MOST_WAIT_S == 3.0


async def test_a_run_that_was_killed_plays_as_far_as_it_came(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    written = run.journal.read_bytes().splitlines(keepends=True)
    kept = next(at for at, line in enumerate(written) if b'"RolloutFinished"' in line) + 2
    run.journal.write_bytes(b"".join(written[:kept]) + written[kept][:40])
    session = ReplaySession(workspace, run, 1000.0, Time())
    messages, texts = await played(session, watch=True)
    assert session.state.ending == "" and not session.living
    assert session.label == "replay 1000× over"
    assert isinstance(messages[-1], Disconnected) and messages[-1].reason == "the replay is over"
    # Also the tries that were under way as it died.
    finished = sum(b'"RolloutFinished"' in line for line in written[:kept])
    assert len([name for name in texts if name.startswith("s1")]) > finished


async def test_a_damaged_record_ends_the_replay_and_is_named(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    file = run.records / "step-0001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"step", b"stop", 1))
    messages, _ = await played(ReplaySession(workspace, run, 1000.0, Time()))
    assert isinstance(messages[-1], Disconnected) and "step-0001.jsonl:1" in messages[-1].reason


async def test_a_replay_pauses_steps_and_changes_its_speed_and_nothing_else(
    tmp_path: Path,
) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    before = {p: p.read_bytes() for p in workspace.path.rglob("*") if p.is_file()}
    time = Time()
    session = ReplaySession(workspace, run, 10.0, time)
    assert (await session.send(Step()))["told"] == "replay 10×: up to the end of the step"
    messages = session.messages()
    while not session.paused:
        await anext(messages)
    assert session.state.steps_finished == 1 and session.label == "replay 10× paused"
    queue = await session.send(ReadQueue())
    assert queue.open == () and queue.base_version == session.state.base_version
    assert (await session.send(ChangeSpeed(True)))["told"] == "replay 20× paused"
    for _ in range(20):
        await session.send(ChangeSpeed(False))
    assert session.speed == 0.1
    for _ in range(20):
        await session.send(ChangeSpeed(True))
    assert session.speed == 1000 and (await session.status())["step"] == 1
    decision = Decision("op1.1", "approve", "ann")
    for asked in (
        session.send(Decide((decision,))),
        session.send(Commit(session.state.step, session.who)),
        session.send(Kill(rollout="s1p0r0")),
        session.send(Stop()),
        session.send(Preview((decision,))),
        session.take_control(),
    ):
        with pytest.raises(ConflictError, match=r"changes nothing.*studio attach rehearsal"):
            await asked
    assert (await session.send(Pause()))["told"] == "replay 1000×: s p pauses it"
    async for message in messages:
        if isinstance(message, Disconnected):
            break
    assert (await session.send(Pause()))["told"] == "the replay is over: q leaves it"
    assert await session.close() == "look at the run itself with: studio attach rehearsal"
    assert {p: p.read_bytes() for p in workspace.path.rglob("*") if p.is_file()} == before


async def test_questions_are_told_once_their_tries_begin(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    session = ReplaySession(workspace, workspace.run("rehearsal"), 1000.0, Time())
    messages, _ = await played(session)
    events = [m.event for m in messages if isinstance(m, EventReceived)]
    problems = [event.problem for event in events if isinstance(event, ev.RolloutStarted)]
    told = await session.send(ReadQuestions(tuple(problems)))
    assert set(told) == set(problems) and all(told.values())


def test_a_try_that_was_made_again_is_another_try(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    run = workspace.run("rehearsal")
    file = run.records / "step-0001.jsonl"
    (line, *_) = lines.read(file, chained=False).lines
    record = from_dict(Record, orjson.loads(line.body))
    place = record.key.step, record.key.position, record.key.index
    again = replace(record, at=record.at + 9)
    file.write_bytes(b"".join(lines.encode(dumps(one))[0] for one in (record, again)))
    for ends, tries in ([record.at + 1, again.at], 2), ([again.at], 1):
        assert len(read_texts(run, 1, {place: ends})) == tries


def test_the_command_refuses_a_speed_out_of_bounds_no_terminal_and_an_unknown_run(
    tmp_path: Path,
) -> None:
    workspace = finished_workspace(tmp_path).path
    for words, said in (
        (("rehearsal",), "studio runs replay, standard input: it is no terminal"),
        (("rehearsal", "--speed", "0.05"), "it must be at least 0.1"),
        (("none",), "run none: there is none"),
    ):
        done = studio("runs", "replay", *words, workspace=workspace)
        assert done.code == 2 and said in done.stderr, done.stderr
