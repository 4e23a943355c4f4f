"""One's own sessions: imported as problems with recorded tries, and marked by a person.

Nothing is written before it is redacted. The mark stands in the data file, with each item.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError, DataError
from engines.core.ids import digest
from engines.data.checks import MARK, content_hash, outcome_word, set_mark
from engines.data.rows import open_table
from engines.data.sessions.reading import read_sessions
from engines.data.sessions.steps import Intake, as_object
from engines.data.sessions.tries import Try, read_tries
from engines.record.appender import write_atomic
from engines.record.lock import write_lock
from engines.record.run_dir import Workspace
from engines.secrets.redactor import Redactor
from studio.data.catalogue import check_data_name, find_data, write_dataset
from studio.render.words import count_text
from studio.secrets.output import current_mask, remember
from studio.secrets.run_files import environment_secrets
from studio.secrets.sanitize import sanitize

Row = dict[str, Any]
_MANY = re.compile(r'(?<![\w"-])(?:(step|text|request|piece|line|file|sample)s|(tr|entr)ies)\b')


def import_sessions(
    workspace: Workspace,
    format: str,
    path: Path,
    name: str | None,
    *,
    dry_run: bool = False,
    anonymous: bool = False,
) -> dict[str, Any]:
    """Read, redact and write datasets/NAME.jsonl, where nothing is reviewed yet.

    Returns what it came to; `written` is False for a dry run, or where all of it is there already.

    Raises DataError: there is nothing of the format, or no request with a reply. ConfigError: the
    name cannot be one, or belongs to other content.
    """
    name, intake = check_data_name(name or f"{format}-sessions"), Intake()
    redact = Redactor({*environment_secrets(), *current_mask().values}, anonymous=anonymous)
    tries: list[Try] = []
    inner: dict[str, list[str]] = {}  # sub-agents of each session, in order
    sessions = set[str | int]()  # of inspect samples, whose epochs are tries
    try:
        for session in read_sessions(format, path, intake):
            if not session.part_of:
                sample = session.id.rpartition("/")[0]
                sessions.add(sample if format == "inspect" else len(sessions))
                tries += read_tries(session, redact, intake)
            found = [session.id] if session.part_of else session.subagents
            inner.setdefault(session.part_of or session.id, []).extend(found)
    except DataError as error:
        raise DataError(*map(redact, (error.place, error.cause, error.move))) from None
    finally:
        remember(redact.found)  # no message may hold one either
    final = redact.knowing_all()
    linked = {final(of): [*dict.fromkeys(map(final, found))] for of, found in inner.items()}
    rows = _make_rows(format, tries, linked, final, intake)
    if not rows:
        cause = "No request in it was followed by a reply."
        raise DataError(final(str(path)), cause, "Give sessions in which an agent did something.")
    intake.drop("pieces of binary content", redact.binary)
    target = workspace.datasets / f"{name}.jsonl"
    written = not dry_run and _write_new(workspace, target, rows)
    outcomes = [one for row in rows for one in row["outcomes"]]
    return {
        "name": name,
        "format": format,
        "path": str(target),
        "written": written,
        "problems": len(rows),
        "tries": len(outcomes),
        "groups": sum(len(row["outcomes"]) > 1 for row in rows),
        "sessions": len(sessions),
        "subagents": sum(map(len, linked.values())),
        "outcomes": dict(Counter(outcome_word(one["reward"]) for one in outcomes)),
        "signals": dict(Counter(signal for one in outcomes for signal in one["signals"])),
        "redacted": redact.count + final.count,
        "private": redact.private + final.private,
        "dropped": {final(what): n for what, n in sorted(intake.dropped.items()) if n},
    }


def import_text(done: Mapping[str, Any], *, dry_run: bool = False) -> str:
    def counts(name: str, none: str) -> str:
        return ", ".join(_count(n, what) for what, n in done[name].items()) or none

    unit = "sample" if done["format"] == "inspect" else "session"
    many, of = count_text(done["problems"], "problem"), count_text(done["sessions"], unit)
    several = count_text(done["groups"], "problem with several", "problems with several")
    homes = "home folder or address", "home folders or addresses"
    private = f", {count_text(done['private'], *homes)}" if done["private"] else ""
    where = "in" if done["written"] else "not written:" if dry_run else "nothing changed, all in"
    return sanitize(
        f"{done['name']}: {many} from {of}, {where} {done['path']}\n"
        f"  tries     {counts('outcomes', '')}; {several}\n"
        f"  signals   {counts('signals', 'none')}\n"
        f"  redacted  {count_text(done['redacted'], 'secret')}{private}\n"
        f"  linked    {count_text(done['subagents'], 'sub-agent')}\n"
        f"  dropped   {counts('dropped', 'nothing')}"
    )


def _count(n: int, what: str) -> str:
    """What was met, named for many of it."""
    return f"{n:,} {_MANY.sub(lambda m: m[1] or f'{m[2]}y', what, 1) if n == 1 else what}"


def _make_rows(
    format: str,
    tries: Sequence[Try],
    inner: Mapping[str, list[str]],
    redact: Redactor,
    intake: Intake,
) -> list[Row]:
    """A row a request, with all tries at it; sessions that hold the same one make a group."""
    rows: dict[str, Row] = {}
    for one in tries:
        question, text, session = redact(one.request).strip(), redact(one.text), redact(one.session)
        row: Row = {"question": question}
        row |= {"answer": redact(one.answer)} if one.answer else {}
        row |= {"source": format, "rollouts": [], "outcomes": []}
        row["imported"] = {"format": format, "sessions": [], "subagents": []}
        row, reply = rows.setdefault(question, row), digest(text, 8)
        if not question or any(known["reply"] == reply for known in row["outcomes"]):
            intake.drop("repeated tries")
            continue
        row["rollouts"].append({"model": redact(one.model), "response": text})
        signals = [redact(signal) for signal in one.signals]
        told = {"reward": one.reward, "signals": signals, "reply": reply, "session": session}
        row["outcomes"].append(told)
        if session not in row["imported"]["sessions"]:
            row["imported"]["sessions"].append(session)
            row["imported"]["subagents"] += inner.get(session, [])
    return [set_mark(row, False) for row in rows.values() if row["rollouts"]]


def _write_new(workspace: Workspace, target: Path, rows: list[Row]) -> bool:
    """Write a new data set; False where the same items are there, marked or not."""
    with write_lock(workspace.datasets, timeout_s=10):
        if target.exists():
            if [set_mark(row, False) for row in read_items(target)] == rows:
                return False
            cause = f"{target} exists with other items."
            move = f"Choose another one with --name NAME, such as {target.stem}-2; or move that "
            move += "file away first, with the marks in it."
            raise ConfigError(f"data set {target.stem}", cause, move)
        _write(workspace, target, rows)
    return True


def _write(workspace: Workspace, target: Path, rows: Sequence[Row]) -> None:
    write_dataset(workspace, target, b"".join(map(_to_line, rows)), len(rows))


def _to_line(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def find_items(workspace: Workspace, name: str) -> Path:
    """The file of a data set of the workspace, whose items can be marked."""
    target = workspace.datasets / f"{check_data_name(name)}.jsonl"
    if not target.is_file():
        try:
            found = find_data(name, workspace)
        except DataError:
            cause, move = "The workspace has no data set of that name.", "See studio data."
        else:
            cause = f"It is {found}, which was not imported: such data needs no review."
            move = "Review what studio data import wrote as JSONL here; see studio data."
        raise DataError(f"data set {name}", cause, move)
    return target


def read_items(target: Path) -> list[Row]:
    """The items of a data set, in order; raises DataError for the first that is none."""
    rows = []
    for _, _, row in open_table(target).rows:
        if isinstance(row, DataError):
            raise row
        rows.append(row)
    return rows


Change = Callable[[Row], Row | None]
"""An item as it is to be; None takes it out, into NAME.jsonl.taken-out, which is no data set."""


def change_items(workspace: Workspace, target: Path, changes: Mapping[str, Change]) -> int:
    """Change the items with these contents and write the file anew, in one step.

    The file is read again under the lock: what another process did meanwhile stays. Returns how
    many were there still.
    """
    with write_lock(workspace.datasets, timeout_s=10):
        rows, out, met = [], b"", 0
        for row in read_items(target):
            change = changes.get(content_hash(row))
            met += change is not None
            if (changed := change(row) if change else row) is not None:
                rows.append(changed)
            else:
                out += _to_line(row)
        if out:  # first: whoever is stopped between has it twice, and not never
            kept = target.with_name(f"{target.name}.taken-out")
            write_atomic(kept, (kept.read_bytes() if kept.exists() else b"") + out)
        if met:
            _write(workspace, target, rows)
    return met


def rewrite(to: Row) -> Change:
    return lambda _: to


def reply_digest(reply: Row) -> str:
    return digest(str(reply.get("response")), 8)


def pair_tries(row: Row) -> list[tuple[Row, Row]]:
    """Each try with what came of it: by what it says, or where it was changed by place."""
    replies = [as_object(one) for one in row.get("rollouts") or ()]
    told = [as_object(one) for one in row.get("outcomes") or ()]
    said, by_reply = [*map(reply_digest, replies)], {one.get("reply"): one for one in told}
    pairs = []
    for at, reply in enumerate(replies):
        there = told[at] if len(told) == len(replies) else {}
        if there.get("reply") != said[at] and (said[at] in by_reply or there.get("reply") in said):
            there = by_reply.get(said[at], {})
        pairs.append((reply, there))
    return pairs


def mark(row: Row) -> Row:
    """Marked as it is shown: what came of a try stays with it also where its words were changed."""
    if "outcomes" in row:
        pairs = pair_tries(row)
        row = {**row, "outcomes": [{**told, "reply": reply_digest(reply)} for reply, told in pairs]}
    return set_mark(row, True)


def take_out(row: Row) -> None:
    """The person does not want it."""


def read_marks(file: Path) -> dict[str, Change]:
    """Decisions of a script: the output of `--json` with `reviewed` set to true, or "out"."""
    changes: dict[str, Change] = {}
    for _, place, row in open_table(file).rows:
        if isinstance(row, DataError):
            raise row
        wanted, content = row.get(MARK), row.get("content")
        if not isinstance(content, str) or wanted not in (True, False, "out"):
            cause = 'A decision has "content" and "reviewed": true, false or "out".'
            raise DataError(place, cause, "Begin with what studio data review NAME --json prints.")
        if wanted:
            changes[content] = take_out if wanted == "out" else mark
    return changes
