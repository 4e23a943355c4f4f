"""One question to the reflector: asked once, and once more with what was wrong with the reply."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from engines.core.library import Library
from engines.core.protocols import Ledger, Policy
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ParsedReply, RepairResult, ask_with_repair
from engines.core.types import CallKey, Completion, LostWork, Message, RecordRef
from engines.training_free.parse import rank_rows
from engines.training_free.reading import cut_middle, library_block
from engines.training_free.settings import TrainingFreeSettings

PACKAGE = "engines.training_free"
DRAFTS_APART = 4
"""Numbers that the calls of one lesson have: what is asked again for another one draws anew."""
REPAIRED_CHARS = 40_000
"""Of a reply that is shown to be mended."""
Row = TypeVar("Row")

Reply = Coroutine[Any, Any, tuple[Completion, RecordRef]]


@dataclass(slots=True)
class Reflector:
    """The model that reads, with the settings and the ledger of its run.

    Another `policy` may be put in its place before the first question. `draft` is the number of
    the lesson that it draws from a batch, from 0.
    """

    settings: TrainingFreeSettings
    policy: Policy
    ledger: Ledger
    draft: int = 0

    def ask_once(self, key: CallKey, messages: Sequence[Message]) -> Reply:
        return self.ledger.ask(key, self.policy, messages, self.settings.replies)

    async def ask(
        self,
        key: CallKey,
        prompt: str,
        parse: Callable[[str], ParsedReply[Row]],
        rank: Callable[[Sequence[Row]], tuple[int, ...]] = rank_rows,
        *,
        system: str = "",
    ) -> RepairResult[Row]:
        """Ask for a list; raises CallFailed where the first reply does not come.

        `system` stands before the prompt, as what many questions of a step begin with. The
        repair turn shows the reply and what is wrong with it, not what it was drawn from.
        """
        key = replace(key, index=key.index + DRAFTS_APART * self.draft)
        asked = [*([Message("system", system)] if system else []), Message("user", prompt)]

        def send(number: int, messages: Sequence[Message]) -> Reply:
            if number:
                reply, problem = messages[-2].content, messages[-1].content
                messages = [Message("user", _repair_prompt(problem, reply, asked))]
            return self.ask_once(replace(key, turn=number), messages)

        return await ask_with_repair(send, asked, parse, lambda problem: problem, rank)

    @property
    def objectives(self) -> dict[str, str]:
        """The two objectives as the prompts name and quote them."""
        return {
            "agent_objective": quote(self.settings.agent_objective),
            "learning_objective": quote(self.settings.learning_objective),
        }


def _repair_prompt(problem: str, reply: str, asked: Sequence[Message]) -> str:
    lines = (line for message in asked for line in message.content.splitlines())
    form = "\n".join(line for line in lines if line.startswith("    "))  # quotes begin with `| `
    shown = cut_middle(reply.strip() or "(nothing)", REPAIRED_CHARS)
    return load_prompt(PACKAGE, "repair").render(problem=problem, form=form, reply=quote(shown))


def library_text(library: Library, counts: bool = False) -> str:
    """The library as a quoted block, with what is pinned below it; see `library_block`."""
    block, pinned = library_block(library, counts), library.pinned_ids
    if not pinned:
        return block
    return f"{block}\n\n{load_prompt(PACKAGE, 'pinned').render(ids=', '.join(pinned))}"


def reply_losses(kind: str, where: str, answered: RepairResult[Row]) -> tuple[LostWork, ...]:
    """What one repair turn could not mend: a whole reply, or single proposals of it."""
    if answered.items:
        return tuple(
            LostWork("proposal", where, problem, answered.reply) for problem in answered.problems
        )
    said = " ".join(answered.problems)
    return (LostWork(kind, where, said, answered.reply),) if said else ()
