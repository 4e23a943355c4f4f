"""The tool `read_page`: the text of a page, its passages, and a question answered from them.

The text is what a reader of the page sees, without scripts and hidden parts; what only a style
sheet or a script hides or shows is not known here. The passages that fit the question best are
given, or a model answers from them.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.core.codec import fix_surrogates
from engines.core.errors import ToolError
from engines.core.protocols import Embedder, Policy, ToolTry
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.sanitize import escape_unsafe, one_line
from engines.core.text.similarity import index_words, tokens
from engines.core.types import NO_USAGE, Message, Sampling, ToolResult, Usage, is_cut
from engines.tools.function import FunctionTool
from engines.tools.web.fetch import Fetched, Fetcher, FetchFailed, WebCache, read_url


@dataclass(frozen=True, slots=True)
class PageText:
    url: str
    title: str
    text: str
    note: str = ""  # of ours, such as that only its beginning was read


LoadPage = Callable[[str], Awaitable[PageText]]


def read_page_tool(
    load: LoadPage, reader: "PageReader", cache: WebCache, kind: str
) -> FunctionTool:
    async def read_page(url: str, question: str, within: ToolTry) -> ToolResult:  # noqa: D417
        """Read a page of the web and see what it says about a question.

        Limits: text alone, no PDF, no pictures, nothing behind a log-in; of long pages the
        passages that fit the question.
        Best practice: take an address from a search, and ask one whole question.

        Args:
            url: the whole address, such as https://example.org/page
            question: what you want to know from it

        Repeatable: yes
        """
        try:
            page = await load_kept(load, url, cache, kind)
        except FetchFailed as failed:
            return ToolResult(f"The page was not read: {failed}", "error")
        return await reader.read(page, question, within)

    return FunctionTool(read_page)


async def load_kept(load: LoadPage, name: str, cache: WebCache, kind: str) -> PageText:
    """A page as it is kept, else as it is now. Raises FetchFailed."""

    async def look_up() -> tuple[str, ...]:
        page = await load(name)
        cut = len(page.text) > MAX_TEXT_CHARS
        note = "only its beginning was read" if cut else page.note
        return page.url, page.title, page.text[:MAX_TEXT_CHARS], note

    return PageText(*await cache.get(kind, name, look_up))


async def load_directly(fetcher: Fetcher, url: str) -> PageText:
    fetched = await fetcher.fetch(url)
    title, text = await asyncio.to_thread(read_text, fetched)
    return PageText(fetched.url, title, text, "only its beginning was read" * fetched.is_cut)


async def load_by_jina(fetcher: Fetcher, address: str, key: str, url: str) -> PageText:
    """The key raises its limits: without one it answers 20 requests a minute."""
    place = read_url(url)
    # An address in here is nobody's business out there.
    await fetcher.guard.find_addresses(place.host, place.port or 443)
    headers = {"Authorization": f"Bearer {key}"} if key else None
    data = (await fetcher.ask_service(f"{address}/{place}", headers)).get("data") or {}
    if not (text := str(data.get("content") or "").strip()):
        raise FetchFailed(f"{place} has no text that Jina could read.")
    return PageText(str(place), str(data.get("title") or ""), text)


_READ = re.compile(r"|text/(html|plain|markdown|xml|csv)|application/([\w.-]+\+)?(xml|json)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w-]{2,20})", re.IGNORECASE)
# Of the codecs that Python has, some are no charsets, and "punycode" takes quadratic time.
_USUAL = re.compile(r"(?:utf|iso|windows|cp|shift|euc|gb|big5|koi8|us-ascii|ascii|latin|mac)[\w-]*")
_UNSEEN = (
    "//script|//style|//noscript|//template|//svg|//iframe|//object|//comment()|//*[@hidden]"
    "|//*[@aria-hidden='true']"
)
_UNSEEN_STYLE = re.compile(
    r"display:none|visibility:hidden|(?:opacity|font-size):0(?:\.0*)?(?:px|pt|em|%)?(?:;|$)"
    r"|(?:left|top|text-indent):-\d{3}"
)
MAX_ELEMENTS = 30_000
"""Of more, all text is taken: what finds the main text takes 25 s of 600,000 of them."""


def read_text(fetched: Fetched) -> tuple[str, str]:
    """Title and text; takes a second of a large page. FetchFailed: there is none to read."""
    kind = fetched.content_type.partition(";")[0].strip().lower()
    if not _READ.fullmatch(kind):
        raise FetchFailed(f"{fetched.url} is of the type {kind[:60]}, and only text is read.")
    # By the charset that is named, else UTF-8; what does not fit it is shown as U+FFFD.
    head = fetched.body[:2_000].decode("ascii", "replace")
    named = _CHARSET.search(fetched.content_type) or _CHARSET.search(head)
    charset = named[1].lower() if named and _USUAL.fullmatch(named[1].lower()) else "utf-8"
    try:
        title, text = "", fetched.body.decode(charset, "replace")
    except LookupError:
        text = fetched.body.decode("utf-8", "replace")
    if "html" in kind or not kind:
        title, text = _read_html(text, fetched.url)
    if not (text := fix_surrogates(text).strip("\ufeff \n")):
        raise FetchFailed(f"{fetched.url} has no text that could be read.")
    return " ".join(title.split())[:200], text


def _read_html(text: str, url: str) -> tuple[str, str]:
    import lxml.html
    from lxml.etree import ParserError
    from trafilatura import bare_extraction, html2txt

    try:
        parser = lxml.html.HTMLParser(encoding="utf-8")
        tree: Any = lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser)
    except ParserError:  # it is empty
        return "", ""
    title = str(tree.findtext(".//title") or "")
    styles = tree.xpath("//@style")
    unseen = [s.getparent() for s in styles if _UNSEEN_STYLE.search("".join(s.lower().split()))]
    for node in (*unseen, *tree.xpath(_UNSEEN)):
        if node.getparent() is not None:
            node.drop_tree()
    found: Any = None
    if tree.xpath("count(//*)") <= MAX_ELEMENTS:
        found = bare_extraction(tree, url=url, include_comments=False)
    return title, str(found.text if found else "") or html2txt(tree, clean=False)


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


MAX_TITLES = 10


class LocalPages:
    """Pages of a JSON lines file of {title, url, text}, or of a folder of *.md, each `# Title`."""

    def __init__(self, source: Path, place: str) -> None:
        """Raises ToolError: it cannot be read, or something in it is no page."""
        if not source.exists():
            move = "Set source to one beside the run file, or to its whole path."
            raise ToolError(place, f'there is no file or folder "{source}".', move)
        read, kind = (_read_folder, "folder") if source.is_dir() else (_read_lines, "fixture file")
        try:
            self._note = f"a page of the {kind} {source.name}"
            self._pages = [replace(page, note=self._note) for page in read(source)]
            if not self._pages:
                raise ValueError("there is none")
        except (OSError, ValueError) as error:
            move = "Set source to a file of {title, url, text}, or a folder of *.md with # Title."
            raise ToolError(place, f"{source} holds no pages ({error}).", move) from error
        words = [tokens(f"{page.title}\n{page.text}") for page in self._pages]
        self._words, self._find_best = list(map(set, words)), index_words(words)

    def find(self, query: str, most: int) -> Sequence[PageText]:
        """The pages that share a word with the query, the one that fits best first."""
        words = tokens(query)
        found = self._find_best(words, len(self._pages))
        return [self._pages[at] for at in found if self._words[at].intersection(words)][:most]

    async def find_titles(self, question: str) -> Sequence[str]:
        return [page.title for page in self.find(question, MAX_TITLES)]

    async def load(self, name: str) -> PageText:
        """A page by its address or title; FetchFailed where there is none."""
        wanted = name.strip().partition("#")[0].rstrip("/")
        for page in self._pages:
            if wanted in (page.url.rstrip("/"), page.title):
                return page
        raise FetchFailed(f"{wanted[:200]} is not {self._note}.")


def _read_lines(path: Path) -> Iterator[PageText]:
    # Not splitlines, which also ends a line at characters that a JSON text may hold, as U+2028.
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} is no JSON") from error
            page = row if isinstance(row, dict) else {}
            if not all(isinstance(page.get(name), str) for name in ("title", "url", "text")):
                raise ValueError(f"line {number}: title, url and text are not all texts")
            yield PageText(page["url"], page["title"], page["text"])


def _read_folder(folder: Path) -> Iterator[PageText]:
    for file in sorted(folder.glob("*.md")):
        first, _, text = file.read_text("utf-8-sig").partition("\n")
        if not first.startswith("# "):
            raise ValueError(f"{file.name}: its first line is no # Title")
        yield PageText(file.name, first[2:].strip(), text.strip())
