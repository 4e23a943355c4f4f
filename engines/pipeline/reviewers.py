"""Who decides: everything by itself, or a person outside this process."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engines.core.errors import ConfigError
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.protocols import Reviewer
from engines.core.text.similarity import SimilarTexts
from engines.core.types import (
    AUTO,
    BASE_MOVED,
    CONFLICT,
    DUPLICATE,
    FLAG_NAMES,
    HELD_OUT_LEAK,
    HURTS,
    REJECTED_BY_AUTO,
    RULES,
    Decision,
    Flag,
    Names,
    Operation,
    OperationKind,
)

_SURE = 0.9
"""Likeness from which a near copy says nothing of its own."""
_ID = re.compile(r"\b[A-Z]\w*\d\b")


class AutoReviewer:
    """Approves whatever fits the library and has no flag that it `rejects`.

    The gate rejects what does not fit. Two flags it leaves to a person: an experience that someone
    changed while a proposal about it was under way, since approving by itself would undo their
    edit; and a wording that repeats a held-out question, since an evaluation that is spoiled shows
    nothing of it. What only its likeness to an experience speaks against is rejected while that
    experience stands in the draft.
    """

    name = AUTO

    def __init__(self, rejects: Collection[str] = REJECTED_BY_AUTO) -> None:
        self._rejects = frozenset(rejects)

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            flags = {flag.name: flag for flag in operation.flags}
            fault = next((f for f in operation.flags if self._is_fault(f, library)), None)
            if BASE_MOVED in flags and library.get(operation.target) is not None:
                reason = f"{operation.target} was changed meanwhile"
                yield Decision(operation.id, "defer", reason=reason, reviewer=self.name)
            elif leak := flags.get(HELD_OUT_LEAK):
                yield Decision(operation.id, "defer", reason=leak.detail, reviewer=self.name)
            elif fault is not None and (operation.kind in ("add", "modify") or fault.name == HURTS):
                reason = f"{fault.name}: {fault.detail}"
                yield Decision(operation.id, "reject", reason=reason, reviewer=self.name)
            else:
                yield Decision(operation.id, "approve", reviewer=self.name)

    def _is_fault(self, flag: Flag, library: Library) -> bool:
        if flag.name not in self._rejects:
            return False
        if flag.name == DUPLICATE and flag.score is not None and flag.score < _SURE:
            return False
        return flag.name not in (DUPLICATE, CONFLICT) or any(
            library.get(word) is not None for word in _ID.findall(flag.detail)
        )


class HoldExpired(Exception):
    """Nobody decided within the time the run was told to hold."""


class HumanReviewer:
    """Waits for decisions that reach the gate from outside (socket, screen).

    It yields nothing itself: whoever decides outside wants the gate's answer to the very decision.
    """

    name = "wait"

    def __init__(self, hold_s: float | None = None) -> None:
        self._hold_s = hold_s
        self._changed = asyncio.Event()
        self.is_done: Callable[[], bool] = lambda: False  # set by the gate

    def notify(self) -> None:
        """Something was decided or undone."""
        self._changed.set()

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        """Hold until nothing is undecided; raises HoldExpired where `hold_s` passes before."""
        try:
            async with asyncio.timeout(self._hold_s):
                while not self.is_done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise HoldExpired from error
        for decision in tuple[Decision, ...]():  # what makes this an iterator
            yield decision


_NAMES = {
    "kl": "the KL divergence",
    "kl_step": "the KL divergence of the step",
    "grad_norm": "the gradient norm",
}


class MetricLimits:
    """Rejects updates that lead too far.

    `max_kl` is the most mean KL divergence from the reference, in nats a token, and the most of
    one step, which tells where the other cannot; `max_grad_norm` the most gradient norm before
    clipping. None: any finite one. Both KL figures are of what an update leads to, so one that
    was rejected leaves no trace in the next one's.
    """

    name = "bounds"

    def __init__(self, max_kl: float | None = None, max_grad_norm: float | None = None) -> None:
        self._limits = {"kl": max_kl, "kl_step": max_kl, "grad_norm": max_grad_norm}
        self.metrics_of: Callable[[Operation], Mapping[str, float]] = lambda _: {}  # the gate's

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for operation in operations:
            found = self.metrics_of(operation) if operation.kind == "weights" else {}
            if reason := self._objection(found):
                yield Decision(operation.id, "reject", reason=reason, reviewer=self.name)

    def _objection(self, found: Mapping[str, float]) -> str:
        for name, limit in self._limits.items():
            value = found.get(name)
            if value is None:
                continue
            if not math.isfinite(value):
                return f"{_NAMES[name]} ({name}) is not finite"
            if limit is not None and value > limit:
                return f"{_NAMES[name]} ({name}) is {value:.4g}, above its limit of {limit:.4g}"
        return ""


_FORM = "A rule file is `rules:` and a list of `- when: {…}`, `do: …`, `reason: …`."


class Conditions(BaseModel):
    """All that are given must hold; none given holds always."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: tuple[OperationKind, ...] = Field(default=(), min_length=1)
    groups_at_least: int | None = None  # distinct groups behind the operation
    groups_below: int | None = None
    words_above: int | None = None
    matches: str | None = None  # regular expression, searched in the text
    similar_at_least: float | None = Field(default=None, gt=0, le=1)  # to any other experience
    flagged: bool | None = None
    flag: Names = Field(default=(), min_length=1)  # any of them
    score_at_least: float | None = Field(default=None, ge=0, le=1)  # of a flag that is meant

    @field_validator("kind", "flag", mode="before")
    @classmethod
    def _accept_one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("flag")
    @classmethod
    def _check_flags(cls, value: Names) -> Names:
        for name in value:
            if name not in FLAG_NAMES:
                raise ValueError(f'there is no flag "{name}"; there are {", ".join(FLAG_NAMES)}')
        return value

    @field_validator("matches")
    @classmethod
    def _check_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return value

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
    def _check_reason(self) -> "Rule":
        if self.do == "reject" and not self.reason:
            raise ValueError("a rule that rejects needs a reason")
        return self


class _RuleFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: tuple[Rule, ...]


@frozen
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
                # What is said of wordings says nothing of an update of weights.
                meant = "weights" in rule.when.kind or rule.when == Conditions()
                if weights and not meant:
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
        raise ConfigError(
            str(path), f"cannot be read ({error.strerror}).", "Name a rule file after `rules:`."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(str(path), f"is not YAML ({error}).", "Mend it.") from error
    except ValidationError as error:
        raise _explain_error(path, error) from error
    return RuleReviewer(parsed.rules, f"{RULES}{path.name}")


def _explain_error(path: Path, error: ValidationError) -> ConfigError:
    """The first thing that is wrong, and where."""
    first = error.errors(include_url=False)[0]
    names = [f"rule {part + 1}" if isinstance(part, int) else part for part in first["loc"]]
    cause = first["msg"].removeprefix("Value error, ").rstrip(".")
    return ConfigError(f"{path}: {', '.join(names)}", f"{cause}.", _FORM)


def open_reviewers(
    spec: str, hold_s: float | None, rejects: Sequence[str] = REJECTED_BY_AUTO
) -> tuple[Reviewer, ...]:
    """`auto`, `wait`, or `rules:FILE`, where a person decides what no rule does.

    A step waits `hold_s` seconds for a person; None: without end. `rejects` are the flags that
    auto rejects.

    Raises ConfigError: another name, or the rules cannot be read.
    """
    kind, _, file = spec.partition(":")
    match kind:
        case "auto":
            return (AutoReviewer(rejects),)
        case "wait":
            return (HumanReviewer(hold_s),)
        case "rules" if file:
            return (read_rules(Path(file).expanduser()), HumanReviewer(hold_s))
    raise ConfigError(
        f"reviewer {spec!r}", "there is no such reviewer.", "Choose auto, wait or rules:FILE."
    )
