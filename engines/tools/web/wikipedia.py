"""The tool `wikipedia`: a question, answered from the pages that a model chooses of ten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from engines.core.errors import CallFailed
from engines.core.protocols import Policy, ToolTry
from engines.core.text.objects import find_objects
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ReplyProblem
from engines.core.text.sanitize import one_line
from engines.core.tools import NOTHING_FOUND, ToolResult
from engines.core.types import NO_USAGE, Message, Sampling, Usage
from engines.tools.function import FunctionTool
from engines.tools.web.address import FetchFailed
from engines.tools.web.cache import WebCache
from engines.tools.web.fetch import Fetcher
from engines.tools.web.local_pages import LocalPages
from engines.tools.web.passages import KEPT, PageReader, PageText
from engines.tools.web.read_page import LoadPage, load_kept

MAX_TITLES, MAX_READ = 10, 3
_FIELDS = ("matched_queries", "matched_query_ids")
FindTitles = Callable[[str], Awaitable[Sequence[str]]]
Encyclopedia = tuple[FindTitles, LoadPage]
"""Finds titles for a question, and a page by its title; both raise FetchFailed."""


def wikipedia_tool(
    pages: Encyclopedia, chooser: Policy, reader: PageReader, cache: WebCache, kind: str
) -> FunctionTool:
    find_titles, load = pages

    async def wikipedia(question: str, within: ToolTry) -> ToolResult:  # noqa: D417
        """Look a question up in an encyclopedia: at most 3 pages are read for it.

        Limits: text of articles alone; what happened lately may not stand there yet.
        Best practice: ask for one fact or one thing, and name it in full.

        Args:
            question: what you want to know

        Repeatable: yes
        """
        try:
            titles = await cache.get(f"{kind} titles", question, lambda: find_titles(question))
        except FetchFailed as failed:
            return ToolResult(f"The look-up failed: {failed}", "error")
        if not titles:
            return ToolResult(f"{NOTHING_FOUND}. Ask in other words.")
        chosen, usage = await choose_titles(titles, question, chooser, within)
        results = []
        for title in chosen:
            try:
                page = await load_kept(load, title, cache, f"{kind} page")
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


def from_folder(pages: LocalPages) -> Encyclopedia:
    async def find_titles(question: str) -> Sequence[str]:
        return [page.title for page in pages.find(question, MAX_TITLES)]

    return find_titles, pages.load


def from_api(fetcher: Fetcher, address: str) -> Encyclopedia:
    """A MediaWiki by its API, whose errors come with the status of success."""

    async def ask(asked: dict[str, object]) -> dict[str, Any]:
        usual = {"action": "query", "format": "json", "formatversion": 2}
        reply = await fetcher.ask_service(f"{address}?{urlencode({**usual, **asked})}")
        if error := reply.get("error"):
            said = one_line(f"{error.get('code')}: {error.get('info')}")
            raise FetchFailed(f"the encyclopedia refused it ({said[:200]}).")
        return reply.get("query") or {}

    async def find_titles(question: str) -> Sequence[str]:
        words = " ".join(question.split())[:300]  # it takes no more
        found = await ask({"list": "search", "srsearch": words, "srlimit": MAX_TITLES})
        return [str(row["title"]) for row in found.get("search") or ()][:MAX_TITLES]

    async def load(title: str) -> PageText:
        wanted = {"prop": "extracts|info", "explaintext": 1, "inprop": "url", "redirects": 1}
        found = await ask({**wanted, "titles": title})
        page: dict[str, Any] = next(iter(found.get("pages") or ()), {})
        if not (text := str(page.get("extract") or "").strip()):
            raise FetchFailed("it does not exist." if page.get("missing") else "it has no text.")
        return PageText(str(page.get("fullurl") or address), title, text)

    return find_titles, load
