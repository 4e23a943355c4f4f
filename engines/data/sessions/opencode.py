"""opencode: its database (`opencode.db`, since 1.2), and exports."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.data.sessions.steps import (
    Intake,
    Session,
    Step,
    as_object,
    call_step,
    objects,
    parse_json,
    result_step,
)

_MARKS = ("step-start", "step-finish", "snapshot", "patch", "agent")
Rows = Iterable[tuple[dict[str, Any], list[dict[str, Any]]]]
"""Messages in order, each with its parts."""


def read(path: Path, intake: Intake) -> Iterator[Session]:
    if path.suffix == ".db":
        yield from _read_database(path, intake)
        return
    found = as_object(intake.read_whole(path))
    if isinstance(found.get("messages"), list):
        told = objects(found["messages"])
        pairs = ((as_object(one.get("info")), objects(one.get("parts"))) for one in told)
        yield from _session(as_object(found.get("info")), pairs, intake)


def _read_database(path: Path, intake: Intake) -> Iterator[Session]:
    try:
        address = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as base:
            for name, parent in base.execute("SELECT id, parent_id FROM session ORDER BY id"):
                info = {"id": name, "parentID": parent}
                yield from _session(info, _rows(base, name), intake)
    except sqlite3.Error as error:
        move = "Give opencode.db of opencode 1.2 or later, or what `opencode export` writes."
        raise DataError(str(path), f"it is no such database ({error}).", move) from error


def _rows(base: sqlite3.Connection, session: str) -> Rows:
    asked = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    for name, data in base.execute(asked, (session,)):
        parts = base.execute("SELECT data FROM part WHERE message_id = ? ORDER BY id", (name,))
        found = [as_object(parse_json(part)) for (part,) in parts]
        yield as_object(parse_json(data)) | {"id": name}, found


def _session(info: dict[str, Any], rows: Rows, intake: Intake) -> Iterator[Session]:
    session = Session(str(info.get("id") or "unknown"), part_of=str(info.get("parentID") or ""))
    if session.id in intake.seen:  # in the database, and exported from it
        intake.drop("sessions that are stored twice")
        return
    intake.seen.add(session.id)
    session.steps = _steps(rows, as_object(info.get("revert")).get("messageID"), intake)
    yield session


def _steps(rows: Rows, reverted: object, intake: Intake) -> Iterator[Step]:
    turns = 0
    for message, parts in rows:
        if reverted and message.get("id") == reverted:
            yield Step("rewound", turns=turns)
            return
        asks, model = message.get("role") == "user", str(message.get("modelID") or "")
        said = []
        for part in parts:
            kind, text = part.get("type"), str(part.get("text") or "")
            if kind == "text" and asks:
                said += [] if part.get("synthetic") else [text]
            elif kind == "text":
                yield Step(
                    "summary" if message.get("summary") is True else "assistant", text, model=model
                )
            elif kind == "tool":
                yield from _tool(part)
            elif kind == "compaction":
                intake.drop("compactions (linked)")
            elif kind not in _MARKS:
                intake.drop_kind(kind)
        if text := "\n".join(said).strip():
            turns += 1
            yield Step("user", text)
        if error := as_object(message.get("error")):
            aborted = error.get("name") == "MessageAbortedError"
            told = as_object(error.get("data")).get("message") or error.get("name")
            yield Step("interrupted") if aborted else Step("error", str(told))


def _tool(part: dict[str, Any]) -> Iterator[Step]:
    state, call = as_object(part.get("state")), part.get("callID")
    yield call_step(part.get("tool"), call, state.get("input"))
    failed, code = state.get("status") == "error", as_object(state.get("metadata")).get("exit")
    text = str(state.get("error" if failed else "output") or "")
    yield result_step(text, call, code, failed or None)
