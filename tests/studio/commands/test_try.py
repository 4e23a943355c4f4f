"""`studio try`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_studio import Result, studio


def tried(workspace: Path, *arguments: str) -> tuple[dict[str, Any], Result]:
    result = studio("try", *arguments, "--json", workspace=workspace)
    assert result.stdout, result.stderr
    return json.loads(result.stdout), result


def test_try_takes_the_first_problem_from_prompt_to_verdict_and_keeps_nothing(
    workspace: Path,
) -> None:
    shown = studio("try", "rehearsal", workspace=workspace)
    assert shown.code == 0 and shown.stderr.endswith(" headless rehearsal\n")
    data, _ = tried(workspace, "rehearsal")
    first = json.loads(
        studio("data", "preview", "arithmetic", "-n", "1", "--json", workspace=workspace).stdout
    )[0]
    assert data["problem"]["id"] == first["id"]
    assert data["reward"] in (0.0, 1.0)
    assert data["rehearsal"] is True
    for part in ("rehearsal:", first["question"], data["reply"], f"reward {data['reward']:g}"):
        assert shown.stdout.count(part) >= 1
    assert shown.stdout.count(data["reply"]) == 1, "streamed once, not printed again"
    assert shown.stdout.index("[user]") < shown.stdout.index("[reply]")
    assert not workspace.exists()


def test_try_takes_the_problem_of_an_id_also_from_what_is_held_out(workspace: Path) -> None:
    for name in ("arithmetic", "arithmetic-heldout"):
        rows = studio("data", "preview", name, "-n", "4", "--json", workspace=workspace).stdout
        last = json.loads(rows)[-1]
        data, _ = tried(workspace, "rehearsal", "--problem", last["id"])
        assert data["problem"]["question"] == last["question"]
    refused = studio("try", "rehearsal", "--problem", "nope", workspace=workspace)
    assert refused.code == 2 and "studio data preview" in refused.stderr


def test_a_library_in_front_of_the_prompt_changes_the_reply(practised: Path) -> None:
    # 37 + 29 needs a carry, which only the practised library speaks of.
    with_it, _ = tried(practised, "rehearsal", "--library", "rehearsal")
    without, _ = tried(practised, "rehearsal", "--library", "none")
    at_first, _ = tried(practised, "rehearsal", "--library", "rehearsal@0")
    assert with_it["experiences"] and "E1" in with_it["messages"][0]["content"]
    assert (without["experiences"], at_first["experiences"]) == ([], [])
    assert without["reply"] == at_first["reply"] != with_it["reply"]
    assert (without["reward"], with_it["reward"]) == (0.0, 1.0)


def test_without_a_word_the_try_begins_as_its_run_would(practised: Path) -> None:
    started, _ = tried(practised, "rehearsal", "library.start=rehearsal@1")
    assert started["library"] == "rehearsal@1" and started["experiences"]
    named = "agent.experiences=[{id: E7, text: 'Carry: carry one.'}]"
    mounted, _ = tried(practised, "rehearsal", named)
    assert mounted["experiences"] == ["E7"]
    bare, _ = tried(practised, "rehearsal", named, "--library", "none")
    assert bare["experiences"] == []


def test_a_library_that_is_not_there_is_refused(practised: Path) -> None:
    for reference in ("nope", "rehearsal@99"):
        refused = studio("try", "rehearsal", "--library", reference, workspace=practised)
        assert (refused.code, refused.stdout) == (2, "")


def test_a_typed_question_is_judged_by_its_answer(workspace: Path) -> None:
    question = ("rehearsal", "--question", "What is 2 + 3?")
    right, done = tried(workspace, *question, "--answer", "5")
    assert (right["reward"], done.code) == (1.0, 0)
    wrong, done = tried(workspace, *question, "--answer", "6")
    assert (wrong["reward"], done.code) == (0.0, 0), "judged wrong is no loss"
    unjudged, done = tried(workspace, *question)
    assert (unjudged["reward"], done.code) == (None, 0), "there was nothing to judge by"
    assert "not judged" in studio("try", *question, workspace=workspace).stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--answer", "5"),
        ("--question", "x", "--problem", "y"),
        ("--question", " "),
        ("polcy=rehearsal",),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: tuple[str, ...], workspace: Path
) -> None:
    refused = studio("try", "rehearsal", *options, workspace=workspace)
    assert (refused.code, refused.stdout) == (2, "")


def test_a_failed_rollout_ends_with_losses_and_its_reason(workspace: Path) -> None:
    question = ("replay", "--question", "A question no log holds?", "--answer", "1")
    failed, done = tried(workspace, *question)
    assert (failed["status"], failed["reward"], done.code) == ("failed", None, 4)
    shown = studio("try", *question, workspace=workspace)
    assert shown.code == 4
    assert "holds no rollout for this question" in shown.stdout


def test_a_verdict_that_could_not_be_had_ends_with_losses(workspace: Path) -> None:
    # A stated answer of more than 2,000 characters is not judged.
    log = workspace.parent / "log.jsonl"
    row = {"question": "Q?", "answer": "1", "rollouts": [{"response": "#### " + "1+" * 2000 + "1"}]}
    log.write_text(json.dumps(row) + "\n")
    settings = ("replay", f"policy=replay:{log}", f"data.practice={log}")
    unjudged, done = tried(workspace, *settings)
    assert (unjudged["status"], unjudged["reward"], done.code) == ("ok", None, 4)
    assert unjudged["unjudged"].startswith("too long")


def test_a_replayed_reply_is_not_called_a_rehearsal(workspace: Path) -> None:
    data, done = tried(workspace, "replay")
    assert (data["rehearsal"], done.code) == (False, 0)
    assert "rehearsal:" not in studio("try", "replay", workspace=workspace).stdout


def test_a_reply_reaches_the_terminal_harmless(workspace: Path) -> None:
    log = workspace.parent / "log.jsonl"
    row = {"question": "Q\x1b[2J?", "answer": "1", "rollouts": [{"response": "\x1b[31m#### 1"}]}
    log.write_text(json.dumps(row) + "\n")
    settings = ("replay", f"policy=replay:{log}", f"data.practice={log}")
    shown = studio("try", *settings, workspace=workspace).stdout
    assert "\x1b" not in shown
    assert "\\u001b[31m#### 1" in shown and "Q\\u001b[2J?" in shown


@pytest.mark.parametrize("option", ["--question", "--answer"])
def test_what_is_typed_in_no_utf_8_is_refused(option: str, tmp_path: Path) -> None:
    given = {"--question": "1 + 1?", "--answer": "2", option: "1 \udcff"}
    words = [word for pair in given.items() for word in pair]
    done = studio("try", "rehearsal", *words, workspace=tmp_path)
    assert done.code == 2
    assert done.stderr.strip().endswith(
        "--question, --answer: they are not UTF-8. Write them again."
    )
