"""Two turns are one training sequence: exact ids, sampled tokens alone, one reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engines.agents.loops import CalculatorLoop
from engines.core.types import (
    Attempt,
    Group,
    Problem,
    RecordRef,
    Rollout,
    Sampling,
    Turn,
    Verdict,
)
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.loss.loss import collate, step_advantages, trajectory_samples
from engines.grpo.settings import GRPOSettings
from engines.policies.hf_local.decoding import DecodedReply, DecodeHooks, DecodeRequest
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.policy import HFLocal
from engines.policies.limits import Slots
from engines.record.ledger import RecordLedger
from engines.rollouts.manager import RolloutManager
from tests.engines.grpo.models import a_local, train
from tests.support.builders import a_group, a_job, a_library, a_problem, a_rollout

REQUEST, ANSWER = "calc: 17*(3+4)", "What a thin one: 119"
"""The second holds texts that the tokenizer has tokens of several characters for."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    torch.set_num_threads(1)
    return a_local(tmp_path_factory.mktemp("model"), trained=True)


def letter_by_letter(local: LocalModel, text: str) -> list[int]:
    """Ids of a text that no tokenizer would choose, and the end of the turn."""
    ids = [one for letter in text for one in local.tokenizer.encode(letter)]
    return [*ids, *local.eos_ids]


def saying(local: LocalModel, *replies: str) -> HFLocal:
    """A policy that draws these in turn, for every row of a batch the same."""
    left = list(replies)

    def decode(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None = None
    ) -> list[DecodedReply]:
        ids = letter_by_letter(local, left.pop(0))
        return [DecodedReply(list(ids), [-0.5] * len(ids), "stop") for _ in rows]

    policy = HFLocal(local)
    policy.decode = decode
    return policy


async def rolled(
    policy: HFLocal, folder: Path, question: str = "What is 17*(3+4)?"
) -> tuple[Attempt, tuple[RecordRef, ...]]:
    ledger = RecordLedger(folder, 1)
    agent = CalculatorLoop("Use calc.", Sampling(1.0))
    manager = RolloutManager(agent, policy, ledger, Slots(1), 30.0)
    found = await manager.roll_out(a_job(a_problem(question)))
    await ledger.aclose()
    await policy.aclose()
    return found


def spoken(local: LocalModel, ids: Sequence[int]) -> str:
    return str(local.tokenizer.decode(list(ids)))


async def test_the_second_prompt_begins_with_the_ids_of_the_first_turn(
    local: LocalModel, tmp_path: Path
) -> None:
    """Named defect: the text of a trajectory is tokenised again."""
    attempt, _ = await rolled(saying(local, REQUEST, ANSWER), tmp_path)
    first, second = attempt.turns
    assert list(first.token_ids) == letter_by_letter(local, REQUEST)
    assert list(second.token_ids) == letter_by_letter(local, ANSWER)
    before = (*first.prompt_ids, *first.token_ids)
    assert second.prompt_ids[: len(before)] == before
    between = spoken(local, second.prompt_ids[len(before) :])
    assert between == "<|user|>result: 119<|end|><|assistant|>"
    # As one text the same would have other ids.
    assert local.tokenizer.encode(ANSWER) != letter_by_letter(local, ANSWER)[:-1]


async def test_what_the_calculator_said_is_in_the_sequence_and_not_trained(
    local: LocalModel, tmp_path: Path
) -> None:
    attempt, _ = await rolled(saying(local, REQUEST, ANSWER), tmp_path)
    (sample,) = trajectory_samples(
        Rollout(
            attempt=attempt,
            epoch=1,
            step=1,
            position=0,
            index=0,
            seed=0,
            policy_version=0,
            library_version=0,
        ),
        2.0,
        0,
    )
    kinds = {True: "", False: ""}
    for token, learnt in zip(sample.completion, sample.trainable, strict=True):
        kinds[learnt] += spoken(local, [token])
    assert kinds[True] == f"{REQUEST}<|end|>{ANSWER}<|end|>"
    assert kinds[False] == "<|user|>result: 119<|end|><|assistant|>"
    assert set(zip(sample.trainable, sample.advantages, strict=True)) == {(True, 2), (False, 0)}


async def test_records_give_the_same_turns_without_asking(
    local: LocalModel, tmp_path: Path
) -> None:
    attempt, refs = await rolled(saying(local, REQUEST, ANSWER), tmp_path)
    again, same = await rolled(saying(local), tmp_path)  # has nothing left to say
    assert (again.turns, again.messages, same) == (attempt.turns, attempt.messages, refs)


async def a_batch(local: LocalModel, folder: Path, *replies: tuple[str, ...]) -> list[Group]:
    """One group: the first rollout is right and the others are not."""
    rollouts = []
    for index, said in enumerate(replies):
        attempt, _ = await rolled(saying(local, *said), folder / str(index))
        rollouts.append(
            Rollout(
                attempt=attempt,
                epoch=1,
                step=1,
                position=0,
                index=index,
                seed=0,
                policy_version=0,
                library_version=0,
            )
        )
    verdicts = tuple(Verdict(float(index == 0)) for index in range(len(replies)))
    return [
        Group(
            problem=Problem("p", "?", "119"),
            epoch=1,
            step=1,
            position=0,
            rollouts=tuple(rollouts),
            verdicts=verdicts,
        )
    ]


async def updated(local: LocalModel, batch: list[Group], discount: float) -> dict[str, Tensor]:
    """The weights after one update, from the same ones each time."""
    train(local)
    settings = GRPOSettings(learning_rate=1e-2, schedule="constant", discount=discount)
    engine = GRPOEngine(settings, local, total_steps=1, seed=1, tell=lambda line: None)
    reflections = [await engine.reflect(group, a_library()) for group in batch]
    lesson = await engine.consolidate(batch, reflections, a_library())
    assert lesson.update is not None, lesson.losses
    await engine.apply(lesson.update)
    return local.adapter_state()


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


async def test_a_discount_changes_what_is_learnt_of_a_request_and_of_nothing_else(
    local: LocalModel, tmp_path: Path
) -> None:
    two = await a_batch(local, tmp_path / "two", (REQUEST, ANSWER), ("A: 5",))
    asked, guessed = collate(two, scale="none", discount=0.5).samples
    size = len(letter_by_letter(local, REQUEST))
    # Rewards 1 and 0: advantages of one half, and half of that for the turn before the last.
    assert set(asked.advantages[:size]) == {0.25}
    assert set(asked.advantages[-len(letter_by_letter(local, ANSWER)) :]) == {0.5}
    assert set(guessed.advantages) == {-0.5}
    assert not equal(await updated(local, two, 1.0), await updated(local, two, 0.5))

    one = await a_batch(local, tmp_path / "one", ("A: 119",), ("A: 5",))
    assert equal(await updated(local, one, 1.0), await updated(local, one, 0.5))


async def test_a_request_is_learnt_from_the_reward_of_the_answer(
    local: LocalModel, tmp_path: Path
) -> None:
    """The reply that asked bears no answer and has no reward of its own."""
    batch = await a_batch(local, tmp_path, (REQUEST, ANSWER), ("A: 5",))
    first = batch[0].rollouts[0].attempt.turns[0]

    def likely() -> float:
        ids = torch.tensor([[*first.prompt_ids, *first.token_ids]])
        with torch.no_grad():
            logp = local.model(input_ids=ids).logits.log_softmax(-1)[0]
        start = len(first.prompt_ids) - 1
        return float(sum(logp[start + n, token] for n, token in enumerate(first.token_ids)))

    train(local)
    before = likely()
    await updated(local, batch, 1.0)
    assert likely() > before + 0.1


def test_rewards_of_replies_are_centred_over_the_group_and_count_for_those_before_them() -> None:
    turn = Turn((1,), (2,), (-0.5,))
    tries = [replace(a_rollout(index=n), attempt=replace(a_rollout().attempt, turns=(turn, turn)))
             for n in range(2)]  # fmt: skip
    group = replace(a_group([1.0, 1.0]), rollouts=tuple(tries))
    verdicts = tuple(
        replace(verdict, step_rewards=steps)
        for verdict, steps in zip(group.verdicts, [(1.0, 0.0), (0.0,)], strict=True)
    )
    given = replace(group, verdicts=verdicts)
    # 1, 0, 0 and a missing 0: their mean is 0.25.
    steps = step_advantages(given, scale="none")
    assert steps == [(0.75, -0.25), (-0.25, -0.25)]
    weights = [
        [sample.advantages for sample in trajectory_samples(one, 0.0, 0, 0.5, of_one)]
        for one, of_one in zip(tries, steps, strict=True)
    ]
    # The first reply also gets half of what the second one earns: 0.75 - 0.125.
    assert [[sum(row) for row in rows] for rows in weights] == [[0.625, -0.25], [-0.375, -0.25]]
    assert step_advantages(group) == [(), ()]
