"""Updates by fine-tuning: a batch of demonstrations becomes one optimiser step.

Its groups have no rollouts: what is learnt stands beside each problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from engines.core.types import Group, GroupOutcome, LostWork
from engines.grpo.engine.optimiser import Optimiser, learning_rate
from engines.grpo.engine.weight_engine import (
    NonFiniteUpdate,
    OutOfMemory,
    PreparedBatch,
    TrainedBatch,
    WeightEngine,
)
from engines.grpo.loss.sft import FORWARD_TOKENS, accumulate, is_packing_exact
from engines.grpo.loss.sft_data import (
    Example,
    fits_window,
    parse_demonstration,
    tokenise_demonstration,
)
from engines.grpo.ranks.ranks import UpdateCancelled
from engines.grpo.settings import SFTSettings
from engines.policies.hf_local.model import LocalModel, is_out_of_memory
from engines.policies.hf_local.weights import lora_dropout

if TYPE_CHECKING:
    from torch import Tensor

MEMORY_ADVICE = "set policy.local.gradient_checkpointing=true, or take shorter demonstrations"


class SFTEngine(WeightEngine):
    """An engine that learns what it is shown; each batch is an optimiser step.

    `instructions` are the system prompt of demonstrations without messages of their own;
    `forward_tokens` of one pass, padding included, change no figure but the time.
    """

    kind = "sft"
    learns_by = "fine-tuning"

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
        super().__init__(settings, local, optimiser, total_steps=total_steps, tell=tell)
        self._settings, self._instructions = settings, instructions
        self._forward_tokens, self._halved = forward_tokens, False
        self._packs: bool | None = None  # None: not looked at yet

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
        settings = self._settings
        loss, tokens = self._accumulate(examples, is_stopped)
        rate = learning_rate(settings, self._optimiser_steps, self._planned)
        norm = self.optimiser.step(rate)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteUpdate(
                f"loss {loss:g} and gradient norm {norm:g}; the weights stay as they were. "
                f"Set sft.learning_rate lower than {settings.learning_rate:g}, or look for odd "
                "demonstrations."
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

    def _halve(self, error: OutOfMemory, step: int) -> str | None:
        if self._halved:
            return None
        self._halved = True
        self._forward_tokens //= 2
        return (
            f"Out of memory: trying again with {self._forward_tokens} tokens to a forward, "
            "which stays so."
        )

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        plain = {"kind": self.kind, "forward_tokens": self._forward_tokens, "halved": self._halved}
        return plain, {}

    def _load_own_state(self, plain: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        self._forward_tokens, self._halved = int(plain["forward_tokens"]), bool(plain["halved"])

    def _accumulate(
        self, examples: Sequence[Example], is_stopped: Callable[[], bool]
    ) -> tuple[float, int]:
        """The mean loss and its tokens, the gradients in the parameters."""

        def check_stop() -> None:
            if is_stopped():
                raise UpdateCancelled

        self.optimiser.zero_grad()
        try:
            packs = self._can_pack(examples)
            with lora_dropout(self._local.model, self._local.settings.seed + self._optimiser_steps):
                return accumulate(
                    self._local,
                    examples,
                    packs=packs,
                    forward_tokens=self._forward_tokens,
                    before_each=check_stop,
                )
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler, so that no traceback keeps what did not fit.
        raise OutOfMemory(self._forward_tokens, "tokens", MEMORY_ADVICE)

    def _can_pack(self, examples: Sequence[Example]) -> bool:
        """Looked at once, on the two shortest of the first batch that has two."""
        if self._packs is None and len(examples) > 1:
            self._packs = is_packing_exact(self._local, *sorted(examples, key=len)[:2])
            if not self._packs:
                self._tell(
                    "Examples are not packed: this model does not keep those of a row apart."
                )
        return bool(self._packs)
