"""The `replay:FILE` policy: answers that some model once gave, read from a log.

Does not look at logged rewards: verdicts are made anew. Makes nothing up: a question that the
log does not hold is a failed call.
"""

import asyncio
import unicodedata
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path

from engines.core import errors, protocols
from engines.core.types import Completion, Job, Message, Sampling


class ReplayPolicy:
    """Answers from a log of rollouts.

    The question is found in the last user message: the longest logged question that
    stands in it whole, white space aside.

    Which of a question's n logged replies is given: a group must receive each once,
    and a request does not say which rollout it is for. So the rollout manager asks for
    `for_job(job)`, whose policy gives reply `index % n`. Without a job it is
    `seed % n`.
    """

    def __init__(self, path: Path, log: Mapping[str, Sequence[Completion]]) -> None:
        self.name = f"replay:{path.stem}"
        self._path = path
        self._index: int | None = None  # of the one rollout that it answers for
        self._replies: dict[str, list[Completion]] = {}
        for question, replies in log.items():
            self._replies.setdefault(normalise_text(question), []).extend(replies)

    def for_job(self, job: Job) -> protocols.Policy:
        bound = copy(self)
        bound._index = job.key.index if job.key.index >= 0 else None
        return bound

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: protocols.OnText | None = None,
    ) -> Completion:
        # Let other jobs run, as every real call does.
        await asyncio.sleep(0)
        replies = self._replies[self._find_question(messages)]
        number = (sampling.seed or 0) if self._index is None else self._index
        reply = replies[number % len(replies)]
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    async def ping(self) -> None:
        """Nothing to do: the whole log was read when this was made."""

    async def aclose(self) -> None:
        """It holds nothing."""

    def _find_question(self, messages: Sequence[Message]) -> str:
        asked = next((m.content for m in reversed(messages) if m.role == "user"), "")
        text = normalise_text(asked)
        if text in self._replies:
            return text
        if found := [q for q in self._replies if _contains_question(q, text)]:
            return max(found, key=len)
        said = f"{self._path} holds no rollout for this question: {text[:120]!r}"
        raise errors.CallFailed("refused", said)


def normalise_text(text: str) -> str:
    """Text as it is compared: composed Unicode, runs of white space as one blank."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _contains_question(question: str, text: str) -> bool:
    """True when the question stands in the text and does not end inside a word."""
    start = text.find(question)
    while start >= 0:
        end = start + len(question)
        before, after = text[start - 1 : start], text[end : end + 1]
        if not (before.isalnum() and question[0].isalnum()) and not (
            after.isalnum() and question[-1].isalnum()
        ):
            return True
        start = text.find(question, start + 1)
    return False
