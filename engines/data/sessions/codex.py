"""Codex CLI: `~/.codex/sessions/**/rollout-*.jsonl`, a session a file.

Two logs run through one file: what the model is given (`response_item`) and what the screen shows
(`event_msg`). The first is read, and of the second what only it holds.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.data.sessions.steps import Intake, Session, Step, as_object, call_step, result_step

_SCAFFOLD = re.compile(r"\s*(?:<[a-z_]+[ >]|# AGENTS\.md instructions)")
_SHOWN_TWICE = (
    *("agent_message", "agent_reasoning", "token_count", "exec_command_begin"),
    *("task_started", "task_complete", "turn_started", "turn_complete"),
)
_ENVELOPES = ("response_item", "event_msg", "turn_context", "compacted")


def read(path: Path, intake: Intake) -> Iterator[Session]:
    lines = intake.read_lines(path)
    head = next(lines, {})
    meta = as_object(head.get("payload", head))
    if head.get("type", "session_meta") == "session_meta" and meta.get("id"):
        inner = as_object(meta.get("source")).get("subagent")
        parent = meta.get("parent_thread_id") or re.findall(
            r"parent_thread_id': '([^']+)", str(inner)
        )
        if inner or parent:
            name = parent[0] if isinstance(parent, list) and parent else parent or "unknown"
            yield Session(str(meta["id"]), part_of=str(name))
        else:
            yield Session(str(meta["id"]), _steps(lines, intake))


def _steps(lines: Iterator[dict[str, Any]], intake: Intake) -> Iterator[Step]:
    model, asked, turns = "", "", 0  # the request that nothing has followed yet
    exits: dict[str, Any] = {}
    for line in lines:
        # Before there were envelopes, what is in them stood alone.
        kind = line.get("type") if line.get("type") in _ENVELOPES else "response_item"
        item = as_object(line.get("payload")) if "payload" in line else line
        of = item.get("type") if kind in _ENVELOPES[:2] else kind
        call = str(item.get("call_id") or item.get("id"))
        if of == "user_message" or (of == "message" and item.get("role") == "user"):
            text = intake.text_of(item.get("message", item.get("content")))
            if _SCAFFOLD.match(text):
                intake.drop("commands and notes of the program")
            elif text.strip() and text != asked:  # it stands in both logs
                asked, turns = text, turns + 1
                yield Step("user", text)
        elif of == "message" and item.get("role") == "assistant":
            asked = ""
            yield Step("assistant", intake.text_of(item.get("content")), model=model)
        elif of in ("function_call", "custom_tool_call", "local_shell_call", "web_search_call"):
            asked = ""
            given = item.get("arguments", item.get("input", item.get("action")))
            yield call_step(item.get("name") or of, call, given)
        elif of in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            told = as_object(output)
            text = intake.text_of(told.get("output", told.get("content", output)))
            code = as_object(told.get("metadata")).get("exit_code", exits.get(call))
            yield result_step(text, call, code, True if told.get("success") is False else None)
        elif of == "exec_command_end":
            exits[call] = item.get("exit_code", 0)
        elif of == "turn_context":
            model = str(item.get("model") or model)
        elif of == "compacted":
            intake.drop("compactions (linked)")
            yield Step("summary", str(item.get("message") or ""))
        elif of == "turn_aborted" and item.get("reason", "interrupted") == "interrupted":
            yield Step("interrupted")
        elif of == "thread_rolled_back":
            taken = item.get("num_turns")
            turns = max(0, turns - (taken if isinstance(taken, int) else 1))
            yield Step("rewound", turns=turns)
        elif of in ("error", "stream_error"):
            yield Step("error", str(item.get("message") or ""))
        elif of not in _SHOWN_TWICE:
            intake.drop_kind(of)
