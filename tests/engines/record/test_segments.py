"""A journal in segments is one journal, whoever reads it, and wherever a kill cut a roll."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import DamagedError, RecordError, StudioError
from engines.core.state.fold import fold_events
from engines.core.state.run_state import RunState
from engines.pipeline.recorder import Recorder
from engines.record.derived import run_state
from engines.record.derived.run_state import (
    NAME,
    HistoryReader,
    open_run,
    read_history,
    read_run,
    read_step,
)
from engines.record.journal import (
    Journal,
    closed_path,
    first_line,
    journal_bytes,
    read,
    read_journal,
    segment_paths,
)
from engines.record.run_dir import RunDir
from tests.support.long_runs import a_long_run

EVENTS = list(a_long_run("exp", steps=9, batch=2, group=3))
STATES = [fold_events(EVENTS[:n]) for n in range(len(EVENTS) + 1)]
SEGMENT = 6_000
"""Bytes: a segment holds a step or two."""


async def write(journal: Path, events: list[ev.DurableEvent] = EVENTS) -> RunState:
    """As a run does: a roll before each step."""
    opened, state = open_run(
        journal, lambda path, **given: Journal(path, **given, segment_bytes=SEGMENT)
    )
    recorder = Recorder(opened, state)
    for event in events[state.events :]:
        if isinstance(event, ev.StepStarted):
            await recorder.roll(event.step - 1)
        await recorder.record(event)
    await opened.aclose()
    return state


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "exp" / "journal.jsonl"
    await write(path)
    assert len(closed(path)) >= 4
    return path


def closed(journal: Path) -> list[Path]:
    return sorted(journal.parent.glob("journal-0*.jsonl"))


def test_every_reader_reads_across_segments(journal: Path) -> None:
    run = RunDir(journal.parent)
    assert [entry.event for entry in read_journal(journal)] == EVENTS
    assert [entry.seq for entry in run.entries()] == [*range(1, len(EVENTS) + 1)]
    assert [entry.event for entry in run.entries(50)] == EVENTS[50:]
    assert read_run(journal).state == read_run(journal, anew=True).state == STATES[-1]
    assert read_run(journal).began == next(iter(read_journal(journal))).at == run.started_at()
    assert journal_bytes(journal) == sum(path.stat().st_size for path in segment_paths(journal))
    for events in (1, 40, 150, len(EVENTS)):
        assert read_run(journal, events).state == STATES[events]


def test_a_step_is_read_from_its_own_segment_and_tells_the_same(journal: Path) -> None:
    run, whole = RunDir(journal.parent), read_history(journal)
    for step in range(1, 10):
        alone = HistoryReader(run.journal, step).read().steps[step]
        assert alone.rollouts == whole.steps[step].rollouts
        assert alone.reflections == whole.steps[step].reflections
        found, wanted = read_step(run.journal, step), whole.steps[step]
        assert (found.decisions, found.committed) == (wanted.decisions, wanted.committed)
    assert not read_step(run.journal, 99).rollouts


async def test_a_resume_goes_on_from_the_state_at_the_last_roll(journal: Path) -> None:
    for path in closed(journal):
        path.write_bytes(b"x" * path.stat().st_size)  # of no other use to a resume than its size
    opened, state = open_run(journal)
    assert state == STATES[-1]
    opened.append_now(ev.RunPaused())
    opened.close()
    assert read_run(journal).state.events == len(EVENTS) + 1


@pytest.mark.parametrize("damage", ["gone", "torn", "altered", "other code", "older"])
async def test_without_a_usable_state_all_segments_are_read_and_that_is_told(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    kept = journal.parent / NAME
    whole = kept.read_bytes()
    match damage:
        case "gone":
            kept.unlink()
        case "torn":
            kept.write_bytes(whole[:-40])
        case "altered":
            kept.write_bytes(whole.replace(b'"status":"running"', b'"status":"stopped"'))
        case "other code":
            monkeypatch.setattr(run_state, "code_digest", lambda: "of the next release")
        case "older":
            older = tmp_path / "older" / "journal.jsonl"
            await write(older, EVENTS[:150])
            shutil.copy(older.parent / NAME, kept)
    told: list[str] = []
    opened, state = open_run(journal, tell=told.append)
    opened.close()
    assert state == STATES[-1]
    parts = f"{len(closed(journal))} closed parts"
    assert told == [f"{kept}: made again from {parts} of the journal"]
    opened, state = open_run(journal, tell=told.append)  # it was made again
    opened.close()
    assert (state, len(told)) == (STATES[-1], 1)


def test_readers_that_cannot_write_read_as_well(journal: Path) -> None:
    shutil.rmtree(journal.parent / run_state.FOLDER)
    (journal.parent / run_state.FOLDER).write_text("in the way")
    assert RunDir(journal.parent).state() == STATES[-1]


@pytest.mark.parametrize("number", [1, 3])
def test_a_closed_segment_that_is_gone_cut_or_another_is_refused_by_name(
    journal: Path, number: int
) -> None:
    segment = closed_path(journal, number)
    whole = segment.read_bytes()
    every = whole.splitlines(keepends=True)
    spoiled = {
        "gone": b"",
        "torn": whole[:-5],
        "a line too few": b"".join(every[:-1]),
        "another": closed_path(journal, 2).read_bytes(),
        "a flipped bit": bytes([*whole[:300], whole[300] ^ 1, *whole[301:]]),
    }
    for name, content in spoiled.items():
        segment.unlink(missing_ok=True)
        if content:
            segment.write_bytes(content)
        with pytest.raises(DamagedError, match="journal-0"):
            list(read_journal(journal))
        if "bit" not in name and name != "another":  # of these a resume knows by their size
            with pytest.raises(StudioError, match="journal-0"):
                open_run(journal)


def test_a_disk_without_hard_links_keeps_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "journal.jsonl"
    asyncio.run(write(path))
    assert closed(path) == []
    assert read_run(path).state == STATES[-1]


def test_a_reader_that_a_roll_overtakes_loses_nothing(tmp_path: Path) -> None:
    """After each file that it opens the run rolls once more."""
    path = tmp_path / "journal.jsonl"
    opened, _ = open_run(path, partial(Journal, segment_bytes=1))
    writing = iter(EVENTS)

    def go_on(count: int) -> None:
        for _ in range(count):
            if (event := next(writing, None)) is not None:
                opened.append_now(event)
        opened.roll(0)

    go_on(20)
    seen: list[int] = []

    def take(at: Path, place: object) -> None:
        if len(seen) % 7 == 0:
            go_on(10)
        seen.append(len(seen))

    read(path, take)
    opened.close()
    assert len(seen) == len(EVENTS)


def killed_before(call: int, journal: Path) -> bool:
    """Write the run in a child that ends before its nth call that changes a file."""
    child = os.fork()
    if not child:
        left = call

        def watch(name: str, given: tuple[object, ...]) -> None:
            nonlocal left
            if name == "open":
                path, _, flags = given
                is_ours = str(path).startswith(str(journal.parent))
                left -= is_ours and bool(int(str(flags)) & (os.O_WRONLY | os.O_RDWR))
            else:
                left -= name in ("os.link", "os.rename", "os.remove", "os.truncate")
            if left <= 0:
                os._exit(9)

        sys.addaudithook(watch)
        asyncio.run(write(journal))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.nightly
def test_a_run_killed_before_any_call_of_a_roll_goes_on_with_nothing_lost_or_doubled(
    tmp_path: Path,
) -> None:
    for call in itertools.count(1):
        path = tmp_path / str(call) / "journal.jsonl"
        path.parent.mkdir()
        if not killed_before(call, path):
            break
        events = [entry.event for entry in read_journal(path)]
        assert events == EVENTS[: len(events)], call
        assert read_run(path).state == STATES[len(events)], call
        assert asyncio.run(write(path)) == STATES[-1], call
        assert [entry.event for entry in read_journal(path)] == EVENTS, call
    assert call > 20


def test_a_journal_that_was_never_rolled_is_one_file_as_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for event in EVENTS:
        journal.append_now(event)
    assert not journal.roll(9)
    journal.close()
    assert [file.name for file in tmp_path.iterdir()] == ["journal.jsonl"]
    with pytest.raises(RecordError, match="cannot be read"):
        first_line(tmp_path / "none" / "journal.jsonl")
