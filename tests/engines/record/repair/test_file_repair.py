"""Mending: what is cut is told of before and kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from engines.core import events as ev
from engines.core.types import CallKey, Message, RecordRef, Sampling
from engines.record import lines
from engines.record.journal import Journal, read_journal
from engines.record.ledger import RecordLedger
from engines.record.lock import write_lock
from engines.record.repair import (
    Finding,
    cut_finding,
    cut_with_backup,
    file_findings,
    move_aside,
    read_whole_lines,
    run_findings,
)
from engines.record.run_dir import Workspace
from tests.support.builders import (
    a_rollout_finished,
    a_run,
    a_step,
    an_operation,
    answering,
    approved,
)

KEY = CallKey("rollout", 1, 1, 0, 0)
ASKED = (Message("user", "What is 2 + 3?"),)


async def recorded(folder: Path, *texts: str) -> list[RecordRef]:
    ledger = RecordLedger(folder, 1)
    refs = []
    for index, text in enumerate(texts):
        key = replace(KEY, index=index)
        refs.append((await ledger.ask(key, answering(text), ASKED, Sampling()))[1])
    await ledger.aclose()
    return refs


def mended(path: Path, *, chained: bool) -> list[str]:
    found = list(file_findings(path, chained=chained, folder=path.parent))
    return [finding.repair() for finding in found if finding.repair is not None]


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_damaged_record_file_is_cut_before_its_line_and_only_what_is_cut_is_paid_again(
    tmp_path: Path, victim: int
) -> None:
    refs = await recorded(tmp_path, "one", "two", "three")
    path = tmp_path / refs[0].file
    data = bytearray(path.read_bytes())
    data[refs[victim].offset + 50] ^= 0x08
    path.write_bytes(data)
    (finding,) = file_findings(path, chained=False, folder=tmp_path)
    lost = f"replies: {3 - victim}"
    assert f"takes away {lost}; a resume asks again" in finding.move
    assert finding.repair is not None
    assert finding.repair() == f"cut; {path.name}.damaged-1 is the file as it was; cut: {lost}"
    assert (tmp_path / f"{path.name}.damaged-1").read_bytes() == bytes(data)
    assert path.read_bytes() == bytes(data[: refs[victim].offset])
    ledger, policy = RecordLedger(tmp_path, 1), answering(*["again"] * 3)
    for index in range(3):
        await ledger.ask(replace(KEY, index=index), policy, ASKED, Sampling())
    await ledger.aclose()
    assert len(policy.requests) == 3 - victim


async def test_the_loss_behind_a_damaged_record_is_told_of_before_it_is_cut(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    folder, ref = await a_run_in_its_first_step(workspace)
    path = folder / "records" / ref.file
    path.write_bytes(b"garbage\n" + path.read_bytes())
    assert [finding.place for finding in findings(workspace)] == [
        f"{path}:1",
        f"{folder / 'journal.jsonl'}:3",
    ]


def a_journal(path: Path, *events: ev.DurableEvent) -> None:
    journal = Journal(path, clock=lambda: 5.0)
    for event in events:
        journal.append_now(event)
    journal.close()


EVENTS = (a_run(), a_step(1), ev.RunPaused(), ev.StepFinished(1, 1), ev.RunEnded("finished"))


def test_a_damaged_journal_is_cut_before_its_line_and_the_rest_is_kept_and_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    a_journal(path, *EVENTS)
    data = bytearray(path.read_bytes())
    third = read_whole_lines(path, chained=True)[0][2]
    data[third.offset + 60] ^= 0x01
    path.write_bytes(data)
    (told,) = mended(path, chained=True)
    assert told.startswith("cut; journal.jsonl.damaged-1 is the file as it was; ")
    assert told.endswith("cut: entries: 3, decisions of persons among them: 0")
    assert [entry.event for entry in read_journal(path)] == list(EVENTS[:2])
    assert (tmp_path / "journal.jsonl.damaged-1").read_bytes() == bytes(data)


def test_each_file_cut_is_kept_whole_under_a_number_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abcdef")
    assert cut_with_backup(path, 4).startswith("cut; f.damaged-1 is")
    assert cut_with_backup(path, 2).startswith("cut; f.damaged-2 is")
    assert [p.read_bytes() for p in sorted(tmp_path.iterdir())] == [b"ab", b"abcdef", b"abcd"]


def test_what_is_in_the_way_is_moved_aside_whatever_it_is_and_over_nothing(tmp_path: Path) -> None:
    names = []
    for make in (Path.mkdir, lambda path: path.symlink_to("nowhere"), Path.touch):
        make(tmp_path / "f")
        names.append(move_aside(tmp_path / "f"))
    assert names == [f"moved to f.damaged-{number}" for number in (1, 2, 3)]
    assert (tmp_path / "f.damaged-2").is_symlink()


def test_before_a_library_is_cut_it_is_said_what_keeps_its_wordings(tmp_path: Path) -> None:
    folder = Workspace(tmp_path).library("tips")
    folder.create(None)
    told = cut_finding(folder.path, folder.journal_path, 0, "here", "it is damaged.").move
    assert f"before that, `studio library import {folder.path}/v0000.yaml --into NEW`" in told
    assert "a resume makes" not in told


def test_the_end_of_a_journal_that_someone_is_writing_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    a_journal(path, *EVENTS)
    path.write_bytes(path.read_bytes()[:-9])
    with write_lock(tmp_path):
        assert not list(file_findings(path, chained=True, folder=tmp_path))
    (finding,) = file_findings(path, chained=True, folder=tmp_path)
    assert finding.grade == "note"
    assert finding.repair is not None


async def a_run_in_its_first_step(
    workspace: Workspace, text: str = "five"
) -> tuple[Path, RecordRef]:
    workspace.library("lib").create(None)
    folder = workspace.runs_folder / "exp"
    (ref,) = await recorded(folder / "records", text)
    finished = replace(a_rollout_finished(0, 0), refs=(ref,))
    a_journal(folder / "journal.jsonl", a_run(run="exp", exp_id="exp"), a_step(1), finished)
    return folder, ref


def findings(workspace: Workspace) -> list[Finding]:
    return list(run_findings(workspace.run("exp"), workspace))


async def test_a_run_is_cut_before_it_names_a_reply_that_is_not_there(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder, ref = await a_run_in_its_first_step(workspace)
    assert findings(workspace) == []
    (folder / "records" / ref.file).unlink()
    (finding,) = findings(workspace)
    assert finding.place == f"{folder / 'journal.jsonl'}:3"
    assert "step-0001.jsonl, which is not there" in finding.cause
    assert finding.repair is not None
    assert "entries: 1," in finding.repair()
    assert findings(workspace) == []


async def test_a_run_that_stands_on_a_version_its_library_lacks_is_cut_before_it(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    folder, _ = await a_run_in_its_first_step(workspace)
    committed = ev.LessonCommitted(1, 1, "0" * 16, ())
    a_journal(folder / "journal.jsonl", committed, ev.StepFinished(1, 1))
    (finding,) = findings(workspace)
    assert finding.place.endswith("journal.jsonl:4")
    assert finding.repair is not None
    assert "entries: 2," in finding.repair()
    assert findings(workspace) == []


@pytest.mark.parametrize("how", ["finished", "another library"])
async def test_a_whole_run_is_not_cut_to_fit_a_library_that_it_cannot_go_on_with(
    how: str, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    folder, _ = await a_run_in_its_first_step(workspace)
    ended = (ev.StepFinished(1, 1), ev.RunEnded("finished"))[: 2 * (how == "finished")]
    a_journal(folder / "journal.jsonl", ev.LessonCommitted(1, 1, "0" * 16, ()), *ended)
    if how == "another library":
        with workspace.library("lib").lock_for_commit() as library:
            library.commit(approved(an_operation("add", None, "Carry: carry.")))
    (finding,) = findings(workspace)
    assert (finding.repair, finding.grade) == (None, "note" if how == "finished" else "fix")
    assert finding.move.endswith("begin a new run with --restart-step 0.")


async def test_of_a_finished_run_the_steps_that_its_library_still_holds_can_be_kept(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    folder, _ = await a_run_in_its_first_step(workspace)
    with workspace.library("lib").lock_for_commit() as library:
        library.commit(approved(an_operation("add", None, "Carry: carry.")))
    head = workspace.library("lib").head()
    first = ev.LessonCommitted(1, 1, head.content_hash, ())
    second = ev.LessonCommitted(2, 2, "0" * 16, ())
    ended = (ev.StepFinished(2, 1), ev.RunEnded("finished"))
    a_journal(folder / "journal.jsonl", first, ev.StepFinished(1, 1), a_step(2), second, *ended)
    (finding,) = findings(workspace)
    assert finding.move.endswith("begin a new run with --restart-step 1.")


async def test_a_journal_of_a_newer_format_is_told_and_left_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder, _ = await a_run_in_its_first_step(workspace)
    path = folder / "journal.jsonl"
    chain = read_whole_lines(path, chained=True)[0][-1].digest
    body = orjson.dumps({"v": 99, "seq": 4, "at": 0, "kind": "RunPaused"})
    path.write_bytes(path.read_bytes() + lines.encode(body, chain)[0])
    (finding,) = findings(workspace)
    assert "format 99" in finding.cause
    assert finding.repair is None
    assert "Use the release that wrote it" in finding.move


def test_what_persons_did_is_counted_in_what_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    kinds = ("LibraryCredited", "OperationDecided", "ReplyMended", "OperationProposed")
    path.write_text("".join(f'"kind":"{kind}"\n' * 2 for kind in kinds))
    assert "entries: 8, decisions of persons among them: 6" in cut_with_backup(path, 0)
