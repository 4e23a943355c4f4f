"""The index beside a journal: never believed where it could be wrong, and never needed."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import DamagedError
from engines.core.state.fold import fold_events
from engines.core.types import Usage
from engines.record import lines, run_index
from engines.record.journal import Journal, read_journal
from engines.record.run_dir import RunDir
from engines.record.run_index import NAME, is_wrong, read_row, read_run
from tests.support.builders import a_rollout_finished, a_run, a_step
from tests.support.long_runs import a_long_run, write_events

EVENTS = list(a_long_run("exp", steps=8, batch=3, group=4))


@pytest.fixture(autouse=True)
def _every_reader_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "FEW_EVENTS", 0)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "exp" / "journal.jsonl"
    write_events(path, EVENTS)
    return path


def write_first(journal: Path, count: int, whole: bytes) -> None:
    """The journal as it was after so many events."""
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:count]))


def append(journal: Path, *events: ev.DurableEvent) -> None:
    opened = Journal(journal)
    for event in events:
        opened.append_now(event)
    opened.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_state_by_its_index_is_that_of_the_whole_journal(journal: Path, seed: int) -> None:
    chance, whole = random.Random(seed), journal.read_bytes()
    for count in sorted(chance.sample(range(1, len(EVENTS)), 12)):
        write_first(journal, count, whole)
        found = read_run(journal)  # behind what the reader before it wrote
        assert found.state == fold_events(EVENTS[:count])
        entries = tuple(read_journal(journal))
        assert (found.began, found.last) == (entries[0].at, entries[-1].at)
        assert read_run(journal) == found
        assert not is_wrong(journal)


def test_the_first_events_add_up_to_what_they_did(journal: Path) -> None:
    for count in (len(EVENTS), 7, 100):
        journal.with_name(NAME).unlink(missing_ok=True)
        assert read_run(journal, count).state == fold_events(EVENTS[:count])  # without an index
        read_run(journal)
        assert read_run(journal, count).state == fold_events(EVENTS[:count])  # which covers more
    append(journal, *[ev.RunPaused()] * 9)
    assert read_run(journal, len(EVENTS) + 4).state.events == len(EVENTS) + 4
    assert read_run(journal, 10_000).state.events == len(EVENTS) + 9


def test_a_list_needs_the_first_line_of_an_index_alone(journal: Path) -> None:
    row = read_row(journal)
    assert row["status"] == "finished" and row["practises"]["model"] == "openai:m"
    index = journal.with_name(NAME)
    index.write_bytes(index.read_bytes().splitlines(keepends=True)[0])
    assert read_row(journal) == row
    append(journal, ev.RunPaused())
    assert read_row(journal)["status"] == "paused"


def test_a_reader_reads_only_what_came_since(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_run(journal)
    append(journal, ev.RunPaused())
    seen: list[object] = []
    parse = run_index.parse_entry
    monkeypatch.setattr(
        run_index, "parse_entry", lambda path, line: seen.append(line.number) or parse(path, line)
    )
    assert RunDir(journal.parent).state().status == "paused"
    assert seen == [len(EVENTS) + 1]


def test_an_index_of_another_length_is_not_believed(journal: Path) -> None:
    """A repair cut the journal, and the run went on differently."""
    whole = journal.read_bytes()
    read_run(journal)
    write_first(journal, 40, whole)
    assert read_run(journal).state == fold_events(EVENTS[:40])
    other = [*EVENTS[:40], *[ev.RunPaused()] * len(EVENTS)]
    write_events(journal, other)
    assert read_run(journal).state == fold_events(other)


def test_the_index_of_another_run_is_not_believed(journal: Path, tmp_path: Path) -> None:
    second = tmp_path / "runs" / "exp-2" / "journal.jsonl"
    events = list(a_long_run("exp-2", steps=8, batch=3, group=4))
    write_events(second, events)
    read_run(journal)
    second.with_name(NAME).write_bytes(journal.with_name(NAME).read_bytes())
    assert read_run(second).state == fold_events(events)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_index_is_made_anew_without_a_word(journal: Path, seed: int) -> None:
    right = read_run(journal)
    index, chance = journal.with_name(NAME), random.Random(seed)
    raw = bytearray(index.read_bytes())
    at = chance.choice((chance.randrange(400), chance.randrange(len(raw))))
    match seed % 4:
        case 0:
            raw[at] ^= 1 << chance.randrange(8)
        case 1:
            del raw[at:]
        case 2:
            raw[at:at] = b"7"
        case 3:
            raw = bytearray(chance.choice((b"", b"{}\n", b"\xff\n", b"\n\n", bytes(raw) * 2)))
    index.write_bytes(raw)
    assert read_run(journal) == right
    assert read_run(journal) == right


def test_an_index_that_other_code_wrote_is_not_believed(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_run(journal)
    monkeypatch.setattr(run_index, "code_digest", lambda: "of the next release")
    seen: list[int] = []
    parse = run_index.parse_entry
    monkeypatch.setattr(
        run_index, "parse_entry", lambda path, line: seen.append(line.number) or parse(path, line)
    )
    read_run(journal)
    assert len(seen) == len(EVENTS)


def test_a_journal_that_was_altered_in_the_middle_is_refused_all_the_same(journal: Path) -> None:
    read_run(journal)
    raw = journal.read_bytes()
    journal.write_bytes(raw.replace(b'"tail":"so', b'"tail":"SO', 1))
    with pytest.raises(DamagedError, match=r"journal\.jsonl:4"):
        read_run(journal)


def test_what_was_being_written_is_left_out_and_not_indexed(journal: Path) -> None:
    raw = journal.read_bytes()
    journal.write_bytes(raw[:-1])  # it lacks nothing but its newline
    assert read_run(journal).state == fold_events(EVENTS)
    assert not journal.with_name(NAME).exists()
    journal.write_bytes(raw[:-9])
    assert read_run(journal).state == fold_events(EVENTS[:-1])
    journal.write_bytes(raw)
    assert read_run(journal).state == fold_events(EVENTS)


def test_a_run_that_cannot_be_indexed_is_read(journal: Path) -> None:
    journal.with_name(NAME).mkdir()  # as in a folder that only others may write
    assert read_run(journal).state == fold_events(EVENTS)
    assert [path.name for path in sorted(journal.parent.iterdir())] == [
        "index.json",
        "journal.jsonl",
    ]
    absurd = [a_run(), a_step(), *(a_rollout_finished(0, n) for n in range(2))]
    huge = Usage(2**62, 2**62, 1)  # more than JSON numbers hold, added up
    spent = [ev.OperationsDecided(1, (), huge), ev.OperationsDecided(1, (), huge)]
    write_events(journal, [*absurd, *spent])
    assert read_run(journal).state == fold_events([*absurd, *spent])
    journal.unlink()
    assert read_run(journal).state == fold_events([])


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


def test_an_index_that_would_be_believed_and_is_wrong_is_told(journal: Path) -> None:
    read_run(journal)
    index = journal.with_name(NAME)
    assert not is_wrong(journal)
    right, (head, body) = index.read_bytes(), lines.read(index, chained=True).lines
    index.write_bytes(right[:-20])
    assert is_wrong(journal)
    first, chain = lines.encode(head.body)
    other = body.body.replace(b'"status":"finished"', b'"status":"stopped"')
    index.write_bytes(first + lines.encode(other, chain)[0])
    assert is_wrong(journal)
    append(journal, ev.RunPaused())
    index.write_bytes(right)
    assert not is_wrong(journal)  # it does not reach so far
