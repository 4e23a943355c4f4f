"""`studio library import` and `merge`: what comes from elsewhere waits for a reviewer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.record.formats.table import FORMATS
from engines.record.run_dir import Workspace
from studio.library import curation
from studio.secrets.output import forget, remember
from tests.support.run_studio import Result, run_here, studio

PLAYBOOK = """## CHECKS

[chk-00001] helpful=5 harmful=0 :: Put the result back into the question.
[chk-00002] helpful=1 harmful=2 :: Say which unit the answer has.
[chk-00007] helpful=0 harmful=0 :: Round once, at the end.
"""
TEXTS = [
    "Put the result back into the question.",
    "Say which unit the answer has.",
    "Round once, at the end.",
]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "practice"


@pytest.fixture
def playbook(tmp_path: Path) -> str:
    (tmp_path / "notes.md").write_text(PLAYBOOK, "utf-8")
    return "notes.md"


def a_file(folder: Path, name: str, *rows: tuple[str, str], **more: Any) -> str:
    data = {**more, "experiences": [{"id": one, "text": text} for one, text in rows]}
    (folder / name).write_text(json.dumps(data), "utf-8")
    return name


def texts(workspace: Path, library: str) -> dict[str, str]:
    return {e.id: e.text for e in Workspace(workspace).library(library).head().experiences}


def open_in(workspace: Path, run: str) -> list[str]:
    return [op.text for op in Workspace(workspace).run(run).state().open_operations]


def imported(workspace: Path, *arguments: str) -> dict[str, Any]:
    done = studio("library", "import", *arguments, "--json", workspace=workspace)
    assert done.code in (0, 4), done.stderr
    return dict(json.loads(done.stdout))


def test_each_entry_of_a_playbook_waits_as_an_addition_and_is_committed_by_a_review(
    workspace: Path, playbook: str
) -> None:
    done = studio("library", "import", playbook, "--into", "lab", workspace=workspace)
    assert done.code == 0
    assert done.stdout.splitlines()[0] == (
        "run import-lab: 3 operations (3 add) for library lab v0, to be decided"
    )
    assert "next: studio --workspace" in done.stderr and "review import-lab" in done.stderr
    assert texts(workspace, "lab") == {}
    decided = studio("review", "import-lab", workspace=workspace, typed="a\nr too vague\na\n")
    assert "imported from notes.md (ace chk-00001, CHECKS), helpful=5 harmful=0" in decided.stdout
    assert "committed: library lab is at v1" in decided.stdout
    assert texts(workspace, "lab") == {"E1": TEXTS[0], "E2": TEXTS[2]}
    again = imported(workspace, playbook, "--into", "lab")
    assert (again["run"], again["already"]) == ("import-lab-2", 2)
    assert [(op["text"], op["flags"][-1]["name"]) for op in again["operations"]] == [
        (TEXTS[1], "rejected before")
    ]


def test_the_same_import_again_says_where_it_waits_and_opens_nothing(
    workspace: Path, playbook: str
) -> None:
    assert imported(workspace, playbook)["run"] == "import-notes"
    done = studio("library", "import", playbook, workspace=workspace)
    assert done.code == 0
    assert done.stdout == "nothing new for library notes v0\n3 wait in run import-notes\n"
    assert done.stderr.endswith("review import-notes\n")
    assert [run.run for run in Workspace(workspace).runs()] == ["import-notes"]


def test_a_look_alone_writes_nothing(workspace: Path, playbook: str) -> None:
    found = imported(workspace, playbook, "--dry-run")
    assert (found["run"], [op["text"] for op in found["operations"]]) == (None, TEXTS)
    assert not workspace.exists()


def test_our_own_file_of_the_same_library_rewords_what_it_names_and_a_pin_holds(
    workspace: Path, tmp_path: Path
) -> None:
    imported(workspace, a_file(tmp_path, "lab.json", ("E1", "One."), ("E2", "Two.")))
    studio("review", workspace=workspace, typed="a\na\n")
    studio("library", "pin", "lab", "E2", workspace=workspace)
    rows = ("E1", "One and a half."), ("E2", "Two and a half."), ("E9", "Three.")
    mine = a_file(tmp_path, "mine.json", *rows, library="lab")
    done = studio("library", "import", mine, "--reason", "from Ann", workspace=workspace)
    assert done.code == 4
    assert "lost: E2 is pinned, so its other wording is left out\n" in done.stderr
    state = Workspace(workspace).run("import-lab-2").state()
    assert [(op.kind, op.target, op.text) for op in state.open_operations] == [
        ("modify", "E1", "One and a half."),
        ("add", None, "Three."),
    ]
    assert state.open_operations[0].rationale == "from Ann; imported from mine.json (json E1)"
    other = imported(workspace, mine, "--into", "other", "--dry-run")["operations"]
    assert {(op["kind"], op["target"]) for op in other} == {("add", None)}
    about = {"library": "lab", "version": 1, "uses": {"E1": {"used": 3}}}
    assert (
        imported(workspace, a_file(tmp_path, "copy.json", ("E1", "One."), **about))["losses"] == []
    )


@pytest.mark.parametrize("kind", [*(kind for kind in FORMATS if kind != "prompt"), "studio"])
def test_an_edited_export_rewords_what_was_edited_and_takes_back_nothing_that_was_done_since(
    practised: Path, tmp_path: Path, kind: str
) -> None:
    to = tmp_path / "out" / ("a-skill" if kind == "skill" else "mine.yaml")
    if kind == "studio":
        sealed = (practised / "runs/rehearsal/agent.yaml").read_text("utf-8")
        to.parent.mkdir()
        to.write_text(re.sub(r"(?m)^# sha256.*\n", "", sealed), "utf-8")
    else:
        words = ("export", "rehearsal", "--format", kind, "--to", str(to))
        assert studio("library", *words, workspace=practised).code == 0
    before = texts(practised, "rehearsal")
    for name, text in (("E1", "Now: another."), ("E4", "Now: a third.")):
        words = ("edit", "rehearsal", name, "--text", text)
        assert studio("library", *words, workspace=practised).code == 0
    studio("library", "edit", "rehearsal", "--delete", "E3", workspace=practised)
    format = () if kind in ("skill", "studio") else ("--format", kind)
    untouched = imported(practised, str(to), "--dry-run", *format)
    assert (untouched["library"], untouched["operations"]) == ("rehearsal", [])
    assert untouched["already"] == len(before) and not untouched["losses"]
    file = to / "SKILL.md" if kind == "skill" else to
    edited = file.read_text("utf-8").replace(before["E4"][-20:], "else.")
    file.write_text(re.sub(r'.*"content_hash".*\n', "", edited), "utf-8")
    (asked,) = imported(practised, str(to), "--dry-run", *format)["operations"]
    assert (asked["kind"], asked["target"], asked["text"][-5:]) == ("modify", "E4", "else.")


def test_the_format_that_was_recognised_is_told(workspace: Path, playbook: str) -> None:
    for more in ((), ("--dry-run",), ("--json",)):
        done = studio("library", "import", playbook, *more, workspace=workspace)
        assert "read as ace: 3 experiences; --format names another\n" in done.stderr
    assert json.loads(done.stdout)["format"] == "ace"
    said = studio("library", "import", playbook, "--format", "ace", workspace=workspace)
    assert "read as" not in said.stderr


def test_what_a_library_cannot_hold_is_told_with_exit_code_4(
    workspace: Path, tmp_path: Path
) -> None:
    uses = {"E1": {"used": 3}}
    file = a_file(tmp_path, "lab.json", ("E1", "One."), uses=uses)
    done = studio("library", "import", file, workspace=workspace)
    assert done.code == 4 and "lost: the uses of its experiences" in done.stderr


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        ([("E1", "One."), ("E1", "Two.")], "the id E1 stands there twice"),
        ([("../../etc", "One.")], "is no id"),
        ([("E1", " ")], "its text is empty"),
    ],
)
def test_duplicate_and_nonsense_ids_are_refused_wherever_a_file_is_read(
    workspace: Path, tmp_path: Path, rows: list[tuple[str, str]], cause: str
) -> None:
    file = a_file(tmp_path, "wrong.json", *rows)
    for words in (
        ("library", "import", file),
        ("library", "show", file),
        ("library", "merge", file, file, file, "--into", "lab"),
    ):
        done = studio(*words, workspace=workspace)
        assert (done.code, done.stdout) == (2, "") and cause in done.stderr
    assert not workspace.exists()


def test_a_file_whose_name_can_be_no_library_needs_one(workspace: Path, tmp_path: Path) -> None:
    file = a_file(tmp_path, "my notes.json", ("E1", "One."), library="../up")
    for into in ((), ("--into", "../up"), ("--into", "")):
        done = studio("library", "import", file, *into, workspace=workspace)
        assert (done.code, done.stdout) == (2, "") and "Choose another name." in done.stderr
    assert imported(workspace, file, "--into", "up")["run"] == "import-up"
    assert not (tmp_path / "up").exists()


def test_a_merge_asks_what_theirs_changed_and_flags_what_both_did(
    workspace: Path, tmp_path: Path
) -> None:
    base = a_file(tmp_path, "base.json", ("E1", "Carry the one."), ("E2", "Check units."))
    ours = a_file(tmp_path, "ours.json", ("E1", "Carry one over."), ("E2", "Check units."))
    theirs = a_file(tmp_path, "theirs.json", ("E1", "Carry the ten."), ("E3", "Draw it."))
    refused = studio("library", "merge", base, ours, theirs, workspace=workspace)
    assert refused.code == 2 and "--into NAME" in refused.stderr
    done = studio("library", "merge", base, ours, theirs, "--into", "lab", workspace=workspace)
    assert done.stdout.splitlines() == [
        "run merge-lab: 3 operations (1 modify, 1 delete, 1 add, 1 conflict) for library lab v0,"
        " to be decided",
        "  op0.h1  modify E1  Carry the ten.",
        "  op0.h2  delete E2",
        "  op0.h3  add  Draw it.",
    ]
    shown = studio("review", "merge-lab", workspace=workspace, typed="a\na\na\n").stdout
    assert "flag      conflict: ours reworded it, theirs.json reworded it" in shown
    wordings = ("  why       base (E1): Carry the one.", "ours (E1): Carry one over.\n")
    assert f"\n{12 * ' '}".join(wordings) in shown
    told = studio("library", "show", "lab", workspace=workspace).stdout
    assert "begun as a copy of ours.json\n" in told
    assert texts(workspace, "lab") == {"E1": "Carry the ten.", "E3": "Draw it."}
    moved = studio("library", "merge", base, ours, theirs, "--into", "lab", workspace=workspace)
    assert moved.code == 2 and "its head, v1, is not what OURS says" in moved.stderr
    by_version = studio("library", "merge", "lab@0", "lab", theirs, workspace=workspace)
    assert by_version.stdout == "nothing new for library lab v1\n"


def test_a_merge_of_another_programs_file_says_which_it_takes(
    workspace: Path, tmp_path: Path, playbook: str
) -> None:
    base = a_file(tmp_path, "base.json", ("E1", "Carry the one."))
    done = studio("library", "merge", base, base, playbook, "--into", "lab", workspace=workspace)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("studio: notes.md: it does not hold a list `experiences`")
    assert "name its format" in done.stderr


def test_every_face_says_that_a_curation_run_is_one(workspace: Path, playbook: str) -> None:
    imported(workspace, playbook, "--into", "lab")
    studio("review", "import-lab", workspace=workspace, typed="a\nq\n")
    said, what = "curation: 1 of 3 decided", "import of notes.md"

    def out(*words: str, code: int = 0) -> str:
        done = studio(*words, workspace=workspace)
        assert done.code == code, done.stderr
        return done.stdout + done.stderr

    assert f"import-lab: {said} (decide: studio review import-lab)" in out("runs", "list")
    assert out("runs", "list").splitlines()[1].split()[:3] == ["import-lab", "curation", "-"]
    assert f"import-lab: {said}" in out()
    for words in (("runs", "show", "import-lab"), ("report", "import-lab")):
        page = out(*words)
        assert said in page and what in page and "step 0" not in page.partition("Lessons")[0]
    assert f"{said}: {what}" in out("ctl", "status")
    assert "so there is nothing to stop. Decide: studio review" in out("ctl", "stop", code=2)
    resumed = out("headless", "--resume", "import-lab", code=2)
    assert f"it is the {what}. Decide it: studio review import-lab." in resumed
    named = out("headless", "rehearsal", "--name", "import-lab", "--dry-run", code=2)
    assert f"it is the {what}." in named
    assert "import-lab@last (lab@1)" in out("diff", "import-lab@epoch:0", "import-lab@last")
    assert "import-lab" not in out("doctor")
    assert "no data set is named" in out("library", "utility", "lab", "--dry-run", code=2)
    assert '"curates":"import of notes.md"' in out("ctl", "status", "--json")
    out("runs", "rm", "import-lab", "--yes")
    assert imported(workspace, playbook, "--into", "lab")["run"] == "import-lab"


def in_a_killed_child(do: Callable[[], Result], at: int) -> bool:
    """Carry out in a fork that is killed at its n-th write to the disk; False: it came through."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    left = at

    def counted(write: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)
            return write(*arguments, **options)

        return call

    try:
        for name in ("fsync", "rename", "replace"):
            setattr(os, name, counted(getattr(os, name)))
        do()
    finally:
        os._exit(0)


@pytest.mark.nightly
def test_a_kill_at_any_write_leaves_all_of_an_import_or_nothing_that_stands_in_the_way(
    tmp_path: Path, playbook: str
) -> None:
    outcomes = []
    for at in range(100):
        workspace = tmp_path / f"w{at}"
        words = ("library", "import", playbook, "--into", "lab")
        killed = in_a_killed_child(lambda: studio(*words, workspace=workspace), at)  # noqa: B023
        waiting = [open_in(workspace, run.run) for run in Workspace(workspace).runs()]
        assert waiting in ([], [TEXTS])
        outcomes.append((killed, bool(waiting)))
        done = studio(*words, workspace=workspace)
        assert done.code == 0, done.stderr
        assert open_in(workspace, "import-lab") == TEXTS
        assert len(Workspace(workspace).runs()) == 1
        assert studio("doctor", "--repair", workspace=workspace).code == 0
        assert open_in(workspace, "import-lab") == TEXTS
        if not killed:
            break
    assert {(True, False), (True, True), (False, True)} <= set(outcomes)


def test_two_imports_at_once_ask_each_wording_once(workspace: Path, playbook: str) -> None:
    words = ("library", "import", playbook, "--into", "lab", "--json")
    assert run_here(workspace, "library", "list").returncode == 0
    children = []
    for _ in range(4):
        if not (pid := os.fork()):
            try:
                os.chdir(workspace.parent)
                os._exit(run_here(workspace, *words).returncode)
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    waiting = [text for run in Workspace(workspace).runs() for text in open_in(workspace, run.run)]
    assert waiting == TEXTS


def test_an_import_is_linted_as_its_library_is_and_its_journal_is_whole(
    workspace: Path, tmp_path: Path
) -> None:
    rows = ("E1", "Always answer with a number."), ("E2", "Check the sum of a column."), (
        "E3", "Check the sums of a column."
    )  # fmt: skip
    imported(workspace, a_file(tmp_path, "lab.json", *rows))
    state = Workspace(workspace).run("import-lab").state()
    flags = [{flag.name for flag in op.flags} for op in state.open_operations]
    assert flags[0] == {"overgeneral"} and "duplicate" in flags[2]
    kinds = [type(e.event) for e in Workspace(workspace).run("import-lab").entries()]
    assert kinds == [ev.RunStarted, *[ev.OperationProposed] * 3, ev.RunEnded]


def test_a_secret_in_a_file_reaches_no_file_of_the_workspace_and_is_not_asked_twice(
    workspace: Path, tmp_path: Path
) -> None:
    remember(["sk-very-secret-0123456789"])
    try:
        file = a_file(tmp_path, "lab.json", ("E1", "Use sk-very-secret-0123456789 to ask."))
        assert "sk-very" not in json.dumps(imported(workspace, file, "--reason", "x"))
        studio("review", workspace=workspace, typed="a\n")
        assert imported(workspace, file)["already"] == 1
        kept = [path for path in workspace.rglob("*") if path.is_file()]
        assert not [path for path in kept if b"sk-very-secret-0123456789" in path.read_bytes()]
    finally:
        forget()


def test_a_journal_that_lost_its_end_is_reviewed_and_committed_all_the_same(
    workspace: Path, playbook: str
) -> None:
    imported(workspace, playbook, "--into", "lab")
    run = Workspace(workspace).run("import-lab")
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    assert "curation: 0 of 2 decided" in studio("runs", "list", workspace=workspace).stdout
    done = studio("review", workspace=workspace, typed="a\na\n")
    assert "committed: library lab is at v1" in done.stdout
    assert imported(workspace, playbook, "--into", "lab")["already"] == 2


def test_an_import_that_another_opens_while_this_one_looks_is_not_asked_again(
    workspace: Path, playbook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("library", "import", playbook, "--into", "lab")
    looked = curation._split_waiting

    def look(*asked: Any) -> Any:
        found = looked(*asked)
        monkeypatch.setattr(curation, "_split_waiting", looked)
        assert studio(*words, workspace=workspace).code == 0
        return found

    monkeypatch.setattr(curation, "_split_waiting", look)
    assert studio(*words, workspace=workspace).code == 0
    waiting = [text for run in Workspace(workspace).runs() for text in open_in(workspace, run.run)]
    assert waiting == TEXTS
