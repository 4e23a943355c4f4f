"""Trying operations: what is tried on what, what that costs, and what each verdict may spend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import pytest

from engines.core import events as ev
from engines.core.codec import seed_for
from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import Attempt, Decision, Job, Lesson, Operation, Problem, Usage, Verdict
from engines.data.dataset import read_problems
from engines.pipeline.context import RunContext
from engines.pipeline.effect.effect_gate import EffectGate, open_trials, spent_error
from engines.pipeline.evaluation.evaluate import MeasurementSetup
from engines.pipeline.guidance import PromptWriter
from engines.pipeline.recorder import Recorder
from engines.record.scores import ScoreBook
from engines.rollouts.manager import RolloutManager
from tests.support.harness import practised

POOL = tuple(Problem(f"p{n}", f"question {n}") for n in range(60))
LIBRARY = Library("mine", 0)
ONE_CALL = Usage(10, 5, 1)


@dataclass
class Journal:
    """Takes events in as a run's recorder does, and keeps them."""

    state: RunState = field(default_factory=RunState)
    events: list[Any] = field(default_factory=list)

    async def record(self, event: ev.DurableEvent) -> None:
        fold(self.state, event)
        self.events.append(event)

    def emit(self, event: ev.TransientEvent) -> None:
        self.events.append(event)

    @property
    def measured(self) -> list[ev.EffectMeasured]:
        return [event for event in self.events if isinstance(event, ev.EffectMeasured)]


class Killed(Exception):
    """The process is gone."""


@dataclass
class Luck:
    """A policy whose chance follows from what stands in its prompt; it counts its tries."""

    chance: Callable[[str], float]
    tries: int = 0
    asked: list[str] = field(default_factory=list)  # problems, with the candidate in the prompt
    fails_after: int | None = None

    async def roll_out(self, job: Job, on_text: Any = None, on_start: Any = None) -> Any:
        if self.tries == self.fails_after:
            raise Killed
        self.tries += 1
        if job.guidance:
            self.asked.append(job.problem.id)
        draw = seed_for(5, job.problem.id, job.key.index) / 2**31
        answer = str(float(draw < self.chance(job.guidance)))
        return Attempt((), answer, usage=ONE_CALL), ()


class ByItself:
    """The answer is the reward."""

    async def check(self) -> None: ...

    async def verify(self, problem: Problem, rollouts: Any) -> tuple[Verdict, ...]:
        return tuple(Verdict(float(rollout.attempt.answer)) for rollout in rollouts)

    async def aclose(self) -> None: ...


def a_gate(folder: Path, luck: Luck, **changes: Any) -> EffectGate:
    setup = MeasurementSetup(cast(RolloutManager, luck), ByItself(), seed=1)
    gate = EffectGate(
        pool=POOL,
        problems=20,
        k=4,
        error=0.05,
        by_lesson=False,
        by_itself=True,
        held_back=True,
        seed=1,
        measuring=setup,
        book=lambda guidance, weights: ScoreBook(folder, {"guidance": guidance}),
        account="mine",
        writer=PromptWriter(),
        weights=None,
    )
    return replace(gate, **changes)


async def try_lesson(gate: EffectGate, journal: Journal, steps: int = 1) -> None:
    await gate.try_lesson(cast(Recorder, journal), LIBRARY, 1, steps)


def adds(*texts: str) -> tuple[Operation, ...]:
    return tuple(Operation(f"op1.{n}", "add", None, text) for n, text in enumerate(texts, 1))


async def begun(*operations: Operation, batch: tuple[str, ...] = ()) -> Journal:
    """A run in whose first step these are proposed."""
    journal = Journal()
    await journal.record(ev.StepStarted(1, 1, batch, 0, 0))
    await journal.record(ev.LessonProposed(1, Lesson(1, 0, operations)))
    return journal


def worth(**gains: float) -> Callable[[str], float]:
    """A chance of 0.3, and what each text in the prompt adds to it."""
    return lambda guidance: 0.3 + sum(gain for text, gain in gains.items() if text in guidance)


async def test_each_operation_gets_its_verdict_as_a_flag_that_rules_see(tmp_path: Path) -> None:
    luck = Luck(worth(good=0.6, bad=-0.3))
    journal = await begun(*adds("good", "idle", "bad"))
    await try_lesson(a_gate(tmp_path, luck), journal)
    state = journal.state
    flags = {name: [flag.name for flag in op.flags] for name, op in state.operations.items()}
    assert flags == {"op1.1": ["helps"], "op1.2": ["unproven"], "op1.3": ["unproven"]}
    assert not state.operations["op1.1"].is_flagged and state.operations["op1.2"].is_flagged
    found = state.effect_of("op1.1")
    assert found is not None and found.effect.difference > 0.4
    assert "on 20 problems" in state.operations["op1.1"].flags[0].detail
    assert state.spent_on["gate"].calls == luck.tries == state.usage.calls


async def test_what_helps_is_part_of_what_the_next_ones_are_tried_on(tmp_path: Path) -> None:
    # The second says the same as the first: on top of it, it helps no more.
    luck = Luck(lambda guidance: 0.9 if "good" in guidance else 0.3)
    journal = await begun(*adds("good", "good again"))
    await try_lesson(a_gate(tmp_path, luck), journal)
    assert [one.effect.verdict for one in journal.measured] == ["helps", "cannot tell"]
    assert journal.measured[1].effect.difference == 0
    assert journal.measured[0].base != journal.measured[1].base


async def test_the_library_without_them_is_tried_once_for_all(tmp_path: Path) -> None:
    luck = Luck(worth())
    journal = await begun(*adds("idle", "vain", "empty"))
    await try_lesson(a_gate(tmp_path, luck), journal)
    # Two looks each, at which no difference shows: 20 problems × 2 tries, of three and of none.
    assert luck.tries == 4 * 40
    assert [one.effect.usage.calls for one in journal.measured] == [80, 40, 40]
    assert [one.effect.rollouts for one in journal.measured] == [80, 80, 80]


async def test_two_that_are_tried_at_a_time_pay_once_for_what_they_share(tmp_path: Path) -> None:
    luck, journal = Luck(worth()), await begun(*adds("idle"))
    gate = a_gate(tmp_path, luck)
    recorder = cast(Recorder, journal)
    await asyncio.gather(
        gate.try_lesson(recorder, LIBRARY, 1, 1), gate.try_asked(recorder, LIBRARY, adds("idle"))
    )
    (only,) = journal.measured
    assert luck.tries == only.effect.usage.calls


async def test_a_run_that_was_cut_pays_for_no_try_again(tmp_path: Path) -> None:
    luck, journal = Luck(worth(good=0.6), fails_after=37), await begun(*adds("idle", "good"))
    gate = a_gate(tmp_path, luck)
    with pytest.raises(Killed):
        await try_lesson(gate, journal)
    luck.fails_after = None
    await try_lesson(gate, journal)
    whole, other = Luck(worth(good=0.6)), await begun(*adds("idle", "good"))
    await try_lesson(a_gate(tmp_path / "other", whole), other)
    assert luck.tries == whole.tries
    assert journal.measured == other.measured
    await try_lesson(gate, journal)
    assert luck.tries == whole.tries and journal.measured == other.measured


async def test_a_lesson_is_tried_as_one_and_its_halves_only_where_it_does_not_help(
    tmp_path: Path,
) -> None:
    luck = Luck(worth(one=0.2, two=0.2, six=0.2))
    journal = await begun(*adds("one", "two", "six"))
    gate = a_gate(tmp_path / "helps", luck, by_lesson=True)
    await try_lesson(gate, journal)
    assert [one.operations for one in journal.measured] == [("op1.1", "op1.2", "op1.3")]
    assert "together with op1.2, op1.3" in journal.state.operations["op1.1"].flags[0].detail
    mixed = await begun(*adds("good", "bad", "idle", "vain"))
    luck = Luck(worth(good=0.6, bad=-0.6))
    gate = a_gate(tmp_path / "mixed", luck, by_lesson=True)
    await try_lesson(gate, mixed)
    assert [len(one.operations) for one in mixed.measured] == [4, 2, 1, 1, 2, 1, 1]
    verdicts = {op.id: op.flags[-1].name for op in mixed.state.operations.values()}
    assert verdicts["op1.1"] == "helps" and verdicts["op1.2"] != "helps"
    assert sum(one.error for one in mixed.measured) == pytest.approx(0.05)


async def test_the_error_of_a_run_is_shared_and_what_helps_leaves_its_share(tmp_path: Path) -> None:
    journal = await begun(*adds("idle", "good", "vain"))
    gate = a_gate(tmp_path, Luck(worth(good=0.6)))
    await try_lesson(gate, journal, steps=2)
    # Half of 0.05 is this step's: a third of it, half of what is left, and all of that again.
    errors = [one.error for one in journal.measured]
    assert errors == pytest.approx([0.025 / 3, 0.025 / 3, 0.05 / 3])
    assert spent_error(journal.measured) == pytest.approx(0.025)
    asked = await begun(*adds("idle"))
    asked.state.effects = list(journal.state.effects)
    await gate.try_asked(cast(Recorder, asked), LIBRARY, [Operation("op1.9", "add", None, "vain")])
    assert asked.measured[0].error == pytest.approx(0.0125)


async def test_slices_rotate_with_versions_and_leave_out_what_a_lesson_was_drawn_from(
    tmp_path: Path,
) -> None:
    gate = a_gate(tmp_path, Luck(worth()))
    slices = [{p.id for p in gate.choose_problems(version)} for version in range(4)]
    assert [len(found) for found in slices] == [20] * 4
    assert not slices[0] & slices[1] and slices[0] | slices[1] | slices[2] == {p.id for p in POOL}
    assert slices[3] == slices[0]
    # By chance that follows from the seed, so that every slice is a sample.
    assert slices[0] != {p.id for p in POOL[:20]}
    assert {p.id for p in replace(gate, seed=2).choose_problems(0)} != slices[0]
    batch = tuple(slices[0])
    assert not {p.id for p in gate.choose_problems(0, gate.apart(batch))} & set(batch)
    assert replace(gate, held_back=False).apart(batch) == ()
    assert gate.plan(0.05, gate.apart(batch)).pool == 40


async def test_what_does_not_fit_or_changes_no_wording_is_not_tried(tmp_path: Path) -> None:
    gone = Operation("op1.1", "modify", "E9", "new words")
    kept = Operation("op1.2", "keep", "E1")
    luck, journal = Luck(worth()), await begun(gone, kept)
    await try_lesson(a_gate(tmp_path, luck), journal)
    assert luck.tries == 0 and journal.measured == []
    with pytest.raises(ConflictError, match="changes no wording"):
        open_trials(journal.state, ["op1.2"])
    with pytest.raises(ConflictError, match=r"Open are: op1\.1, op1\.2"):
        open_trials(journal.state, ["op1.7"])
    assert [op.id for op in open_trials(journal.state, [])] == ["op1.1"]


async def test_what_is_tried_again_has_one_verdict(tmp_path: Path) -> None:
    journal = await begun(*adds("idle"))
    await try_lesson(a_gate(tmp_path, Luck(worth())), journal, steps=2)
    other = a_gate(tmp_path / "other", Luck(worth(idle=0.6)), pool=POOL[:30])
    for _ in range(2):
        await try_lesson(other, journal, steps=2)
    assert [flag.name for flag in journal.state.operations["op1.1"].flags] == ["helps"]
    assert len(journal.measured) == 2


async def test_a_deferred_operation_is_never_tried_on_its_own_batch(tmp_path: Path) -> None:
    batches = [tuple(f"p{n}" for n in range(at, at + 20)) for at in (0, 20)]
    journal = await begun(*adds("good"), batch=batches[0])
    await journal.record(ev.StepStarted(1, 2, batches[1], 0, 0))
    gate = a_gate(tmp_path, luck := Luck(worth(good=0.6)), problems=40)
    wanted = list(journal.state.operations.values())
    assert gate.describe_asked(journal.state, LIBRARY, wanted)["problems"] == 40
    await gate.try_asked(cast(Recorder, journal), LIBRARY, wanted)
    assert set(luck.asked) == {problem.id for problem in POOL} - set(batches[0])
    facts = gate.describe_asked(journal.state, LIBRARY, wanted)
    assert (facts["operations"], journal.measured[0].effect.verdict) == (0, "helps")


@pytest.mark.parametrize("by_lesson", [False, True])
async def test_what_was_deferred_in_every_step_of_an_epoch_is_tried_each_by_itself(
    tmp_path: Path, by_lesson: bool
) -> None:
    journal = Journal()
    for step, at in enumerate((0, 20, 40), start=1):  # their batches are the whole pool
        batch = tuple(f"p{n}" for n in range(at, at + 20))
        await journal.record(ev.StepStarted(1, step, batch, 0, 0))
        op = Operation(f"op{step}.1", "add", None, f"idle {step}")
        await journal.record(ev.LessonProposed(step, Lesson(step, 0, (op,))))
        await journal.record(ev.OperationDecided(step, Decision(op.id, "defer", reviewer="ann")))
        await journal.record(ev.LessonCommitted(step, 0, "", ()))
    gate = a_gate(tmp_path, luck := Luck(worth()), by_lesson=by_lesson)
    wanted = list(journal.state.open_operations)
    facts = gate.describe_asked(journal.state, LIBRARY, wanted)
    assert (facts["operations"], facts["problems"]) == (3, 20)
    await gate.try_asked(cast(Recorder, journal), LIBRARY, wanted)
    assert [one.operations for one in journal.measured] == [(op.id,) for op in wanted]
    assert luck.tries <= facts["most_rollouts"] == 3 * 2 * 20 * 4


async def test_a_lesson_that_helped_as_a_whole_is_known(tmp_path: Path) -> None:
    journal = await begun(*adds("good", "idle"))
    gate = a_gate(tmp_path, Luck(worth(good=0.6)), by_lesson=True)
    await try_lesson(gate, journal, steps=2)
    wanted = list(journal.state.operations.values())
    assert gate.describe_asked(journal.state, LIBRARY, wanted)["operations"] == 0


async def test_with_other_weights_it_is_tried_again_and_pays_for_itself(tmp_path: Path) -> None:
    journal = await begun(*adds("good"))
    for weights, gain in (("first", 0.0), ("trained", 0.6)):
        luck = Luck(worth(good=gain))
        gate = a_gate(tmp_path / weights, luck, weights=lambda weights=weights: weights)
        await try_lesson(gate, journal, steps=2)
        assert journal.measured[-1].effect.usage.calls == luck.tries > 0
    assert [one.effect.verdict for one in journal.measured] == ["cannot tell", "helps"]


async def test_other_tries_are_another_verdict_and_never_spend_more_than_the_run_has(
    tmp_path: Path,
) -> None:
    """As after a kill, where the library was edited before the run went on, or `k` was raised."""
    journal = await begun(*adds("idle"), batch=("p0#2",))
    for k in (2, 3, 4):
        gate = a_gate(tmp_path, luck := Luck(worth()), k=k)
        await try_lesson(gate, journal, steps=2)
        assert "p0" not in luck.asked  # the batch's own, there under the id of its second time
    # The third is not tried at all: no error is left, so that it could prove nothing.
    assert [one.error for one in journal.measured] == pytest.approx([0.025, 0.025])
    wanted = list(journal.state.operations.values())
    with pytest.raises(ConflictError, match="the run has spent it"):
        gate.describe_asked(journal.state, LIBRARY, wanted)
    later = await begun(*adds("idle"))
    later.state.effects = [replace(journal.measured[0], step=9, error=0.04)]
    assert gate.affordable_error(later.state, 0.02) == pytest.approx(0.005)


HELD_OUT = "arithmetic-heldout"


async def opened_gate(folder: Path, *overrides: str) -> EffectGate:
    """The gate of a run as it is opened by its settings."""
    found: list[EffectGate] = []

    def take(context: RunContext) -> RunContext:
        assert context.effects is not None
        found.append(context.effects)
        raise Killed

    with pytest.raises(Killed):
        await practised(folder, f"evaluation.data={HELD_OUT}", *overrides, change=take)
    return found[0]


async def test_problems_of_a_held_out_set_are_never_tried_on(tmp_path: Path) -> None:
    rows = Path(str(files("sample_data") / f"{HELD_OUT}.jsonl")).read_text("utf-8").splitlines()
    own = Path(str(files("sample_data") / "arithmetic.jsonl")).read_text("utf-8").splitlines()
    (tmp_path / "mixed.jsonl").write_text(
        "\n".join([*rows[:9], rows[0], *own[:12], own[0]]) + "\n", "utf-8"
    )
    gate = await opened_gate(
        tmp_path / "practice",
        f"review.gate={{problems: 8, data: {tmp_path / 'mixed.jsonl'}, unit: lesson}}",
        "evaluation.do_eval=true",
    )
    held_out = {p.id for p in read_problems(Path(str(files("sample_data") / f"{HELD_OUT}.jsonl")))}
    assert len(gate.pool) == 12 and not {p.id for p in gate.pool} & held_out
    assert gate.by_lesson and not gate.held_back
    # A set of its own is no part of any batch.
    assert gate.plan(0.05, gate.apart([p.id for p in gate.pool])).pool == 12


async def test_tries_that_would_all_be_the_same_are_made_once(tmp_path: Path) -> None:
    gate = await opened_gate(tmp_path, "practice.temperature=0")
    assert (gate.k, gate.by_itself, gate.held_back, gate.by_lesson) == (1, False, True, False)
