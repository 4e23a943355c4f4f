"""Sessions of coding agents, written as each of their programs writes them, field by field."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIME = "2026-08-10T12:00:05.123Z"
MODEL = "model-x"


@dataclass(frozen=True)
class Act:
    """What happens in a session: somebody says something, or a tool is called."""

    kind: str  # user, say, act, interrupt
    text: str = ""
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    code: int | None = None


def user(text: str) -> Act:
    return Act("user", text)


def say(text: str) -> Act:
    return Act("say", text)


def act(name: str, arguments: dict[str, Any], result: str, code: int | None = 0) -> Act:
    return Act("act", result, name, arguments, code)


def interrupt() -> Act:
    return Act("interrupt")


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def claude_line(
    kind: str, uuid: str, parent: str | None, session: str, **fields: Any
) -> dict[str, Any]:
    return {
        "parentUuid": parent,
        "isSidechain": False,
        "userType": "external",
        "cwd": "/home/ann/app",
        "sessionId": session,
        "version": "2.1.230",
        "gitBranch": "main",
        "type": kind,
        "uuid": uuid,
        "timestamp": TIME,
        **fields,
    }


def claude_lines(session: str, acts: Iterable[Act]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    def add(kind: str, content: Any, **fields: Any) -> None:
        message: dict[str, Any] = {"role": kind, "content": content}
        if kind == "assistant":
            message |= {"id": "msg_1", "type": "message", "model": MODEL, "stop_reason": None}
            message["usage"] = {"input_tokens": 3, "output_tokens": 4}
        uuid, parent = f"{session}-{len(lines)}", lines[-1]["uuid"] if lines else None
        lines.append(claude_line(kind, uuid, parent, session, message=message, **fields))

    for number, one in enumerate(acts):
        if one.kind == "user":
            add("user", one.text)
        elif one.kind == "say":
            add("assistant", [{"type": "text", "text": one.text}])
        elif one.kind == "interrupt":
            add("user", [{"type": "text", "text": "[Request interrupted by user]"}])
        else:
            call = f"toolu_{number}"
            use = {"type": "tool_use", "id": call, "name": one.name, "input": one.arguments}
            add("assistant", [use])
            result = {"tool_use_id": call, "type": "tool_result", "content": one.text}
            told: Any = {"stdout": one.text, "stderr": "", "interrupted": False, "isImage": False}
            if one.code:
                result |= {"content": f"Exit code {one.code}\n{one.text}", "is_error": True}
                told = f"Error: Exit code {one.code}\n{one.text}"
            add("user", [result], toolUseResult=told)
    return lines


def write_claude(folder: Path, session: str, acts: Iterable[Act]) -> Path:
    head = {"type": "summary", "summary": "A title", "leafUuid": "0"}
    snapshot = {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}
    lines = [head, snapshot, *claude_lines(session, acts)]
    return write_lines(folder / "-home-ann-app" / f"{session}.jsonl", lines)


def codex_line(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": TIME, "type": kind, "payload": payload}


def codex_lines(session: str, acts: Iterable[Act]) -> list[dict[str, Any]]:
    meta = {"id": session, "timestamp": TIME, "cwd": "/home/ann/app", "originator": "codex_cli_rs"}
    meta |= {
        "cli_version": "0.98.0",
        "instructions": None,
        "source": "cli",
        "model_provider": "openai",
    }
    lines = [codex_line("session_meta", meta)]

    def item(**payload: Any) -> None:
        lines.append(codex_line("response_item", payload))

    context = "<environment_context>\n  <cwd>/home/ann/app</cwd>\n</environment_context>"
    item(type="message", role="user", content=[{"type": "input_text", "text": context}])
    lines.append(codex_line("turn_context", {"cwd": "/home/ann/app", "model": MODEL}))
    for number, one in enumerate(acts):
        if one.kind == "user":
            item(type="message", role="user", content=[{"type": "input_text", "text": one.text}])
            shown = {"type": "user_message", "message": one.text, "images": []}
            lines.append(codex_line("event_msg", shown))
        elif one.kind == "say":
            lines.append(codex_line("event_msg", {"type": "agent_message", "message": one.text}))
            said = [{"type": "output_text", "text": one.text}]
            item(type="message", role="assistant", content=said)
        elif one.kind == "interrupt":
            lines.append(codex_line("event_msg", {"type": "turn_aborted", "reason": "interrupted"}))
        else:
            call, given = f"call_{number}", json.dumps(one.arguments)
            item(type="function_call", name=one.name, arguments=given, call_id=call)
            output = f"Exit code: {one.code}\nWall time: 0.1 seconds\nOutput:\n{one.text}"
            item(type="function_call_output", call_id=call, output=output)
            usage = {"type": "token_count", "info": {"last_token_usage": {"input_tokens": 3}}}
            lines.append(codex_line("event_msg", usage))
    return lines


def write_codex(folder: Path, session: str, acts: Iterable[Act]) -> Path:
    path = folder / "2026" / "08" / "10" / f"rollout-2026-08-10T12-00-05-{session}.jsonl"
    return write_lines(path, codex_lines(session, acts))


def opencode_messages(session: str, acts: Iterable[Act]) -> list[dict[str, Any]]:
    """Messages as `opencode export` has them: info and parts."""
    found: list[dict[str, Any]] = []

    def message(role: str, *parts: dict[str, Any], **info: Any) -> None:
        name = f"msg_{len(found):06}"
        about = {"sessionID": session, "messageID": name}
        info = {"id": name, "sessionID": session, "role": role, "time": {"created": 1}, **info}
        if role == "assistant":
            info |= {"modelID": MODEL, "providerID": "p", "cost": 0, "tokens": {"input": 3}}
        numbered = [{"id": f"prt_{at:03}", **about, **part} for at, part in enumerate(parts)]
        found.append({"info": info, "parts": numbered})

    for number, one in enumerate(acts):
        if one.kind == "user":
            message("user", {"type": "text", "text": one.text})
        elif one.kind == "say":
            steps = {"type": "step-start"}, {"type": "text", "text": one.text}
            message("assistant", *steps, {"type": "step-finish", "reason": "stop"})
        elif one.kind == "interrupt":
            error = {"name": "MessageAbortedError", "data": {"message": "aborted"}}
            message("assistant", error=error)
        else:
            state = {"status": "completed", "input": one.arguments, "output": one.text}
            state |= {"title": "t", "metadata": {"exit": one.code}, "time": {"start": 1, "end": 2}}
            tool = {"type": "tool", "callID": f"c{number}", "tool": one.name, "state": state}
            message("assistant", tool)
    return found


def write_opencode_export(folder: Path, session: str, acts: Iterable[Act]) -> Path:
    info = {"id": f"ses_{session}", "title": "t", "directory": "/home/ann/app", "version": "1.2.0"}
    messages = opencode_messages(info["id"], acts)
    return write_json(folder / f"ses_{session}.json", {"info": info, "messages": messages})


def write_opencode_database(folder: Path, session: str, acts: Iterable[Act]) -> Path:
    name = f"ses_{session}"
    base = sqlite3.connect(folder / "opencode.db")
    base.executescript(
        "CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, slug TEXT,"
        " directory TEXT, title TEXT, version TEXT, time_created INTEGER, time_updated INTEGER);"
        "CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,"
        " time_updated INTEGER, data TEXT);"
        "CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT,"
        " time_created INTEGER, time_updated INTEGER, data TEXT);"
        "CREATE INDEX part_message ON part (message_id);"
    )
    row = (name, "global", None, "s", "/home/ann/app", "t", "1.2.0", 1, 1)
    base.execute("INSERT INTO session VALUES (?,?,?,?,?,?,?,?,?)", row)
    for at, one in enumerate(opencode_messages(name, acts)):
        message = one["info"].pop("id")
        del one["info"]["sessionID"]
        values = (message, name, at, at, json.dumps(one["info"]))
        base.execute("INSERT INTO message VALUES (?,?,?,?,?)", values)
        for part in one["parts"]:
            part_id = f"{message}-{part.pop('id')}"
            del part["sessionID"], part["messageID"]
            values = (part_id, message, name, at, at, json.dumps(part))
            base.execute("INSERT INTO part VALUES (?,?,?,?,?,?)", values)
    base.commit()
    base.close()
    return folder / "opencode.db"


def write_atif(folder: Path, session: str, acts: Iterable[Act], **fields: Any) -> Path:
    steps: list[dict[str, Any]] = []
    for number, one in enumerate(acts):
        step: dict[str, Any] = {"step_id": number + 1, "timestamp": TIME, "source": "agent"}
        if one.kind == "user":
            step |= {"source": "user", "message": one.text}
        elif one.kind == "say":
            step |= {"message": one.text, "model_name": MODEL, "metrics": {"prompt_tokens": 3}}
        else:
            call = {"tool_call_id": f"c{number}", "function_name": one.name}
            result = {
                "source_call_id": f"c{number}",
                "content": f"{one.text}\n[exit code: {one.code}]",
            }
            step |= {"message": "", "tool_calls": [call | {"arguments": one.arguments}]}
            step["observation"] = {"results": [result]}
        steps.append(step)
    agent = {"name": "a", "version": "1", "model_name": MODEL}
    whole = {"schema_version": "ATIF-v1.7", "session_id": session, "agent": agent, "steps": steps}
    return write_json(folder / "trial" / "agent" / "trajectory.json", {**whole, **fields})


def chat_messages(acts: Iterable[Act]) -> list[dict[str, Any]]:
    """In the form of chat APIs, as inspect keeps them."""
    found: list[dict[str, Any]] = [{"id": "0", "role": "system", "content": "Be brief."}]
    for number, one in enumerate(acts):
        if one.kind == "user":
            found.append({"role": "user", "content": one.text})
        elif one.kind == "say":
            found.append({"role": "assistant", "content": one.text, "model": MODEL})
        else:
            call = {"id": f"c{number}", "function": one.name, "arguments": one.arguments}
            found.append({"role": "assistant", "content": "", "tool_calls": [call]})
            text = f"{one.text}\nexit code: {one.code}"
            found.append({"role": "tool", "content": text, "tool_call_id": f"c{number}"})
    return found


def inspect_sample(acts: list[Act], epoch: int = 1, **fields: Any) -> dict[str, Any]:
    sample = {"id": 1, "epoch": epoch, "input": acts[0].text, "target": "done"}
    return {**sample, "messages": chat_messages(acts), "scores": {}, "attachments": {}, **fields}


def inspect_head(task: str) -> dict[str, Any]:
    return {"version": 2, "status": "success", "eval": {"task": task, "model": f"p/{MODEL}"}}


def write_inspect_json(folder: Path, session: str, acts: list[Act]) -> Path:
    log = {**inspect_head(session), "samples": [inspect_sample(acts)]}
    return write_json(folder / "log.json", log)


def write_inspect_eval(folder: Path, session: str, acts: list[Act]) -> Path:
    path = folder / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(inspect_head(session)))
        archive.writestr("summaries.json", "[]")
        archive.writestr("samples/1_epoch_1.json", json.dumps(inspect_sample(acts)))
    return path


def otlp(spans: list[dict[str, Any]]) -> dict[str, Any]:
    scope = {"scope": {"name": "s"}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def otel_span(number: int, attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    def value(given: Any) -> dict[str, Any]:
        return {"intValue": str(given)} if isinstance(given, int) else {"stringValue": given}

    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": f"{number:016x}",
        "name": f"chat {MODEL}",
        "kind": 3,
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + number),
        "endTimeUnixNano": str(1_700_000_000_000_000_001 + number),
        "attributes": [{"key": key, "value": value(one)} for key, one in attributes.items()],
        "status": {},
        **fields,
    }


def genai_messages(acts: Iterable[Act]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, one in enumerate(acts):
        if one.kind in ("user", "say"):
            role = "user" if one.kind == "user" else "assistant"
            found.append({"role": role, "parts": [{"type": "text", "content": one.text}]})
        else:
            call = {"type": "tool_call", "id": f"c{number}", "name": one.name}
            found.append({"role": "assistant", "parts": [call | {"arguments": one.arguments}]})
            reply = {"type": "tool_call_response", "id": f"c{number}"}
            text = f"{one.text}\nexit code: {one.code}"
            found.append({"role": "tool", "parts": [reply | {"response": text}]})
    return found


def write_otel(folder: Path, session: str, acts: Iterable[Act]) -> Path:
    """A span a reply, each with the conversation so far; of long ones only the last does."""
    messages = genai_messages(acts)
    ends = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
    spans = []
    for at in ends if len(messages) < 100 else ends[-1:]:
        told = {"gen_ai.operation.name": "chat", "gen_ai.request.model": MODEL}
        told |= {"gen_ai.conversation.id": session, "gen_ai.usage.input_tokens": 3}
        told["gen_ai.input.messages"] = json.dumps(messages[:at])
        told["gen_ai.output.messages"] = json.dumps([{**messages[at], "finish_reason": "stop"}])
        spans.append(otel_span(at, told))
    return write_json(folder / "spans.json", otlp(spans))


def write_openinference(folder: Path, session: str, acts: Iterable[Act]) -> Path:
    *before, last = chat_messages(acts)
    told = {"openinference.span.kind": "LLM", "llm.model_name": MODEL, "session.id": session}
    for side, messages in (("llm.input_messages", before), ("llm.output_messages", [last])):
        for at, message in enumerate(messages):
            name = f"{side}.{at}.message"
            told[f"{name}.role"] = message["role"]
            if message["content"]:
                told[f"{name}.content"] = message["content"]
            if "tool_call_id" in message:
                told[f"{name}.tool_call_id"] = message["tool_call_id"]
            for n, call in enumerate(message.get("tool_calls", ())):
                of = f"{name}.tool_calls.{n}.tool_call"
                told[f"{of}.id"], told[f"{of}.function.name"] = call["id"], call["function"]
                told[f"{of}.function.arguments"] = json.dumps(call["arguments"])
    return write_lines(folder / "spans.jsonl", [otlp([otel_span(1, told)])])


Write = Callable[[Path, str, list[Act]], Path]
WRITERS: dict[str, tuple[str, Write]] = {
    "claude": ("claude", write_claude),
    "codex": ("codex", write_codex),
    "opencode database": ("opencode", write_opencode_database),
    "opencode export": ("opencode", write_opencode_export),
    "atif": ("atif", write_atif),
    "inspect json": ("inspect", write_inspect_json),
    "inspect eval": ("inspect", write_inspect_eval),
    "otel": ("otel", write_otel),
    "openinference": ("otel", write_openinference),
}
