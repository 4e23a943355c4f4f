"""Why practice learned little, with counts and what to change: one table of rules. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engines.core.types import GroupOutcome

_LIMIT = "practice.read_without_contrast"
_OFF = f"{_LIMIT}=0 leaves groups without a good try unread: set it above 0"
_SILENT = (
    "where no try is good nothing says why: give a verifier with a critique, data with answers, "
    "easier problems, or more tries (practice.group_size)"
)
_EASY = "where all tries are right there is nothing to learn: give harder problems"
_NO_OPINION = "the verifier had no opinion on any try of a group: look at it"


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause of little gain: told where at least one, and `share` of all, show it.

    `count` and `of` are names of `engines.core.state.symptoms`; in texts `{limit}` is that of
    tokens.
    """

    count: str
    of: str
    text: str
    fix: str
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Cause:
    """What a rule found in an epoch."""

    name: str
    n: int
    of: int
    text: str
    fix: str

    @property
    def line(self) -> str:
        return f"{self.n} of {self.of} {self.text}: {self.fix}"


RULES = (
    Rule("timeouts at limit", "timeouts", "timeouts hit the limit of {limit} in every reply",
         "raise policy.max_tokens"),
    Rule("timeouts", "rollouts", "tries ended by the time limit",
         "raise practice.task_timeout_s, or lower practice.concurrency"),
    Rule("cut", "rollouts", "tries were cut at the limit of {limit}", "raise policy.max_tokens"),
    Rule("out of turns", "rollouts", "tries had no turn left for an answer",
         "raise agent.max_turns"),
    Rule("no answer", "judged", "judged tries state no answer that the verifier finds",
         r"have agent.instructions ask for a last line such as `#### 42`, `\boxed{{42}}` or "
         "`Answer: 42`"),
    Rule("unparsable", "rollouts", "verdicts could not be read",
         "give a judge that keeps to the form, or mend the grader"),
    Rule("failed_calls", "tool_calls", "tool calls failed",
         "`studio runs show RUN --rollout ID` shows what they said", 0.1),
    Rule("all-right", "groups", "groups all right, without a signal", _EASY, 0.5),
    Rule("all-wrong", "groups", "groups all wrong, without a signal", "{silent}", 0.5),
    Rule("unjudged", "groups", "groups unjudged", _NO_OPINION),
    Rule("refused", "operations", "operations refused by the lint",
         "`studio runs show RUN --step N` says why; lint and review.rejects set the bounds"),
    Rule("rejected", "operations", "operations rejected, so nothing was learned",
         "their reasons are for the reflector: it reads them; or change learning_objective", 1.0),
    Rule("kept", "operations", "operations keep what is there, so nothing was learned",
         "the library says what these problems teach: give harder or other ones, or end", 1.0),
    Rule("unused", "credits", "readings of an experience show no use of it",
         "reword what is ignored or misleads, or delete it", 1.0),
)  # fmt: skip


def find_causes(symptoms: Mapping[str, int], settings: Mapping[str, Any]) -> list[Cause]:
    """What the rules find in the summed symptoms of an epoch, practised with these settings."""
    limit = settings.get("policy.max_tokens")
    words = {
        "limit": f"{limit} tokens" if limit else "the endpoint's own",
        "silent": _unread_text(settings),
    }
    return [
        Cause(rule.count, n, of, rule.text.format(**words), rule.fix.format(**words))
        for rule in RULES
        if (n := symptoms.get(rule.count, 0)) and n >= rule.share * (of := symptoms[rule.of])
    ]


def _unread_text(settings: Mapping[str, Any]) -> str:
    return _OFF if settings.get(_LIMIT) == 0 else _SILENT


def nothing_read_text(groups: Mapping[GroupOutcome, int], settings: Mapping[str, Any]) -> str:
    """Why no group was read for lessons, and what to change; "" where one was.

    `groups` are those of a step or a run, `settings` those that it was practised with.
    """
    n = sum(groups.values())
    if not n or groups.get("used") or groups.get("critique"):
        return ""
    said = ", ".join(
        f"{m} of {n} groups {name.replace('-', ' ')}" for name, m in groups.items() if m
    )
    moves: Iterable[tuple[GroupOutcome, str]] = (
        ("all-wrong", _unread_text(settings)),
        ("all-equal", _unread_text(settings)),
        ("all-right", _EASY),
        ("unjudged", _NO_OPINION),
        ("failed", "what failed stands under what was lost"),
    )
    why = dict.fromkeys(move for name, move in moves if groups.get(name))
    return f"nothing was read: {said}; {'; '.join(why)}"
