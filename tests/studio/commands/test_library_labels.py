"""`studio library label`: what a version is called, and where it can be called so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from studio.library.references import find_version, follow_version
from studio.process import login_name
from studio.serving.enhanced_agent import load_enhanced
from tests.support.run_studio import Result, studio


def label(workspace: Path, *words: str) -> Result:
    return studio("library", "label", *words, workspace=workspace)


def as_json(workspace: Path, *words: str) -> Any:
    return json.loads(studio("library", *words, "--json", workspace=workspace).stdout)


def version(workspace: Path, reference: str) -> int:
    return find_version(reference, Workspace(workspace)).library.version


def test_a_label_names_a_version_until_it_is_moved_or_removed(practised: Path) -> None:
    words = ("rehearsal@1", "production", "--reason", "62 %\x1b[2J\nlabel forged  none -> v1")
    assert label(practised, *words).stdout == "rehearsal@production is v1\n"
    assert version(practised, "rehearsal@production") == 1
    again = "rehearsal@production is v1 already"
    assert label(practised, *words).stdout == f"{again}; no reason is recorded\n"
    assert label(practised, *words[:2]).stdout == f"{again}\n"
    assert label(practised, "rehearsal@production", "old").stdout == "rehearsal@old is v1\n"
    moved = label(practised, "rehearsal", "production")
    assert moved.stdout == "rehearsal@production is v2 (was v1)\n"
    assert (version(practised, "rehearsal@production"), version(practised, "rehearsal@old")) == (
        (2, 1)
    )
    shown = studio("library", "show", "rehearsal@production", workspace=practised).stdout
    assert shown.startswith("library rehearsal@2 (production): ")
    assert as_json(practised, "show", "rehearsal@1")["labels"] == ["old"]
    removed = label(practised, "rehearsal", "old", "--remove")
    assert removed.stdout == "rehearsal@old is removed (was v1)\n"
    assert as_json(practised, "list")[0]["labels"] == {"production": 2}
    listed = studio("library", "list", workspace=practised).stdout
    assert listed.endswith("  production v2\n")
    told = studio("library", "history", "rehearsal", workspace=practised).stdout.splitlines()[-4:]
    me = login_name()
    assert [line.partition(" 20")[0] for line in told] == [
        f"label production  none -> v1  by {me}",
        f"label old  none -> v1  by {me}",
        f"label production  v1 -> v2  by {me}",
        f"label old  v1 -> none  by {me}",
    ]
    assert told[0].endswith("[2J label forged none -> v1") and "\x1b" not in told[0]
    rows = as_json(practised, "history", "rehearsal")[-4:]
    assert [(row["label"], row["before"], row["version"]) for row in rows] == [
        ("production", None, 1),
        ("old", None, 1),
        ("production", 1, 2),
        ("old", 1, None),
    ]
    assert (rows[0]["who"], rows[0]["why"]) == (me, "62 %\x1b[2J\nlabel forged  none -> v1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *((("rehearsal", name), "it must be at most 64") for name in (
            "7", "epoch:1", "step:1", "", ".a", "a b", "ä", "a@b", "x" * 65
        )),
        *((("rehearsal", name), "name places in a run") for name in (
            "best", "last", "head", "Best", "LAST"
        )),
        (("rehearsal@9", "next"), "its newest version is 2"),
        (("rehearsal@gone", "next"), "it has no such label. There are: production (v1), x (v2)."),
        (("rehearsal", "gone", "--remove"), "There are: production (v1), x (v2)."),
        (("rehearsal@1", "x", "--remove"), "removed from the whole library"),
        (("none", "x"), "there is no such library"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_label_or_is_none_is_refused_with_those_there_are(
    words: tuple[str, ...], told: str, practised: Path
) -> None:
    label(practised, "rehearsal@1", "production")
    label(practised, "rehearsal", "x")
    journal = practised / "libraries" / "rehearsal" / "journal.jsonl"
    before = journal.read_bytes()
    done = label(practised, *words)
    assert done.code == 2 and told in done.stderr
    assert journal.read_bytes() == before


def test_a_label_is_taken_wherever_a_version_is_named(practised: Path) -> None:
    label(practised, "rehearsal@1", "production")
    at = "rehearsal@production"
    assert studio("diff", at, "rehearsal@1", "--format", "json", workspace=practised).code == 0
    told = studio("diff", "rehearsal@0", at, workspace=practised).stdout
    assert told.startswith("rehearsal@0 -> rehearsal@production (rehearsal@1)")
    for words in (
        ("eval", "rehearsal", "--library", at, "--dry-run"),
        ("try", "rehearsal", "--library", at, "--question", "What is 2 + 3?"),
        ("library", "utility", at, "--dry-run"),
    ):
        done = studio(*words, workspace=practised)
        assert done.code == 0, done.stderr
    done = studio("library", "revert", at, workspace=practised)
    assert done.stdout == "library rehearsal is at v3, with the texts of v1\n"
    refused = studio("diff", "rehearsal@prod", at, workspace=practised)
    assert refused.code == 2 and "There are: production (v1)." in refused.stderr


def test_a_file_called_like_no_label_is_read_and_one_called_like_a_label_is_not(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label(practised, "rehearsal@1", "production")
    monkeypatch.chdir(practised)
    for name in ("rehearsal@production", "rehearsal@v2.yaml"):
        Path(name).write_bytes((practised / "libraries/rehearsal/v0002.yaml").read_bytes())
    assert version(practised, "rehearsal@production") == 1
    assert version(practised, "rehearsal@v2.yaml") == 2


def test_a_run_that_starts_from_a_label_notes_the_number_it_meant(practised: Path) -> None:
    label(practised, "rehearsal@1", "production")
    small = ("practice.epochs=1", "data.truncate=4", "practice.batch_size=4",
             "practice.group_size=2", "evaluation.do_eval=false")  # fmt: skip
    words = ("rehearsal", "--name", "next", "library.start=rehearsal@production", *small)
    assert studio("headless", *words, workspace=practised).code == 0
    first = (practised / "libraries/next/journal.jsonl").read_text("utf-8").splitlines()[0]
    assert json.loads(first)["e"]["copied_from"] == "rehearsal@1 (production)"
    for what in ("show", "history"):
        told = studio("library", what, "next", workspace=practised).stdout
        assert "begun as a copy of rehearsal@1 (production)" in told
    assert as_json(practised, "show", "next@0")["copied_from"] == "rehearsal@1 (production)"
    label(practised, "rehearsal", "production")  # a resume does not mind
    assert studio("headless", *words, workspace=practised).code == 0


def test_a_run_goes_on_from_a_label_of_its_own_librarys_head(practised: Path) -> None:
    label(practised, "rehearsal", "production")
    words = ("rehearsal", "--name", "on", "library.name=rehearsal",
             "library.start=rehearsal@production", "practice.epochs=1", "data.truncate=4",
             "practice.batch_size=4", "practice.group_size=2",
             "evaluation.do_eval=false")  # fmt: skip
    assert studio("headless", *words, workspace=practised).code == 0
    assert len(Workspace(practised).libraries()) == 1


def test_a_start_that_is_not_there_is_refused_before_any_model_is_asked(practised: Path) -> None:
    words = ("rehearsal", "--name", "on", "policy=openai:m", "policy.base_url=http://127.0.0.1:9",
             "policy.api_key=none", "library.start=rehearsal@nope")  # fmt: skip
    refused = studio("headless", *words, workspace=practised)
    assert refused.code == 2 and "it has no such label" in refused.stderr
    assert not (practised / "libraries/on").exists()


def test_a_query_by_a_label_is_one_by_the_number_it_means(practised: Path) -> None:
    label(practised, "rehearsal@1", "production")
    by_label, by_number = (
        studio("query", "--id", f"rehearsal@{version}", workspace=practised).stdout
        for version in ("production", "1")
    )
    assert by_label == by_number != ""
    refused = studio("query", "--id", "rehearsal@prod", workspace=practised)
    assert refused.code == 2 and "There are: production (v1)." in refused.stderr


def test_what_serves_a_label_follows_it(practised: Path) -> None:
    label(practised, "rehearsal@1", "production")
    workspace = Workspace(practised)
    _, read_version = follow_version("rehearsal@production", workspace)
    agent = load_enhanced("rehearsal@production", ["policy=rehearsal"], workspace, None)
    assert (read_version().version, agent.read_library().version) == (1, 1)  # type: ignore[union-attr]
    label(practised, "rehearsal", "production")
    assert (read_version().version, agent.read_library().version) == (2, 2)  # type: ignore[union-attr]


def test_the_doctor_refuses_a_label_on_a_version_that_is_not_there(practised: Path) -> None:
    from engines.core import events as ev
    from engines.record.journal import Journal

    journal = Journal(practised / "libraries/rehearsal/journal.jsonl")
    journal.append_now(ev.LibraryLabelled("production", 9, "me"))
    journal.close()
    found = studio("doctor", workspace=practised)
    assert found.code == 2 and "label 'production' names version 9, not there" in found.stdout
    shown = studio("library", "show", "rehearsal", workspace=practised)
    assert shown.code == 2 and "names version 9" in shown.stderr
    repaired = studio("doctor", "--repair", workspace=practised)
    assert "entries: 1" in repaired.stdout
    assert version(practised, "rehearsal") == 2
