"""A weight update is decided like any other proposal, and only the gate lets it in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConflictError
from engines.core.library import CommitResult
from engines.core.protocols import Reviewer
from engines.core.types import (
    NO_USAGE,
    Decision,
    DecisionAction,
    Lesson,
    Operation,
    Problem,
    Rollout,
    Verdict,
    WeightUpdate,
    weights_operation,
)
from engines.pipeline.evaluation.statistics import low_contrast_warning
from engines.pipeline.gate.gate import Gate
from engines.pipeline.replay_training import Checkpoints
from engines.pipeline.reviewers import AutoReviewer, HumanReviewer, MetricLimits, read_rules
from engines.record.journal import Journal
from engines.record.scores import ScoreBook
from studio.config.loading import load_run
from studio.run.held_out import score_book_opener
from tests.engines.pipeline.gate.test_gate import Desk
from tests.support.builders import a_decision, an_operation
from tests.support.harness import QUIET, ScriptedPerson
from tests.support.scripted_training import trained

ADD = an_operation("add", None, "three", id="op1.h1")


class Applied:
    """Stands in for an engine: counts what it is asked to apply."""

    def __init__(self) -> None:
        self.handles: list[str] = []

    async def __call__(self, update: WeightUpdate) -> int:
        self.handles.append(update.handle)
        return 10 + len(self.handles)


class Asked(Desk):
    """A gate with an engine behind it and the update of step 1 under review."""

    applied: Applied

    async def ask(self, *reviewers: Reviewer, **figures: float) -> None:
        self.update = WeightUpdate(figures or {"kl": 0.1}, "step-1")
        await self.propose()
        lesson = Lesson(1, self.folder.head().version, update=self.update)
        await self.recorder.record(ev.LessonProposed(1, lesson))
        self.applied = Applied()
        self.with_engine(*reviewers)

    def with_engine(self, *reviewers: Reviewer) -> Gate:
        self.gate = Gate(
            self.recorder,
            self.folder,
            reviewers,
            run="exp",
            clock=lambda: 9.0,
            apply=self.applied,
        )
        return self.gate

    async def say(self, action: DecisionAction, **more: object) -> None:
        await self.gate.decide(a_decision("op1.w", action, **more))

    async def settle(self) -> CommitResult:
        await self.gate.review(1)
        return await self.gate.commit(1)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Asked]:
    made = Asked(tmp_path, "one", "two")
    yield made
    await made.journal.aclose()


async def test_an_approved_update_is_applied_and_told_with_its_version(desk: Asked) -> None:
    await desk.ask(AutoReviewer())
    assert [op.id for op in desk.state.undecided_operations] == ["op1.w"]
    done = await desk.settle()
    assert desk.applied.handles == ["step-1"]
    assert [(o.operation_id, o.kind, o.applied) for o in done.outcomes] == [
        ("op1.w", "weights", True)
    ]
    assert desk.state.policy_version == 11
    assert (desk.state.operations, desk.state.decisions) == ({}, {})
    assert desk.state.curation["auto"].approved == 1
    assert desk.commits() == 0  # the library has nothing to do with it
    assert (await desk.gate.commit(1)).outcomes == done.outcomes
    assert desk.applied.handles == ["step-1"]


async def test_a_rejected_update_is_not_applied_and_its_reason_stands_in_the_journal(
    desk: Asked,
) -> None:
    await desk.ask()
    await desk.say("reject", reason="too far")
    (outcome,) = (await desk.settle()).outcomes
    assert (outcome.applied, outcome.reason) == (False, "too far")
    assert (desk.applied.handles, desk.state.policy_version) == ([], 0)
    assert desk.state.curation["person"].rejected == 1


@pytest.mark.parametrize("action", ["edit", "defer"])
async def test_an_update_can_neither_be_edited_nor_put_off(
    desk: Asked, action: DecisionAction
) -> None:
    await desk.ask()
    with pytest.raises(ConflictError, match=r"op1\.w.*cannot be .*Approve or reject it\."):
        await desk.say(action, text="milder")
    with pytest.raises(ConflictError, match="Approve or reject it"):
        await desk.gate.lint([a_decision("op1.w", action)])
    assert [op.id for op in desk.state.undecided_operations] == ["op1.w"]
    assert await desk.gate.defer_undecided("ann") == 0
    assert [op.id for op in desk.state.undecided_operations] == ["op1.w"]


async def test_nobody_but_an_engine_proposes_weights(desk: Asked) -> None:
    await desk.ask()
    with pytest.raises(ConflictError, match="only an engine proposes weights"):
        await desk.gate.propose(weights_operation(1, desk.update), "ann")
    proposed = await desk.gate.propose(ADD, "ann")
    settled = await desk.gate.decide(a_decision(proposed, "edit", kind="weights"))
    assert settled.action == "reject"


async def test_undo_asks_again_and_disturbs_no_library_decision(desk: Asked) -> None:
    await desk.ask()
    proposed = await desk.gate.propose(ADD, "ann")
    await desk.gate.decide(a_decision(proposed))
    await desk.say("approve")
    assert await desk.gate.undo("op1.w") == ("op1.w",)
    assert [op.id for op in desk.state.undecided_operations] == ["op1.w"]
    assert [e.text for e in desk.gate.draft().experiences] == ["one", "two", "three"]
    await desk.say("approve")
    await desk.say("reject", reason="no")  # the later word counts
    done = await desk.settle()
    assert [(o.kind, o.applied) for o in done.outcomes] == [("add", True), ("weights", False)]
    assert (desk.applied.handles, desk.commits()) == ([], 1)


async def test_a_held_commit_waits_and_an_undo_meanwhile_is_heeded(desk: Asked) -> None:
    waits = HumanReviewer()
    await desk.ask(waits)
    gate = desk.gate
    gate.hold.set(True)
    await desk.say("approve")
    review = asyncio.create_task(gate.review(1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not review.done()
    await gate.undo("op1.w")
    await desk.say("reject", reason="no")
    gate.hold.set(False)
    await review
    await gate.commit(1)
    assert desk.applied.handles == []


async def test_a_library_that_moved_does_not_ask_for_the_weights_again(desk: Asked) -> None:
    await desk.ask()
    proposed = await desk.gate.propose(an_operation("modify", "E1", "better"), "ann")
    await desk.gate.decide(a_decision(proposed))
    await desk.say("approve")
    with desk.folder.lock_for_commit() as library:
        other = an_operation("modify", "E1", "otherwise", id="x")
        library.commit([(other, a_decision(other))], run="elsewhere", step=1)
    gate = desk.with_engine(ScriptedPerson(lambda op: a_decision(op, "reject")))
    await gate.follow_head(1)
    assert [op.id for op in desk.state.undecided_operations] == [proposed.id]
    await desk.settle()
    assert desk.applied.handles == ["step-1"]


async def test_a_process_without_an_engine_leaves_an_approved_update_alone(desk: Asked) -> None:
    await desk.ask()
    await desk.gate.decide(a_decision(await desk.gate.propose(ADD, "ann")))
    await desk.say("approve")
    alone = desk.opened()
    with pytest.raises(ConflictError, match="process that trains them"):
        await alone.commit(1)
    # The library's line is on disk now, as after a crash: nobody else may tell of it.
    assert desk.commits() == 1
    await alone.follow_head(1)
    assert "op1.w" in desk.state.operations
    await desk.with_engine().follow_head(1)
    assert (desk.applied.handles, desk.state.policy_version) == (["step-1"], 11)
    assert desk.state.operations == {}


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"kl": 0.5, "grad_norm": 1.0}, "the KL divergence (kl) is 0.5, above its limit of 0.2"),
        ({"kl": 0.1, "grad_norm": 9.0}, "the gradient norm (grad_norm) is 9, above its limit of 4"),
        (
            {"kl": 0.1, "kl_step": 0.3},
            "the KL divergence of the step (kl_step) is 0.3, above its limit of 0.2",
        ),
        ({"kl": math.nan}, "the KL divergence (kl) is not finite"),
        ({"grad_norm": math.inf}, "the gradient norm (grad_norm) is not finite"),
        ({"kl": 0.2, "grad_norm": 4.0}, ""),
        ({"loss": 1.0}, ""),
    ],
)
async def test_bounds_reject_by_figure_and_limit_and_leave_the_rest(
    desk: Asked, figures: dict[str, float], reason: str
) -> None:
    await desk.ask(MetricLimits(0.2, 4.0), AutoReviewer(), **figures)
    (outcome,) = (await desk.settle()).outcomes
    assert (outcome.applied, outcome.reason) == (not reason, reason)
    assert desk.state.curation.keys() == {"bounds" if reason else "auto"}


async def test_rules_decide_updates_by_kind_and_no_rule_about_wordings_does(
    desk: Asked, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "rules:\n  - {when: {groups_below: 2}, do: reject, reason: too few}\n"
        "  - {when: {words_above: 0}, do: reject, reason: too long}\n"
        "  - {when: {kind: weights}, do: approve}\n"
    )
    await desk.ask(read_rules(path))
    await desk.settle()
    assert desk.applied.handles == ["step-1"]


async def test_a_rule_that_puts_everything_off_leaves_an_update_to_the_next_reviewer(
    desk: Asked, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - {do: defer}\n")
    await desk.ask(read_rules(path), AutoReviewer())
    await desk.settle()
    assert desk.state.policy_version == 11


async def test_going_back_to_earlier_weights_is_remembered_only_where_it_was_approved(
    tmp_path: Path,
) -> None:
    back = await trained(tmp_path / "back", falls=[3])
    assert back.state.rolled_back == {3: 2}
    assert back.state.policy_version == 3

    def chosen(operation: Operation) -> Decision:
        refused = operation.id == "op3.w"
        return a_decision(operation, "reject" if refused else "approve", reason="")

    kept = await trained(tmp_path / "kept", falls=[3], reviewers=[ScriptedPerson(chosen)])
    assert (kept.state.rolled_back, kept.state.policy_version) == ({}, 2)
    assert kept.value == back.value  # step 2's, one way or the other


async def test_training_leaves_the_library_as_it_is(tmp_path: Path) -> None:
    run = await trained(tmp_path)
    library = tmp_path / "libraries/exp/journal.jsonl"
    assert [type(e.event).__name__ for e in Journal(library).entries] == ["LibraryCreated"]
    assert run.practice.gate.library.version == 0
    assert [step.policy_version for step in run.state.steps.values()] == [0, 1, 2]
    assert list(run.state.training) == [1, 2, 3]


async def test_old_checkpoints_go_but_never_the_newest_nor_that_of_the_best_step(
    tmp_path: Path,
) -> None:
    run = await trained(tmp_path, steps=9)
    folder = run.run.path / "checkpoints/e"
    assert [saved.step for saved in run.state.checkpoints] == [2, 4, 6, 8, 9]
    kept = {f"global_step_{step}" for step in (6, 8, 9)}
    assert {path.name for path in folder.iterdir()} == kept
    checkpoints = run.practice.checkpoints
    assert checkpoints is not None
    measured = ev.EvaluationFinished(
        step=4,
        data="s",
        policy_version=4,
        library_version=0,
        k=1,
        n=1,
        unjudged=0,
        mean=1.0,
        usage=NO_USAGE,
        fingerprint="",
        trouble="",
        problems=("p",),
        rewards=((1.0,),),
    )
    run.state.evaluations.append(measured)
    assert [saved.step for saved in checkpoints.removable_checkpoints(run.state)] == [2]


@pytest.mark.parametrize(
    ("every", "step", "ends_epoch", "last", "due"),
    [
        (2, 3, True, False, False),
        (2, 4, False, False, True),
        (2, 5, False, True, True),
        (None, 4, False, False, False),
        (None, 4, True, False, True),
    ],
)
def test_a_checkpoint_is_due_every_so_many_steps_or_at_the_end_of_an_epoch_and_at_the_last(
    every: int | None, step: int, ends_epoch: bool, last: bool, due: bool, tmp_path: Path
) -> None:
    async def save(folder: Path) -> str:
        return ""

    checkpoints = Checkpoints(tmp_path, tmp_path, save, every_steps=every)
    assert checkpoints.is_due(step, ends_epoch=ends_epoch, last=last) is due


def test_a_book_of_scores_is_that_of_the_weights_and_old_books_stay_valid(tmp_path: Path) -> None:
    book = score_book_opener(tmp_path, {}, load_run("rehearsal", QUIET, tmp_path, {}))
    without, one, other = book("tips", ""), book("tips", "w1"), book("tips", "w2")
    assert len({without.path, one.path, other.path}) == 3
    # The key as it was before any weights could be trained.
    assert (
        without.path == ScoreBook(tmp_path, {"policy.base_url": None, "experiences": "tips"}).path
    )


@pytest.mark.parametrize(
    ("informative", "groups", "warned"),
    [(0, 4, True), (1, 5, True), (1, 4, False), (4, 4, False), (0, 0, False)],
)
def test_a_first_step_mostly_without_contrast_is_warned_of(
    informative: int, groups: int, warned: bool
) -> None:
    line = low_contrast_warning(informative, groups)
    assert bool(line) is warned
    assert f"{informative} of {groups}" in line or not warned


async def test_the_warning_reaches_the_run_once(tmp_path: Path) -> None:
    run = await trained(tmp_path, verifier=AlwaysRight())
    assert len([line for line in run.told if "only 0 of 2 groups" in line]) == 1


class AlwaysRight:
    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> list[Verdict]:
        return [Verdict(1.0) for _ in rollouts]
