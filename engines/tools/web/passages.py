"""A page as its passages, and a question answered from the ones that fit it best."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from engines.core.finish import is_cut
from engines.core.protocols import Embedder, Policy, ToolTry
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.sanitize import escape_unsafe, one_line
from engines.core.text.similarity import index_words, tokens
from engines.core.tools import ToolResult
from engines.core.types import NO_USAGE, Message, Sampling, Usage

WORDS, OVERLAP = 200, 20
"""Of a passage; and how many of its last words begin the next one."""
KEPT = 10
MAX_EMBEDDED = 63
"""Passages that are embedded, the nearest by words: with the question they fill one request."""
MAX_TEXT_CHARS = 1_000_000
"""Of a page; what is behind them is not read."""
_WORD = re.compile(r"\S{1,40}")
"""What has no blanks for so long is Chinese, code or noise, and counts as several words."""


@dataclass(frozen=True, slots=True)
class PageText:
    url: str
    title: str
    text: str
    note: str = ""  # of ours, such as that only its beginning was read


@dataclass(frozen=True, slots=True)
class PageReader:
    """`policy` answers from the passages alone; None gives the passages themselves."""

    policy: Policy | None
    embedder: Embedder | None = None

    async def read(
        self, page: PageText, question: str, within: ToolTry, most: int = KEPT
    ) -> ToolResult:
        """`most` passages are given without a model. Raises CallFailed, also of the embedder."""
        most = KEPT if self.policy else most
        best, usage = await find_passages(question, page.text, self.embedder, most)
        if self.policy is None:
            return ToolResult(quote_outside(page.url, "\n…\n".join(best), page.note), usage=usage)
        prompt = load_prompt("engines.tools", "answer_from_passages").render(
            page=quote(f"{page.title}\n{page.url}"),
            question=quote(question),
            passages="\n\n".join(f"Passage {n}\n{quote(text)}" for n, text in enumerate(best, 1)),
        )
        asked = (Message("user", prompt),)
        reply = await within.ask(self.policy, asked, Sampling(temperature=0.0))
        usage += reply.usage
        if not reply.text.strip():
            place = one_line(page.url)[:300]
            said = f"The model that read {place} gave no text (it ended with {reply.finish!r})."
            return ToolResult(said, "error", usage)
        note = "; ".join(
            filter(None, (page.note, "cut at its length limit" * is_cut(reply.finish)))
        )
        return ToolResult(quote_outside(page.url, reply.text, note), usage=usage)


def quote_outside(url: str, text: str, note: str = "") -> str:
    """`From outside, URL:` and the lines of a text, each quoted; the note is our own."""
    place = one_line(url)[:300] + (f" ({note})" if note else "")
    lines = (f"> {escape_unsafe(line)}".rstrip() for line in text.strip().splitlines())
    return "\n".join((f"From outside, {place}:", *lines))


def split_passages(text: str) -> list[str]:
    """Passages of `WORDS` words, each but the first beginning `OVERLAP` words before the last."""
    spans = [found.span() for found in _WORD.finditer(text)]
    starts = range(0, max(len(spans) - OVERLAP, 1), WORDS - OVERLAP)
    parts = (spans[start : start + WORDS] for start in starts)
    return [text[part[0][0] : part[-1][1]] for part in parts if part]


async def find_passages(
    question: str, text: str, embedder: Embedder | None, most: int = KEPT
) -> tuple[Sequence[str], Usage]:
    """The passages that fit a question best, the best first: by words, or the cosine of vectors."""

    def nearest_by_words() -> list[str]:
        passages = split_passages(text)
        find_best = index_words([tokens(passage) for passage in passages])
        return [
            passages[at] for at in find_best(tokens(question), MAX_EMBEDDED if embedder else most)
        ]

    passages = await asyncio.to_thread(nearest_by_words)
    if embedder is None or len(passages) < 2:
        return passages, NO_USAGE
    result = await embedder.embed([question, *passages])
    asked, *vectors = result.vectors
    # Of length 1, so that the product of two is their cosine.
    scores = [sum(a * b for a, b in zip(asked, other, strict=True)) for other in vectors]
    best = sorted(range(len(passages)), key=lambda at: -scores[at])[:most]
    return [passages[at] for at in best], result.usage
