"""Groups of rollouts as sequences of token ids to train on.

The ids are exactly those that were shown and sampled: text is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engines.core.types import Group, LostWork, Rollout, Turn
from engines.grpo.loss.loss import group_advantages

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.settings import AdvantageScale


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence: what was shown first, and everything after it.

    The four fields after `prompt` are aligned. What came between two sampled turns (the
    result of a tool, say) is part of `completion` and not trainable.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    trainable: tuple[bool, ...]
    advantages: tuple[float, ...]  # 0 where not trainable
    sampled: tuple[float, ...]  # the sampler's own log-probabilities; 0 where not trainable
    group: int  # index of its group in the batch
    rollout: str

    @property
    def tokens(self) -> int:
        """How many of its tokens are trained on."""
        return sum(self.trainable)


@dataclass(frozen=True, slots=True)
class CollatedBatch:
    """What a batch has to teach.

    `sequences` and `tokens` count what every known rollout came to, also of groups without
    contrast whose samples are left out: they are what losses are divided by, as if those had
    been computed.
    """

    samples: tuple[Sample, ...]  # in sample order; those of one group stand together
    sequences: int
    tokens: int
    left_out: tuple[LostWork, ...]  # judged rollouts that cannot be trained on


def collate(
    batch: Sequence[Group],
    *,
    scale: AdvantageScale = "std",
    discount: float = 1.0,
    keep_equal: bool = False,
) -> CollatedBatch:
    """Turn scored groups into samples.

    A rollout without a reward is left out; one that was cut at its token limit is kept. An
    advantage is multiplied with `discount` once for every turn that was still to come.

    Samples whose advantage is 0 have no gradient in the surrogate, so they are kept only where
    there is a KL term (`keep_equal`): an optimiser step on nothing else would still
    move by momentum.
    """
    samples: list[Sample] = []
    left_out: list[LostWork] = []
    sequences = tokens = 0
    rows = batch_advantages(batch, scale=scale).tolist()
    for number, (group, row) in enumerate(zip(batch, rows, strict=True)):
        of_steps = step_advantages(group, scale=scale)
        for rollout, verdict, advantage, steps in zip(
            group.rollouts, group.verdicts, row, of_steps, strict=False
        ):
            if not is_known(rollout, verdict.reward):
                continue
            refused = untrainable_reason(rollout.attempt.turns)
            if refused:
                left_out.append(LostWork("update", rollout.id, refused))
                continue
            made = trajectory_samples(rollout, advantage, number, discount, steps)
            sequences += len(made)
            tokens += sum(sample.tokens for sample in made)
            if advantage or any(steps) or keep_equal:
                samples.extend(made)
    return CollatedBatch(tuple(samples), sequences, tokens, tuple(left_out))


def batch_advantages(batch: Sequence[Group], *, scale: AdvantageScale = "std") -> Tensor:
    """(B, G) float64 advantages; a group with fewer rollouts than the largest is padded."""
    width = max((1, *(len(group.rollouts) for group in batch)))
    rewards = torch.zeros(len(batch), width, dtype=torch.float64)
    known = torch.zeros(len(batch), width, dtype=torch.bool)
    for b, group in enumerate(batch):
        for g, (rollout, verdict) in enumerate(zip(group.rollouts, group.verdicts, strict=True)):
            if is_known(rollout, verdict.reward):
                rewards[b, g], known[b, g] = verdict.reward or 0.0, True
    return group_advantages(rewards, known, scale=scale)


def step_advantages(group: Group, *, scale: AdvantageScale = "std") -> list[tuple[float, ...]]:
    """The rewards of each rollout's replies, centred over all of the group's.

    Empty where the verifier judges answers alone. A reply without a reward has 0.

    Source: process supervision, arXiv:2402.03300 section 4.1.3.
    """
    given = [v.step_rewards if v.reward is not None else () for v in group.verdicts]
    if not any(given):
        return [()] * len(given)
    sizes = [
        len(rollout.attempt.turns) if steps else 0
        for rollout, steps in zip(group.rollouts, given, strict=True)
    ]
    padded = [(*steps, *[0.0] * n)[:n] for steps, n in zip(given, sizes, strict=True)]
    flat = torch.tensor([[one for steps in padded for one in steps]], dtype=torch.float64)
    known = torch.ones_like(flat, dtype=torch.bool)
    (centred,) = group_advantages(flat, known, scale=scale)
    return [tuple(part.tolist()) for part in centred.split([len(steps) for steps in padded])]


def is_known(rollout: Rollout, reward: float | None) -> bool:
    """False for what failed or was not judged: it is no answer of reward 0."""
    return reward is not None and rollout.attempt.status != "failed"


def untrainable_reason(turns: Sequence[Turn]) -> str:
    """Why turns cannot be trained on, or ""."""
    if not any(turn.token_ids for turn in turns):
        return "its turns carry no token ids, so there is nothing to train on."
    for number, turn in enumerate(turns, 1):
        if turn.token_ids and not turn.prompt_ids:
            return f"turn {number} does not say which ids it was shown."
        if len(turn.logprobs) != len(turn.token_ids):
            return (
                f"turn {number} has {len(turn.logprobs)} log-probabilities for "
                f"{len(turn.token_ids)} tokens: scores that were processed, as by top-p, are not "
                "the policy's own."
            )
    return ""


def trajectory_samples(
    rollout: Rollout,
    advantage: float,
    group: int,
    discount: float = 1.0,
    steps: Sequence[float] = (),
) -> list[Sample]:
    """The sequences of one trajectory: a new one wherever the context was rewritten.

    A turn whose prompt begins with all that came before it continues the sequence. Each turn
    receives the whole advantage of the trajectory, discounted by the turns that followed, and
    the advantages of its own and of later `steps`, discounted alike.
    """
    turns = [turn for turn in rollout.attempt.turns if turn.token_ids]
    samples: list[Sample] = []
    for number, turn in enumerate(turns):
        weight = advantage * discount ** (len(turns) - 1 - number)
        weight += sum(step * discount**later for later, step in enumerate(steps[number:]))
        size = len(turn.token_ids)
        before = samples.pop() if samples and _is_continuation(samples[-1], turn) else None
        if before is None:
            before = Sample(turn.prompt_ids, (), (), (), (), group, rollout.id)
        between = turn.prompt_ids[len(before.prompt) + len(before.completion) :]
        gap = len(between)
        samples.append(
            Sample(
                before.prompt,
                (*before.completion, *between, *turn.token_ids),
                (*before.trainable, *[False] * gap, *[True] * size),
                (*before.advantages, *[0.0] * gap, *[weight] * size),
                (*before.sampled, *[0.0] * gap, *turn.logprobs),
                group,
                rollout.id,
            )
        )
    return samples


def _is_continuation(sample: Sample, turn: Turn) -> bool:
    seen = (*sample.prompt, *sample.completion)
    return turn.prompt_ids[: len(seen)] == seen


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples as padded tensors, for one forward.

    Prompts are padded on the right: attention masks the gap between a short prompt and its
    completion, and no query is left without a key.
    """

    prompts: Tensor  # (U, P) distinct prompts
    prompt_lengths: Tensor  # (U,)
    prompt_of: Tensor  # (B,) row of `prompts`
    completions: Tensor  # (B, T)
    lengths: Tensor  # (B,)
    trainable: Tensor  # (B, T) bool
    advantages: Tensor  # (B, T) float32, 0 where not trainable
    sampled: Tensor  # (B, T) float32
    repeats: int  # rows per prompt where all have as many, standing together; else 0

    def repeat_prompts(self, values: Tensor) -> Tensor:
        """(U, …) of prompts to (B, …) of rows."""
        if not self.repeats:
            return values[self.prompt_of]
        # The backward pass of an expansion is a plain sum, that of an index is not.
        wide = values[:, None].expand(-1, self.repeats, *[-1] * (values.dim() - 1))
        return wide.reshape(-1, *values.shape[1:])


def pad_samples(samples: Sequence[Sample], pad_id: int, device: torch.device | str = "cpu") -> Rows:
    """Lay samples out as tensors; equal prompts become one row of `prompts`."""
    found: dict[tuple[int, ...], int] = {}
    prompt_of = [found.setdefault(sample.prompt, len(found)) for sample in samples]
    prompts = list(found)
    wide = max(len(prompt) for prompt in prompts)
    long = max(len(sample.completion) for sample in samples)
    each = len(samples) // len(prompts)
    regular = prompt_of == [n for n in range(len(prompts)) for _ in range(each)]

    def pad_grid(
        rows: Sequence[Sequence[float]], width: int, fill: float, kind: torch.dtype
    ) -> Tensor:
        filled = [[*row, *[fill] * (width - len(row))] for row in rows]
        return torch.tensor(filled, dtype=kind).to(device)

    return Rows(
        prompts=pad_grid(prompts, wide, pad_id, torch.long),
        prompt_lengths=torch.tensor([len(prompt) for prompt in prompts], device=device),
        prompt_of=torch.tensor(prompt_of, device=device),
        completions=pad_grid([s.completion for s in samples], long, pad_id, torch.long),
        lengths=torch.tensor([len(s.completion) for s in samples], device=device),
        trainable=pad_grid([s.trainable for s in samples], long, False, torch.bool),
        advantages=pad_grid([s.advantages for s in samples], long, 0.0, torch.float32),
        sampled=pad_grid([s.sampled for s in samples], long, 0.0, torch.float32),
        repeats=each if regular else 0,
    )


def split_micro_batches(
    samples: Sequence[Sample], rows: int | None, tokens: int
) -> list[list[int]]:
    """Which samples share a forward: indices, every sample once.

    Samples of one group stay together where they fit, and groups of like length meet, so that
    little is padded. A part has at most so many `rows`; with None at most so many `tokens`,
    padding included, and at least one group.
    """
    groups: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)

    def padded_length(indices: Sequence[int]) -> int:
        return max(len(samples[i].completion) for i in indices)

    parts: list[list[int]] = []
    for group in sorted(groups.values(), key=lambda indices: (-padded_length(indices), indices[0])):
        if rows is not None and len(group) > rows:
            parts[:0] = [group[at : at + rows] for at in range(0, len(group), rows)]
            continue
        last = parts[-1] if parts else []
        joined = len(last) + len(group)
        fits = (
            joined <= rows
            if rows is not None
            else joined * padded_length([*last, *group]) <= tokens
        )
        if last and fits:
            last.extend(group)
        else:
            parts.append(list(group))
    return parts
