"""Rehearsal's tries with a search and pages: it searches, opens the page that fits, and goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from engines.policies.rehearsal.families import Step
from engines.policies.rehearsal.lookup.questions import APART, recognise_lookup
from engines.policies.rehearsal.solve import draws_right, step_line
from engines.policies.rehearsal.tools import messages as conversation
from engines.policies.rehearsal.tools.solve import Turn

SEARCH, READ = "web_search", "read_page"
_ADDRESS = re.compile(r"https?://\S+")


def look_up(
    request: Mapping[str, Any], instructions: str, seed: int, temperature: float
) -> Turn | None:
    """The next turn of a try; None where nothing that is asked needs a search."""
    messages = request["messages"]
    asked = next((m for m in messages if m["role"] == "user"), None)
    question = conversation.content_text(asked).strip() if asked else ""
    lookup = recognise_lookup(question)
    offered = conversation.native_tools(request)
    if lookup is None or SEARCH not in offered:
        return None
    calls = {c["id"]: c["function"] for m in messages for c in m.get("tool_calls") or ()}
    told = [
        (calls[m["tool_call_id"]]["name"], conversation.content_text(m))
        for m in messages
        if m["role"] == "tool"
    ]
    number = len(told) + 2
    if told and told[-1][0] == SEARCH and READ in offered and _ADDRESS.search(told[-1][1]):
        asked_for = [c["arguments"] for c in calls.values() if c["name"] == SEARCH]
        url = _fitting_page(told[-1][1], str(orjson.loads(asked_for[-1]).get("query", "")))
        said = step_line(number, Step("page", "open the page that fits", url))
        return _make_call(said, READ, {"url": url, "question": question})
    results = [text for name, text in told if name == READ or not _ADDRESS.search(text)]
    right = draws_right(lookup.family, 1, question, instructions, seed, temperature)
    act = lookup.choose_act(results, right)
    said = step_line(number, act.step)
    if not told:
        said = f"{step_line(1, replace(APART, instance=lookup.named))}\n{said}"
    if act.query is not None:
        return _make_call(said, SEARCH, {"query": act.query})
    return Turn(f"{said}\n#### {act.answer or 'none'}")


def _fitting_page(results: str, query: str) -> str:
    """The address of the result whose line shares most words with what was searched for."""
    words = set(re.findall(r"\w+", query.lower()))

    def count_shared_words(found: re.Match[str]) -> int:
        return len(words & set(re.findall(r"\w+", found[0].lower())))

    addresses: Sequence[re.Match[str]] = list(_ADDRESS.finditer(results))
    return max(addresses, key=count_shared_words)[0].rstrip(").,;")


def _make_call(said: str, tool: str, arguments: Mapping[str, str]) -> Turn:
    return Turn(said, orjson.dumps(arguments).decode(), tool)
