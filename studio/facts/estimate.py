"""All that is told of what something would cost: calls, tokens and money by stage."""

from engines.core.frozen import frozen
from studio.facts.subject import Subject


@frozen
class Range:
    """Likely and at most; both are means or sums, so they need not be whole."""

    likely: float = 0.0
    at_most: float = 0.0

    def __add__(self, other: "Range") -> "Range":
        return Range(self.likely + other.likely, self.at_most + other.at_most)

    def pick(self, most: bool) -> float:
        return self.at_most if most else self.likely


@frozen
class Stage:
    """One kind of call. `cost_usd` is None where its model has no price."""

    stage: str
    calls: Range
    prompt_tokens: Range
    reply_tokens: Range
    cost_usd: Range | None


@frozen
class Estimate(Subject):
    """All stages that are not empty, and their sum."""

    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()  # what was measured, and what assumed
    kind: str = "Estimate"

    @property
    def calls(self) -> Range:
        return sum((stage.calls for stage in self.stages), Range())

    @property
    def prompt_tokens(self) -> Range:
        return sum((stage.prompt_tokens for stage in self.stages), Range())

    @property
    def reply_tokens(self) -> Range:
        return sum((stage.reply_tokens for stage in self.stages), Range())

    @property
    def tokens(self) -> Range:
        return self.prompt_tokens + self.reply_tokens

    @property
    def cost_usd(self) -> Range | None:
        """None as soon as one stage that makes calls has no price."""
        costs = [stage.cost_usd for stage in self.stages if stage.cost_usd is not None]
        return sum(costs, Range()) if len(costs) == len(self.stages) else None
