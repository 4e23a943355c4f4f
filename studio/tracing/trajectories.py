"""Rollouts of a run as documents of ATIF, the trajectories of Harbor and others.

Their reader is `engines.data.sessions.formats`. A step is a message; the results of a tool stand
with the step that calls it. What a member of a team says is a step of the agent, its name in
`extra`. Source: Harbor RFC 0001, version 1.7.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import JsonObject, fields_of
from engines.core.errors import ConflictError
from engines.core.state.run_state import RolloutHistory
from engines.core.types import Message, ToolCall, Usage
from engines.policies.chat.exchange import function_tools
from engines.record import appender, ledger, yaml_text
from engines.record.derived.run_state import read_history
from engines.record.run_dir import RunDir
from engines.secrets.mask import Mask

VERSION = "ATIF-v1.7"


def export_trajectories(run: RunDir, folder: Path, mask: Mask, rollout: str | None = None) -> int:
    """Write `ID.json` of every rollout of a run, or of one, into a folder; returns how many.

    Raises ConflictError: there is no such rollout, or the folder is not empty. DamagedError.
    """
    rollouts = {each.id: each for each in read_history(run.journal).rollouts}
    if rollout is not None and rollout not in rollouts:
        raise ConflictError(
            f"run {run.run}, rollout {rollout}",
            "it has no such rollout.",
            f"See them: studio runs show {run.run}.",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(str(folder), "it is not an empty folder.", "Choose another one.")
    folder.mkdir(parents=True, exist_ok=True)
    described = (
        yaml_text.load_yaml(run.run_file.read_text("utf-8")) if run.run_file.is_file() else {}
    )
    name = str((described.get("agent") or {}).get("name") or "agent")
    agent = {"name": name, "version": f"practice-studio {version('practice-studio')}"}
    chosen = rollouts if rollout is None else [rollout]
    for id in chosen:
        refs = rollouts[id].finished.refs
        records = (ledger.read_record(run.records, ref) for ref in refs)
        document = make_trajectory(run.run, rollouts[id], agent, records)
        body = orjson.dumps(mask.tree(document), option=orjson.OPT_INDENT_2)
        appender.write_atomic(folder / f"{id}.json", body + b"\n")
    return len(chosen)


def make_trajectory(
    run: str, rollout: RolloutHistory, agent: Mapping[str, str], records: Iterable[ledger.Record]
) -> JsonObject:
    """Return the document as JSON values; `agent` has a name and a version."""
    steps = _Steps()
    for record in records:
        steps.take(record)
    finished, verdict = rollout.finished, rollout.verdict
    usage = finished.usage
    facts = fields_of(finished, "step", "position", "index", "status", "seed", "error")
    if verdict is not None:
        facts |= {"critique": verdict.critique, "verdict_error": verdict.error}
        facts["metrics"] = dict(verdict.metrics)
    return _leave_out_none(
        schema_version=VERSION,
        session_id=run,
        trajectory_id=f"{run}/{rollout.id}",
        agent=_leave_out_none(
            **agent,
            model_name=steps.model or None,
            tool_definitions=function_tools(steps.tools),
        ),
        steps=steps.done,
        final_metrics=_leave_out_none(
            total_prompt_tokens=usage.prompt_tokens,
            total_completion_tokens=usage.completion_tokens,
            total_cost_usd=usage.cost_usd,
            total_steps=len(steps.done),
            extra=_leave_out_none(reward=rollout.reward, elapsed_s=finished.elapsed_s),
        ),
        extra=_leave_out_none(**facts),
    )


class _Steps:
    """The steps of a try, put together record by record."""

    def __init__(self) -> None:
        self.done: list[JsonObject] = []
        self.model = ""
        self.tools: tuple[Mapping[str, Any], ...] = ()

    def take(self, record: ledger.Record) -> None:
        reply = record.reply
        if record.is_tool_result:
            extra = {"status": reply.finish, "elapsed_s": record.elapsed_s}
            if reply.usage.calls:  # of models that the tool asked
                extra["metrics"] = _metrics(reply.usage)
            self._add_result(reply.tool_calls[0].id, reply.text, extra)
            return
        self.model = self.model or record.policy
        self.tools = self.tools or record.sampling.tools
        for message in record.messages:
            self._add_message(message)
        self._add(
            "agent",
            reply.text,
            timestamp=datetime.fromtimestamp(record.at, UTC).isoformat(),
            model_name=record.policy,
            reasoning_content=reply.reasoning or None,
            tool_calls=[_call(call) for call in reply.tool_calls] or None,
            metrics=_leave_out_none(
                **_metrics(reply.usage),
                prompt_token_ids=list(reply.prompt_ids) or None,
                completion_token_ids=list(reply.token_ids) or None,
                logprobs=list(reply.logprobs) or None,
            ),
            llm_call_count=1,
            extra=_leave_out_none(finish_reason=reply.finish, speaker=reply.speaker or None),
        )

    def _add_message(self, message: Message) -> None:
        """One that was there before the reply: of the problem, of a talk, or said again."""
        if message.role == "tool":
            self._add_result(message.tool_call_id, message.content, {})
        elif message.role == "assistant":
            calls = [_call(call) for call in message.tool_calls] or None
            self._add("agent", message.content, tool_calls=calls, is_copied_context=True)
        else:
            self._add(message.role, message.content)

    def _add_result(self, call: str, text: str, extra: JsonObject) -> None:
        result = _leave_out_none(content=text, extra=extra or None)
        for step in reversed(self.done):
            if any(made["tool_call_id"] == call for made in step.get("tool_calls", ())):
                results = step.setdefault("observation", {"results": []})["results"]
                if all(before["source_call_id"] != call for before in results):
                    results.append({"source_call_id": call, **result})
                return
        self._add("system", "", observation={"results": [result]})

    def _add(self, source: str, message: str, **more: object) -> None:
        number = len(self.done) + 1
        self.done.append(_leave_out_none(step_id=number, source=source, message=message, **more))


def _call(call: ToolCall) -> JsonObject:
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments}
    return {
        "tool_call_id": call.id,
        "function_name": call.name,
        "arguments": {"text": call.arguments},
        "extra": {"unread": True},  # the model wrote something that is no JSON object
    }


def _metrics(usage: Usage) -> JsonObject:
    return _leave_out_none(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cost_usd=usage.cost_usd,
    )


def _leave_out_none(**fields: Any) -> JsonObject:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
