"""`rules:FILE`: what passes by itself, what is rejected with which reason, what waits.

The first rule whose conditions all hold decides; an operation that no rule decides goes on to
the next reviewer.

    rules:
      - when: {kind: delete}
        do: ask
      - when: {words_above: 60}
        do: reject
        reason: too long to be read in every prompt
      - when: {flag: [leak, held-out leak]}
        do: reject
        reason: it gives a problem away
      - when: {flag: duplicate, score_at_least: 0.9}
        do: reject
        reason: the library says so already
      - when: {kind: [add, modify], groups_at_least: 2}
        do: approve
      - when: {kind: weights}
        do: approve

A weight update is meant by rules that name its kind or no condition at all; it cannot be put
off, so that `defer` asks instead.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engines.core.errors import ConfigError
from engines.core.flags import FLAG_NAMES, UNSCORED
from engines.core.library import Library
from engines.core.text.similar_texts import SimilarTexts
from engines.core.types import RULES, Decision, Operation, OperationKind

_FORM = "A rule file is `rules:` and a list of `- when: {…}`, `do: …`, `reason: …`."


class Conditions(BaseModel):
    """All that are given must hold; none given holds always."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: tuple[OperationKind, ...] = ()
    groups_at_least: int | None = None  # distinct groups behind the operation
    groups_below: int | None = None
    words_above: int | None = None
    matches: str | None = None  # regular expression, searched in the text
    similar_at_least: float | None = Field(default=None, gt=0, le=1)  # to any other experience
    flagged: bool | None = None
    flag: tuple[str, ...] = ()  # any of them
    score_at_least: float | None = Field(default=None, ge=0, le=1)  # of a flag that is meant

    @field_validator("kind", "flag", mode="before")
    @classmethod
    def _accept_one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("flag")
    @classmethod
    def _check_flags(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in FLAG_NAMES:
                near = get_close_matches(name, FLAG_NAMES, n=1, cutoff=0.5)
                known = f"there are {', '.join(FLAG_NAMES)}"
                offer = f'did you mean "{near[0]}"?' if near else known
                raise ValueError(f'there is no flag "{name}"; {offer}')
        return value

    @field_validator("kind", "flag")
    @classmethod
    def _check_not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("it names none; leave it out where any will do")
        return value

    @model_validator(mode="after")
    def _check_satisfiable(self) -> Conditions:
        """Refuse what no operation can meet: the rule would never do anything."""
        least, below = self.groups_at_least, self.groups_below
        if below is not None and max(least or 0, 0) >= below:
            wanted = f"{least} or more and " if least is not None else ""
            raise ValueError(f"no operation has {wanted}fewer than {below} groups behind it")
        if self.flagged is False and (self.flag or self.score_at_least is not None):
            given = "flag" if self.flag else "score_at_least"
            raise ValueError(f"`flagged: false` and `{given}` cannot both hold")
        bare = [name for name in self.flag if name in UNSCORED]
        if self.score_at_least is not None and bare:
            raise ValueError(f'flag "{bare[0]}" has no score, so it reaches no `score_at_least`')
        return self

    @field_validator("matches")
    @classmethod
    def _check_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return value

    @property
    def can_match_weights(self) -> bool:
        """Whether a weight update can be meant: what is said of wordings says nothing of it."""
        return "weights" in self.kind or self == Conditions()

    def are_met(self, operation: Operation, library: Library, index: SimilarTexts) -> bool:
        """`index` finds the texts that are as alike as `similar_at_least` says."""
        groups = len({rollout.rpartition("r")[0] for rollout in operation.evidence})
        checks = [
            not self.kind or operation.kind in self.kind,
            self.groups_at_least is None or groups >= self.groups_at_least,
            self.groups_below is None or groups < self.groups_below,
            self.words_above is None or len(operation.text.split()) > self.words_above,
            self.matches is None or re.search(self.matches, operation.text) is not None,
            self.flagged is None or operation.is_flagged is self.flagged,
            not (self.flag or self.score_at_least is not None) or self._has_flag(operation),
        ]
        if self.similar_at_least is None or not all(checks):
            return all(checks)
        index.hold({e.id: e.text for e in library.experiences})
        return index.nearest(operation.text, (operation.target,)) is not None

    def _has_flag(self, operation: Operation) -> bool:
        """Whether a flag that is meant stands there; one without a score reaches none."""
        least = self.score_at_least
        return any(
            (not self.flag or flag.name in self.flag)
            and (least is None or (flag.score is not None and flag.score >= least))
            for flag in operation.flags
        )


class Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    when: Conditions = Conditions()
    do: Literal["approve", "reject", "defer", "ask"]
    reason: str = ""

    @model_validator(mode="after")
    def _check_reason(self) -> Rule:
        if self.do == "reject" and not self.reason:
            raise ValueError("a rule that rejects needs a reason")
        return self


class _RuleFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class RuleReviewer:
    """Decides by rules, in the order of the operations."""

    rules: tuple[Rule, ...]
    name: str

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        indexes = [SimilarTexts(rule.when.similar_at_least or 1.0) for rule in self.rules]
        for operation in operations:
            weights = operation.kind == "weights"
            for number, (rule, index) in enumerate(zip(self.rules, indexes, strict=True), 1):
                if weights and not rule.when.can_match_weights:
                    continue
                if not rule.when.are_met(operation, library, index):
                    continue
                if rule.do != "ask" and not (weights and rule.do == "defer"):
                    reason = rule.reason or f"rule {number}"
                    yield Decision(operation.id, rule.do, reason=reason, reviewer=self.name)
                break


def read_rules(path: Path) -> RuleReviewer:
    """Raises ConfigError where it is missing, no YAML, or says something rules cannot say."""
    try:
        parsed = _RuleFile.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except OSError as error:
        cause = f"cannot be read ({error.strerror})."
        raise ConfigError(str(path), cause, "Name a rule file after `rules:`.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(str(path), f"is not YAML ({error}).", "Mend it.") from error
    except ValidationError as error:
        raise _explain_error(path, error) from error
    return RuleReviewer(parsed.rules, f"{RULES}{path.name}")


def _explain_error(path: Path, error: ValidationError) -> ConfigError:
    """The first thing that is wrong, with its line, in our words."""
    first = error.errors(include_url=False)[0]
    loc = first["loc"]
    place = f"{path}:{_line_number(path, loc)}"
    key = str(loc[-1]) if loc else ""
    rule = f"rule {loc[1] + 1}: " if len(loc) > 1 and isinstance(loc[1], int) else ""
    match first["type"]:
        case "extra_forbidden":
            holder = Conditions if "when" in loc else Rule if len(loc) > 2 else _RuleFile
            near = get_close_matches(key, holder.model_fields, n=1)
            known = f"There are: {', '.join(holder.model_fields)}."
            move = f"Did you mean `{near[0]}`?" if near else known
            return ConfigError(place, f"{rule}`{key}` is not known here.", move)
        case "missing":
            return ConfigError(place, f"{rule}`{key}` is missing.", _FORM)
        case "model_type" | "dict_type" | "tuple_type" | "list_type":
            what = f"`{key}`" if key else "the file"
            return ConfigError(place, f"{rule}{what} has another form.", _FORM)
    said = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    names = [str(part) for part in loc if isinstance(part, str) and part != "rules"]
    about = f"`{names[-1]}`: " if names else ""
    end = "" if said.endswith("?") else "."
    return ConfigError(place, f"{rule}{about}{said}{end}", "Mend it.")


def _line_number(path: Path, loc: Sequence[str | int]) -> int:
    """The line, from 1, of the deepest part of a place that the file holds."""
    node = yaml.compose(path.read_text("utf-8"))
    line = 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            found = next((pair for pair in node.value if pair[0].value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = next(((entry, entry) for entry in node.value[part : part + 1]), None)
        else:
            break
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line
