"""Updates by fine-tuning: a batch of demonstrations becomes one optimiser step.

Its groups have no rollouts: what is learnt stands beside each problem. The loss of an optimiser
step is the mean over all its learnt tokens, however they are packed and however many passes they
take. In a packed row positions begin again with every example, from which transformers makes an
attention mask that keeps them apart (wherever no other mask and no cache is given).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engines.core.types import Group, GroupOutcome, LostWork
from engines.grpo.engine.optimiser import Optimiser, learning_rate
from engines.grpo.engine.weight_engine import (
    NonFiniteUpdate,
    OutOfMemory,
    PreparedBatch,
    TrainedBatch,
    WeightEngine,
)
from engines.grpo.forward import score_tokens
from engines.grpo.loss.sft_data import (
    Example,
    fits_window,
    parse_demonstration,
    tokenise_demonstration,
)
from engines.grpo.ranks.ranks import UpdateCancelled
from engines.grpo.settings import SFTSettings
from engines.policies.hf_local.model import LocalModel, is_out_of_memory

ROW_TOKENS = 2048  # of a packed row at most, more only where one example is longer
ROW_EXAMPLES = 2
"""Of the batch's longest, as many fill a row: little is padded, and attention takes the square of
a row's length (a step of fine-tuning hf:tiny took 0.22 s in rows of 627 tokens, 0.13 s in 156)."""
FORWARD_TOKENS = 8192


def token_losses(local: LocalModel, packed: "PackedBatch") -> Tensor:
    """(N,) float32: -log p of each learnt token, row by row; with gradient where enabled."""
    base = local.base
    packed = packed.to(local.device)
    hidden = getattr(base, base.base_model_prefix)(
        input_ids=packed.ids, position_ids=packed.positions, use_cache=False
    ).last_hidden_state
    logp, _ = score_tokens(base, hidden[packed.learnt], packed.targets[packed.learnt], 1.0)
    return -logp


def accumulate(
    local: LocalModel,
    batch: Sequence[Example],
    *,
    packs: bool,
    forward_tokens: int,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[float, int]:
    """Add the gradients of a batch's mean loss to the parameters'.

    The caller holds the model's lock. With `packs` several examples may stand in one row;
    `forward_tokens` of one pass, padding included, change no figure but the time. What
    `before_each` pass raises ends the work.

    Returns:
        The mean loss, and how many tokens it is over.
    """
    row = min(ROW_TOKENS, ROW_EXAMPLES * max(map(len, batch)))
    limit = min(local.window, row, forward_tokens) if packs else 0
    passes = [
        pack(rows, local.pad_id)
        for rows in group_into_forwards(pack_into_rows(batch, limit), forward_tokens)
    ]
    tokens = sum(packed.tokens for packed in passes)
    total = 0.0
    for packed in passes:
        before_each()
        loss = token_losses(local, packed).sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, tokens


def is_packing_exact(local: LocalModel, first: Example, second: Example) -> bool:
    """Whether two examples in one row lose what they lose alone.

    Not so in a model whose layers carry a state along the row, or whose own code makes masks.
    """
    with torch.no_grad():
        alone = [token_losses(local, pack([[one]], local.pad_id)) for one in (first, second)]
        together = token_losses(local, pack([[first, second]], local.pad_id))
    near = 1e-3 if local.dtype == torch.float32 else 0.1
    return bool(((torch.cat(alone) - together).abs() <= near).all())


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """R rows of L positions; an example's tokens stand next to each other in one row."""

    ids: Tensor  # (R, L) int64
    positions: Tensor  # (R, L) int64, from 0 in each example and in each row's padding
    targets: Tensor  # (R, L) int64, the token after each position; 0 where not learnt
    learnt: Tensor  # (R, L) bool, True where that token belongs to a reply

    @property
    def tokens(self) -> int:
        """How many are learnt."""
        return int(self.learnt.sum())

    def to(self, device: torch.device) -> "PackedBatch":
        parts = (self.ids, self.positions, self.targets, self.learnt)
        return PackedBatch(*(part.to(device) for part in parts))


def pack_into_rows(examples: Sequence[Example], limit: int) -> list[list[Example]]:
    """Rows of at most `limit` tokens: first fit, the longest first; ties keep their order.

    An example longer than `limit` has a row for itself.
    """
    rows: list[list[Example]] = []
    room: list[int] = []
    for example in sorted(examples, key=len, reverse=True):
        size = len(example)
        at = next((n for n, left in enumerate(room) if size <= left), None)
        if at is None:
            rows.append([example])
            room.append(limit - size)
        else:
            rows[at].append(example)
            room[at] -= size
    return rows


def group_into_forwards(rows: Sequence[list[Example]], limit: int) -> list[list[list[Example]]]:
    """Neighbouring rows taken together while rows times the longest stay within `limit`."""
    taken: list[list[list[Example]]] = []
    longest = 0
    for row in rows:
        size = sum(len(example) for example in row)
        if taken and max(longest, size) * (len(taken[-1]) + 1) <= limit:
            taken[-1].append(row)
            longest = max(longest, size)
        else:
            taken.append([row])
            longest = size
    return taken


def pack(rows: Sequence[Sequence[Example]], pad_id: int) -> PackedBatch:
    """Lay rows out, padded on the right."""
    width = max(sum(len(example) for example in row) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    positions = torch.zeros_like(ids)
    targets = torch.zeros_like(ids)
    learnt = torch.zeros_like(ids, dtype=torch.bool)
    for number, row in enumerate(rows):
        at = 0
        for example in row:
            size, shown = len(example), len(example.prompt_ids)
            whole = torch.tensor((*example.prompt_ids, *example.token_ids), dtype=torch.int64)
            ids[number, at : at + size] = whole
            positions[number, at : at + size] = torch.arange(size)
            targets[number, at : at + size - 1] = whole[1:]
            # Position p predicts p + 1; nothing predicts the first token of an example.
            learnt[number, at + max(0, shown - 1) : at + size - 1] = True
            at += size
        positions[number, at:] = torch.arange(width - at)
    return PackedBatch(ids, positions, torch.where(learnt, targets, 0), learnt)


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
