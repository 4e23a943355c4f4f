"""Two processes with gloo against one: rank 0 is the test's own, the other follows it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.core.errors import PolicyError
from engines.core.library import Library
from engines.core.types import Group
from engines.grpo.engine.grpo import GRPOEngine
from engines.grpo.engine.weight_engine import WeightEngine
from engines.grpo.ranks.accelerated import (
    AcceleratedRanks,
    open_engine,
    share_sampling,
    split_by_prompt,
)
from engines.grpo.settings import GRPOSettings
from engines.policies.hf_local.decoding import DecodeHooks, DecodeRequest, decode
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.policy import HFLocal
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.policies.open import load_local
from tests.engines.grpo.follower import LIMIT_S, join
from tests.engines.grpo.models import a_folder, train
from tests.engines.grpo.trainable import a_random_group

LIBRARY = Library("tiny")
SETTINGS = GRPOSettings(
    learning_rate=1e-2, iterations=2, minibatches=2, beta=0.04, micro_batch=2, schedule="linear"
)
NO_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed (extra deepspeed)"
)
ITS_OWN_WARNINGS = pytest.mark.filterwarnings("ignore")
KINDS = ["ddp", "fsdp", pytest.param("deepspeed", marks=[NO_DEEPSPEED, ITS_OWN_WARNINGS])]


class Follower:
    """The other process, and how its worlds end."""

    process: subprocess.Popen[str] | None = None

    def meet(self, how: str, address: str) -> None:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.engines.grpo.follower"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            # Whatever happens it ends, and a test that reads from it then fails, and hangs not.
            dying = threading.Timer(5 * LIMIT_S, self.process.kill)
            dying.daemon = True
            dying.start()
        assert self.process.stdin is not None
        print(how, address, file=self.process.stdin, flush=True)

    def ended(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        lines = (line.strip() for line in self.process.stdout)
        return next((line for line in lines if not line.startswith("DeepSpeed")), "")

    def close(self) -> None:
        if self.process is not None:
            with self.process:
                self.process.kill()


@pytest.fixture(scope="module")
def follower() -> Iterator[Follower]:
    made = Follower()
    yield made
    made.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return a_folder(tmp_path_factory.mktemp("model"))


def a_local(base: Path) -> LocalModel:
    """With an adapter that is trained: a fresh one has B = 0 and hides mistakes."""
    lora = LoraSettings(rank=4, alpha=8)
    local = load_local(LocalSettings(str(base), lora=lora, threads=1), lambda line: None)
    train(local)
    return local


@contextmanager
def connected(follower: Follower, folder: Path, how: str = "ddp") -> Iterator[AcceleratedRanks]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
            patch.setenv(name, "")  # so that what `join` sets is put back
        follower.meet(how, str(folder / "meeting"))
        ranks = join(how, str(folder / "meeting"), 0)
        try:
            yield ranks
        finally:
            ranks.close()


def a_leader(
    ranks: AcceleratedRanks, local: LocalModel, settings: GRPOSettings = SETTINGS
) -> GRPOEngine:
    return open_engine(ranks, local, settings, total_steps=4, seed=5, tell=lambda line: None)


def an_engine(local: LocalModel, settings: GRPOSettings = SETTINGS) -> WeightEngine:
    return GRPOEngine(settings, local, total_steps=4, seed=5, tell=lambda line: None)


def uneven(step: int) -> list[Group]:
    """Three groups, so that one rank has more to compute than the other."""
    rewards = ([1.0, 0.0, 0.5], [0.0, 1.0], [1.0, 1.0, 0.0, 0.25])
    return [
        a_random_group(row, position=position, step=step, seed=3)
        for position, row in enumerate(rewards)
    ]


async def trained(engine: Any, steps: Sequence[int] = (1, 2)) -> dict[str, float]:
    """Metrics of the last step."""
    metrics: dict[str, float] = {}
    for step in steps:
        lesson = await engine.consolidate(uneven(step), (), LIBRARY)
        assert lesson.update is not None, lesson.losses
        metrics = dict(lesson.update.metrics)
        await engine.apply(lesson.update)
    return metrics


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.nightly
@pytest.mark.parametrize("how", KINDS)
async def test_two_ranks_make_of_uneven_groups_the_weights_that_one_makes(
    how: str, follower: Follower, base: Path, tmp_path: Path
) -> None:
    """And a checkpoint of theirs is gone on from by both, and by one."""
    alone = an_engine(a_local(base))
    begun = alone.state().adapter
    expected = await trained(alone)
    with connected(follower, tmp_path, how) as ranks:
        local = a_local(base)
        leader = a_leader(ranks, local)
        await trained(leader, [1])
        await leader.save(tmp_path / "global_step_1")
        metrics = await trained(leader, [2])
        straight, digest = leader.state(), local.weights_digest()
        shares = [len(ranks.share([0, 1, 2])), leader.policy_version]
        held = sum(own.numel() for own in leader.optimiser._own_tensors())
        await leader.restore(tmp_path / "global_step_1")
        await trained(leader, [2])
        again = leader.state()
        ranks.stop()
    assert follower.ended() == "stopped"  # and agreed on every digest until then
    assert shares == [2, 2]
    assert furthest(straight.adapter, begun) > 1e-3
    assert furthest(straight.adapter, alone.state().adapter) <= 1e-5
    assert furthest(straight.optimiser, alone.state().optimiser) <= 1e-5
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert furthest(again.adapter, straight.adapter) == 0.0
    assert furthest(again.optimiser, straight.optimiser) == 0.0
    # Weights, moments and moments of squares; FSDP and ZeRO keep half of them, or of the moments.
    whole = 3 * sum(tensor.numel() for tensor in begun.values())
    assert held == {"ddp": whole, "fsdp": whole // 2}.get(how, held)
    resumed = a_local(base)
    one = an_engine(resumed)
    await one.restore(tmp_path / "global_step_1")
    await trained(one, [2])
    assert furthest(one.state().adapter, straight.adapter) <= 1e-5
    resumed.load_adapter_state(straight.adapter)
    assert resumed.weights_digest() == digest  # rank 0 may ask for it alone


async def test_a_plan_that_changes_is_followed_by_every_rank(
    follower: Follower, base: Path, tmp_path: Path
) -> None:
    alone = an_engine(a_local(base))
    await trained(alone, [1])
    told = alone.plan(40)
    expected = await trained(alone, [2])
    with connected(follower, tmp_path) as others:
        leader = a_leader(others, a_local(base))
        await trained(leader, [1])
        assert leader.plan(40) == told
        metrics = await trained(leader, [2])  # ends unless both come to the same weights
        others.stop()
    assert follower.ended() == "stopped"
    assert metrics["learning_rate"] == expected["learning_rate"]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
async def test_rollouts_are_sampled_by_groups_over_the_ranks_as_one_would(
    how: str, follower: Follower, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        DecodeRequest((1, 40 + prompt), seed=10 * prompt + index, max_tokens=12)
        for prompt in range(3)
        for index in range(3)
    ]
    local = a_local(base)
    expected = decode(local, rows)
    here: list[DecodeRequest] = []
    shown: dict[int, list[int]] = {}

    def watched(
        local: LocalModel, rows: Sequence[DecodeRequest], watch: DecodeHooks | None = None
    ) -> Any:
        here.extend(rows)
        return decode(local, rows, watch)

    monkeypatch.setattr("engines.grpo.ranks.accelerated.decode", watched)
    watch = DecodeHooks(
        streamed=frozenset(range(9)),
        shown=lambda grown: shown.update({i: list(drawn.token_ids) for i, drawn in grown}),
    )
    with connected(follower, tmp_path, how) as others:
        a_leader(others, local)
        policy = HFLocal(local, tell=lambda line: None)
        share_sampling(others, policy)
        with local.lock:
            drawn = policy.decode(local, rows, watch)
            alone = policy.decode(local, rows[:3])
        others.stop()
        await policy.aclose()
    assert follower.ended() == "stopped"
    assert [one.token_ids for one in drawn] == [one.token_ids for one in expected]
    assert [one.logprobs for one in drawn] == [
        pytest.approx(o.logprobs, abs=1e-5) for o in expected
    ]
    assert [one.finish for one in drawn] == [one.finish for one in expected]
    # Two of the three groups here, whole; then one group alone, which leaves nothing to split.
    assert [row.prompt_ids[1] for row in here] == [40] * 3 + [42] * 3 + [40] * 3
    assert [one.token_ids for one in alone] == [one.token_ids for one in expected[:3]]
    assert shown and all(drawn[i].token_ids[: len(ids)] == ids for i, ids in shown.items())


async def test_sampling_and_an_update_at_the_same_time_take_turns(
    follower: Follower, base: Path, tmp_path: Path
) -> None:
    rows = [DecodeRequest((1, 40 + prompt), seed=prompt, max_tokens=30) for prompt in range(4)]
    local = a_local(base)
    expected = [one.token_ids for one in decode(local, rows)]
    with connected(follower, tmp_path) as others:
        leader = a_leader(others, local)
        policy = HFLocal(local, tell=lambda line: None)
        share_sampling(others, policy)

        def sampled() -> list[list[int]]:
            with local.lock:
                return [one.token_ids for one in policy.decode(local, rows)]

        async with asyncio.timeout(LIMIT_S):
            *found, lesson = await asyncio.gather(
                *(asyncio.to_thread(sampled) for _ in range(4)),
                leader.consolidate(uneven(1), (), LIBRARY),
            )
        others.stop()
    assert follower.ended() == "stopped"
    assert found == [expected] * 4 and lesson.update is not None


async def test_an_update_that_nobody_waits_for_ends_on_both_ranks_and_the_next_one_works(
    follower: Follower, base: Path, tmp_path: Path
) -> None:
    alone = an_engine(a_local(base))
    await trained(alone, [1])
    with connected(follower, tmp_path) as others:
        local = a_local(base)
        leader = a_leader(others, local)
        work = asyncio.create_task(leader.consolidate(uneven(1), (), LIBRARY))
        while not local.lock.locked():
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await trained(leader, [1])
        state = leader.state()
        others.stop()
    assert follower.ended() == "stopped"
    assert furthest(state.adapter, alone.state().adapter) <= 1e-6


async def test_ranks_whose_weights_differ_stop_the_run_on_both(
    follower: Follower, base: Path, tmp_path: Path
) -> None:
    with connected(follower, tmp_path) as others:
        leader = a_leader(others, a_local(base))
        lesson = await leader.consolidate(uneven(1), (), LIBRARY)
        assert lesson.update is not None
        pending = leader.pending[lesson.update.handle]
        assert pending.weights is not None
        pending.weights.tensors[0].add_(1.0)
        with pytest.raises(PolicyError, match="the weights of rank 1 differ from rank 0's"):
            await leader.apply(lesson.update)
        with pytest.raises(PolicyError, match="come apart"):
            await leader.consolidate(uneven(2), (), LIBRARY)
        others.stop()  # nobody hears it, and that is no error
    assert "train apart" in follower.ended()


def test_a_leader_that_ends_without_a_word_ends_its_follower(
    follower: Follower, base: Path, tmp_path: Path
) -> None:
    with connected(follower, tmp_path) as others:
        a_leader(others, a_local(base))
    ended = follower.ended()
    assert "another process of the run has ended" in ended and ".cc:" not in ended


def test_a_follower_that_is_gone_is_an_error_at_once_and_never_a_hang(
    follower: Follower, tmp_path: Path
) -> None:
    with connected(follower, tmp_path, "leave") as others:
        others.send("go")
        assert follower.process is not None
        follower.process.wait(LIMIT_S)
        with pytest.raises(PolicyError, match="another process of the run has ended"):
            others.gather(torch.ones(3))
    follower.close()


def test_rows_of_one_prompt_stay_together_and_the_ranks_are_as_even_as_that_allows() -> None:
    sizes = [4, 1, 2, 3]
    rows = [DecodeRequest((n,), 0, 1) for n, size in enumerate(sizes) for _ in range(size)]
    shares = split_by_prompt(rows, 2)
    assert sorted(i for share in shares for i in share) == list(range(10))
    assert [{rows[i].prompt_ids[0] for i in share} for share in shares] == [{0, 1}, {2, 3}]
    assert split_by_prompt(rows[:4], 2) == [[0, 1, 2, 3], []]
