"""The journal: on disk when it returns, whole lines only, damage refused, tears told."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from engines.core import events as ev
from engines.core.errors import DamagedError, LockedError, RecordError
from engines.core.state.fold import fold_events
from engines.record import lines
from engines.record.appender import Appender, write_atomic
from engines.record.journal import FORMAT, Journal, read_journal
from engines.record.lock import is_held, write_lock
from tests.support.builders import a_run, a_step

EVENTS: tuple[ev.DurableEvent, ...] = (
    a_run(),
    a_step(1),
    ev.StepFinished(1, 1),
    ev.RunEnded("finished", "é"),
)


def a_journal(path: Path, *events: ev.DurableEvent) -> list[int]:
    """Write the events; returns where each line ends, 0 first."""
    journal = Journal(path, clock=lambda: 5.0)
    ends = [0]
    for event in events or EVENTS:
        journal.append_now(event)
        ends.append(path.stat().st_size)
    journal.close()
    return ends


def events_of(path: Path) -> list[ev.DurableEvent]:
    return [entry.event for entry in read_journal(path)]


def test_an_event_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, clock=lambda: 5.0)
    for count, event in enumerate(EVENTS, 1):
        journal.append_now(event)
        assert events_of(path) == list(EVENTS[:count])
    journal.close()
    assert [(e.seq, e.at) for e in read_journal(path)] == [(n, 5.0) for n in (1, 2, 3, 4)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reopened_journal_goes_on_in_number_and_chain(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    a_journal(path, *EVENTS[:2])
    again = Journal(path)
    assert [entry.event for entry in again.entries] == list(EVENTS[:2])
    again.append_now(EVENTS[2])
    again.close()
    assert [e.seq for e in read_journal(path)] == [1, 2, 3]


def test_a_journal_cut_at_any_byte_of_its_last_lines_is_mended_and_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    ends = a_journal(path)
    whole = path.read_bytes()
    for cut in range(ends[2], len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends) - 1
        lacks_newline = cut + 1 in ends
        assert len(events_of(path)) == complete + lacks_newline  # a reader changes nothing
        assert path.stat().st_size == cut
        told: list[str] = []
        journal = Journal(path, tell=told.append)
        kept = complete + lacks_newline
        assert [entry.event for entry in journal.entries] == list(EVENTS[:kept])
        journal.append_now(ev.RunPaused())
        journal.close()
        assert events_of(path) == [*EVENTS[:kept], ev.RunPaused()]
        if cut in ends:
            assert told == []
        elif lacks_newline:
            assert "put back the newline" in told[0]
        else:
            assert f"cut {cut - ends[complete]} bytes" in told[0]


def test_a_flipped_byte_in_the_middle_is_damage_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    ends = a_journal(path)
    whole = path.read_bytes()
    for place in range(ends[1], ends[3], 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x04
        path.write_bytes(damaged)
        number = 2 if place < ends[2] else 3
        with pytest.raises(DamagedError) as refused:
            Journal(path)
        assert refused.value.place == f"{path}:{number}"
        assert "Restore it from a copy" in refused.value.move
        assert path.read_bytes() == bytes(damaged)  # refusing changes nothing


def test_a_damaged_newline_before_the_last_record_swallows_nothing(tmp_path: Path) -> None:
    """Known defect elsewhere: two records became one torn line, and both were cut."""
    path = tmp_path / "journal.jsonl"
    ends = a_journal(path)
    whole = path.read_bytes()
    for size in (len(whole), len(whole) - 1, ends[3] + 20):  # the last record whole, short, torn
        damaged = bytearray(whole[:size])
        damaged[ends[3] - 1] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"journal\.jsonl:3: "):
            Journal(path)


def test_a_journal_of_another_format_or_with_an_unknown_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for body, told in (
        (
            {"v": FORMAT + 1, "seq": 1, "at": 0, "kind": "RunPaused"},
            f"has format {FORMAT + 1}, this studio reads format {FORMAT}",
        ),
        ({"v": FORMAT - 1, "seq": 1, "at": 0, "kind": "RunPaused"}, f"has format {FORMAT - 1}"),
        ({"v": FORMAT, "seq": 1, "at": 0, "kind": "RunVanished"}, "unknown event"),
    ):
        path.write_bytes(lines.encode(orjson.dumps(body))[0])
        with pytest.raises(RecordError, match=told) as refused:
            Journal(path)
        assert refused.value.place == f"{path}:1"


def test_a_clock_that_goes_backwards_changes_neither_order_nor_content(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    times = iter([9.0, 3.0, 7.0, -1.0])
    journal = Journal(path, clock=lambda: next(times))
    for event in EVENTS:
        journal.append_now(event)
    journal.close()
    found = tuple(read_journal(path))
    assert [entry.at for entry in found] == [9.0, 3.0, 7.0, -1.0]
    assert [entry.seq for entry in found] == [1, 2, 3, 4]
    assert fold_events(entry.event for entry in found) == fold_events(EVENTS)


async def test_concurrent_appends_keep_the_order_of_their_calls(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    steps = [ev.StepFinished(1, n) for n in range(1, 41)]
    done: list[int] = []

    async def append(event: ev.StepFinished) -> None:
        await journal.append(event)
        done.append(event.step)

    async with asyncio.TaskGroup() as group:
        for event in steps:
            group.create_task(append(event))
    await journal.aclose()
    assert events_of(journal.path) == steps
    assert done == [event.step for event in steps]


async def test_a_cancelled_append_leaves_a_whole_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    task = asyncio.create_task(journal.append(EVENTS[0]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await journal.append(EVENTS[1])
    await journal.aclose()
    assert events_of(journal.path) == list(EVENTS[:2])


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file grow beyond `size`, as a full disk would: writes come back short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


async def test_a_full_disk_is_a_record_error_and_leaves_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    a_journal(path, *EVENTS[:2])
    before = path.read_bytes()
    journal = Journal(path)
    with file_size_limit(len(before) + 30):
        tried = await asyncio.gather(
            *(journal.append(event) for event in EVENTS[2:]), return_exceptions=True
        )
    assert [type(error) for error in tried] == [RecordError, RecordError]
    assert str(path) in str(tried[0])
    assert path.read_bytes() == before
    # Sequence and chain have moved on, so nothing may follow the gap.
    with pytest.raises(RecordError, match="give the same command again"):
        await journal.append(ev.RunPaused())
    await journal.aclose()
    assert events_of(path) == list(EVENTS[:2])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
async def test_a_file_that_can_neither_be_written_nor_cut_is_an_error_and_no_endless_wait() -> None:
    file = Appender(Path("/dev/full"))
    tried = await asyncio.gather(file.append(b"a\n"), file.append(b"b\n"), return_exceptions=True)
    assert [type(error) for error in tried] == [RecordError, RecordError]
    with pytest.raises(RecordError, match="cannot be written"):
        file.append_now(b"c\n")
    await file.wait_idle()
    file.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RecordError, match="--workspace"):
        Appender(blocked / "journal.jsonl")
    with pytest.raises(RecordError, match="cannot be written"):
        write_atomic(tmp_path / "none" / "x.json", b"{}")


def test_a_whole_write_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, b"old")
    with file_size_limit(10), pytest.raises(RecordError, match="Make room"):
        write_atomic(path, b"n" * 100)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_one_holder_writes_and_the_second_is_told_who(tmp_path: Path) -> None:
    with write_lock(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(LockedError, match=f"pid {os.getpid()}"), write_lock(tmp_path):
            pass
    assert not is_held(tmp_path)
    with write_lock(tmp_path):  # and it is free again
        pass


def test_who_is_refused_the_lock_is_told_what_its_holder_calls_itself(tmp_path: Path) -> None:
    with (
        write_lock(tmp_path, who="a review by ann"),
        pytest.raises(LockedError, match=rf"a review by ann \(pid {os.getpid()}\)"),
        write_lock(tmp_path),
    ):
        pass


def test_a_full_disk_does_not_keep_a_holder_from_its_work(tmp_path: Path) -> None:
    with file_size_limit(0), write_lock(tmp_path):
        assert is_held(tmp_path)


def test_asking_who_holds_a_folder_creates_nothing(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []
