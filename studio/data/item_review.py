"""Imported items, looked at and marked one by one in lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engines.core.ids import digest
from engines.data.review_marks import MARK, content_hash, is_unreviewed
from engines.data.sessions.redaction import Redactor
from engines.data.sessions.steps import as_object, parse_json
from engines.record.run_dir import Workspace
from studio.data.sessions import Row, change_items, mark, read_items, rewrite, take_out
from studio.report.summary import count_text
from studio.secrets.sanitize import one_line, sanitize

_SHOWN = 24
"""Lines of a text at most, until all of it is asked for."""
_ASK = "Mark as reviewed? y yes, n no: take it out, e edit, v view all, s skip, q quit: "


def item_data(number: int, row: Row) -> dict[str, Any]:
    """An item for scripts: what would be sent of it, and the content that a mark is for."""
    return {
        "item": number,
        "content": content_hash(row),
        "reviewed": row.get(MARK) is True and not is_unreviewed(row),
        "question": row.get("question"),
        "tries": [{**outcome, **reply} for reply, outcome in _tries(row)],
    }


def _tries(row: Row) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What was replied, and what came of it; nothing of data that was not imported."""
    replies = row.get("rollouts") or []
    outcomes = row.get("outcomes") or [{} for _ in replies]
    return ((as_object(one), as_object(told)) for one, told in zip(replies, outcomes, strict=False))


def item_text(number: int, of: int, row: Row, whole: bool = False) -> str:
    """An item as it would be sent: its question, its tries and what came of them."""
    question, tries = str(row.get("question")), list(_tries(row))
    lines = [
        f"item {number} of {of}, {count_text(len(tries), 'try', 'tries')}",
        _shown(question, whole),
    ]
    for at, (reply, outcome) in enumerate(tries, start=1):
        reward = outcome.get("reward")
        known = "no reward" if reward is None else f"reward {reward}"
        about = [known, *(outcome.get("signals") or ["no signal"]), reply.get("model") or "?"]
        lines += [
            f"try {at}: {one_line(', '.join(map(str, about)), 200)}",
            _shown(str(reply.get("response")), whole),
        ]
    sent = len(question) + sum(len(str(reply.get("response"))) for reply, _ in tries)
    lines.append(
        f"would be sent: the question ({len(question):,} characters) to the policy, unless it is a "
        f"replay; question and tries ({sent:,} characters) to the reflector"
    )
    return "\n".join(lines)


def _shown(text: str, whole: bool) -> str:
    lines, half = sanitize(text).split("\n"), _SHOWN // 2
    if not whole and len(lines) > _SHOWN:
        lines = [*lines[:half], f"… {len(lines) - _SHOWN} lines more (v)", *lines[-half:]]
    return "\n".join(f"    {line if whole else one_line(line, 400)}".rstrip() for line in lines)


def review_items(
    workspace: Workspace,
    target: Path,
    ask: Callable[[str], str | None],
    say: Callable[[str], None],
    edit: Callable[[str], str | None],
) -> None:
    """Show every item that has no mark and ask; each answer is written at once."""
    rows = read_items(target)
    for number, row in enumerate(rows, start=1):
        whole, answer = False, "" if is_unreviewed(row) else "s"
        while answer not in ("y", "n", "s", "q"):
            say(item_text(number, len(rows), row, whole))
            answer = (ask(_ASK) or "q").strip().lower()[:1]
            whole = answer == "v"
            if answer == "e" and (written := edit(_editable(row))) is not None:
                changed = _parse_edited(row, written)
                if isinstance(changed, str):
                    say(changed)
                elif change_items(workspace, target, {content_hash(row): rewrite(changed)}):
                    row = changed
        if answer == "q":
            return
        if answer in ("y", "n") and not change_items(
            workspace, target, {content_hash(row): mark if answer == "y" else take_out}
        ):
            say("It was changed meanwhile by someone else, and stays as it is there.")


def _editable(row: Row) -> str:
    """Question and tries as JSON, line by line; a try that is taken out there is gone."""
    tries = [str(reply.get("response")).split("\n") for reply, _ in _tries(row)]
    shown = {"question": str(row.get("question")).split("\n"), "tries": tries}
    return json.dumps(shown, ensure_ascii=False, indent=1) + "\n"


def _parse_edited(row: Row, written: str) -> Row | str:
    """The item of an edited text, redacted anew; a text says what is wrong with it."""
    found, redact = as_object(parse_json(written)), Redactor()
    given, tries = found.get("question"), found.get("tries")
    known = list(_tries(row))
    if not isinstance(given, list) or not isinstance(tries, list) or len(tries) != len(known):
        return "It must stay JSON with question and as many tries, [] for one that goes: as before."
    question = redact("\n".join(map(str, given))).strip()
    replies, outcomes = [], []
    for lines, (reply, outcome) in zip(tries, known, strict=True):
        if lines and isinstance(lines, list):
            text = redact("\n".join(map(str, lines)))
            replies.append({**reply, "response": text})
            outcomes.append({**outcome, "reply": digest(text, 8)})
    if not question or not replies:
        return "No question or no try is left: answer n to take the item out."
    return {**row, "question": question, "rollouts": replies, "outcomes": outcomes}
