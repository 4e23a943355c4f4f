"""Updates by fine-tuning: a batch of demonstrations becomes one optimiser step.

Its groups have no rollouts: what is learnt stands beside each problem. The loss of an optimiser
step is the mean over all its learnt tokens, however many passes they take.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from engines.core.types import Group, GroupOutcome, LostWork, Tell
from engines.grpo.engine import weight_engine
from engines.grpo.engine.optimiser import Optimiser, learning_rate
from engines.grpo.loss import sft_data
from engines.grpo.loss.loss import Sample, completion_logps, pad_samples, split_micro_batches
from engines.grpo.ranks.ranks import UpdateCancelled
from engines.grpo.settings import SFTSettings
from engines.policies.hf_local.model import LocalModel, is_out_of_memory

FORWARD_TOKENS = 8192


def as_sample(example: sft_data.Example, number: int) -> Sample:
    """An example as a sequence of which all but the prompt is learnt."""
    size = len(example.token_ids)
    # Nothing predicts the first token of all.
    learnt = (bool(example.prompt_ids), *[True] * (size - 1))
    nothing = (0.0,) * size
    return Sample(
        prompt=example.prompt_ids,
        completion=example.token_ids,
        trainable=learnt[:size],
        advantages=nothing,
        sampled=nothing,
        group=number,
        rollout="",
    )


def token_losses(local: LocalModel, samples: Sequence[Sample]) -> Tensor:
    """(N,) float32: -log p of each learnt token, row by row; with gradient where enabled."""
    rows = pad_samples(samples, local.pad_id, local.device)
    return -completion_logps(local, rows, temperature=1.0).logp[rows.trainable]


def accumulate(
    local: LocalModel,
    batch: Sequence[sft_data.Example],
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
    samples = [as_sample(example, number) for number, example in enumerate(batch)]
    tokens = sum(sample.tokens for sample in samples)
    total = 0.0
    for part in split_micro_batches(samples, None, forward_tokens):
        before_each()
        loss = token_losses(local, [samples[at] for at in part]).sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, tokens


class SFTEngine(weight_engine.WeightEngine):
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
        tell: Tell = print,
        forward_tokens: int = FORWARD_TOKENS,
    ) -> None:
        optimiser = Optimiser(local, settings)
        super().__init__(local, optimiser, total_steps=total_steps, tell=tell)
        self._settings, self._instructions = settings, instructions
        self._forward_tokens = forward_tokens

    def _reflection_outcome(self, group: Group) -> GroupOutcome:
        """Every demonstration is learnt from."""
        return "used"

    def _prepare(self, batch: Sequence[Group]) -> weight_engine.PreparedBatch:
        every = (
            sft_data.tokenise_demonstration(
                self._local, sft_data.parse_demonstration(group.problem), self._instructions
            )
            for group in batch
        )
        examples = [example for example in every if sft_data.fits_window(self._local, example)]
        if examples:
            return weight_engine.PreparedBatch(
                partial(self._train, examples, len(batch) - len(examples))
            )
        return weight_engine.PreparedBatch(
            None,
            (
                LostWork(
                    "update",
                    f"step {batch[0].step}",
                    f"none of its demonstrations fits the model's window of {self._local.window}.",
                ),
            ),
        )

    def _train(
        self, examples: Sequence[sft_data.Example], left_out: int, is_stopped: Callable[[], bool]
    ) -> weight_engine.TrainedBatch:
        """`left_out` counts demonstrations that are longer than the model's window."""
        loss, tokens = self._accumulate(examples, is_stopped)
        rate = learning_rate(self._settings, self._optimiser_steps, self._planned)
        norm = self.optimiser.step(rate)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise weight_engine.NonFiniteUpdate(
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
        return weight_engine.TrainedBatch(metrics, 1)

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"kind": self.kind}, {}

    def _load_own_state(self, plain: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        """It has no more than every engine."""

    def _accumulate(
        self, examples: Sequence[sft_data.Example], is_stopped: Callable[[], bool]
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
        raise weight_engine.OutOfMemory(size)
