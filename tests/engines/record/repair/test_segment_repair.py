"""The doctor on a journal in segments: where damage begins is where it is cut, and all is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engines.core.state.fold import fold_events
from engines.record.derived.run_state import read_run
from engines.record.journal import Head, begin_next, closed_path, read_head, read_journal
from engines.record.repair import Finding, run_findings
from engines.record.run_dir import RunDir, Workspace
from tests.engines.record.test_segments import EVENTS, closed, write


@pytest.fixture
async def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "exp")
    await write(run.journal)
    return run


def findings(run: RunDir) -> list[Finding]:
    """Those of its journal: neither its records nor its library are there."""
    found = run_findings(run, Workspace(run.path.parents[1]))
    return [
        one for one in found if "journal" in Path(one.place).name and "library" not in one.cause
    ]


def repair(run: RunDir) -> list[str]:
    """Mend until nothing of the journal is left to mend; what was done."""
    done: list[str] = []
    while found := [one for one in findings(run) if one.repair is not None]:
        assert found[0].repair is not None
        done.append(found[0].repair())
        assert len(done) < 5
    return done


def test_a_whole_journal_has_no_finding(run: RunDir) -> None:
    assert findings(run) == []


@pytest.mark.parametrize("damage", ["flipped", "torn", "gone", "head", "growing head"])
async def test_damage_is_told_cut_where_it_begins_and_kept(run: RunDir, damage: str) -> None:
    segment = closed_path(run.journal, 3)
    head = read_head(segment)
    whole = segment.read_bytes()
    kept = head.events
    match damage:
        case "flipped":
            every = whole.splitlines(keepends=True)
            every[2] = every[2].replace(b'"seq":', b'"sex":', 1)
            segment.write_bytes(b"".join(every))
            kept += 1  # the line between the head and the damaged one
        case "torn":
            segment.write_bytes(whole[:-9])
            kept = read_head(closed_path(run.journal, 4)).events - 1
        case "gone":
            segment.unlink()
        case "head":
            segment.write_bytes(whole.replace(b'"segment":3', b'"segment":4', 1))
        case "growing head":
            segment, whole = run.journal, run.journal.read_bytes()
            kept = read_head(segment).events
            segment.write_bytes(whole.replace(b'"segment":', b'"segmant":', 1))
    before = {path.read_bytes() for path in run.path.glob("journal*.jsonl")}
    told = next(one for one in findings(run) if one.grade == "fix")
    assert told.place.startswith(str(segment))
    if damage in ("flipped", "torn"):
        assert "takes away" in told.move and "entries: " in told.move
    repair(run)
    assert findings(run) == []
    assert [entry.event for entry in read_journal(run.journal)] == EVENTS[:kept]
    assert read_run(run.journal).state == fold_events(EVENTS[:kept])
    after = {path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    assert before <= after, "what was there is kept beside"
    await write(run.journal)
    assert [entry.event for entry in read_journal(run.journal)] == EVENTS


def test_what_a_cut_roll_left_is_no_part_and_in_nobody_s_way(run: RunDir) -> None:
    number = read_head(run.journal).segment
    shutil.copy(run.journal, closed_path(run.journal, number))
    closed_path(run.journal, number + 1).write_text("{}\n")
    assert findings(run) == []
    assert [entry.event for entry in read_journal(run.journal)] == EVENTS
    head = Head(number + 1, "", 0, 0, 9)
    assert begin_next(run.journal, head), "the next roll takes its place"
    assert len(closed(run.journal)) == number + 1
