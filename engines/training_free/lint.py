"""What a reviewer should look at in a proposed operation, said before anyone is asked.

All of it works without a network; with an embedder duplicates are also found by meaning. Decides
nothing: rules and people do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

from engines.core import flags as names
from engines.core.errors import CallFailed
from engines.core.library import Library
from engines.core.protocols import Embedder
from engines.core.text.similarity import similarity_above, tokens, word_count
from engines.core.types import NO_USAGE, Flag, Operation, Problem, Usage
from engines.training_free.leaks import AnswerIndex, QuestionIndex, word_ngrams
from engines.training_free.settings import LintSettings

TOOL_WORDS = 5
"""Words in a row that an operation takes over from a tool's output."""
_INSTRUCTS = re.compile(
    r"\b(?:must|should|always|never|do not|don[’']t|please|ignore|remember|make sure|ensure|you"
    r"|müssen|sollten|immer|niemals|bitte|toujours|jamais|veuillez|siempre|nunca)\b"
    r"|必须|不要|请|务必|应该|忽略|总是",
    re.IGNORECASE,
)
_VERBS = """
add answer apply ask avoid begin call check choose compare compute convert copy count delete
divide download draw enter execute fetch find follow forward get give go install keep list look
multiply open output paste post print put read replace reply report return round run save say
search select send set show skip solve start state stop submit subtract take tell transfer
treat try turn type upload use verify visit work write
"""
_ORDERS = frozenset(_VERBS.split())
_CLAUSE = re.compile(r"[.!?;,:。！？；，：\n]")


class OperationLinter:
    """Implements `engines.core.protocols.Linter`.

    Questions and answers of `practised` problems must not become lessons, nor questions of
    `held_out` ones, or an evaluation is worth nothing. `tool_output` gives the texts that
    tools gave to a rollout, by its id.
    """

    def __init__(
        self,
        settings: LintSettings = LintSettings(),
        *,
        practised: Sequence[Problem] = (),
        held_out: Sequence[Problem] = (),
        tool_output: Callable[[str], Sequence[str]] = lambda rollout: (),
        embedder: Embedder | None = None,
    ) -> None:
        self._settings = settings
        self._practised = tuple(practised)
        self._held_out = tuple(held_out)
        self._tool_output = tool_output
        self._embedder = embedder
        self._paid = NO_USAGE

    async def flags(
        self, operation: Operation, library: Library, others: Sequence[Operation] = ()
    ) -> tuple[Flag, ...]:
        """See the protocol. A new wording is not compared with the one it replaces."""
        return (await self.flags_of((operation,), library, others))[0]

    async def flags_of(
        self, operations: Sequence[Operation], library: Library, others: Sequence[Operation] = ()
    ) -> tuple[tuple[Flag, ...], ...]:
        """See the protocol."""
        beside = {other.id: other for other in (*operations, *others)}
        return tuple([await self._flags(op, library, tuple(beside.values())) for op in operations])

    async def _flags(
        self, operation: Operation, library: Library, others: Sequence[Operation]
    ) -> tuple[Flag, ...]:
        others = tuple(other for other in others if other.id != operation.id)
        found: list[Flag] = []
        about = library.get(operation.target)
        if operation.kind in ("modify", "delete") and about is not None and about.pinned:
            said = f"a person pinned {about.id}, so the gate rejects this"
            found.append(Flag(names.PINNED, None, said))
        if operation.kind in ("add", "modify") and operation.text:
            found += await self._similarity_flags(operation, library, others)
            found += self._leak_flags(operation)
            found += self._length_flags(operation)
            found += self._tool_output_flags(operation)
        found += _same_target_flags(operation, others)
        groups = {rollout.rpartition("r")[0] for rollout in operation.evidence}
        if len(groups) == 1 and operation.kind != "keep":
            said = f"only group {next(iter(groups))} supports it"
            found.append(Flag(names.ONE_GROUP, None, said))
        return tuple(found)

    def take_usage(self) -> Usage:
        """What embeddings have cost since this was last asked."""
        paid, self._paid = self._paid, NO_USAGE
        return paid

    # Made at the first lesson: 10,000 questions take a second to index.

    @cached_property
    def _question_index(self) -> QuestionIndex:
        return QuestionIndex(self._practised, self._held_out, self._settings.leak_words)

    @cached_property
    def _answer_index(self) -> AnswerIndex:
        return AnswerIndex(self._practised)

    async def _similarity_flags(
        self, operation: Operation, library: Library, others: Sequence[Operation]
    ) -> list[Flag]:
        texts = {e.id: e.text for e in library.experiences if e.id != operation.target}
        texts |= {o.id: o.text for o in others if o.kind in ("add", "modify") and o.text}
        alike = {
            name: score
            for name, text in texts.items()
            if (score := similarity_above(operation.text, text, self._settings.duplicate_at))
            is not None
        }
        how = dict.fromkeys(alike, "nearly the wording")
        meant, trouble = await self._embedding_similarities(operation.text, texts)
        for name, score in meant.items():
            if score > alike.get(name, self._settings.duplicate_at - 1e-9):
                alike[name], how[name] = score, "the meaning"
        if alike:
            name = max(alike, key=lambda name: alike[name])
            said = f"has {how[name]} of {name}: {_shorten(texts[name])}{trouble}"
            return [Flag(names.DUPLICATE, round(alike[name], 3), said)]
        return [Flag(names.NOT_COMPARED, None, f"compared with others{trouble}")] if trouble else []

    async def _embedding_similarities(
        self, text: str, texts: dict[str, str]
    ) -> tuple[dict[str, float], str]:
        """Cosines with other texts, and what to say where there are none to be had."""
        if self._embedder is None or not texts:
            return {}, ""
        try:
            found = await self._embedder.embed((text, *texts.values()))
        except CallFailed as failed:
            self._paid += failed.usage
            return {}, f" (by wording only, since {self._embedder.name} failed: {failed})"
        self._paid += found.usage
        own, *others = found.vectors
        cosines = (sum(a * b for a, b in zip(own, other, strict=True)) for other in others)
        pairs = zip(texts, cosines, strict=True)
        return {name: max(0.0, min(1.0, cosine)) for name, cosine in pairs}, ""

    def _leak_flags(self, operation: Operation) -> list[Flag]:
        found = []
        for shared in self._question_index.longest_shared(operation.text):
            which = "held-out" if shared.held_out else "practised"
            said = f"repeats {shared.words} words in a row of a {which} question: "
            kind = names.HELD_OUT_LEAK if shared.held_out else names.LEAK
            detail = f"{said}“{_shorten(shared.text)}”"
            found.append(Flag(kind, round(shared.share, 3), detail))
        if given := self._answer_index.find_leak(operation.text, operation.problems):
            answer, score = given
            said = f"names “{_shorten(answer)}”, the answer of a problem it was drawn from"
            found.append(Flag(names.LEAK, score, said))
        return found

    def _length_flags(self, operation: Operation) -> list[Flag]:
        words, most = word_count(operation.text), self._settings.max_words
        if words <= most:
            return []
        said = f"{words} words, and every prompt pays for them; {most} should do"
        return [Flag(names.TOO_LONG, round(1 - most / words, 3), said)]

    def _tool_output_flags(self, operation: Operation) -> list[Flag]:
        """An order that a tool's output gave must not become a rule unseen."""
        said = tokens(operation.text)
        shared = (
            (*_shared_instruction(said, output), rollout)
            for rollout in operation.evidence
            for output in self._tool_output(rollout)
        )
        size, words, rollout = max(shared, default=(0, "", ""))
        if not size:
            return []
        detail = f"tells what a tool's output told in {rollout}: “{_shorten(words)}”"
        return [Flag(names.FROM_TOOL, round(size / len(said), 3), detail)]


def _shared_instruction(said: tuple[str, ...], output: str) -> tuple[int, str]:
    """The longest row of words shared with an output, where the words around it give an order."""
    given = {row for _, row in word_ngrams(tokens(output), TOOL_WORDS)}
    best, ends, since, until = 0, 0, 0, 0
    for at, row in word_ngrams(said, TOOL_WORDS):
        if row not in given:
            continue
        since = at if at > until - len(row) + 1 else since
        until = at + len(row)
        if until - since > best:
            best, ends = until - since, until
    found = said[ends - best : ends]
    return (best, " ".join(found)) if best and _is_instruction(found, output) else (0, "")


def _is_instruction(row: tuple[str, ...], output: str) -> bool:
    """Whether a clause of the output with words of the row tells somebody to do something."""
    own = set(row)
    for clause in _CLAUSE.split(output):
        words = tokens(clause)
        if words and len(own.intersection(words)) * 2 >= min(len(own), len(words)):
            first = next((w for w in words if w not in ("then", "and", "so", "now", "first")), "")
            if first in _ORDERS or _INSTRUCTS.search(clause):
                return True
    return False


def _same_target_flags(operation: Operation, others: Sequence[Operation]) -> list[Flag]:
    pins = ("pin", "unpin")
    also = [
        o for o in others
        if o.target == operation.target and {o.kind, operation.kind} - {"keep", *pins}
    ]  # fmt: skip
    if operation.target is None or not also:
        return []
    listed = ", ".join(f"{o.id} ({o.kind})" for o in also)
    return [Flag(names.SAME_TARGET, None, f"{operation.target} is also the target of {listed}")]


def _shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"
