"""Rehearsal's rollouts with pages to look things up in, alone and as each member of a team.

Owns the five kinds of question, with the right and the typical wrong way of each. Knows no answer:
what a page states is for the tools to tell. A member reads nothing but its prompt.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.families import LookupFamily, Step
from engines.policies.rehearsal.solve import UNKNOWN, draws_right, step_line
from engines.policies.rehearsal.tools import Turn, content_text, native_tools


class _Kind(NamedTuple):
    """A kind of question: how it reads, and how pages state the two things it needs.

    `decoy` is what the wrong way takes for the answer; "" where it finds nothing.
    """

    family: LookupFamily
    question: re.Pattern[str]
    first: str
    second: str
    decoy: str


_NAME = r"[A-Z]\w+(?: [A-Z]\w+)?"
_KINDS = (
    _Kind(
        "order",
        re.compile(r"river flows past the birthplace of ([^?]+)\?"),
        rf"born in ({_NAME})",
        rf"lies on the ({_NAME})",
        rf"longest river is the ({_NAME})",
    ),
    _Kind(
        "premature",
        re.compile(r"mayor of the town where the ([^?]+) stands\?"),
        rf"stands in ({_NAME})",
        rf"mayor is ({_NAME})",
        rf"opened by ({_NAME})",
    ),
    _Kind(
        "empty",
        re.compile(r"market held in the town where ([^?]+) died\?"),
        rf"died in ({_NAME})",
        r"market is held on (\w+day)",
        "",
    ),
    _Kind(
        "ungrounded",
        re.compile(r"town founded where the ([^?]+) have their house\?"),
        rf"house in ({_NAME})",
        r"founded in (\d{4})",
        "",
    ),
    _Kind(
        "unchecked",
        re.compile(r"town known for in which the ([^?]+) stands\?"),
        rf"stands in ({_NAME})",
        r"known for its (\w+)",
        r"served the (\w+) trade",
    ),
)
_NOTHING = re.compile(r"^(?:error: )?Nothing found", re.M)
APART = Step("apart", "when a question names a thing by way of another, take the two apart", "")
"""What every try begins with."""


@dataclass(frozen=True, slots=True)
class Act:
    """What is done next: a search, or with `query` None the end, and what is answered then."""

    step: Step
    query: str | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A recognised question: `named` is the thing that it names."""

    kind: _Kind
    named: str

    @property
    def family(self) -> LookupFamily:
        return self.kind.family

    def choose_act(self, results: Sequence[str], right: bool) -> Act:
        """The next act after so many results, on the way that is `right` or wrong.

        Only where the two ways part is it asked which; from then on what was found tells.
        """
        told = "\n".join(results)
        place, answer = _find(self.kind.first, told), _find(self.kind.second, told)
        if answer and place:
            step = Step("stated", "give what the page of the right place states", answer)
            return Act(step, answer=answer)
        if not results:
            return self._first_act(right)
        if self.family == "empty" and not place:
            return self._after_nothing(right, searched=len(results))
        if not place:
            found = _find(self.kind.decoy, told) or "none"
            step = Step("at hand", "take what the page at hand names", found)
            return Act(step, answer=found)
        if self.family == "premature":
            if right:
                clause = "when a page names the next place, read the page of that place, too"
                return Act(Step("next page", clause, place), place)
            decoy = _find(self.kind.decoy, told)
            step = Step("settled", "take the name that the first page gives", decoy)
            return Act(step, answer=decoy)
        return Act(Step("place", "read the page of the place", place), place)

    def check_memory(self, results: Sequence[str], right: bool) -> tuple[bool, Step]:
        """Whether a verifier stops, and why."""
        told = "\n".join(results)
        place, answer = _find(self.kind.first, told), _find(self.kind.second, told)
        decoy = _find(self.kind.decoy, told)
        if self.family == "unchecked" and place and not answer:
            if not right:
                clause = "stop as soon as a word that fits stands in memory"
                return True, Step("fits", clause, decoy)
            clause = "when memory is checked, stop only where it is stated of the place asked for"
            return False, Step("asked place", clause, place)
        stop = bool(place and answer)
        clause = "the answer is stated" if stop else "the answer is not stated yet"
        return stop, Step("check", clause, self.named)

    def answer(self, results: Sequence[str]) -> str:
        """What is answered from the results, right or not."""
        told = "\n".join(results)
        if (found := _find(self.kind.second, told)) and _find(self.kind.first, told):
            return found
        return _find(self.kind.decoy, told) or ("none" if results else "1400")

    def _first_act(self, right: bool) -> Act:
        named = self.named
        match self.family:
            case "order" if right:
                clause = "when a question describes a thing, look up first what it names"
                return Act(Step("named first", clause, named), named)
            case "order":
                step = Step("asked first", "look up the kind of thing that is asked for", "river")
                return Act(step, "longest river")
            case "ungrounded" if right:
                clause = "when a fact is asked, let a page state it before you answer"
                return Act(Step("evidence", clause, named), named)
            case "ungrounded":
                step = Step("known", "answer from what is commonly known", "1400")
                return Act(step, answer="1400")
            case "empty":
                word = named.replace(" ", "").lower()
                return Act(Step("one word", "search for the name as one word", word), word)
        return Act(Step("named", "look up what the question names", named), named)

    def _after_nothing(self, right: bool, searched: int) -> Act:
        if right and searched == 1:
            clause = "when a search finds nothing, search again with the name as it is written"
            return Act(Step("once more", clause, self.named), self.named)
        step = Step("no entry", "conclude from the empty result that there is none", "none")
        return Act(step, answer="none")


def recognise_lookup(question: str) -> Lookup | None:
    for kind in _KINDS:
        if found := kind.question.search(question):
            return Lookup(kind, found[1].strip())
    return None


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text) if pattern else None
    return found[1] if found else ""


SEARCH, READ = "web_search", "read_page"
_ADDRESS = re.compile(r"https?://\S+")


def look_up(
    request: Mapping[str, Any], instructions: str, seed: int, temperature: float
) -> Turn | None:
    """The next turn of a try; None where nothing that is asked needs a search."""
    messages = request["messages"]
    asked = next((m for m in messages if m["role"] == "user"), None)
    question = content_text(asked).strip() if asked else ""
    lookup = recognise_lookup(question)
    offered = native_tools(request)
    if lookup is None or SEARCH not in offered:
        return None
    calls = {c["id"]: c["function"] for m in messages for c in m.get("tool_calls") or ()}
    told = [
        (calls[m["tool_call_id"]]["name"], content_text(m)) for m in messages if m["role"] == "tool"
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


_TASK = re.compile(r"# Task: (analyse|plan|command|check|answer|select|read)\s*$")
_TOOL = re.compile(r"^- ([\w-]+):.*Arguments: (\{.*\})$")
_MOST_READ = 900
_STEP = re.compile(r"^### Step \d+: ")


def is_team_prompt(text: str) -> bool:
    return _TASK.match(text.split("\n", 1)[0]) is not None


def team_reply(text: str, instructions: str, seed: int, temperature: float) -> str:
    """Reply to a member's prompt; the planner and the verifier may take the wrong way."""
    found = prompt.parse_sections(text)
    question = " ".join(prompt.unquote_lines(found.get("Question", ())))
    lookup = recognise_lookup(question)
    task = _TASK.match(text.split("\n", 1)[0])
    assert task is not None
    results = _read_results(found.get("Memory", ()))

    def takes_right(lookup: Lookup) -> bool:
        return draws_right(lookup.family, 1, question, instructions, seed, temperature)

    if task[1] == "select":
        return _select_pages(question, prompt.unquote_lines(found.get("Titles", ())))
    if task[1] == "read":
        return " ".join(prompt.unquote_lines(found.get("Passages", ())))[:_MOST_READ]
    if task[1] == "command":
        goal = " ".join(prompt.unquote_lines(found.get("Sub-goal", ())))
        name, argument = next(iter(_read_tools(found)), ("", ""))
        goal = re.sub(r"\bit\b", results[-1], goal) if results and name == "calculator" else goal
        command = {"tool": name, "arguments": {argument: goal}}
        return _as_json(analysis="", explanation="The sub-goal as it is.", command=command)
    if task[1] == "analyse":
        return _as_json(
            concise_summary=question,
            required_skills=_format_step(
                replace(APART, instance=lookup.named if lookup else question)
            ),
            relevant_tools=", ".join(name for name, _ in _read_tools(found)) or "none",
            additional_considerations="This is a rehearsal: replies are scripted.",
        )
    if lookup is None:
        return _reply_to_unknown(task[1], results)
    if task[1] == "plan":
        act = lookup.choose_act(results, takes_right(lookup))
        tool = "none" if act.query is None else next(iter(_read_tools(found)), ("none", ""))[0]
        said = _format_step(act.step)
        return _as_json(justification=said, context="", sub_goal=act.query or "", tool_name=tool)
    if task[1] == "check":
        stop, step = lookup.check_memory(results, takes_right(lookup))
        return _as_json(analysis=_format_step(step), stop_signal=stop)
    steps = "1 step" if len(results) == 1 else f"{len(results)} steps"
    return f"It was looked up in {steps}.\n#### {lookup.answer(results)}"


def _select_pages(question: str, titles: list[str]) -> str:
    """The titles that share most words with the question."""

    def words(text: str) -> set[str]:
        return {word.rstrip("s") for word in re.findall(r"[^\W\d]+", text.lower())}

    shared = [len(words(question) & words(title)) for title in titles]
    fitting = [n for n, count in enumerate(shared, 1) if count and count == max(shared)]
    named = [titles[n - 1].partition(". ")[2] for n in fitting[:3]]
    return _as_json(matched_queries=named, matched_query_ids=fitting[:3])


def _reply_to_unknown(task: str, results: list[str]) -> str:
    """Where another plans it goes by the last result, as somebody who only follows would."""
    if task == "plan":
        return _as_json(justification="This kind is unknown.", sub_goal="", tool_name="none")
    if task == "check":
        return _as_json(analysis="This kind is unknown.", stop_signal=False)
    return f"The last step found it.\n#### {results[-1]}" if results else UNKNOWN


def _read_results(lines: Any) -> list[str]:
    """The result of each step of the memory."""
    blocks: list[list[str]] = []
    for line in lines:
        if _STEP.match(line):
            blocks.append([])
        elif blocks:
            blocks[-1].append(line)
    texts = ("\n".join(prompt.unquote_lines(block)) for block in blocks)
    return [text.partition("Result:")[2].strip() for text in texts]


def _read_tools(found: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Name and first argument of each tool that the prompt offers."""
    lines = (*found.get("Tools", ()), *found.get("Tool", ()))
    named = (match for line in lines if (match := _TOOL.match(line)))
    return [(match[1], next(iter(orjson.loads(match[2])), "")) for match in named]


def _format_step(step: Step) -> str:
    return f"({step.label}) {step.clause}: {step.instance.rstrip('.')}."


def _as_json(**values: object) -> str:
    return orjson.dumps(values).decode()
