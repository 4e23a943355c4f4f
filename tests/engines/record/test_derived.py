"""What is derived: damaged, old or missing, it is made again, and nobody is told anything else."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.errors import DamagedError
from engines.core.state.fold import fold_events
from engines.core.types import NO_USAGE, CallKey, Usage
from engines.record.derived import catalogue, run_state
from engines.record.derived.catalogue import condition, find_rows, refresh_catalogue
from engines.record.derived.run_state import open_run, read_run, usage_sums
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from tests.engines.record.test_segments import EVENTS as LONG
from tests.engines.record.test_segments import write
from tests.support.builders import a_rollout_finished, a_run, a_step
from tests.support.long_runs import a_long_run, write_events

EVENTS = list(a_long_run("exp", steps=8, batch=3, group=4))
FILES = {
    "state": run_state.NAME,
    "rows": catalogue.NAME,
    "usage": run_state.NAME,
    "catalogue": "../../catalogue.json",
}


@pytest.fixture
async def workspace(tmp_path: Path) -> Workspace:
    """A run in segments with a record, all that is derived of which was made."""
    workspace = Workspace(tmp_path)
    journal = tmp_path / "runs/exp/journal.jsonl"
    await write(journal)
    ledger = RecordLedger(journal.parent / "records", 1)
    ledger.record_cost(CallKey("embedding", 0, 0), "openai:e", Usage(8, 0, 1), "vectors of texts")
    await ledger.aclose()
    read_all(workspace)
    return workspace


def read_all(workspace: Workspace) -> list[Any]:
    """Everything that readers make of the run."""
    run = workspace.run("exp")
    opened, resumed = open_run(run.journal)
    opened.close()
    return [
        read_run(run.journal),
        resumed,
        find_rows(workspace, condition()),
        sum((paid for _, paid in usage_sums(run.records)), NO_USAGE),
        refresh_catalogue(workspace),
    ]


def corrupt(data: bytes, luck: random.Random) -> bytes:
    at = luck.randrange(len(data))
    ways: list[Callable[[], bytes]] = [
        lambda: data[:at] + bytes([data[at] ^ 1 << luck.randrange(8)]) + data[at + 1 :],
        lambda: data[:at],
        lambda: data[:at] + b"7" + data[at:],
        lambda: data[:at] + data[at + 1 :],
        lambda: luck.choice([b"", b"{}", b"[]", b"\xff\n", b"{", data * 2, bytes(len(data))]),
    ]
    return luck.choice(ways)()


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_or_missing_file_is_made_again(workspace: Workspace, kind: str) -> None:
    path = workspace.run("exp").path / FILES[kind]
    right, whole = read_all(workspace), path.read_bytes()
    luck = random.Random(kind)
    for _ in range(60):
        path.write_bytes(corrupt(whole, luck))
        assert read_all(workspace) == right
        assert path.read_bytes() == whole
    path.unlink()
    assert read_all(workspace) == right
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", ["state", "rows", "usage"])
def test_what_cannot_be_written_is_made_each_time(workspace: Workspace, kind: str) -> None:
    path, right = workspace.run("exp").path / FILES[kind], read_all(workspace)
    path.unlink()
    path.mkdir()  # as in a folder that only others may write
    assert read_all(workspace) == right


def test_what_other_code_made_is_made_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, right = workspace.run("exp").path / catalogue.NAME, read_all(workspace)
    whole = path.read_bytes()
    monkeypatch.setattr(run_state, "code_digest", lambda: "of the next release")
    assert run_state.read_derived(path) is None
    assert read_all(workspace) == right
    assert path.read_bytes() != whole


def test_what_is_derived_of_another_run_is_not_taken(workspace: Workspace, tmp_path: Path) -> None:
    events = list(a_long_run("exp-2", steps=8, batch=3, group=4))
    second = tmp_path / "runs/exp-2/journal.jsonl"
    write_events(second, events)
    (second.parent / run_state.FOLDER).mkdir()
    for name in (run_state.NAME, catalogue.NAME):
        first = workspace.run("exp").path / name
        (second.parent / name).write_bytes(first.read_bytes())
    assert read_run(second).state == fold_events(events)
    rows, _ = find_rows(workspace, condition())
    assert {row["run"] for row in rows} == {"exp", "exp-2"}


def test_a_reader_reads_the_growing_part_alone(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    parse = run_state.parse_entry
    monkeypatch.setattr(
        run_state, "parse_entry", lambda path, line: parsed.append(1) or parse(path, line)
    )
    assert workspace.run("exp").state() == fold_events(LONG)
    assert 0 < len(parsed) < len(LONG) / 2


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "exp" / "journal.jsonl"
    write_events(path, EVENTS)
    return path


def test_the_first_events_add_up_to_what_they_did(journal: Path) -> None:
    for count in (len(EVENTS), 7, 100):
        assert read_run(journal, count).state == fold_events(EVENTS[:count])
    assert read_run(journal, 10_000).state.events == len(EVENTS)


def test_a_journal_that_was_altered_in_the_middle_is_refused(journal: Path) -> None:
    read_run(journal)
    raw = journal.read_bytes()
    journal.write_bytes(raw.replace(b'"tail":"so', b'"tail":"SO', 1))
    with pytest.raises(DamagedError, match=r"journal\.jsonl:4"):
        read_run(journal)


def test_what_is_being_written_is_left_out(journal: Path) -> None:
    raw = journal.read_bytes()
    journal.write_bytes(raw[:-1])  # it lacks nothing but its newline
    assert read_run(journal).state == fold_events(EVENTS)
    journal.write_bytes(raw[:-9])
    assert read_run(journal).state == fold_events(EVENTS[:-1])
    journal.unlink()
    assert read_run(journal).state == fold_events([])


def test_numbers_that_json_cannot_hold_are_read(journal: Path) -> None:
    absurd = [a_run(), a_step(), *(a_rollout_finished(0, n) for n in range(2))]
    huge = Usage(2**62, 2**62, 1)  # added up, more than JSON numbers hold
    spent = [ev.OperationsDecided(1, (), huge), ev.OperationsDecided(1, (), huge)]
    write_events(journal, [*absurd, *spent])
    assert read_run(journal).state == fold_events([*absurd, *spent])


def test_many_readers_and_a_writer_at_once_agree(journal: Path) -> None:
    whole = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"")
    wrong: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            state = read_run(journal).state
            if state != fold_events(EVENTS[: state.events]):
                wrong.append(state.events)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    with journal.open("ab", buffering=0) as file:
        for line in whole:
            file.write(line[: len(line) // 2])
            file.write(line[len(line) // 2 :])
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert read_run(journal).state == fold_events(EVENTS)


def test_a_run_that_goes_on_is_read_on(journal: Path) -> None:
    assert read_run(journal).state == fold_events(EVENTS)
    opened = Journal(journal)
    opened.append_now(ev.RunPaused())
    opened.close()
    assert read_run(journal).state.status == "paused"
