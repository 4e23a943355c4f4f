"""Questions to the catalogue: what is found of each kind, and that no file of it is needed."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.library import Experience, Library, OperationOutcome
from engines.core.state.fold import run_history
from engines.core.types import Decision, Lesson, Operation, WeightUpdate
from engines.record.derived.catalogue import condition, find_rows
from engines.record.journal import Journal
from engines.record.run_dir import Workspace
from tests.support.builders import a_run, a_step, an_effect, an_operation, approved
from tests.support.long_runs import a_long_run, an_evaluation, write_events, write_long_run


def an_op(name: str, kind: Any = "add", target: str | None = None, text: str = "") -> Operation:
    return Operation(
        name,
        kind,
        target,
        text or f"Rule {name}: check the carry.",
        rationale="winners did",
        evidence=(f"s1p0r{name[-1]}",),
        proposer="m",
        problems=(f"p{name[-1]}",),
    )


def decided(name: str, action: Any, at: float = 100.0, **more: Any) -> ev.OperationDecided:
    return ev.OperationDecided(1, Decision(name, action, reviewer="ann", at=at, **more))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """One run in which each operation took another way, and its library."""
    workspace = Workspace(tmp_path)
    operations = [an_op(f"op1.{n}") for n in range(1, 8)]
    events = [
        a_run(library="lib"),
        a_step(),
        ev.LessonProposed(1, Lesson(1, 0, tuple(operations))),
        ev.EffectMeasured(1, ("op1.1",), an_effect(0.12, 0.02, 0.2), 0.05, "base"),
        ev.EffectMeasured(1, ("op1.2", "op1.4"), an_effect(-0.1, -0.2, -0.02), 0.05, "base"),
        decided("op1.1", "approve", assigned="E1"),
        decided("op1.2", "reject", reason="too vague"),
        decided("op1.3", "edit", text="Add the TENS first.", assigned="E2"),
        decided("op1.4", "defer", reason="ask Ben"),
        decided("op1.5", "approve", assigned="E3"),
        ev.DecisionUndone(1, "op1.5"),
        decided("op1.6", "approve", assigned="E4"),
        ev.OperationProposed(1, Operation("op1.h1", "pin", "E1"), "ben"),
        ev.DecisionUndone(1, "op1.h1", withdrawn=True),
        ev.LessonCommitted(
            1,
            1,
            "hash",
            (
                OperationOutcome("op1.1", "add", True, "E1"),
                OperationOutcome("op1.2", "add", False, reason="too vague"),
                OperationOutcome("op1.3", "add", True, "E2"),
                OperationOutcome("op1.6", "add", False, reason="says what E1 says"),
            ),
        ),
        an_evaluation(random.Random(1), 1, 1, n=3),
    ]
    write_events(workspace.runs_folder / "exp" / "journal.jsonl", events, at=1_000)
    folder = workspace.library("lib")
    folder.create(None)
    with folder.lock_for_commit() as library:
        by = {"reviewer": "ann", "at": 100.0}
        reviewed = [(operations[0], Decision("op1.1", "approve", assigned="E1", **by))]
        library.commit(reviewed, run="exp", step=1)
        library.measure(library.head, {"E1": an_effect(0.3, 0.1, 0.4)})
        by_hand = an_op("op0.9", text="Written by hand.")
        library.commit([(by_hand, Decision("op0.9", "approve", reviewer="cy", at=900.0))])
        library.commit(approved(an_operation("delete", "E2", id="op0.8")))
    return workspace


def names(workspace: Workspace, **asked: Any) -> list[str]:
    rows, errors = find_rows(workspace, condition(**asked))
    assert errors == []
    return sorted(row["id"] for row in rows)


def test_what_has_no_time_is_in_no_range_of_times(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.library("lib").create(Library("lib", experiences=(Experience("E1", "Copied."),)))
    assert names(workspace) == ["E1"]
    assert names(workspace, until=2e9) == names(workspace, since=-1.0) == []


def over_a_fifth(value: float) -> bool:
    return value > 0.2


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"kind": "rejection"}, ["op1.2", "op1.6"]),
        ({"kind": "operation", "reviewer": "ann"}, ["op1.1", "op1.2", "op1.3", "op1.4", "op1.6"]),
        ({"words": ["tens", "add"]}, ["op1.3"]),
        ({"words": ["CARRY", "op1.7"]}, ["op1.7"]),
        ({"words": ["ask"], "run": "exp"}, ["op1.4"]),
        ({"id": "E1"}, ["E1", "lib@1", "op1.1"]),
        ({"id": "s1p0r3"}, ["op1.3"]),
        ({"problem": "p1"}, ["E1", "lib@1", "op1.1"]),
        ({"problem": f"{2:016x}"}, ["held-out"]),
        ({"verdict": "helps"}, ["E1", "op1.1"]),
        ({"verdict": "hurts"}, ["op1.2", "op1.4"]),
        ({"effect": over_a_fifth}, ["E1"]),
        ({"kind": "version"}, ["lib@1", "lib@2", "lib@3"]),
        ({"kind": "experience"}, ["E1", "E2"]),
        ({"reviewer": "cy"}, ["E2", "lib@2", "op0.9"]),
        ({"run": "exp", "kind": "operation", "since": 1_000.0}, ["op1.5", "op1.7"]),
        ({"until": 900.0, "kind": "experience"}, ["E1"]),
        ({"library": "other"}, []),
        ({"run": "other"}, []),
        ({"words": ["withdrawn"]}, []),
    ],
)
def test_what_is_asked_for_is_found(
    workspace: Workspace, asked: dict[str, Any], expected: list[str]
) -> None:
    for _ in range(2):  # as the rows are made, and as they were written
        assert names(workspace, **asked) == expected


def test_each_operation_says_what_became_of_it(workspace: Workspace) -> None:
    rows, _ = find_rows(workspace, condition(kind="operation", run="exp"))
    found = {row["id"]: (row["status"], row["reviewer"], row["reason"]) for row in rows}
    assert found == {
        "op1.1": ("approved", "ann", ""),
        "op1.2": ("rejected", "ann", "too vague"),
        "op1.3": ("edited", "ann", ""),
        "op1.4": ("deferred", "ann", "ask Ben"),
        "op1.5": ("open", "", ""),
        "op1.6": ("rejected", "ann", "says what E1 says"),
        "op1.7": ("open", "", ""),
    }
    edited = next(row for row in rows if row["id"] == "op1.3")
    assert (edited["text"], edited["target"]) == ("Add the TENS first.", "E2")
    experiences, _ = find_rows(workspace, condition(kind="experience"))
    assert {row["id"]: row["status"] for row in experiences} == {"E1": "live", "E2": "deleted"}


def test_the_newest_comes_first(workspace: Workspace) -> None:
    rows, _ = find_rows(workspace, condition())
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)


def test_a_weight_update_is_found_by_its_figures(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    update = WeightUpdate({"loss": 0.25}, "update-1")
    events = [a_run(), a_step(), ev.LessonProposed(1, Lesson(1, 0, update=update))]
    write_events(workspace.runs_folder / "exp" / "journal.jsonl", events)
    assert names(workspace, words=["loss", "0.25"]) == ["op1.w"]


def test_the_library_tells_of_the_operations_of_a_run_that_was_removed(
    workspace: Workspace,
) -> None:
    assert names(workspace, id="op1.1") == ["lib@1", "op1.1"]
    (workspace.runs_folder / "exp" / "journal.jsonl").unlink()
    rows, _ = find_rows(workspace, condition(id="op1.1", kind="operation"))
    assert [(row["run"], row["status"], row["reviewer"]) for row in rows] == [
        ("exp", "approved", "ann")
    ]


@pytest.mark.parametrize("seed", range(4))
def test_every_operation_of_a_long_run_is_there_once_and_as_it_was_decided(
    tmp_path: Path, seed: int
) -> None:
    workspace, events = Workspace(tmp_path), list(a_long_run("exp", steps=30, seed=seed))
    write_events(workspace.runs_folder / "exp" / "journal.jsonl", events)
    history = run_history(events)
    rows, _ = find_rows(workspace, condition(kind="operation"))
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    operations = {op.id: op for step in history.steps.values() for op in step.operations}
    assert found.keys() == operations.keys()
    for name, op in operations.items():
        decision = history.operations[name].decision
        assert decision is not None
        row, status = found[name], {"approve": "approved", "reject": "rejected"}
        assert (row["text"], row["status"]) == (op.text, status[decision.action])
        assert (row["reviewer"], row["at"]) == (decision.reviewer, decision.at)


def test_rows_follow_their_journal(workspace: Workspace) -> None:
    assert names(workspace, words=["new"]) == []
    journal = Journal(workspace.run("exp").journal)
    journal.append_now(ev.OperationProposed(1, an_op("op1.h2", text="A NEW rule."), "ben"))
    journal.close()
    assert names(workspace, words=["new"]) == ["op1.h2"]


def test_a_damaged_journal_is_named_and_hides_nothing_else(workspace: Workspace) -> None:
    write_long_run(workspace, "long", steps=2)
    for path in (workspace.run("exp").journal, workspace.library("long").journal_path):
        path.write_bytes(path.read_bytes().replace(b"check", b"chock").replace(b"Check", b"Chock"))
    rows, errors = find_rows(workspace, condition())
    assert {(row["run"], row["library"]) for row in rows} >= {("long", "long"), ("exp", "lib")}
    assert [error.partition(": this line")[0].rpartition(":")[0] for error in errors] == [
        str(workspace.library("long").journal_path),
        str(workspace.run("exp").journal),
    ]


def test_many_who_ask_at_once_are_answered_alike(workspace: Workspace) -> None:
    write_long_run(workspace, "long", steps=4)
    right, found = find_rows(workspace, condition()), list[Any]()
    for path in workspace.path.glob("*/*/derived/rows.json"):
        path.unlink()
    askers = [
        threading.Thread(target=lambda: found.append(find_rows(workspace, condition())))
        for _ in range(6)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert found == [right] * 6
