"""A run whose journal rolls practises, stops and goes on as one whose journal does not."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from engines.core.codec import to_dict
from engines.core.types import NO_USAGE, Usage
from engines.record.derived.run_state import NAME, usage_sums
from engines.record.derived.run_state import NAME as STATE_NAME
from engines.record.journal import Journal, read_journal, segment_paths
from tests.support.harness import practised
from tests.support.usage import read_usage

ROLLING = partial(Journal, segment_bytes=1)
RUN = ("practice.epochs=2", "practice.batch_size=4", "practice.group_size=3", "data.truncate=8")
PASSING = {"seed", "elapsed_s", "pid", "settings", "refs", "digest", "offset", "epochs", "paid"}


def told(run: Path) -> list[tuple[str, str]]:
    """Every event without what differs between two runs or between a whole and a resumed one."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in PASSING and k != "at"}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    events = [entry.event for entry in read_journal(run / "journal.jsonl")]
    kept = [e for e in events if type(e).__name__ not in ("RunResumed", "RunEnded", "RunStarted")]
    return sorted((type(event).__name__, repr(plain(to_dict(event)))) for event in kept)


async def test_a_rolled_and_resumed_run_tells_the_same_as_one_file(tmp_path: Path) -> None:
    whole = await practised(tmp_path / "whole", *RUN)
    first = ("practice.epochs=1", *RUN[1:])
    await practised(tmp_path / "rolled", *first, open_journal=ROLLING)
    rolled = await practised(tmp_path / "rolled", *RUN, open_journal=ROLLING)
    assert len(segment_paths(whole.run.journal)) == 1
    assert len(segment_paths(rolled.run.journal)) >= 4
    assert (rolled.run.path / STATE_NAME).exists()
    assert told(rolled.run.path) == told(whole.run.path)
    assert rolled.library.content_hash == whole.library.content_hash
    assert rolled.run.state() == rolled.state


async def test_what_records_cost_is_added_up_once(tmp_path: Path) -> None:
    done = await practised(tmp_path, *RUN, open_journal=ROLLING)
    records = done.run.records
    every = sum((usage for _, usage in read_usage(records)), NO_USAGE)

    def sums() -> Usage:
        return sum((usage for _, usage in usage_sums(records)), NO_USAGE)

    assert sums() == every == done.state.paid
    first = min(records.glob("*.jsonl"))
    whole, times = first.read_bytes(), first.stat()
    first.write_bytes(b"x" * len(whole))

    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert sums() == every, "a file that is as it was is not read again"
    first.write_bytes(whole)
    kept = records.parent / NAME
    kept.write_bytes(kept.read_bytes().replace(b'"calls":', b'"galls":', 1))
    assert sums() == every, "an altered file is not believed"
