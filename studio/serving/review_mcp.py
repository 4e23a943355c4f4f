"""Review from an agent's session: it lists what is open by MCP, and a person there decides.

Owns the questions to that person. A client that cannot ask one gets no way to decide.
Imports the SDK, as `studio.serving.library_mcp` does.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from mcp import types as mt

from engines.core.types import GATE, Decision, DecisionAction, Operation
from engines.record.run_dir import RunDir, Workspace
from studio.report.decisions import DONE, misfit_text
from studio.review.actions import check_edit
from studio.review.evidence import EvidenceLoader
from studio.review.line_text import flag_text, operation_text
from studio.run.linter import LazyLinter
from studio.secrets.output import current_mask, mask_text
from studio.secrets.sanitize import one_line, sanitize
from studio.serving.library_mcp import Context, NoticingServer, serve_stdio
from studio.session.base import ReviewQueue
from studio.session.live import LiveSession
from studio.session.offline import OfflineSession

HOLDER = "a person's `studio review --mcp`, which lets go a few seconds after a decision,"
TAKE_BACK = "take back"
PERSON_NEEDED = (
    "A person must decide, and this client cannot ask one (it has no elicitation). "
    "Ask the person to run: studio review {run}"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What the person is asked about an operation; `decision` is what is to be confirmed."""

    operation: Operation
    standing: Decision | None  # as it was decided before, and is not committed
    message: str
    properties: Mapping[str, Any]
    decision: Decision | None = None
    asked_at: float = field(default_factory=time.monotonic)

    @property
    def request(self) -> mt.ElicitRequestFormParams:
        first = next(iter(self.properties))
        schema = {"type": "object", "properties": dict(self.properties), "required": [first]}
        return mt.ElicitRequestFormParams(message=self.message, requested_schema=schema)


class ReviewService:
    """One client's review of one run. Used as a context manager; what was decided is on disk."""

    def __init__(
        self, workspace: Workspace, run: RunDir, person: str, tell: Callable[[str], None]
    ) -> None:
        self._run, self._person, self._tell = run, person, tell
        linter = LazyLinter(workspace, run, tell)
        own = partial(OfflineSession, workspace, run, person, linter=linter, holder=HOLDER)
        self._session = LiveSession(run, person, as_screen=False, fallback=own)
        self._evidence = EvidenceLoader(run)
        # By operation, of clients that come again with the answer: its key and what was asked.
        self._asked: dict[str, tuple[str, Question]] = {}
        self._later: set[str] = set()
        self._deciding = asyncio.Lock()  # an answer that comes twice is not recorded twice
        self.server = NoticingServer(
            "practice-studio-review",
            instructions="Changes of a library wait for a person. List them by pending_operations; "
            "decide_operation asks the person at this client about one. You cannot decide.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def __aenter__(self) -> ReviewService:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            self._tell(await self._commit() or "nothing was committed")
        finally:
            await self._session.close()

    # -- tools -----------------------------------------------------------------------------------

    async def _list_tools(self, context: Context, params: Any) -> mt.ListToolsResult:
        name = {"type": "string", "description": "Id of an operation, such as op1.2."}
        schema: dict[str, Any] = {"type": "object", "properties": {"operation": name}}
        pending = mt.Tool(
            name="pending_operations",
            description="Lists changes that wait for a person: each with words before and after, "
            "why, evidence and flags; of one operation where it is named.",
            input_schema=schema,
            annotations=mt.ToolAnnotations(read_only_hint=True),
        )
        decide = mt.Tool(
            name="decide_operation",
            description="Asks the person at this client to approve, edit, reject or put off one "
            "operation, and records the answer.",
            input_schema={**schema, "required": ["operation"]},
        )
        return mt.ListToolsResult(tools=[pending, *([decide] if can_ask(context) else [])])

    async def _call_tool(
        self, context: Context, params: mt.CallToolRequestParams
    ) -> mt.CallToolResult | mt.InputRequiredResult:
        name = str((params.arguments or {}).get("operation") or "")
        if params.name == "pending_operations":
            return await self._list_pending(name)
        if params.name != "decide_operation":
            return _said(f"there is no tool {params.name!r}", failed=True)
        if not can_ask(context):
            return _said(PERSON_NEEDED.format(run=self._run.run), failed=True)
        step = await self._take_or_ask(context, params, name)
        while isinstance(step, Question):
            if not context.session.can_send_request:  # it calls once more, with the answer
                key = secrets.token_hex(16)
                self._asked[name] = (key, step)
                asked: Any = {"decision": mt.ElicitRequest(params=step.request)}
                return mt.InputRequiredResult(input_requests=asked, request_state=key)
            form, schema = step.request, step.request.requested_schema
            answer = await context.session.elicit_form(form.message, schema, context.request_id)
            step = await self._take(step, answer, self._who(context))
        return step

    async def _list_pending(self, name: str) -> mt.CallToolResult:
        queue, run = await self._session.review_queue(), self._run.run
        chosen = [op for op in queue.open if name in ("", op.id)]
        shown = [await self._text_of(op, queue) for op in chosen]
        if name and not chosen:
            return _not_open(name, queue)
        shown.append(f"run {run}: {len(queue.open)} open")
        if queue.repairs:
            shown.append(f"{len(queue.repairs)} replies to mend: studio review {run}")
        return _said("\n".join(shown))

    # -- questions ---------------------------------------------------------------------------------

    async def _take_or_ask(
        self, context: Context, params: mt.CallToolRequestParams, name: str
    ) -> Question | mt.CallToolResult:
        """Take the answer that comes with a call; one to nothing that was asked counts for none."""
        key, question = self._asked.pop(name, ("", None))
        answer = (params.input_responses or {}).get("decision")
        if question and key == params.request_state and isinstance(answer, mt.ElicitResult):
            return await self._take(question, answer, self._who(context))
        queue = await self._session.review_queue()
        standing, known = _standing(name, queue), self._session.state.operations
        operation = {**known, **{op.id: op for op in queue.open}}.get(name)
        if operation is None or (standing is None and operation not in queue.open):
            return _not_open(name, queue)
        actions, text = actions_of(operation, standing), {"type": "string"}
        form: dict[str, Any] = {"action": {**text, "title": "Decision", "enum": actions}}
        if "edit" in actions:
            form["text"] = {**text, "title": "For edit: wording", "default": operation.text}
            form["into"] = {**text, "title": "For edit: experience it is merged into, as E4"}
        form["reason"] = {**text, "title": "Why; recorded with the decision"}
        message = await self._text_of(operation, queue)
        if standing:
            message += f"\n  decided   {DONE[standing.action]} by {sanitize(standing.reviewer)}"
        return Question(operation, standing, mask_text(message), current_mask().tree(form))

    async def _text_of(self, operation: Operation, queue: ReviewQueue) -> str:
        groups = await asyncio.to_thread(self._evidence.operation_groups, operation)
        note = queue.notes.get(operation.id, "")
        return operation_text(operation, queue, groups, note).strip()

    async def _take(
        self, question: Question, answer: mt.ElicitResult, who: str
    ) -> Question | mt.CallToolResult:
        """What an answer amounts to: one more question, or what was done."""
        operation, content = question.operation, answer.content or {}
        if answer.action != "accept" or (question.decision and content.get("anyway") is not True):
            return _said(f"{operation.id}: the person decided nothing; it stays as it is")
        if question.decision is not None:
            return await self._decide(question, question.decision)
        action, text = str(content.get("action")), str(content.get("text") or "").strip()
        into = str(content.get("into") or "").strip() if action == "edit" else ""
        wrong = "" if text or action != "edit" else "no wording was given"
        if action not in actions_of(operation, question.standing):
            wrong = f"{action!r} is no decision"
        if wrong:
            return _said(f"{operation.id}: {wrong}, so nothing is decided", failed=True)
        if action == TAKE_BACK:
            return await self._decide(question, None)
        decision = Decision(
            operation.id,
            cast("DecisionAction", action),
            kind="modify" if into else None,
            target=into or None,
            text=text if action == "edit" else None,
            reason=str(content.get("reason") or self._session.state.notes.get(operation.id, "")),
            reviewer=who,
            took_s=round(time.monotonic() - question.asked_at, 3),
        )
        if action == "edit":
            found = await check_edit(self._session, operation, decision)
            if found.objection:
                said = f"{operation.id}: {sanitize(found.objection)}, so nothing is decided"
                return _said(said, failed=True)
            if found.flags:
                flags = "\n".join(f"flag  {flag_text(flag)}" for flag in found.flags)
                ask = {"anyway": {"type": "boolean", "title": "Approve it anyway"}}
                message = f"{operation.id} as you worded it:\n{sanitize(text)}\n{flags}"
                return replace(
                    question, message=mask_text(message), properties=ask, decision=decision
                )
        return await self._decide(question, decision)

    async def _decide(self, question: Question, decision: Decision | None) -> mt.CallToolResult:
        operation, standing = question.operation, question.standing
        async with self._deciding:
            queue, name = await self._session.review_queue(), operation.id
            is_open = any(op.id == name for op in queue.open)
            if _standing(name, queue) != standing or (standing is None and not is_open):
                return _said(f"{name} was decided meanwhile", failed=True)
            again = await self._session.undo(name) if standing else ()
            if decision is None:
                return _said(f"asked again: {', '.join(again)}")
            result = await self._session.decide(decision)
        made = result.decision
        if made.action == "defer":
            self._later.add(operation.id)
        said = f"{operation.id}: {DONE[made.action]}"
        said += f" ({sanitize(result.note)})" if result.note else ""
        if made.reviewer == GATE:
            said = f"{operation.id} {misfit_text(sanitize(made.reason))}"
        left = {op.id for op in self._session.state.open_operations} - self._later
        left.discard(operation.id)  # its event may come later than the answer
        said += f"\n{len(left)} left" if left else f"\nnothing is left. {await self._commit()}"
        return _said(said.rstrip())

    async def _commit(self) -> str:
        """Commit the decisions of a finished run, as a review does at its end."""
        session, state = self._session, self._session.state
        if session.living or (state.status == "finished" and not state.reviewed_operations):
            return ""
        return await session.commit() if state.reviewed_operations else ""

    def _who(self, context: Context) -> str:
        client = context.session.client_params
        return f"{self._person} via {one_line(client.client_info.name, 60) if client else 'MCP'}"


async def serve_review(
    workspace: Workspace, run: RunDir, person: str, tell: Callable[[str], None]
) -> None:
    """Let an agent's session ask its person, on stdio, until it ends."""
    tell(f"serving the review of run {run.run} on stdio; the end of the input ends it")
    async with ReviewService(workspace, run, person, tell) as service:
        await serve_stdio(service.server)


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


def _standing(name: str, queue: ReviewQueue) -> Decision | None:
    made = {one.operation_id: one for one in queue.decided if one.action != "defer"}
    return made.get(name)


def _not_open(name: str, queue: ReviewQueue) -> mt.CallToolResult:
    known = ", ".join(op.id for op in queue.open) or "none"
    return _said(f"{one_line(name, 60)} is not open; open are: {known}", failed=True)


def _said(text: str, *, failed: bool = False) -> mt.CallToolResult:
    piece = mt.TextContent(type="text", text=mask_text(text))
    return mt.CallToolResult(content=[piece], is_error=failed)
