"""No text for people holds a word that once told nobody what is meant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_structure import ROOT, modules

REPLACED = (
    r"sign of life", r"best of n looks", r"of the moment", r"pinned library", r"pinned policy",
    r"\bsitting\b", r"\b1 problems\b", r"studio: studio:",
    r"\bwaits? (?:for you|in 2|for a person)", r"update under way",
    r"journal \d* ?on disk", r"KEEP E\d", r"\binert\b", r"\bdesk\b",
)  # fmt: skip
ANY = re.compile("|".join(f"(?:{word})" for word in REPLACED), re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    """Strings of the product that are no docstrings, and the manual."""
    for name, (_, tree) in modules().items():
        nodes = list(ast.walk(tree))
        docs = {
            node.value
            for node in nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs:
                yield name, node.value
    for path in (ROOT / "README.md", *sorted((ROOT / "studio" / "guide").glob("*.md"))):
        yield path.name, path.read_text("utf-8")


def test_no_replaced_word_is_left() -> None:
    found = [(where, word) for where, text in texts() for word in ANY.findall(text)]
    assert found == []
