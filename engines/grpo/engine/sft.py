"""Updates by fine-tuning: a batch of demonstrations becomes one optimiser step.

Its groups have no rollouts: what is learnt stands beside each problem. The loss of an optimiser
step is the mean over all its learnt tokens, however many passes they take.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from engines.core.types import Group, GroupOutcome, LostWork
from engines.grpo.engine.optimiser import Optimiser, learning_rate
from engines.grpo.engine.weight_engine import (
    NonFiniteUpdate,
    OutOfMemory,
    PreparedBatch,
    TrainedBatch,
    WeightEngine,
)
from engines.grpo.loss.loss import score_tokens
from engines.grpo.loss.sft_data import (
    Example,
    fits_window,
    parse_demonstration,
    tokenise_demonstration,
)
from engines.grpo.ranks.ranks import UpdateCancelled
from engines.grpo.settings import SFTSettings
from engines.policies.hf_local.model import LocalModel, is_out_of_memory

FORWARD_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class PaddedExamples:
    """R examples of at most L tokens, padded on the right, where causality hides it."""

    ids: Tensor  # (R, L) int64
    learnt: Tensor  # (R, L) bool, True where the token after a position belongs to a reply


def pad_examples(examples: Sequence[Example], local: LocalModel) -> PaddedExamples:
    rows = [torch.tensor((*one.prompt_ids, *one.token_ids)) for one in examples]
    ids = pad_sequence(rows, batch_first=True, padding_value=local.pad_id)
    learnt = torch.zeros_like(ids, dtype=torch.bool)
    for row, example in zip(learnt, examples, strict=True):
        # Position p predicts p + 1; nothing predicts the first token of an example.
        row[max(0, len(example.prompt_ids) - 1) : len(example) - 1] = True
    return PaddedExamples(ids.to(local.device), learnt.to(local.device))


def token_losses(local: LocalModel, padded: PaddedExamples) -> Tensor:
    """(N,) float32: -log p of each learnt token, row by row; with gradient where enabled."""
    base = local.base
    hidden = getattr(base, base.base_model_prefix)(
        input_ids=padded.ids, use_cache=False
    ).last_hidden_state
    targets = padded.ids.roll(-1, 1)[padded.learnt]
    logp, _ = score_tokens(base, hidden[padded.learnt], targets, 1.0)
    return -logp


def accumulate(
    local: LocalModel,
    batch: Sequence[Example],
    *,
    forward_tokens: int,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[float, int]:
    """Add the gradients of a batch's mean loss to the parameters'.

    The caller holds the model's lock. `forward_tokens` of one pass, padding included, change no
    figure but the time. What `before_each` pass raises ends the work.

    Returns:
        The mean loss, and how many tokens it is over.
    """
    passes = [pad_examples(part, local) for part in split_into_forwards(batch, forward_tokens)]
    tokens = sum(int(padded.learnt.sum()) for padded in passes)
    total = 0.0
    for padded in passes:
        before_each()
        loss = token_losses(local, padded).sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, tokens


def split_into_forwards(examples: Sequence[Example], limit: int) -> list[list[Example]]:
    """Examples of like length, as many as stay within `limit` tokens with what pads them."""
    parts: list[list[Example]] = []
    for example in sorted(examples, key=len, reverse=True):
        if parts and len(parts[-1][0]) * (len(parts[-1]) + 1) <= limit:
            parts[-1].append(example)
        else:
            parts.append([example])
    return parts


class SFTEngine(WeightEngine):
    """An engine that learns what it is shown; each batch is an optimiser step.

    `instructions` are the system prompt of demonstrations without messages of their own;
    `forward_tokens` of one pass, padding included, change no figure but the time.
    """

    kind = "sft"
    learns_by = "fine-tuning"
    unit = "tokens"
    memory_advice = "set policy.local.gradient_checkpointing=true, or take shorter demonstrations"

    def __init__(
        self,
        settings: SFTSettings,
        local: LocalModel,
        *,
        total_steps: int,
        instructions: str = "",
        tell: Callable[[str], None] = print,
        forward_tokens: int = FORWARD_TOKENS,
    ) -> None:
        optimiser = Optimiser(local, settings)
        super().__init__(local, optimiser, total_steps=total_steps, tell=tell)
        self._settings, self._instructions = settings, instructions
        self._forward_tokens = forward_tokens

    def _reflection_outcome(self, group: Group) -> GroupOutcome:
        """Every demonstration is learnt from."""
        return "used"

    def _prepare(self, batch: Sequence[Group]) -> PreparedBatch:
        every = (
            tokenise_demonstration(
                self._local, parse_demonstration(group.problem), self._instructions
            )
            for group in batch
        )
        examples = [example for example in every if fits_window(self._local, example)]
        if examples:
            return PreparedBatch(partial(self._train, examples, len(batch) - len(examples)))
        reason = f"none of its demonstrations fits the model's window of {self._local.window}."
        return PreparedBatch(None, (LostWork("update", f"step {batch[0].step}", reason),))

    def _train(
        self, examples: Sequence[Example], left_out: int, is_stopped: Callable[[], bool]
    ) -> TrainedBatch:
        """`left_out` counts demonstrations that are longer than the model's window."""
        loss, tokens = self._accumulate(examples, is_stopped)
        rate = learning_rate(self._settings, self._optimiser_steps, self._planned)
        norm = self.optimiser.step(rate)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteUpdate(
                f"loss {loss:g} and gradient norm {norm:g}; the weights stay as they were. "
                f"Set sft.learning_rate lower than {self._settings.learning_rate:g}, or look for "
                "odd demonstrations."
            )
        metrics = {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate,
            "tokens": float(tokens),
            "examples": float(len(examples)),
            "left_out": float(left_out),
            "length": tokens / len(examples),
            "optimiser_steps": 1.0,
        }
        return TrainedBatch(metrics, 1)

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"kind": self.kind}, {}

    def _load_own_state(self, plain: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        """It has no more than every engine."""

    def _accumulate(
        self, examples: Sequence[Example], is_stopped: Callable[[], bool]
    ) -> tuple[float, int]:
        """The mean loss and its tokens, the gradients in the parameters."""

        def check_stop() -> None:
            if is_stopped():
                raise UpdateCancelled

        self.optimiser.zero_grad()
        size = self.forward_limit or self._forward_tokens
        try:
            return accumulate(self._local, examples, forward_tokens=size, before_each=check_stop)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler, so that no traceback keeps what did not fit.
        raise OutOfMemory(size)
