"""Claude Code: `~/.claude/projects/*/*.jsonl`, a session a file, and its sub-agents beside it.

Its lines are internal to it and change with its versions: what is not known is counted.
Last looked at with versions 2.1.x.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.data.sessions.steps import Intake, Session, Step, objects, text_of

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_SCAFFOLD = re.compile(r"\s*<(?:command-|local-command-|bash-|task-notification|user-memory)")
_INTERRUPTED = "[Request interrupted by user"


def read(path: Path, intake: Intake) -> Iterator[Session]:
    lines = Intake().read_lines(path)  # what is wrong with them is counted in the second reading
    first = next((line for line in lines if line.get("sessionId")), None)
    if first is None:
        return
    session = Session(str(first["sessionId"]))
    if path.name.startswith("agent-") or path.parent.name == "subagents":
        yield Session(path.stem, part_of=session.id)
        return
    session.steps = _Reading(session, intake).steps(path)
    yield session


class _Reading:
    """One file on its way: which request of the person each line belongs to."""

    def __init__(self, session: Session, intake: Intake) -> None:
        self._session, self._intake = session, intake
        self._turn_of: dict[str, int] = {}
        self._turns = 0

    def steps(self, path: Path) -> Iterator[Step]:
        for line in self._intake.read_lines(path):
            uuid, kind = str(line.get("uuid") or ""), line.get("type")
            if uuid and uuid in self._intake.seen:
                self._intake.drop("lines that another session repeats")
                continue
            self._intake.seen.add(uuid)
            if line.get("isSidechain"):
                self._link(line.get("agentId") or "sidechain")
                continue
            message = line.get("message")
            if kind in ("user", "assistant") and isinstance(message, dict):
                yield from (
                    self._user(line, message) if kind == "user" else self._said(line, message)
                )
            elif kind == "system" and line.get("subtype") == "compact_boundary":
                self._intake.drop("compactions (linked)")
            else:
                self._intake.drop_kind(kind)
            self._turn_of[uuid] = self._turns

    def _link(self, agent: object) -> None:
        if (name := str(agent)) not in self._session.subagents:
            self._session.subagents.append(name)
        self._intake.drop("lines of sub-agents (linked)")

    def _user(self, line: dict[str, Any], message: dict[str, Any]) -> Iterator[Step]:
        content = message.get("content")
        blocks = objects(content) if isinstance(content, list) else []
        for block in blocks:
            if block.get("type") == "tool_result":
                yield self._result(block, line.get("toolUseResult"))
        others = [block for block in blocks if block.get("type") != "tool_result"]
        said = content if isinstance(content, str) else text_of(others, self._intake)
        text = _REMINDER.sub("", said).strip()
        if line.get("isCompactSummary"):
            yield Step("summary", text)
        elif text.startswith(_INTERRUPTED):
            yield Step("interrupted")
        elif text and (line.get("isMeta") or _SCAFFOLD.match(text)):
            self._intake.drop("commands and notes of the program")
        elif text:
            parent = str(line.get("parentUuid") or "")
            stays = self._turn_of.get(parent, self._turns if parent else 0)
            if stays < self._turns:
                yield Step("rewound", turns=stays)
            self._turns += 1
            yield Step("user", text)

    def _result(self, block: dict[str, Any], told: Any) -> Step:
        """Whatever exits with another code than 0 is an error here."""
        failed: bool | None = bool(block.get("is_error"))
        if isinstance(told, dict):
            if told.get("agentId"):
                self._link(told["agentId"])
                self._intake.drop("lines of sub-agents (linked)", -1)
            if told.get("interrupted") or told.get("backgroundTaskId"):
                failed = None
        text = text_of(block.get("content"), self._intake)
        return Step("result", text, id=str(block.get("tool_use_id") or ""), failed=failed)

    def _said(self, line: dict[str, Any], message: dict[str, Any]) -> Iterator[Step]:
        model, content = str(message.get("model") or ""), message.get("content")
        if line.get("isApiErrorMessage") or model == "<synthetic>":
            yield Step("error", text_of(content, self._intake))
            return
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in objects(blocks):
            match block.get("type"):
                case "text":
                    yield Step("assistant", str(block.get("text") or ""), model=model)
                case "tool_use":
                    name, call = str(block.get("name") or ""), str(block.get("id") or "")
                    yield Step("call", name=name, id=call, arguments=block.get("input"))
                case other:
                    self._intake.drop_kind(other)
