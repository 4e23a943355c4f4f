"""All that is told of worth: of each experience of a library, and of operations that were tried."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from engines.core.codec import fields_of
from engines.core.events import EffectMeasured
from engines.core.frozen import frozen
from engines.core.state.run_state import RunState
from engines.core.types import Names, Operation, Usage
from engines.pipeline.effect.worth import Effects
from studio.facts.library import prompt_tokens
from studio.facts.subject import LIFTED, Subject


@frozen
class UtilityFacts(Subject):
    """What every experience of a library is worth, and what that rests on."""

    library: str
    version: int
    label: str
    texts: Mapping[str, str]  # of every experience, with those that wait for review
    pending: Names  # those that wait for review
    effects: Effects = field(metadata=LIFTED)
    dispensable: Names  # what surely gains less than `margin`
    margin: float
    offered: Names  # what a reviewer is asked to delete
    offered_in: str  # the run that asks; "": none was opened
    unjudged: int
    paid: Usage

    @property
    def kind(self) -> str:
        return "Utility"

    @property
    def prompt_tokens(self) -> dict[str, int]:
        return {name: prompt_tokens(text) for name, text in self.texts.items()}


@frozen
class TriedOperation(Subject):
    """An operation that the gate was asked about."""

    operation: str
    data: Mapping[str, Any] = field(metadata=LIFTED)  # its kind, target and text
    effect: EffectMeasured | None  # None: it fits neither the library nor what helps


def tried_operation(state: RunState, op: Operation) -> TriedOperation:
    return TriedOperation(
        operation=op.id,
        data=fields_of(op, "kind", "target", "text"),
        effect=state.effect_of(op.id),
    )
