"""The tool `read_page`: a question, answered from one page of the web."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engines.core.protocols import ToolTry
from engines.core.tools import ToolResult
from engines.tools.function import FunctionTool
from engines.tools.web.address import FetchFailed
from engines.tools.web.cache import WebCache
from engines.tools.web.fetch import Fetcher, read_url
from engines.tools.web.page_text import read_text
from engines.tools.web.passages import MAX_TEXT_CHARS, PageReader, PageText

LoadPage = Callable[[str], Awaitable[PageText]]


def read_page_tool(load: LoadPage, reader: PageReader, cache: WebCache, kind: str) -> FunctionTool:
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
