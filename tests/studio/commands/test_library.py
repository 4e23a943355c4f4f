"""`studio library`: what was learned, how it came about, and changes by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from studio.config.loading import load_run
from studio.config.run_yaml import fingerprint
from studio.process import login_name
from studio.run.library import mounted_library
from tests.support.processes import SMALL, running
from tests.support.run_studio import Result, studio


def library(workspace: Path, *arguments: str) -> Result:
    return studio("library", *arguments, workspace=workspace)


def as_json(workspace: Path, *arguments: str) -> Any:
    return json.loads(library(workspace, *arguments, "--json").stdout)


def texts(workspace: Path, reference: str = "rehearsal") -> dict[str, str]:
    return {e["id"]: e["text"] for e in as_json(workspace, "show", reference)["experiences"]}


def an_editor(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Make $EDITOR a script that is given the file as $1."""
    path = folder / "editor.sh"
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(path))


def test_a_list_tells_version_size_and_tokens_of_every_library(practised: Path) -> None:
    (row,) = as_json(practised, "list")
    assert (row["library"], row["version"], row["experiences"]) == ("rehearsal", 2, 4)
    assert row["tokens_per_call"] > 0
    line = library(practised, "list").stdout
    assert line.split() == ["rehearsal", "v2", "4", "experiences", str(row["tokens_per_call"]),
                            "tokens", "a", "call"]  # fmt: skip
    Workspace(practised).library("an-empty-one").create(None)
    assert library(practised, "list").stderr.endswith(" library show rehearsal\n")


def test_a_list_of_no_libraries_is_empty(workspace: Path) -> None:
    assert library(workspace, "list").stdout == ""
    assert as_json(workspace, "list") == []


def test_show_tells_where_each_experience_comes_from(practised: Path) -> None:
    page = library(practised, "show", "rehearsal").stdout
    data = as_json(practised, "show", "rehearsal")
    assert data["version"] == 2
    for experience in data["experiences"]:
        mark = experience["history"][-1]
        assert f"{experience['id']}  {experience['text']}" in page
        assert f"v{mark['version']} add {mark['operation_id']} (run rehearsal step" in page
        assert mark["evidence"][0] in page
        assert mark["prompt_hash"] not in page
        assert mark["reviewer"] == "auto" and "approved by auto" in page


@pytest.mark.parametrize(
    ("reference", "experiences"),
    [("rehearsal@0", 0), ("rehearsal@1", 3), ("rehearsal@step:1", 3), ("rehearsal@epoch:1", 4)],
)
def test_show_takes_every_way_to_name_a_version(
    reference: str, experiences: int, practised: Path
) -> None:
    assert len(texts(practised, reference)) == experiences


def test_history_tells_each_commit_with_its_operations_and_why(practised: Path) -> None:
    page = library(practised, "history", "rehearsal").stdout
    assert page.index("v0  begun with 0 experiences") < page.index("v1  run rehearsal step 1")
    assert page.index("v1  run rehearsal step 1") < page.index("v2  run rehearsal step 2")
    begun, *commits = as_json(practised, "history", "rehearsal")
    assert (begun["begun"], begun["version"], begun["experiences"]) == (True, 0, 0)
    assert [(c["version"], c["run"], c["step"]) for c in commits] == [
        (1, "rehearsal", 1),
        (2, "rehearsal", 2),
    ]
    for pair in commits[0]["reviewed"]:
        assert pair["operation"]["rationale"] in page
        assert pair["decision"]["at"] > 0


def test_history_of_one_experience_leaves_the_others_out(practised: Path) -> None:
    library(practised, "edit", "rehearsal", "E2", "--text", "Carry, always.")
    page = library(practised, "history", "rehearsal", "E2").stdout
    assert "+ E2  Carry: when" in page and "~ E2  " in page
    assert "E1  " not in page and "E3  " not in page
    commits = as_json(practised, "history", "rehearsal", "E2")
    touched = [[pair["operation"]["kind"] for pair in c["reviewed"]] for c in commits]
    assert touched == [["add"], [], ["modify"]]
    refused = library(practised, "history", "rehearsal", "E99")
    assert refused.code == 2 and "E99: no version of it has that experience" in refused.stderr


def test_an_edit_is_a_decided_operation_of_a_person_with_a_reason(practised: Path) -> None:
    done = library(
        practised, "edit", "rehearsal", "E2", "--text", "Carry  the\nten.", "--reason", "shorter"
    )
    assert (done.code, done.stdout) == (0, "library rehearsal is at v3\n")
    assert texts(practised)["E2"] == "Carry the ten."  # one line of a prompt
    commit = as_json(practised, "history", "rehearsal")[-1]
    (pair,) = commit["reviewed"]
    assert (commit["run"], pair["operation"]["kind"]) == ("", "modify")
    assert (pair["operation"]["target"], pair["operation"]["proposer"]) == ("E2", login_name())
    assert (pair["decision"]["reviewer"], pair["decision"]["reason"]) == (login_name(), "shorter")
    page = library(practised, "history", "rehearsal").stdout.split("v3  by hand")[1]
    assert "[-" in page and "{+" in page
    assert f"approved by {login_name()}" in page and "why: shorter" in page
    assert (practised / "libraries/rehearsal/v0003.yaml").exists()


def test_a_deleted_experience_keeps_its_id_and_history_tells_who_and_why(practised: Path) -> None:
    gone = texts(practised)["E1"]
    assert library(practised, "edit", "rehearsal", "E1", "--delete", "--reason", "bad").code == 0
    assert library(practised, "edit", "rehearsal", "--add", "Read it twice.").code == 0
    assert list(texts(practised)) == ["E2", "E3", "E4", "E5"]
    page = library(practised, "history", "rehearsal", "E1").stdout.split("v3  by hand")[1]
    assert f"- E1  {gone}" in page
    assert f"approved by {login_name()}" in page and "why: bad" in page


def test_an_editor_is_given_the_wording_and_what_it_saves_is_committed(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = texts(practised)["E2"]
    an_editor(practised, monkeypatch, 'cat "$1" > "$(dirname "$0")/seen"; echo Carry. > "$1"')
    assert library(practised, "edit", "rehearsal", "E2").code == 0
    assert (practised / "seen").read_text() == f"{before}\n"
    assert texts(practised)["E2"] == "Carry."


@pytest.mark.parametrize("script", ["exit 0", 'cp "$1" "$1.bak"; cat "$1.bak" > "$1"'])
def test_an_editor_that_changes_nothing_commits_nothing(
    script: str, practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_editor(practised, monkeypatch, script)
    done = library(practised, "edit", "rehearsal", "E2")
    assert (done.code, done.stdout) == (0, "library rehearsal: nothing was changed\n")
    assert as_json(practised, "list")[0]["version"] == 2


def test_the_same_wording_is_no_change(practised: Path) -> None:
    same = texts(practised)["E2"]
    done = library(practised, "edit", "rehearsal", "E2", "--text", f"  {same} ")
    assert (done.code, done.stdout) == (0, "library rehearsal: nothing was changed\n")
    assert as_json(practised, "list")[0]["version"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rehearsal",), "Give one of them"),
        (("rehearsal", "E1", "--text", "a", "--delete"), "Give one of them"),
        (("rehearsal", "E1", "--add", "a"), "Give one of them"),
        (("rehearsal", "--text", "a"), "Give one of them"),
        (("rehearsal", "--delete"), "Give one of them"),
        (("rehearsal", "--add", "a", "--delete"), "Give one of them"),
        (("rehearsal", "E99", "--delete"), "There are: E1, E2, E3, E4"),
        (("rehearsal", "e1", "--text", "x"), "There are: E1, E2, E3, E4"),
        (("rehearsal", "E1", "--text", "  "), "needs a text"),
        (("rehearsal", "--add", ""), "needs a text"),
        (("nope", "E1", "--text", "x"), "There are: rehearsal"),
        (("../runs/rehearsal", "--add", "x"), "name '../runs/rehearsal'"),
        (("../libraries/rehearsal", "--add", "x"), "name '../libraries/rehearsal'"),
    ],
)
def test_a_change_that_cannot_be_is_exit_2_and_changes_nothing(
    arguments: tuple[str, ...], said: str, practised: Path
) -> None:
    before = texts(practised)
    refused = library(practised, "edit", *arguments)
    assert (refused.code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert texts(practised) == before
    assert as_json(practised, "list")[0]["version"] == 2


def test_the_exact_text_of_another_experience_is_not_added_again(practised: Path) -> None:
    refused = library(practised, "edit", "rehearsal", "--add", texts(practised)["E3"])
    assert refused.code == 2
    assert "E3 already says exactly this" in refused.stderr


def test_revert_makes_a_new_version_with_the_old_texts_and_loses_nothing(practised: Path) -> None:
    before = texts(practised)
    library(practised, "edit", "rehearsal", "--add", "Read it twice.")
    library(practised, "edit", "rehearsal", "E2", "--text", "Carry.")
    done = library(practised, "revert", "rehearsal@2", "--reason", "it was better")
    assert (done.code, done.stdout) == (0, "library rehearsal is at v5, with the texts of v2\n")
    assert texts(practised) == before
    assert texts(practised, "rehearsal@4")["E5"] == "Read it twice."
    commit = as_json(practised, "history", "rehearsal")[-1]
    assert [p["operation"]["kind"] for p in commit["reviewed"]] == ["delete", "modify"]
    assert {p["decision"]["reason"] for p in commit["reviewed"]} == {"it was better"}
    library(practised, "edit", "rehearsal", "--add", "Read it three times.")
    assert "E5" not in texts(practised) and "E6" in texts(practised), "an id is never reused"


def test_revert_brings_what_was_deleted_back_under_its_own_id(practised: Path) -> None:
    before = texts(practised)
    library(practised, "edit", "rehearsal", "E1", "--delete")
    library(practised, "revert", "rehearsal@2")
    assert texts(practised) == before
    page = library(practised, "history", "rehearsal", "E1").stdout
    assert page.index("- E1  ") < page.rindex("+ E1  ")
    assert "why: back to v2" in page
    assert library(practised, "revert", "rehearsal@2").code == 0
    assert as_json(practised, "list")[0]["version"] == 4, "nothing differs, so nothing is made"


def test_a_pin_keeps_an_experience_until_it_is_unpinned(practised: Path) -> None:
    first = next(iter(texts(practised)))
    done = library(practised, "pin", "rehearsal", first, "--reason", "it works")
    assert (done.code, done.stdout) == (0, f"library rehearsal is at v3: {first} is pinned\n")
    for again in (("pin", "rehearsal", first), ("edit", "rehearsal", first, "--delete")):
        refused = library(practised, *again)
        assert refused.code == 2 and f"{first} is pinned" in refused.stderr
    assert f"{first} (pinned)  " in library(practised, "show", "rehearsal").stdout
    told = library(practised, "history", "rehearsal", first).stdout
    assert f"  * {first}  pinned: nothing may change it\n" in told
    assert "v3 pin edit3.1 (by hand); approved by" in told and "why: it works" in told
    other = studio("diff", "rehearsal@2", "rehearsal@3", workspace=practised).stdout
    assert "4 equal, 1 pinned" in other and f"* {first}  pinned" in other
    back = studio("diff", "rehearsal@3", "rehearsal@2", "--json", workspace=practised).stdout
    assert json.loads(back)["counts"]["unpinned"] == 1
    # A revert neither unpins nor changes it; one to a version in which it was pinned pins it.
    assert library(practised, "revert", "rehearsal@2").code == 0
    assert as_json(practised, "show", "rehearsal")["experiences"][0]["pinned"] is True
    assert library(practised, "unpin", "rehearsal", first).stdout.endswith("is unpinned\n")
    assert library(practised, "edit", "rehearsal", first, "--delete").code == 0
    assert library(practised, "revert", "rehearsal@3").code == 0
    assert as_json(practised, "show", "rehearsal")["experiences"][0]["pinned"] is True
    # A run that starts from it keeps the pin, and its agent carries it on.
    settings = (*SMALL, "library.start=rehearsal@6", "practice.epochs=1")
    begun = studio("headless", "rehearsal", "--name", "next", *settings, workspace=practised)
    assert begun.code == 0, begun.stderr
    assert texts(practised, "next")[first] == texts(practised)[first]
    agent = practised / "runs" / "next" / "agent.yaml"
    assert as_json(practised, "show", str(agent))["experiences"][0]["pinned"] is True
    config = load_run("rehearsal", [], practised, agent=agent).config
    mounted = mounted_library(config, "x")
    assert mounted is not None and mounted.pinned_ids == (first,)
    # A pin belongs to what a resume compares.
    known = [one["pinned"] for one in fingerprint(config)["agent.experiences"]]
    assert known[0] is True and set(known[1:]) == {False}


@pytest.mark.parametrize(
    "reference",
    [
        "rehearsal",
        "rehearsal@",
        "@1",
        "rehearsal@x",
        "rehearsal@9",
        "nope@1",
        "../libraries/rehearsal@1",
    ],
)
def test_a_version_that_is_not_there_cannot_be_returned_to(reference: str, practised: Path) -> None:
    refused = library(practised, "revert", reference)
    assert (refused.code, refused.stdout) == (2, "")
    assert as_json(practised, "list")[0]["version"] == 2


@pytest.mark.parametrize("reference", ["nope", "../runs/rehearsal", "x" * 300, "rehearsal@9"])
@pytest.mark.parametrize("command", ["show", "history"])
def test_what_is_no_library_is_exit_2(command: str, reference: str, practised: Path) -> None:
    refused = library(practised, command, reference)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("studio: ")


def test_texts_of_people_and_models_are_inert_on_the_terminal_and_in_the_library(
    practised: Path,
) -> None:
    library(practised, "edit", "rehearsal", "--add", "a\x1b[2Jb\u202ec", "--reason", "w\x07hy")
    for words in (("show", "rehearsal"), ("history", "rehearsal")):
        page = library(practised, *words).stdout
        assert "\x1b" not in page and "\u202e" not in page and "\x07" not in page
        assert "a\\u001b[2Jb\\u202ec" in page
    # What stands in front of a prompt is what a person was shown.
    assert texts(practised)["E5"] == "a\\u001b[2Jb\\u202ec"


def test_an_edit_while_a_run_waits_sends_what_it_touches_back_flagged_and_the_rest_commits(
    workspace: Path,
) -> None:
    with running(workspace, "rehearsal", *SMALL, "--review", "wait") as process:
        proposed = process.until("LessonProposed")["lesson"]["operations"]
        process.until("StageEntered", stage="review")
        # An answer shows that the run has looked where the library stands, and waits.
        assert studio("review", workspace=workspace, typed="a\n").code == 0
        taken = proposed[0]["text"]  # a person writes the first rule down by hand
        assert library(workspace, "edit", "rehearsal", "--add", taken).code == 0
        assert studio("review", workspace=workspace, typed="a\n" * (len(proposed) - 1)).code == 0
        returned = process.until("LessonReturned")
        assert (returned["based_on"], returned["head"]) == (0, 1)
        again = studio("review", workspace=workspace, typed="a\n" * len(proposed))
        assert "the library has moved to v1 since this was proposed" in again.stdout
        assert "op1.1 was approved, but does not fit: E1 already says exactly this" in again.stdout
        committed = process.until("LessonCommitted", step=1)
        assert committed["library_version"] == 2
    assert texts(workspace, "rehearsal@1") == {"E1": taken}
    after = texts(workspace, "rehearsal@2")
    assert after.pop("E1") == taken
    assert sorted(after.values()) == sorted(op["text"] for op in proposed[1:])
