"""Claude Code: `~/.claude/projects/*/*.jsonl`, a session a file, and its sub-agents beside it.

Its lines are internal to it and change with its versions: what is not known is counted.
Last looked at with versions 2.1.x.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.data.sessions.steps import Intake, Session, Step, as_object, call_step, objects

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_SCAFFOLD = re.compile(r"\s*<(?:command-|local-command-|bash-|task-notification|user-memory)")
_INTERRUPTED = "[Request interrupted by user"


def read(path: Path, intake: Intake) -> Iterator[Session]:
    lines = Intake().read_lines(path)  # what is wrong with them is counted in the second reading
    name = next((str(line["sessionId"]) for line in lines if line.get("sessionId")), "")
    if name and (path.name.startswith("agent-") or path.parent.name == "subagents"):
        yield Session(path.stem, part_of=name)
    elif name:
        session = Session(name)
        session.steps = _steps(path, session, intake)
        yield session


def _steps(path: Path, session: Session, intake: Intake) -> Iterator[Step]:
    turn_of: dict[str, int] = {}  # which request of the person each line belongs to
    turns = 0
    for line in intake.read_lines(path):
        uuid, kind, message = str(line.get("uuid") or ""), line.get("type"), line.get("message")
        agent = line.get("agentId") or as_object(line.get("toolUseResult")).get("agentId")
        if agent and str(agent) not in session.subagents:
            session.subagents.append(str(agent))
        if uuid in intake.seen:
            intake.drop("lines that another session repeats")
        elif line.get("isSidechain"):
            intake.drop("lines of sub-agents (linked)")
        elif kind == "user" and isinstance(message, dict):
            for step in _user(line, message, intake):
                if step.kind == "user":
                    parent = str(line.get("parentUuid") or "")
                    stays = turn_of.get(parent, turns if parent else 0)
                    if stays < turns:  # the person went back, and asked for something else
                        yield Step("rewound", turns=stays)
                    turns += 1
                yield step
        elif kind == "assistant" and isinstance(message, dict):
            yield from _reply(line, message, intake)
        elif line.get("subtype") == "compact_boundary":
            intake.drop("compactions (linked)")
        else:
            intake.drop_kind(kind)
        if uuid:
            intake.seen.add(uuid)
            turn_of[uuid] = turns


def _user(line: dict[str, Any], message: dict[str, Any], intake: Intake) -> Iterator[Step]:
    content, told = message.get("content"), as_object(line.get("toolUseResult"))
    others: list[Any] = [] if isinstance(content, list) else [content]
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "tool_result":
            # Whatever exits with another code than 0 is an error here.
            unknown = told.get("interrupted") or told.get("backgroundTaskId")
            failed = None if unknown else bool(block.get("is_error"))
            text, call = intake.text_of(block.get("content")), str(block.get("tool_use_id"))
            yield Step("result", text, id=call, failed=failed)
        else:
            others.append(block)
    text = _REMINDER.sub("", intake.text_of(others)).strip()
    if line.get("isCompactSummary"):
        yield Step("summary", text)
    elif text.startswith(_INTERRUPTED):
        yield Step("interrupted")
    elif text and (line.get("isMeta") or _SCAFFOLD.match(text)):
        intake.drop("commands and notes of the program")
    elif text:
        yield Step("user", text)


def _reply(line: dict[str, Any], message: dict[str, Any], intake: Intake) -> Iterator[Step]:
    model, content = str(message.get("model") or ""), message.get("content")
    if line.get("isApiErrorMessage") or model == "<synthetic>":
        yield Step("error", intake.text_of(content))
        return
    said = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in objects(said):
        match block.get("type"):
            case "text":
                yield Step("assistant", str(block.get("text")), model=model)
            case "tool_use":
                yield call_step(block.get("name"), block.get("id"), block.get("input"))
            case other:
                intake.drop_kind(other)
