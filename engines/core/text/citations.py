"""Which experiences a text cites, as `[E14]`, and the text without that.

A model that was not asked to cite may never do it: then there is nothing to find.
"""

import re
from collections.abc import Collection, Iterable

from engines.core.types import Message, Names

_NAMES = r"\[[A-Za-z][^\[\]\n]{0,120}\]"
_BRACKETS = re.compile(_NAMES)
# Also `(by [E1] and [E3])`: without its citations, nothing of it is left to be said.
_ASIDE = r"\((?:[A-Za-z]{1,12} ){0,3}" + rf"{_NAMES}(?:,? (?:and )?{_NAMES}){{0,9}}\)"
# What is all that braces hold is an answer, and `\sqrt[E1]{2}` a root.
_CITATION = re.compile(
    rf"(?:[ \t]|(?<!\{{)(?<!\\sqrt))(?:{_ASIDE}|{_NAMES})|(?<=\{{){_NAMES}(?!\}})"
)
# Of code, `rows[E1]` is an index, and `x = [E1]` and `return [E1]` are lists.
_KEYWORDS = "".join(rf"(?<!\b{word})" for word in ("return", "yield", "in", "else", "and", "or"))
_CODE_CITATION = re.compile(rf"(?<=[\w.!?;#]){_KEYWORDS}[ \t]{_NAMES}")
_CODE = re.compile(r"(```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`(?!\[)[^`\n]*`)", re.DOTALL)
_SHOWN = re.compile(r"^\[([^\]\n]+)\] ", re.MULTILINE)


def find_cited_ids(text: str) -> frozenset[str]:
    """What could be an id within brackets: both of `[E1, E3]`."""
    inner = (found[1:-1] for found in _BRACKETS.findall(text))
    return frozenset(name.strip() for names in inner for name in names.split(","))


def guidance_ids(guidance: str) -> Names:
    """The ids of the experiences in a prompt's block, in its order."""
    return tuple(_SHOWN.findall(guidance))


def cited_experiences(messages: Iterable[Message], shown: Iterable[str]) -> Names:
    """Those of the experiences shown that the agent itself cites, its reasoning included."""
    own = (message for message in messages if message.role == "assistant")
    found = frozenset().union(*(find_cited_ids(f"{m.content}\n{m.reasoning}") for m in own))
    return tuple(name for name in shown if name in found)


def without_citations(text: str, shown: Collection[str]) -> str:
    """The text as it is judged: `#### 42 [E3]` says 42. Brackets that cite nothing else stay."""

    def keep(match: re.Match[str]) -> str:
        return "" if find_cited_ids(match[0]) <= known else match[0]

    known = frozenset(shown)
    forms = (_CITATION, _CODE_CITATION)
    rest = "".join(forms[n % 2].sub(keep, part) for n, part in enumerate(_CODE.split(text)))
    return rest if known and rest.strip() else text
