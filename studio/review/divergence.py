"""Where a winner and a loser of one group part: the first step, and its words. Pure.

A step is a sentence of a reply, or a line of a tool call or of a tool's result. The winner has a
step of the loser too, in whatever place, where both find the same number, or say the same in
nearly the same words. The first other step of the loser is where they part, beside the winner's
next one; one that leads to a number both go on with is a detour, and parts nobody.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import islice, product

from engines.core.frozen import frozen
from engines.core.text.similarity import Change, word_diff
from engines.core.text.tool_text import call_text, said_text
from engines.core.types import Message
from studio.secrets.sanitize import sanitize

Piece = tuple[str, str]
"""A key and a text, in the order in which they were said; keys of tool calls begin with "call"."""

_MOST_STEPS, _MOST_TOKENS, MOST_OF_A_SIDE = 120, 120, 3
"""Compared of a side and of a step, and winners and losers tried."""
_MOST_LINES = 8
"""Of a tool's result: it follows from its call."""
_AROUND = 2
"""Lines of a call that are shown before and after the one where it parts."""
_MOST_SHOWN = 240
"""Characters of a step that stand together where only its words are shown."""
_SAME_WORDS = 0.85
"""Share of words in common of a step with the same numbers."""

_SENTENCE = re.compile(r"[^\n]+?(?:[.!?。！？]+(?=\s|$)|$)", re.MULTILINE)
_LINE = re.compile(r"[^\n]+")
_CALL_LINE = re.compile(r"\A[^\n]+\n[^\n]+|[^\n]+")
"""The name of a tool is no step by itself: it goes with the first line of the code."""
_NUMBERING = re.compile(
    r"\s*(?:[-*•#>]+\s+)*"
    r"(?:\**(?:step\s*\d+\s*(?:\([^()]*\)\s*)?|\(?\d{1,2}\s?)[.:)]\**(?:\s|$))?",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\.?\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+|[^\w\s]")


@frozen
class _Step:
    key: str
    start: int
    text: str
    tokens: tuple[str, ...]  # normalized
    words: frozenset[str]
    numbers: frozenset[str]
    results: frozenset[str]  # numbers behind its last "=", those of the question left away
    finds: bool  # a number that was not said before; so does each call of a tool

    @property
    def is_call(self) -> bool:
        return self.key.startswith("call")


@frozen
class PartingStep:
    """The step of one side, from a character of a piece on; what only this side says is marked."""

    key: str
    start: int
    changes: tuple[Change, ...]

    @property
    def end(self) -> int:
        return self.start + sum(len(text) for _, text in self.changes)

    @property
    def marked(self) -> list[tuple[int, int]]:
        """Characters of the piece."""
        spans, at = [], self.start
        for kind, text in self.changes:
            if kind != "same":
                spans.append((at, at + len(text)))
            at += len(text)
        return spans

    def words(self, pieces: Sequence[Piece]) -> tuple[Change, ...]:
        """The step in pieces, of which long ones are shortened; of a call with lines around it."""
        changes = list(self.changes)
        if self.key.startswith("call"):
            text = dict(pieces)[self.key]
            # The tool's name stands first, and is what the first step begins with.
            before = [line for line in text[: self.start].split("\n") if line.strip()]
            after = [line for line in text[self.end :].split("\n") if line.strip()]
            cut = ["…"] if len(before) > _AROUND + 1 else []
            head = [*before[:1], *cut, *before[1:][-_AROUND:], ""]
            tail = ["", *after[:_AROUND]] if after else []
            changes = [("same", "\n".join(head)), *changes, ("same", "\n".join(tail))]
        return tuple((kind, _shorten(piece)) for kind, piece in changes if piece)


@frozen
class Divergence:
    winner: PartingStep
    loser: PartingStep
    shared: float  # of the loser's steps, those before


def choose_pair(
    winners: Mapping[str, Sequence[Piece]], losers: Mapping[str, Sequence[Piece]], question: str
) -> tuple[str, str, Divergence] | None:
    """The winner and the loser that part latest, and where."""
    latest: tuple[str, str, Divergence] | None = None
    sides = (islice(side.items(), MOST_OF_A_SIDE) for side in (winners, losers))
    for (winner, said), (loser, answered) in product(*sides):
        divergence = find_divergence(said, answered, question)
        if divergence and (latest is None or divergence.shared > latest[2].shared):
            latest = winner, loser, divergence
    return latest


def find_divergence(
    winner: Sequence[Piece], loser: Sequence[Piece], question: str = ""
) -> Divergence | None:
    """Where they part; None where one of them says nothing."""
    asked = {*_tokens(question)}
    ours, theirs = _split_steps(winner, asked), _split_steps(loser, asked)
    if not ours or not theirs:
        return None
    computes = all(any(step.finds for step in side) for side in (ours, theirs))
    shared = {}  # the loser's steps → the winner's, those that both have
    for i, step in enumerate(theirs):
        for j, other in enumerate(ours):
            if _is_same(step, other):
                shared[i] = j
                break
    parting, used = len(theirs) - 1, set[str]()
    for i in range(len(theirs) - 1, -1, -1):
        step = theirs[i]
        if i in shared or step.results & used:
            used |= step.numbers
        elif step.finds or not computes:
            parting = i
    passed = max((j for i, j in shared.items() if i < parting), default=-1)
    rest = ours[passed + 1 :] or ours[-1:]
    counterpart = next((step for step in rest if step.finds), rest[0])
    step = theirs[parting]
    changes = word_diff(step.text, counterpart.text)
    return Divergence(
        winner=PartingStep(counterpart.key, counterpart.start, _side_of(changes, "new")),
        loser=PartingStep(step.key, step.start, _side_of(changes, "cut")),
        shared=parting / len(theirs),
    )


def _side_of(changes: Sequence[Change], mark: str) -> tuple[Change, ...]:
    """The pieces of one side; marked words with only a blank between them are one."""
    pieces: list[Change] = []
    for kind, text in changes:
        if pieces and pieces[-1][0] == mark and (kind == mark or text.isspace()):
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + text)
        elif kind in ("same", mark):
            pieces.append((kind, text))
    return tuple(pieces)


def said_pieces(messages: Sequence[Message]) -> tuple[Piece, ...]:
    """What a rollout said, called and was answered, sanitized."""
    out: list[Piece] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            out += [(f"think{number}", message.reasoning), (f"answer{number}", said_text(message))]
            calls = (call_text(call.name, call.arguments) for call in message.tool_calls)
            out += [(f"call{number}.{at}", text) for at, text in enumerate(calls)]
        elif message.role == "tool":
            out.append((f"tool{number}", message.content))
    return tuple((key, sanitize(text)) for key, text in out if text)


def _shorten(text: str) -> str:
    half = _MOST_SHOWN // 2
    return text if len(text) <= _MOST_SHOWN else f"{text[:half]} … {text[-half:]}"


def _tokens(text: str) -> list[str]:
    numbered = _NUMBERING.match(text)
    tokens = []
    for match in _TOKEN.finditer(text, numbered.end() if numbered else 0):
        token = match[0].casefold()
        if token[-1].isdecimal():
            token = f"{float(token.replace(',', '')):.12g}"
        tokens.append(token)
    return tokens[:_MOST_TOKENS]


def _split_steps(pieces: Sequence[Piece], asked: set[str]) -> list[_Step]:
    steps, said = list[_Step](), set(asked)
    for key, text in pieces:
        pattern = {"call": _CALL_LINE, "tool": _LINE}.get(key[:4], _SENTENCE)
        most = _MOST_LINES if pattern is _LINE else _MOST_STEPS
        for part in islice(pattern.finditer(text), most):
            if pattern is _CALL_LINE and part[0].lstrip().startswith("#"):
                continue  # what a program says of itself changes nothing
            names = _tokens(part[0])
            numbers = frozenset(name for name in names if name[-1].isdecimal())
            words = frozenset(name for name in names if name[0].isalpha())
            if not words and not numbers:
                continue
            results = frozenset[str]()
            if "=" in names and pattern is not _CALL_LINE:  # `n = 2` in a program finds nothing
                behind = names[len(names) - names[::-1].index("=") :]
                results = (numbers & {*behind}) - asked
            finds = pattern is _CALL_LINE or bool(results or numbers - said)
            step = part.start(), part[0], tuple(names), words, numbers, results, finds
            steps.append(_Step(key, *step))
            said |= numbers
    return steps[:_MOST_STEPS]


def _is_same(step: _Step, other: _Step) -> bool:
    """Tell whether a step of the other side says what this one says."""
    if step.is_call != other.is_call:
        return False
    if sorted(step.tokens) == sorted(other.tokens):
        return True
    if step.is_call:
        return False  # `<` is not `<=`, and n + 1 is not n - 1
    total = len(step.words) + len(other.words)
    alike = 2 * len(step.words & other.words) >= _SAME_WORDS * total
    if step.results:
        # By other numbers and in other words another step happens to find the same.
        common = step.numbers & other.numbers
        return step.results == other.results and (alike or common > step.results)
    return alike and step.numbers == other.numbers
