"""Data sets as lines: what `studio data` prints."""

import re
import textwrap
from collections.abc import Mapping, Sequence

from engines.data.dataset import doubts_line
from engines.data.rows import Unit
from studio.facts import data_set
from studio.render.lines import COLUMNS, table
from studio.render.words import count_text
from studio.secrets.sanitize import one_line, sanitize

_INDENT = " " * 4
_MOST_LINES = 12
"""Lines of a question that a preview shows; the file holds the rest."""
_LISTED = 10
_ITEM_LINES = 24
"""Lines of an item's text at most, until all of it is asked for."""
_ITEM_LINE_CHARS = 400
_PLURAL = re.compile(r'(?<![\w"-])(?:(step|text|request|piece|line|file|sample)s|(tr|entr)ies)\b')


def data_table(listed: Sequence[data_set.ListedData]) -> str:
    rows = [(e.name, "-" if e.n is None else str(e.n), e.where, e.path) for e in listed]
    return table(("NAME", "N", "FROM", "PATH"), rows)


def added_text(facts: data_set.AddedData) -> str:
    path = sanitize(str(facts.path))
    if facts.new:
        return f"{facts.name}: {count_text(facts.n, 'problem')} added as {path}"
    return f"{facts.name}: nothing changed, {path} has this content already"


def added_notes(facts: data_set.AddedData) -> list[str]:
    notes = []
    if facts.without_answer:
        lack = f"{facts.without_answer} of {facts.n} have no answer"
        notes.append(f"{facts.name}: {lack}: the math and text verifiers refuse those")
    if facts.with_tools:
        rows = count_text(facts.with_tools, "row")
        notes.append(f"{facts.name}: {rows} with calls of tools left out")
    if facts.contradictory:
        lines = line_sets_text(facts.contradictory, facts.unit)
        notes.append(f"{facts.name}: questions with different answers: {lines}")
    if facts.hides_bundled:
        notes.append(f"it hides the bundled data set {facts.name}")
    return notes


def prepared_notes(facts: data_set.PreparedData) -> list[str]:
    notes = []
    if facts.hides_bundled:
        notes.append(f"it hides the bundled data set {facts.name}")
    if facts.twins:
        same = f"{facts.name} has the same rows as {', '.join(facts.twins)}"
        notes.append(f"{same}: do not practise on one and evaluate on another")
    return notes


def preview_text(problems: Sequence[data_set.NumberedProblem]) -> str:
    """Each problem with its line or row and id, the question folded to the width of a terminal."""
    blocks = []
    for facts in problems:
        problem = facts.problem
        answer = " or ".join(facts.accepted_answers) or "(none)"
        if facts.rewards:
            rewards = ["unknown" if reward is None else str(reward) for reward in facts.rewards]
            answer += f"\n{count_text(len(rewards), 'try', 'tries')}: {', '.join(rewards)}"
        source = f"  {sanitize(problem.source)}" if problem.source else ""
        lines = [f"{facts.unit} {facts.line}  {problem.id}{source}"]
        for turn in problem.history:  # each on one line
            text = sanitize(f"{turn.role}: {turn.content}")
            short = textwrap.shorten(text, COLUMNS - len(_INDENT), placeholder=" …")
            lines.append(f"{_INDENT}{short}")
        lines += [_wrap_text(problem.question), _wrap_text(f"answer: {answer}")]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _wrap_text(text: str) -> str:
    width = COLUMNS - len(_INDENT)
    folded = []
    for line in sanitize(text).split("\n"):
        folded += textwrap.wrap(line, width, break_on_hyphens=False) or [""]
    if len(folded) > _MOST_LINES:
        folded = [*folded[:_MOST_LINES], f"… {len(folded) - _MOST_LINES} more lines"]
    return "\n".join(f"{_INDENT}{line}".rstrip() for line in folded)


def check_text(facts: data_set.DataCheck) -> str:
    """One finding a line, lines or rows of the file by number."""
    report = facts.report
    answers = f"{facts.answered} of {report.n}"
    if report.without_answer:
        answers += f"; none on {_numbers_text(report.without_answer, report.unit)}"
    lines = [
        f"{facts.name}: {count_text(report.n, 'problem')} in {sanitize(facts.path)}",
        f"  answers        {answers}",
        f"  duplicates     {line_sets_text(report.duplicates, report.unit)}",
        f"  contradictory  {line_sets_text(report.contradictory, report.unit)}",
    ]
    if report.empty:
        lines.append(f"  blank          {_numbers_text(report.empty, report.unit)}")
    if report.logged_rows:
        replies = "1 row is a reply"
        if report.logged_rows > 1:
            replies = f"{report.logged_rows} rows are replies"
        questions = count_text(report.logged_questions, "question")
        lines.append(f"  replies        {replies} to {questions} (a log)")
    if report.tries:
        tries = ", ".join(f"{n:,} {word}" for word, n in report.tries.items())
        lines.append(f"  tries          {tries}; verifier=recorded knows them")
    doubts = doubts_line(report)
    if not (doubts or facts.clean):
        doubts = "no row has an answer"
    lines.append(f"doubtful: {doubts}; look before practising" if doubts else "clean")
    return "\n".join(lines)


def line_sets_text(sets: Sequence[tuple[int, ...]], unit: Unit) -> str:
    if not sets:
        return "none"
    listed = "; ".join(_numbers_text(lines, unit) for lines in sets[:_LISTED])
    more = f"; and {len(sets) - _LISTED} more" if len(sets) > _LISTED else ""
    return f"{len(sets)} ({listed}{more})"


def _numbers_text(lines: Sequence[int], unit: Unit) -> str:
    listed = ", ".join(str(line) for line in lines[:_LISTED])
    more = f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    return f"{unit}{'s' if len(lines) > 1 else ''} {listed}{more}"


def prepared_text(facts: data_set.PreparedData) -> str:
    """Say what was or would be written, and what each source gave."""
    path, n = sanitize(str(facts.path)), count_text(facts.n, "problem")
    would = " would be" if facts.dry_run else ""
    if not facts.new:
        result = f"nothing{would} changed, {path} has its {n} already"
    elif facts.n:
        result = f"{n}{would} added as {path}"
    else:
        there = ", unless that has other content" if facts.is_there else ""
        result = f"rows would be fetched and added as {path}{there}"
    lines = [f"{facts.name}: {result}"]
    for part in facts.parts:
        line = f"  {part.name}: "
        if part.read:
            line += f"{count_text(part.kept, 'problem')} from {count_text(part.read, 'row')} of "
        left_out = [f", {n} {why} left out" for why, n in part.left_out.items()]
        lines.append(f"{line}{sanitize(part.source)}{''.join(left_out)}")
    return "\n".join(lines)


def import_text(facts: data_set.SessionImport) -> str:
    unit = "sample" if facts.format == "inspect" else "session"
    problems, sessions = count_text(facts.problems, "problem"), count_text(facts.sessions, unit)
    several = count_text(facts.groups, "problem with several", "problems with several")
    private = ""
    if facts.private:
        what = "home folder or address", "home folders or addresses"
        private = f", {count_text(facts.private, *what)}"
    where = "not written:" if facts.dry_run else "nothing changed, all in"
    if facts.written:
        where = "in"
    return sanitize(
        f"{facts.name}: {problems} from {sessions}, {where} {facts.path}\n"
        f"  tries     {_counts_text(facts.outcomes)}; {several}\n"
        f"  signals   {_counts_text(facts.signals) or 'none'}\n"
        f"  redacted  {count_text(facts.redacted, 'secret')}{private}\n"
        f"  linked    {count_text(facts.subagents, 'sub-agent')}\n"
        f"  dropped   {_counts_text(facts.dropped) or 'nothing'}"
    )


def _counts_text(counts: Mapping[str, int]) -> str:
    """Counts of what is named for many of it."""
    return ", ".join(f"{n:,} {_singular(what) if n == 1 else what}" for what, n in counts.items())


def _singular(what: str) -> str:
    return _PLURAL.sub(lambda match: match[1] or f"{match[2]}y", what, count=1)


def item_text(item: data_set.Item, *, whole: bool = False) -> str:
    """An item as it would be sent: its question, its tries and what came of them."""
    lines = [
        f"item {item.item} of {item.of}, {count_text(len(item.tries), 'try', 'tries')}",
        *clip_text(item.question, whole=whole)[0],
    ]
    if item.answer:
        lines.append(f"answer: {one_line(item.answer, 200)}")
    for at, recorded in enumerate(item.tries, start=1):
        reward = recorded.get("reward")
        about = ["no reward" if reward is None else f"reward {reward}"]
        if recorded.get("change"):
            about.append(recorded["change"])
        about += recorded.get("signals") or ["no signal"]
        about.append(recorded.get("model") or "model unknown")
        lines.append(f"try {at}: {one_line(', '.join(map(str, about)), 200)}")
        lines += clip_text(str(recorded.get("response")), whole=whole)[0]
    lines.append(
        f"would be sent: the question ({item.question_chars:,} characters) to the policy, unless "
        f"it is a replay; question and tries ({item.sent_chars:,} characters) to the reflector"
    )
    return "\n".join(lines)


def clip_text(text: str, *, whole: bool = False) -> tuple[list[str], int]:
    """Return the lines of a text that are shown, and how many are not, or not to their end."""
    lines, half = sanitize(text).split("\n"), _ITEM_LINES // 2
    if whole:
        return [f"{_INDENT}{line}".rstrip() for line in lines], 0
    hidden = max(0, len(lines) - _ITEM_LINES)
    ends = [*lines[:half], *lines[-half:]] if hidden else lines
    cut = sum(len(line) > _ITEM_LINE_CHARS for line in ends)
    shown = [f"{_INDENT}{one_line(line, _ITEM_LINE_CHARS)}".rstrip() for line in ends]
    if hidden:
        shown.insert(half, f"{_INDENT}… {hidden} lines more (v)")
    return shown, hidden + cut
