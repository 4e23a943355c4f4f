"""A session for tests whose requests are answered by methods, one of a kind."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from studio.session.requests import (
    Commit,
    Decide,
    Drop,
    Kill,
    Mend,
    Preview,
    Propose,
    ReadQuestions,
    ReadQueue,
    Request,
    TryOperations,
    Undo,
)


class Answering:
    """Has `send` call the method that answers a request; `control` answers all that steer."""

    who = "ann"

    async def send(self, request: Request[Any]) -> Any:
        answers: Any = self
        match request:
            case Decide(decisions=(decision,)):
                return (await answers.decide(decision),)
            case Decide(decisions=decisions):
                return tuple(await answers.decide_all(decisions))
            case Preview(decisions=decisions):
                return tuple([await answers.preview(decision) for decision in decisions])
            case Undo(operation=operation):
                return await answers.undo(operation)
            case Propose(operation=operation):
                return await answers.propose(operation)
            case TryOperations(operations=names):
                return await answers.try_operations(names)
            case Mend():
                return await answers.resubmit(request.repair, request.text, request.reviewer)
            case Drop():
                return await answers.drop(request.repair, request.reason, request.reviewer)
            case Commit():
                return await answers.commit()
            case ReadQuestions(problems=problems):
                return await answers.questions(problems)
            case ReadQueue():
                return await answers.review_queue()
        names = [each.name for each in fields(request) if each.name not in ("id", "reviewer")]
        answer = await answers.control(
            request.do, **{name: getattr(request, name) for name in names}
        )
        return bool(answer["ok"]) if isinstance(request, Kill) else answer

    async def status(self) -> dict[str, Any]:
        answers: Any = self
        status: dict[str, Any] = await answers.control("status")
        return status
