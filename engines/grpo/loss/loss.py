"""From scored groups to the loss of GRPO: samples of token ids, advantages, what each token loses.

The ids are exactly those that were shown and sampled: text is never tokenised again. The losses
are functions of tensors, with no settings object and no model inside.

Log-probabilities are those under the weights as they are. Rollouts of one problem have one prompt,
so each distinct prompt is computed once where the model's family allows it, and its keys and values
are repeated to the rows that continue it. No pass has dropout: a ratio of two differently dropped
passes is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from engines.core.frozen import frozen
from engines.core.types import Group, LostWork, Rollout, Turn

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.settings import AdvantageScale, Aggregation
    from engines.policies.hf_local.model import LocalModel


@frozen
class TokenStats:
    """Sums over trainable tokens, 0-d and without gradient, so that parts of a batch add up."""

    tokens: Tensor
    clipped_low: Tensor  # ratio below 1 - clip_low while the advantage is negative
    clipped_high: Tensor  # ratio above 1 + clip_high while the advantage is positive
    kl: Tensor  # k3 with the reference; 0 without one
    ratio_max: Tensor  # the largest ratio (1 where nothing is trainable); this one is no sum


def token_losses(
    logp: Tensor,
    old: Tensor | None,
    ref: Tensor | None,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    beta: float,
    trainable: Tensor | None = None,
) -> tuple[Tensor, TokenStats]:
    """Clipped surrogate and KL, token by token.

    Args:
        logp: (B, T) log-probabilities under the weights being trained, at the rollouts'
            temperature.
        old: (B, T) the same under the weights before the update, without gradient; None: they
            are `logp` itself, so every ratio is 1 and only the gradient is left.
        ref: (B, T) under the reference, without gradient; None only where beta is 0.
        advantages: (B,) one per sequence, or (B, T).
        clip_low: ratios below 1 - clip_low gain nothing.
        clip_high: ratios above 1 + clip_high gain nothing.
        beta: weight of the KL estimate k3. It is multiplied with the ratio, since a signed
            log-ratio has zero expected gradient.
        trainable: (B, T) bool; None: all. Elsewhere the loss is 0, and the inputs may hold
            anything: they are masked before `exp`, which would make inf · 0 of a padded -1e4.

    Returns:
        (B, T) losses, with gradient to `logp`, and the sums of `TokenStats`.

    Source: PPO clip, arXiv:1707.06347; k3, arXiv:2402.03300 equation 4; two bounds, DAPO,
        arXiv:2503.14476.
    """
    if trainable is None:
        trainable = torch.ones_like(logp, dtype=torch.bool)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    logp = torch.where(trainable, logp, 0.0)
    old = logp.detach() if old is None else torch.where(trainable, old, 0.0)
    ratio = torch.exp(logp - old)
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = -torch.minimum(ratio * advantages, bounded * advantages)
    kl = None
    if ref is not None:
        gap = torch.where(trainable, ref, 0.0) - logp
        kl = torch.expm1(gap) - gap  # k3
        if beta:
            losses = losses + beta * kl * ratio
    losses = torch.where(trainable, losses, 0.0)
    with torch.no_grad():
        low = (ratio < 1 - clip_low) & (advantages < 0) & trainable
        high = (ratio > 1 + clip_high) & (advantages > 0) & trainable
        stats = TokenStats(
            trainable.sum(),
            low.sum(),
            high.sum(),
            logp.new_zeros(()) if kl is None else kl.detach().sum(),
            ratio.detach().amax() if ratio.numel() else logp.new_ones(()),
        )
    return losses, stats


def divergences(old: Tensor, new: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """How far an update moved the policy, and how far that is from the reference.

    The means of both are estimates, without bias, of the divergence of next-token distributions
    after what the old weights sampled; each term is 0 or more. The second weighs a token with
    new / old, as it was not the new weights that sampled it. Where those have left what the old
    ones sample altogether it tells only that: the first then grows, and it stays near 1.

    Given are log-probabilities (N,) of sampled tokens under the weights that sampled them, the
    updated ones and the reference.

    Returns:
        (N,) float64 of KL(old || new) and of KL(new || ref), in nats.

    Source: k3, Schulman, "Approximating KL divergence" (2020).
    """
    old, new, ref = old.double(), new.double(), ref.double()
    step, gap = new - old, ref - new
    weight = torch.exp(step)
    far = torch.exp(ref - old) - weight * (1 + gap)  # weight times k3 of the gap
    return torch.expm1(step) - step, far


def aggregate(
    losses: Tensor,
    trainable: Tensor,
    how: Aggregation,
    *,
    max_completion_tokens: int | None = None,
    normaliser: float | None = None,
) -> Tensor:
    """Reduce token losses to one scalar.

    - grpo: the mean over sequences of each one's mean over its trainable tokens.
    - bnpo: the mean over the trainable tokens of one optimiser step.
    - dr_grpo: the sum over tokens, over sequences · max_completion_tokens.
    - dapo: the sum over tokens, over the trainable tokens of the whole generation batch.

    `losses` are (B, T) and 0 where not `trainable`, which is bool. Where these rows are only a
    part (a micro-batch, a rank's share), `normaliser` is what the whole is divided by: sequences
    for grpo and dr_grpo, trainable tokens for bnpo and dapo. The parts' results then add up to
    that of the whole.
    """
    sequences = len(losses) if normaliser is None else normaliser
    if how == "grpo":
        return (losses.sum(1) / trainable.sum(1).clamp(min=1)).sum() / sequences
    if how == "dr_grpo":
        if not max_completion_tokens:
            raise ValueError("dr_grpo divides by max_completion_tokens")
        return losses.sum() / (sequences * max_completion_tokens)
    if normaliser is None:
        return losses.sum() / trainable.sum().clamp(min=1)
    return losses.sum() / normaliser


def group_advantages(
    rewards: Tensor, known: Tensor, *, scale: AdvantageScale = "std", eps: float = 1e-4
) -> Tensor:
    """Centre rewards inside each group.

    Args:
        rewards: (B, G) floating; B groups of G rollouts. What stands where unknown is ignored.
        known: (B, G) bool; False where there is no reward.
        scale: "std" divides by the standard deviation (n - 1) of the known rewards, + eps.
        eps: keeps the quotient of nearly equal rewards small.

    Returns:
        (B, G) in the type of `rewards`. Zero where unknown, and across a group whose known
        rewards are equal, of which a single one is a case.

    Source: GRPO, arXiv:2402.03300 section 4.1.2; "none" follows Dr. GRPO, arXiv:2503.20783.
    """
    rewards = torch.where(known, rewards, 0.0)
    count = known.sum(1, keepdim=True)
    mean = rewards.sum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(known, rewards - mean, 0.0)
    # A mean of equal rewards may miss them by a rounding: equality is asked of the rewards.
    highest = torch.where(known, rewards, -torch.inf).amax(1, keepdim=True)
    lowest = torch.where(known, rewards, torch.inf).amin(1, keepdim=True)
    centred = torch.where(highest > lowest, centred, 0.0)
    if scale == "none":
        return centred
    variance = centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)


@frozen
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


@frozen
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


@frozen
class Rows:
    """Samples as padded tensors, for one forward.

    A sequence is prompt and completion without a gap. It is padded on the right, where causality
    hides that.
    """

    ids: Tensor  # (B, L) whole sequences
    begins: Tensor  # (B,) where completions begin in them
    prompts: Tensor  # (U, P) the distinct ones
    prompt_of: Tensor  # (B,) row of `prompts`
    completions: Tensor  # (B, T)
    lengths: Tensor  # (B,) of completions
    trainable: Tensor  # (B, T) bool
    advantages: Tensor  # (B, T) float32, 0 where not trainable
    sampled: Tensor  # (B, T) float32


def pad_samples(samples: Sequence[Sample], pad_id: int, device: torch.device | str = "cpu") -> Rows:
    """Lay samples out as tensors; equal prompts become one row of `prompts`."""
    prompts: dict[tuple[int, ...], int] = {}
    prompt_of = [prompts.setdefault(sample.prompt, len(prompts)) for sample in samples]

    def pad(rows: Sequence[Sequence[float]], kind: torch.dtype, fill: int = 0) -> Tensor:
        tensors = [torch.tensor(row, dtype=kind) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=fill).to(device)

    return Rows(
        ids=pad([(*s.prompt, *s.completion) for s in samples], torch.long, pad_id),
        begins=torch.tensor([len(s.prompt) for s in samples], device=device),
        prompts=pad(list(prompts), torch.long, pad_id),
        prompt_of=torch.tensor(prompt_of, device=device),
        completions=pad([s.completion for s in samples], torch.long, pad_id),
        lengths=torch.tensor([len(s.completion) for s in samples], device=device),
        trainable=pad([s.trainable for s in samples], torch.bool),
        advantages=pad([s.advantages for s in samples], torch.float32),
        sampled=pad([s.sampled for s in samples], torch.float32),
    )


def split_micro_batches(
    samples: Sequence[Sample], rows: int | None, tokens: int, *, share: bool = False
) -> list[list[int]]:
    """Which samples share a forward: indices, every sample once.

    Samples of one group stay together where they fit, and groups of like length meet, so that
    little is padded. A part has at most so many `rows`; with None at most so many `tokens`,
    padding included, and at least one group. `share`: equal prompts are computed once.
    """
    groups: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)

    def padded_length(indices: Sequence[int]) -> int:
        return max(len(samples[i].prompt) + len(samples[i].completion) for i in indices)

    def padded_size(indices: Sequence[int]) -> int:
        if not share:
            return len(indices) * padded_length(indices)
        prompts = {samples[i].prompt for i in indices}
        longest = max(len(samples[i].completion) for i in indices)
        return len(prompts) * max(map(len, prompts)) + len(indices) * longest

    parts: list[list[int]] = []
    for group in sorted(groups.values(), key=lambda indices: (-padded_length(indices), indices[0])):
        if rows is not None and len(group) > rows:
            parts[:0] = [group[at : at + rows] for at in range(0, len(group), rows)]
            continue
        last = parts[-1] if parts else []
        joined = [*last, *group]
        fits = padded_size(joined) <= tokens if rows is None else len(joined) <= rows
        if last and fits:
            last.extend(group)
        else:
            parts.append(list(group))
    return parts


SHARING = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma"})
"""Families whose cache is one pair of keys and values to a layer, and nothing more."""

LOGITS_AT_ONCE = 2**27
"""Entries of a logits tensor above which it is computed in pieces, again in the backward pass."""


class TokenScores(NamedTuple):
    """Per completion token; 0 where not trainable."""

    logp: Tensor  # (B, T) float32, with gradient where it is enabled
    entropy: Tensor  # (B, T) float32, without gradient


def completion_logps(
    local: LocalModel, rows: Rows, *, temperature: float, share: bool = False
) -> TokenScores:
    """log_softmax(logits / T)[token] of every trainable completion token.

    The caller holds the model's lock; `rows` are on its device. `share` computes each distinct
    prompt once, for a model of which `can_share_prompts` is true; else whole sequences are
    computed. Both give the same.
    """
    base = local.base
    if share and len(rows.prompts) < len(rows.completions):
        states = _shared_prompt_states(base, rows)
    else:
        states = _whole_sequence_states(base, rows)
    picked = states[rows.trainable]  # (N, H)
    targets = rows.completions[rows.trainable]
    logp, entropy = score_tokens(base, picked, targets, temperature)
    flat = rows.trainable.flatten().nonzero()[:, 0]
    empty = logp.new_zeros(rows.trainable.numel())
    shape = rows.trainable.shape
    return TokenScores(
        empty.index_put((flat,), logp).view(shape), empty.index_put((flat,), entropy).view(shape)
    )


def can_share_prompts(local: LocalModel) -> bool:
    """Whether a prompt's cache may be repeated: full attention, and no recomputation."""
    config = local.base.config
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds and getattr(config, "sliding_window", None) is not None:
        return False
    attends_to_all = kinds <= {"full_attention"}
    recomputes = local.settings.gradient_checkpointing
    return config.model_type in SHARING and attends_to_all and not recomputes


def _shared_prompt_states(base: Any, rows: Rows) -> Tensor:
    """(B, T, H) hidden states that predict each completion token, prompts computed once."""
    # It takes a second to import, and the loss is computed from log-probabilities without it.
    from transformers import DynamicCache

    backbone = getattr(base, base.base_model_prefix)
    wide, long = rows.prompts.shape[1], rows.completions.shape[1]
    steps = torch.arange(max(wide, long), device=rows.ids.device)
    # What pads a short prompt stands before its completion, so attention must be kept from it.
    mask = steps[:wide] < rows.begins[:, None]  # (B, P)
    prompt_mask = torch.zeros_like(rows.prompts, dtype=torch.bool)  # (U, P)
    prompt_mask = prompt_mask.index_copy(0, rows.prompt_of, mask)
    cache = DynamicCache(config=base.config)
    prefix = backbone(
        input_ids=rows.prompts, attention_mask=prompt_mask, cache=cache, use_cache=True
    ).last_hidden_state
    first: Tensor = prefix[rows.prompt_of, rows.begins - 1][:, None]  # (B, 1, H)
    if long == 1:
        return first
    for layer in cache.layers:
        layer.keys = layer.keys[rows.prompt_of]
        layer.values = layer.values[rows.prompt_of]
    fed = rows.completions[:, :-1]
    # What pads a completion comes behind it, where causality hides it.
    whole = torch.ones_like(fed, dtype=torch.bool)
    rest = backbone(
        input_ids=fed,
        attention_mask=torch.cat([mask, whole], 1),
        position_ids=rows.begins[:, None] + steps[: long - 1],
        cache=cache,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([first, rest], dim=1)


def _whole_sequence_states(base: Any, rows: Rows) -> Tensor:
    """The same from whole sequences, each of them prompt and completion without a gap."""
    # No mask: what pads comes last, where causality hides it.
    hidden: Tensor = getattr(base, base.base_model_prefix)(
        input_ids=rows.ids, use_cache=False
    ).last_hidden_state
    steps = torch.arange(rows.completions.shape[1], device=hidden.device)
    at = (rows.begins[:, None] - 1 + steps).clamp(0, hidden.shape[1] - 1)  # (B, T)
    return hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1]))


def score_tokens(
    base: Any, hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(N,) log-probabilities and entropies; large vocabularies piece by piece."""
    head = base.get_output_embeddings()

    def score_piece(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        raw = head(states)
        wide = raw if raw.dtype == torch.float64 else raw.float()
        logits = _adjust_logits(wide, base.config)
        if temperature != 1:
            logits = logits / temperature
        logps = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logps.exp() * logps).sum(-1)
        return logps.gather(1, ids[:, None])[:, 0], entropy

    size = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(hidden) <= size:
        return score_piece(hidden, targets)
    pieces = [
        checkpoint(score_piece, states, ids, use_reentrant=False)
        for states, ids in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    ]
    logps, entropies = zip(*pieces, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _adjust_logits(logits: Tensor, config: Any) -> Tensor:
    """What some families do behind `lm_head`: Gemma caps, Cohere multiplies, Granite divides."""
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    scale = getattr(config, "logit_scale", None) or 1.0
    share = getattr(config, "logits_scaling", None) or 1.0
    if scale != 1:
        logits = logits * scale
    return logits if share == 1 else logits / share
