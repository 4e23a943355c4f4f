"""Where the scripted reflector is careless on purpose, so that a reviewer has something to find.

A request may carry `slips`: words of a problem → what goes wrong where the prompt shows that
problem. A warm reader slips by chance besides. Real models do all of these. Reads nothing but the
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from engines.core.ids import seed_for
from engines.policies.rehearsal import wording

Slip = Literal["copy", "opposite", "leak", "broken"]
"""Says again what the library says, says its opposite, gives the problem and its answer away,
or leaves the end of the reply away."""


WARM = 0.7
"""Temperature from which one reader is not like another."""


def chance_slips(seed: int, temperature: float) -> dict[str, Slip]:
    """What a warm reader does at any problem: one in three rewords, one turns a rule round."""
    draw = seed_for(seed, "slip") % 3
    return {"": ("copy", "opposite")[draw - 1]} if temperature >= WARM and draw else {}


def are_slips(value: Any) -> bool:
    """Whether it can stand as `slips` in a request."""
    return isinstance(value, Mapping) and all(slip in get_args(Slip) for slip in value.values())


def slip_at(problem: str, slips: Mapping[str, Slip]) -> Slip | None:
    return next((slip for words, slip in slips.items() if words in problem), None)


def reword_carelessly(lesson: str, slip: Slip, problem: str, truth: Sequence[str]) -> str:
    """A lesson as the slip has it."""
    name, sentence = wording.split_experience(lesson.rstrip("."))
    condition, comma, rule = sentence.partition(", ")
    match slip:
        case "copy" if comma:
            return f"{name}: {rule} {condition}."
        case "opposite" if comma:
            return f"{name}: {condition}, never {rule}."
        case "leak":
            return f"{name}: {sentence}, as in “{problem}”, which gives {' or '.join(truth)}."
    return lesson
