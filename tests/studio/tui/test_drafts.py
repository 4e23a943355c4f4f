"""Wordings under way and the place of a person, beside the journal and back."""

import json
import random
import stat
from pathlib import Path

import pytest

from engines.record.run_dir import RunDir
from studio.secrets import output
from studio.tui.drafts import FILE, SAVE_EVERY_S, Drafts


def a_run(folder: Path) -> RunDir:
    path = folder / "runs" / "mine"
    path.mkdir(parents=True)
    return RunDir(path)


def on_disk(run: RunDir) -> dict[str, object]:
    found = json.loads((run.path / FILE).read_text())
    assert isinstance(found, dict)
    return found


def test_what_was_begun_is_there_again(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    drafts = Drafts(run)
    drafts.page, drafts.cursor, drafts.scroll, drafts.filter = "review", "op2.1", 7, "lattice"
    drafts.edits["op2.1"] = "Wörter\nund 漢字"
    drafts.notes["op2.2"] = "ask ann"
    drafts.save()
    again = Drafts(run)
    assert (again.page, again.cursor, again.scroll, again.filter) == (
        "review",
        "op2.1",
        7,
        "lattice",
    )
    assert again.edits == {"op2.1": "Wörter\nund 漢字"}
    assert again.notes == {"op2.2": "ask ann"}
    assert again.left_at == ("review", "op2.1")
    assert not again.restored


def test_a_screen_without_a_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drafts = Drafts(None)
    drafts.page = "start"
    drafts.save()
    drafts.save_if_due(100.0)
    assert list(tmp_path.iterdir()) == []
    assert drafts.trouble == ""


def test_it_is_saved_at_most_every_two_seconds_and_only_when_something_changed(
    tmp_path: Path,
) -> None:
    run = a_run(tmp_path)
    drafts = Drafts(run)
    drafts.save_if_due(0.0)
    assert not (run.path / FILE).exists()
    drafts.page = "review"
    drafts.save_if_due(0.1)
    assert on_disk(run)["page"] == "review"
    drafts.page = "diff"
    drafts.save_if_due(0.1 + SAVE_EVERY_S - 0.01)
    assert on_disk(run)["page"] == "review"
    drafts.save_if_due(0.1 + SAVE_EVERY_S)
    assert on_disk(run)["page"] == "diff"


def test_a_decision_saves_at_once(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    drafts = Drafts(run)
    drafts.page = "review"
    drafts.save_if_due(10.0)
    drafts.cursor = "op1.2"
    drafts.save()
    assert on_disk(run)["cursor"] == "op1.2"


def test_the_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    output.remember(["sk-very-secret-key"])
    try:
        drafts = Drafts(run)
        drafts.edits["op1.1"] = "use sk-very-secret-key to call"
        drafts.notes["op1.1"] = drafts.filter = "sk-very-secret-key"
        drafts.save()
    finally:
        output.forget()
    assert "sk-very" not in (run.path / FILE).read_text()
    assert stat.S_IMODE((run.path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"v": 99}',
        b'{"v": 1}',
        b"\xff\xfe\x00",
        b'{"v": 1, "page": "x", "cursor": "", "scroll": "many", "filter": "", "edits": {}, '
        b'"notes": {}}',
        b'{"v": 1, "page": "x", "cursor": "", "scroll": 1, "filter": "", "edits": [], "notes": {}}',
        b"[" * 100_000,
        b'{"v": 1, "page": "x", "cursor": "", "scroll": 1e999, "filter": "", "edits": {}, '
        b'"notes": {}}',
        b'{"v": 1, "page": "x", "cursor": "", "scroll": NaN, "filter": "", "edits": {}, '
        b'"notes": {}}',
    ],
)
def test_a_damaged_or_foreign_file_is_set_aside_and_told(tmp_path: Path, content: bytes) -> None:
    run = a_run(tmp_path)
    (run.path / FILE).write_bytes(content)
    drafts = Drafts(run)
    assert (drafts.page, drafts.edits) == ("", {})
    assert "could not be understood" in drafts.trouble
    assert (run.path / f"{FILE}.damaged").read_bytes() == content
    drafts.page = "review"
    drafts.save()
    assert on_disk(run)["page"] == "review"


def test_whatever_stands_in_the_file_the_screen_opens_and_can_save(tmp_path: Path) -> None:
    chance = random.Random(3)
    run = a_run(tmp_path)
    whole = {"v": 1, "page": "p", "cursor": "c", "scroll": 1, "filter": "f", "edits": {"a": "b"},
             "notes": {}}  # fmt: skip
    values = ("1e999", "-1e999", "NaN", "null", "true", "[]", "{}", '"\\ud800"', '{"a": [1]}',
              "9" * 5000, "-1", '""', '{"a": null}', '"\\u0000"')  # fmt: skip
    for _ in range(400):
        text = json.dumps(whole)
        if chance.random() < 0.5:
            name = chance.choice(list(whole))
            text = text.replace(
                f"{json.dumps(name)}: {json.dumps(whole[name])}",
                f"{json.dumps(name)}: {chance.choice(values)}",
            )
        else:
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice('{}[]",:\\\0e9-') + text[at + chance.randrange(3) :]
        (run.path / FILE).write_text(text)
        drafts = Drafts(run)
        drafts.page = "another"
        drafts.save()
        assert on_disk(run)["page"] == "another", text


def test_a_folder_in_the_place_of_the_file_is_no_end(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    (run.path / FILE).mkdir()
    assert "could not be understood" in Drafts(run).trouble


def test_a_disk_that_refuses_is_told_once_and_tried_again(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    drafts = Drafts(run)
    (run.path / FILE).mkdir()  # a file cannot replace a folder, also for root
    (run.path / FILE / "x").touch()
    drafts.page = "review"
    drafts.save()
    assert "drafts are not kept" in drafts.trouble
    drafts.trouble = ""
    drafts.save()
    assert drafts.trouble == ""
    (run.path / FILE / "x").unlink()
    (run.path / FILE).rmdir()
    drafts.save()
    assert on_disk(run)["page"] == "review"


def test_a_screen_that_looks_on_leaves_the_drafts_of_who_decides(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    driver, observer = Drafts(run), Drafts(run)
    driver.edits["op1.1"] = "half a thought"
    driver.save()
    observer.writes = False
    observer.page = "runs"
    observer.save()
    assert on_disk(run)["edits"] == {"op1.1": "half a thought"}


def test_a_run_that_was_removed_meanwhile_is_told(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    drafts = Drafts(run)
    run.path.rmdir()
    drafts.page = "live"
    drafts.save()
    assert "drafts are not kept" in drafts.trouble


def test_who_takes_over_has_what_the_other_screen_began(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    looks_on, drives = Drafts(run), Drafts(run)
    looks_on.writes = False
    drives.edits["op1.1"] = "Carry one, always."
    drives.save()
    looks_on.take_over_file()
    looks_on.writes = True
    assert looks_on.edits == {"op1.1": "Carry one, always."}
    looks_on.edits["op1.2"] = "Check units."
    looks_on.save()
    assert Drafts(run).edits == {"op1.1": "Carry one, always.", "op1.2": "Check units."}


def test_a_secret_that_is_hidden_in_the_file_stays_in_what_is_typed(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    output.remember(["sk-very-secret-key"])
    try:
        drafts = Drafts(run)
        drafts.edits["a"] = typed = "use sk-very-secret-key to call"
        for drafts.scroll in (1, 2):
            drafts.save()
            assert drafts.edits["a"] == typed
    finally:
        output.forget()
    assert "sk-very" not in (run.path / FILE).read_text()
