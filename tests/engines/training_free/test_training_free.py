"""The training-free engine: what it asks, what it takes from replies, what it counts as lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import CallFailed
from engines.core.library import Library
from engines.core.library_notes import PastDecision
from engines.core.types import (
    Attempt,
    Completion,
    Group,
    GroupOutcome,
    Message,
    Proposal,
    Reflection,
    ToolCall,
    Usage,
    Verdict,
)
from engines.record.ledger import RecordLedger, read_record
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.lint import OperationLinter
from engines.training_free.settings import TrainingFreeSettings
from tests.support.builders import (
    FakePolicy,
    a_group,
    a_library,
    a_problem,
    a_timeout,
    an_operation,
    answering,
    approved,
    remembering,
)

SETTINGS = TrainingFreeSettings("Solve sums.", "Be right more often.")
ADD = {"operation": "add", "id": None, "experience": "Carry: add it.", "reason": "seen"}
DROP = {"drop": [1, 2], "because": "nothing new"}


class Bench:
    """An engine on a scripted reflector and a real ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = FakePolicy()
        self.ledger = RecordLedger(folder, 1)

    def says(self, *replies: Any) -> Bench:
        self.policy.enqueue(
            r if isinstance(r, str | Completion | Exception) else json.dumps(r) for r in replies
        )
        return self

    def engine(self, **settings: Any) -> TrainingFreeEngine:
        return TrainingFreeEngine(replace(SETTINGS, **settings), self.policy, self.ledger)

    async def reflect(
        self, group: Group, library: Library | None = None, **settings: Any
    ) -> Reflection:
        return await self.engine(**settings).reflect(group, library or a_library())

    @property
    def shown(self) -> str:
        """The last request."""
        return "\n\n".join(message.content for message in self.policy.requests[-1])


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.ledger.aclose()


@pytest.mark.parametrize(
    ("rewards", "texts", "outcome"),
    [
        ([1, 1], None, "all-right"),
        ([0, 0], None, "all-wrong"),
        ([0.5, 0.5], None, "all-equal"),
        ([0.4, 0.4, None], None, "all-equal"),
        ([None, None], None, "unjudged"),
        ([None, None], [None, None], "failed"),
        ([None, 1], [None, "x"], "all-right"),
    ],
)
async def test_a_group_without_contrast_costs_no_call_and_says_how_it_ended(
    bench: Bench,
    rewards: list[float | None],
    texts: list[str | None] | None,
    outcome: GroupOutcome,
) -> None:
    """Known defect elsewhere: such groups were dropped and counted nowhere."""
    problem = a_problem(answer=None)  # so that a wrong group says nothing of what was wanted
    group = a_group(rewards, texts=texts, position=4, problem=problem)
    reflection = await bench.reflect(group)
    assert (reflection.outcome, reflection.position) == (outcome, 4)
    assert reflection.proposals == ()
    assert bench.policy.requests == []


async def test_a_group_with_contrast_gives_proposals_with_their_evidence(bench: Bench) -> None:
    bench.says([{**ADD, "attempts": [0, 2]}])
    reflection = await bench.reflect(a_group([1, 0, 1], step=3, position=2))
    assert reflection.proposals == (
        Proposal("add", None, "Carry: add it.", "seen", ("s3p2r0", "s3p2r2")),
    )
    assert (reflection.outcome, reflection.losses) == ("used", ())
    assert (reflection.usage.tokens, len(reflection.refs)) == (15, 1)  # 10 + 5 of one call
    assert reflection.prompt_hash


async def test_the_reflector_is_shown_problem_truth_attempts_and_library_as_quotes(
    bench: Bench,
) -> None:
    problem = a_problem("What is\n# Task: obey 2 + 3?", "5")
    group = a_group([1, 0.25], texts=["so 5", "so 6"], problem=problem)
    group = replace(group, verdicts=(group.verdicts[0], Verdict(0.25, "expected 5")))
    await bench.says([]).reflect(group, a_library("Carry: mind it."))
    for part in (
        "| What is\n| # Task: obey 2 + 3?",
        "## Expected answer\n\n| 5",
        "### Attempt 0 · reward 1.00\n| so 5",
        "The whole library stood in front of them.",
        "### Attempt 1 · reward 0.25\n| so 6\n| (verifier: expected 5)",
        "| Solve sums.",
        "| Be right more often.",
        "| [E1] Carry: mind it.",
    ):
        assert part in bench.shown


async def test_the_reflector_is_shown_every_accepted_answer(bench: Bench) -> None:
    problem = replace(a_problem("What is 11 + 29?", "999"), meta={"alternatives": ["999", "40"]})
    group = a_group([1, 0], texts=["so 40", "so 7"], problem=problem)
    await bench.says([]).reflect(group, a_library())
    assert "## Expected answer\n\n| any one of:\n| 999\n| 40\n\n## Attempts" in bench.shown


async def test_without_ground_truth_every_group_is_kept_and_nothing_gives_it_away(
    bench: Bench,
) -> None:
    problem = a_problem("What is 2 + 3?", "truth-17")
    group = a_group([1, 1], problem=problem)
    group = replace(group, verdicts=(Verdict(1.0, "truth-17"), Verdict(1.0)))
    reflection = await bench.says([ADD]).reflect(group, given_ground_truth=False)
    assert (reflection.outcome, len(reflection.proposals)) == ("used", 1)
    assert "truth-17" not in bench.shown
    assert "reward" not in bench.policy.requests[-1][-1].content
    unjudged = a_group([None, None], position=1)
    await bench.says([]).reflect(unjudged, given_ground_truth=False)
    assert "### Attempt 1\n" in bench.shown


async def test_failed_and_unjudged_attempts_are_not_shown(bench: Bench) -> None:
    group = a_group([1, 0, None, None], texts=["right", "wrong", "unjudged", None])
    await bench.says([{**ADD, "attempts": []}]).reflect(group)
    assert "unjudged" not in bench.shown
    assert "### Attempt 1" in bench.shown and "### Attempt 2" not in bench.shown


async def test_a_trajectory_with_tools_is_shown_turn_by_turn(bench: Bench) -> None:
    group = a_group([1, 0])
    messages = (
        Message("system", "secret-free"),
        Message("user", "q"),
        Message("assistant", "", tool_calls=(ToolCall("t", "add", '{"a": 2}'),)),
        Message("tool", "5", tool_call_id="t"),
        Message("assistant", "five"),
    )
    first = replace(group.rollouts[0], attempt=Attempt(messages, "five", "truncated"))
    await bench.says([]).reflect(replace(group, rollouts=(first, group.rollouts[1])))
    assert "add" in bench.shown and '{"a": 2}' in bench.shown
    assert "| [tool] 5\n| [assistant] five\n| (cut off at the length limit)" in bench.shown


async def test_a_bad_reply_gets_one_repair_turn_that_shows_the_problem(bench: Bench) -> None:
    bad = '[{"operation": "add", "experience": "x"'
    reflection = await bench.says(bad, [ADD]).reflect(a_group([1, 0]))
    assert (len(reflection.proposals), reflection.losses) == (1, ())
    assert (reflection.usage.calls, len(reflection.refs)) == (2, 2)
    (request,) = bench.policy.requests[1]  # the fault alone, not what the reply was drawn from
    assert f"| {bad}" in request.content and "attempt 0" not in request.content
    assert '    {"operation": "add" | "modify" | "delete" | "keep",' in request.content
    assert "could not be used: its JSON is not valid" in bench.shown
    turns = [read_record(bench.folder, ref).key.turn for ref in reflection.refs]
    assert turns == [0, 1]


@pytest.mark.parametrize("second", ["null", "I cannot.", '[{"operation"'])
async def test_a_reply_that_stays_bad_is_a_loss_with_its_text(bench: Bench, second: str) -> None:
    """Known defect elsewhere: an unreadable reply ended the run, or was never mentioned."""
    reflection = await bench.says("null", second).reflect(a_group([1, 0], position=3))
    assert (reflection.outcome, reflection.proposals) == ("failed", ())
    (loss,) = reflection.losses
    assert (loss.kind, loss.where, loss.reply) == ("extraction", "s1p3", second)
    assert len(bench.policy.requests) == 2


async def test_one_bad_object_costs_only_itself_after_the_repair(bench: Bench) -> None:
    """Known defect elsewhere: a MODIFY of an unknown id became an ADD, or cost the array."""
    rows = [{**ADD, "experience": "good"}, {"operation": "modify", "id": "E9", "experience": "x"}]
    reflection = await bench.says(rows, rows).reflect(a_group([1, 0]), experiences_per_query=2)
    assert [p.text for p in reflection.proposals] == ["good"]
    (loss,) = reflection.losses
    assert loss.kind == "proposal"
    assert "E9 is not in the library" in loss.reason
    assert json.loads(loss.reply) == rows
    assert reflection.outcome == "used"


async def test_small_things_left_out_are_noted_and_cost_no_repair_turn(bench: Bench) -> None:
    group = a_group([1, 0], step=2)
    reflection = await bench.says([{**ADD, "attempts": [0, 7]}]).reflect(group)
    (proposal,) = reflection.proposals
    assert proposal.evidence == ("s2p0r0",)
    assert reflection.notes == ('Object 1: "attempts" names 7, and there are 0, 1.',)
    bench.says([{**ADD, "proposals": [1, 9]}])
    lesson = await bench.engine().consolidate([group], [reflection], a_library())
    assert lesson.notes == ('Object 1: "proposals" names 9, and there are 1.',)
    assert reflection.usage.calls == lesson.usage.calls == 1
    assert reflection.losses == lesson.losses == ()


async def test_a_lone_object_in_a_fence_with_a_lower_case_word_and_a_bracketed_id_is_read(
    bench: Bench,
) -> None:
    row = {"Operation": "delete", "id": "[E1]"}
    bench.says(f"Misled.\n```json\n{json.dumps(row)}\n```")
    reflection = await bench.reflect(a_group([1, 0]), a_library("wrong rule"))
    (proposal,) = reflection.proposals
    assert (proposal.kind, proposal.target, proposal.text) == ("delete", "E1", "")


async def test_an_empty_array_is_a_used_group_with_nothing_to_learn(bench: Bench) -> None:
    reflection = await bench.says([]).reflect(a_group([1, 0]))
    assert (reflection.outcome, reflection.proposals, reflection.losses) == ("used", (), ())


async def test_a_call_that_fails_is_a_loss_of_its_group(bench: Bench) -> None:
    reflection = await bench.says(a_timeout()).reflect(a_group([1, 0]))
    assert reflection.outcome == "failed"
    assert "timeout" in reflection.losses[0].reason


async def test_a_repair_call_that_fails_keeps_what_the_first_reply_had_right(bench: Bench) -> None:
    rows = [ADD, {"operation": "rewrite"}]
    bench.says(rows, a_timeout())
    reflection = await bench.reflect(a_group([1, 0]), experiences_per_query=2)
    assert (reflection.outcome, len(reflection.proposals)) == ("used", 1)
    (loss,) = reflection.losses  # one object was broken
    assert loss.kind == "proposal" and "timeout" in loss.reason
    assert reflection.usage.calls == 1


async def test_a_reply_of_which_nothing_was_understood_is_one_loss_with_every_reason(
    bench: Bench,
) -> None:
    broken = [{"operation": "rewrite"}, {"operation": "modify", "id": "E9", "experience": "x"}]
    lost = CallFailed("cut", "in the middle", Usage(40, 2, 1))
    reflection = await bench.says(broken, lost).reflect(a_group([1, 0]))
    (loss,) = reflection.losses
    assert loss.kind == "extraction"
    for said in ("rewrite", "E9 is not in the library", "The repair turn failed: cut"):
        assert said in loss.reason
    # The repair turn was paid for though it gave no reply.
    assert (reflection.usage.calls, reflection.usage.tokens) == (2, 15 + 42)


async def test_only_what_is_too_long_is_summarised_in_auto_and_only_in_a_group_that_is(
    bench: Bench,
) -> None:
    bench.says([])
    await bench.reflect(a_group([1, 0], texts=["short", "long " * 20]), summarise_above_chars=50)
    assert "long long" in bench.shown and len(bench.policy.requests) == 1


async def test_a_group_above_its_budget_has_its_long_attempts_summarised(bench: Bench) -> None:
    bench.says("1. It was long.", [])
    group = a_group([1, 0], texts=["short", "long " * 20])
    reflection = await bench.reflect(group, summarise_above_chars=50, read_chars=100)
    assert "| short" in bench.shown and "| 1. It was long." in bench.shown
    assert "long long" not in bench.shown
    assert (reflection.usage.calls, len(reflection.refs)) == (2, 2)


SUMMARISED = {"summarise_above_chars": 1, "read_chars": 2}


async def test_a_summary_that_fails_loses_one_attempt_and_not_the_group(bench: Bench) -> None:
    bench.says("one", a_timeout(), "three", [ADD])
    reflection = await bench.reflect(a_group([1, 0, 0]), **SUMMARISED)
    assert (reflection.outcome, len(reflection.proposals)) == ("used", 1)
    assert [(loss.kind, loss.where) for loss in reflection.losses] == [("summary", "s1p0r1")]
    assert reflection.proposals[0].evidence == ("s1p0r0", "s1p0r2")  # what was read


async def test_a_group_of_which_too_little_can_be_read_has_failed(bench: Bench) -> None:
    bench.says("one", "  ")
    reflection = await bench.reflect(a_group([1, 0]), **SUMMARISED)
    assert reflection.outcome == "failed"
    assert [loss.kind for loss in reflection.losses] == ["summary", "extraction"]
    assert len(bench.policy.requests) == 2


def proposing(group: Group, *texts: str) -> Reflection:
    proposals = tuple(
        Proposal("add", None, text, "seen", (f"{group.id}r0", f"{group.id}r1")) for text in texts
    )
    return Reflection(group.step, group.position, "used", proposals)


def two_groups() -> tuple[Sequence[Group], Sequence[Reflection]]:
    """Twice the same question: what tells the groups apart is their position."""
    groups = [a_group([1, 0], step=2, position=0), a_group([1, 0], step=2, position=1)]
    return groups, [proposing(groups[0], "one"), proposing(groups[1], "two")]


async def test_a_batch_without_proposals_costs_no_call(bench: Bench) -> None:
    group = a_group([1, 1], step=2)
    library = a_library(version=3)
    lesson = await bench.engine().consolidate([group], [Reflection(2, 0, "all-right")], library)
    assert (lesson.operations, lesson.base_version, lesson.step) == ((), 3, 2)
    assert bench.policy.requests == []


async def test_operations_rest_on_the_rollouts_behind_their_proposals(bench: Bench) -> None:
    """Known defect elsewhere: groups of duplicate questions were merged into one."""
    bench.says([{**ADD, "proposals": [1, 2]}, {"operation": "keep", "id": "1", "proposals": [2]}])
    lesson = await bench.engine().consolidate(*two_groups(), a_library("x"))
    assert [(op.id, op.kind, op.target) for op in lesson.operations] == [
        ("op2.1", "add", None),
        ("op2.2", "keep", "E1"),
    ]
    assert lesson.operations[0].evidence == ("s2p0r0", "s2p0r1", "s2p1r0", "s2p1r1")
    assert lesson.operations[1].evidence == ("s2p1r0", "s2p1r1")
    assert {op.proposer for op in lesson.operations} == {"m"}
    assert "### Proposal 2 · add\nrests on 1 winner, 1 loser (s2p1)\n| two" in bench.shown


class PaidLinter(OperationLinter):
    """A linter whose embedding model costs something."""

    def take_usage(self) -> Usage:
        return Usage(9, 0, 1)


async def test_what_linting_costs_is_in_the_lesson_s_usage(bench: Bench) -> None:
    bench.says([{**ADD, "proposals": [1]}], [{**ADD, "proposals": [1]}])
    without = await bench.engine().consolidate(*two_groups(), a_library())
    linted = TrainingFreeEngine(SETTINGS, bench.policy, bench.ledger, PaidLinter())
    lesson = await linted.consolidate(*two_groups(), a_library())
    assert lesson.operations
    assert lesson.usage == without.usage + Usage(9, 0, 1)


async def test_operations_name_the_problems_behind_them(bench: Bench) -> None:
    groups = [a_group([1, 0], step=2, position=p, problem=a_problem(f"q{p}")) for p in range(2)]
    other = {**ADD, "experience": "Other.", "proposals": []}
    bench.says([{**ADD, "proposals": [2]}, other, {"drop": [1], "because": "nothing new"}])
    lesson = await bench.engine().consolidate(
        groups, [proposing(groups[0], "one"), proposing(groups[1], "two")], a_library()
    )
    assert [op.problems for op in lesson.operations] == [("id-q1",), ()]


async def test_a_rejected_idea_is_withheld_and_the_rest_is_numbered_and_linted(
    bench: Bench,
) -> None:
    rejected = PastDecision(
        run="r",
        operation_id="op1.1",
        kind="add",
        text="Carry: add it.",
        became="",
        reason="no",
        problems=("id-q",),
        reviewer="person",
        at=1.0,
    )
    library = remembering(a_library("Other: look twice."), rejected)
    groups = [a_group([1, 0], step=2, position=p, problem=a_problem("q")) for p in range(2)]
    twice = {**ADD, "experience": "Other: look twice!"}
    bench.says([{**ADD, "proposals": [1]}, {**twice, "proposals": [2]}])
    lesson = await bench.engine().consolidate(
        groups, [proposing(groups[0], "one"), proposing(groups[1], "two")], library
    )
    assert [op.id for op in lesson.operations] == ["op2.1"]
    assert [flag.name for flag in lesson.operations[0].flags] == ["duplicate", "one group"]
    assert [(op.id, op.text) for op in lesson.withheld] == [("op2.2", "Carry: add it.")]
    assert "## Reviewed before" in bench.shown
    assert "### Rejected · add\n| Carry: add it.\n| because: no" in bench.shown
    await bench.says([]).reflect(a_group([1, 0]), library)
    assert "### Rejected · add\n| Carry: add it.\n| because: no" in bench.shown


async def test_what_is_pinned_is_told_as_fixed_and_a_change_of_it_is_flagged(bench: Bench) -> None:
    library = a_library("x", "y")
    await bench.says([DROP]).engine().consolidate(*two_groups(), library)
    assert "Pinned by a person" not in bench.shown
    library = library.commit(approved(an_operation("pin", "E2"))).library
    bench.says([{"operation": "delete", "id": "E2", "proposals": [1, 2]}])
    lesson = await bench.engine().consolidate(*two_groups(), library)
    assert "| [E2] y\n\nPinned by a person: E2. These stay as they are" in bench.shown
    assert [flag.name for flag in lesson.operations[0].flags] == ["pinned"]
    await bench.says([]).reflect(a_group([1, 0]), library)
    assert "Pinned by a person: E2." in bench.shown


async def test_the_room_left_in_the_library_is_told(bench: Bench) -> None:
    engine = bench.says([DROP], [DROP]).engine(library_limit=3)
    await engine.consolidate(*two_groups(), a_library("x"))
    assert "holds 1 of at most 3: 2 may be added" in bench.shown
    await bench.engine(library_limit=None).consolidate(*two_groups(), a_library("x"))
    assert "may grow" in bench.shown


async def test_a_consolidation_that_cannot_be_read_is_a_loss_of_the_step(bench: Bench) -> None:
    lesson = await bench.says("null", "nothing").engine().consolidate(*two_groups(), a_library())
    assert lesson.operations == ()
    (loss,) = lesson.losses
    assert (loss.kind, loss.where, loss.reply) == ("consolidation", "step 2", "nothing")
    assert lesson.usage.calls == 2


async def test_a_consolidation_call_that_fails_is_a_loss_too(bench: Bench) -> None:
    lesson = await bench.says(a_timeout()).engine().consolidate(*two_groups(), a_library())
    assert (lesson.operations, lesson.losses[0].kind) == ((), "consolidation")


async def test_reflecting_again_on_the_same_group_asks_nothing_again(bench: Bench) -> None:
    bench.says([ADD])
    first = await bench.reflect(a_group([1, 0]))
    await bench.ledger.aclose()
    bench.ledger = RecordLedger(bench.folder, 1)
    bench.policy = answering()
    assert await bench.reflect(a_group([1, 0])) == first


async def test_the_library_is_never_changed_by_the_engine(bench: Bench) -> None:
    library = a_library("one")
    delete = {"operation": "delete", "id": "E1"}
    bench.says([delete], [{**delete, "proposals": [1]}])
    reflection = await bench.reflect(a_group([1, 0]), library)
    await bench.engine().consolidate([a_group([1, 0])], [reflection], library)
    assert library == a_library("one")
