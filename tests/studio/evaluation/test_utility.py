"""`studio library utility`: the worth of every experience, from tries or from practice for free."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.library import Experience, Library
from engines.core.library_notes import Effect
from engines.pipeline.effect.worth import Effects
from engines.record.run_dir import Workspace
from studio.evaluation.effects import (
    ROLLOUTS,
    Priced,
    Utility,
    find_priced,
    offer_deletes,
    read_practice,
)
from tests.support.builders import an_effect
from tests.support.run_studio import Result, studio

DONE = ("data.truncate=8", "practice.epochs=1", "evaluation.do_eval=false")
IDLE = "Stay calm and drink water."


def library(workspace: Path, *words: str) -> Result:
    return studio("library", *words, workspace=workspace)


def utility(workspace: Path, *words: str) -> dict[str, Any]:
    done = library(workspace, "utility", "rehearsal", *words, "--json")
    assert done.code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of a finished run, with an idle experience, and 512 tries of it."""
    workspace = tmp_path_factory.mktemp("priced") / "practice"
    assert studio("headless", "rehearsal", *DONE, workspace=workspace).code == 0
    assert library(workspace, "edit", "rehearsal", "--add", IDLE).code == 0
    told = library(workspace, "utility", "rehearsal", "--rollouts", "512")
    assert told.code == 0 and max(map(len, told.stdout.splitlines())) <= 80
    for said in ("95 % INTERVAL", "512 rollouts of 32 problems"):
        assert said in told.stdout
    assert "would likely show an effect of 0.13 or more" in told.stderr
    assert "likely " in told.stderr and "rollouts 512 of 512" in told.stderr
    return workspace


@pytest.fixture
def copied(priced: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(priced, tmp_path / "practice"))


def _without_usage(effects: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out what was paid, which the command's own JSON also sums."""
    return {
        name: {key: value for key, value in effect.items() if key != "usage"}
        for name, effect in effects.items()
    }


def test_what_was_tried_is_found_again_and_kept_in_the_library(copied: Path) -> None:
    journal = (copied / "libraries/rehearsal/journal.jsonl").read_bytes()
    found = utility(copied, "--rollouts", "512")
    assert found["paid"]["calls"] == 0 and found["rollouts"] == 512
    assert (copied / "libraries/rehearsal/journal.jsonl").read_bytes() == journal
    shown = json.loads(library(copied, "show", "rehearsal", "--json").stdout)
    assert _without_usage(shown["effects"]) == _without_usage(found["single"])
    idle = next(e["id"] for e in shown["experiences"] if e["text"] == IDLE)
    assert found["single"][idle]["verdict"] == "cannot tell"
    useful = [effect for name, effect in found["single"].items() if name != idle]
    assert all(e["difference"] > 0 and e["usage"]["calls"] == 512 for e in useful)
    assert any(e["verdict"] == "helps" for e in useful)
    assert (
        f"worth: {found['single'][idle]['difference']:+.3f} ["
        in library(copied, "show", "rehearsal").stdout
    )
    fewer = utility(copied, "--rollouts", "64")  # all that is known is read all the same
    assert (fewer["single"], fewer["paid"]["calls"]) == (found["single"], 0)
    more = utility(copied, "--rollouts", "640")  # those before stay as they are
    assert (more["rollouts"], more["paid"]["calls"]) == (640, 128)


def test_a_command_that_was_killed_repeats_no_rollout_that_ended(copied: Path) -> None:
    whole = utility(copied, "--rollouts", "512")
    (scores,) = (copied / "evaluations").glob("*/scores.jsonl")
    lines = scores.read_bytes().splitlines(keepends=True)
    shutil.rmtree(copied / "evaluations/replies")  # only what was judged is known
    for kept in (0, 400, 511, 512):
        torn = lines[kept][:40] if kept < len(lines) else b""
        scores.write_bytes(b"".join(lines[:kept]) + torn)
        again = utility(copied, "--rollouts", "512")
        assert again["paid"]["calls"] == 512 - kept
        assert again["single"] == whole["single"]
        shutil.rmtree(copied / "evaluations/replies", ignore_errors=True)


def test_what_it_costs_and_can_show_is_told_before(copied: Path) -> None:
    told = library(copied, "utility", "rehearsal", "--dry-run")
    assert f"{ROLLOUTS - 512} rollouts to make, 512 known already" in told.stdout
    assert "would likely show an effect of 0.09 or more" in told.stdout
    assert "PROMPT TOKENS" in told.stdout
    few = library(copied, "utility", "rehearsal", "--k", "4", "--rollouts", "16", "--dry-run")
    assert "4 problems, 4 tries each" in few.stdout and "too few" in few.stdout


def test_held_out_problems_are_never_tried(copied: Path) -> None:
    done = library(copied, "utility", "rehearsal", "--problems", "arithmetic-heldout")
    assert done.code == 2 and "held out" in done.stderr
    done = library(copied, "utility", "rehearsal", "--run", "tiny", "--from-practice")
    assert done.code == 2 and "it makes no tries" in done.stderr


def test_what_gains_too_little_is_offered_and_a_person_decides(copied: Path) -> None:
    for text in ("Always write numbers in Roman numerals.", "Think of the sea.", "Be brave."):
        assert library(copied, "edit", "rehearsal", "--add", text).code == 0
    offered = utility(copied, "--rollouts", "1024", "--offer")
    assert offered["offered"] == offered["dispensable"] != []
    state = Workspace(copied).run("offer-rehearsal").state()  # in no run that is about others
    assert [op.target for op in state.open_operations] == offered["offered"]
    told = library(copied, "utility", "rehearsal", "--rollouts", "1024", "--offer")
    assert "offered  nothing: they are asked about already" in told.stdout
    assert "--offer asks" not in told.stdout
    name = offered["offered"][0]
    typed = "a\n" * len(offered["offered"])
    asked = studio("review", "offer-rehearsal", workspace=copied, typed=typed)
    assert "it gains less than 0.05: reward" in asked.stdout and "committed" in asked.stdout
    shown = json.loads(library(copied, "show", "rehearsal", "--json").stdout)
    assert name not in {e["id"] for e in shown["experiences"]} | shown["effects"].keys()


def test_only_what_surely_gains_too_little_can_go() -> None:
    pinned = replace(Experience("E3", "pinned"), pinned=True)
    entries = (
        Experience("E1", "unsure"),
        Experience("E2", "idle"),
        pinned,
        Experience("op1.1", "new"),
    )
    found = Priced("tips", Library("tips", 1, entries, 4), ("op1.1",), None)
    idle = an_effect(0.01, -0.03, 0.05)
    single = {"E1": an_effect(0.01, -0.05, 0.07)} | dict.fromkeys(("E2", "E3", "op1.1"), idle)
    assert set(Utility(found, Effects(single)).dispensable) == {"E2"}


def test_what_hurts_is_offered_as_such_and_what_was_reworded_meanwhile_is_not(
    tmp_path: Path,
) -> None:
    entries = tuple(Experience(f"E{n}", text) for n, text in ((1, "idle"), (2, "bad"), (3, "old")))
    head = Library("tips", 0, (*entries[:2], Experience("E3", "reworded")), 4)
    Workspace(tmp_path).library("tips").create(head)
    idle, bad = an_effect(0.01, -0.03, 0.04), an_effect(-0.2, -0.3, -0.1)
    found = Priced("tips@0", replace(head, experiences=entries), (), None)
    offered = offer_deletes(Utility(found, Effects({"E1": idle, "E2": bad, "E3": bad})),
                            Workspace(tmp_path))  # fmt: skip
    assert [(op.kind, op.target) for op in offered.operations] == [
        ("delete", "E1"),
        ("delete", "E2"),
    ]
    whys = [op.rationale for op in offered.operations]
    assert whys == [
        f"it gains less than 0.05: reward {idle.worth}",
        f"it hurts: reward {bad.worth}; false discoveries at most 1.0%",
    ]


def test_an_addition_that_waits_is_priced_as_if_it_were_an_entry(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    waits = ("review.by=wait", "review.hold_s=0.01")
    assert studio("headless", "rehearsal", *DONE, *waits, workspace=workspace).code == 3
    run = Workspace(workspace).run("rehearsal")
    adds = [op.id for op in run.state().open_operations if op.kind == "add"]
    found = utility(workspace, "--rollouts", "128")
    assert found["pending"] == adds and set(adds) <= found["single"].keys()
    assert Workspace(workspace).library("rehearsal").head().notes.effects == {}


@pytest.mark.nightly
def test_practice_with_dropout_tells_for_free_what_wordings_are_worth(tmp_path: Path) -> None:
    workspace = tmp_path / "practice"
    more = ("practice.dropout=0.3", "practice.epochs=6", "data.truncate=24")
    assert studio("headless", "rehearsal", *more, *DONE[2:], workspace=workspace).code == 0
    found = utility(workspace)
    assert found["paid"]["calls"] == 0 and found["single"]
    assert {e["method"] for e in found["single"].values()} == {"practice"}
    assert any(e["verdict"] == "helps" for e in found["single"].values())
    assert "for free" in library(workspace, "utility", "rehearsal", "--from-practice").stdout
    name = next(iter(found["single"]))
    assert library(workspace, "edit", "rehearsal", name, "--text", "Other words.").code == 0
    anew = read_practice(find_priced("rehearsal", Workspace(workspace)), Workspace(workspace))
    assert anew is not None and name not in anew.effects.single  # it counts anew
    refused = library(workspace, "utility", "rehearsal", "--run", "nowhere")
    assert refused.code == 2


def test_a_problem_is_tried_with_an_experience_and_without(copied: Path) -> None:
    words = ("try", "rehearsal", "--library", "rehearsal")
    done = studio(*words, "--without", "E2", "--json", workspace=copied)
    tried = json.loads(done.stdout)
    assert list(tried) == ["with E2", "without E2"]
    kept = [trial["experiences"] for trial in tried.values()]
    assert kept[1] == [name for name in kept[0] if name != "E2"]
    refused = studio(*words, "--without", "E99", workspace=copied)
    assert refused.code == 2 and "rehearsal@2 does not hold it" in refused.stderr
    both = studio(*words, "--without", "E2", "--versus", "rehearsal", workspace=copied)
    assert both.code == 2 and "Give one of the two" in both.stderr
    # The problem is one that the experience was drawn from.
    (problem,) = {trial["problem"]["id"] for trial in tried.values()}
    learned = Workspace(copied).library("rehearsal").head().get("E2")
    assert learned is not None
    groups = {name.partition("r")[0] for name in learned.history[0].evidence}
    asked = Workspace(copied).run("rehearsal").state().steps[learned.history[0].step].problems
    assert problem in {asked[int(name.partition("p")[2])] for name in groups}


def test_an_effect_in_words() -> None:
    effect: Effect = an_effect(0.1, -0.05, 0.15)
    assert effect.worth == "+0.100 [-0.05, +0.15] cannot tell (1,024 rollouts, inclusion)"
