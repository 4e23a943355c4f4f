"""The evaluation card that travels with a library: what was measured of it, as plain values.

Owns its words. Who measured what is found by `studio.library.card`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engines.core.library import Library
from engines.core.text.sanitize import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One held-out set, with this version in front of every prompt."""

    data: str
    mean: float
    interval: tuple[float, float] | None  # of 95 %
    n: int  # judged tries
    model: str
    date: str  # of the measurement, `2026-09-29`
    scripted: bool  # replies of the rehearsal show nothing of a model
    rates: tuple[float, float]  # mean and standard deviation over questions
    compared: str = ""  # in words, with its verdict: what it was before
    without: tuple[float, float] | None = None  # the same rates with no library; None: unmeasured

    @property
    def text(self) -> str:
        """`held-out: 0.900 [0.84, 0.96] (n=100), gpt-x, 2026-09-29; +0.59 …, better`."""
        span = f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]" if self.interval else ""
        scripted = ", scripted replies" if self.scripted else ""
        change = f"; {self.compared}" if self.compared else ""
        about = f"(n={self.n}), {self.model}{scripted}, {self.date}"
        return one_line(f"{self.data}: {self.mean:.3f}{span} {about}{change}")


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of one version of a library."""

    library: Library
    date: str  # of the export
    results: tuple[Result, ...] = ()
    instructions: str = ""  # of the agent that it was practised with
    evals: tuple[dict[str, str], ...] = field(default=())  # id, prompt, expected_output

    @property
    def title(self) -> str:
        return f"{self.library.name}@{self.library.version}"

    def lines(self) -> list[str]:
        """All of it in words, one fact a line."""
        return [
            f"library {self.title}, content {self.library.content_hash}, exported {self.date}",
            *(result.text for result in self.results or ()),
            *(() if self.results else ("never measured on held-out problems",)),
            *self.worth_lines(),
        ]

    def worth_lines(self) -> list[str]:
        found = ((e.id, self.worth(e.id)) for e in self.library.experiences)
        return [f"{name}: {worth}" for name, worth in found if worth]

    def worth(self, name: str) -> str:
        """What an experience was measured to be worth, and its uses; "" where nothing is known."""
        effect, uses = self.library.effects.get(name), self.library.uses.get(name)
        parts = (f"worth {effect.worth}" if effect else "", uses.text if uses else "")
        return "; ".join(filter(None, parts))

    def data(self) -> dict[str, Any]:
        """The same as JSON values."""
        fields = ("data", "mean", "interval", "n", "model", "date", "scripted", "compared")
        return {
            "library": self.library.name,
            "version": self.library.version,
            "content_hash": self.library.content_hash,
            "exported": self.date,
            "results": [{f: getattr(result, f) for f in fields} for result in self.results],
            "worth": {e.id: w for e in self.library.experiences if (w := self.worth(e.id))},
        }
