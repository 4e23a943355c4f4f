"""Updates by fine-tuning: a batch of demonstrations becomes one optimiser step.

Owns how demonstrations are packed and how many tokens fit into memory. Its groups have no
rollouts: what is learnt stands beside each problem. The weights are kept and put back by
`WeightEngine`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.core.errors import ConflictError
from engines.core.types import Group, GroupOutcome, LostWork
from engines.grpo.engine.failures import (
    NonFiniteUpdate,
    OutOfMemory,
    UpdateCancelled,
    is_out_of_memory,
)
from engines.grpo.engine.optimiser import Optimiser, clip_gradient
from engines.grpo.engine.schedule import learning_rate
from engines.grpo.engine.weight_engine import PreparedBatch, TrainedBatch, WeightEngine
from engines.grpo.loss.sft import FORWARD_TOKENS, accumulate, is_packing_exact
from engines.grpo.loss.sft_data import (
    Example,
    fits_window,
    parse_demonstration,
    tokenise_demonstration,
)
from engines.grpo.settings import GRPOSettings, SFTSettings

if TYPE_CHECKING:
    from torch import Tensor

    from engines.policies.hf_local.model import LocalModel

KIND = "sft"
"""What its checkpoints say, so that no other engine goes on from them."""
MEMORY_ADVICE = "set policy.local.gradient_checkpointing=true, or take shorter demonstrations"


@dataclass(frozen=True, slots=True)
class DemonstrationBatch:
    examples: Sequence[Example]
    left_out: int  # demonstrations longer than the model's window


def sft_engine(
    settings: SFTSettings,
    local: LocalModel,
    *,
    total_steps: int,
    instructions: str = "",
    tell: Callable[[str], None] = print,
    forward_tokens: int = FORWARD_TOKENS,
) -> WeightEngine[DemonstrationBatch]:
    """An engine that learns what it is shown.

    Args:
        settings: see `SFTSettings`.
        local: the model.
        total_steps: batches of the whole run, each an optimiser step of the schedule.
        instructions: the system prompt of demonstrations without messages of their own.
        tell: receives one line for each thing that a person should know of.
        forward_tokens: of one pass, padding included; it changes no figure but the time.

    Raises:
        PolicyError: the model has nothing to train.
    """
    optimiser = Optimiser(
        local,
        GRPOSettings(learning_rate=settings.learning_rate, weight_decay=settings.weight_decay),
    )
    updater = SFTUpdater(
        settings,
        local,
        optimiser,
        instructions=instructions,
        tell=tell,
        forward_tokens=forward_tokens,
    )
    return WeightEngine(updater, local, optimiser, total_steps=total_steps, tell=tell)


class SFTUpdater:
    """Implements `Updater`; see `sft_engine` for the arguments."""

    steps_per_batch = 1
    learning_scale = 1.0

    def __init__(
        self,
        settings: SFTSettings,
        local: LocalModel,
        optimiser: Optimiser,
        *,
        instructions: str,
        tell: Callable[[str], None],
        forward_tokens: int,
    ) -> None:
        self.schedule = self._settings = settings
        self._local, self._optimiser, self._tell = local, optimiser, tell
        self._instructions = instructions
        self._forward_tokens, self._halved = forward_tokens, False
        self._packs: bool | None = None  # None: not looked at yet

    def reflection_outcome(self, group: Group) -> GroupOutcome:
        """Every demonstration is learnt from."""
        return "used"

    def prepare(self, batch: Sequence[Group]) -> PreparedBatch[DemonstrationBatch]:
        every = (
            tokenise_demonstration(
                self._local, parse_demonstration(group.problem), self._instructions
            )
            for group in batch
        )
        examples = [example for example in every if fits_window(self._local, example)]
        if examples:
            return PreparedBatch(DemonstrationBatch(examples, len(batch) - len(examples)))
        reason = f"none of its demonstrations fits the model's window of {self._local.window}."
        return PreparedBatch(None, (LostWork("update", f"step {batch[0].step}", reason),))

    def train(
        self,
        samples: DemonstrationBatch,
        step: int,
        *,
        done: int,
        planned: int,
        is_stopped: Callable[[], bool],
    ) -> TrainedBatch:
        settings, examples = self._settings, samples.examples
        loss, tokens = self._accumulate(examples, is_stopped)
        gradient, norm = clip_gradient(self._optimiser.gradient(), settings.max_grad_norm)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteUpdate(
                f"loss {loss:g} and gradient norm {norm:g}; the weights stay as they were. "
                f"Set sft.learning_rate lower than {settings.learning_rate:g}, or look for odd "
                "demonstrations."
            )
        rate = learning_rate(settings, done, planned)
        self._optimiser.step(gradient, rate)
        metrics = {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate,
            "tokens": float(tokens),
            "examples": float(len(examples)),
            "left_out": float(samples.left_out),
            "length": tokens / len(examples),
            "optimiser_steps": 1.0,
        }
        return TrainedBatch(metrics, 1)

    def halve(self, error: OutOfMemory, step: int) -> str | None:
        if self._halved:
            return None
        self._halved = True
        self._forward_tokens //= 2
        return (
            f"Out of memory: trying again with {self._forward_tokens} tokens to a forward, "
            "which stays so."
        )

    def note_applied(self, step: int) -> None:
        """Nothing depends on which step the weights come from."""

    def roll_back(self, to: int, step: int) -> None:
        raise AssertionError("fine-tuning proposes no rollback")

    def state(self) -> dict[str, Any]:
        return {"kind": KIND, "forward_tokens": self._forward_tokens, "halved": self._halved}

    def kept_tensors(self) -> dict[str, Tensor]:
        return {}

    def check_state(self, plain: Mapping[str, Any], folder: Path) -> None:
        if plain.get("kind") != KIND:
            raise ConflictError(
                str(folder),
                "it was not made by fine-tuning, whose optimiser would have to go on from it.",
                "Begin from its weights instead: policy.adapter=run:RUN and another --name.",
            )

    def load(self, plain: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        self._forward_tokens, self._halved = int(plain["forward_tokens"]), bool(plain["halved"])

    def _accumulate(
        self, examples: Sequence[Example], is_stopped: Callable[[], bool]
    ) -> tuple[float, int]:
        """The mean loss and its tokens, the gradients in the parameters."""

        def check_stop() -> None:
            if is_stopped():
                raise UpdateCancelled

        self._optimiser.zero_grad()
        try:
            return accumulate(
                self._local,
                examples,
                packs=self._can_pack(examples),
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
