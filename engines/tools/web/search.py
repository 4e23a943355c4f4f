"""The tools `web_search` and `wikipedia`, and how each tool of the web is opened by its settings.

Replies of services are read leniently: what one adds is passed over, a result without an address
is none.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from engines.core.errors import CallFailed, ToolError, install_command
from engines.core.protocols import Embedder, Policy, ToolTry
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ReplyProblem, find_objects
from engines.core.text.sanitize import one_line
from engines.core.types import (
    NO_USAGE,
    NOTHING_FOUND,
    Message,
    Network,
    Sampling,
    ToolResult,
    Usage,
)
from engines.tools.function import FunctionTool
from engines.tools.settings import KEYS, PROVIDERS, ToolSettings
from engines.tools.web.fetch import AddressGuard, Fetcher, FetchFailed, WebCache
from engines.tools.web.read_page import (
    KEPT,
    MAX_TITLES,
    LoadPage,
    LocalPages,
    PageReader,
    PageText,
    load_by_jina,
    load_directly,
    load_kept,
    quote_outside,
    read_page_tool,
)

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
    return read_cited_answer(await fetcher.ask_service(f"{address}:generateContent", headers, body))


async def search_pages(pages: LocalPages, query: str) -> Found:
    found = pages.find(query, MAX_HITS)
    return "", [(page.title, page.url, page.text, page.note) for page in found]


async def check_searxng(fetcher: Fetcher, address: str, place: str) -> None:
    """Ask for nothing: an instance that gives JSON then says that the query is missing."""
    try:
        await fetcher.ask_service(f"{address.rstrip('/')}/search?format=json")
    except FetchFailed as failed:
        if failed.status != 400:
            move = "Start the instance, with json in search.formats of its settings.yml."
            raise ToolError(place, f"SearXNG cannot be used: {failed}", move) from failed


def read_cited_answer(reply: Mapping[str, Any]) -> Found:
    """Gemini's answer, `[1][3]` behind each statement that sources support.

    Raises FetchFailed: there is no text, or it comes from no search: then it is the model's own.
    """
    candidate: dict[str, Any] = next(iter(reply.get("candidates") or ()), {})
    parts = (candidate.get("content") or {}).get("parts") or ()
    grounds = candidate.get("groundingMetadata") or {}
    chunks = [chunk.get("web") or {} for chunk in grounds.get("groundingChunks") or ()]
    # What it thought is no answer, and yet counts as a part.
    texts = [b"" if part.get("thought") else part.get("text", "").encode() for part in parts]
    if not chunks or not b"".join(texts).strip():
        blocked = (reply.get("promptFeedback") or {}).get("blockReason")
        reason = blocked or candidate.get("finishReason")
        raise FetchFailed(f"Gemini gave no answer that sources support (it says {reason}).")
    marks: dict[tuple[int, int], set[int]] = {}
    for support in grounds.get("groundingSupports") or ():
        segment = support.get("segment") or {}  # its offsets count bytes of UTF-8
        place = segment.get("partIndex") or 0, segment.get("endIndex") or 0
        numbers = set(support.get("groundingChunkIndices") or ()) & set(range(len(chunks)))
        if place[0] < len(texts):
            marks.setdefault(place, set()).update(numbers)
    for (part, end), numbers in sorted(marks.items(), reverse=True):
        raw, said = texts[part], "".join(f"[{number + 1}]" for number in sorted(numbers))
        texts[part] = raw[:end] + said.encode() + raw[end:]
    sources = [(chunk.get("title") or "", chunk.get("uri") or "", "", "") for chunk in chunks]
    return b"".join(texts).decode("utf-8", "replace"), sources


def _read_hits(reply: Mapping[str, Any], field: str, url: str, excerpt: str) -> list[Hit]:
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
    named = [row.get(field) for row in rows[-1:] for field in reversed(_FIELDS)]
    known = {title.casefold(): title for title in titles}
    known |= {str(number): title for number, title in enumerate(titles, start=1)}
    found: list[str] = []
    for given in named:  # by number; only where none fits, by name
        values = given if isinstance(given, list) else [given]
        found = found or [known[key] for v in values if (key := str(v).casefold()) in known]
    return tuple(dict.fromkeys(found))[:MAX_READ] or titles[:1], reply.usage


@dataclass(frozen=True, slots=True)
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
        page: dict[str, Any] = next(iter(found.get("pages") or ()), {})
        if not (text := str(page.get("extract") or "").strip()):
            raise FetchFailed("it does not exist." if page.get("missing") else "it has no text.")
        return PageText(str(page.get("fullurl") or self.address), name, text)

    async def _ask(self, **asked: object) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True)
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
        move = f"Run: {install_command('web')}"
        raise ToolError(place, "the package trafilatura is not installed.", move) from error
