"""`studio doctor`: what is damaged, what to do, and doing it."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.record import lines
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from studio.workspace.machine import basic_findings, machine_facts
from tests.support.processes import SMALL
from tests.support.run_studio import studio


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", ".catalogue.lock")
    }


def doctor(workspace: Path, *options: str) -> tuple[int, dict[str, Any]]:
    done = studio("doctor", "--json", *options, workspace=workspace)
    return done.code, json.loads(done.stdout)


def causes(told: dict[str, Any]) -> str:
    return "\n".join(f"{f['place']}: {f['cause']} {f['move']}" for f in told["findings"])


def flipped(path: Path, line: int) -> None:
    """Flip a bit in the middle of a line; the first is 0."""
    found = lines.read(path, chained=path.name == "journal.jsonl").lines[line]
    data = bytearray(path.read_bytes())
    data[found.offset + found.length // 2] ^= 0x02
    path.write_bytes(data)


def test_a_whole_workspace_is_well_and_looking_writes_nothing(practised: Path) -> None:
    before = tree(practised)
    code, told = doctor(practised)
    assert (code, told["well"]) == (0, True)
    assert told["looked_at"] == {"runs": 1, "libraries": 1, "data sets": 0}
    assert not [f for f in told["findings"] if f["grade"] != "ok" and f["place"] in str(practised)]
    assert tree(practised) == before


def test_the_layers_of_the_sandbox_are_told(workspace: Path) -> None:
    done = studio("doctor", workspace=workspace)
    (line,) = (line for line in done.stdout.splitlines() if " sandbox: " in line)
    (check,) = (one for one in doctor(workspace)[1]["findings"] if one["place"] == "sandbox")
    assert line.startswith(f"{check['grade']:<6} sandbox: {check['cause']}")
    assert "resource limits" in check["cause"]


def test_a_workspace_that_is_not_there_is_not_made(workspace: Path) -> None:
    done = studio("doctor", "--repair", workspace=workspace)
    assert done.code == 0
    assert "there is none yet" in done.stdout
    assert not workspace.exists()


def test_damage_is_exit_2_with_place_cause_and_next_move_and_repaired_on_request(
    practised: Path,
) -> None:
    journal = practised / "runs/rehearsal/journal.jsonl"
    flipped(journal, 7)
    flipped(practised / "runs/rehearsal/records/step-0002.jsonl", 1)
    flipped(practised / "libraries/rehearsal/journal.jsonl", 2)
    before = tree(practised)
    code, told = doctor(practised)
    assert (code, told["well"]) == (2, False)
    assert f"{journal}:8: " in causes(told)
    assert "step-0002.jsonl:2: " in causes(told)
    assert "libraries/rehearsal/journal.jsonl:3: " in causes(told)
    assert "studio doctor --repair" in causes(told)
    assert tree(practised) == before
    text = studio("doctor", workspace=practised)
    assert text.code == 2
    assert "3 to fix: they stand first; `studio doctor --repair` repairs 3" in text.stdout

    code, told = doctor(practised, "--repair")
    assert (code, told["well"]) == (0, True)
    assert all(f["repaired"] for f in told["findings"] if f["grade"] == "fix")
    again = studio("headless", "rehearsal", *SMALL, workspace=practised)
    assert again.code == 0, again.stderr
    assert doctor(practised)[0] == 0


def test_one_repair_mends_what_the_repair_of_a_run_leaves_of_its_library(practised: Path) -> None:
    flipped(practised / "runs/rehearsal/journal.jsonl", 2)
    assert doctor(practised, "--repair")[0] == 0
    assert doctor(practised)[0] == 0


def test_nothing_is_repaired_where_a_process_writes_and_all_is_elsewhere(practised: Path) -> None:
    shutil.copytree(practised / "runs/rehearsal", practised / "runs/other")
    for run in ("rehearsal", "other"):
        flipped(practised / f"runs/{run}/journal.jsonl", 3)
    before = tree(practised / "runs/rehearsal")
    with write_lock(practised / "runs/rehearsal"):
        done = studio("doctor", "--repair", workspace=practised)
    assert done.code == 2
    assert f"pid {os.getpid()}" in done.stdout and "is writing here" in done.stdout
    assert f"run rehearsal is alive (pid {os.getpid()})" in done.stdout
    assert tree(practised / "runs/rehearsal") == before
    assert (practised / "runs/other/journal.jsonl.damaged-1").exists()


def test_the_doctor_says_beforehand_what_a_repair_would_take_away(practised: Path) -> None:
    flipped(practised / "runs/rehearsal/journal.jsonl", 3)
    code, told = doctor(practised)
    assert code == 2
    loses = causes(told)
    assert "which takes away " in loses, loses
    assert re.search(r"entries: \d+, decisions of persons among them: \d+", loses), loses


def test_what_a_killed_process_left_is_told_and_removed(practised: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    run = practised / "runs/rehearsal"
    left = [run / ".holder", run / f".agent.yaml.{gone}.tmp", run / "control.sock"]
    for path in left:
        path.write_text(gone)
    living = run / f".run.yaml.{os.getpid()}.tmp"
    living.write_text("being written")
    half = practised / f".removed-old-{gone}"
    half.mkdir()
    code, told = doctor(practised)
    assert code == 0  # it is in nobody's way
    for path in (*left, half):
        assert str(path) in causes(told)
    assert str(living) not in causes(told)
    assert doctor(practised, "--repair")[0] == 0
    assert not any(path.exists() for path in (*left, half))
    assert living.exists()


def test_files_that_others_may_read_are_closed(practised: Path) -> None:
    names = ("run.yaml", "journal.jsonl", "agent.yaml", "records/step-0001.jsonl")
    for name in names:
        (practised / "runs/rehearsal" / name).chmod(0o644)
    told = doctor(practised)[1]
    assert causes(told).count("others may read it") == len(names)
    doctor(practised, "--repair")
    for name in names:
        assert (practised / "runs/rehearsal" / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"{half", b"[]", b"", b'{"runs": {"1": {"run": "rehearsal"}}}']
)
def test_the_catalogue_is_made_anew_from_the_journals_and_data_sets(
    practised: Path, content: bytes
) -> None:
    rows = practised.parent / "mine.jsonl"
    rows.write_text('{"question": "2 + 3?", "answer": "5"}\n')
    assert studio("data", "add", str(rows), workspace=practised).code == 0
    before = json.loads((practised / "catalogue.json").read_bytes())
    (practised / "catalogue.json").write_bytes(content)
    assert "catalogue.json" in causes(doctor(practised)[1])
    assert doctor(practised, "--repair")[0] == 0
    after = json.loads((practised / "catalogue.json").read_bytes())
    for row in (*before["runs"].values(), *after["runs"].values()):
        assert row.pop("made_from")["bytes"] == row["journal_bytes"]  # the rest is of the copy
    for row in (*before["libraries"].values(), *after["libraries"].values()):
        del row["made_from"]
    for table in ("runs", "libraries", "experiences", "datasets"):
        assert list(after[table].values()) == list(before[table].values()), table
    assert refresh_catalogue(Workspace(practised))


def test_a_missing_version_file_is_written_again_and_a_stray_one_moved_aside(
    practised: Path,
) -> None:
    folder = practised / "libraries/rehearsal"
    text = (folder / "v0001.yaml").read_bytes()
    (folder / "v0001.yaml").unlink()
    (folder / "v0099.yaml").write_bytes(text)
    code, told = doctor(practised)
    assert code == 2
    assert "v0099.yaml" in causes(told)
    assert doctor(practised, "--repair")[0] == 0
    assert (folder / "v0001.yaml").read_bytes() == text
    assert (folder / "v0099.yaml.damaged-1").read_bytes() == text
    assert doctor(practised)[0] == 0


def test_damaged_scores_cost_only_themselves(practised: Path) -> None:
    folder = practised / "evaluations/abc"
    folder.mkdir(parents=True)
    raw = b"".join(lines.encode(b'{"problem":"p%d"}' % n)[0] for n in range(3))
    data = bytearray(raw)
    data[len(raw) // 2] ^= 0x01
    (folder / "scores.jsonl").write_bytes(data)
    (folder / "scores.jsonl").chmod(0o600)
    code, told = doctor(practised)
    assert code == 0
    assert "lines that cannot be read: 1." in causes(told)


def test_where_nothing_can_be_written_it_is_said(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flipped(practised / "runs/rehearsal/journal.jsonl", 3)
    before = tree(practised)
    monkeypatch.setattr(os, "access", lambda path, mode, **_: mode != os.W_OK)
    for options in ((), ("--repair",)):
        done = studio("doctor", *options, workspace=practised)
        assert done.code == 2
        assert "nothing can be repaired here" in done.stdout
        assert "repairs" not in done.stdout.splitlines()[-1]
    assert tree(practised) == before


def test_a_data_set_that_cannot_be_read_is_told_with_its_line(practised: Path) -> None:
    (practised / "datasets").mkdir()
    (practised / "datasets/mine.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n{half\n')
    code, told = doctor(practised)
    assert code == 2
    assert "mine.jsonl:2" in causes(told)
    assert "studio data check" in causes(told)


def test_what_cannot_even_be_read_is_a_finding_and_hides_no_other(practised: Path) -> None:
    flipped(practised / "runs/rehearsal/journal.jsonl", 3)
    (practised / "runs/rehearsal/records/odd.jsonl").mkdir()
    (practised / "runs/strange/journal.jsonl").mkdir(parents=True)
    (practised / "libraries/strange/journal.jsonl").mkdir(parents=True)
    for options in ((), ("--repair",)):
        code, told = doctor(practised, *options)
        assert code == 2
        assert "odd.jsonl: cannot be read" in causes(told)
        assert "libraries/strange/journal.jsonl: cannot be read" in causes(told)
        assert "runs/rehearsal/journal.jsonl:4: " in causes(told)
    assert "journal.jsonl:4: " not in causes(doctor(practised)[1])  # that one was mended


def test_the_machine_is_told_and_little_room_or_a_poor_locale_are_noted(tmp_path: Path) -> None:
    facts = machine_facts(tmp_path / "not" / "there")
    assert facts["free_bytes"] > 0
    poor = {**facts, "free_bytes": 1_000_000, "encoding": "ANSI_X3.4-1968"}
    told = basic_findings(tmp_path, poor)
    text = "\n".join(f"{t.place} {t.cause} {t.move}" for t in told)
    assert "only 1 MB" in text
    assert "LC_ALL=C.UTF-8" in text
    assert [t.grade for t in told] == ["note", "note"]


def test_a_damaged_run_among_others_is_named_and_hides_none(
    practised: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert studio("headless", "rehearsal", *SMALL, "--name", "other", workspace=practised).code == 0
    flipped(practised / "runs/other/journal.jsonl", 4)
    (practised / "catalogue.json").unlink()  # which tells of the run as it was
    place = f"{practised / 'runs/other/journal.jsonl'}:5"
    listed = studio("runs", "list", workspace=practised)
    assert listed.code == 0
    assert "damaged" in listed.stdout
    assert place in listed.stdout
    assert "finished" in listed.stdout
    for words in (("ctl", "status", "other"), ("runs", "show", "other"), ("review", "other")):
        refused = studio(*words, workspace=practised)
        assert refused.code == 2, words
        assert place in refused.stderr, words
        assert "studio doctor --repair" in refused.stderr, words
        gc.collect()  # a task whose error nobody asked for is told as a traceback by then
        assert not caplog.text, words
    assert studio("ctl", "status", "rehearsal", workspace=practised).code == 0
    removed = studio("runs", "rm", "other", "--yes", workspace=practised)
    assert removed.code == 0, removed.stderr
    assert not (practised / "runs/other").exists()


def test_a_journal_that_is_a_folder_is_told_and_hides_no_other_run(practised: Path) -> None:
    odd = practised / "runs/rehearsal-2/journal.jsonl"
    odd.mkdir(parents=True)
    listed = studio("runs", "list", workspace=practised)
    assert (listed.code, "rehearsal" in listed.stdout) == (0, True)
    for words in (("runs", "show", "rehearsal-2"), ("headless", "rehearsal", *SMALL)):
        refused = studio(*words, workspace=practised)
        assert refused.code == 2, words
        assert f"{odd}: cannot be read: it is a folder. Move it away" in refused.stderr
    code, told = doctor(practised)
    assert code == 2
    assert f"{odd}: it is gone, or a folder, and its run is there." in causes(told)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that fails to read")
def test_a_journal_that_cannot_be_read_is_told_and_hides_no_other_run(practised: Path) -> None:
    odd = practised / "runs/rehearsal-2/journal.jsonl"
    odd.parent.mkdir()
    odd.symlink_to("/proc/self/mem")
    listed = studio("runs", "list", workspace=practised)
    assert listed.code == 0
    assert "finished" in listed.stdout and f"{odd}: cannot be read" in listed.stdout
    refused = studio("runs", "show", "rehearsal-2", workspace=practised)
    assert refused.code == 2
    assert f"{odd}: cannot be read (Input/output error)." in refused.stderr
    code, told = doctor(practised)
    assert code == 2
    assert f"{odd}: cannot be read" in causes(told)


def test_what_stands_beside_runs_and_libraries_and_is_none_is_listed(practised: Path) -> None:
    (practised / "runs/empty").mkdir()
    (practised / "runs/notes.txt").write_text("mine")
    (practised / "libraries/copy").mkdir()
    code, told = doctor(practised)
    assert code == 0
    for place, why in (
        ("runs/empty", "it is no run: it has no journal."),
        ("runs/notes.txt", "it is no run: it has no journal."),
        ("libraries/copy", "it is no library: it has no journal."),
    ):
        assert f"{practised / place}: {why}" in causes(told)


def test_a_run_without_its_journal_is_damaged(practised: Path) -> None:
    journal = practised / "runs/rehearsal/journal.jsonl"
    journal.unlink()
    code, told = doctor(practised)
    assert code == 2
    assert f"{journal}: it is gone, or a folder, and its run is there." in causes(told)


@pytest.mark.parametrize("name", ["runs", "libraries"])
def test_a_file_in_place_of_runs_or_libraries_is_damage(name: str, workspace: Path) -> None:
    workspace.mkdir()
    (workspace / name).write_text("x")
    code, told = doctor(workspace)
    assert code == 2
    assert f"{workspace / name}: it is no folder. Move it away" in causes(told)


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_replies_of_finished_steps_that_are_gone_are_a_note_and_send_nobody_in_a_circle(
    how: str, practised: Path
) -> None:
    path = practised / "runs/rehearsal/records/step-0001.jsonl"
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: data.index(b"\n") + 1])
    code, told = doctor(practised)
    assert code == 0
    assert f"{path}: replies that the journal names are gone: " in causes(told)
    assert "The run needs none of them to go on." in causes(told)
    assert "doctor" not in causes(
        {"findings": [f for f in told["findings"] if f["place"] == str(path)]}
    )
    shown = studio("runs", "show", "rehearsal", "--rollout", "s1p0r0", workspace=practised)
    assert "--repair" not in shown.stdout + shown.stderr
    again = studio("headless", "rehearsal", *SMALL, "practice.epochs=3", workspace=practised)
    assert again.code == 0, again.stderr


def test_a_record_file_that_is_a_folder_is_damage_and_more_is_looked_at(practised: Path) -> None:
    odd = practised / "runs/rehearsal/records/step-0001.jsonl"
    odd.unlink()
    odd.mkdir()
    (practised / "runs/rehearsal/records/step-0002.jsonl").unlink()
    code, told = doctor(practised)
    assert code == 2
    assert f"{odd}: cannot be read: it is a folder." in causes(told)
    assert "step-0002.jsonl: replies that the journal names are gone" in causes(told)


def test_more_troubles_than_a_hundred_are_all_mended(practised: Path) -> None:
    folder = practised / "libraries/rehearsal"
    for number in range(500, 630):
        (folder / f"v0{number}.yaml").write_text("stray")
    code, told = doctor(practised, "--repair")
    assert (code, told["well"]) == (0, True)
    assert not list(folder.glob("v05*.yaml")) and not list(folder.glob("v06*.yaml"))


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "it is missing"), (b"\xff\xfe", "cannot be read"), (b"", "holds no settings")],
)
def test_a_run_file_that_cannot_be_read_is_noted_and_is_no_damage(
    practised: Path, content: bytes | None, said: str
) -> None:
    file = practised / "runs" / "rehearsal" / "run.yaml"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    done = studio("doctor", workspace=practised)
    assert done.code == 0, done.stdout
    assert said in done.stdout and "--name rehearsal" in done.stdout
