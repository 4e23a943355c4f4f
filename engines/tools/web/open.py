"""From the settings of a tool of the web to the tool, with what it needs to answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from engines.core.errors import ToolError, install_command
from engines.core.protocols import Embedder, Policy
from engines.core.types import Network
from engines.tools.function import FunctionTool
from engines.tools.settings import KEYS, PROVIDERS, ToolSettings
from engines.tools.web import read_page, search
from engines.tools.web.fetch import AddressGuard, Fetcher, WebCache
from engines.tools.web.read_page import LocalPages, PageReader
from engines.tools.web.search import MediaWiki, wikipedia_tool

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
                found: search.Search = partial(search.search_serper, fetcher, SERPER, key)
            case "gemini":
                found = partial(search.search_gemini, fetcher, GEMINI + (source or MODEL), key)
            case "searxng":
                found = partial(search.search_searxng, fetcher, source)
            case _:
                assert pages is not None
                found = partial(search.search_pages, pages)
        function = search.web_search_tool(found, cache, f"search {provider} {source}")
    else:
        function = _open_reader(tool, context, fetcher, cache, pages)
    if provider == "searxng":
        function.test = partial(search.check_searxng, fetcher, source, tool.title)
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
        load: read_page.LoadPage = partial(read_page.load_directly, fetcher)
        if tool.provider == "jina":
            load = partial(read_page.load_by_jina, fetcher, JINA, context.find_key("jina"))
        load = pages.load if pages else load
        return read_page.read_page_tool(load, reader, cache, f"page {tool.provider}")
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
