"""What agents did besides talking, in words: turns, tool calls, results. Pure."""

from __future__ import annotations

from engines.core.events import RolloutFinished
from engines.core.text.tool_marks import CallMark, split_marks
from engines.core.text.tool_text import argument_text
from studio.report.summary import count_text
from studio.secrets.sanitize import sanitize


def try_acts_text(turns: int, tool_calls: int, failed_calls: int) -> str:
    """`4 turns, 3 tool calls (1 failed)`; "" of a single reply, and where nothing is known."""
    if turns <= 1 and not tool_calls:
        return ""
    failed = f" ({failed_calls} failed)" if failed_calls else ""
    return f"{count_text(turns, 'turn')}, {count_text(tool_calls, 'tool call')}{failed}"


def acted_text(found: RolloutFinished) -> str:
    return try_acts_text(found.turns, found.tool_calls, found.failed_calls)


def acts_cell(found: RolloutFinished) -> str:
    """`4/3` for a narrow column of a table, `4/3!` where a call failed."""
    return f"{found.turns}/{found.tool_calls}{'!' * (found.failed_calls > 0)}"


def mean_acts_text(turns: int, tool_calls: int, failed_calls: int, tries: int) -> str:
    """`3.1 turns and 2.3 tool calls a try (n=24), 4 calls failed`."""
    failed = f", {count_text(failed_calls, 'call')} failed" if failed_calls else ""
    means = f"{turns / tries:.1f} turns and {tool_calls / tries:.1f} tool calls"
    return f"{means} a try (n={tries}){failed}"


def call_lines(name: str, arguments: str) -> list[str]:
    """A call as plain text shows it."""
    said = sanitize(argument_text(arguments).strip("\n"))
    return [f"[calls {sanitize(name)}]", *([said] if said else [])]


def streamed_text(text: str) -> str:
    """A piece of a try's text as plain lines, sanitized; it holds whole marks."""
    out = ""
    for part in split_marks(text):
        if isinstance(part, str):
            out += sanitize(part)
            continue
        if isinstance(part, CallMark):
            lines = call_lines(part.name, part.arguments)
        else:
            lines = [f"[{sanitize(part.name)}: {part.status}]", sanitize(part.text)]
        out += "\n".join(("", *lines, ""))
    return out
