"""The tool `wikipedia`: a question, answered from the pages that a model chooses of ten."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from engines.core.errors import CallFailed
from engines.core.protocols import Policy, ToolTry
from engines.core.text.prompts import load_prompt, quote
from engines.core.text.reply import ReplyProblem, find_objects
from engines.core.text.sanitize import one_line
from engines.core.types import NO_USAGE, NOTHING_FOUND, Message, Sampling, ToolResult, Usage
from engines.tools.function import FunctionTool
from engines.tools.web.fetch import Fetcher, FetchFailed, WebCache
from engines.tools.web.local_pages import MAX_TITLES, LocalPages
from engines.tools.web.read_page import KEPT, PageReader, PageText, load_kept

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
