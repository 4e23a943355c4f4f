"""Logs read as problems: rows that are replies to one question become that question.

Whether a file is a log at all needs a look at all its rows: a column `output` or `response` alone
is an ordinary column. The replies themselves are `rollout_log`'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engines.core.types import Problem
from engines.data.checks import Numbered
from engines.data.fields import LISTED_REPLIES, FieldNames

_TOLD = ("model", "reward")
"""What a log says of nearly every reply, in one word for all systems."""
OF_A_REPLY = frozenset(
    (
        *_TOLD,
        *("rewards", "score", "advantage", "correct", "judgement", "judged_response"),
        *("extracted_final_answer", "reasoning", "confidence", "critique", "error", "finish"),
        *("id", "idx", "index", "rank", "position", "rollout", "rollout_id", "rollout_index"),
        *("sample", "sample_id", "sample_index", "attempt", "turn", "step", "epoch", "seed"),
        *("usage", "tokens", "elapsed_s", "time_cost", "timestamp", "created_at", "updated_at"),
        *("trace_id", "trace_url", "trajectory", "trajectories", "version", "stage"),
    )
)
"""Fields in which two replies to one question may differ beside the replies."""


@dataclass(frozen=True, slots=True)
class LogCounts:
    """Rows that are replies, and to how many questions; zeros where the file is no log."""

    rows: int = 0
    questions: int = 0


def drop_replies(
    found: Sequence[Numbered], names: FieldNames
) -> tuple[tuple[Numbered, ...], LogCounts]:
    """Each question of a log once, without what belongs to its replies.

    Rows are replies to one question where question, answer, source and all fields but
    those of a reply are equal and the replies are not. A file is a log where at least half
    of its rows with a reply are such rows; one question that a data set repeats by
    mistake stays a repeat, which `check_rows` tells, and costs the others no column.

    Returns:
        The problems, in order, and what was merged. Lists of replies (`rollouts`, …) are
        never facts of a problem; other fields leave only where the file is a log.
    """
    groups: dict[str, list[int]] = {}
    for at, (_, problem) in enumerate(found):
        if not names.replies.isdisjoint(problem.meta):
            groups.setdefault(_question_key(problem, names), []).append(at)
    with_reply = {at for group in groups.values() for at in group}
    apart: set[str] = set()  # fields in which replies to one question differ
    logged = 0
    for group in groups.values():
        differing = _differing_fields([found[at][1] for at in group])
        if not names.replies.isdisjoint(differing):
            logged += len(group)
            apart |= differing
    is_log = logged * 2 >= len(with_reply) and logged > 0
    dropped = {*names.replies, *_TOLD, *apart} if is_log else set()
    repeats = {at for group in groups.values() for at in group[1:]} if is_log else set()
    problems = tuple(
        (number, _strip_fields(problem, dropped) if at in with_reply else problem)
        for at, (number, problem) in enumerate(found)
        if at not in repeats
    )
    return problems, LogCounts(len(with_reply), len(groups)) if is_log else LogCounts()


def _question_key(problem: Problem, names: FieldNames) -> str:
    """Equal where two rows are the same but for what may be a reply's."""
    reply = names.replies | OF_A_REPLY
    rest = {key: value for key, value in problem.meta.items() if key not in reply}
    # The standard library's JSON, which also takes whole numbers of any size.
    return json.dumps([problem.id, problem.source, rest], sort_keys=True)


def _differing_fields(problems: Sequence[Problem]) -> set[str]:
    first, *others = (problem.meta for problem in problems)
    return {
        name
        for other in others
        for name in (*first, *other)
        if name not in first or name not in other or first[name] != other[name]
    }


def _strip_fields(problem: Problem, dropped: set[str]) -> Problem:
    listed = {name for name in LISTED_REPLIES if isinstance(problem.meta.get(name), list)}
    meta = {k: v for k, v in problem.meta.items() if k not in dropped and k not in listed}
    return replace(problem, meta=meta)
