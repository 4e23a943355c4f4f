"""Whatever happens to a file that the studio wrote is found by `doctor`, and no reader takes it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson
import pytest

from engines.core.codec import dumps
from engines.core.errors import StudioError
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.lines import decode
from engines.record.lock import write_lock
from engines.record.repair import Finding, library_findings, score_findings
from engines.record.run_dir import Workspace
from engines.record.scores import ScoreBook
from engines.record.seal import add_seal, seal_fits
from studio.library.references import find_version
from studio.workspace.doctor import (
    catalogue_findings,
    diagnose,
    run_file_findings,
    written_findings,
)
from tests.support.made_once import made_once
from tests.support.processes import SMALL
from tests.support.run_studio import studio

Corrupt = Callable[[bytes, random.Random], bytes]
MEASURED = (*SMALL, "evaluation.do_eval=true", "evaluation.limit=2", "data.truncate=4")
FILES = {
    "version": "libraries/rehearsal/v0001.yaml",
    "agent": "runs/rehearsal/agent.yaml",
    "best agent": "runs/rehearsal/agent-best.yaml",
    "evaluation": "runs/rehearsal/evals/*.json",
    "run": "runs/rehearsal/run.yaml",
}


@pytest.fixture(scope="module")
def measured_once() -> Path:
    def make(folder: Path) -> None:
        done = studio("headless", "rehearsal", *MEASURED, workspace=folder / "practice")
        assert done.code == 0, done.stderr

    return made_once("sealed", make) / "practice"


@pytest.fixture
def measured(measured_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured_once, tmp_path / "practice"))


def the_file(kind: str, workspace: Path) -> Path:
    return sorted(workspace.glob(FILES[kind]))[0]


def _at(data: bytes, luck: random.Random) -> int:
    return luck.randrange(len(data))


def _flip(data: bytes, luck: random.Random) -> bytes:
    at = _at(data, luck)
    return data[:at] + bytes([data[at] ^ 1 << luck.randrange(8)]) + data[at + 1 :]


def _drop(data: bytes, luck: random.Random) -> bytes:
    at = _at(data, luck)
    return data[:at] + data[at + 1 :]


def _insert(data: bytes, luck: random.Random) -> bytes:
    at = _at(data, luck)
    return data[:at] + luck.choice([b" ", b"\n", b"x", b"0", b"#"]) + data[at:]


def _cut(data: bytes, luck: random.Random) -> bytes:
    return data[: _at(data, luck)]


def _cut_at_a_line(data: bytes, luck: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: luck.randrange(len(lines))])


def _swap(data: bytes, luck: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    one, other = luck.randrange(len(lines)), luck.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _double(data: bytes, luck: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = luck.randrange(len(lines))
    return b"".join([*lines[: at + 1], *lines[at:]])


def _lose_a_line(data: bytes, luck: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = luck.randrange(len(lines))
    return b"".join([*lines[:at], *lines[at + 1 :]])


def _reword(data: bytes, luck: random.Random) -> bytes:
    """Another letter or digit in place of one, so that the syntax stays as it is."""
    places = [at for at, byte in enumerate(data) if chr(byte).isalnum()]
    at = luck.choice(places)
    other = ord("1") + (data[at] - ord("0")) % 9 if chr(data[at]).isdigit() else data[at] ^ 0x20
    return data[:at] + bytes([other]) + data[at + 1 :]


def _zero(data: bytes, luck: random.Random) -> bytes:
    at = _at(data, luck)
    return data[:at] + bytes(len(data) - at)


CORRUPTIONS: list[Corrupt] = [
    _flip,
    _drop,
    _insert,
    _cut,
    _cut_at_a_line,
    _swap,
    _double,
    _lose_a_line,
    _reword,
    _zero,
    lambda data, luck: b"",
    lambda data, luck: bytes(len(data)),
    lambda data, luck: data + luck.choice([b"\n", b"# more\n", b"{}", b"name: x\n", b"\x00"]),
    lambda data, luck: luck.randbytes(len(data)),
    lambda data, luck: data.replace(b"\n", b"\r\n") if b"\n" in data else b"\xef\xbb\xbf" + data,
]


LOOKS: dict[str, Callable[[Workspace], Iterable[Finding]]] = {
    "version": lambda workspace: library_findings(workspace.library("rehearsal")),
    "run": lambda workspace: run_file_findings(workspace.run("rehearsal")),
    **dict.fromkeys(
        ("agent", "best agent", "evaluation"),
        lambda workspace: written_findings(
            (run := workspace.run("rehearsal")), run.state(), workspace
        ),
    ),
}
"""What the doctor asks for a file of that kind: the whole takes ten times as long."""


@pytest.mark.parametrize("kind", FILES)
def test_the_doctor_finds_every_corruption(kind: str, measured: Path) -> None:
    """Sixty of each kind of file, four of each sort."""
    path, look = the_file(kind, measured), LOOKS[kind]
    workspace = Workspace(measured)
    assert not list(look(workspace))
    whole, missed, tried = path.read_bytes(), [], 0
    for number in range(60):
        corrupt = CORRUPTIONS[number % len(CORRUPTIONS)]
        data = corrupt(whole, random.Random(f"{kind} {number}"))
        tried += data != whole
        path.write_bytes(data)
        places = [found.place for found in look(workspace)]
        if data != whole and not any(place.startswith(str(path)) for place in places):
            missed.append((number, data[:200]))
    assert not missed
    assert tried > 50


def reword(path: Path, old: str = "", new: str = "") -> None:
    """Change a word, or else the case of the last letter, and leave the file valid."""
    text = path.read_text()
    if not old:
        old = next(letter for letter in reversed(text) if letter.isalpha())
        head, _, tail = text.rpartition(old)
        path.write_text(f"{head}{old.swapcase()}{tail}")
        return
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "run"])
def test_a_repair_gives_back_what_was_written_and_keeps_what_was_there(
    kind: str, measured: Path
) -> None:
    path, workspace = the_file(kind, measured), Workspace(measured)
    whole = path.read_bytes()
    reword(path)
    altered = path.read_bytes()
    assert altered != whole
    found = diagnose(workspace, repair=True)
    assert found.well
    assert [one.repaired for one in found.findings if one.place == str(path)][-1]
    assert diagnose(workspace, repair=False).well
    assert path.read_bytes() == whole
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == altered
    assert not diagnose(workspace, repair=False).findings


def test_damaged_scores_are_skipped_and_none_is_taken_that_was_not_measured(
    measured: Path,
) -> None:
    path = sorted(measured.glob("evaluations/*/scores.jsonl"))[0]
    whole = path.read_bytes()
    about = orjson.loads(path.with_name("about.json").read_bytes())
    right = ScoreBook(measured / "evaluations", about).by_problem()
    assert right
    for number in range(60):
        corrupt = CORRUPTIONS[number % len(CORRUPTIONS)]
        path.write_bytes(corrupt(whole, random.Random(f"scores {number}")))
        unread = sum(decode(line) is None for line in path.read_bytes().splitlines(keepends=True))
        assert bool(list(score_findings(path))) == bool(unread)
        for problem, scores in ScoreBook(measured / "evaluations", about).by_problem().items():
            assert set(map(dumps, scores)) <= set(map(dumps, right[problem]))


def test_an_altered_catalogue_is_noted_and_made_again_by_who_reads_it(measured: Path) -> None:
    path, workspace = measured / "catalogue.json", Workspace(measured)
    rows, whole = refresh_catalogue(workspace), path.read_bytes()
    for number in range(60):
        data = CORRUPTIONS[number % len(CORRUPTIONS)](whole, random.Random(number))
        path.write_bytes(data)
        assert bool(list(catalogue_findings(workspace))) == (data != whole)
        assert refresh_catalogue(workspace) == rows
        assert seal_fits(path.read_bytes())


def test_an_altered_run_file_is_told_by_the_doctor_and_only_its_owner_can_mend_it(
    measured: Path,
) -> None:
    path = the_file("run", measured)
    reword(path, "group_size: 3", "group_size: 4")
    for repair in (False, True):
        found = diagnose(Workspace(measured), repair=repair)
        assert not found.well
    (trouble,) = found.findings
    assert "altered" in trouble.cause and "# sha256" in trouble.move
    path.write_text(path.read_text().partition("\n")[2])
    (trouble,) = diagnose(Workspace(measured), repair=True).findings
    assert trouble.grade == "note" and "somebody's own" in trouble.cause


def test_an_agent_that_its_owner_changed_stays_as_it_is(measured: Path) -> None:
    path = the_file("agent", measured)
    reword(path, path.read_text().splitlines(keepends=True)[0], "")
    reword(path, "instructions:", "# mine\ninstructions:")
    mine = path.read_bytes()
    found = diagnose(Workspace(measured), repair=True)
    assert found.well and "somebody's own" in found.findings[0].cause
    assert path.read_bytes() == mine


def test_a_finished_run_stays_as_it_is_where_its_library_is_cut(measured: Path) -> None:
    journal, workspace = measured / "libraries/rehearsal/journal.jsonl", Workspace(measured)
    raw = journal.read_bytes().splitlines(keepends=True)
    at = max(n for n, line in enumerate(raw) if b'"LibraryCommitted"' in line)
    raw[at] = raw[at].replace(b'"LibraryCommitted"', b'"LibraryCommittee"')
    journal.write_bytes(b"".join(raw))
    the_file("best agent", measured).unlink()  # it cannot be made from this library
    files = [path for path in (measured / "runs/rehearsal").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    found = diagnose(workspace, repair=True)
    assert found.well and "library takes" not in str(found.findings)
    assert {path: path.read_bytes() for path in before} == before
    assert not list((measured / "runs/rehearsal").glob("*.damaged-*"))
    assert not the_file("agent", measured).with_name("agent-best.yaml").exists()


def test_what_cannot_be_read_hides_no_other_file_and_is_written_again(measured: Path) -> None:
    workspace, whole = Workspace(measured), {}
    odd = [measured / "libraries/rehearsal/v0000.yaml", the_file("agent", measured)]
    odd += [the_file("evaluation", measured), measured / "catalogue.json"]
    altered = [the_file("version", measured), the_file("best agent", measured)]
    altered += [sorted(measured.glob(FILES["evaluation"]))[1]]
    for path in (*odd, *altered):
        whole[path] = path.read_bytes()
    for path in altered:
        reword(path)
    for number, path in enumerate(odd):
        path.unlink()
        path.mkdir() if number % 2 else path.symlink_to(path)
    found = diagnose(workspace, repair=True)
    places = {each.place for each in found.findings if each.repaired}
    assert places >= {str(path) for path in (*odd, *altered)}
    causes = {each.place: each.cause for each in found.findings}
    assert {causes[str(path)] for path in odd[:3]} == {"it is no file."}
    assert all(path.read_bytes() == data for path, data in whole.items() if path != odd[-1])
    assert not [each for each in diagnose(workspace, repair=True).findings if each.grade == "fix"]


def test_a_damaged_agent_whose_run_file_is_gone_is_told_and_left(measured: Path) -> None:
    path = the_file("agent", measured)
    reword(path)
    the_file("run", measured).unlink()
    before = path.read_bytes()
    found = diagnose(Workspace(measured), repair=True)
    assert not found.well
    assert path.read_bytes() == before and not list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize("kind", ["agent", "best agent", "evaluation"])
def test_a_file_that_is_gone_is_noted_and_written_again(kind: str, measured: Path) -> None:
    path, workspace = the_file(kind, measured), Workspace(measured)
    whole = path.read_bytes()
    path.unlink()
    (found,) = diagnose(workspace, repair=False).findings
    assert (found.place, found.grade) == (str(path), "note") and "missing" in found.cause
    diagnose(workspace, repair=True)
    assert path.read_bytes() == whole and not list(path.parent.glob("*.damaged-*"))
    assert not diagnose(workspace, repair=False).findings


def test_the_files_of_a_living_run_are_left_alone(measured: Path) -> None:
    path = the_file("agent", measured)
    reword(path)
    before = path.read_bytes()
    with write_lock(measured / "runs/rehearsal"):
        diagnose(Workspace(measured), repair=True)
    assert path.read_bytes() == before


EVAL = ("evaluation.data=arithmetic-heldout", "evaluation.limit=1", "--dry-run")


def test_an_altered_agent_is_not_measured_until_its_owner_takes_the_seal_away(
    measured: Path, tmp_path: Path
) -> None:
    agent = Path(shutil.copy(the_file("agent", measured), tmp_path / "mine.yaml"))
    asked = ("eval", "rehearsal", "--agent", str(agent), *EVAL)
    assert studio(*asked, workspace=measured).code == 0
    whole = agent.read_text()
    for altered in (whole.replace(" the ", " no "), whole[: len(whole) * 3 // 4]):
        agent.write_text(altered)
        done = studio(*asked, workspace=measured)
        assert done.code == 2
        assert f"{agent}: it was altered" in done.stderr and "Delete its seal" in done.stderr
    agent.write_text(whole.replace(" the ", " no ").partition("\n")[2])
    assert studio(*asked, workspace=measured).code == 0


def test_an_altered_agent_is_not_mounted(measured: Path, tmp_path: Path) -> None:
    folder = measured / "configs/agents"
    folder.mkdir(parents=True)
    shutil.copy(the_file("agent", measured), folder / "mine.yaml")
    run = tmp_path / "own.yaml"
    run.write_text("defaults: [/agents/mine@agent, _self_]\ndata: {practice: arithmetic}\n")
    assert studio("headless", str(run), "--dry-run", workspace=measured).code == 0
    reword(folder / "mine.yaml", " the ", " no ")
    done = studio("headless", str(run), "--dry-run", workspace=measured)
    assert done.code == 2 and "mine.yaml: it was altered" in done.stderr


def test_an_altered_version_is_neither_compared_nor_measured(
    measured: Path, tmp_path: Path
) -> None:
    file = the_file("version", measured)
    reword(file, " the ", " no ")
    for asked in (
        ("diff", "rehearsal@0", str(file)),
        ("eval", "rehearsal", "--library", str(file), *EVAL),
    ):
        done = studio(*asked, workspace=measured)
        assert done.code == 2 and "v0001.yaml: it was altered" in done.stderr
    assert studio("diff", "rehearsal@0", "rehearsal@1", workspace=measured).code == 0


def test_a_version_of_an_older_studio_must_give_the_hash_that_it_holds(
    measured: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(the_file("version", measured).read_text().partition("\n")[2])
    workspace = Workspace(measured)
    held = find_version(str(old), workspace).library
    assert held.content_hash == workspace.library("rehearsal").at(1).content_hash
    reword(old, " the ", " no ")
    with pytest.raises(
        StudioError, match=r"do not give the content_hash.* Delete its content_hash"
    ):
        find_version(str(old), workspace)
    lines = old.read_text().splitlines(keepends=True)
    old.write_text("".join(line for line in lines if not line.startswith("content_hash")))
    assert find_version(str(old), workspace).library.content_hash != held.content_hash


def test_a_run_is_not_resumed_by_an_altered_run_file(measured: Path) -> None:
    file = the_file("run", measured)
    reword(file, "epochs: 1", "epochs: 2")
    done = studio("headless", "--resume", "rehearsal", workspace=measured)
    assert done.code == 2 and "run.yaml: it was altered" in done.stderr
    file.write_text(file.read_text().partition("\n")[2])
    assert studio("headless", "--resume", "rehearsal", workspace=measured).code == 0
    assert seal_fits(file.read_bytes())  # the studio wrote it again


def test_an_altered_evaluation_is_not_compared(measured: Path, tmp_path: Path) -> None:
    first, *_, last = sorted((measured / "runs/rehearsal/evals").glob("*-heldout.json"))
    assert studio("compare", str(first), str(last), workspace=measured).code == 0
    whole = last.read_text()
    for altered in (whole.replace('"n":2', '"n":1'), json.dumps(json.loads(whole), indent=1)):
        last.write_text(altered)
        done = studio("compare", str(first), str(last), workspace=measured)
        assert done.code == 2 and f"{last}: it was altered" in done.stderr
        assert 'member "sha256"' in done.stderr
    own = {name: value for name, value in json.loads(whole).items() if name != "sha256"}
    last.write_text(json.dumps(own, indent=1))
    assert studio("compare", str(first), str(last), workspace=measured).code == 0


@pytest.mark.parametrize("data", [b"{}", b'{"a":1}', b"a: 1\n", b"# head\na: 1\n"])
def test_a_seal_fits_what_it_was_made_for_and_nothing_else(data: bytes) -> None:
    sealed = add_seal(data)
    assert seal_fits(sealed) and seal_fits(data) is None
    read = orjson.loads(sealed) if data.startswith(b"{") else None
    assert read is None or {k: v for k, v in read.items() if k != "sha256"} == orjson.loads(data)
    for at in range(len(sealed)):
        flipped = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        assert not seal_fits(flipped), at


def test_what_is_imported_is_checked_and_its_run_is_sealed(measured: Path) -> None:
    agent = Path(shutil.copy(the_file("agent", measured), measured / "mine.yaml"))
    whole, into = agent.read_text(), ("--into", "rehearsal")
    agent.write_text(whole.replace(" the ", " no "))
    done = studio("library", "import", str(agent), *into, workspace=measured)
    assert done.code == 2 and "mine.yaml: it was altered" in done.stderr
    agent.write_text(whole.replace(" the ", " no ").partition("\n")[2])
    reword(the_file("run", measured), "group_size: 3", "group_size: 4")  # is not taken over
    assert studio("library", "import", str(agent), *into, workspace=measured).code == 0
    (file,) = measured.glob("runs/import*/run.yaml")
    assert file.read_bytes().count(b"# sha256") == 1 and seal_fits(file.read_bytes())
