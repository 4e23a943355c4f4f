"""What a reviewer should look at in a proposed operation, said before anyone is asked.

All of it works without a network; with an embedder duplicates are also found by meaning. Decides
nothing: rules and people do. Faults of a wording are found by the words of
`wordings.yaml`.

A text gives a problem away by its question in its own words, or by its answer.

Words are those of `engines.core.text.similarity.tokens`, in any language.

* A question leaks where so many of its words stand in a row in the text, unless the same row
  stands in more than `FORM` different questions: then it is how they are put, not what one asks.
  A shorter question leaks where all of it stands there and it is no mere phrase.
* An answer leaks where it stands whole in the text, in any dress (TeX, separators,
  words, percent). A number
  counts from three significant digits on (100 has one, 360 two, 128 three), because shorter ones
  stand in many sentences; one of just three may be a well-known constant (365, 3.14) and scores
  half. A shorter one counts where the text says that it is the answer. Words count as
  two or more, or as one that is the answer of one or two problems only (others are the classes
  of a task, such as "positive") and of no question of its own (rules name those things).
"""

import asyncio
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from fractions import Fraction
from functools import cache, cached_property
from importlib import resources
from typing import Any

import yaml

from engines.core import errors, protocols
from engines.core import types as names
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.text.sanitize import one_line
from engines.core.text.similarity import SimilarTexts, tokens, window_length, word_count
from engines.core.types import NO_USAGE, Flag, Names, Operation, Problem, Usage
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
        embedder: protocols.Embedder | None = None,
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
    def _questions(self) -> "QuestionIndex":
        return QuestionIndex(self._practised, self._held_out, self._settings.leak_words)

    @cached_property
    def _answers(self) -> "AnswerIndex":
        return AnswerIndex(self._practised)

    @cached_property
    def _stories(self) -> "StoryIndex":
        return StoryIndex(self._practised, frozenset(_words()["names"].split()))

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
        except errors.CallFailed as failed:
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


def _shared_instruction(said: Names, output: str) -> tuple[int, str]:
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


def _is_instruction(row: Names, output: str) -> bool:
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


FORM = 5
_CLASS_FROM = 3  # problems that share a one-word answer
_PHRASE = 5  # words of a short question that holds no number
_LEAST = 3
_SIGNIFICANT = 3
_NUMBER_BITS = 24  # of an entry, for the number of its question
_LOW = (1 << _NUMBER_BITS) - 1
_HIGH = (1 << 64) - 1 - _LOW
_COMMON_PARTS = 12
_ANYONES = frozenset(["0", "1", "2", "10", "12", "24", "60", "90", "100", "180", "360", "1000"])
"""Figures that stand in many questions."""
_CAPITAL = re.compile(r"\b[A-ZÄÖÜ][^\W\d_]{2,}")
_INSIDE = re.compile(r"(?<=[\w,;)’'] )([^\W\d_]{3,})")
_OPERATOR = re.compile(r"sqrt|\\pi|π|[=^*+√]|(?<=\w)\s*-\s*(?=\w)|(?<=\d)[a-z]\b(?!\w)")
"""Of an answer that is more than a number with its unit."""
_LINK = (
    r"(?:\s|[:=$€£“\"'(*]|\b(?:is|was|are|were|be|must|should|will|to (?:give|report|write)|of|here"
    r"|there|then|thus|therefore|exactly|simply|just|with|lautet|ist|war|beträgt)\b|是|为|等于)*$"
)
_IS_ANSWER = re.compile(
    r"(?:\b(?:answer(?:s|ed)?|result|solution|antwort|ergebnis|lösung)\b|答案|结果)" + _LINK,
    re.IGNORECASE,
)
_COMES_TO = re.compile(
    r"\b(?:(?:here|which|this|that|it|so) (?:\w+ ){0,2}?(?:makes?|gives?|yields?|leaves?|equals?)"
    r"|giving|yielding|(?:comes?|came) (?:out )?(?:to|as|at|be))\b" + _LINK,
    re.IGNORECASE,
)


@frozen
class SharedWords:
    """Words that a text has in a row in common with a question; `share` is of the question."""

    held_out: bool
    words: int
    share: float
    text: str


class QuestionIndex:
    """Every row of so many words of the questions, found by hash and then compared.

    Takes 8 bytes a word of them. Held-out questions come first, so that one which stands in
    both sets counts as held out.
    """

    def __init__(
        self, practised: Sequence[Problem], held_out: Sequence[Problem], words: int
    ) -> None:
        self._words = words
        hidden = dict.fromkeys(problem.question for problem in held_out)
        known = dict.fromkeys(problem.question for problem in practised)
        self._texts = list({**hidden, **known})
        self._held_out = len(hidden)
        self._short: dict[Names, int] = {}
        entries = array("Q")
        for number, text in enumerate(self._texts):
            asked = tokens(text)
            rows = {row for _, row in word_ngrams(asked, words)}
            entries.extend(hash(row) & _HIGH | number for row in rows)
            if not rows and _is_distinctive(asked):
                self._short.setdefault(asked, number)
        self._entries = array("Q", sorted(entries))
        self._lengths = sorted({len(short) for short in self._short})

    def longest_shared(self, text: str) -> tuple[SharedWords, ...]:
        """The longest row a text shares with a held-out question, and with a practised one."""
        said = tokens(text)
        covered: dict[int, set[int]] = {}
        for at, row in word_ngrams(said, self._words):
            for number in self._questions_with(row):
                covered.setdefault(number, set()).update(range(at, at + len(row)))
        found = [self._longest_match(said, number, places) for number, places in covered.items()]
        for length in self._lengths:
            for at in range(len(said) - length + 1):
                number = self._short.get(said[at : at + length], -1)
                if number >= 0:
                    words = " ".join(said[at : at + length])
                    found.append(SharedWords(number < self._held_out, length, 1.0, words))
        found.sort(key=lambda s: (s.words, s.share))  # the last one of each kind stays
        return tuple({shared.held_out: shared for shared in found}.values())

    def _questions_with(self, row: Names) -> list[int]:
        """Questions that hold a row; none where it is a form of many."""
        key = hash(row) & _HIGH
        start = bisect_left(self._entries, key)
        end = bisect_left(self._entries, key + _LOW)
        if end - start > FORM:
            return []
        numbers = [entry & _LOW for entry in self._entries[start:end]]
        return [number for number in numbers if self._holds(number, row)]

    def _holds(self, number: int, row: Names) -> bool:
        asked = tokens(self._texts[number])
        return any(row == other for _, other in word_ngrams(asked, self._words))

    def _longest_match(self, said: Names, number: int, places: set[int]) -> SharedWords:
        best = start = end = 0
        for at in sorted(places):
            start = at if at - 1 not in places else start
            if at - start + 1 > best:
                best, end = at - start + 1, at + 1
        share = min(1.0, best / len(tokens(self._texts[number])))
        return SharedWords(number < self._held_out, best, share, " ".join(said[end - best : end]))


class AnswerIndex:
    """What may give the answer of a practised problem away, by the problem's id."""

    def __init__(self, practised: Sequence[Problem]) -> None:
        self._problems = {problem.id: problem for problem in practised}
        shared = Counter(
            (text, problem.question)
            for problem in self._problems.values()
            for text in {tokens(plain_numbers(one)) for one in problem.accepted_answers}
        )
        self._answered = Counter(text for text, _ in shared)

    def find_leak(self, text: str, problems: Sequence[str]) -> tuple[str, float] | None:
        """The answer of one of these problems that stands in the text, and how telling it is."""
        plain = plain_numbers(text)
        said, numbers = tokens(plain), list(find_numbers(plain))
        found = [
            (answer, max(_number_score(answer, numbers), self._word_score(answer, said, problem)))
            for problem in (self._problems[name] for name in problems if name in self._problems)
            for answer in map(_final_answer, problem.accepted_answers)
        ]
        best = max(found, key=lambda pair: pair[1], default=("", 0.0))
        return best if best[1] > 0 else None

    def _word_score(self, answer: str, said: Names, problem: Problem) -> float:
        words = tokens(plain_numbers(answer))
        if not words or not _contains_words(words, said) or not any(w.isalpha() for w in words):
            return 0.0
        if _single_number(answer):
            return 0.0
        if sum(w.isalpha() for w in words) > (1 if window_length(words[0], 2) == 2 else 3):
            return 1.0
        asked = _contains_words(words, tokens(problem.question))
        short = sum(map(len, words)) < _LEAST and window_length(words[0], 2) == 2
        if asked or short or self._answered[words] >= _CLASS_FROM:
            return 0.0
        return 0.5


class StoryIndex:
    """Who and what the questions of practised problems tell of."""

    def __init__(self, practised: Sequence[Problem], common: Set[str]) -> None:
        self._questions = {problem.id: problem.question for problem in practised}
        self._common = common
        self._held = Counter(w for q in self._questions.values() for w in set(_CAPITAL.findall(q)))
        self._most = max(FORM, len(self._questions) // 50)

    def find_story(self, text: str, problems: Sequence[str]) -> Names:
        """Names and figures of one of these problems that the text tells; () where it is none.

        A name with a figure or another name does, or three figures of two digits.
        """
        figures, said = _figures(text), set(_CAPITAL.findall(text))
        for question in (self._questions[name] for name in problems if name in self._questions):
            shared = figures & _figures(question) - _ANYONES
            # One that begins a sentence here is a name where it does not begin one there.
            asked = set(_CAPITAL.findall(question))
            both = (_names(question) & said | _names(text) & asked) - self._common
            named = {name for name in both if self._held[name] <= self._most}
            if named and len(named) * 2 + len(shared) >= _LEAST:
                return (*sorted(named), *sorted(shared))
            if sum(len(figure) > 1 for figure in shared) >= _LEAST:
                return tuple(sorted(shared))
        return ()


def _figures(text: str) -> set[str]:
    return {match[0].strip() for _, _, match in find_numbers(plain_numbers(text))}


def _names(text: str) -> set[str]:
    """Words with a capital inside a sentence, unless every third has one, as in German."""
    inside = _INSIDE.findall(text)
    names = [word for word in inside if word[0].isupper()]
    return set(names) if len(names) * 3 <= len(inside) else set()


_Number = tuple[frozenset[Fraction], int, re.Match[str]]


def _single_number(answer: str) -> _Number | None:
    """The number that an answer is, perhaps with a unit."""
    plain = plain_numbers(answer)
    found = list(find_numbers(plain))
    return found[0] if len(found) == 1 and not _OPERATOR.search(plain) else None


def _number_score(answer: str, numbers: Sequence[_Number]) -> float:
    """How telling a single number is, wherever it stands or where it is said to be the answer."""
    own = _single_number(answer)
    if own is None:
        return 0.0
    values, digits, match = own
    score = 0.0
    for others, _, at in numbers:
        if not values & others:
            continue
        before = at.string[max(0, at.start() - 60) : at.start()]
        told = _IS_ANSWER.search(before) or (digits > 1 and _COMES_TO.search(before))
        if told or (digits > _SIGNIFICANT and not match[2]):
            return 1.0
        if digits == _SIGNIFICANT or (match[2] and int(match[2]) > _COMMON_PARTS):
            score = 0.5
    return score


def word_ngrams(found: Names, words: int) -> Iterator[tuple[int, Names]]:
    """Every row of so many words of a text's tokens, with where it begins."""
    for at, token in enumerate(found):
        size = window_length(token, words)
        if at + size <= len(found):
            yield at, found[at : at + size]


def _is_distinctive(found: Names) -> bool:
    numbered = any(token.isdecimal() for token in found)
    return len(found) >= (_LEAST if numbered else window_length(found[0], _PHRASE) if found else 1)


def _final_answer(answer: str) -> str:
    """What a worked answer ends in; an answer that is no more than that stays as it is."""
    return answer.rpartition("####")[2].strip()


def _contains_words(words: Names, said: Names) -> bool:
    size = len(words)
    return any(said[at : at + size] == words for at in range(len(said) - size + 1))


_UNITS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_WORDS = {word: n for n, word in enumerate(_UNITS.split())}
_WORDS |= {word: 10 * n for n, word in enumerate(_TENS, 2)}
_ONE = "|".join(sorted((*_WORDS, *_SCALES), key=len, reverse=True))
_SPOKEN = re.compile(rf"\b(?:{_ONE})(?:(?:[\s-]+|\s+and\s+)(?:{_ONE}))*\b", re.IGNORECASE)

_REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\[dtc]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"\1/\2"),
        (r"\\[dtc]?frac\s*(\d)\s*(\d)", r"\1/\2"),
        (r"\^\s*\{?\s*\\circ\s*\}?|°", " degrees"),
        (r"(?<=\d)(?:\{,\}|\\[,;:! ])(?=\d{3}(?!\d))", ""),
        (r"\\(?:text(?:bf|rm|it)?|mathrm|mathbf|boxed|fbox|left|right|displaystyle)\b", " "),
        (r"\\sqrt(?![a-z])|√", " sqrt "),
        (r"(?<=\d)\s+over\s+(?=\d)", "/"),
        (r"\\([%$#&_])", r"\1"),
        (r"[{}]", " "),
        (r"(?<![\d.])(\d{1,3})((?:[,'’\u00a0\u202f\u2009 ]\d{3})+)(?![\d])", None),
        (r"(?<![\d.,])(\d+),(\d{1,2})(?![\d,])", r"\1.\2"),
    )
]
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_./])(\d+(?:\.\d+)?|\.\d+)(?:\s*/\s*(\d+)(?!\d|\.\d|/))?(?!\d|\.\d)"
    r"(\s*(?:%|percent\b|per cent\b|Prozent\b))?"
)


def plain_numbers(text: str) -> str:
    """The text with each number in digits, without TeX or separators."""
    if text.isdecimal():
        return text
    for pattern, new in _REWRITES:
        text = pattern.sub(new if new is not None else _join_groups, text)
    return _SPOKEN.sub(_write_digits, text)


def find_numbers(plain: str) -> Iterator[_Number]:
    """What each number may be, how many digits tell anything, and where; 25 % is 0.25, too."""
    for match in _NUMBER.finditer(plain):
        whole, under, percent = match.groups()
        value = Fraction(whole)
        if under and int(under):
            value /= int(under)
        values = {value, value / 100} if percent else {value}
        digits = (whole.replace(".", "") + (under or "")).strip("0")
        yield frozenset(values), len(digits), match


def _join_groups(match: re.Match[str]) -> str:
    return match[1] + re.sub(r"\D", "", match[2])


def _write_digits(match: re.Match[str]) -> str:
    words = match[0].lower()
    if words == "one":  # one of them, one number
        return words
    total = part = 0
    for word in re.split(r"[\s-]+", words):
        scale = _SCALES.get(word)
        if scale == 100:
            part = max(1, part) * scale
        elif scale:
            total, part = total + max(1, part) * scale, 0
        else:
            part += _WORDS.get(word, 0)
    return str(total + part)
