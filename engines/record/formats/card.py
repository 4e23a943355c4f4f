"""The evaluation card that travels with a library: what was measured of it.

Owns how it is told. `studio.library.card` finds who measured what.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.core.library import Library
from engines.core.types import Problem


@dataclass(frozen=True, slots=True)
class Result:
    """One held-out set, measured with this version in front of every prompt."""

    text: str
    data: Mapping[str, Any]  # the same as JSON values
    benchmark: Mapping[str, Any] | None = None  # against no experience, as a skill holds it


@dataclass(frozen=True, slots=True)
class Card:
    """A version of a library with what is known of it."""

    library: Library
    results: tuple[Result, ...] = ()
    instructions: str = ""  # of the agent that practised with it
    evals: tuple[Problem, ...] = ()  # that a skill takes along

    @property
    def title(self) -> str:
        """What it is of, by which an import knows it again."""
        about = self.library
        return f"library {about.name}@{about.version}, content {about.content_hash}"

    def lines(self) -> list[str]:
        """All of it in words, a fact a line."""
        results = [result.text for result in self.results]
        worth = [f"{name} {text}" for name, text in self.worths().items()]
        return [self.title, *(results or ["never measured on held-out problems"]), *worth]

    def worths(self) -> dict[str, str]:
        """What experiences were measured to be worth, and their uses, where either is known."""
        about, found = self.library, {}
        for name in (e.id for e in about.experiences):
            effect, uses = about.effects.get(name), about.uses.get(name)
            parts = [f"worth {effect.worth}"] if effect else []
            if parts := parts + ([f"attempts: {uses.text}"] if uses else []):
                found[name] = "; ".join(parts)
        return found

    def data(self) -> dict[str, Any]:
        about = {"library": self.library.name, "version": self.library.version}
        results = [dict(result.data) for result in self.results]
        return {**about, "results": results, "worth": self.worths()}
