"""Imported items, looked at and marked one by one in lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.core.ids import digest
from engines.data.review_marks import content_hash, is_unreviewed
from engines.data.sessions.redaction import Redactor
from engines.record.run_dir import Workspace
from studio.data.sessions import Change, Imported, Row, change_items, mark, read_items, take_out
from studio.report.summary import count_text
from studio.secrets.sanitize import one_line, sanitize

_SHOWN = 24
"""Lines of a text at most, until all of it is asked for."""
_PART = "#=#=# "
_EDITED = re.compile(rf"^{_PART}(question|try \d+)[^\n]*$\n?", re.MULTILINE)
_ASK = "Mark as reviewed? y yes, n no: take it out, e edit, v view all, s skip, q quit: "

Ask = Callable[[str], str | None]
Say = Callable[[str], None]


def import_text(done: Imported) -> str:
    """What an import came to, for people."""
    counted = ", ".join(f"{n} {word}" for word, n in done.outcomes.items() if n)
    what = count_text(done.problems, "problem"), count_text(done.sessions, "session")
    where = "in" if done.written else "not written:"
    lines = [
        f"{done.name}: {what[0]} from {what[1]}, {where} {done.path}",
        f"  tries     {done.tries}: {counted}; {done.groups} of the problems have several",
        f"  signals   {_counts_text(done.signals) or 'none'}",
        f"  redacted  {count_text(done.redacted, 'secret')}",
        f"  linked    {count_text(done.subagents, 'sub-agent')}",
        f"  dropped   {_counts_text(done.dropped) or 'nothing'}",
    ]
    return sanitize("\n".join(lines))


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def item_text(number: int, of: int, row: Row, whole: bool = False) -> str:
    """An item as it would be sent: its question, its tries and what came of them."""
    question, replies = str(row.get("question") or ""), row.get("rollouts") or []
    outcomes = row.get("outcomes") or [{}] * len(replies)
    lines = [
        f"item {number} of {of}, {count_text(len(replies), 'try', 'tries')}",
        _shown(question, whole),
    ]
    for at, (reply, told) in enumerate(zip(replies, outcomes, strict=False), start=1):
        reward, text = told.get("reward"), str(reply.get("response") or "")
        known = "no reward" if reward is None else f"reward {reward:g}"
        signals = ", ".join(map(str, told.get("signals") or ())) or "no signal"
        lines += [
            f"try {at}: {known}, {signals}, {one_line(str(reply.get('model')), 60)}",
            _shown(text, whole),
        ]
    sent = len(question) + sum(len(str(one.get("response") or "")) for one in replies)
    lines.append(
        f"would be sent: the question ({len(question):,} characters) to the policy, unless it is a "
        f"replay; question and tries ({sent:,} characters) to the reflector"
    )
    return "\n".join(lines)


def _shown(text: str, whole: bool) -> str:
    lines = sanitize(text).split("\n")
    if not whole and len(lines) > _SHOWN:
        half = _SHOWN // 2
        lines = [*lines[:half], f"… {len(lines) - _SHOWN} lines more (v)", *lines[-half:]]
    return "\n".join(f"    {line if whole else one_line(line, 400)}".rstrip() for line in lines)


def review_items(
    workspace: Workspace, target: Path, ask: Ask, say: Say, edit: Callable[[str], str | None]
) -> int:
    """Show every item that has no mark and ask; each answer is written at once.

    Returns how many are left without a mark.
    """
    rows = read_items(target)
    waiting = [number for number, row in enumerate(rows, start=1) if is_unreviewed(row)]
    left = len(waiting)
    for number in waiting:
        row, whole = rows[number - 1], False
        while True:
            say(item_text(number, len(rows), row, whole))
            answer = (ask(_ASK) or "q").strip().lower()[:1]
            if answer in ("q", "s"):
                break
            if answer == "e":
                row = _edit(workspace, target, row, edit, say)
            elif answer in ("y", "n"):
                change: Change = mark if answer == "y" else take_out
                if not change_items(workspace, target, {content_hash(row): change}):
                    say("It was changed meanwhile by someone else, and stays as it is there.")
                left -= 1
                break
            whole = answer == "v"
        if answer == "q":
            break
    return left


def _edit(
    workspace: Workspace, target: Path, row: Row, edit: Callable[[str], str | None], say: Say
) -> Row:
    """The item as the person rewrote it, which is in the file, still without a mark."""
    written = edit(_editable(row))
    if written is None:
        return row
    changed = _parse_edited(row, written)
    if isinstance(changed, str):
        say(changed)
        return row
    change_items(workspace, target, {content_hash(row): lambda _: changed})
    return changed


def _editable(row: Row) -> str:
    parts = [f"{_PART}question\n{row.get('question')}"]
    for at, reply in enumerate(row.get("rollouts") or [], start=1):
        parts.append(
            f"{_PART}try {at} (take it out with this line and all of its text)\n{reply['response']}"
        )
    return "\n".join(parts) + "\n"


def _parse_edited(row: Row, written: str) -> Row | str:
    """The item of an edited text, redacted anew; a text says what is wrong with it."""
    pieces, redact = _EDITED.split(written), Redactor()
    texts = {
        name: redact(text.strip()) for name, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }
    if not texts.get("question"):
        return f"The line {_PART}question and a question must stay: nothing is changed."
    replies: list[dict[str, Any]] = []
    outcomes: list[dict[str, Any]] = []
    for at, (reply, told) in enumerate(zip(row["rollouts"], row["outcomes"], strict=True), start=1):
        if text := texts.get(f"try {at}"):
            same = text == reply["response"].strip()
            text = reply["response"] if same else text
            replies.append({**reply, "response": text})
            outcomes.append({**told, "reply": digest(text, 8)})
    if not replies:
        return "No try is left: answer n to take the item out."
    return {**row, "question": texts["question"], "rollouts": replies, "outcomes": outcomes}
