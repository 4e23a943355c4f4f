"""From the settings of a tool of the web to the tool, with what it needs to answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engines.core.extras import install_command
from engines.core.protocols import Embedder, Policy, ToolTry
from engines.core.tools import ToolError, ToolResult, ToolSpec
from engines.tools.function import FunctionTool
from engines.tools.settings import KEYS, PROVIDERS, ToolSettings
from engines.tools.web import read_page, search, wikipedia
from engines.tools.web.address import AddressGuard
from engines.tools.web.cache import WebCache
from engines.tools.web.fetch import Fetcher
from engines.tools.web.local_pages import LocalPages
from engines.tools.web.passages import PageReader

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


class WebTool:
    """A function that is tested before a run, and says who answers and what it reaches."""

    def __init__(
        self, function: FunctionTool, provider: str, check: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._function, self._check = function, check
        self.spec: ToolSpec = replace(
            function.spec,
            network="none" if provider in ("fixture", "folder") else "public",
            tier=f"in the studio's process, by {provider}",
            shown_chars=SHOWN_CHARS,
        )

    async def check(self) -> None:
        """Test what can be tested for nothing. Keys are there, and files have been read."""
        if self._check is not None:
            await self._check()

    async def call(self, arguments: Mapping[str, Any], within: ToolTry) -> ToolResult:
        return await self._function.call(arguments, within)

    async def aclose(self) -> None:
        """It holds nothing: a connection ends with its reply."""


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


def open_web_tool(tool: ToolSettings, context: WebContext) -> WebTool:
    """Make a tool whose provider is known and whose key is there; nothing is asked yet.

    Raises ToolError: the pages of a file or folder cannot be read.
    """
    provider, source = str(tool.provider), tool.source or ""
    key, check = context.find_key(provider), None
    # An address that a person wrote down may be reached, wherever it lies.
    own = urlsplit(source).netloc if source.startswith("http") else ""
    guard = AddressGuard((*tool.allow_hosts, *filter(None, [own])))
    fetcher = Fetcher(tool.user_agent, guard)
    is_local = provider in ("fixture", "folder")
    cache = WebCache(context.cache if tool.cache and not is_local else None)
    pages = LocalPages(Path(source or "(no source)"), tool.title) if is_local else None
    if tool.name == "web_search":
        match provider:
            case "serper":
                found = search.search_serper(fetcher, SERPER, key)
            case "gemini":
                found = search.search_gemini(fetcher, GEMINI + (source or MODEL), key)
            case "searxng":
                found = search.search_searxng(fetcher, source)
                check = partial(search.check_searxng, fetcher, source, tool.title)
            case _:
                assert pages is not None
                found = search.search_fixture(pages)
        function = search.web_search_tool(found, cache, f"search {provider} {source}")
        return WebTool(function, provider, check)
    embedder = None
    if tool.embedding is not None and context.open_embedder is not None:
        embedder = context.open_embedder(tool.embedding)
    policy = context.open_model(tool.model)
    reader = PageReader(policy if tool.answer == "model" else None, embedder)
    if tool.name == "read_page":
        load = pages.load if pages else read_page.load_directly(fetcher)
        if provider == "jina":
            load = read_page.load_by_jina(fetcher, JINA, key)
        check = partial(_check_extractor, tool.title) if provider == "direct" else None
        function = read_page.read_page_tool(load, reader, cache, f"page {provider}")
        return WebTool(function, provider, check)
    language = f"https://{source or LANGUAGE}.wikipedia.org/w/api.php"
    address = source if own else language
    book = wikipedia.from_folder(pages) if pages else wikipedia.from_api(fetcher, address)
    function = wikipedia.wikipedia_tool(book, policy, reader, cache, f"wikipedia {address}")
    return WebTool(function, provider, None)


async def _check_extractor(place: str) -> None:
    try:
        import trafilatura  # noqa: F401
    except ImportError as error:
        move = f"Run: {install_command('web')}"
        raise ToolError(place, "the package trafilatura is not installed.", move) from error
