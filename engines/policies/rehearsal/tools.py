"""Rehearsal's rollouts with tools: an interpreter, or pages to look things up in.

Owns four kinds of problem and five of question, with the right and the typical wrong way of each.
Knows no answer: it is read from what the tools say, and without that it is a guess, which is
wrong. With pages it also plays each member of a team, who reads nothing but its prompt.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from engines.core.frozen import frozen
from engines.core.types import Message
from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.solve import UNKNOWN, Draw, Step, format_steps, recognise


@frozen
class Way(Step):
    """How one goes on: what is said before the call, and the program, if there is one."""

    code: str = ""

    def fill_in(self, values: Mapping[str, object]) -> "Way":
        instance = self.instance.format(**values)
        return replace(self, instance=instance, code=self.code.format(**values))


@frozen
class ToolProblem:
    """A recognised problem with both ways. `guess` is what it comes to by head: a wrong number."""

    family: str
    start: Way
    right: Way
    wrong: Way
    guess: str = ""


_COUNT = (
    "count = 0\nfor n in {span}:\n    if n % {divisor} == 0 and n % {other} != 0:\n"
    "        count += 1\nprint(count)"
)
_DIGIT_SUM = (
    "n = 1\nfor k in range(2, {end}):\n    n *= k\n"
    "total = 0\nwhile n >= 1:\n    total += {digit}\n    {division}\nprint(total)"
)
_SUM = "total = sum(n ** {power} for n in range({first}, {end}))"
# How each kind is worded, and both ways with the numbers of the problem left open.
_PROBLEMS = {
    r"remainder\b.*?(?P<base>\d+)\s*\^\s*(?P<exponent>\d+)\b\D+(?P<modulus>\d+)": ToolProblem(
        family="remainder",
        start=Way(
            "power",
            "when the remainder of a large power is asked, let the interpreter work it out",
            "{base}^{exponent} divided by {modulus}",
        ),
        right=Way(
            "three arguments",
            "when the remainder of a power is asked, call pow with three arguments",
            "pow({base}, {exponent}, {modulus})",
            "print(pow({base}, {exponent}, {modulus}))",
        ),
        wrong=Way(
            "decimal power",
            "work out the power as a decimal number and take the remainder of it",
            "{base}.0 ** {exponent} % {modulus}",
            "print({base}.0 ** {exponent} % {modulus})",
        ),
    ),
    r"from (?P<first>\d+) (?:to|through|up to) (?P<last>\d+)\b.*\b(?:divisible|multiples)\b"
    r"\D*(?P<divisor>\d+)\D*\bnot\b\D*(?P<other>\d+)": ToolProblem(
        family="inclusive",
        start=Way(
            "bounds",
            "when numbers between two bounds are counted, go through them in a loop",
            "{first} through {last}",
        ),
        right=Way(
            "inclusive end",
            "when a range must hold its last number, end it one above that number",
            "range({first}, {end})",
            _COUNT.replace("{span}", "range({first}, {end})"),
        ),
        wrong=Way(
            "range",
            "begin the range at the first number and end it at the last",
            "range({first}, {last})",
            _COUNT.replace("{span}", "range({first}, {last})"),
        ),
    ),
    r"\bdigits?\b(?=.*(?:factorial|\d!)).*?(?P<last>\d+)": ToolProblem(
        family="whole",
        start=Way(
            "factorial",
            "when the digits of a factorial are asked, multiply it out first",
            "{last}!",
        ),
        right=Way(
            "whole division",
            "when a large number is taken apart digit by digit, divide it with // and keep "
            "it whole",
            "n = n // 10",
            _DIGIT_SUM.replace("{digit}", "n % 10").replace("{division}", "n = n // 10"),
        ),
        wrong=Way(
            "shift",
            "divide the number by ten and take the next digit",
            "n = n / 10",
            _DIGIT_SUM.replace("{digit}", "int(n % 10)").replace("{division}", "n = n / 10"),
        ),
    ),
    r"(?P<terms>squares|cubes).* from (?P<first>\d+) (?:to|through|up to) (?P<last>\d+)\b": (
        ToolProblem(
            family="printed",
            start=Way(
                "terms",
                "when many terms are added, let the interpreter add them",
                "{terms} from {first} through {last}",
            ),
            right=Way(
                "print",
                "when code has worked out a value, print that value in its last line",
                "print(total)",
                f"{_SUM}\nprint(total)",
            ),
            wrong=Way("name", "give the value a name and end there", "total", _SUM),
        )
    ),
}


def recognise_tool_problem(question: str) -> ToolProblem | None:
    """Read a question; None when it belongs to none of these kinds, or is worked out by head."""
    if recognise(question):
        return None
    for wording, kind in _PROBLEMS.items():
        if match := re.search(wording, question, re.I | re.S):
            values: dict[str, object] = {**match.groupdict()}
            values["end"] = int(match.groupdict().get("last", 0)) + 1
            values["power"] = 2 if values.get("terms") == "squares" else 3
            return replace(
                kind,
                start=kind.start.fill_in(values),
                right=kind.right.fill_in(values),
                wrong=kind.wrong.fill_in(values),
                guess=re.findall(r"\d+", question)[-1],
            )
    return None


INTERPRETER = "python"
_IN_WORDS = "To use a tool, reply with one fenced block"
_TOOL_NAME = re.compile(r"^- ([\w-]+):", re.M)
_RESULTS = "Tool results"
_BY_HEAD = (
    "Rehearsal is a scripted stand-in for a model. This problem needs the tool python, which it "
    "cannot call here, so it answers by head."
)
_NUMBER = re.compile(
    r"(?:(?:result|output|stdout|value)\s*:\s*)?(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)", re.I
)


@frozen
class Turn:
    """A text and, where a tool is called, the arguments of the call as JSON."""

    text: str
    arguments: str | None = None
    tool: str = INTERPRETER
    finish: str = "stop"

    @property
    def tokens(self) -> int:
        called = "" if self.arguments is None else f"{self.tool}{self.arguments}"
        return prompt.token_count(self.text) + prompt.token_count(called)


def solve_with_tools(messages: Sequence[Message], tools: Sequence[str], draw: Draw) -> Turn | None:
    """Return the next turn of a rollout; None where the question needs no interpreter."""
    problem: ToolProblem | None = None
    question, result = "", None
    for message in messages:
        text = message.content.strip()
        if message.role == "tool":
            result = text
        elif message.role == "user" and text.startswith(_RESULTS):
            result = "\n".join(prompt.unquote_lines(text.splitlines()))
        elif message.role == "user" and (recognised := recognise_tool_problem(text)):
            problem, question, result = recognised, text, None
    if problem is None:
        return None
    if result is not None:
        return Turn(_last_text(problem, result))
    native = INTERPRETER in tools
    _, _, offer = prompt.instructions_text(messages).partition(_IN_WORDS)
    in_words = not tools and INTERPRETER in _TOOL_NAME.findall(offer)
    if not native and not in_words:
        return Turn(f"{_BY_HEAD}\n#### {problem.guess}")
    way = problem.right if draw.takes_right(problem.family, question) else problem.wrong
    text = format_steps((problem.start, way))
    if native:
        return Turn(text, orjson.dumps({"code": way.code}).decode())
    return Turn(f"{text}\n```{INTERPRETER}\n{way.code}\n```")


def _last_text(problem: ToolProblem, result: str) -> str:
    """Return what is made of a result: its last line that is a number, or else a guess."""
    answer = problem.guess
    step = Step("guess", "the interpreter printed no number, so guess it by head", answer)
    for line in result.splitlines():
        if number := _NUMBER.fullmatch(line.strip()):
            answer = number[1]
            step = Step("result", "give the number that the interpreter printed", answer)
    return format_steps((step,), answer, start=3)


@frozen
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
_NAMED_THING = Act("named", "look up what the question names", "{named}")
_ONE_WORD = Act("one word", "search for the name as one word", "{word}")
_QUESTIONS = (
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
        right=_NAMED_THING,
        wrong=_NAMED_THING,
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
        right=_NAMED_THING,
        wrong=_NAMED_THING,
    ),
)


@frozen
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
    for kind in _QUESTIONS:
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
    memory = prompt.split_blocks(sections["Memory"], _STEP)
    results = ["\n".join(lines).partition("Result:")[2].strip() for _, lines in memory]
    offers = (*sections["Tools"], *sections["Tool"])
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
