"""Rehearsal as each member of a team, and as the reader behind a tool that looks things up.

Reads nothing but its prompt: what was found stands in its memory section.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import orjson

from engines.policies.rehearsal import prompt
from engines.policies.rehearsal.families import Step
from engines.policies.rehearsal.lookup.questions import APART, Lookup, recognise_lookup
from engines.policies.rehearsal.solve import UNKNOWN, draws_right

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
