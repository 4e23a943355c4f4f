"""What is told while it happens and never written down: who comes later is told where things stand.

`engines.core.events` has these names, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.core.types import CallKey


@dataclass(frozen=True, slots=True)
class RolloutStarted:
    key: CallKey
    problem: str


@dataclass(frozen=True, slots=True)
class TextStreamed:
    """A piece of visible text of a reply under way."""

    key: CallKey
    text: str


@dataclass(frozen=True, slots=True)
class StageEntered:
    """The batch as a whole moved on: "consolidation", "choice" (of `lessons`), "gate", "review".

    In "gate" so many `operations` are tried together: `made` tries of `most`, so far.
    Before a process takes up training, "restore" says that it brings the weights to `step`.

    Within a review "hold" says that a person is waited for, since rules left `undecided`, and
    "ready" that all is decided and the commit is held: so many `approved`, `edited`,
    `rejected` and `deferred`, which would make library `version`.
    """

    step: int
    stage: str
    detail: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluationProgressed:
    """One more held-out rollout is through, judged or not: `key` and `reward` are its own."""

    step: int
    data: str
    done: int
    total: int
    known: int = 0  # of those done that have a reward
    right: float = 0.0  # the sum of their rewards
    k: int = 1  # rollouts of a problem
    key: CallKey | None = None  # None: the set begins
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutPlaced:
    """A try is made on a node of a cluster."""

    key: CallKey
    node: str


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """Where workers are ready now; `lost` says which of them was lost, and why."""

    nodes: tuple[str, ...]
    lost: str = ""


TransientEvent = (
    RolloutStarted
    | TextStreamed
    | StageEntered
    | EvaluationProgressed
    | RolloutPlaced
    | NodesChanged
)
