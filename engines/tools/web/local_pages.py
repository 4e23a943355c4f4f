"""Pages that lie here: a fixture file in the place of the web, a folder in that of Wikipedia."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from engines.core.errors import ToolError
from engines.core.text.similarity import index_words, tokens
from engines.tools.web.fetch import FetchFailed
from engines.tools.web.read_page import PageText

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
