"""Worsened held-out problems go to the reflector once: spares, which no figure holds."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from engines.core.events import DurableEvent, HeldOutShown, LessonProposed
from engines.core.library import Library
from engines.core.types import CallKey, Decision, Message, Operation, Problem, Sampling
from engines.pipeline.evaluation.evaluate import HeldOutSet
from engines.pipeline.worsened import choose_worsened, set_apart
from engines.record.journal import Entry, Journal
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from studio.config.loading import load_run
from studio.report.page import report_facts, report_page
from studio.tui.pages.live.page import load_event_history
from tests.engines.pipeline.effect.test_roll_back import HARMFUL, RUN
from tests.engines.pipeline.evaluation.test_diagnosis import Rows, measured
from tests.engines.pipeline.test_resume import recorded
from tests.support.builders import answering
from tests.support.harness import Practised, comparable, practised
from tests.support.run_studio import studio

EPOCHS = (*RUN, "practice.epochs=3", "evaluation.data=[arithmetic-heldout]", "seed=7")
ON = "practice.reflect_on_worsened=2"
GONE = "12 apart for the reflector"


class Misleading:
    """Approves everything, but makes the rule of the second epoch a bad one."""

    name = "misleading"

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for op in operations:
            bad = Decision(op.id, "edit", text=HARMFUL, kind="modify", reviewer=self.name)
            if op.id == "op3.1":
                yield replace(
                    bad, target=next(e.id for e in library.experiences if "story" in e.text)
                )
            else:
                yield Decision(op.id, "approve", reviewer=self.name)


class Copying(Journal):
    """Copies the workspace where a kill would hurt: round the choice, and before the lesson."""

    copies: Path

    async def append(self, event: DurableEvent, request: str = "") -> Entry:
        if isinstance(event, HeldOutShown):
            self._copy("before")
        if isinstance(event, LessonProposed) and event.step == 5:
            self._copy("lesson")
        done = await super().append(event, request)
        if isinstance(event, HeldOutShown):
            self._copy("after")
        return done

    def _copy(self, name: str) -> None:
        if (self.copies / name).exists():  # the first of two problems
            return
        shutil.copytree(self.copies.parent / "practice", self.copies / name, symlinks=True)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Practised, Path]:
    root = tmp_path_factory.mktemp("worsened")
    copying = type("Copying", (Copying,), {"copies": root / "copies"})
    run = practised(root / "practice", *EPOCHS, ON, reviewers=[Misleading()], open_journal=copying)
    return asyncio.run(run), root


def test_what_is_shown_was_apart_before_anything_was_measured(
    taught: tuple[Practised, Path],
) -> None:
    """Else those that fell would be missing in every figure, and what is left look better."""
    state, root = taught[0].state, taught[1]
    assert [one.step for one in state.shown] == [4, 4]
    names = {one.tries[0][0].problem for one in state.shown}
    for one in state.shown:
        assert [(key.step, *rest) for key, *rest in one.tries] == [(2, 1.0, 1), (4, 0.0, 2)]
    apart = {name for name, _ in state.evaluations[0].spares}
    assert names < apart and len(apart) == 12
    for found in state.evaluations:
        assert (found.n, found.left_out, len(found.problems)) == (36, 12, 36)
        assert apart.isdisjoint(found.problems)
        kept = apart - (names if found.step == 6 else set())
        assert {name for name, rewards in found.spares if len(rewards) == 1} == kept
    tried = (root / "practice/runs/rehearsal/records/eval-0006.jsonl").read_text("utf-8")
    assert not any(name in tried for name in names)
    assert state.evaluations[0].usage.calls == 48  # they are paid for, and no part of a try's cost
    assert state.evaluations[0].total.calls == 36


def test_the_reflector_reads_both_tries_in_the_next_step(taught: tuple[Practised, Path]) -> None:
    workspace = taught[1] / "practice"
    step = studio("runs", "show", "rehearsal", "--step", "5", "--prompts", workspace=workspace)
    had = "The library changed between the attempts: version 1 before attempt 0, version 2 before"
    assert step.stdout.count(had) == 2
    _, _, after = step.stdout.partition(had)
    right, wrong = after.index("Attempt 0 · reward 1.00"), after.index("Attempt 1 · reward 0.00")
    assert "> | Step 1" in after[right:wrong]
    lessons = [e.event for e in taught[0].run.entries() if isinstance(e.event, LessonProposed)]
    (lesson,) = (one.lesson for one in lessons if one.step == 5)
    assert lesson.usage.calls >= 3  # both readings and the consolidation
    assert {"s5p16", "s5p17"} <= {fate.group for fate in lesson.fates}
    evidence = {name for op in lesson.operations for name in op.evidence}
    assert not any(name.startswith(("s5p16", "s5p17")) for name in evidence)
    (last,) = (one.lesson for one in lessons if one.step == 6)
    assert not any(fate.group.startswith("s6p16") for fate in last.fates)  # once is enough


def test_every_face_says_what_was_left_out(taught: tuple[Practised, Path]) -> None:
    workspace, run = taught[1] / "practice", taught[0].run
    shown = studio("runs", "show", "rehearsal", workspace=workspace).stdout
    assert shown.count(GONE) == 5  # four measurements, and the change over the run
    assert "epoch 3: what changed" in shown
    pair = ("rehearsal@step:0", "rehearsal@step:6")
    assert f"arithmetic-heldout, {GONE}" in studio("compare", *pair, workspace=workspace).stdout
    told = [text for _, text in load_event_history(run)[0]]  # what page 1 of the screen says
    assert any(t.startswith("epoch 3: arithmetic-heldout v2 -> v3: ") for t in told)
    page = repr(report_page(report_facts(run, Workspace(workspace), alive=False)))
    assert "got worse and are read in the next step" in page and "Epoch 1: what changed" in page


@pytest.mark.parametrize("cut", ["before", "after", "lesson"])
async def test_a_kill_repeats_nothing(
    taught: tuple[Practised, Path], tmp_path: Path, cut: str
) -> None:
    workspace = tmp_path / "practice"
    shutil.copytree(taught[1] / "copies" / cut, workspace, symlinks=True)
    again = await practised(workspace, *EPOCHS, ON, reviewers=[Misleading()])
    assert max(recorded(again.run.path).values()) == 1
    kept = [line for line in comparable(again.run) if "'RunResumed'" not in line]
    assert kept == comparable(taught[0].run)


async def test_a_fork_shows_nothing_again_that_its_parent_has_shown(
    taught: tuple[Practised, Path], tmp_path: Path
) -> None:
    workspace = tmp_path / "practice"
    shutil.copytree(taught[1] / "practice", workspace)
    names = {one.tries[0][0].problem for one in taught[0].state.shown}
    other = await practised(workspace, *EPOCHS, "seed=8", restart_step=4, accept_changes=True)
    last = other.state.evaluations[-1]  # with no spares of its own
    assert (last.n, last.left_out) == (46, 2) and names.isdisjoint(last.problems)
    fork = await practised(workspace, *EPOCHS, ON, restart_step=4)
    assert fork.state.shown_questions == taught[0].state.shown_questions
    assert {(e.n, e.left_out, len(e.spares)) for e in fork.state.evaluations} == {(36, 12, 10)}


async def test_of_the_spares_only_recorded_tries_are_chosen_and_each_once(tmp_path: Path) -> None:
    half: Rows = ((1.0, 0.0),) * 9
    fell = (
        measured(0, (*half, (1.0, 1.0))),
        measured(2, (*((0.0, 0.0),) * 8, *half[:1], (0.0, 0.0))),
    )
    before, after = (
        replace(one, spares=tuple(zip(one.problems, one.rewards, strict=True))) for one in fell
    )
    after = replace(after, library_version=1)
    assert choose_worsened([before, after], 0, (), tmp_path) is None
    ledger, policy = RecordLedger(tmp_path, 1), answering(*"0123456789")
    for step in (0, 2):
        for name in ("q1", "q2", "q4", "q9"):
            key = CallKey("evaluation", 0, step, 0, 0, problem=name)
            await ledger.ask(key, policy, [Message("user", name)], Sampling())
    await ledger.aclose()
    chosen: list[str] = []
    while (found := choose_worsened([before, after], 0, chosen, tmp_path)) is not None:
        assert [key.step for key, _, _ in found.tries] == [0, 2]
        chosen.append(found.tries[0][0].problem)
    assert chosen == ["q9", "q1", "q2", "q4"]  # the greatest fall first
    assert choose_worsened([before, after], 2, (), tmp_path) is None
    assert choose_worsened(fell, 0, (), tmp_path) is None  # what figures hold is never given


def test_a_quarter_of_the_questions_is_drawn_by_chance() -> None:
    ids = [*(f"q{n}" for n in range(40)), *(f"q{n}#2" for n in range(40))]
    whole = HeldOutSet("set", tuple(Problem(name, "?") for name in ids))
    drawn = []
    for seed in (1, 2):
        found = set_apart(whole, seed)
        assert found == set_apart(whole, seed)
        spares = {problem.id for problem in found.spares}
        assert len(spares) == 20 and {name.partition("#")[0] for name in spares} < spares
        assert sorted(problem.id for problem in (*found.problems, *found.spares)) == sorted(ids)
        drawn.append(spares)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("preset", "more"),
    [("rehearsal", "evaluation.do_eval=false"), ("grpo-tiny", "evaluation.do_eval=true")],
)
def test_where_it_could_do_nothing_it_is_refused(tmp_path: Path, preset: str, more: str) -> None:
    with pytest.raises(ConfigError, match="for lessons in words and not in weights"):
        load_run(preset, [ON, more], tmp_path, {})


async def test_of_too_few_questions_none_are_set_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of 8 questions or more; it has 7"):
        await practised(tmp_path / "practice", *EPOCHS, ON, "evaluation.limit=7")
