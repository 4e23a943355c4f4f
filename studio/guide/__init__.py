"""The manual: one page a topic, readable as files, by `studio guide` and on the screen.

Knows no command and no terminal; who shows a page folds it.
"""

import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from engines.core.errors import ConfigError

TOPICS = (
    "first-session",
    "screen",
    "review",
    "data",
    "models",
    "verifiers",
    "evaluation",
    "libraries",
    "weights",
    "cluster",
    "agents",
    "python",
    "recovery",
    "costs",
    "tracing",
    "settings",
    "disk",
    "coming-from",
    "glossary",
    "developers",
)
"""In reading order; each is a file of that name beside this one."""

_LINK = re.compile(r"\[([^\[\]]+)\]\(([\w-]+)\.md\)")
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE)


@cache
def read_page(topic: str) -> str:
    """The Markdown of a topic, whose links to other pages name the topic.

    Raises ConfigError: there is no such topic.
    """
    if topic not in TOPICS:
        near = get_close_matches(topic, TOPICS, n=1, cutoff=0.75)
        found = near or find_pages(topic)[:3]
        move = f"There are: {', '.join(TOPICS)}."
        if found:
            move = f"Did you mean {' or '.join(found)}? `studio guide` lists all."
        raise ConfigError(f'guide "{topic}"', "there is no page of that name.", move)
    text = (files(__name__) / f"{topic}.md").read_text("utf-8")
    return _LINK.sub(_name_topic, _COMMENT.sub("", text))


def _name_topic(link: re.Match[str]) -> str:
    label, topic = link.groups()
    return f"`{topic}`" if label == topic else f"{label} (`studio guide {topic}`)"


def title_of(topic: str) -> str:
    return read_page(topic).splitlines()[0].lstrip("# ")


def find_pages(words: str) -> list[str]:
    """Topics whose headings hold the words, then those whose text does."""
    wanted = words.casefold().strip()
    if not wanted:
        return []

    def rank(topic: str) -> int:
        text = read_page(topic).casefold()
        headings = [line for line in text.splitlines() if line.startswith("#")]
        return 2 * any(wanted in line for line in headings) + (wanted in text)

    return sorted((topic for topic in TOPICS if rank(topic)), key=rank, reverse=True)
