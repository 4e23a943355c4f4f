"""A run whose steps take turns between words and weights: cut anywhere, it ends the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.record.run_dir import RunDir
from studio.config.settings.run import PracticeConfig
from tests.engines.pipeline.test_replay_training import journal_of
from tests.engines.pipeline.test_resume import Photographed, _mark
from tests.support.scripted_training import trained

STEPS = 5  # words, weights, weights, words, weights; a checkpoint after 2, 4 and 5


@pytest.mark.parametrize(
    ("algorithm", "kinds", "library_steps"),
    [("both", "lwwlwwl", 3), ("training_free", "-------", 7), ("grpo", "-------", 0)],
)
def test_a_cycle_begins_with_a_library_step(algorithm: str, kinds: str, library_steps: int) -> None:
    practice = PracticeConfig(algorithm=algorithm, weight_steps=2)  # type: ignore[arg-type]
    assert "".join(practice.learns(n)[:1] or "-" for n in range(1, 8)) == kinds
    assert practice.library_steps(7) == library_steps
    assert practice.reflects is (library_steps > 0)


async def test_cut_at_any_event_it_ends_the_same_and_draws_no_lesson_again(
    tmp_path: Path,
) -> None:
    place, album = tmp_path / "practice", tmp_path / "album"
    album.mkdir()
    camera = type("Camera", (Photographed,), {"workspace": place, "album": album})
    whole = await trained(place, steps=STEPS, weight_steps=2, open_journal=camera)
    assert whole.words is not None
    assert (whole.words.consolidated, whole.engine.consolidated) == ([1, 4], [2, 3, 5])
    assert whole.state.library_version == 2
    assert whole.engine.version == 3
    assert whole.engine.total_steps == 3  # the schedule spans the steps that learn weights
    cells = {(c.trained, c.with_library): c.result for c in whole.state.cells}
    assert len(cells) == len(whole.state.cells) == 4
    versions = [(c.policy_version, c.library_version) for c in cells.values()]
    assert versions == [(3, 2), (3, 0), (0, 2), (0, 0)]
    assert cells[True, True].reused == cells[False, False].reused == 1  # measured by the run
    assert cells[True, False].reused == cells[False, True].reused == 0
    wanted, taken = journal_of(whole.run), sorted(album.iterdir())
    assert len(taken) > 150
    cuts = {_mark(photograph): photograph for photograph in taken}  # most equal one before
    assert len(cuts) > 50, len(cuts)
    for cut in cuts.values():
        again = tmp_path / cut.name
        shutil.copytree(cut, again)
        events = [entry.event for entry in RunDir(again / "runs/exp").entries()]
        drawn = {event.step for event in events if isinstance(event, ev.LessonProposed)}
        run = await trained(again, steps=STEPS, weight_steps=2)
        assert run.value == whole.value, cut.name
        assert journal_of(run.run) == wanted, cut.name
        assert run.words is not None
        assert not drawn & {*run.words.consolidated}, cut.name
        assert not [line for line in run.told if "other figures" in line], cut.name
        shutil.rmtree(again)
