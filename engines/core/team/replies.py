"""What the members of a team reply, read leniently in form and strictly in meaning.

Raises `ReplyProblem` in words for the model that wrote the reply; guesses nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from engines.core.text.objects import drop_thoughts, objects_with
from engines.core.text.reply import MAX_REPLY_CHARS, ReplyProblem, too_long_reason

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

_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.S)
_LINE = re.compile(r"[\s>*`#-]*([\w .-]{1,60}?)[`*]*\s*[:：]\s*(\S.*)")
_NO_TOOL = {"", "none", "null", "no", "no_tool", "final", "final_answer", "finish", "stop", "n/a"}
_YES, _NO = {"true", "yes", "stop"}, {"false", "no", "continue"}


@dataclass(frozen=True, slots=True)
class NextStep:
    """One step of a plan. `tool_name` is "" where the planner wants none: enough is known."""

    tool_name: str
    sub_goal: str = ""
    context: str = ""


@dataclass(frozen=True, slots=True)
class ToolCommand:
    """A tool and its arguments. Nothing that a model writes is ever executed here."""

    tool_name: str
    arguments: Mapping[str, Any]


def read_analysis(text: str) -> str:
    """What a question asks for, which is all that an analysis must say."""
    found = _as_texts(read_object(text, _OF_ANALYSIS))
    if not found.get("concise_summary"):
        raise ReplyProblem('"concise_summary" is missing.')
    return found["concise_summary"]


def read_plan(text: str, tools: Collection[str], form: PlanForm = "json") -> NextStep:
    """The next step, of a tool that there is."""
    if form == "lines":
        return _read_plan_line(text, tools)
    found = _as_texts(read_object(text, _OF_PLAN))
    if "tool_name" not in found:
        raise ReplyProblem('"tool_name" is missing: name a tool, or write "none".')
    name = match_tool(found["tool_name"], tools)
    if name and not found.get("sub_goal"):
        raise ReplyProblem('"sub_goal" is missing: say what the tool should find out.')
    return NextStep(name, found.get("sub_goal", ""), found.get("context", ""))


def read_command(text: str, wanted: str, tools: Mapping[str, Mapping[str, Any]]) -> ToolCommand:
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


def spoken_lines(text: str) -> list[str]:
    """What a member says, for people: of a JSON object a line a key, else its own lines."""
    with suppress(ValueError, RecursionError):
        found = json.loads(fenced[1] if (fenced := _FENCE.fullmatch(text.strip())) else text)
        if isinstance(found, dict):
            rows = _as_texts(found).items()
            return [" ".join(f"{key}: {said}".split()) for key, said in rows if said]
    return text.splitlines()


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


def _as_texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Values as texts: lists a comma apart, objects as JSON."""

    def text(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(text(one) for one in value)
        return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return {key: "" if value is None else text(value) for key, value in row.items()}
