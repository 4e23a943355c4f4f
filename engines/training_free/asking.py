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
from engines.training_free.reading import library_block
from engines.training_free.settings import TrainingFreeSettings

PACKAGE = "engines.training_free"
Row = TypeVar("Row")

Reply = Coroutine[Any, Any, tuple[Completion, RecordRef]]


@dataclass(slots=True)
class Reflector:
    """The model that reads, with the settings and the ledger of its run.

    Another `policy` may be put in its place before the first question.
    """

    settings: TrainingFreeSettings
    policy: Policy
    ledger: Ledger

    def ask_once(self, key: CallKey, messages: Sequence[Message]) -> Reply:
        return self.ledger.ask(key, self.policy, messages, self.settings.replies)

    async def ask(
        self,
        key: CallKey,
        prompt: str,
        parse: Callable[[str], ParsedReply[Row]],
        rank: Callable[[Sequence[Row]], tuple[int, ...]] = rank_rows,
    ) -> RepairResult[Row]:
        """Ask for a list; raises CallFailed where the first reply does not come."""
        repair = load_prompt(PACKAGE, "repair")

        def send(number: int, messages: Sequence[Message]) -> Reply:
            return self.ask_once(replace(key, turn=number), messages)

        return await ask_with_repair(
            send,
            [Message("user", prompt)],
            parse,
            lambda problem: repair.render(problem=problem),
            rank,
        )

    @property
    def objectives(self) -> dict[str, str]:
        """The two objectives as the prompts name and quote them."""
        return {
            "agent_objective": quote(self.settings.agent_objective),
            "learning_objective": quote(self.settings.learning_objective),
        }


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
