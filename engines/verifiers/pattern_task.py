"""What a checking process does for patterns: Python's `re`, which cannot be interrupted."""

import re
from collections.abc import Callable
from typing import Any


def build_task() -> Callable[[dict[str, Any]], dict[str, Any]]:
    return find_pattern


def find_pattern(question: dict[str, Any]) -> dict[str, Any]:
    """The first group of a pattern's last match, or None.

    A question with flags of its own asks only whether there is a match.
    """
    pattern, text = question["pattern"], question["text"]
    if "flags" in question:
        return {"found": re.search(pattern, text, question["flags"]) is not None}
    found = None
    for match in re.finditer(pattern, text, re.MULTILINE):
        found = match[1]
    return {"found": found}
