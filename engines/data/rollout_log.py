"""Logs of rollouts, ours and other systems', as replies to each question.

Logged rewards and answers are not looked at: verdicts are made anew. Where a log is read as
problems, rows that are replies to one question become that question; whether a file is a log needs
a look at all its rows, since a column `output` or `response` alone is an ordinary one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.core.types import Completion, Problem, Usage
from engines.data.checks import Numbered, is_unreviewed, unreviewed_error
from engines.data.fields import LISTED_REPLIES, SINGLE_REPLIES, USUAL, FieldNames, parse_question
from engines.data.rows import open_table
from engines.data.source import PRACTISED, resolve_data

RolloutLog = Mapping[str, tuple[Completion, ...]]
"""Question → what was replied to it, in the order of the log."""


def read_rollout_log(path: Path) -> RolloutLog:
    """Read a log in any format a data set may have; the path may end in `:SPLIT`.

    A row holds a question, under the names that data sets use, and a list `rollouts`,
    `responses` or `completions` (texts, chat messages, or objects with `response` and
    perhaps `model`) or one reply of its own. Rows with the same question add up.

    Raises:
        DataError: the log cannot be read, or a row of it is not of that form.

    Source: evaluation samples of Youtu-Agent (raw_question, response); the completions
        table of TRL's GRPO trainer (prompt, completion).
    """
    try:
        source = resolve_data(path.name, (path.parent,), PRACTISED)
    except DataError as error:
        if not error.cause.startswith("It is not found. "):
            raise
        cause = "The rollout log cannot be read: there is no such file."
        move = "Correct the path after replay:, which is looked up beside the run file."
        raise DataError(str(path), cause, move) from error
    log: dict[str, list[Completion]] = {}
    table = open_table(source)
    for number, place, row in table.rows:
        if isinstance(row, DataError):
            raise row
        if is_unreviewed(row):
            raise unreviewed_error(str(source.path), source.name, [number], table.unit)
        try:
            _, question = parse_question(place, row, USUAL)
        except DataError as error:
            move = 'Call the field with the text that was asked "question".'
            raise DataError(place, error.cause, move) from error
        log.setdefault(question, []).extend(_parse_replies(place, row))
    if not log:
        raise DataError(str(path), "The rollout log is empty.", "Give a log that holds rollouts.")
    return {question: tuple(replies) for question, replies in log.items()}


def _parse_replies(place: str, row: Mapping[str, Any]) -> list[Completion]:
    model = row.get("model")
    for name in LISTED_REPLIES:
        if (listed := row.get(name)) is not None:
            if not isinstance(listed, list) or not listed:
                move = "Add the logged replies, or take the row out."
                raise DataError(place, f'"{name}" is no list with something in it.', move)
            return [_parse_reply(place, name, one, model) for one in listed]
    return [_parse_reply(place, "the row", row, model)]


def _parse_reply(place: str, where: str, logged: Any, model: Any) -> Completion:
    """One reply: a text, chat messages, or an object that holds either."""
    value = logged
    if isinstance(logged, dict):
        name = next((n for n in SINGLE_REPLIES if logged.get(n) is not None), None)
        if name is None:
            raise DataError(
                place,
                f"{where} has no reply; it would be called {', '.join(SINGLE_REPLIES[:3])}, … "
                f"but the fields are: {', '.join(logged) or 'none'}.",
                "Add what the model said, or take the row out.",
            )
        where, value, model = f'"{name}"', logged[name], logged.get("model") or model
    text = _reply_text(value)
    if text is None:
        cause = f"{where} holds neither a text nor chat messages with a turn of the assistant."
        raise DataError(place, cause, "Write the reply as a text, or take the row out.")
    return Completion(text, usage=Usage(calls=1), model=str(model or ""))


def _reply_text(value: Any) -> str | None:
    """A text, or that of the assistant's last turn; None where there is neither."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    turns = [m for m in value if isinstance(m, dict) and m.get("role") == "assistant"]
    content = turns[-1].get("content") if turns else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None


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


LogCounts = tuple[int, int]
"""Rows that are replies, and to how many questions; zeros where the file is no log."""


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
    if not groups:
        return tuple(found), (0, 0)
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
    return problems, (len(with_reply), len(groups)) if is_log else (0, 0)


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
