"""Updates by GRPO: a batch of scored groups becomes optimiser steps on its tokens.

`BatchUpdate` moves the weights as they lie, through every iteration and minibatch of a batch, and
undoes nothing: the engine keeps a snapshot and puts it back.

Source: arXiv:2402.03300, Group Relative Policy Optimization.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from engines.core.errors import PolicyError
from engines.core.frozen import frozen
from engines.core.types import Group, GroupOutcome, LostWork, Tell, WeightUpdate
from engines.grpo.engine import weight_engine
from engines.grpo.engine.collapse import CollapseRollback
from engines.grpo.engine.optimiser import Optimiser, learning_rate
from engines.grpo.loss.loss import (
    CollatedBatch,
    Rows,
    TokenScores,
    aggregate,
    batch_advantages,
    can_share_prompts,
    collate,
    completion_logps,
    divergences,
    is_known,
    pad_samples,
    split_micro_batches,
    token_losses,
)
from engines.grpo.ranks.ranks import ALONE, Ranks, UpdateCancelled
from engines.grpo.settings import GRPOSettings
from engines.policies.hf_local.model import LocalModel, is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor


SLOWER = 0.5
"""What the learning rate is multiplied with after each collapse, for the rest of the run."""
GAPS = {torch.float32: 0.01}
ROUGH_GAP = 0.5
"""Largest difference between log-probabilities as sampled and as trained that is not reported."""


class GRPOEngine(weight_engine.WeightEngine):
    """An engine that learns from rewards. `seed` decides the order of minibatches."""

    def __init__(
        self,
        settings: GRPOSettings,
        local: LocalModel,
        *,
        total_steps: int,
        seed: int,
        ranks: Ranks = ALONE,
        tell: Tell = print,
        make_optimiser: Callable[[LocalModel, GRPOSettings], Optimiser] = Optimiser,
    ) -> None:
        self.steps_per_batch = settings.optimiser_steps_per_batch
        optimiser = make_optimiser(local, settings)
        super().__init__(local, optimiser, total_steps=total_steps, tell=tell, ranks=ranks)
        self._settings, self._seed = settings, seed
        self._guard = CollapseRollback(settings, local)

    def _reflection_outcome(self, group: Group) -> GroupOutcome:
        return group.reward_outcome

    def _prepare(self, batch: Sequence[Group]) -> weight_engine.PreparedBatch:
        """Only the collapse guard remembers the batch: seeing it again changes nothing."""
        settings, step = self._settings, batch[0].step
        metrics = _batch_metrics(batch, settings)
        collapse = self._guard.observe_batch(batch, self._weights)
        if collapse is not None and collapse.to is not None:
            back = self._propose_rollback(step, collapse.to, metrics, collapse.why)
            return weight_engine.PreparedBatch(None, rollback=back)
        given_up = () if collapse is None else (self._rollback_exhausted(step, collapse.why),)
        collated = collate(
            batch,
            scale=settings.advantage_scale,
            discount=settings.discount,
            keep_equal=settings.beta > 0,
        )
        train = partial(self._train, collated, metrics, step) if collated.samples else None
        return weight_engine.PreparedBatch(train, (*collated.left_out, *given_up))

    def _train(
        self,
        collated: CollatedBatch,
        batch_metrics: Mapping[str, float],
        step: int,
        is_stopped: Callable[[], bool],
    ) -> weight_engine.TrainedBatch:
        plan = UpdatePlan(
            settings=self._settings,
            step=step,
            seed=self._seed,
            done=self._optimiser_steps,
            planned=self._planned,
            learning_scale=self.learning_scale,
            rows=self._forward_rows(),
            ranks=self._ranks,
        )
        figures = BatchUpdate(self._local, self.optimiser, collated, plan, is_stopped).run()
        tokens = sum(sample.tokens for sample in collated.samples)
        metrics = {**batch_metrics, **figures.metrics(tokens)}
        return weight_engine.TrainedBatch(
            metrics, len(figures.loss), self._sampler_gap_note(figures)
        )

    def _roll_back(self, to: int, step: int) -> None:
        self.optimiser.restart(self._guard.roll_back(to, step))
        self._weights = to
        self.learning_scale *= SLOWER

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        guard, kept = self._guard.state()
        plain = {
            "weights": self._weights,
            "learning_scale": self.learning_scale,
            "guard": guard,
        }
        return plain, kept

    def _load_own_state(self, plain: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        self._weights = int(plain["weights"])
        self.learning_scale = float(plain["learning_scale"])
        self._guard.load(plain["guard"], kept)

    def _forward_rows(self) -> int | None:
        """Sequences to a forward: as set, or fewer where that has proved too many."""
        known = [n for n in (self._settings.micro_batch, self.forward_limit) if n is not None]
        return min(known, default=None)

    def _sampler_gap_note(self, figures: UpdateMetrics) -> str:
        if figures.sampler_gap <= GAPS.get(self._local.dtype, ROUGH_GAP):
            return ""
        note = (
            f"log-probabilities differ from those at sampling by up to {figures.sampler_gap:.2g}: "
            "other weights, another temperature, or processed scores"
        )
        self._tell(f"{note[0].upper()}{note[1:]}.")
        return note

    def _rollback_exhausted(self, step: int, why: str) -> LostWork:
        self._guard.give_up(step)
        reason = (
            f"{why}, with the weights of the beginning too, so training goes on without going "
            "back: look at rewards and answers, or begin anew with grpo.learning_rate lower."
        )
        self._tell(f"Step {step}: {reason}")
        return LostWork("update", f"step {step}", reason)

    def _propose_rollback(
        self, step: int, to: int, metrics: Mapping[str, float], why: str
    ) -> WeightUpdate:
        where = f"step {to}" if to else "the beginning"
        scale = self.learning_scale * SLOWER
        note = (
            f"{why}: back to the weights of {where}, optimiser restarted, learning rate at "
            f"{scale:g} of its schedule from here on"
        )
        self._tell(f"Step {step}: {note}.")
        return WeightUpdate(
            {**metrics, "learning_scale": scale}, f"rollback-{to}", note, rollback_to=to
        )


def _batch_metrics(batch: Sequence[Group], settings: GRPOSettings) -> dict[str, float]:
    """Figures of the rollouts themselves: `length` and `truncated` are over the known ones."""
    known = [
        (rollout, verdict.reward)
        for group in batch
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
        if is_known(rollout, verdict.reward)
    ]
    rewards = [reward for _, reward in known if reward is not None]
    used = batch_advantages(batch, scale=settings.advantage_scale).abs().amax(1) > 0
    count = max(1, len(known))
    return {
        "reward": statistics.fmean(rewards) if rewards else 0.0,
        "reward_std": statistics.stdev(rewards) if len(rewards) > 1 else 0.0,
        "contrast": float(used.double().mean()),
        "length": sum(len(t.token_ids) for r, _ in known for t in r.attempt.turns) / count,
        "truncated": sum(r.attempt.status == "truncated" for r, _ in known) / count,
    }


POSITIONS_AT_ONCE = {"cpu": 2048, "cuda": 32768}
"""Positions to a forward where the run file names no micro-batch.

On a CPU with a tiny model, 2048 take 8 % less time than 4096: their activations stay in its cache.
"""

SCALES = 20
"""Tries of a step whose gradient overflows float16: each halves what it was scaled with."""

PROBED = 16
"""Sequences on which KL is measured after an update: one of each group, more of fewer groups."""


T = TypeVar("T")


@frozen
class UpdatePlan:
    """What an update is computed with, apart from its samples."""

    settings: GRPOSettings
    step: int
    seed: int
    done: int  # optimiser steps before this batch
    planned: int  # of the whole run
    learning_scale: float  # below 1 after a collapse
    rows: int | None  # sequences to a forward, None: by their length
    ranks: Ranks


@dataclass(slots=True)
class UpdateMetrics:
    """Sums while an update is computed; `metrics` makes rates of them."""

    loss: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    ratio_max: float = 1.0
    sampler_gap: float = 0.0  # largest |log-probability here - log-probability when sampled|
    learning_rate: float = 0.0
    probed: Mapping[str, float] = field(default_factory=dict)

    def metrics(self, tokens: int) -> dict[str, float]:
        """Flat figures: `loss` averages optimiser steps, shares and means average tokens.

        `kl` and `kl_step` are of the whole update, as `divergences` has them: from its outcome
        to the reference, whatever `beta` is, and from the weights before it to its outcome.
        """
        seen, low, high, entropy = self.sums
        count = max(1.0, seen)
        return {
            "loss": sum(self.loss) / max(1, len(self.loss)),
            "clip_low": low / count,
            "clip_high": high / count,
            "clip_share": (low + high) / count,
            "entropy": entropy / count,
            "grad_norm": max(self.norms, default=0.0),
            "learning_rate": self.learning_rate,
            "ratio_max": self.ratio_max,
            "tokens": float(tokens),
            "optimiser_steps": float(len(self.loss)),
            **self.probed,
        }


class BatchUpdate:
    """Computes one update. Every rank makes one of the same batch, and all end alike."""

    def __init__(
        self,
        local: LocalModel,
        optimiser: Optimiser,
        collated: CollatedBatch,
        plan: UpdatePlan,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._local, self._optimiser, self._plan = local, optimiser, plan
        self._collated, self._samples = collated, collated.samples
        self._ranks, self._is_stopped = plan.ranks, is_stopped
        self._groups = list(dict.fromkeys(sample.group for sample in self._samples))
        of_ranks = [plan.ranks.share(self._groups, rank) for rank in range(plan.ranks.size)]
        owner = {group: rank for rank, groups in enumerate(of_ranks) for group in groups}
        self._owner = [owner[sample.group] for sample in self._samples]  # the rank of each
        # Indices of all samples, and of those on which KL is measured, here and on all ranks.
        self._all = range(len(self._samples))
        self._probed_anywhere = probe_indices([sample.group for sample in self._samples])
        self._probed = [i for i in self._probed_anywhere if self._owner[i] == plan.ranks.rank]
        self._before: dict[int, Tensor] = {}  # of those, log-probabilities before the update
        self._old: dict[int, Tensor] = {}  # of all, where they are not those of the first pass
        self._ref: dict[int, Tensor] = {}
        self._trouble: Exception | None = None
        self._most_rows = 0
        # Of one rank's rows prompts may be worth sharing, of another's not; layers that lie apart
        # must be called as often by both.
        self._share = not plan.ranks.lockstep and can_share_prompts(local)

    def run(self) -> UpdateMetrics:
        """Move the weights.

        Raises:
            NonFiniteUpdate: on every rank.
            OutOfMemory: on every rank, as soon as one of them ran out.
            UpdateCancelled: on every rank, as soon as one of them was told to stop.
        """
        settings, figures = self._plan.settings, UpdateMetrics()
        windows = [
            window
            for iteration in range(settings.iterations)
            for window in self._windows(iteration)
            if any(window)
        ]
        self._run_unless_failed(lambda: self._score_before(len(windows) > 1))
        for number, window in enumerate(windows):
            self._optimiser_step(window, number == 0, figures)
        found = self._run_unless_failed(self._measure_divergences)
        if found is None:
            found = torch.zeros(3, dtype=torch.float64, device=self._local.device)
        moved, away, count = self._sum_or_raise(found).tolist()
        figures.probed = {"kl": away / max(1.0, count), "kl_step": moved / max(1.0, count)}
        return figures

    def _windows(self, iteration: int) -> list[list[list[int]]]:
        """Optimiser steps of minibatches of groups, the same on every rank."""
        settings, groups = self._plan.settings, list(self._groups)
        if settings.minibatches > 1:
            random.Random(f"{self._plan.seed}/{self._plan.step}/{iteration}").shuffle(groups)
        parts = [sorted(groups[n :: settings.minibatches]) for n in range(settings.minibatches)]
        size = settings.accumulation
        return [parts[at : at + size] for at in range(0, len(parts), size)]

    def _optimiser_step(self, window: list[list[int]], first: bool, figures: UpdateMetrics) -> None:
        done = self._plan.done + len(figures.loss)
        rate = learning_rate(self._plan.settings, done, self._plan.planned)
        figures.learning_rate = rate * self._plan.learning_scale
        normaliser = self._normaliser(window)
        for _ in range(SCALES):
            self._optimiser.zero_grad()  # once per optimiser step: minibatches between accumulate
            sums = torch.zeros(5, device=self._local.device)
            peaks = torch.tensor([1.0, 0.0], device=self._local.device)
            for minibatch in window:
                work = partial(self._accumulate, minibatch, normaliser, sums, peaks, first)
                self._run_unless_failed(work)
            totals = self._sum_or_raise(sums).tolist()
            ratio_max, gap = self._ranks.gather(peaks).amax(0).tolist()
            norm = self._optimiser.step(
                figures.learning_rate, lambda: self._score(self._empty_rows())
            )
            if not self._optimiser.overflowed:
                break
        where = f"optimiser step {len(figures.loss) + 1} of the batch"
        if not (math.isfinite(totals[0]) and math.isfinite(norm)):
            raise weight_engine.NonFiniteUpdate(
                f"loss {totals[0]:g} and gradient norm {norm:g} in {where}; "
                "the weights stay as they were."
            )
        figures.loss.append(totals[0])
        figures.norms.append(norm)
        figures.sums = [a + b for a, b in zip(figures.sums, totals[1:], strict=True)]
        figures.ratio_max = max(figures.ratio_max, ratio_max)
        if first:
            figures.sampler_gap = gap

    def _accumulate(
        self, groups: list[int], normaliser: float, sums: Tensor, peaks: Tensor, first: bool
    ) -> None:
        """Add a minibatch's gradient, this rank's share of it, micro-batch by micro-batch."""
        settings = self._plan.settings
        inside = [i for i in self._all if self._samples[i].group in groups]
        for indices, rows in self._micro_batches(inside):
            scored = self._optimiser.forward(partial(self._score, rows))
            if not indices:
                self._optimiser.backward(scored.logp.sum() * 0)
                continue
            losses, stats = token_losses(
                scored.logp,
                _stack_padded(self._old, indices),
                _stack_padded(self._ref, indices),
                rows.advantages,
                clip_low=settings.clip_low,
                clip_high=settings.clip_high,
                beta=settings.beta,
                trainable=rows.trainable,
            )
            loss = aggregate(
                losses,
                rows.trainable,
                settings.aggregation,
                max_completion_tokens=settings.max_completion_tokens,
                normaliser=normaliser,
            )
            self._optimiser.backward(loss)
            with torch.no_grad():
                counts = (stats.tokens, stats.clipped_low, stats.clipped_high)
                sums += torch.stack([loss.detach(), *counts, scored.entropy.sum()])
                gap = (scored.logp - rows.sampled).abs().amax() if first else peaks[1]
                torch.maximum(peaks, torch.stack([stats.ratio_max, gap]), out=peaks)

    def _normaliser(self, window: list[list[int]]) -> float:
        """What the losses of one optimiser step are divided by, over all ranks.

        Groups that were left out count as if they had been computed. The generation batch that
        dapo divides by is scaled to one optimiser step of several.
        """
        settings, whole = self._plan.settings, self._collated
        if settings.aggregation == "dapo":
            return whole.tokens * settings.accumulation / settings.minibatches
        here = {group for minibatch in window for group in minibatch}
        inside = [sample for sample in self._samples if sample.group in here]
        if settings.aggregation == "bnpo":
            kept = sum(sample.tokens for sample in self._samples)
            return sum(sample.tokens for sample in inside) * whole.tokens / kept
        return len(inside) * whole.sequences / len(self._samples)

    def _micro_batches(self, indices: Sequence[int]) -> Iterator[tuple[list[int], Rows]]:
        """This rank's passes for samples of all ranks; those without indices fill up.

        They are there where each pass is all ranks' own, which then make as many.
        """
        limit = POSITIONS_AT_ONCE.get(self._local.device.type, POSITIONS_AT_ONCE["cuda"])
        counts = []
        for rank in range(self._ranks.size):
            own = [i for i in indices if self._owner[i] == rank]
            samples = [self._samples[i] for i in own]
            parts = split_micro_batches(samples, self._plan.rows, limit, share=self._share)
            counts.append(len(parts))
            if rank == self._ranks.rank:
                here = [[own[n] for n in part] for part in parts]
        if self._ranks.lockstep:
            here += [[]] * (max(counts) - len(here))
        for part in here:
            if not self._ranks.lockstep and self._is_stopped():
                raise UpdateCancelled
            self._most_rows = max(self._most_rows, len(part))
            yield part, self._pad(part) if part else self._empty_rows()

    def _pad(self, indices: Sequence[int]) -> Rows:
        chosen = [self._samples[i] for i in indices]
        return pad_samples(chosen, self._local.pad_id, self._local.device)

    def _empty_rows(self) -> Rows:
        """For a pass whose loss does not count: the shortest sequence."""
        shortest = min(self._all, key=lambda i: len(self._samples[i].completion))
        return self._pad([shortest])

    def _score(self, rows: Rows) -> TokenScores:
        temperature = self._plan.settings.temperature
        return completion_logps(self._local, rows, temperature=temperature, share=self._share)

    def _score_before(self, old: bool) -> None:
        """Log-probabilities before the first optimiser step, and those of the reference."""
        self._before = self._score_sequences(self._all if old else self._probed_anywhere)
        if old:
            self._old = self._before
        if self._plan.settings.beta:
            with self._local.disable_adapter():
                self._ref = self._score_sequences(self._all)

    def _score_sequences(self, indices: Sequence[int]) -> dict[int, Tensor]:
        """Log-probabilities of sequences under the weights as they are, without gradient."""
        found: dict[int, Tensor] = {}
        for part, rows in self._micro_batches(indices):
            with torch.no_grad():
                logp = self._optimiser.forward(partial(self._score, rows)).logp
            lengths = rows.lengths.tolist()
            found |= {i: logp[n, : lengths[n]] for n, i in enumerate(part)}
        return found

    def _measure_divergences(self) -> Tensor | None:
        """How far the weights moved and are from the reference, summed over so many tokens."""
        new, ref = self._score_sequences(self._probed_anywhere), self._ref
        if not self._plan.settings.beta:
            with self._local.disable_adapter():
                ref = self._score_sequences(self._probed_anywhere)
        if not self._probed:
            return None
        found = divergences(*(self._trainable_values(each) for each in (self._before, new, ref)))
        return torch.stack([*(each.sum() for each in found), found[0].new_tensor(len(found[0]))])

    def _trainable_values(self, scored: Mapping[int, Tensor]) -> Tensor:
        """(N,) of what is known of the probed sequences, that of trainable tokens."""
        found = [(scored[i], self._samples[i].trainable) for i in self._probed]
        return torch.cat([logp[torch.tensor(kept, device=logp.device)] for logp, kept in found])

    def _run_unless_failed(self, work: Callable[[], T]) -> T | None:
        """Do work unless something went wrong before; `_sum_or_raise` tells the other ranks."""
        if self._trouble is not None:
            return None
        try:
            return work()
        except UpdateCancelled as error:
            self._trouble = error
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._ranks.lockstep:
                raise PolicyError(
                    f"policy {self._local.name!r}",
                    f"a process ran out of memory with {self._most_rows} sequences to a forward.",
                    "Set grpo.micro_batch lower and resume the run.",
                ) from error
            self._trouble = error
        return None

    def _sum_or_raise(self, values: Tensor) -> Tensor:
        """Sum values over ranks; raise on all of them what went wrong on one."""
        cancelled = isinstance(self._trouble, UpdateCancelled) or self._is_stopped()
        own = [cancelled, isinstance(self._trouble, RuntimeError)]
        flags = torch.tensor(own, dtype=torch.float32, device=values.device)
        summed = self._ranks.gather(torch.cat([values, flags])).sum(0)
        stopped, memory = summed[-2:].tolist()
        if stopped:
            raise UpdateCancelled
        if memory:
            self._trouble = None  # its traceback holds the tensors that did not fit
            rows = torch.tensor([float(self._most_rows)], device=values.device)
            raise weight_engine.OutOfMemory(int(self._ranks.gather(rows).max().item()))
        return summed[:-2]


def probe_indices(groups: Sequence[int]) -> list[int]:
    """Which sequences stand for a batch: the first of each group, then the second, and so on.

    Given is the group of each sequence. Indices are ascending, `PROBED` at most; of more groups
    they are spread evenly.
    """
    turns: dict[int, list[int]] = {}  # a group's n-th sequence has turn n
    count: Counter[int] = Counter()
    for index, group in enumerate(groups):
        turns.setdefault(count[group], []).append(index)
        count[group] += 1
    chosen: list[int] = []
    for _, there in sorted(turns.items()):
        room = PROBED - len(chosen)
        if len(there) > room:
            there = [there[n * len(there) // room] for n in range(room)]
        chosen += there
    return sorted(chosen)


def _stack_padded(known: Mapping[int, Tensor], indices: Sequence[int]) -> Tensor | None:
    return pad_sequence([known[i] for i in indices], batch_first=True) if known else None
