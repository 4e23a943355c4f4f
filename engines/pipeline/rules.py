"""`rules:FILE`: what passes by itself, what is rejected with which reason, what waits.

Owns the file format. The first rule whose conditions all hold decides; an operation
that no rule settles goes on to the next reviewer.

    rules:
      - when: {kind: delete}
        do: ask
      - when: {words_above: 60}
        do: reject
        reason: too long to be read in every prompt
      - when: {kind: [add, modify], groups_at_least: 2}
        do: approve
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from engines.core.errors import ConfigError
from engines.core.library import Library
from engines.core.similarity import similarity
from engines.core.types import Decision, Operation, OperationKind


class Conditions(BaseModel):
    """All that are given must hold; none given holds always."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: tuple[OperationKind, ...] = ()
    groups_at_least: int | None = None  # distinct groups behind the operation
    groups_below: int | None = None
    words_above: int | None = None
    matches: str | None = None  # regular expression, searched in the text
    similar_at_least: float | None = None  # to any other experience, 0 to 1
    flagged: bool | None = None

    @field_validator("kind", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("matches")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return value

    def hold(self, operation: Operation, library: Library) -> bool:
        groups = len({rollout.rpartition("r")[0] for rollout in operation.evidence})
        checks = [
            not self.kind or operation.kind in self.kind,
            self.groups_at_least is None or groups >= self.groups_at_least,
            self.groups_below is None or groups < self.groups_below,
            self.words_above is None or len(operation.text.split()) > self.words_above,
            self.matches is None or re.search(self.matches, operation.text) is not None,
            self.flagged is None or bool(operation.flags) is self.flagged,
        ]
        if not all(checks):
            return False
        return self.similar_at_least is None or any(
            similarity(operation.text, e.text) >= self.similar_at_least
            for e in library.experiences
            if e.id != operation.target
        )


class Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    when: Conditions = Conditions()
    do: Literal["approve", "reject", "defer", "ask"]
    reason: str = ""

    @model_validator(mode="after")
    def _rejections_say_why(self) -> Rule:
        if self.do == "reject" and not self.reason:
            raise ValueError("a rule that rejects needs a reason")
        return self


class _RuleFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: tuple[Rule, ...]


class Rules:
    """Decides by rules, in the order of the operations."""

    def __init__(self, rules: Sequence[Rule], name: str) -> None:
        self._rules = tuple(rules)
        self.name = name

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            for number, rule in enumerate(self._rules, 1):
                if not rule.when.hold(operation, library):
                    continue
                if rule.do != "ask":
                    reason = rule.reason or f"rule {number}"
                    yield Decision(operation.id, rule.do, reason=reason, reviewer=self.name)
                break


def read_rules(path: Path) -> Rules:
    """Read a rule file.

    Raises:
        ConfigError: it is missing, no YAML, or says something rules cannot say.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
        parsed = _RuleFile.model_validate(data)
    except OSError as error:
        raise ConfigError(
            str(path), f"cannot be read ({error.strerror}).", "Name a rule file after `rules:`."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not YAML ({error}).", "Mend it.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{path}: {where or 'the file'}",
            f"{first['msg']}.",
            "A rule has `when` (kind, groups_at_least, groups_below, words_above, matches, "
            "similar_at_least, flagged), `do` (approve, reject, defer, ask) and `reason`.",
        ) from error
    return Rules(parsed.rules, f"rules:{path.name}")
