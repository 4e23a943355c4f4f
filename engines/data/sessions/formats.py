"""Sessions of agents, in the formats of coding agents, Harbor, inspect and OpenTelemetry.

Claude Code keeps `~/.claude/projects/*/*.jsonl`, a session a file, and its sub-agents beside it
(last looked at with 2.1.x); Codex `~/.codex/sessions/**/rollout-*.jsonl`, where two logs run
through one file, of which the one that the model is given is read, and of the screen's what only it
holds; opencode a database (`opencode.db`, since 1.2) and exports; ATIF (1.0 to 1.7) a JSON file
each, with the reward of a trial beside it; inspect samples with their scores, in `.eval` files (a
zip of JSON) or JSON logs; OpenTelemetry spans of models in OTLP JSON, one export a file or a line.
Their lines change with their versions: what is not known is counted.

Sources: Harbor RFC 0001; EvalSample of inspect_ai/log/_log.py (0.3), whose entries are compressed
    by Zstandard today, which zipfile knows from Python 3.14 on.
"""

import json
import re
import sqlite3
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.core.codec import JsonObject
from engines.core.errors import DataError
from engines.core.frozen import frozen
from engines.data.rows import import_zstd
from engines.data.sessions.steps import (
    LONGEST_FILE,
    Intake,
    Reader,
    Session,
    Step,
    as_object,
    call_step,
    chat_steps,
    objects,
    parse_json,
    result_step,
)

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_CLAUDE_NOTE = re.compile(r"\s*<(?:command-|local-command-|bash-|task-notification|user-memory)")
_INTERRUPTED = "[Request interrupted by user"


def read_claude(path: Path, intake: Intake) -> Iterator[Session]:
    lines = Intake().read_lines(path)  # what is wrong with them is counted in the second reading
    name = next((str(line["sessionId"]) for line in lines if line.get("sessionId")), "")
    if name and (path.name.startswith("agent-") or path.parent.name == "subagents"):
        yield Session(path.stem, part_of=name)
    elif name:
        session = Session(name)
        session.steps = _claude_steps(path, session, intake)
        yield session


def _claude_steps(path: Path, session: Session, intake: Intake) -> Iterator[Step]:
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
            for step in _claude_user(line, message, intake):
                if step.kind == "user":
                    parent = str(line.get("parentUuid") or "")
                    stays = turn_of.get(parent, turns if parent else 0)
                    if stays < turns:  # the person went back, and asked for something else
                        yield Step("rewound", turns=stays)
                    turns += 1
                yield step
        elif kind == "assistant" and isinstance(message, dict):
            yield from _claude_reply(line, message, intake)
        elif line.get("subtype") == "compact_boundary":
            intake.drop("compactions (linked)")
        else:
            intake.drop_kind(kind)
        if uuid:
            intake.seen.add(uuid)
            turn_of[uuid] = turns


def _claude_user(line: JsonObject, message: JsonObject, intake: Intake) -> Iterator[Step]:
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
    elif text and (line.get("isMeta") or _CLAUDE_NOTE.match(text)):
        intake.drop("commands and notes of the program")
    elif text:
        yield Step("user", text)


def _claude_reply(line: JsonObject, message: JsonObject, intake: Intake) -> Iterator[Step]:
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


_CODEX_NOTE = re.compile(r"\s*(?:<[a-z_]+[ >]|# AGENTS\.md instructions)")
_SHOWN_TWICE = (
    *("agent_message", "agent_reasoning", "token_count", "exec_command_begin"),
    *("task_started", "task_complete", "turn_started", "turn_complete"),
)
_ENVELOPES = ("response_item", "event_msg", "turn_context", "compacted")


def read_codex(path: Path, intake: Intake) -> Iterator[Session]:
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
            yield Session(str(meta["id"]), _codex_steps(lines, intake))


def _codex_steps(lines: Iterator[JsonObject], intake: Intake) -> Iterator[Step]:
    model, asked, turns = "", "", 0  # the request that nothing has followed yet
    exits: JsonObject = {}
    for line in lines:
        # Before there were envelopes, what is in them stood alone.
        kind = line.get("type") if line.get("type") in _ENVELOPES else "response_item"
        item = as_object(line.get("payload")) if "payload" in line else line
        of = item.get("type") if kind in _ENVELOPES[:2] else kind
        call = str(item.get("call_id") or item.get("id"))
        if of == "user_message" or (of == "message" and item.get("role") == "user"):
            text = intake.text_of(item.get("message", item.get("content")))
            if _CODEX_NOTE.match(text):
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


_MARKS = ("step-start", "step-finish", "snapshot", "patch", "agent")
Rows = Iterable[tuple[JsonObject, list[JsonObject]]]
"""Messages in order, each with its parts."""


def read_opencode(path: Path, intake: Intake) -> Iterator[Session]:
    if path.suffix == ".db":
        yield from _read_database(path, intake)
        return
    found = as_object(intake.read_whole(path))
    if isinstance(found.get("messages"), list):
        told = objects(found["messages"])
        pairs = ((as_object(one.get("info")), objects(one.get("parts"))) for one in told)
        yield from _opencode_session(as_object(found.get("info")), pairs, intake)


def _read_database(path: Path, intake: Intake) -> Iterator[Session]:
    try:
        address = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as base:
            for name, parent in base.execute("SELECT id, parent_id FROM session ORDER BY id"):
                info = {"id": name, "parentID": parent}
                yield from _opencode_session(info, _opencode_rows(base, name), intake)
    except sqlite3.Error as error:
        raise DataError(
            str(path),
            f"it is no such database ({error}).",
            "Give opencode.db of opencode 1.2 or later, or what `opencode export` writes.",
        ) from error


def _opencode_rows(base: sqlite3.Connection, session: str) -> Rows:
    asked = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    for name, data in base.execute(asked, (session,)):
        parts = base.execute("SELECT data FROM part WHERE message_id = ? ORDER BY id", (name,))
        found = [as_object(parse_json(part)) for (part,) in parts]
        yield as_object(parse_json(data)) | {"id": name}, found


def _opencode_session(info: JsonObject, rows: Rows, intake: Intake) -> Iterator[Session]:
    session = Session(str(info.get("id") or "unknown"), part_of=str(info.get("parentID") or ""))
    if session.id in intake.seen:  # in the database, and exported from it
        intake.drop("sessions that are stored twice")
        return
    intake.seen.add(session.id)
    session.steps = _opencode_steps(rows, as_object(info.get("revert")).get("messageID"), intake)
    yield session


def _opencode_steps(rows: Rows, reverted: object, intake: Intake) -> Iterator[Step]:
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
                yield from _opencode_tool(part)
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


def _opencode_tool(part: JsonObject) -> Iterator[Step]:
    state, call = as_object(part.get("state")), part.get("callID")
    yield call_step(part.get("tool"), call, state.get("input"))
    failed, code = state.get("status") == "error", as_object(state.get("metadata")).get("exit")
    text = str(state.get("error" if failed else "output") or "")
    yield result_step(text, call, code, failed or None)


def read_atif(path: Path, intake: Intake) -> Iterator[Session]:
    found = as_object(intake.read_whole(path))
    if str(found.get("schema_version", "")).startswith("ATIF"):
        name = str(found.get("trajectory_id") or found.get("session_id") or path.stem)
        inner = objects(found.get("subagent_trajectories"))
        agents = [str(one.get("trajectory_id") or "sub-agent") for one in inner]
        yield Session(
            name, _atif_steps(found, intake), subagents=agents, **_atif_reward(found, path)
        )


def _atif_steps(found: JsonObject, intake: Intake) -> Iterator[Step]:
    default = as_object(found.get("agent")).get("model_name")
    for step in objects(found.get("steps")):
        if step.get("is_copied_context"):
            intake.drop("steps copied from another trajectory")
            continue
        text = intake.text_of(step.get("message"))
        if step.get("source") == "user":
            yield Step("user", text)
        elif step.get("source") == "agent":
            yield Step("assistant", text, model=str(step.get("model_name") or default or ""))
        else:
            intake.drop_kind(step.get("source"))
        for call in objects(step.get("tool_calls")):
            yield call_step(
                call.get("function_name"), call.get("tool_call_id"), call.get("arguments")
            )
        for one in objects(as_object(step.get("observation")).get("results")):
            code = as_object(one.get("extra")).get("exit_code")
            yield result_step(intake.text_of(one.get("content")), one.get("source_call_id"), code)


def _atif_reward(found: JsonObject, path: Path) -> JsonObject:
    """What the trajectory says itself, else what the verifier of its trial left beside it."""
    metrics = as_object(found.get("final_metrics"))
    told = [metrics, as_object(metrics.get("extra")), as_object(found.get("extra"))]
    for folder in (path.parent, path.parent.parent):
        for name in ("result.json", "verifier/reward.json", "verifier/reward.txt"):
            with suppress(OSError):
                said = parse_json((folder / name).read_bytes())
                judged = as_object(as_object(said).get("verifier_result")) or as_object(said)
                rewards = as_object(judged.get("rewards"))
                told.append({**judged, **rewards} if judged else {"reward": said})
    known = (one.get("reward") for one in told)
    score = next((one for one in known if isinstance(one, int | float)), None)
    return {} if score is None else {"score": float(score), "score_name": "reward"}


MOVE = "Give a .eval or .json log as inspect writes it."
# By name, since zstd's are its own; encrypted or unknown ones are refused by the rest.
_DAMAGED = {
    "BadZipFile",
    "EOFError",
    "ZstdError",
    "LZMAError",
    "error",
    "RuntimeError",
    "NotImplementedError",
    "OSError",
}
GRADES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_ZSTANDARD = 93
_ATTACHED = re.compile(r"attachment://([0-9a-f]{32})")


@contextmanager
def open_archive(path: Path) -> Iterator[Any]:
    """A `.eval` file as a zip; raises DataError where it is damaged, also while it is read."""
    try:
        with _open_zip(path) as archive:
            yield archive
    except Exception as error:
        no_file = isinstance(error, OSError) and error.errno is not None
        if no_file or type(error).__name__ not in _DAMAGED:
            raise
        raise DataError(str(path), f"it is cut, or no zip ({error}).", MOVE) from error


def _open_zip(path: Path) -> Any:
    archive = zipfile.ZipFile(path)
    packed = any(entry.compress_type == _ZSTANDARD for entry in archive.filelist)
    if not packed or hasattr(zipfile, "ZIP_ZSTANDARD"):
        return archive
    archive.close()
    import_zstd(path)  # says how to get it where it is missing
    return import_module("backports.zstd.zipfile").ZipFile(path)


def read_inspect(path: Path, intake: Intake) -> Iterator[Session]:
    if path.suffix != ".eval":
        whole = as_object(intake.read_whole(path))
        for sample in objects(whole.get("samples")):
            yield _inspect_session(sample, whole, intake)
        return
    with open_archive(path) as archive:
        names = archive.namelist()
        heads = [name for name in ("header.json", "_journal/start.json") if name in names]
        head = as_object(parse_json(archive.read(heads[0]))) if heads else {}
        for name in names:
            if name.startswith("samples/"):
                small = archive.getinfo(name).file_size <= LONGEST_FILE
                if sample := as_object(parse_json(archive.read(name)) if small else None):
                    yield _inspect_session(sample, head, intake)
                else:
                    intake.drop("unreadable samples")


def _inspect_session(sample: JsonObject, head: JsonObject, intake: Intake) -> Session:
    told, target = as_object(head.get("eval")), sample.get("target")
    answers = [target] if isinstance(target, str) else target if isinstance(target, list) else []
    session = Session(
        f"{told.get('task', 'task')}/{sample.get('id')}/{sample.get('epoch', 1)}",
        _inspect_steps(sample, str(told.get("model") or ""), intake),
        whole=True,
    )
    session.answer = str(answers[0]) if answers and answers[0] else None
    for scorer, score in as_object(sample.get("scores")).items():
        value = as_object(score).get("value")
        value = GRADES.get(value.lower()) if isinstance(value, str) else value
        if isinstance(value, int | float):
            session.score, session.score_name = float(value), f"score of {scorer}"
            break
    return session


def _inspect_steps(sample: JsonObject, model: str, intake: Intake) -> Iterator[Step]:
    attached = as_object(sample.get("attachments"))

    def attach(value: Any) -> Any:
        """Long texts stand elsewhere in the sample, once each."""
        if isinstance(value, str):
            return _ATTACHED.sub(lambda found: str(attached.get(found[1], found[0])), value)
        if isinstance(value, dict):
            return {key: attach(inner) for key, inner in value.items()}
        return [attach(inner) for inner in value] if isinstance(value, list) else value

    messages = objects(attach(sample.get("messages")))
    if not any(message.get("role") == "user" for message in messages):
        yield Step("user", intake.text_of(attach(sample.get("input"))))
    for message in messages:
        yield from chat_steps(message, intake, model)
    if error := as_object(sample.get("error")):
        yield Step("error", str(error.get("message") or ""))


_SIDES = (
    ("gen_ai.input.messages", "llm.input_messages.", "gen_ai.prompt."),
    ("gen_ai.output.messages", "llm.output_messages.", "gen_ai.completion."),
)


def read_otel(path: Path, intake: Intake) -> Iterator[Session]:
    exports = intake.read_lines(path) if path.suffix == ".jsonl" else [intake.read_whole(path)]
    spans = [
        _Span(span)
        for export in exports
        for resource in objects(as_object(export).get("resourceSpans"))
        for scope in objects(resource.get("scopeSpans"))
        for span in objects(scope.get("spans"))
    ]
    by_id = {span.id: span for span in spans}
    sessions: dict[str, list[_Span]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        span.find_agents(by_id)
        sessions.setdefault(span.session, []).append(span)
    for name, found in sessions.items():
        calls = [span for span in found if span.messages]
        intake.drop("spans without messages", len(found) - len(calls))
        if calls:
            main = min(len(span.agents) for span in calls)
            own = [span for span in calls if len(span.agents) == main]
            inner = dict.fromkeys(span.agents[0] for span in calls if len(span.agents) > main)
            score = next((span.score for span in found if span.score is not None), None)
            steps = _otel_steps(own, intake)
            yield Session(name, steps, subagents=[*inner], score=score, score_name="evaluation")


class _Span:
    def __init__(self, span: JsonObject) -> None:
        of: JsonObject = {}
        for event in objects(span.get("events")):
            of |= _values(event.get("attributes"))
        of |= _values(span.get("attributes"))
        self.id, self._parent = str(span.get("spanId")), str(span.get("parentSpanId") or "")
        began = str(span.get("startTimeUnixNano"))
        self.start = int(began) if began.isdecimal() else 0
        self.status = as_object(span.get("status"))
        score = of.get("gen_ai.evaluation.score.value")
        self.score = float(score) if isinstance(score, int | float) else None
        own = of.get("gen_ai.conversation.id") or of.get("session.id")
        self.session = str(own or span.get("traceId") or "unknown")
        self.model = str(of.get("gen_ai.request.model") or of.get("llm.model_name") or "")
        self._is_agent = of.get("gen_ai.operation.name") == "invoke_agent"
        self._is_agent = self._is_agent or of.get("openinference.span.kind") == "AGENT"
        self._name = str(of.get("gen_ai.agent.name") or "sub-agent")
        self.agents: list[str] = []  # it runs within, the innermost first
        # What went in, then what came out; an agent's own span only repeats its calls'.
        sides = () if self._is_agent else _SIDES
        self.messages = [one for side in sides for one in _side_messages(of, *side)]

    def find_agents(self, spans: "dict[str, _Span]") -> None:
        above, met = spans.get(self._parent), {self.id}
        while above is not None and above.id not in met:
            met.add(above.id)
            self.agents += [above._name] if above._is_agent else []
            above = spans.get(above._parent)


def _side_messages(of: JsonObject, whole: str, *flat: str) -> list[JsonObject]:
    if (told := of.get(whole)) is not None:
        return objects(parse_json(told) if isinstance(told, str) else told)
    found = [one for prefix in flat for one in _unflatten(of, prefix)]
    return objects([one.get("message", one) for one in objects(found)])


def _otel_steps(spans: list[_Span], intake: Intake) -> Iterator[Step]:
    seen: set[int] = set()
    for span in spans:
        for message in span.messages:
            told = {name: v for name, v in message.items() if name != "finish_reason"}
            key = hash(json.dumps(told, sort_keys=True))
            if key not in seen:
                seen.add(key)
                yield from _message_steps(message, intake, span.model)
        if span.status.get("code") in (2, "STATUS_CODE_ERROR"):
            yield Step("error", str(span.status.get("message") or ""))


def _message_steps(message: JsonObject, intake: Intake, model: str) -> Iterator[Step]:
    if not isinstance(message.get("parts"), list):
        calls = [call.get("tool_call", call) for call in objects(message.get("tool_calls"))]
        contents = [one.get("message_content", one) for one in objects(message.get("contents"))]
        content = message.get("content") or contents or None
        yield from chat_steps({**message, "content": content, "tool_calls": calls}, intake, model)
        return
    for part in objects(message["parts"]):
        if part.get("type") == "tool_call":
            yield call_step(part.get("name"), part.get("id"), part.get("arguments"))
        elif part.get("type") == "tool_call_response":
            text = intake.text_of(part.get("response", part.get("result")))
            yield result_step(text, part.get("id"))
        elif part.get("type") == "text":
            yield from chat_steps({**message, "content": part.get("content")}, intake, model)
        else:
            intake.drop_kind(part)


def _values(attributes: Any) -> JsonObject:
    return {str(one.get("key")): _value(one.get("value")) for one in objects(attributes)}


def _value(value: Any) -> Any:
    """An AnyValue of OTLP, whose whole numbers are texts in JSON."""
    for kind, inner in as_object(value).items():
        if kind == "arrayValue":
            return [_value(one) for one in objects(as_object(inner).get("values"))]
        if kind == "kvlistValue":
            return _values(as_object(inner).get("values"))
        return int(inner) if kind == "intValue" and str(inner).lstrip("-").isdigit() else inner
    return None


def _unflatten(attributes: JsonObject, prefix: str) -> list[Any]:
    """The list that stands in keys such as `PREFIX0.message.role`, with what is inside it."""
    tree: JsonObject = {}
    for key, value in attributes.items():
        if key.startswith(prefix):
            *path, last = key.removeprefix(prefix).split(".")
            node = tree
            for name in path:
                inner = node.setdefault(name, {})
                node = inner if isinstance(inner, dict) else node
            node[last] = value
    found = _as_lists(tree)
    return found if isinstance(found, list) else []


def _as_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inner = {key: _as_lists(value) for key, value in tree.items()}
    if inner and all(key.isdigit() for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


@frozen
class Format:
    read: Reader
    patterns: tuple[str, ...]  # of its files in a folder
    what: str


FORMATS = {
    "claude": Format(read_claude, ("*.jsonl",), "sessions of Claude Code, *.jsonl"),
    "codex": Format(read_codex, ("rollout-*.jsonl",), "sessions of Codex CLI, rollout-*.jsonl"),
    "opencode": Format(
        read_opencode, ("opencode*.db", "ses*.json"), "opencode.db, or an export of opencode"
    ),
    "atif": Format(read_atif, ("*.json",), "ATIF trajectories, *.json"),
    "inspect": Format(read_inspect, ("*.eval", "*.json"), "logs of inspect, .eval or .json"),
    "otel": Format(read_otel, ("*.json", "*.jsonl"), "spans in OTLP JSON, *.json or *.jsonl"),
}


def read_sessions(name: str, path: Path, intake: Intake) -> Iterator[Session]:
    """Every session of a file, or of the files below a folder, in the order of their paths.

    Raises DataError: there is no such path, or nothing of that format there; also once all is read.
    """
    format, found = FORMATS[name], 0
    if not path.exists():
        raise DataError(str(path), "There is no such file or folder.", "Check the path.")
    files = (
        [path]
        if path.is_file()
        else sorted({f for p in format.patterns for f in path.rglob(p) if f.is_file()})
    )
    for file in files:
        before = found
        try:
            for session in format.read(file, intake):
                found += 1
                yield session
        except OSError as error:
            raise DataError(
                str(file), f"it cannot be read ({error.strerror}).", "Check it."
            ) from error
        if found == before:
            intake.drop("files without a session")
    if not found:
        looked = f"{len(files)} files" if len(files) != 1 else "1 file"
        cause = f"It holds none of the {name} format's sessions ({looked} looked at)."
        others = ", ".join(other for other in FORMATS if other != name)
        raise DataError(str(path), cause, f"Give {format.what}. Other formats: {others}.")
