"""Files cut anywhere and bits flipped anywhere: repaired, harmless, or refused with the line.

Never silently other: what is read is always the undamaged events or the beginning of them,
and where it is less than the file once held in whole lines, somebody is told.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from engines.core import events as ev
from engines.core.codec import from_dict
from engines.core.errors import DamagedError, StudioError
from engines.core.state.fold import fold_events
from engines.core.state.run_state import RunState
from engines.core.types import Decision
from engines.record import lines
from engines.record.journal import Entry, Journal, read_journal
from engines.record.ledger import Record, RecordLedger
from engines.record.libraries import LibraryFolder, version_path
from engines.record.run_dir import Workspace
from studio.workspace.doctor import diagnose
from tests.engines.pipeline.test_resume import library_commits, recorded
from tests.support.builders import answering
from tests.support.harness import Practised, practised

SMALL = (
    "practice.epochs=2",
    "practice.batch_size=2",
    "practice.group_size=2",
    "data.truncate=4",
    "practice.experiences_per_query=2",
)
LAST = 2048
"""Bytes at the end of a file that are cut one by one: several lines of it."""
FLIPS = 2000
RUN, LIBRARY = "runs/rehearsal", "libraries/rehearsal"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Practised]:
    workspace = tmp_path_factory.mktemp("undisturbed") / "practice"
    done = asyncio.run(practised(workspace, *SMALL))
    return workspace, done


@pytest.fixture
def copy(undisturbed: tuple[Path, Practised], tmp_path: Path) -> Path:
    workspace = tmp_path / "practice"
    shutil.copytree(undisturbed[0], workspace, symlinks=True)
    return workspace


def prefixes(path: Path) -> tuple[list[RunState], list[int]]:
    """What a journal's first n events add up to, and where each line ends, 0 first."""
    events = [entry.event for entry in read_journal(path)]
    ends = [0]
    for line in lines.read(path, chained=True).lines:
        ends.append(line.offset + line.length)
    return [fold_events(events[:n]) for n in range(len(events) + 1)], ends


def cuts(path: Path, last: int = LAST) -> range:
    size = path.stat().st_size
    return range(max(0, size - last), size + 1)


def test_a_run_journal_cut_at_every_byte_of_its_last_2_kb_is_a_beginning_and_told(
    tmp_path: Path,
) -> None:
    # A quarter of the others' run: its whole journal is read 2,049 times.
    asyncio.run(practised(tmp_path, *SMALL, "practice.epochs=1", "data.truncate=2"))
    source = tmp_path / RUN / "journal.jsonl"
    states, ends = prefixes(source)
    whole, path = source.read_bytes(), tmp_path / "journal.jsonl"
    assert len(whole) > LAST
    for cut in cuts(source):
        path.write_bytes(whole[:cut])
        told: list[str] = []
        journal = Journal(path, tell=told.append)
        journal.close()
        kept = sum(end - 1 <= cut for end in ends[1:])  # a line that lacks its newline is whole
        assert fold_events(entry.event for entry in journal.entries) == states[kept], cut
        assert bool(told) is (cut not in ends), cut
        assert path.read_bytes() == whole[: ends[kept]], cut


def test_a_library_journal_cut_at_every_byte_is_an_earlier_version_and_told(
    undisturbed: tuple[Path, Practised], copy: Path
) -> None:
    folder = LibraryFolder(copy / LIBRARY)
    _, ends = _library_ends(folder.journal_path)
    versions, whole = folder.versions(), folder.journal_path.read_bytes()
    for cut in cuts(folder.journal_path):
        folder.journal_path.write_bytes(whole[:cut])
        kept = sum(end - 1 <= cut for end in ends[1:])
        if not kept:
            assert not folder.exists()
            continue
        told: list[str] = []
        with folder.lock_for_commit(told.append) as library:
            assert library.head in versions
        assert folder.journal_path.read_bytes() == whole[: ends[kept]]
        assert bool(told) is (cut not in ends), cut


def _library_ends(path: Path) -> tuple[int, list[int]]:
    found = lines.read(path, chained=True).lines
    return len(found), [0, *(line.offset + line.length for line in found)]


async def test_a_record_file_cut_at_every_byte_of_its_last_2_kb_keeps_all_whole_replies(
    undisturbed: tuple[Path, Practised], tmp_path: Path
) -> None:
    source = undisturbed[0] / RUN / "records/step-0001.jsonl"
    _, ends = _unchained(source)
    whole, path = source.read_bytes(), tmp_path / source.name
    assert len(whole) > LAST
    for cut in cuts(source):
        path.write_bytes(whole[:cut])
        told: list[str] = []
        await _reopened(path, source, told)
        kept = sum(end - 1 <= cut for end in ends[1:])
        assert path.read_bytes() == whole[: ends[kept]], cut
        assert bool(told) is (cut not in ends), cut


def _unchained(path: Path) -> tuple[int, list[int]]:
    found = lines.read(path, chained=False).lines
    return len(found), [0, *(line.offset + line.length for line in found)]


async def _reopened(path: Path, source: Path, told: list[str]) -> None:
    """Open a record file as a resumed run does: by asking for its first reply again."""
    first = lines.read(source, chained=False).lines[0]
    record = from_dict(Record, orjson.loads(first.body))
    ledger = RecordLedger(path.parent, 1, tell=told.append)
    policy = answering("asked again")
    policy.name = record.policy
    await ledger.ask(record.key, policy, record.messages, record.sampling)
    await ledger.aclose()


def flips(files: dict[str, bytes]) -> Iterator[tuple[str, int, int]]:
    """Seeded single bits, spread over the files by their size."""
    draw = random.Random(7)
    names = list(files)
    for name in draw.choices(names, [len(files[name]) for name in names], k=FLIPS):
        yield name, draw.randrange(len(files[name])), draw.randrange(8)


@pytest.mark.nightly
async def test_two_thousand_flipped_bits_are_repaired_harmless_or_refused_with_their_line(
    undisturbed: tuple[Path, Practised], copy: Path
) -> None:
    names = [f"{RUN}/journal.jsonl", f"{LIBRARY}/journal.jsonl"]
    names += [f"{RUN}/records/{p.name}" for p in sorted((copy / RUN / "records").iterdir())]
    files = {name: (copy / name).read_bytes() for name in names}
    whole = fold_events(entry.event for entry in read_journal(copy / names[0]))
    head = LibraryFolder(copy / LIBRARY).head()
    outcomes = {"refused": 0, "repaired": 0}
    for name, place, bit in [*flips(files), *((n, len(files[n]) - 1, 3) for n in names)]:
        path, damaged = copy / name, bytearray(files[name])
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        number = files[name].count(b"\n", 0, place) + 1
        told: list[str] = []
        try:
            if name == names[0]:
                journal = Journal(path, tell=told.append)
                journal.close()
                assert fold_events(entry.event for entry in journal.entries) == whole
            elif name == names[1]:
                with LibraryFolder(copy / LIBRARY).lock_for_commit(told.append) as library:
                    assert library.head == head
            else:
                await _reopened(path, undisturbed[0] / name, told)
        except DamagedError as refused:
            assert refused.place == f"{path}:{number}", (name, place, bit)
            assert "studio doctor --repair" in refused.move
            assert path.read_bytes() == bytes(damaged)  # refusing changes nothing
            outcomes["refused"] += 1
        else:
            # Only the file's very last newline can be told from what it became.
            assert place == len(files[name]) - 1, (name, place, bit)
            assert len(told) == 1
            assert path.read_bytes() == files[name]
            outcomes["repaired"] += 1
        path.write_bytes(files[name])
    assert outcomes["refused"] > FLIPS - 20
    assert outcomes["repaired"] >= len(names)


def cut_at(workspace: Path, cut: int) -> None:
    """Leave of a workspace what a process would have that died with so much of its journal."""
    path, folder = workspace / RUN / "journal.jsonl", LibraryFolder(workspace / LIBRARY)
    path.write_bytes(path.read_bytes()[:cut])
    version = fold_events(entry.event for entry in read_journal(path)).library_version
    whole = lines.read(folder.journal_path, chained=True).lines
    entries = tuple(read_journal(folder.journal_path))
    for line, entry in zip(whole, entries, strict=True):
        if isinstance(entry.event, ev.LibraryCommitted) and entry.event.version > version:
            data = folder.journal_path.read_bytes()
            folder.journal_path.write_bytes(data[: line.offset])
            version_path(folder.path, entry.event.version).unlink()
            return


def _decisions(entries: Iterable[Entry]) -> list[Decision]:
    """The decisions a journal tells of, without their times."""
    events = (entry.event for entry in entries)
    return [replace(e.decision, at=0.0) for e in events if isinstance(e, ev.OperationDecided)]


async def as_undisturbed(workspace: Path, undisturbed: tuple[Path, Practised], where: str) -> None:
    """Resume to the end: the same library and decisions, and no reply paid for again.

    The commits hold the decisions they were made of.
    """
    got = await practised(workspace, *SMALL)
    wanted = undisturbed[1]
    assert got.texts == wanted.texts, where
    assert library_commits(workspace) == library_commits(undisturbed[0]), where
    assert got.asked == 0, where
    assert recorded(workspace / RUN) == recorded(undisturbed[0] / RUN), where


async def test_runs_resumed_from_cut_journals_end_as_the_undisturbed_one(
    undisturbed: tuple[Path, Practised], tmp_path: Path
) -> None:
    source = undisturbed[0] / RUN / "journal.jsonl"
    for cut in random.Random(3).sample(cuts(source, 8192), 16):
        workspace = tmp_path / str(cut)
        shutil.copytree(undisturbed[0], workspace, symlinks=True)
        cut_at(workspace, cut)
        await as_undisturbed(workspace, undisturbed, f"cut at {cut}")
        decided = Workspace(workspace).run("rehearsal").entries()
        assert _decisions(decided) == _decisions(undisturbed[1].run.entries()), cut


async def test_a_damaged_journal_is_cut_by_the_doctor_and_a_resume_pays_for_nothing(
    undisturbed: tuple[Path, Practised], tmp_path: Path
) -> None:
    found = lines.read(undisturbed[0] / RUN / "journal.jsonl", chained=True).lines
    for line in random.Random(5).sample(found[1:], 3):
        workspace = tmp_path / str(line.number)
        shutil.copytree(undisturbed[0], workspace, symlinks=True)
        path = workspace / RUN / "journal.jsonl"
        data = bytearray(path.read_bytes())
        data[line.offset + line.length // 2] ^= 0x10  # two bytes: one alone is put back
        data[line.offset + line.length // 2 + 5] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(StudioError, match=rf"journal\.jsonl:{line.number}: "):
            await practised(workspace, *SMALL)
        assert not diagnose(Workspace(workspace), repair=False).well
        assert path.read_bytes() == bytes(data)
        diagnosis = diagnose(Workspace(workspace), repair=True)
        assert diagnosis.well
        assert any("journal.jsonl.damaged-1 is the file" in f.repaired for f in diagnosis.findings)
        kept = (workspace / RUN / "journal.jsonl.damaged-1").read_bytes()
        assert kept == bytes(data)  # nothing is thrown away
        assert diagnose(Workspace(workspace), repair=False).well
        await as_undisturbed(workspace, undisturbed, f"line {line.number}")


async def test_a_library_cut_back_by_damage_is_committed_again_by_its_run(
    undisturbed: tuple[Path, Practised], copy: Path
) -> None:
    folder, run = LibraryFolder(copy / LIBRARY), copy / RUN / "journal.jsonl"
    assert len(folder.versions()) > 2
    ending = lines.read(run, chained=True).lines[-1]  # a finished run would stay as it is
    run.write_bytes(run.read_bytes()[: ending.offset])
    last = lines.read(folder.journal_path, chained=True).lines[1]
    data = bytearray(folder.journal_path.read_bytes())
    data[last.offset + 60] ^= 0x01
    data[last.offset + 70] ^= 0x01
    folder.journal_path.write_bytes(data)
    diagnosis = diagnose(Workspace(copy), repair=True)
    assert diagnosis.well
    assert folder.head().version == 0
    assert (folder.path / "v0001.yaml.damaged-1").exists()
    await as_undisturbed(copy, undisturbed, "library")
    assert diagnose(Workspace(copy), repair=False).well


def until(workspace: Path, kind: type[ev.DurableEvent]) -> None:
    """Take a workspace back to just after a run's first event of a kind, library included."""
    path = workspace / RUN / "journal.jsonl"
    found = zip(lines.read(path, chained=True).lines, tuple(read_journal(path)), strict=True)
    line = next(line for line, entry in found if isinstance(entry.event, kind))
    cut_at(workspace, line.offset + line.length)


@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "swallowed newline"])
async def test_records_that_the_step_under_way_needs_are_refused_then_repaired_then_paid_again(
    how: str, undisturbed: tuple[Path, Practised], copy: Path
) -> None:
    until(copy, ev.GroupReflected)
    path = copy / RUN / "records/step-0001.jsonl"
    data = bytearray(path.read_bytes())
    recorded = lines.read(path, chained=False).lines
    first, second = recorded[:2]
    match how:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(data[: first.length])
        case "flipped":
            data[second.offset + 60] ^= 0x04
            path.write_bytes(data)
        case _:
            data[second.offset - 1] ^= 0x04
            path.write_bytes(data)
    with pytest.raises(StudioError, match=r"step-0001\.jsonl"):
        await practised(copy, *SMALL)
    if path.exists():  # as it was before that try, which may have gone on beside the damage
        path.write_bytes(data[: first.length] if how == "cut" else data)
    assert diagnose(Workspace(copy), repair=True).well
    assert diagnose(Workspace(copy), repair=False).well
    got = await practised(copy, *SMALL)
    assert got.texts == undisturbed[1].texts
    assert got.decisions() == undisturbed[1].decisions()
    kept = 1 if how in ("cut", "flipped") else 0
    assert got.asked == len(recorded) - kept, "what stands before the damage is paid for once"
    assert diagnose(Workspace(copy), repair=False).well
