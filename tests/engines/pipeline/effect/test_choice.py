"""The best of several lessons: what it is chosen by, what proves it, and what a cut costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.codec import seed_for
from engines.core.errors import StudioError
from engines.core.state.fold import run_history
from engines.core.types import Attempt, Job, Lesson, Operation
from engines.pipeline.effect.effect_gate import (
    FIRST_TRY,
    EffectGate,
    choice_problems,
    compare_lessons,
)
from studio.facts.step import step_facts
from studio.render.run_lines import step_text
from studio.report.progress import LinePrinter
from studio.run.held_out import choice_text
from tests.engines.pipeline.effect.test_effect_gate import (
    LIBRARY,
    ONE_CALL,
    Journal,
    Killed,
    Luck,
    a_gate,
    adds,
    try_lesson,
    worth,
)
from tests.engines.pipeline.test_resume import Photographed, recorded
from tests.support.harness import comparable, practised


@dataclass
class OwnLuck(Luck):
    """Luck is another for every wording, as a real model's is."""

    world: int = 0

    async def roll_out(self, job: Job, on_text: Any = None, on_start: Any = None) -> Any:
        draw = seed_for(self.world, job.problem.id, job.key.index, job.guidance) / 2**31
        return Attempt((), str(float(draw < self.chance(job.guidance))), usage=ONE_CALL), ()


def drafts(*lessons: tuple[Operation, ...]) -> list[ev.LessonDraft]:
    return [ev.LessonDraft(Lesson(1, 0, operations)) for operations in lessons]


async def chosen(
    gate: EffectGate, *lessons: tuple[Operation, ...], batch: tuple[str, ...] = ()
) -> tuple[Journal, ev.LessonsCompared]:
    """A run whose first step drew these lessons, and proposes the best."""
    journal = Journal()
    await journal.record(ev.StepStarted(1, 1, batch, 0, 0))
    found = await compare_lessons(gate, journal.state.steps[1], LIBRARY, drafts(*lessons))
    await journal.record(found)
    await journal.record(ev.LessonProposed(1, found.drafts[found.chosen].lesson))
    return journal, found


async def test_the_best_goes_on_and_is_proved_on_problems_that_did_not_choose_it(
    tmp_path: Path,
) -> None:
    luck = Luck(worth(good=0.6, bad=-0.3))
    gate, batch = a_gate(tmp_path, luck), ("p1", "p2", "p3")
    journal, found = await chosen(gate, adds("bad"), adds("good"), adds("idle"), batch=batch)
    scores = [one.score for one in found.drafts]
    assert found.chosen == 1 and scores[0] is not None and scores[0] < 0 < (scores[1] or 0)
    # Half of a verdict's problems and tries, of three lessons and of none.
    assert (len(found.problems), found.k) == (10, 2)
    assert luck.tries == found.usage.calls == 80 == journal.state.spent_on["gate"].calls
    assert "10 problems apart from its verdict's, 2 tries each: 80" in choice_text(gate, 3, 10)
    chose, luck.asked = set(luck.asked), []
    await try_lesson(gate, journal)
    assert chose == set(found.problems) and not set(luck.asked) & (chose | set(batch))
    (flag,) = journal.state.operations["op1.1"].flags
    assert flag.name == "helps" and "lesson 2 of 3 was chosen on 10 other problems" in flag.detail


def test_each_step_chooses_by_other_problems_and_never_by_its_batch(tmp_path: Path) -> None:
    gate, batch = a_gate(tmp_path, Luck(worth())), ("p1", "p2#2", "p3")
    drawn = [{p.id for p in choice_problems(gate, step, batch)} for step in (1, 2)]
    assert drawn[0] != drawn[1] and not {"p1", "p2", "p3"} & (drawn[0] | drawn[1])


async def test_lessons_of_one_wording_are_tried_once_and_the_first_of_equals_is_chosen(
    tmp_path: Path,
) -> None:
    luck = Luck(worth(good=0.6))
    gate = a_gate(tmp_path, luck)
    _, found = await chosen(gate, adds("idle"), adds("good", "x"), adds("x", "good"))
    assert luck.tries == 3 * 20 and found.chosen == 1
    assert found.drafts[1].score == found.drafts[2].score
    luck.tries = 0
    _, found = await chosen(gate, adds("same"), adds("same"))
    assert (luck.tries, found.chosen, found.problems) == (0, 0, ())
    assert found.text == "all 2 lessons say the same, so none was tried to choose one"


async def test_a_lesson_that_changes_nothing_is_worth_0_and_wins_where_others_harm(
    tmp_path: Path,
) -> None:
    gate = a_gate(tmp_path, Luck(worth(bad=-0.3)))
    _, found = await chosen(gate, adds("bad"), ())
    assert found.chosen == 1 and found.drafts[1].score == 0
    # Where all harm, the least harmful is proposed, and its verdict is not hidden.
    gate = a_gate(tmp_path / "worse", Luck(worth(bad=-0.15, worst=-0.15)))
    journal, found = await chosen(gate, adds("bad", "worst"), adds("bad"))
    assert found.chosen == 1 and (found.drafts[1].score or 0) < 0
    await try_lesson(gate, journal)
    assert journal.measured[0].effect.verdict != "helps"


async def test_a_choice_that_was_cut_pays_for_no_try_again_and_ends_the_same(
    tmp_path: Path,
) -> None:
    luck, lessons = Luck(worth(good=0.6), fails_after=33), (adds("idle"), adds("good"))
    with pytest.raises(BaseException) as cut:
        await chosen(a_gate(tmp_path, luck), *lessons)
    assert isinstance(cut.value, Killed) or cut.group_contains(Killed)
    luck.fails_after = None
    _, found = await chosen(a_gate(tmp_path, luck), *lessons)
    _, whole = await chosen(a_gate(tmp_path / "whole", Luck(worth(good=0.6))), *lessons)
    assert found == whole and luck.tries == found.usage.calls == 60


async def test_tries_of_a_choice_are_never_those_of_a_later_verdict(tmp_path: Path) -> None:
    numbers: list[int] = []

    class Noting(Luck):
        async def roll_out(self, job: Job, on_text: Any = None, on_start: Any = None) -> Any:
            numbers.append(job.key.index)
            return await super().roll_out(job)

    gate = a_gate(tmp_path, Noting(worth()))
    journal, _ = await chosen(gate, adds("idle"), adds("vain"))
    assert min(numbers) == FIRST_TRY
    numbers.clear()
    await try_lesson(gate, journal)
    assert max(numbers) < FIRST_TRY


@pytest.mark.nightly
async def test_the_best_of_four_that_do_nothing_claims_nothing(tmp_path: Path) -> None:
    """Its own score overstates it by ten points; on other problems that is gone.

    The greatest of 4 scores with one base has mean 1.03·√(1/2)·s with s = √(2·¼/20) = 0.158, so
    0.115 on 10 problems × 2 tries.
    """
    worlds, scores, proved, helped = 120, [], [], 0
    for world in range(worlds):
        luck = OwnLuck(lambda guidance: 0.5, world=world)
        gate = a_gate(tmp_path / str(world), luck)
        journal, found = await chosen(gate, *(adds(text) for text in ("a", "b", "c", "d")))
        await try_lesson(gate, journal)
        (verdict,) = (one.effect for one in journal.measured)
        scores.append(found.drafts[found.chosen].score or 0.0)
        proved.append(verdict.difference if verdict.verdict == "helps" else 0.0)
        helped += verdict.verdict == "helps"
    assert 0.08 < mean(scores) < 0.17  # its standard error is 0.0125
    assert mean(proved) < 0.02
    # 0.05 of each: 6 are expected at most, and 12 or more are seen in 2 of 100 such tests.
    assert helped <= 11


CUTS = ("before-LessonsCompared", "after-LessonsCompared", "before-EffectMeasured")


class PhotographedCuts(Photographed):
    """Takes pictures of these moments only, and two of each: copying is slow."""

    def _take(self, name: str) -> None:
        if name in CUTS and len(list(self.album.glob(f"*-{name}"))) < 2:
            super()._take(name)


A_RUN = (
    "practice.epochs=1",
    "practice.batch_size=8",
    "practice.group_size=3",
    "data.truncate=24",
    "practice.proposals=3",
    "review.gate={problems: 8, k: 2}",
)


@pytest.mark.nightly
async def test_a_run_that_chooses_ends_the_same_wherever_it_was_cut(tmp_path: Path) -> None:
    workspace, album = tmp_path / "practice", tmp_path / "album"
    album.mkdir()
    camera = type("Camera", (PhotographedCuts,), {"workspace": workspace, "album": album})
    whole = await practised(workspace, *A_RUN, open_journal=camera)
    everything = recorded(whole.run.path)
    compared = [e.event for e in whole.run.entries() if isinstance(e.event, ev.LessonsCompared)]
    assert any(one.problems for one in compared) and set(everything.values()) == {1}
    # What was read for a chosen lesson stands where the first reading did.
    for one in compared:
        wishes = {p for r in one.drafts[one.chosen].reflections for p in r.proposals}
        shown = run_history(e.event for e in whole.run.entries()).steps[one.step].reflections
        assert not wishes or wishes == {p for r in shown for p in r.proposals}
    tried = next(one for one in compared if one.problems)
    told = step_text(step_facts(whole.run, tried.step), prompts=False)
    assert f"choice: {tried.text}" in told and told.count(", not chosen") == 2
    said: list[str] = []
    LinePrinter(whole.state, said.append)(tried)
    assert said == [f"step {tried.step}: {tried.text}"]
    usage = whole.state.usage
    assert usage.calls == len(everything)
    cuts = [cut for name in CUTS for cut in sorted(album.glob(f"*-{name}"))]
    assert len(cuts) == 6
    for cut in cuts:
        again = await practised(cut, *A_RUN)
        assert recorded(again.run.path) == everything, cut.name
        rows = [row for row in comparable(again.run) if "'RunResumed'" not in row]
        assert rows == comparable(whole.run), cut.name
        assert again.state.usage == usage and again.texts == whole.texts


async def test_one_lesson_is_drawn_as_ever(tmp_path: Path) -> None:
    one = await practised(tmp_path / "one", *A_RUN, "practice.proposals=1")
    usual = [setting for setting in A_RUN if "proposals" not in setting]
    assert comparable((await practised(tmp_path / "usual", *usual)).run) == comparable(one.run)
    assert not any(isinstance(entry.event, ev.LessonsCompared) for entry in one.run.entries())


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        (["review.gate.problems=null"], "without review.gate nothing chooses"),
        (["reflector={model: rehearsal, temperature: 0}"], "are the same"),
        (["practice.batch_size=20"], "it takes 16"),
    ],
)
async def test_a_choice_that_could_not_be_made_is_refused(
    tmp_path: Path, settings: list[str], cause: str
) -> None:
    with pytest.raises(StudioError, match=cause):
        await practised(tmp_path, *A_RUN, *settings)
    assert not (tmp_path / "runs").exists()
