"""Review from an agent's session: it lists what is open by MCP, and a person there decides.

Owns the questions to that person. A client that cannot ask one gets no way to decide.
Imports the SDK, as `studio.serving.library_mcp` does.
"""

import asyncio
import secrets
import time
from contextlib import aclosing, suppress
from dataclasses import field, replace
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any, cast

from mcp import types as mt
from mcp.server.lowlevel import Server

from engines.core.codec import JsonMapping, JsonObject
from engines.core.errors import ConflictError, StudioError
from engines.core.frozen import frozen
from engines.core.types import GATE, Decision, DecisionAction, Operation, Tell
from engines.record.formats.source import LONGEST_TEXT
from engines.record.run_dir import RunDir, Workspace
from studio.render.words import DONE, misfit_text
from studio.review import decider, evidence, scripted
from studio.review.wording import flag_text, operation_text
from studio.run.held_out import LazyLinter
from studio.secrets.output import current_mask, mask_text
from studio.secrets.sanitize import one_line, sanitize
from studio.serving.library_mcp import Context, serve_stdio
from studio.session import live, offline
from studio.session.requests import Commit, Decide, ReadQueue, ReviewQueue, Undo

HOLDER = "a person's `studio review --mcp`, which lets go a few seconds after a decision,"
WAIT_S = 5.0
"""For the run's lock: another client's review has it for a few seconds after a decision."""
NOTHING = "Nothing was decided."
TAKE_BACK = "take back"
LISTS = "Lists changes that are open: words before and after, why, evidence, flags. Or one alone."
ASKS = "Has the person at this client approve, edit, reject or put off one operation; records it."


@frozen
class Question:
    """What the person is asked about an operation; `decision` is what is to be confirmed."""

    operation: Operation
    standing: Decision | None  # as it was decided before, and is not committed
    form: mt.ElicitRequestFormParams
    decision: Decision | None = None
    asked_at: float = field(default_factory=time.monotonic)


class ReviewService:
    """One client's review of one run; what was decided is on disk before the client hears of it."""

    def __init__(self, workspace: Workspace, run: RunDir, person: str, tell: Tell) -> None:
        self._run, self._person, self._tell = run, person, tell
        linter = LazyLinter(workspace, run, tell)
        own = partial(
            offline.OfflineSession,
            workspace,
            run,
            person,
            linter=linter,
            holder=HOLDER,
            wait_s=WAIT_S,
        )
        self._session = live.LiveSession(run, person, as_screen=False, fallback=own)
        self._evidence = evidence.EvidenceLoader(run)
        # By operation, of clients that come again with the answer: its key and what was asked.
        self._asked: dict[str, tuple[str, Question]] = {}
        self._later: set[str] = set()
        self._closing = ""  # what the last commit said
        self._deciding = asyncio.Lock()  # an answer that comes twice is not recorded twice
        self.server = Server[Any](
            "practice-studio-review",
            version=installed_version("practice-studio"),
            instructions="A person decides about changes of a library. You cannot.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def aclose(self) -> None:
        """Commit. Where nobody asked for anything, only what was decided to the last one before.

        That is what a session leaves that is killed between its last decision and the commit.
        """
        try:
            is_due = self._session.state.started is not None
            with suppress(StudioError):
                queue = await self._session.send(ReadQueue())
                is_due = is_due or {op.id for op in queue.open} <= {
                    one.operation_id for one in queue.decided
                }
            said = await self._commit() if is_due else ""
            self._tell(said or self._closing or "nothing was committed")
        finally:
            await self._session.close()

    async def _list_tools(self, context: Context, params: Any) -> mt.ListToolsResult:
        name = {"type": "string", "description": "Id of an operation, such as op1.2."}
        schema: JsonObject = {"type": "object", "properties": {"operation": name}}
        found = [mt.Tool(name="pending_operations", description=LISTS, input_schema=schema)]
        if can_ask(context):
            schema = {**schema, "required": ["operation"]}
            found.append(mt.Tool(name="decide_operation", description=ASKS, input_schema=schema))
        return mt.ListToolsResult(tools=found)

    async def _call_tool(
        self, context: Context, params: mt.CallToolRequestParams
    ) -> mt.CallToolResult | mt.InputRequiredResult:
        name, failed = str((params.arguments or {}).get("operation") or ""), False
        try:
            step = await self._begin(context, params, name)
            while isinstance(step, Question):
                if not context.session.can_send_request:  # it calls once more, with the answer
                    key = secrets.token_hex(16)
                    self._asked[name] = (key, step)
                    asked: Any = {"decision": mt.ElicitRequest(params=step.form)}
                    return mt.InputRequiredResult(input_requests=asked, request_state=key)
                message, schema = step.form.message, step.form.requested_schema
                number = context.request_id
                answer = await context.session.elicit_form(message, schema, number)
                step = await self._take(step, answer, self._who(context))
        except StudioError as error:
            step, failed = sanitize(str(error)), True
        piece = mt.TextContent(type="text", text=mask_text(step))
        return mt.CallToolResult(content=[piece], is_error=failed)

    async def _begin(
        self, context: Context, params: mt.CallToolRequestParams, name: str
    ) -> Question | str:
        """Take the answer that comes with a call; one to nothing that was asked counts for none."""
        queue = await self._session.send(ReadQueue())
        if params.name == "pending_operations":
            return await self._list_pending(name, queue)
        run = self._run.run
        if params.name != "decide_operation" or not can_ask(context):
            raise ConflictError(
                f"run {run}",
                "a person must decide, and this client cannot ask one (it has no elicitation).",
                f"Ask for `studio review {run}`.",
            )
        key, question = self._asked.pop(name, ("", None))
        answer = (params.input_responses or {}).get("decision")
        if question and key == params.request_state and isinstance(answer, mt.ElicitResult):
            return await self._take(question, answer, self._who(context))
        standing, known = _standing(name, queue), self._session.state.operations
        operation = known.get(name) if standing else None
        operation = operation or _find_open(name, queue)
        actions, text = actions_of(operation, standing), {"type": "string"}
        form: JsonObject = {"action": {**text, "title": "Decision", "enum": actions}}
        if "edit" in actions:
            form["text"] = {**text, "title": "For edit: wording", "default": operation.text}
            form["into"] = {**text, "title": "For edit: experience it is merged into, as E4"}
        form["reason"] = {**text, "title": "Why; recorded with the decision"}
        message = await self._text_of(operation, queue)
        if standing:
            message += f"\n  decided   {DONE[standing.action]} by {sanitize(standing.reviewer)}"
        return Question(operation, standing, _form(message, form))

    async def _list_pending(self, name: str, queue: ReviewQueue) -> str:
        chosen = (_find_open(name, queue),) if name else queue.open
        shown = [await self._text_of(op, queue) for op in chosen]
        shown.append(f"run {self._run.run}: {len(queue.open)} open")
        if queue.repairs:
            shown.append(f"{len(queue.repairs)} replies to mend: studio review {self._run.run}")
        return "\n".join(shown)

    async def _text_of(self, operation: Operation, queue: ReviewQueue) -> str:
        groups = await asyncio.to_thread(self._evidence.operation_groups, operation)
        note = queue.notes.get(operation.id, "")
        return operation_text(operation, queue, groups, note).strip()

    async def _take(self, question: Question, answer: mt.ElicitResult, who: str) -> Question | str:
        """Carry an answer out; returns one more question, or what was done."""
        operation, content = question.operation, answer.content or {}
        place = f"operation {operation.id}"
        if answer.action != "accept" or (question.decision and content.get("anyway") is not True):
            return f"{place}: the person decided nothing; it stays as it is"
        if question.decision is not None:
            return await self._decide(question, question.decision)
        decision = read_form(question, content)
        if decision is None:
            return await self._decide(question, None)
        note = self._session.state.notes.get(operation.id, "")
        decision = replace(
            decision,
            reason=decision.reason or note,
            reviewer=who,
            took_s=round(time.monotonic() - question.asked_at, 3),
        )
        if decision.action == "edit":
            objection, new = await decider.check_wording(self._session, operation, decision)
            if objection:
                raise ConflictError(place, f"{objection}.", NOTHING)
            if new:
                flags = "\n".join(f"flag  {flag_text(flag)}" for flag in new)
                wording = sanitize(decision.text or "")
                ask = {"anyway": {"type": "boolean", "title": "Approve it anyway"}}
                form = _form(f"{operation.id} as you worded it:\n{wording}\n{flags}", ask)
                return replace(question, form=form, decision=decision)
        return await self._decide(question, decision)

    async def _decide(self, question: Question, decision: Decision | None) -> str:
        """Record a decision, or take the standing one back; commit once nothing is left."""
        name, standing, session = question.operation.id, question.standing, self._session
        async with self._deciding:
            queue = await session.send(ReadQueue())
            if _standing(name, queue) != standing:
                raise ConflictError(f"operation {name}", "it was decided meanwhile.", NOTHING)
            if standing is None:
                _find_open(name, queue)
            undone = await session.send(Undo(name)) if standing else ()
            if decision is None:
                return f"asked again: {', '.join(undone)}"
            (made,) = await session.send(Decide((decision,)))
        if made.action == "defer":
            self._later.add(name)
        else:
            self._later.discard(name)
        text = scripted.result_text(made)
        if made.reviewer == GATE:
            text = f"{name} {misfit_text(made.reason)}"
        left = {op.id for op in session.state.open_operations}
        later = left & self._later
        if left > later:
            more = f", {len(later)} of them put off" if later else ""
            return sanitize(f"{text}\n{len(left)} open{more}")
        but = " but what was put off" if later else ""
        return sanitize(f"{text}\nnothing is left{but}. {await self._commit()}".rstrip())

    async def _commit(self) -> str:
        """Commit the decisions of a finished run, as a review does at its end."""
        session, state = self._session, self._session.state
        if session.living or not state.reviewed_operations:
            return ""
        self._closing = await session.send(Commit(state.step, session.who))
        return self._closing

    def _who(self, context: Context) -> str:
        client = context.session.client_params
        return f"{self._person} via {one_line(client.client_info.name, 60) if client else 'MCP'}"


async def serve_review(workspace: Workspace, run: RunDir, person: str, tell: Tell) -> None:
    """Let an agent's session ask its person, on stdio, until it ends."""
    tell(f"serving the review of run {run.run} on stdio; the end of the input ends it")
    async with aclosing(ReviewService(workspace, run, person, tell)) as service:
        await serve_stdio(service.server)


def _form(message: str, fields: JsonObject) -> mt.ElicitRequestFormParams:
    """Of its fields the first must be filled in."""
    schema = {"type": "object", "properties": fields, "required": [next(iter(fields))]}
    masked = current_mask().tree(schema)
    return mt.ElicitRequestFormParams(message=mask_text(message), requested_schema=masked)


def can_ask(context: Context) -> bool:
    """Whether the client can put a form before a person."""
    able = context.session.client_capabilities
    asks = able.elicitation if able else None
    return asks is not None and (asks.form is not None or asks.url is None)


def actions_of(operation: Operation, standing: Decision | None) -> list[str]:
    """What can become of it: a wording alone can be edited, and weights are not put off."""
    edit = ["edit"] if operation.kind in ("add", "modify") else []
    later = ["defer"] if operation.kind != "weights" else []
    return ["approve", *edit, "reject", *later, *([TAKE_BACK] if standing else [])]


def read_form(question: Question, content: JsonMapping) -> Decision | None:
    """Return the decision that a filled-in form asks for; None: the standing one is taken back.

    Raises ConflictError: it cannot be decided so.
    """
    operation, action = question.operation, str(content.get("action"))
    place = f"operation {operation.id}"
    actions = actions_of(operation, question.standing)
    if action not in actions:
        raise ConflictError(place, f"{action!r} is no decision.", NOTHING)
    for name in ("text", "into", "reason"):
        value = content.get(name) or ""
        broken = str(value).count("\ufffd") > _wording(question).count("\ufffd")  # see `read_line`
        if broken or not isinstance(value, str) or len(value) > LONGEST_TEXT:
            raise ConflictError(
                place, f"its {name} must be whole characters, at most {LONGEST_TEXT:,}.", NOTHING
            )
    text, into = (str(content.get(name) or "").strip() for name in ("text", "into"))
    is_new = is_reworded(question, content)
    if action == "approve" and "edit" in actions and (into or is_new):
        action = "edit"
    if action == TAKE_BACK:
        return None
    decision = Decision(operation.id, cast("DecisionAction", action))
    decision = replace(decision, reason=str(content.get("reason") or ""))
    if action != "edit":
        return decision
    if not (text or into):
        raise ConflictError(place, "no wording was given.", NOTHING)
    decision = replace(decision, text=text if is_new else operation.text)
    return replace(decision, kind="modify", target=into) if into else decision


def is_reworded(question: Question, content: JsonMapping) -> bool:
    """Whether the text of a form is another than was shown, perhaps masked."""
    text = str(content.get("text") or "").strip()
    return bool(text) and text.split() != _wording(question).split()


def _wording(question: Question) -> str:
    shown: str = question.form.requested_schema["properties"].get("text", {}).get("default", "")
    return shown


def _standing(name: str, queue: ReviewQueue) -> Decision | None:
    made = {one.operation_id: one for one in queue.decided if one.action != "defer"}
    return made.get(name)


def _find_open(name: str, queue: ReviewQueue) -> Operation:
    for operation in queue.open:
        if operation.id == name:
            return operation
    known = ", ".join(op.id for op in queue.open) or "none"
    raise ConflictError(f"operation {name}", "it is not open.", f"Open are: {known}.")
