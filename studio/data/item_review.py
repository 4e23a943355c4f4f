"""Imported items, looked at and marked one by one in lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from engines.data.checks import MARK, ORIGIN, content_hash, is_unreviewed
from engines.data.sessions.steps import as_object, parse_json
from engines.record.run_dir import Workspace
from engines.secrets.redactor import Redactor
from studio.data.sessions import (
    Row,
    change_items,
    mark,
    pair_tries,
    read_items,
    reply_digest,
    rewrite,
    take_out,
)
from studio.render.words import count_text
from studio.secrets.sanitize import one_line, sanitize

_SHOWN = 24
"""Lines of a text at most, until all of it is asked for."""
_LONGEST = 400
"""Characters of a line, likewise."""
_ASK = "Mark as reviewed? y yes, n no: take it out, e edit, v view all, s skip, q quit: "
_HELP = """\
  y  models may see the item, as it is now
  n  take it out; it is kept beside the data, in NAME.jsonl.taken-out
  e  change it in your editor: question and tries
  v  show all of it
  s  leave it as it is
  q  stop; what is answered is kept"""


def item_data(number: int, row: Row) -> dict[str, Any]:
    """An item for scripts: what would be sent of it, and the content that a mark is for."""
    return {
        "item": number,
        "content": content_hash(row),
        "reviewed": row.get(MARK) is True and not is_unreviewed(row),
        "question": row.get("question"),
        "tries": [{**outcome, **reply} for reply, outcome in pair_tries(row)],
    }


def item_text(number: int, of: int, row: Row, whole: bool = False) -> str:
    """An item as it would be sent: its question, its tries and what came of them."""
    question, tries = str(row.get("question")), pair_tries(row)
    lines = [
        f"item {number} of {of}, {count_text(len(tries), 'try', 'tries')}",
        _shown(question, whole),
        *([f"answer: {one_line(str(row['answer']), 200)}"] if row.get("answer") else []),
    ]
    for at, (reply, outcome) in enumerate(tries, start=1):
        reward = outcome.get("reward")
        about = ["no reward" if reward is None else f"reward {reward}"]
        about += [*(outcome.get("signals") or ["no signal"]), reply.get("model") or "model unknown"]
        if "outcomes" in row and outcome.get("reply") != reply_digest(reply):
            about.insert(1, "kept though the try was changed" if outcome else "it was not recorded")
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
    return "\n".join(
        f"    {line if whole else one_line(line, _LONGEST)}".rstrip() for line in lines
    )


def _count_unseen(row: Row) -> int:
    """Lines of an item that are not shown, or not to their end, before all of it is asked for."""
    n = 0
    for text in (row.get("question"), *(reply.get("response") for reply, _ in pair_tries(row))):
        lines, half = sanitize(str(text)).split("\n"), _SHOWN // 2
        cut = len(lines) > _SHOWN
        shown = [*lines[:half], *lines[-half:]] if cut else lines
        n += len(lines) - len(shown) + sum(len(line) > _LONGEST for line in shown)
    return n


def replay_text(name: str, rows: Sequence[Row]) -> list[str]:
    """How to practise on imported items, and what to know of it; nothing for other data."""
    sizes = [len(pair_tries(row)) for row in rows if ORIGIN in row]
    if not sizes:
        return []
    several = sorted((n for n in sizes if n > 1), reverse=True)
    size = several[len(several) // 2] if several else 1  # more than half of those fill it
    words = f"studio headless replay data.practice={quote(name)} verifier=recorded"
    words += f" practice.group_size={size} reflector=openai:MODEL"
    notes = ["without a model as reflector the preset's scripted one shows the mechanics alone"]
    if over := sum(max(0, n - size) for n in sizes):
        notes.append(f"{count_text(over, 'try', 'tries')} left out by practice.group_size={size}")
    if lone := sizes.count(1):
        notes.append(f"{count_text(lone, 'item')} with one try: it has no contrast to learn from")
    return [words, *notes]


def review_items(
    workspace: Workspace,
    target: Path,
    ask: Callable[[str], str | None],
    say: Callable[[str], None],
    edit: Callable[[str], str | None],
) -> bool:
    """Show every item that has no mark and ask; each answer is written at once.

    False: the answers ended before the items did. What was not shown is not marked at once.
    """
    rows = read_items(target)
    for number, row in enumerate(rows, start=1):
        answer, unseen = "" if is_unreviewed(row) else "s", _count_unseen(row)
        shown, prompt = item_text(number, len(rows), row), _ASK
        while answer not in ("y", "n", "s", "q"):
            say(shown)
            if (given := ask(prompt)) is None:
                return False
            answer, prompt = given.strip().lower()[:1], _ASK
            if answer == "y" and unseen:
                answer, shown = "", f"{count_text(unseen, 'line')} of it not shown in full yet."
                prompt, unseen = "y again marks it, v shows them: ", 0
                continue
            if answer == "v":
                unseen = 0
            elif answer == "e" and (edited := _edit(workspace, target, row, edit, say)):
                row, unseen = edited, _count_unseen(edited)
            shown = _HELP if answer == "?" else item_text(number, len(rows), row, answer == "v")
        if answer == "q":
            return True
        if answer in ("y", "n") and not change_items(
            workspace, target, {content_hash(row): mark if answer == "y" else take_out}
        ):
            say("It was changed meanwhile by someone else, and stays as it is there.")
    return True


def _edit(
    workspace: Workspace,
    target: Path,
    row: Row,
    edit: Callable[[str], str | None],
    say: Callable[[str], None],
) -> Row | None:
    """The item as it was edited and written; None where it stays as it is, which is said."""
    written = edit(_editable(row))
    changed = row if written is None else _parse_edited(row, written)
    if isinstance(changed, str):
        say(changed)
    elif changed == row:
        say("Nothing was changed.")
    elif change_items(workspace, target, {content_hash(row): rewrite(changed)}):
        return changed
    return None


def _editable(row: Row) -> str:
    """Question and tries as JSON, line by line; a try that is taken out there is gone."""
    tries = [str(reply.get("response")).split("\n") for reply, _ in pair_tries(row)]
    shown = {"question": str(row.get("question")).split("\n"), "tries": tries}
    return json.dumps(shown, ensure_ascii=False, indent=1) + "\n"


def _parse_edited(row: Row, written: str) -> Row | str:
    """The item of an edited text, redacted anew; a text says what is wrong with it."""
    found, redact = as_object(parse_json(written)), Redactor()
    given, tries = found.get("question"), found.get("tries")
    known = pair_tries(row)
    if not isinstance(given, list) or not isinstance(tries, list) or len(tries) != len(known):
        return "It must stay JSON with question and as many tries, [] for one that goes: as before."
    question = redact("\n".join(map(str, given))).strip()
    replies, outcomes = [], []
    for lines, (reply, outcome) in zip(tries, known, strict=True):
        if lines and isinstance(lines, list):
            text = redact("\n".join(map(str, lines)))
            replies.append({**reply, "response": text})
            outcomes.append({**outcome, "reply": reply_digest(replies[-1])})
    if not question or not replies:
        return "No question or no try is left: answer n to take the item out."
    return {**row, "question": question, "rollouts": replies, "outcomes": outcomes}
