"""The `handoff:DIR` policy: whoever writes answers into a folder is the model.

A call without an answer is written down and never waited for: it raises AnswersPending, and the
process ends once nothing else can be asked. The next start takes the answers up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from engines.core.errors import AnswersPending, PolicyError
from engines.core.protocols import OnText
from engines.core.text.tokens import prompt_tokens, text_tokens
from engines.core.types import Completion, Message, Sampling, Usage
from engines.core.waiting.current_call import current_call
from engines.policies.chat.request import Dialect, chat_request
from engines.policies.handoff import call_files
from engines.policies.handoff.call_files import CALL, AnswerRefused

SHOWN = 5
"""Names in a message; the folder has the others."""
_DIALECT = Dialect({"stream", "stream_options"})


class HandoffPolicy:
    """Asks through files in `folder`; `max_tokens` is the limit where a call sets none."""

    def __init__(self, folder: Path, max_tokens: int | None = None) -> None:
        self.folder = folder
        self.name = f"handoff:{folder.name}"
        self.asked: set[str] = set()
        self._max_tokens = max_tokens

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        """Give the answer that lies there.

        Raises AnswersPending: there is none, or none that can be taken.
        """
        await asyncio.sleep(0)  # let other jobs run, as every real call does
        key = current_call()
        purpose = key.purpose if key else "call"
        request = chat_request(self.name, messages, sampling, self._max_tokens, _DIALECT)
        name = call_files.call_id(purpose, request)
        self.asked.add(name)
        try:
            found, refused = self._find_answer(name)
            path = self.folder / f"{name}{CALL}"
            if found is None and not path.exists():
                about = call_files.describe_call(key)
                call_files.write_whole(path, call_files.call_body(name, purpose, about, request))
        except OSError as error:  # a failed try would be the model's fault
            cause = f"calls cannot be written there ({error.strerror})."
            raise PolicyError(str(self.folder), cause, "Correct that and start again.") from None
        if found is None:
            raise AnswersPending({str(self.folder): {name}}, refused)
        if not found.usage.calls:
            said = text_tokens(found.text) + text_tokens(found.reasoning)
            found = replace(found, usage=Usage(prompt_tokens(messages, sampling.tools), said, 1))
        if on_text is not None:
            on_text(found.text)
        return replace(found, model=found.model or self.name)

    async def ping(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            cause = f"it cannot be a folder of calls ({error.strerror})."
            raise PolicyError(str(self.folder), cause, "Name another: handoff:DIR.") from None

    async def aclose(self) -> None:
        """It holds nothing."""

    def _find_answer(self, name: str) -> tuple[Completion | None, tuple[str, ...]]:
        """The answer to a call, and why what lies there is none."""
        call, answers = self.folder / f"{name}{CALL}", call_files.find_answers(self.folder, name)
        if call.exists() and not call_files.is_unchanged(call):
            for path in (call, *answers):
                call_files.move(path, self.folder / "refused")
            why = f"{call.name} was changed, so that its answer is for another question"
            return None, (f"{why}; moved to refused",)
        done = self.folder / "done"
        for path in answers or call_files.find_answers(done, name):
            if len(answers) > 1:
                return None, (f"{name} has {len(answers)} answers; keep one",)
            try:
                found = call_files.read_answer(path, name)
            except AnswerRefused as refused:
                return None, (f"{path.name}: {refused}",)
            if answers:
                for taken in (call, path):
                    call_files.move(taken, done)
            return found, ()
        return None, ()


def folder_remarks(policies: Iterable[HandoffPolicy]) -> tuple[str, ...]:
    """What lies in the folders of these policies and belongs to none of their calls so far."""
    asked: dict[Path, set[str]] = {}
    for policy in policies:
        asked.setdefault(policy.folder, set()).update(policy.asked)
    remarks = []
    for folder, names in asked.items():
        there = sorted(path.name for path in folder.glob("[!.]*.*.*"))
        others = [name for name in there if name.partition(".")[0] not in names]
        if answers := [name for name in others if name.endswith(call_files.ANSWERS)]:
            shown = ", ".join(answers[:SHOWN]) + ", …" * (len(answers) > SHOWN)
            remarks.append(f"{folder}: no call of this process wants {shown}; left there")
        if calls := sum(name.endswith(CALL) for name in others):
            remarks.append(f"{folder}: {calls} of the calls there are not of this process")
    return tuple(remarks)
