"""Talks as problems: chat rows of OpenAI or ShareGPT, rewritten with a question and a history.

The last message of the assistant is the answer, that of the user before it the question, and what
came before both the `history`. Rows with calls of tools are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engines.core.errors import DataError
from engines.data.rows import open_table
from engines.data.source import DataSource

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "assistant"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "function_call", "observation", "tool_call"), "tool"),
}
_TURNS = ("messages", "conversations")
_SHAPES = 'Write {"messages": [{"role": …, "content": …}]}, or "conversations" of from and value.'


def read_talks(source: DataSource, left_out: list[int]) -> Iterator[dict[str, Any]]:
    """The rows as problems; the numbers of those with calls of tools join `left_out`.

    Raises DataError: a row holds no talk, or one in which nothing is asked.
    """
    for number, place, row in open_table(source).rows:
        if isinstance(row, DataError):
            raise row
        turns = next((row[name] for name in _TURNS if isinstance(row.get(name), list)), None)
        if turns is None:
            cause = f"The row holds no talk; its fields are: {', '.join(row)}."
            raise DataError(place, cause, _SHAPES)
        talk = [_parse_turn(place, turn) for turn in turns]
        if None in talk:
            left_out.append(number)
            continue
        if isinstance(row.get("system"), str) and row["system"].strip():
            talk.insert(0, ("system", row["system"]))
        answer = talk.pop() if talk and talk[-1] and talk[-1][0] == "assistant" else None
        if not (talk and talk[-1] and talk[-1][0] == "user"):
            cause = "The talk does not end with a question, or a question and its answer."
            raise DataError(place, cause, "Mend it, or take the row out.")
        *history, (_, question) = (turn for turn in talk if turn)
        kept = {key: value for key, value in row.items() if key not in (*_TURNS, "system", "tools")}
        kept |= {"question": question, "answer": answer[1] if answer else None}
        yield {**kept, "history": [{"role": role, "content": text} for role, text in history]}


def _parse_turn(place: str, turn: Any) -> tuple[str, str] | None:
    """Role and text of a turn; None where it belongs to the call of a tool."""
    if not isinstance(turn, dict):
        raise DataError(place, "The talk holds what is no turn.", _SHAPES)
    named = turn.get("role") or turn.get("from")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role == "tool" or turn.get("tool_calls") or turn.get("function_call"):
        return None
    text = turn.get("content", turn.get("value"))
    if isinstance(text, list):
        parts = [part.get("text") for part in text if isinstance(part, dict)]
        whole = len(parts) == len(text) and all(isinstance(part, str) for part in parts)
        text = "\n".join(map(str, parts)) if whole else None
    if role is None or not isinstance(text, str):
        cause = f"A turn of {str(named)[:40]!r} has no known role or no text."
        raise DataError(place, cause, _SHAPES)
    return role, text
