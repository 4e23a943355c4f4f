"""What every engine keeps to: it proposes, and changes nothing before the gate says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.protocols import Engine
from engines.core.types import Group, Turn, WeightUpdate
from engines.pipeline.context import AlternatingEngine
from engines.record.ledger import RecordLedger
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.settings import TrainingFreeSettings
from tests.support.builders import a_group, a_library, answering

Opened = Callable[[Path], Engine]


def training_free(folder: Path) -> Engine:
    added = {"operation": "add", "experience": "Carry: add it.", "proposals": [1, 2]}
    reply = json.dumps([added])
    settings = TrainingFreeSettings("Solve sums.", "Be right.")
    return TrainingFreeEngine(settings, answering(*[reply] * 3), RecordLedger(folder, 1))


def grpo(folder: Path) -> Engine:
    from engines.grpo.engine.grpo import GRPOEngine
    from engines.grpo.settings import GRPOSettings
    from tests.engines.grpo.models import a_local

    local = a_local(folder / "model", trained=True)
    return GRPOEngine(GRPOSettings(), local, total_steps=5, seed=1, tell=lambda line: None)


def alternating_words(folder: Path) -> Engine:
    return AlternatingEngine(training_free(folder), grpo(folder), lambda _: "library", lambda n: n)


def alternating_weights(folder: Path) -> Engine:
    return AlternatingEngine(training_free(folder), grpo(folder), lambda _: "weights", lambda n: 0)


def with_ids(group: Group) -> Group:
    """The same as a policy with weights of its own would have made it."""
    rollouts = tuple(
        replace(r, attempt=replace(r.attempt, turns=(Turn((7, 8), (9 + n, 40), (-1.0, -1.0)),)))
        for n, r in enumerate(group.rollouts)
    )
    return replace(group, rollouts=rollouts)


every_engine = pytest.mark.parametrize(
    "opened", [training_free, grpo, alternating_words, alternating_weights]
)


@every_engine
async def test_a_lesson_holds_operations_or_one_update_and_changes_nothing(
    opened: Opened, tmp_path: Path
) -> None:
    engine, library = opened(tmp_path), a_library("one", version=4)
    groups = [with_ids(a_group([1, 0], step=2, position=p)) for p in range(2)]
    reflections = [await engine.reflect(group, library) for group in groups]
    assert [(r.step, r.position, r.outcome) for r in reflections] == [
        (2, 0, "used"),
        (2, 1, "used"),
    ]
    lesson = await engine.consolidate(groups, reflections, library)
    assert (lesson.step, lesson.base_version) == (2, 4)
    assert bool(lesson.operations) is not (lesson.update is not None)
    assert [op.id for op in lesson.operations] == [
        f"op2.{n}" for n in range(1, len(lesson.operations) + 1)
    ]
    assert library == a_library("one", version=4)


@every_engine
async def test_a_batch_without_contrast_teaches_nothing(opened: Opened, tmp_path: Path) -> None:
    engine, group = opened(tmp_path), with_ids(a_group([1, 1]))
    reflection = await engine.reflect(group, a_library())
    assert reflection.outcome == "all-right"
    lesson = await engine.consolidate([group], [reflection], a_library())
    assert (lesson.operations, lesson.update, lesson.losses) == ((), None, ())


@every_engine
async def test_what_was_saved_is_restored(opened: Opened, tmp_path: Path) -> None:
    engine = opened(tmp_path)
    assert await engine.save(tmp_path) == await engine.save(tmp_path)
    await engine.restore(tmp_path)
    assert (await engine.reflect(a_group([1, 0]), a_library())).outcome == "used"


async def test_a_frozen_model_refuses_an_update_of_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no weights"):
        await training_free(tmp_path).apply(WeightUpdate({}, "h"))


async def test_an_applied_update_is_a_new_policy_version_and_nothing_before_it(
    tmp_path: Path,
) -> None:
    engine, library = grpo(tmp_path), a_library()
    group = with_ids(a_group([1, 0]))
    lesson = await engine.consolidate([group], [await engine.reflect(group, library)], library)
    assert lesson.update is not None
    assert await engine.apply(lesson.update) == 1
    with pytest.raises(ValueError, match="no computed update"):
        await engine.apply(lesson.update)
