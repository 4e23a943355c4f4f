"""The tools of the web: `web_search`, `read_page` and `wikipedia`, with who may answer for each.

The text of a page is what its reader sees, without scripts and hidden parts; what only a style
sheet or a script hides or shows is not known here. The passages that fit a question best are given,
or a model answers from them. Replies of services are read leniently: what one adds is passed over,
a result without an address is none.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from engines.core.codec import JsonObject, fix_surrogates
from engines.core.errors import CallFailed, ToolError, install_command
from engines.core.frozen import frozen
from engines.core.protocols import Embedder, Policy, ToolTry
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ReplyProblem, find_objects
from engines.core.text.sanitize import escape_unsafe, one_line
from engines.core.text.similarity import index_words, tokens
from engines.core.types import (
    NO_USAGE,
    NOTHING_FOUND,
    Message,
    Network,
    Sampling,
    ToolResult,
    Usage,
    is_cut,
)
from engines.tools.function import FunctionTool
from engines.tools.settings import KEYS, PROVIDERS, ToolSettings
from engines.tools.web.fetch import AddressGuard, Fetched, Fetcher, FetchFailed, WebCache, read_url


@frozen
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


@frozen
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
            return ToolResult(
                f"The model that read {place} gave no text (it ended with {reply.finish!r}).",
                "error",
                usage,
            )
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
            raise ToolError(
                place,
                f'there is no file or folder "{source}".',
                "Set source to one beside the run file, or to its whole path.",
            )
        read, kind = (_read_folder, "folder") if source.is_dir() else (_read_lines, "fixture file")
        try:
            self._note = f"a page of the {kind} {source.name}"
            self._pages = [replace(page, note=self._note) for page in read(source)]
            if not self._pages:
                raise ValueError("there is none")
        except (OSError, ValueError) as error:
            raise ToolError(
                place,
                f"{source} holds no pages ({error}).",
                "Set source to a file of {title, url, text}, or a folder of *.md with # Title.",
            ) from error
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


MAX_HITS = 10
Hit = tuple[str, str, str, str]
"""Title, address, excerpt, and our own note."""
Found = tuple[str, Sequence[Hit]]
"""An answer, where the service gives one, whose marks [1] number the results; and these."""
Search = Callable[[str], Awaitable[Found]]


def web_search_tool(search: Search, cache: WebCache, kind: str) -> FunctionTool:
    """`kind` tells the replies of one service from those of another."""

    async def web_search(query: str) -> ToolResult:
        """Search the web and see title, address and an excerpt of at most 10 pages.

        Limits: excerpts are short, may be old, and nobody has checked them.
        Best practice: search for few telling words; read a page before you rely on its excerpt;
        where nothing fits, search again in other words.

        Args:
            query: what to look for

        Repeatable: yes
        """
        try:
            answer, hits = await cache.get(kind, query, lambda: search(query))
        except FetchFailed as failed:
            return ToolResult(f"The search failed: {failed}", "error")
        if answer:
            sources = (f"[{n}] {title}: {url}" for n, (title, url, *_) in enumerate(hits, 1))
            return ToolResult(quote_outside("a grounded search", "\n".join((answer, *sources))))
        shown = [
            quote_outside(url, f"{_short(title, 150)}\n{_short(excerpt, 320)}", note)
            for title, url, excerpt, note in hits
        ]
        return ToolResult("\n".join(shown) or f"{NOTHING_FOUND}. Search again in other words.")

    return FunctionTool(web_search)


async def search_serper(fetcher: Fetcher, address: str, key: str, query: str) -> Found:
    body = {"q": query, "num": MAX_HITS}
    reply = await fetcher.ask_service(f"{address}/search", {"X-API-KEY": key}, body)
    return "", _read_hits(reply, "organic", "link", "snippet")


async def search_searxng(fetcher: Fetcher, address: str, query: str) -> Found:
    asked = urlencode({"q": query, "format": "json"})
    reply = await fetcher.ask_service(f"{address.rstrip('/')}/search?{asked}")
    hits, silent = _read_hits(reply, "results", "url", "content"), reply.get("unresponsive_engines")
    if silent and not hits:  # which is not the same as that there are no pages
        raise FetchFailed(f"none of its engines answered ({str(silent)[:200]}).")
    return "", hits


async def search_gemini(fetcher: Fetcher, address: str, key: str, query: str) -> Found:
    body = {"contents": [{"parts": [{"text": query}]}], "tools": [{"google_search": {}}]}
    headers = {"x-goog-api-key": key}
    return read_grounded_answer(
        await fetcher.ask_service(f"{address}:generateContent", headers, body)
    )


async def search_pages(pages: LocalPages, query: str) -> Found:
    found = pages.find(query, MAX_HITS)
    return "", [(page.title, page.url, page.text, page.note) for page in found]


async def check_searxng(fetcher: Fetcher, address: str, place: str) -> None:
    """Ask for nothing: an instance that gives JSON then says that the query is missing."""
    try:
        await fetcher.ask_service(f"{address.rstrip('/')}/search?format=json")
    except FetchFailed as failed:
        if failed.status != 400:
            raise ToolError(
                place,
                f"SearXNG cannot be used: {failed}",
                "Start the instance, with json in search.formats of its settings.yml.",
            ) from failed


def read_grounded_answer(reply: JsonObject) -> Found:
    """Gemini's answer and the sources that it was found in.

    Raises FetchFailed: there is no text, or it comes from no search: then it is the model's own.
    """
    candidate: JsonObject = next(iter(reply.get("candidates") or ()), {})
    grounds = candidate.get("groundingMetadata") or {}
    chunks = [chunk.get("web") or {} for chunk in grounds.get("groundingChunks") or ()]
    parts = (candidate.get("content") or {}).get("parts") or ()
    # What it thought is no answer, and yet counts as a part.
    answer = "".join(part.get("text", "") for part in parts if not part.get("thought")).strip()
    if not chunks or not answer:
        blocked = (reply.get("promptFeedback") or {}).get("blockReason")
        reason = blocked or candidate.get("finishReason")
        raise FetchFailed(f"Gemini gave no answer that sources support (it says {reason}).")
    return answer, [(chunk.get("title") or "", chunk.get("uri") or "", "", "") for chunk in chunks]


def _read_hits(reply: JsonObject, field: str, url: str, excerpt: str) -> list[Hit]:
    found: dict[str, Hit] = {}
    for row in reply.get(field) or ():
        address = str(row.get(url))
        if address.startswith(("http://", "https://")):
            hit = (str(row.get("title") or ""), address, str(row.get(excerpt) or ""), "")
            found.setdefault(address, hit)
    return list(found.values())[:MAX_HITS]


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


MAX_READ = 3
_FIELDS = ("matched_queries", "matched_query_ids")


def wikipedia_tool(
    pages: "MediaWiki | LocalPages", chooser: Policy, reader: PageReader, cache: WebCache, kind: str
) -> FunctionTool:
    async def wikipedia(question: str, within: ToolTry) -> ToolResult:  # noqa: D417
        """Look a question up in an encyclopedia: at most 3 pages are read for it.

        Limits: text of articles alone; what happened lately may not stand there yet.
        Best practice: ask for one fact or one thing, and name it in full.

        Args:
            question: what you want to know

        Repeatable: yes
        """
        try:
            find = partial(pages.find_titles, question)
            titles = await cache.get(f"{kind} titles", question, find)
        except FetchFailed as failed:
            return ToolResult(f"The look-up failed: {failed}", "error")
        if not titles:
            return ToolResult(f"{NOTHING_FOUND}. Ask in other words.")
        chosen, usage = await choose_titles(titles, question, chooser, within)
        results = []
        for title in chosen:
            try:
                page = await load_kept(pages.load, title, cache, f"{kind} page")
                results.append(await reader.read(page, question, within, KEPT // len(chosen)))
            except (FetchFailed, CallFailed) as failed:
                said = f'The page "{one_line(title)}" was not read: {failed}'
                lost = failed.usage if isinstance(failed, CallFailed) else NO_USAGE
                results.append(ToolResult(said, "error", lost))
        usage = sum((result.usage for result in results), usage)
        failed_all = all(result.status == "error" for result in results)
        text = "\n".join(result.text for result in results)
        return ToolResult(text, "error" if failed_all else "ok", usage)

    return FunctionTool(wikipedia)


async def choose_titles(
    titles: Sequence[str], question: str, chooser: Policy, within: ToolTry
) -> tuple[Sequence[str], Usage]:
    """At most `MAX_READ` of the titles; the first where the reply names none of them."""
    numbered = "\n".join(f"{n}. {one_line(title)}" for n, title in enumerate(titles, start=1))
    prompt = load_prompt("engines.tools", "select_pages").render(
        question=quote(question), titles=quote(numbered), most=str(MAX_READ)
    )
    reply = await within.ask(chooser, (Message("user", prompt),), Sampling(temperature=0.0))
    try:
        rows = [row for row in find_objects(reply.text, _FIELDS).rows if isinstance(row, dict)]
    except ReplyProblem:
        rows = []
    known = {title.casefold(): title for title in titles}
    known |= {str(number): title for number, title in enumerate(titles, start=1)}
    chosen: dict[str, None] = {}
    for field in reversed(_FIELDS):  # by number first
        values = rows[-1].get(field) if rows else None
        for value in values if isinstance(values, list) else [values]:
            if (title := known.get(str(value).casefold())) is not None:
                chosen[title] = None
    return tuple(chosen)[:MAX_READ] or titles[:1], reply.usage


@frozen
class MediaWiki:
    """An encyclopedia by its API, whose errors come with the status of success."""

    fetcher: Fetcher
    address: str

    async def find_titles(self, question: str) -> Sequence[str]:
        words = " ".join(question.split())[:300]  # it takes no more
        found = await self._ask(list="search", srsearch=words, srlimit=MAX_TITLES)
        return [str(row["title"]) for row in found.get("search") or ()][:MAX_TITLES]

    async def load(self, name: str) -> PageText:
        wanted = {"explaintext": 1, "inprop": "url", "redirects": 1, "titles": name}
        found = await self._ask(prop="extracts|info", **wanted)
        page: JsonObject = next(iter(found.get("pages") or ()), {})
        if not (text := str(page.get("extract") or "").strip()):
            raise FetchFailed("it does not exist." if page.get("missing") else "it has no text.")
        return PageText(str(page.get("fullurl") or self.address), name, text)

    async def _ask(self, **asked: object) -> JsonObject:
        usual = {"action": "query", "format": "json", "formatversion": 2}
        reply = await self.fetcher.ask_service(f"{self.address}?{urlencode({**usual, **asked})}")
        if error := reply.get("error"):
            said = one_line(f"{error.get('code')}: {error.get('info')}")
            raise FetchFailed(f"the encyclopedia refused it ({said[:200]}).")
        return reply.get("query") or {}


SERPER, JINA = "https://google.serper.dev", "https://r.jina.ai"
GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/"
LANGUAGE, MODEL = "en", "gemini-2.5-flash"
SHOWN_CHARS = 16_000
"""Of a result: ten passages, or ten results of a search."""


@frozen
class WebContext:
    """What tools of the web are opened with; `cache` None keeps nothing of what they find."""

    environment: Mapping[str, str]
    open_model: Callable[[object], Policy]
    open_embedder: Callable[[object], Embedder] | None = None
    cache: Path | None = None

    def find_key(self, provider: str) -> str:
        names = KEYS.get(provider, ())
        return next((self.environment[name] for name in names if self.environment.get(name)), "")


def with_provider(tool: ToolSettings, others: Sequence[ToolSettings]) -> ToolSettings:
    """The settings with their provider; pages are those of the fixture where the search is."""
    searched = next((t for t in others if (t.name, t.provider) == ("web_search", "fixture")), None)
    own = PROVIDERS[str(tool.name)]
    if searched and tool.name == "read_page" and tool.provider in (None, "fixture"):
        return replace(tool, provider="fixture", source=tool.source or searched.source)
    return replace(tool, provider=tool.provider or own[0])


def missing_key(tool: ToolSettings, environment: Mapping[str, str]) -> str:
    """The variable that has to be set for this tool; "" where nothing is missing."""
    names = () if tool.provider == "jina" else KEYS.get(tool.provider or "", ())
    return "" if any(environment.get(name) for name in names) else " or ".join(names)


def open_web_tool(tool: ToolSettings, context: WebContext) -> FunctionTool:
    """Make a tool whose provider is known and whose key is there; nothing is asked yet.

    Raises ToolError: the pages of a file or folder cannot be read.
    """
    provider, source = str(tool.provider), tool.source or ""
    # An address that a person wrote down may be reached, wherever it lies.
    own = urlsplit(source).netloc if source.startswith("http") else ""
    guard = AddressGuard((*tool.allow_hosts, *filter(None, [own])))
    fetcher, key = Fetcher(tool.user_agent, guard), context.find_key(provider)
    is_local = provider in ("fixture", "folder")
    cache = WebCache(context.cache if tool.cache and not is_local else None)
    pages = LocalPages(Path(source or "(no source)"), tool.title) if is_local else None
    if tool.name == "web_search":
        match provider:
            case "serper":
                found: Search = partial(search_serper, fetcher, SERPER, key)
            case "gemini":
                found = partial(search_gemini, fetcher, GEMINI + (source or MODEL), key)
            case "searxng":
                found = partial(search_searxng, fetcher, source)
            case _:
                assert pages is not None
                found = partial(search_pages, pages)
        function = web_search_tool(found, cache, f"search {provider} {source}")
    else:
        function = _open_reader(tool, context, fetcher, cache, pages)
    if provider == "searxng":
        function.test = partial(check_searxng, fetcher, source, tool.title)
    elif provider == "direct":
        function.test = partial(_check_extractor, tool.title)
    network: Network = "none" if is_local else "public"
    tier = f"in the studio's process, by {provider}"
    function.spec = replace(function.spec, network=network, tier=tier, shown_chars=SHOWN_CHARS)
    return function


def _open_reader(
    tool: ToolSettings,
    context: WebContext,
    fetcher: Fetcher,
    cache: WebCache,
    pages: LocalPages | None,
) -> FunctionTool:
    embedder, policy = None, context.open_model(tool.model)
    if tool.embedding is not None and context.open_embedder is not None:
        embedder = context.open_embedder(tool.embedding)
    reader = PageReader(policy if tool.answer == "model" else None, embedder)
    if tool.name == "read_page":
        load: LoadPage = partial(load_directly, fetcher)
        if tool.provider == "jina":
            load = partial(load_by_jina, fetcher, JINA, context.find_key("jina"))
        load = pages.load if pages else load
        return read_page_tool(load, reader, cache, f"page {tool.provider}")
    source = tool.source or LANGUAGE
    is_address = source.startswith("http")
    wiki = MediaWiki(fetcher, source if is_address else f"https://{source}.wikipedia.org/w/api.php")
    return wikipedia_tool(pages or wiki, policy, reader, cache, f"wikipedia {source}")


async def _check_extractor(place: str) -> None:
    try:
        import trafilatura  # noqa: F401
    except ImportError as error:
        raise ToolError(
            place, "the package trafilatura is not installed.", f"Run: {install_command('web')}"
        ) from error
