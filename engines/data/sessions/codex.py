"""Codex CLI: `~/.codex/sessions/**/rollout-*.jsonl`, a session a file.

Two logs run through one file: what the model is given (`response_item`) and what the screen shows
(`event_msg`). The first is read, and of the second what only it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.data.sessions.steps import (
    Intake,
    Session,
    Step,
    as_object,
    exit_failed,
    parse_json,
    text_of,
)

_SCAFFOLD = re.compile(r"\s*(?:<[a-z_]+[ >]|# AGENTS\.md instructions)")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning", "local_shell_call")
_SHOWN_TWICE = ("agent_message", "token_count", "task_started", "task_complete", "turn_started")
_SHOWN_TWICE += ("turn_complete", "agent_reasoning", "exec_command_begin")


def read(path: Path, intake: Intake) -> Iterator[Session]:
    lines = intake.read_lines(path)
    head = next(lines, {})
    meta = head["payload"] if isinstance(head.get("payload"), dict) else head
    if head.get("type", "session_meta") != "session_meta" or not meta.get("id"):
        return
    source = as_object(meta.get("source")).get("subagent")
    parent = meta.get("parent_thread_id") or _find(source, "parent_thread_id")
    if parent or source:
        yield Session(str(meta["id"]), part_of=str(parent or "unknown"))
    else:
        yield Session(str(meta["id"]), _Reading(intake).steps(lines))


def _find(tree: Any, key: str) -> Any:
    if not isinstance(tree, dict):
        return None
    return tree.get(key) or next(filter(None, (_find(one, key) for one in tree.values())), None)


class _Reading:
    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._model, self._asked = "", ""  # the request that nothing has followed yet
        self._turns = 0
        self._exits: dict[str, bool] = {}

    def steps(self, lines: Iterator[dict[str, Any]]) -> Iterator[Step]:
        for line in lines:
            kind = line.get("type")
            found = line.get("payload", line if kind in _ITEMS else None)
            payload: dict[str, Any] = found if isinstance(found, dict) else {}
            match kind:
                case "response_item":
                    yield from self._item(payload)
                case "event_msg":
                    yield from self._event(payload)
                case "turn_context":
                    self._model = str(payload.get("model") or self._model)
                case "compacted":
                    self._intake.drop("compactions (linked)")
                    yield Step("summary", str(payload.get("message") or ""))
                case _ if kind in _ITEMS:  # before there were envelopes
                    yield from self._item(payload)
                case _:
                    self._intake.drop_kind(kind)

    def _item(self, item: dict[str, Any]) -> Iterator[Step]:
        call = str(item.get("call_id") or item.get("id") or "")
        match item.get("type"):
            case "message":
                text = text_of(item.get("content"), self._intake)
                if item.get("role") == "user":
                    yield from self._person(text)
                elif item.get("role") == "assistant" and text:
                    self._asked = ""
                    yield Step("assistant", text, model=self._model)
            case (
                "function_call"
                | "custom_tool_call"
                | "local_shell_call"
                | "web_search_call" as kind
            ):
                self._asked = ""
                given = item.get("arguments", item.get("input", item.get("action")))
                arguments = parse_json(given) if isinstance(given, str) else None
                name = str(item.get("name") or kind.removesuffix("_call"))
                yield Step(
                    "call", name=name, id=call, arguments=given if arguments is None else arguments
                )
            case "function_call_output" | "custom_tool_call_output":
                yield self._result(call, item.get("output"))
            case other:
                self._intake.drop_kind(other)

    def _event(self, event: dict[str, Any]) -> Iterator[Step]:
        match event.get("type"):
            case "user_message":
                yield from self._person(str(event.get("message") or ""))
            case "exec_command_end" if isinstance(event.get("exit_code"), int):
                self._exits[str(event.get("call_id"))] = event["exit_code"] != 0
            case "turn_aborted" if event.get("reason", "interrupted") == "interrupted":
                yield Step("interrupted")
            case "thread_rolled_back":
                taken = event.get("num_turns")
                self._turns = max(0, self._turns - (taken if isinstance(taken, int) else 1))
                yield Step("rewound", turns=self._turns)
            case "error" | "stream_error":
                yield Step("error", str(event.get("message") or ""))
            case other if other not in _SHOWN_TWICE:
                self._intake.drop_kind(other)

    def _person(self, text: str) -> Iterator[Step]:
        """A request, which stands in both logs."""
        if not text.strip() or text == self._asked:
            return
        if _SCAFFOLD.match(text):
            self._intake.drop("commands and notes of the program")
            return
        self._asked = text
        self._turns += 1
        yield Step("user", text)

    def _result(self, call: str, output: Any) -> Step:
        told = as_object(output)
        meta = as_object(told.get("metadata"))
        code = meta.get("exit_code")
        text = text_of(told.get("output", told.get("content", output)), self._intake)
        failed = code != 0 if isinstance(code, int) else self._exits.get(call, exit_failed(text))
        if told.get("success") is False:
            failed = True
        return Step("result", text, id=call, failed=failed)
