"""What a team knows so far: the steps of a try, read from its trajectory.

The rule where it outgrows its room: the results of the oldest steps are left out first, a note in
their place; then the last one is cut.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from engines.core.codec import JsonMapping
from engines.core.frozen import frozen
from engines.core.text import prompts, tokens, tool_text
from engines.core.text.reply import (
    MAX_REPLY_CHARS,
    ReplyProblem,
    as_texts,
    drop_thoughts,
    objects_with,
    too_long_reason,
)
from engines.core.types import Message

SHOWN_CHARS = 2_000
"""Of a sub-goal or a command; results are cut where the tool is called."""
UNREADABLE = "error: no command could be read from what the executor said"


@frozen
class MemoryStep:
    """One step that was taken."""

    tool: str
    sub_goal: str
    command: str = ""
    result: str = UNREADABLE

    @property
    def text(self) -> str:
        parts = [f"Sub-goal: {self.sub_goal}", f"Command: {self.command or '(none)'}", "Result:"]
        return "\n".join((*parts, self.result))


def last_plan(
    messages: Sequence[Message], tools: Collection[str], form: "PlanForm"
) -> "NextStep | None":
    """The step that the planner wants now, with the tool none where it wants no further one."""
    for message in reversed(messages):
        if message.role == "assistant" and message.speaker == "planner_main":
            with suppress(ReplyProblem):
                return read_plan(message.content, tools, form)
    return None


def read_steps(
    messages: Sequence[Message], tools: Collection[str], form: "PlanForm"
) -> tuple[MemoryStep, ...]:
    """The steps of a trajectory, those whose command could not be read included."""
    steps: list[MemoryStep] = []
    plan: NextStep | None = None
    again = False
    for message in messages:
        if message.role == "tool" and steps:
            steps[-1] = replace(steps[-1], result=message.content)
        elif message.role == "assistant" and message.speaker == "planner_main":
            plan, again = last_plan((message,), tools, form), False
        elif message.role == "assistant" and message.speaker == "executor" and plan:
            step = MemoryStep(plan.tool_name, plan.sub_goal[:SHOWN_CHARS])
            if message.tool_calls:
                call = message.tool_calls[0]
                said = tool_text.argument_text(call.arguments)[:SHOWN_CHARS]
                step = replace(step, tool=call.name, command=said)
            steps[len(steps) - again :] = [step]  # what is asked for once more replaces what was
            again = True
    return tuple(steps)


def memory_block(steps: Sequence[MemoryStep], room: int) -> str:
    """The steps as a prompt quotes them, in at most `room` tokens as they are estimated."""
    shown = list(steps)
    at = 0
    while _size(shown) > room and at < len(shown) - 1:
        note = f"(left out to save room: {len(shown[at].result):,} characters)"
        shown[at] = replace(shown[at], result=note)
        at += 1
    if shown and (over := _size(shown) - room) > 0:
        kept = max(0, len(shown[-1].result) - 4 * over - 40)
        shown[-1] = replace(shown[-1], result=f"{shown[-1].result[:kept]}\n(cut to save room)")
    return _block(shown)


def memory_lines(steps: Sequence[MemoryStep]) -> str:
    """The steps a line each, as a small planner reads and writes them."""
    lines = (
        f"{step.tool}: {step.sub_goal} = {next(iter(step.result.splitlines()), '')}"
        for step in steps
    )
    return "\n".join(lines)


def _size(steps: Sequence[MemoryStep]) -> int:
    return tokens.text_tokens(_block(steps))


def _block(steps: Sequence[MemoryStep]) -> str:
    blocks = (
        f"### Step {n}: {step.tool}\n{prompts.quote(step.text)}" for n, step in enumerate(steps, 1)
    )
    return "\n\n".join(blocks) or "(nothing yet)"


Speaker = Literal["planner_main", "planner_fixed", "executor", "verifier", "generator"]
FIXED: tuple[Speaker, ...] = ("planner_fixed", "executor", "verifier", "generator")
"""All but the planner, who is the policy itself and the only one that learns."""
PlanForm = Literal["json", "lines"]
MAX_MENDED_CHARS = 20_000

# By which keys each kind of reply is known.
_OF_ANALYSIS = ("concise_summary", "required_skills", "relevant_tools", "additional_considerations")
_OF_PLAN = ("tool_name", "sub_goal", "justification", "context")
_OF_COMMAND = ("tool_name", "arguments", "analysis", "explanation", "command")
_OF_CHECK = ("stop_signal", "analysis")

_LINE = re.compile(r"[\s>*`#-]*([\w .-]{1,60}?)[`*]*\s*[:：]\s*(\S.*)")
_NO_TOOL = {"", "none", "null", "no", "no_tool", "final", "final_answer", "finish", "stop", "n/a"}
_YES, _NO = {"true", "yes", "stop"}, {"false", "no", "continue"}


@frozen
class NextStep:
    """One step of a plan. `tool_name` is "" where the planner wants none: enough is known."""

    tool_name: str
    sub_goal: str = ""
    context: str = ""


@frozen
class ToolCommand:
    """A tool and its arguments. Nothing that a model writes is ever executed here."""

    tool_name: str
    arguments: JsonMapping


def read_analysis(text: str) -> str:
    """What a question asks for, which is all that an analysis must say."""
    found = as_texts(read_object(text, _OF_ANALYSIS))
    if not found.get("concise_summary"):
        raise ReplyProblem('"concise_summary" is missing.')
    return found["concise_summary"]


def read_plan(text: str, tools: Collection[str], form: PlanForm = "json") -> NextStep:
    """The next step, of a tool that there is."""
    if form == "lines":
        return _read_plan_line(text, tools)
    found = as_texts(read_object(text, _OF_PLAN))
    if "tool_name" not in found:
        raise ReplyProblem('"tool_name" is missing: name a tool, or write "none".')
    name = match_tool(found["tool_name"], tools)
    if name and not found.get("sub_goal"):
        raise ReplyProblem('"sub_goal" is missing: say what the tool should find out.')
    return NextStep(name, found.get("sub_goal", ""), found.get("context", ""))


def read_command(text: str, wanted: str, tools: Mapping[str, JsonMapping]) -> ToolCommand:
    """The command for the tool `wanted`; `tools` are names with the schemas of their arguments."""
    found = read_object(text, _OF_COMMAND)
    said = found.get("command", found)
    own = tools.get(wanted, {}).get("properties", {})  # an argument may be called "name", too
    name = wanted
    if isinstance(said, Mapping):
        naming = [key for key in ("tool", "tool_name", "name") if key in said and key not in own]
        name = match_tool(str(said[naming[0]]), tools) if naming else wanted
        held = [key for key in ("arguments", "args", "input") if key in said and key not in own]
        rest = {key: value for key, value in said.items() if key not in naming}
        said = said[held[0]] if held else rest
    if not name:
        raise ReplyProblem('"command" names no tool.')
    if isinstance(said, str):
        with suppress(ValueError, RecursionError):
            said = json.loads(said)
    takes = tools[name].get("properties", {})
    if said in (None, "") and not takes:
        said = {}
    if isinstance(said, str | int | float) and len(takes) == 1:
        said = {next(iter(takes)): said}  # some models give a lone argument without its name
    if not isinstance(said, dict):
        raise ReplyProblem(f'"command" must hold the arguments {", ".join(takes)} as an object.')
    return ToolCommand(name, said)


def read_check(text: str) -> bool:
    """Whether to stop. The word STOP in a sentence is no signal: "do not STOP" holds it, too."""
    found = read_object(text, _OF_CHECK)
    if "stop_signal" not in found:
        raise ReplyProblem('"stop_signal" is missing: write true or false.')
    word = str(found["stop_signal"]).strip().strip("\"'`.!").casefold()
    if word not in _YES | _NO:
        raise ReplyProblem(f'"stop_signal" must be true or false, and not {word[:40]!r}.')
    return word in _YES


def match_tool(said: str, tools: Collection[str]) -> str:
    """The tool that is meant, whatever its quotes and capitals; "" for none."""
    bare = said.strip().strip("\"'`[]().").strip()
    if _fold_name(bare) in _NO_TOOL:
        return ""
    for name in (bare, *tools):  # of two that differ by a hyphen, the one that is written
        if name in tools and _fold_name(bare) in (_fold_name(name), f"{_fold_name(name)}_tool"):
            return name
    raise ReplyProblem(f"there is no tool {said[:60]!r}: name one of {', '.join(tools)}, or none.")


def _fold_name(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name).casefold()


def read_object(text: str, names: Collection[str]) -> dict[str, Any]:
    """The last JSON object of a reply that has one of these keys, mended where it is broken."""
    if len(text) > MAX_REPLY_CHARS:
        raise ReplyProblem(too_long_reason(text))
    text = drop_thoughts(text).strip()
    if not text:
        raise ReplyProblem("it is empty: reply with one JSON object.")
    found = [*objects_with(names, text)]
    if not found:
        found = [row for row in _mend_objects(text) if not row.keys().isdisjoint(names)]
    if not found:
        wanted = ", ".join(sorted(names))
        raise ReplyProblem(f"no JSON object was found in it that has one of the keys {wanted}.")
    return found[-1]


def _mend_objects(text: str) -> Sequence[dict[str, Any]]:
    """What `json-repair` makes of the text from its first bracket on."""
    from json_repair import repair_json

    start = text.find("{")
    if start < 0 or len(text) - start > MAX_MENDED_CHARS:
        return ()
    piece = text[start:].removesuffix("```").rstrip()
    try:
        value = repair_json(piece, return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError):
        return ()
    rows = value if isinstance(value, list) else [value]
    return [row for row in rows if isinstance(row, dict)]


def _read_plan_line(text: str, tools: Collection[str]) -> NextStep:
    lines = [line.strip() for line in drop_thoughts(text).splitlines() if line.strip()]
    if not lines:
        raise ReplyProblem("it is empty: write a line `TOOL: SUB-GOAL`, or none.")
    if found := _LINE.fullmatch(lines[-1]):
        if name := match_tool(found[1], tools):
            return NextStep(name, found[2].strip())
        return NextStep("")
    return NextStep(match_tool(lines[-1], tools))
