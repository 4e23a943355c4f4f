"""Libraries on disk: the journal is the truth, a readable file stands beside each version."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from engines.core import events as ev
from engines.core.errors import ConflictError, DamagedError, LockedError, RecordError
from engines.core.library import Reviewed
from engines.core.types import GATE
from engines.record.formats.rows import format_agent_yaml
from engines.record.journal import Journal
from engines.record.libraries import LibraryFolder
from engines.record.lock import write_lock
from engines.record.repair import library_findings
from engines.record.run_dir import Workspace
from studio.library.references import find_version
from tests.engines.record.test_journal import file_size_limit
from tests.support.builders import a_decision, a_library, an_effect, an_operation, approved

ADD = an_operation("add", None, "Carry: add the carry.")


def a_folder(tmp_path: Path, *texts: str) -> LibraryFolder:
    folder = LibraryFolder(tmp_path / "libraries" / "lib")
    folder.create(a_library(*texts) if texts else None)
    return folder


def commit(folder: LibraryFolder, reviewed: Reviewed, *, run: str = "r", step: int = 1) -> None:
    with folder.lock_for_commit() as library:
        library.commit(reviewed, run=run, step=step)


def test_a_new_library_is_empty_or_a_copy_whose_ids_count_on(tmp_path: Path) -> None:
    assert a_folder(tmp_path).head().next_number == 1
    start = a_library("one", "two").commit(approved(an_operation("delete", "E2"))).library
    copy = LibraryFolder(tmp_path / "libraries" / "copy").create(start, "lib@1")
    assert (copy.name, copy.version, copy.next_number) == ("copy", 0, 3)
    assert [e.id for e in copy.experiences] == ["E1"]


def test_a_commit_is_a_version_that_reads_the_same_again(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one")
    commit(folder, [(ADD, a_decision(ADD, assigned="E2"))])
    with folder.lock_for_commit() as library:
        made = library.commit(approved(an_operation("delete", "E1")), run="r", step=2).library
        assert library.head == made
    assert folder.head() == made
    assert [v.version for v in folder.versions()] == [0, 1, 2]
    assert [e.id for e in folder.at(1).experiences] == ["E1", "E2"]
    steps = [commit.step if commit else None for _, commit in folder.history()]
    assert steps == [None, 1, 2]


def test_every_version_has_a_file_that_a_person_can_read(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one: 一")
    commit(folder, approved(ADD), run="exp-2")
    data = yaml.safe_load((folder.path / "v0001.yaml").read_text("utf-8"))
    assert (data["library"], data["version"], data["made_by"]) == ("lib", 1, "exp-2")
    assert data["experiences"] == [
        {"id": "E1", "text": "one: 一"},
        {"id": "E2", "text": "Carry: add the carry."},
    ]
    assert (folder.path / "v0000.yaml").exists()


def test_a_commit_that_changes_no_text_and_rejects_nothing_writes_no_line(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one")
    before = folder.journal_path.read_bytes()
    commit(folder, approved(an_operation("keep", "E1")))
    commit(folder, [(ADD, a_decision(ADD, "reject", reviewer=GATE, reason="the gate's own"))])
    assert folder.journal_path.read_bytes() == before


def test_a_rejection_is_remembered_once_and_makes_no_version(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one")
    rejected = [(ADD, a_decision(ADD, "reject", reason="no"))]
    commit(folder, rejected, run="r", step=1)
    commit(folder, rejected, run="r", step=1)  # as after a crash between the two journals
    head = folder.head()
    assert (head.version, len(folder.versions())) == (0, 1)
    assert [(c.text, c.reason, c.is_rejection) for c in head.notes.curated] == [
        (ADD.text, "no", True)
    ]


def test_an_earlier_try_of_the_same_commit_is_found_by_run_and_step_after_its_base(
    tmp_path: Path,
) -> None:
    folder = a_folder(tmp_path, "one")
    reviewed = [(ADD, a_decision(ADD, assigned="E2"))]
    commit(folder, reviewed, run="r", step=3)
    commit(folder, approved(an_operation("delete", "E1", id="op9")), run="other", step=1)
    with folder.lock_for_commit() as library:
        found = library.earlier_commit("r", 3, 0)
        assert found is not None
        assert (found.library.version, found.outcomes[0].id) == (1, "E2")
        assert library.earlier_commit("r", 2, 0) is None
        assert library.earlier_commit("other", 3, 0) is None
        assert library.earlier_commit("r", 3, 1) is None


def test_deferred_operations_are_not_part_of_a_commit(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    later = an_operation(id="op1.2")
    commit(folder, [*approved(ADD), (later, a_decision(later, "defer"))])
    (_, (_, line)) = folder.history()
    assert line is not None
    assert [op.id for op, _ in line.reviewed] == [ADD.id]


def test_a_library_that_does_not_exist_is_told_with_those_that_do(tmp_path: Path) -> None:
    missing = LibraryFolder(tmp_path / "libraries" / "missing")
    with pytest.raises(ConflictError, match="none yet"):
        missing.head()
    a_folder(tmp_path)
    with pytest.raises(ConflictError, match="There are: lib"):
        missing.head()
    assert not missing.path.exists()  # asking creates nothing


def test_an_existing_library_is_not_begun_again(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one")
    with pytest.raises(ConflictError, match="exists already"):
        folder.create(None)
    assert len(folder.head().experiences) == 1


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "", "-x", "a b", "x" * 121])
def test_a_name_that_is_no_folder_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    from engines.record.libraries import check_name

    with pytest.raises(ConflictError, match="letters, digits"):
        check_name(name)


@pytest.mark.parametrize("version", [-1, 2])
def test_a_version_that_does_not_exist_is_told_with_the_newest(
    tmp_path: Path, version: int
) -> None:
    folder = a_folder(tmp_path)
    commit(folder, approved(ADD))
    with pytest.raises(ConflictError, match="newest version is 1"):
        folder.at(version)


def test_a_commit_line_that_does_not_follow_is_damage_with_its_line(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one")
    journal = Journal(folder.journal_path)
    journal.append_now(ev.LibraryCommitted(1, "r", 1, approved(ADD), "0" * 16))
    journal.close()
    with pytest.raises(DamagedError, match=r"journal\.jsonl:2: .*does not follow"):
        folder.head()


def test_a_torn_commit_leaves_the_version_before(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one")
    commit(folder, approved(ADD))
    folder.journal_path.write_bytes(folder.journal_path.read_bytes()[:-7])
    assert folder.head().version == 0
    told: list[str] = []
    with folder.lock_for_commit(told.append) as library:
        library.commit(approved(ADD), run="r", step=1)
    assert folder.head().version == 1
    assert "cut" in told[0]


def test_a_library_held_by_someone_else_cannot_be_begun(tmp_path: Path) -> None:
    folder = LibraryFolder(tmp_path / "libraries" / "lib")
    with write_lock(folder.path), pytest.raises(LockedError):
        folder.create(None)


def test_the_enhanced_agent_holds_what_it_was_and_its_experiences() -> None:
    agent = {"name": "a", "instructions": "Be brief.\nThink.", "model": "openai:m"}
    data = yaml.safe_load(format_agent_yaml(agent, a_library("one", "two"), "exp"))
    assert data == {
        **agent,
        "experiences": [{"id": "E1", "text": "one"}, {"id": "E2", "text": "two"}],
    }
    assert b"library lib@0, run exp" in format_agent_yaml(agent, a_library(), "exp")


def test_a_library_whose_beginning_was_cut_is_none_and_is_begun_again(tmp_path: Path) -> None:
    """A process may die between making the file and writing its first line."""
    folder = a_folder(tmp_path, "one")
    line = folder.journal_path.read_bytes()
    for kept in (0, 1, len(line) // 2, len(line) - 2):
        folder.journal_path.write_bytes(line[:kept])
        (folder.path / "v0000.yaml").unlink()  # it is written after the journal
        assert not folder.exists()
        assert Workspace(tmp_path).libraries() == ()
        assert folder.create(a_library("one")).experiences == a_library("one").experiences
        assert folder.head().version == 0
    folder.journal_path.write_bytes(line[:-1])  # whole but for its newline: it was begun
    assert folder.exists()
    with pytest.raises(ConflictError, match="exists already"):
        folder.create(None)


@pytest.mark.parametrize("gone", [True, False])
def test_no_library_is_begun_over_files_of_versions_that_survived_its_journal(
    gone: bool, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path, "one")
    folder.journal_path.unlink() if gone else folder.journal_path.write_bytes(b"")
    with pytest.raises(ConflictError, match=r"studio library import .*v0000\.yaml --into NEW"):
        folder.create(None)
    assert not folder.exists()
    told = list(library_findings(folder))
    assert [("v0000.yaml --into NEW" in each.move, each.grade) for each in told] == [(True, "note")]


def test_a_commit_that_finds_no_room_changes_nothing_and_is_made_once_there_is(
    tmp_path: Path,
) -> None:
    folder = a_folder(tmp_path, "one")
    before = folder.journal_path.read_bytes()
    with (
        file_size_limit(len(before) + 40),
        pytest.raises(RecordError, match="Make room"),
        folder.lock_for_commit() as library,
    ):
        library.commit(approved(ADD), run="r", step=1)
    assert folder.journal_path.read_bytes() == before
    assert folder.head().version == 0
    commit(folder, approved(ADD))
    assert folder.head().version == 1


def test_a_version_file_that_found_no_room_is_written_at_the_next_opening(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one")
    commit(folder, approved(ADD), run="exp")
    path = folder.path / "v0001.yaml"
    text = path.read_bytes()
    path.unlink()
    with folder.lock_for_commit():
        pass
    assert path.read_bytes() == text


def test_what_a_wording_is_worth_is_kept_beside_it_and_goes_with_it(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "one", "two", "three")
    measured = folder.head()
    commit(folder, approved(an_operation("modify", "E2", "two, in other words")))
    effects = {name: an_effect(0.1, 0.05, 0.15) for name in ("E1", "E2", "E3", "E9")}
    with folder.lock_for_commit() as library:
        head = library.measure(measured, effects)
        assert head.version == 1 and head.notes.effects.keys() == {
            "E1",
            "E3",
        }  # E2 was another wording
        before = folder.journal_path.read_bytes()
        assert library.measure(measured, effects) == head
        assert folder.journal_path.read_bytes() == before  # known already
    assert folder.head() == head and folder.at(0).notes.effects == {}
    rows = yaml.safe_load((folder.path / "v0001.yaml").read_text("utf-8"))["experiences"]
    assert [row.get("worth") for row in rows] == [
        "+0.100 [+0.05, +0.15] helps",
        None,
        "+0.100 [+0.05, +0.15] helps",
    ]
    other = [an_operation("modify", "E1", "anew"), an_operation("delete", "E3")]
    commit(folder, approved(*other), step=2)
    assert folder.head().notes.effects == {}
    copy = LibraryFolder(tmp_path / "libraries" / "copy").create(head, "lib@1")
    assert copy.notes.effects == head.notes.effects


def test_a_library_of_which_a_repair_left_nothing_says_so(tmp_path: Path) -> None:
    folder = LibraryFolder(tmp_path / "libraries" / "lib")
    folder.create(a_library("Carry: mind it."))
    raw = bytearray(folder.journal_path.read_bytes())
    raw[raw.index(b'"e":') + 12] ^= 1
    folder.journal_path.write_bytes(raw)
    (trouble,) = library_findings(folder)
    assert trouble.repair is not None
    assert trouble.repair().endswith("cut: entries: 1, decisions of persons among them: 0")
    for path in folder.path.glob("v*.yaml"):
        path.unlink()
    (left,) = library_findings(folder)
    assert (left.cause, left.grade) == ("it tells of no version.", "note")
    with pytest.raises(ConflictError, match="its journal tells of no version"):
        find_version("lib", Workspace(tmp_path))
