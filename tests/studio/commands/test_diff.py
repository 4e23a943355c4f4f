"""`studio diff`: every way to name a side, every form, every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import SMALL
from tests.support.run_studio import Result, studio


def diff(workspace: Path, *arguments: str) -> Result:
    return studio("diff", *arguments, workspace=workspace)


def data(workspace: Path, a: str, b: str) -> Any:
    return json.loads(diff(workspace, a, b, "--json").stdout)


def ids(found: Any, sign: str) -> list[str]:
    return [change["id"] for change in found["experiences"] if change["sign"] == sign]


@pytest.fixture
def edited(practised: Path) -> Path:
    """E1 to E3 since v1, E4 since v2; at v3 E2 reads otherwise, at v4 E1 is gone."""
    for change in (("E2", "--text", "Carry the <script>ten</script>\x1b[2J."), ("E1", "--delete")):
        assert studio("library", "edit", "rehearsal", *change, workspace=practised).code == 0
    return practised


def test_a_bundled_library_is_found_by_its_name(practised: Path) -> None:
    assert data(practised, "neutral", "rehearsal")["a"]["label"] == "neutral (bundled)"
    assert diff(practised, "neutral", "neutral@1").code == 2  # it has no versions


def test_signs_counts_tokens_and_the_word_diff(edited: Path) -> None:
    first, *rest = diff(edited, "rehearsal@1", "rehearsal").stdout.splitlines()
    tokens = data(edited, "rehearsal@1", "rehearsal")
    assert first == (
        "rehearsal@1 -> rehearsal@4  1 added, 1 reworded, 1 removed, 1 equal; "
        f"{tokens['a']['tokens_per_call']} -> "
        f"{tokens['b']['tokens_per_call']} tokens a call (estimated)"
    )
    assert [line[:5] for line in rest] == ["- E1 ", "~ E2 ", "+ E4 "]
    assert "[-Carry:" in rest[1] or "Carry[-" in rest[1]
    assert "{+" in rest[1]


def test_the_other_way_round_what_was_added_is_removed(edited: Path) -> None:
    there = data(edited, "rehearsal@1", "rehearsal@4")
    back = data(edited, "rehearsal@4", "rehearsal@1")
    assert (ids(there, "+"), ids(there, "-")) == (ids(back, "-"), ids(back, "+"))
    assert there["a"]["tokens_per_call"] == back["b"]["tokens_per_call"]


@pytest.mark.parametrize(
    ("a", "b", "version_a", "version_b", "added"),
    [
        ("rehearsal@0", "rehearsal@2", 0, 2, ["E1", "E2", "E3", "E4"]),
        ("rehearsal@epoch:0", "rehearsal@epoch:1", 0, 2, ["E1", "E2", "E3", "E4"]),
        ("rehearsal@step:1", "rehearsal@step:2", 1, 2, ["E4"]),
        ("rehearsal@step:2", "rehearsal", 2, 4, []),
        ("libraries/rehearsal/v0001.yaml", "rehearsal@2", 1, 2, ["E4"]),
        ("rehearsal@step:1", "runs/rehearsal/agent.yaml", 1, 0, ["E4"]),
    ],
)
def test_a_side_is_a_version_a_moment_of_a_run_or_a_file(
    a: str, b: str, version_a: int, version_b: int, added: list[str], edited: Path
) -> None:
    result = studio("diff", a, b, "--json", workspace=edited, cwd=edited)
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["a"]["version"], found["b"]["version"]) == (version_a, version_b)
    assert ids(found, "+") == added
    assert found["a"]["label"].startswith(a) and found["b"]["label"].startswith(b)


def test_a_version_does_not_differ_from_itself_nor_from_its_file(edited: Path) -> None:
    for other in ("rehearsal@4", str(edited / "libraries/rehearsal/v0004.yaml")):
        found = data(edited, "rehearsal", other)
        assert found["counts"] == {"equal": 3}
    heading, words = diff(edited, "rehearsal@4", "rehearsal").stdout.splitlines()
    assert "3 equal" in heading
    assert words == "the same library: no experience differs"


def test_json_and_format_json_are_the_same(edited: Path) -> None:
    words = ("rehearsal@1", "rehearsal@4")
    assert diff(edited, *words, "--json") == diff(edited, *words, "--format", "json")
    found = data(edited, *words)
    (changed,) = (change for change in found["experiences"] if change["sign"] == "~")
    assert changed["id"] == "E2"
    assert "".join(text for kind, text in changed["words"] if kind != "cut") == changed["after"]


def test_a_page_escapes_scripts_and_no_form_lets_control_characters_through(edited: Path) -> None:
    page = diff(edited, "rehearsal@1", "rehearsal@4", "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "&lt;script&gt;ten&lt;/script&gt;" in page
    text = diff(edited, "rehearsal@1", "rehearsal@4").stdout
    for shown in (page, text):
        assert "\x1b" not in shown
        assert "\\u001b[2J" in shown


def test_held_out_results_of_the_moment_stand_in_every_form(workspace: Path) -> None:
    measured = (*SMALL, "data.truncate=4", "evaluation.do_eval=true", "evaluation.limit=6")
    measured = (*measured, "evaluation.data=arithmetic-heldout")
    assert studio("headless", "rehearsal", *measured, workspace=workspace).code == 0
    words = ("rehearsal@epoch:0", "rehearsal@epoch:1")
    before, after = diff(workspace, *words).stdout.splitlines()[1:3]
    assert before.startswith("before: arithmetic-heldout: mean reward 0.")
    assert before.endswith("(n=6)")
    assert after.startswith("after: arithmetic-heldout: mean reward ")
    found = data(workspace, *words)
    assert f"mean reward {found['a']['evaluations'][0]['mean_reward']:.3f} [" in before
    assert before in diff(workspace, *words, "--format", "html").stdout


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("rehearsal@9", "Choose one from 0 to 2"),
        ("nope@1", "There are: rehearsal"),
        ("nope", "Libraries: rehearsal"),
        ("rehearsal@", "Write NAME@V"),
        ("rehearsal@v1", "`studio library label` gives one"),
        ("rehearsal@-1", "Write NAME@V"),
        ("rehearsal@day:1", "Write NAME@V"),
        ("rehearsal@step:9", "Choose 0 to 2"),
        ("rehearsal@epoch:9", "Choose 0 to 1"),
        ("rehearsal@step:", "Write RUN@step:2"),
        ("rehearsal@step:two", "Write RUN@step:2"),
        ("rehearsal@epoch:²", "Write RUN@epoch:2"),
        ("nope@step:1", "There are: rehearsal"),
        ("../libraries/rehearsal@1", "name '../libraries/rehearsal'"),
        ("@epoch:1", "name ''"),
        ("", "Write NAME@V"),
        ("a\0b", "Write NAME@V"),
        ("x" * 300, "Write NAME@V"),
        ("runs", "Write NAME@V"),  # a folder
        ("runs/rehearsal/run.yaml", "Correct the file, give another"),
        ("runs/rehearsal/journal.jsonl", "Correct the file, give another"),
        ("empty.yaml", "Correct the file, give another"),
        ("wrong.yaml", "Correct the file, give another"),
        ("binary.yaml", "Correct the file, give another"),
    ],
)
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_wrong_reference_is_exit_2_with_place_cause_and_next_move(
    reference: str, said: str, side: str, practised: Path
) -> None:
    (practised / "empty.yaml").write_text("")
    (practised / "wrong.yaml").write_text("experiences: [E1, E2]")
    (practised / "binary.yaml").write_bytes(b"\xff\x00\x81")
    words = (reference, "rehearsal") if side == "a" else ("rehearsal", reference)
    refused = studio("diff", *words, workspace=practised, cwd=practised)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("studio: ")
    assert said in refused.stderr


def test_a_step_that_is_still_under_way_has_no_version_yet(workspace: Path) -> None:
    held = (*SMALL, "--review", "wait", "review.hold_s=0.01")
    assert studio("headless", "rehearsal", *held, workspace=workspace).code == 3
    refused = diff(workspace, "rehearsal@step:1", "rehearsal")
    assert refused.code == 2
    assert "it has not committed that step" in refused.stderr
    assert diff(workspace, "rehearsal@step:0", "rehearsal").code == 0


def test_of_a_forked_run_the_adopted_steps_name_where_it_began(practised: Path) -> None:
    forked = studio("headless", "rehearsal", *SMALL, "--restart-step", "1", workspace=practised)
    assert forked.code == 0, forked.stderr
    found = data(practised, "rehearsal@step:1", "rehearsal-2@step:1")
    assert set(found["counts"]) <= {"equal"}
    assert ids(data(practised, "rehearsal-2@step:1", "rehearsal-2@step:2"), "+")


@pytest.mark.parametrize("arguments", [(), ("rehearsal",), ("a", "b", "--format", "pdf")])
def test_a_command_line_that_is_incomplete_or_wrong_is_exit_2(
    arguments: tuple[str, ...], practised: Path
) -> None:
    refused = diff(practised, *arguments)
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr
