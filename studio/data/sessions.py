"""One's own sessions: imported as problems with recorded tries, and marked by a person.

Nothing is written before it is redacted. The mark stands in the data file, with each item.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from engines.core.codec import digest
from engines.core.errors import ConfigError, DataError
from engines.core.types import Tell
from engines.data.dataset import MARK, ORIGIN, content_hash, is_unreviewed, outcome_word, set_mark
from engines.data.rows import open_table
from engines.data.sessions import formats, steps
from engines.data.sessions.tries import Try, read_tries
from engines.record import appender, lock
from engines.record.run_dir import Workspace
from engines.secrets.redactor import Redactor
from studio.data.catalogue import check_data_name, write_dataset
from studio.facts.data_set import Item, SessionImport
from studio.render.data_lines import clip_text, item_text
from studio.render.words import count_text
from studio.secrets import output, run_files

Row = dict[str, Any]


def import_sessions(
    workspace: Workspace,
    format: str,
    path: Path,
    name: str | None,
    *,
    dry_run: bool = False,
    anonymous: bool = False,
) -> SessionImport:
    """Read, redact and write datasets/NAME.jsonl, where nothing is reviewed yet.

    Raises DataError: there is nothing of the format, or no request with a reply. ConfigError: the
    name cannot be one, or belongs to other content.
    """
    name, intake = check_data_name(name or f"{format}-sessions"), steps.Intake()
    redact = Redactor(
        {*run_files.environment_secrets(), *output.current_mask().values}, anonymous=anonymous
    )
    tries: list[Try] = []
    inner: dict[str, list[str]] = {}  # sub-agents of each session, in order
    sessions = set[str | int]()  # of inspect samples, whose epochs are tries
    try:
        for session in formats.read_sessions(format, path, intake):
            if not session.part_of:
                sample = session.id.rpartition("/")[0]
                sessions.add(sample if format == "inspect" else len(sessions))
                tries += read_tries(session, redact, intake)
            found = [session.id] if session.part_of else session.subagents
            inner.setdefault(session.part_of or session.id, []).extend(found)
    except DataError as error:
        raise DataError(*map(redact, (error.place, error.cause, error.move))) from None
    finally:
        output.remember(redact.found)  # no message may hold one either
    final = redact.knowing_all()
    linked = {final(of): [*dict.fromkeys(map(final, found))] for of, found in inner.items()}
    rows = _make_rows(format, tries, linked, final, intake)
    if not rows:
        raise DataError(
            final(str(path)),
            "No request in it was followed by a reply.",
            "Give sessions in which an agent did something.",
        )
    intake.drop("pieces of binary content", redact.binary)
    target = workspace.datasets / f"{name}.jsonl"
    written = not dry_run and _write_new(workspace, target, rows)
    outcomes = [outcome for row in rows for outcome in row["outcomes"]]
    return SessionImport(
        name=name,
        format=format,
        path=target,
        dry_run=dry_run,
        written=written,
        problems=len(rows),
        tries=len(outcomes),
        groups=sum(len(row["outcomes"]) > 1 for row in rows),
        sessions=len(sessions),
        subagents=sum(map(len, linked.values())),
        outcomes=Counter(outcome_word(outcome["reward"]) for outcome in outcomes),
        signals=Counter(signal for outcome in outcomes for signal in outcome["signals"]),
        redacted=redact.count + final.count,
        private=redact.private + final.private,
        dropped={final(what): n for what, n in sorted(intake.dropped.items()) if n},
    )


def _make_rows(
    format: str,
    tries: Sequence[Try],
    inner: Mapping[str, list[str]],
    redact: Redactor,
    intake: steps.Intake,
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
    with lock.write_lock(workspace.datasets, timeout_s=10):
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
        raise DataError(
            f"data set {name}",
            "The workspace has no imported data set of that name; other data needs no review.",
            "See those there are: studio data.",
        )
    return target


def read_items(target: Path) -> list[Row]:
    """The items of a data set, in order; raises DataError for the first that is none."""
    return [row for _, _, row in open_table(target).good_rows()]


Change = Callable[[Row], Row | None]
"""An item as it is to be; None takes it out, into NAME.jsonl.taken-out, which is no data set."""


def change_items(workspace: Workspace, target: Path, changes: Mapping[str, Change]) -> int:
    """Change the items with these contents and write the file anew, in one step.

    The file is read again under the lock: what another process did meanwhile stays. Returns how
    many were there still.
    """
    with lock.write_lock(workspace.datasets, timeout_s=10):
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
            appender.write_atomic(kept, (kept.read_bytes() if kept.exists() else b"") + out)
        if met:
            _write(workspace, target, rows)
    return met


def apply_marks(
    workspace: Workspace, target: Path, changes: Mapping[str, Change], *, all_waiting: bool
) -> int:
    """Change items, and mark all that wait; returns how many decisions fit no item any more."""
    wanted = dict(changes)
    if all_waiting:
        wanted |= {content_hash(row): mark for row in read_items(target) if is_unreviewed(row)}
    return len(wanted) - change_items(workspace, target, wanted) if wanted else 0


def rewrite(to: Row) -> Change:
    return lambda _: to


def reply_digest(reply: Row) -> str:
    return digest(str(reply.get("response")), 8)


def pair_tries(row: Row) -> list[tuple[Row, Row]]:
    """Each try with what came of it: by what it says, or where it was changed by place."""
    replies = [steps.as_object(one) for one in row.get("rollouts") or ()]
    told = [steps.as_object(one) for one in row.get("outcomes") or ()]
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
    for _, place, row in open_table(file).good_rows():
        wanted, content = row.get(MARK), row.get("content")
        if not isinstance(content, str) or wanted not in (True, False, "out"):
            raise DataError(
                place,
                'A decision has "content" and "reviewed": true, false or "out".',
                "Begin with what studio data review NAME --json prints.",
            )
        if wanted:
            changes[content] = take_out if wanted == "out" else mark
    return changes


_ASK = "Mark as reviewed? y yes, n no: take it out, e edit, v view all, s skip, q quit: "
_HELP = """\
  y  models may see the item, as it is now
  n  take it out; it is kept beside the data, in NAME.jsonl.taken-out
  e  change it in your editor: question and tries
  v  show all of it
  s  leave it as it is
  q  stop; what is answered is kept"""


def read_item(number: int, of: int, row: Row) -> Item:
    """Return an item as models would see it."""
    tries = []
    for reply, outcome in pair_tries(row):
        change = ""
        if "outcomes" in row and outcome.get("reply") != reply_digest(reply):
            change = "kept though the try was changed" if outcome else "it was not recorded"
        tries.append({**outcome, **reply, "change": change})
    return Item(
        item=number,
        of=of,
        content=content_hash(row),
        reviewed=row.get(MARK) is True and not is_unreviewed(row),
        may_be_used=not is_unreviewed(row),
        question=str(row.get("question")),
        answer=str(row.get("answer") or ""),
        tries=tries,
    )


def read_items_of(target: Path) -> list[Item]:
    rows = read_items(target)
    return [read_item(number, len(rows), row) for number, row in enumerate(rows, start=1)]


def _count_hidden(item: Item) -> int:
    """Return how many lines are not shown in full before all of the item is asked for."""
    texts = [item.question, *(str(recorded.get("response")) for recorded in item.tries)]
    return sum(clip_text(text)[1] for text in texts)


def replay_lines(name: str, rows: Sequence[Row]) -> list[str]:
    """How to practise on imported items, and what to know of it; nothing for other data."""
    sizes = [len(pair_tries(row)) for row in rows if ORIGIN in row]
    if not sizes:
        return []
    several = sorted((n for n in sizes if n > 1), reverse=True)
    size = several[len(several) // 2] if several else 1  # more than half of those fill it
    words = f"studio headless replay data.practice={quote(name)} verifier=recorded"
    words += f" practice.group_size={size} reflector=openai:MODEL"
    return [
        words,
        "without a model as reflector the preset's scripted one shows the mechanics alone",
    ]


def review_items(
    workspace: Workspace,
    target: Path,
    ask: Callable[[str], str | None],
    say: Tell,
    edit: Callable[[str], str | None],
) -> bool:
    """Show every item that has no mark and ask; each answer is written at once.

    False: the answers ended before the items did. What was not shown is not marked at once.
    """
    rows = read_items(target)
    for number, row in enumerate(rows, start=1):
        if not is_unreviewed(row):
            continue
        item = read_item(number, len(rows), row)
        hidden, text, prompt, answer = _count_hidden(item), item_text(item), _ASK, ""
        while answer not in ("y", "n", "s", "q"):
            say(text)
            line = ask(prompt)
            if line is None:
                return False
            answer, prompt = line.strip().lower()[:1], _ASK
            if answer == "y" and hidden:
                answer, text = "", f"{count_text(hidden, 'line')} of it not shown in full yet."
                prompt, hidden = "y again marks it, v shows them: ", 0
                continue
            if answer == "v":
                hidden = 0
            elif answer == "e" and (edited := _edit(workspace, target, row, edit, say)):
                row = edited
                item = read_item(number, len(rows), row)
                hidden = _count_hidden(item)
            text = _HELP if answer == "?" else item_text(item, whole=answer == "v")
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
    say: Tell,
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
    found, redact = steps.as_object(steps.parse_json(written)), Redactor()
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
