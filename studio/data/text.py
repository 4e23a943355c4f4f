"""Data sets as text: what `studio data preview` and `studio data check` print. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engines.core.codec import fields_of
from engines.core.types import Problem
from engines.data.checks import DataReport, Numbered, doubts_line, recorded_rewards
from engines.data.rows import Unit
from studio.data.prepare import Prepared
from studio.render.lines import COLUMNS
from studio.render.words import count_text
from studio.secrets.sanitize import sanitize

_INDENT = " " * 4
_LINES = 12
"""Lines of a question that a preview shows; the file holds the rest."""
_LISTED = 10


def problem_data(line: int, problem: Problem) -> dict[str, Any]:
    return {
        "line": line,
        **fields_of(problem, "id", "question", "answer", "source"),
        "meta": dict(problem.meta),
    }


def preview_text(numbered: Sequence[Numbered], unit: Unit = "line") -> str:
    """Each problem with its line or row and id, the question folded to the width of a terminal."""
    blocks = []
    for line, problem in numbered:
        answer = " or ".join(problem.accepted_answers) or "(none)"
        if rewards := recorded_rewards(problem):
            told = ", ".join("unknown" if one is None else str(one) for one in rewards)
            answer += f"\n{count_text(len(rewards), 'try', 'tries')}: {told}"
        source = f"  {sanitize(problem.source)}" if problem.source else ""
        blocks.append(
            f"{unit} {line}  {problem.id}{source}\n{_history_text(problem)}"
            f"{_wrap_text(problem.question)}\n{_wrap_text(f'answer: {answer}')}"
        )
    return "\n\n".join(blocks)


def _history_text(problem: Problem) -> str:
    """The turns before the question, each on one line."""
    turns = (sanitize(f"{turn.role}: {turn.content}") for turn in problem.history)
    width = COLUMNS - len(_INDENT)
    return "".join(
        f"{_INDENT}{textwrap.shorten(turn, width, placeholder=' …')}\n" for turn in turns
    )


def report_data(name: str, path: str, report: DataReport) -> dict[str, Any]:
    clean = report.is_clean and (report.tries or len(report.without_answer) < report.n)
    return {"name": name, "path": path, "clean": bool(clean), **asdict(report)}


def report_text(name: str, path: str, report: DataReport) -> str:
    """What was found, one finding a line, lines or rows of the file by number."""
    unit = report.unit
    answered = report.n - len(report.without_answer)
    missing, empty = (
        f"; {what} on {_line_numbers_text(numbers, unit)}" if numbers else ""
        for what, numbers in (("none", report.without_answer), ("nothing stands", report.empty))
    )
    doubtful = doubts_line(report) or ("" if answered or report.tries else "no row has an answer")
    tries = ", ".join(f"{n:,} {word}" for word, n in report.tries.items())
    return "\n".join(
        [
            f"{name}: {count_text(report.n, 'problem')} in {sanitize(str(path))}",
            f"  answers        {answered} of {report.n}{missing}",
            f"  questions      {_length_text(report.question_chars)}{empty}",
            f"  answer texts   {_length_text(report.answer_chars)}",
            f"  duplicates     {line_sets_text(report.duplicates, unit)}",
            f"  contradictory  {line_sets_text(report.contradictory, unit)}",
            *_log_lines(report),
            *([f"  tries          {tries}; verifier=recorded knows them"] if tries else []),
            f"doubtful: {doubtful}; look before practising" if doubtful else "clean",
        ]
    )


def prepared_data(one: Prepared, dry_run: bool) -> dict[str, Any]:
    counts = ("name", "read", "kept", "left_out")
    parts = [{**fields_of(part, *counts), "source": str(part.source)} for part in one.parts]
    about = {"name": one.name, "path": str(one.path), "n": one.n}
    made = {} if dry_run else {"new": one.new, "digest": one.digest}
    return {**about, **made, "seed": one.wanted.seed, "parts": parts}


def prepared_text(one: Prepared, dry_run: bool) -> str:
    """What was or would be written, and what each source gave."""
    path, n = sanitize(str(one.path)), count_text(one.n, "problem")
    would = " would be" if dry_run else ""
    if not one.new:
        done = f"nothing{would} changed, {path} has its {n} already"
    elif one.n:
        done = f"{n}{would} added as {path}"
    else:
        there = ", unless that has other content" if one.path.exists() else ""
        done = f"rows would be fetched and added as {path}{there}"
    lines = [f"{one.name}: {done}"]
    for part in one.parts:
        left = "".join(f", {count} {why} left out" for why, count in part.left_out.items())
        of = f"{count_text(part.kept, 'problem')} from {count_text(part.read, 'row')} of "
        read = of if part.read else ""
        lines.append(f"  {part.name}: {read}{sanitize(str(part.source))}{left}")
    return "\n".join(lines)


def _log_lines(report: DataReport) -> list[str]:
    if not report.logged_rows:
        return []
    rows, questions = report.logged_rows, report.logged_questions
    replies = "1 row is a reply" if rows == 1 else f"{rows} rows are replies"
    return [f"  replies        {replies} to {count_text(questions, 'question')} (a log)"]


def _wrap_text(text: str) -> str:
    width = COLUMNS - len(_INDENT)
    folded = [
        part
        for line in sanitize(text).split("\n")
        for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]
    ]
    if len(folded) > _LINES:
        folded = [*folded[:_LINES], f"… {len(folded) - _LINES} more lines"]
    return "\n".join(f"{_INDENT}{line}".rstrip() for line in folded)


def _length_text(chars: tuple[int, float, int]) -> str:
    shortest, median, longest = chars
    return f"{shortest} to {longest} characters, median {median:g}"


def line_sets_text(found: Sequence[tuple[int, ...]], unit: Unit) -> str:
    if not found:
        return "none"
    shown = "; ".join(_line_numbers_text(lines, unit) for lines in found[:_LISTED])
    more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"{len(found)} ({shown}{more})"


def _line_numbers_text(lines: Sequence[int], unit: Unit) -> str:
    shown = ", ".join(str(line) for line in lines[:_LISTED])
    more = f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    return f"{unit}{'s' if len(lines) > 1 else ''} {shown}{more}"
