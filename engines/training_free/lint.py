"""What a reviewer should look at in a proposed operation, said before anyone is asked.

All of it works without a network; with an embedder duplicates are also found by meaning. Decides
nothing: rules and people do. Faults of a wording are found by the words of
`wordings.yaml`.
"""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from typing import Any

import yaml

from engines.core import types as names
from engines.core.errors import CallFailed
from engines.core.library import Library
from engines.core.protocols import Embedder
from engines.core.text.sanitize import one_line
from engines.core.text.similarity import SimilarTexts, tokens, word_count
from engines.core.types import NO_USAGE, Flag, Operation, Problem, Usage
from engines.training_free.leaks import (
    AnswerIndex,
    QuestionIndex,
    StoryIndex,
    plain_numbers,
    word_ngrams,
)
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
_WORDED = ("add", "modify")
_Vectors = dict[str, Sequence[float]]
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
        self._index: SimilarTexts | None = None  # kept from one lesson to the next

    async def flags_of(
        self, operations: Sequence[Operation], library: Library, others: Sequence[Operation] = ()
    ) -> tuple[tuple[Flag, ...], ...]:
        """See the protocol. All of the work is done in a thread: much of it takes seconds."""
        beside = {other.id: other for other in (*operations, *others)}
        texts = {e.id: e.text for e in library.experiences}
        texts |= {o.id: o.text for o in beside.values() if o.kind in _WORDED and o.text}
        wanted = {op.id for op in operations if op.kind in _WORDED and op.text}
        own = [op.text for op in operations if op.id in wanted]
        meant = await self._embed([*texts.values(), *own]) if own else {}
        # Taken while it is used: a person may edit while a lesson is linted.
        index, self._index = self._index or SimilarTexts(self._settings.duplicate_at), None

        def flag_all() -> tuple[tuple[Flag, ...], ...]:
            targets: defaultdict[str | None, list[Operation]] = defaultdict(list)
            for other in beside.values():
                targets[other.target].append(other)
            if wanted:  # else nothing is compared, and the first time takes a second
                index.hold(texts)
            found = []
            for operation in operations:
                alike: list[Flag] = []
                if operation.id in wanted:
                    near = index.nearest(operation.text, (operation.id, operation.target))
                    alike = self._similarity_flags(operation, near, texts, meant)
                found.append(tuple(self._flags(operation, library, alike, targets)))
            return tuple(found)

        found = await asyncio.to_thread(flag_all)
        self._index = index
        return found

    def _flags(
        self,
        operation: Operation,
        library: Library,
        alike: Sequence[Flag],
        targets: Mapping[str | None, Sequence[Operation]],
    ) -> Iterator[Flag]:
        about = library.get(operation.target)
        if operation.kind in ("modify", "delete") and about is not None and about.pinned:
            yield Flag(names.PINNED, None, f"a person pinned {about.id}, so the gate rejects this")
        if operation.kind in _WORDED and operation.text:
            yield from alike
            yield from self._leak_flags(operation)
            yield from wording_flags(operation.text)
            yield from self._length_flags(operation)
            yield from self._tool_output_flags(operation)
        if operation.target is not None:
            yield from _same_target_flags(operation, targets[operation.target])
        groups = {rollout.rpartition("r")[0] for rollout in operation.evidence}
        if len(groups) == 1 and operation.kind != "keep":
            yield Flag(names.ONE_GROUP, None, f"only group {next(iter(groups))} supports it")

    def take_usage(self) -> Usage:
        """What embeddings have cost since this was last asked."""
        paid, self._paid = self._paid, NO_USAGE
        return paid

    @cached_property
    def _questions(self) -> QuestionIndex:
        return QuestionIndex(self._practised, self._held_out, self._settings.leak_words)

    @cached_property
    def _answers(self) -> AnswerIndex:
        return AnswerIndex(self._practised)

    @cached_property
    def _stories(self) -> StoryIndex:
        return StoryIndex(self._practised, common_names())

    def _similarity_flags(
        self,
        operation: Operation,
        near: tuple[str, float] | None,
        texts: Mapping[str, str],
        meant: _Vectors | str,
    ) -> list[Flag]:
        best, score = near or ("", 0.0)
        how, trouble = "nearly the wording", ""
        if isinstance(meant, str):
            trouble = meant
        elif meant:
            others = {n: t for n, t in texts.items() if n not in (operation.id, operation.target)}
            name, cosine = _nearest_vector(operation.text, others, meant)
            if cosine > (score or self._settings.duplicate_at - 1e-9):
                best, score, how = name, cosine, "the meaning"
        if not best:
            said = f"compared with others{trouble}"
            return [Flag(names.NOT_COMPARED, None, said)] if trouble else []
        said = f"has {how} of {best}: {_shorten(texts[best])}{trouble}"
        found = [Flag(names.DUPLICATE, round(score, 3), said)]
        if opposite := contradiction(operation.text, texts[best]):
            found.append(Flag(names.CONFLICT, None, f"contradicts {best}: it says {opposite}"))
        return found

    async def _embed(self, texts: Sequence[str]) -> _Vectors | str:
        """The vector of each text of a lesson, or what to say where there are none to be had."""
        if self._embedder is None or not texts:
            return {}
        try:
            found = await self._embedder.embed(wanted := list(dict.fromkeys(texts)))
        except CallFailed as failed:
            self._paid += failed.usage
            return f" (by wording only, since {self._embedder.name} failed: {failed})"
        self._paid += found.usage
        return dict(zip(wanted, found.vectors, strict=True))

    def _leak_flags(self, operation: Operation) -> list[Flag]:
        found = []
        for shared in self._questions.longest_shared(operation.text):
            which = "held-out" if shared.held_out else "practised"
            said = f"repeats {shared.words} words in a row of a {which} question: "
            kind = names.HELD_OUT_LEAK if shared.held_out else names.LEAK
            detail = f"{said}“{_shorten(shared.text)}”"
            found.append(Flag(kind, round(shared.share, 3), detail))
        if given := self._answers.find_leak(operation.text, operation.problems):
            answer, score = given
            said = f"names “{_shorten(answer)}”, the answer of a problem it was drawn from"
            found.append(Flag(names.LEAK, score, said))
        if told := self._stories.find_story(operation.text, operation.problems):
            said = f"tells of a problem it was drawn from: {', '.join(told)}"
            found.append(Flag(names.ONE_PROBLEM, None, said))
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


def _nearest_vector(text: str, texts: Mapping[str, str], meant: _Vectors) -> tuple[str, float]:
    """The text whose meaning lies nearest, and its cosine in [0, 1]."""
    own, best = meant[text], ("", 0.0)
    for name, other in texts.items():
        cosine = sum(a * b for a, b in zip(own, meant[other], strict=True))
        best = (name, min(1.0, cosine)) if cosine > best[1] else best
    return best


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
        if o.id != operation.id and {o.kind, operation.kind} - {"keep", *pins}
    ]  # fmt: skip
    if not also:
        return []
    listed = ", ".join(f"{o.id} ({o.kind})" for o in also)
    return [Flag(names.SAME_TARGET, None, f"{operation.target} is also the target of {listed}")]


def _shorten(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"


_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\W?[A-ZÄÖÜ])|(?<=[。！？])|\n+")
_CODE = re.compile(r"`[^`]*`")
_MOST_CHARS = 4_000
"""What is read of a text: a pattern may take time that grows with the square of a sentence."""


def wording_flags(text: str) -> list[Flag]:
    """A flag for each fault, with the words that show it."""
    text = text[:_MOST_CHARS]
    sentences = _SENTENCE.split(text)
    found = []
    for name, (says, finds, unless, whole) in _faults().items():
        for sentence in [_CODE.sub("`code`", text)] if whole else sentences:
            match = next((m for pattern in finds if (m := pattern.search(sentence))), None)
            if match and not any(pattern.search(sentence) for pattern in unless):
                found.append(Flag(name, None, f"{says}: “{one_line(match[0])[:120]}”"))
                break
    return found


def contradiction(one: str, other: str) -> str:
    """How one wording says the opposite of another that is nearly the same; "" where it does not.

    Nearly the same: but for two words on each side, all words of one are those of the other.
    """
    mine, theirs = (Counter(tokens(plain_numbers(text))) for text in (one, other))
    new, gone = list((mine - theirs).elements()), list((theirs - mine).elements())
    if max(len(new), len(gone)) > 2:
        return ""
    for word, old in ((word, old) for word in new for old in gone):
        if (word.isdecimal() and old.isdecimal()) or {word, old} in _words()["opposites"]:
            return f"“{word}”, not “{old}”"
    denial = next((word for word in (*new, *gone) if word in _words()["denials"]), "")
    return f"“{denial}” in one only" if denial and not (new and gone) else ""


def common_names() -> frozenset[str]:
    """Words with a capital that tell of nobody."""
    return frozenset(_words()["names"].split())


@cache
def _words() -> dict[str, Any]:
    source = resources.files(__package__).joinpath("wordings.yaml").read_text("utf-8")
    words = yaml.load(source, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    words["opposites"] = [set(pair.split("/")) for pair in words["opposites"].split()]
    assert isinstance(words, dict)
    return words


@cache
def _faults() -> dict[str, tuple[str, list[re.Pattern[str]], list[re.Pattern[str]], bool]]:
    """By the name of a flag: what it says, what is looked for, what excuses it; whole text?"""
    parts = {name: part.replace(" |", "|") for name, part in _words()["parts"].items()}

    def pattern(words: str, case: bool) -> re.Pattern[str]:
        for _ in range(2):  # a part may hold another
            words = re.sub(r"\{([a-z]+)\}", lambda m: f"(?:{parts[m[1]]})", words)
        return re.compile(words, 0 if case else re.IGNORECASE)

    return {
        name: (
            fault["says"],
            [pattern(words, fault.get("case", False)) for words in fault["find"]],
            [pattern(words, False) for words in fault["unless"]],
            fault.get("case", False),
        )
        for name, fault in _words()["faults"].items()
    }
