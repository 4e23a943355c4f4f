"""Rehearsal's rollouts with pages to look things up in, alone and as each member of a team.

Owns the five kinds of question, with the right and the typical wrong way of each. Knows no answer:
what a page states is for the tools to tell. A member reads nothing but its prompt.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson

from engines.core.types import Message
from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.solve import UNKNOWN, Draw, Step, format_steps
from engines.policies.rehearsal.tools import Turn


@dataclass(frozen=True, slots=True)
class Act(Step):
    """A step that searches for its instance, or that ends the rollout with it as the answer."""

    ends: bool = False


class _Kind(NamedTuple):
    """A kind of question: how it reads, how pages state its answer, and its two first acts.

    `decoy` is how a page states what the wrong way takes for the answer.
    """

    family: str
    question: str
    place: str
    answer: str
    decoy: str
    right: Act
    wrong: Act


_NAME = r"([A-Z]\w+(?: [A-Z]\w+)?)"
_NAMED = Act("named", "look up what the question names", "{named}")
_ONE_WORD = Act("one word", "search for the name as one word", "{word}")
_KINDS = (
    _Kind(
        family="order",
        question="river flows past the birthplace of ([^?]+)",
        place=f"born in {_NAME}",
        answer=f"lies on the {_NAME}",
        decoy=f"longest river is the {_NAME}",
        right=Act(
            "named first",
            "when a question describes a thing, look up first what it names",
            "{named}",
        ),
        wrong=Act("asked first", "look up the kind of thing that is asked for", "longest river"),
    ),
    _Kind(
        family="premature",
        question="mayor of the town where the ([^?]+) stands",
        place=f"stands in {_NAME}",
        answer=f"mayor is {_NAME}",
        decoy=f"opened by {_NAME}",
        right=_NAMED,
        wrong=_NAMED,
    ),
    _Kind(
        family="empty",
        question="market held in the town where ([^?]+) died",
        place=f"died in {_NAME}",
        answer=r"market is held on (\w+day)",
        decoy="()",
        right=_ONE_WORD,
        wrong=_ONE_WORD,
    ),
    _Kind(
        family="ungrounded",
        question="town founded where the ([^?]+) have their house",
        place=f"house in {_NAME}",
        answer=r"founded in (\d{4})",
        decoy="()",
        right=Act(
            "evidence", "when a fact is asked, let a page state it before you answer", "{named}"
        ),
        wrong=Act("known", "answer from what is commonly known", "1400", ends=True),
    ),
    _Kind(
        family="unchecked",
        question="town known for in which the ([^?]+) stands",
        place=f"stands in {_NAME}",
        answer=r"known for its (\w+)",
        decoy=r"served the (\w+) trade",
        right=_NAMED,
        wrong=_NAMED,
    ),
)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A recognised question: `named` is the thing that it names."""

    kind: _Kind
    named: str

    def choose_act(self, results: Sequence[str], right: bool) -> Act:
        """Return the next act after these results, on the way that is `right` or wrong."""
        kind = self.kind
        place, answer, decoy = self._read(results)
        if place and answer:
            return Act("stated", "give what the page of the right place states", answer, ends=True)
        if not results:
            act = kind.right if right else kind.wrong
            word = self.named.replace(" ", "").lower()
            return replace(act, instance=act.instance.format(named=self.named, word=word))
        if kind.family == "empty" and not place:
            if right and len(results) == 1:
                clause = "when a search finds nothing, search again with the name as it is written"
                return Act("once more", clause, self.named)
            return Act(
                "no entry", "conclude from the empty result that there is none", "none", True
            )
        if not place:
            return Act("at hand", "take what the page at hand names", decoy or "none", ends=True)
        if kind.family != "premature":
            return Act("place", "read the page of the place", place)
        if right:
            clause = "when a page names the next place, read the page of that place, too"
            return Act("next page", clause, place)
        return Act("settled", "take the name that the first page gives", decoy, ends=True)

    def check_memory(self, results: Sequence[str], right: bool) -> tuple[bool, Step]:
        """Return whether a verifier stops, and why."""
        place, answer, decoy = self._read(results)
        if place and answer:
            return True, Step("check", "the answer is stated", self.named)
        if self.kind.family != "unchecked" or not place:
            return False, Step("check", "the answer is not stated yet", self.named)
        if right:
            clause = "when memory is checked, stop only where it is stated of the place asked for"
            return False, Step("asked place", clause, place)
        return True, Step("fits", "stop as soon as a word that fits stands in memory", decoy)

    def answer(self, results: Sequence[str]) -> str:
        """Return what is answered from the results, right or not."""
        place, answer, decoy = self._read(results)
        if place and answer:
            return answer
        return decoy or ("none" if results else "1400")

    def _read(self, results: Sequence[str]) -> tuple[str, str, str]:
        """Return what the results state as place, answer and decoy; "" where they do not."""
        text = "\n".join(results)
        place, answer, decoy = (
            match[1] if (match := re.search(pattern, text)) else ""
            for pattern in (self.kind.place, self.kind.answer, self.kind.decoy)
        )
        return place, answer, decoy


def recognise_lookup(question: str) -> Lookup | None:
    for kind in _KINDS:
        if match := re.search(rf"{kind.question}\?", question):
            return Lookup(kind, match[1].strip())
    return None


def _take_apart(named: str) -> Step:
    """Return the step with which every rollout begins."""
    clause = "when a question names a thing by way of another, take the two apart"
    return Step("apart", clause, named)


SEARCH, READ = "web_search", "read_page"
_ADDRESS = re.compile(r"https?://\S*[^\s).,;]")


def look_up(messages: Sequence[Message], tools: Sequence[str], draw: Draw) -> Turn | None:
    """Return the next turn of a rollout; None where the question needs no search."""
    questions = [message.content.strip() for message in messages if message.role == "user"]
    lookup = recognise_lookup(questions[0]) if questions else None
    if lookup is None or SEARCH not in tools:
        return None
    queries = {
        call.id: orjson.loads(call.arguments)["query"]
        for message in messages
        for call in message.tool_calls
        if call.name == SEARCH
    }
    results: list[str] = []
    pages = query = ""
    number = 2
    for message in messages:
        if message.role != "tool":
            continue
        number += 1
        pages = ""
        if message.tool_call_id in queries and _ADDRESS.search(message.content):
            pages, query = message.content, queries[message.tool_call_id]
        else:
            results.append(message.content)
    if pages and READ in tools:
        url = _choose_page(pages, query)
        step = Step("page", "open the page that fits", url)
        return _call_tool((step,), number, READ, {"url": url, "question": questions[0]})
    right = draw.takes_right(lookup.kind.family, questions[0])
    act = lookup.choose_act(results, right)
    steps = (act,) if number > 2 else (_take_apart(lookup.named), act)
    start = number + 1 - len(steps)
    if act.ends:
        return Turn(format_steps(steps, act.instance, start=start))
    return _call_tool(steps, start, SEARCH, {"query": act.instance})


def _choose_page(results: str, query: str) -> str:
    """Return the address that shares most words with the query."""
    words = set(re.findall(r"\w+", query.lower()))
    addresses: list[str] = _ADDRESS.findall(results)
    return max(addresses, key=lambda url: len(words.intersection(re.findall(r"\w+", url.lower()))))


def _call_tool(
    steps: tuple[Step, ...], start: int, tool: str, arguments: Mapping[str, str]
) -> Turn:
    return Turn(format_steps(steps, start=start), orjson.dumps(arguments).decode(), tool)


_TASK = re.compile(r"# Task: (analyse|plan|command|check|answer|select|read)\s*$", re.M)
_TOOL = re.compile(r"^- ([\w-]+):.*Arguments: (\{.*\})$")
_STEP = re.compile(r"^### Step \d+: ")
_MOST_READ = 900  # characters


def is_team_prompt(text: str) -> bool:
    return _TASK.match(text) is not None


def team_reply(text: str, draw: Draw) -> str:
    """Reply to a member's prompt; the planner and the verifier may take the wrong way."""
    sections = prompt.parse_sections(text)
    question = prompt.quoted_text(sections, "Question")
    lookup = recognise_lookup(question)
    right = lookup is not None and draw.takes_right(lookup.kind.family, question)
    memory = prompt.split_blocks(sections.get("Memory", ()), _STEP)
    results = ["\n".join(lines).partition("Result:")[2].strip() for _, lines in memory]
    offers = (*sections.get("Tools", ()), *sections.get("Tool", ()))
    tools = [match for line in offers if (match := _TOOL.match(line))]
    task = _TASK.match(text)
    match task[1] if task else "":
        case "select":
            return _select_pages(question, prompt.unquote_lines(sections["Titles"]))
        case "read":
            return prompt.quoted_text(sections, "Passages")[:_MOST_READ]
        case "command":
            goal = prompt.quoted_text(sections, "Sub-goal")
            if results and tools[0][1] == "calculator":
                # Another planner names the last result so.
                goal = re.sub(r"\bit\b", results[-1], goal)
            argument = next(iter(orjson.loads(tools[0][2])))
            command = {"tool": tools[0][1], "arguments": {argument: goal}}
            return _as_json(analysis="", explanation="The sub-goal as it is.", command=command)
        case "analyse":
            return _as_json(
                concise_summary=question,
                required_skills=str(_take_apart(lookup.named if lookup else question)),
                relevant_tools=", ".join(tool[1] for tool in tools) or "none",
                additional_considerations="This is a rehearsal: replies are scripted.",
            )
        case "plan":
            act = Act("unknown", "end, as this kind of question is unknown", "", ends=True)
            if lookup:
                act = lookup.choose_act(results, right)
            tool = "none" if act.ends else tools[0][1]
            goal = "" if act.ends else act.instance
            return _as_json(justification=str(act), context="", sub_goal=goal, tool_name=tool)
        case "check":
            stop, step = False, Step("check", "this kind of question is unknown", question)
            if lookup:
                stop, step = lookup.check_memory(results, right)
            return _as_json(analysis=str(step), stop_signal=stop)
    if lookup:
        return f"Steps that looked it up: {len(results)}.\n#### {lookup.answer(results)}"
    # Where another plans it goes by the last result, as somebody who only follows would.
    return f"The last step found it.\n#### {results[-1]}" if results else UNKNOWN


def _select_pages(question: str, titles: list[str]) -> str:
    """Return the titles that share most words with the question, three at most."""

    def split_words(text: str) -> set[str]:
        return {word.rstrip("s") for word in re.findall(r"[^\W\d]+", text.lower())}

    shared = [len(split_words(question) & split_words(title)) for title in titles]
    best = max(shared, default=0)
    ids = [n for n, count in enumerate(shared, 1) if count == best > 0][:3]
    names = [titles[n - 1].partition(". ")[2] for n in ids]
    return _as_json(matched_queries=names, matched_query_ids=ids)


def _as_json(**values: object) -> str:
    return orjson.dumps(values).decode()
