"""Logs of rollouts, ours and other systems', as replies to each question.

Logged rewards and answers are not looked at: verdicts are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.core.types import Completion, Usage
from engines.data.fields import LISTED_REPLIES, SINGLE_REPLIES, USUAL, parse_question
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
    for _, place, row in open_table(source).rows:
        if isinstance(row, DataError):
            raise row
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
