"""Data sets and logs of rollouts: files and folders as problems, or as replies to each question.

Every bad row is told at once. Rewards and answers of a log are not looked at: verdicts are made
anew. Whether a file that is read as problems is a log needs a look at all its rows, since a column
`output` or `response` alone is an ordinary one.
"""

import gc
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from engines.core.codec import JsonObject, digest_bytes
from engines.core.errors import DataError, suggest_name
from engines.core.frozen import frozen
from engines.core.types import Completion, Problem, Usage
from engines.data.fields import (
    LISTED_REPLIES,
    SINGLE_REPLIES,
    USUAL,
    BlankQuestion,
    FieldNames,
    field_names,
    find_images,
    get_field,
    parse_problem,
    parse_question,
)
from engines.data.rows import Unit, open_table
from engines.data.source import PRACTISED, DataSource, resolve_data

Numbered = tuple[int, Problem]
"""A problem with its line or row, counted from 1."""
SHOWN_LINES = 12
"""Of the bad rows of a file, beside the first."""
LogCounts = tuple[int, int]
"""Rows that are replies, and to how many questions; zeros where the file is no log."""
RolloutLog = Mapping[str, tuple[Completion, ...]]
"""Question → the replies to it, in the order of the log."""


@frozen
class DataReport:
    """What `check_rows` saw. Lines or rows count from 1; lengths are in characters."""

    n: int  # problems; rows without a question are none
    unit: Unit  # what the numbers below count
    empty: tuple[int, ...]  # with a question in which nothing stands
    without_answer: tuple[int, ...]
    duplicates: tuple[tuple[int, ...], ...]  # with equal question and answers
    contradictory: tuple[tuple[int, ...], ...]  # equal question, no answer right for all
    logged_rows: int = 0  # replies, where the file is a log; zeros where it is none
    logged_questions: int = 0  # which those reply to; each is one problem
    tries: dict[str, int] = field(default_factory=dict)  # recorded ones, by how they went

    @property
    def rows_without_answer(self) -> tuple[int, ...]:
        """Without an answer, though others have one; a set may well have none at all."""
        return self.without_answer if len(self.without_answer) < self.n else ()

    @property
    def is_clean(self) -> bool:
        return not (self.duplicates or self.contradictory or self.empty or self.rows_without_answer)


def read_problems(
    source: DataSource | Path,
    *,
    fields: Mapping[str, str] | None = None,
    needs_answer: bool = True,
    limit: int | None = None,
) -> tuple[Problem, ...]:
    """Read a data set, in the order of the file.

    `fields` is {"question": NAME, "answer": NAME} where the data has other names; a dot looks
    inside an object ("extra_info.ground_truth"). With `needs_answer` False problems without a
    truth pass, with answer None.

    Texts lose surrounding white space. A number becomes its shortest decimal text, and a whole
    float loses its ".0" (18.0 → "18": the same number, as spreadsheets write it); true becomes
    "true". A list of answers, or answers of source `nq` joined by "; ", give their first as
    answer and all of them as meta["alternatives"]. A log with several rows for a question gives
    it once, without the replies (`drop_replies` says when a file is one).

    Raises DataError: with file and line or row; also for a file without any problem, and for an
    imported item that nobody has reviewed, since what is read here may be sent to a model.
    """
    read = _read(source, fields, needs_answer, limit)
    if read.unreviewed:
        path = source.path if isinstance(source, DataSource) else source
        raise unreviewed_error(str(path), path.stem, read.unreviewed, read.unit)
    return tuple(problem for _, problem in read.all_or_raise(source, limit))


def read_numbered_problems(
    source: DataSource | Path,
    *,
    fields: Mapping[str, str] | None = None,
    needs_answer: bool = True,
    limit: int | None = None,
) -> tuple[Numbered, ...]:
    """`read_problems`, each problem with its line, or its row where there are no lines.

    It is for looking at: what nobody has reviewed is read too.
    """
    return _read(source, fields, needs_answer, limit).all_or_raise(source, limit)


def check_dataset(
    source: DataSource | Path, *, fields: Mapping[str, str] | None = None
) -> DataReport:
    """Look for what usually is a mistake; raises DataError where a row cannot be read at all."""
    read = _read(source, fields, False, None)
    empty = [number for number, error in read.bad if isinstance(error, BlankQuestion)]
    others = [(number, error) for number, error in read.bad if number not in empty]
    numbered = replace(read, bad=others).all_or_raise(source, None)
    return check_rows(numbered, empty=empty, unit=read.unit, logged=read.logged)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Rows make no circles; looking for some among 182,190 took a third of the reading."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@frozen
class _ReadResult:
    unit: Unit
    problems: tuple[Numbered, ...]
    bad: Sequence[tuple[int, DataError]]
    logged: LogCounts
    unreviewed: Sequence[int]

    def all_or_raise(self, source: DataSource | Path, limit: int | None) -> tuple[Numbered, ...]:
        """The problems, if every row is one."""
        if self.bad:
            raise combine_errors(self.bad, self.unit)
        if not self.problems and limit != 0:
            raise DataError(
                str(source), "The file holds no problem.", "Add one problem a line or row."
            )
        return self.problems


@_without_collector()
def _read(
    source: DataSource | Path,
    fields: Mapping[str, str] | None,
    needs_answer: bool,
    limit: int | None,
) -> _ReadResult:
    source = source if isinstance(source, DataSource) else DataSource(source)
    names, table = field_names(str(source), fields or {}), open_table(source)
    numbered: list[Numbered] = []
    bad: list[tuple[int, DataError]] = []
    unreviewed: list[int] = []
    has_replies, unseen = False, dict(fields or {})
    columns: dict[str, None] = {}
    for number, place, row in table.rows:
        is_past = limit is not None and len(numbered) >= limit
        if is_past and not has_replies and not unseen:
            break  # else all rows are looked at, since together they tell whether it is a log
        try:
            if isinstance(row, DataError):
                raise row
            if unseen:
                columns |= dict.fromkeys(row)
                unseen = {of: name for of, name in unseen.items() if not _has_field(row, name)}
            if is_unreviewed(row):
                unreviewed.append(number)
            problem = parse_problem(place, row, names, needs_answer, source.name)
            problem = find_images(place, problem, source.path.parent)
        except DataError as error:
            if not is_past:
                bad.append((number, error))
        else:
            numbered.append((number, problem))
            has_replies = has_replies or not names.replies.isdisjoint(problem.meta)
    for of, name in unseen.items():
        if columns:
            raise DataError(
                str(source),
                f'No row has a field "{name}", which is named as the {of}.',
                suggest_name(name, columns),
            )
    problems, logged = drop_replies(numbered, names)
    return _ReadResult(table.unit, _number_repeats(problems[:limit]), bad, logged, unreviewed)


def _has_field(row: JsonObject, name: str) -> bool:
    return name in row or get_field(row, name) is not None


def _number_repeats(problems: Sequence[Numbered]) -> tuple[Numbered, ...]:
    """The same with the nth repeat of a content numbered in its id."""
    times: dict[str, int] = {}
    numbered = []
    for number, problem in problems:
        nth = times[problem.id] = times.get(problem.id, 0) + 1
        if nth > 1:
            problem = replace(problem, id=f"{problem.id}#{nth}")
        numbered.append((number, problem))
    return tuple(numbered)


def combine_errors(bad: Sequence[tuple[int, DataError]], unit: Unit) -> DataError:
    """The first bad row in full and the numbers of the others, so that one round mends all."""
    (_, first), *others = bad
    if not others:
        return first
    numbers = ", ".join(str(number) for number, _ in others[:SHOWN_LINES])
    more = ", …" if len(others) > SHOWN_LINES else ""
    return DataError(
        first.place,
        f"{first.cause} ({len(others)} more cannot be used: {unit} {numbers}{more}.)",
        first.move,
    )


def drop_replies(
    numbered: Sequence[Numbered], names: FieldNames
) -> tuple[list[Numbered], LogCounts]:
    """Each question of a log once, without what belongs to its replies.

    Rows of a log share question, answer and source with another whose reply differs; a column that
    is merely called like one is a fact of its problem.

    Returns:
        The problems, in order, and how much was merged. Lists of replies (`rollouts`, …) are
        never facts of a problem.
    """
    groups: dict[tuple[str, str], list[Problem]] = {}
    for _, problem in numbered:
        if not names.replies.isdisjoint(problem.meta):
            groups.setdefault((problem.id, problem.source), []).append(problem)
    apart: dict[tuple[str, str], set[str]] = {}  # what belongs to the replies of a log's question
    for key, (first, *others) in groups.items():
        differing = {
            name
            for other in others
            for name in {*first.meta, *other.meta}
            if first.meta.get(name) != other.meta.get(name)
        }
        if not names.replies.isdisjoint(differing):
            apart[key] = {"model", "reward", *names.replies, *differing}
    problems = []
    for number, problem in numbered:
        key = problem.id, problem.source
        if key in apart and groups[key][0] is not problem:
            continue
        dropped = {name for name in LISTED_REPLIES if isinstance(problem.meta.get(name), list)}
        dropped |= apart.get(key, set())
        if not dropped.isdisjoint(problem.meta):
            meta = {name: value for name, value in problem.meta.items() if name not in dropped}
            problem = replace(problem, meta=meta)
        problems.append((number, problem))
    return problems, (sum(len(groups[key]) for key in apart), len(apart))


def read_rollout_log(path: Path) -> RolloutLog:
    """Read a log in any format a data set may have; the path may end in `:SPLIT`.

    A row holds a question, under the names that data sets use, and a list `rollouts`,
    `responses` or `completions` (texts, chat messages, or objects with `response` and
    perhaps `model`) or one reply of its own. Rows with the same question add up.

    Raises:
        DataError: the log cannot be read, or a row of it is not of that form.

    Source: evaluation samples of Youtu-Agent (raw_question, response); the completions
        table of TRL's GRPO trainer (prompt, completion).
    """
    source = resolve_data(path.name, (path.parent,), PRACTISED)
    log: dict[str, list[Completion]] = {}
    table = open_table(source)
    for number, place, row in table.good_rows():
        if is_unreviewed(row):
            raise unreviewed_error(str(source.path), source.name, [number], table.unit)
        _, question = parse_question(place, row, USUAL)
        log.setdefault(question, []).extend(_parse_replies(place, row))
    if not log:
        raise DataError(str(path), "The rollout log is empty.", "Give a log that holds rollouts.")
    return {question: tuple(replies) for question, replies in log.items()}


def _parse_replies(place: str, row: JsonObject) -> list[Completion]:
    name = next((name for name in LISTED_REPLIES if row.get(name) is not None), None)
    replies = row[name] if name else [row]
    if not isinstance(replies, list) or not replies:
        raise DataError(
            place,
            f'"{name}" is no list with something in it.',
            "Add the logged replies, or take the row out.",
        )
    return [_parse_reply(place, reply, row.get("model")) for reply in replies]


def _parse_reply(place: str, reply: Any, model: Any) -> Completion:
    """One reply: a text, chat messages, or an object that holds either."""
    value = reply
    if isinstance(reply, dict):
        model = reply.get("model") or model
        value = next((reply[n] for n in SINGLE_REPLIES if reply.get(n) is not None), None)
    text = _reply_text(value)
    if text is None:
        raise DataError(
            place,
            "It has no reply as a text, or as chat messages with a turn of the assistant; it "
            f"would be called {', '.join(SINGLE_REPLIES)}.",
            "Add what the model said, or take the row out.",
        )
    return Completion(text, usage=Usage(calls=1), model=str(model or ""))


def _reply_text(value: Any) -> str | None:
    """A text, or that of the assistant's last turn; None where there is neither."""
    if isinstance(value, list):
        turns = [m for m in value if isinstance(m, dict) and m.get("role") == "assistant"]
        value = turns[-1].get("content") if turns else None
        if isinstance(value, list):
            parts = [part.get("text") for part in value if isinstance(part, dict)]
            return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else None


def check_rows(
    numbered: Sequence[Numbered],
    *,
    empty: Sequence[int] = (),
    unit: Unit = "line",
    logged: tuple[int, int] = (0, 0),
) -> DataReport:
    """Look for what usually is a mistake in a data set.

    `empty` are lines or rows whose question is blank, `logged` the number of rows that are replies
    and of the questions they reply to.
    """
    questions = [" ".join(problem.question.split()) for _, problem in numbered]
    times = Counter(questions)
    by_question: dict[str, list[Numbered]] = {}
    by_content: dict[tuple[str, frozenset[str]], list[int]] = {}
    for question, (line, problem) in zip(questions, numbered, strict=True):
        if times[question] > 1:
            by_question.setdefault(question, []).append((line, problem))
            by_content.setdefault((problem.question, answer_set(problem)), []).append(line)
    return DataReport(
        n=len(numbered),
        unit=unit,
        empty=tuple(empty),
        without_answer=tuple(line for line, p in numbered if p.answer is None),
        duplicates=tuple(tuple(lines) for lines in by_content.values() if len(lines) > 1),
        contradictory=tuple(
            tuple(line for line, _ in same)
            for same in by_question.values()
            if _has_contradiction([answer_set(p) for _, p in same])
        ),
        logged_rows=logged[0],
        logged_questions=logged[1],
        tries=dict(Counter(outcome_word(r) for _, p in numbered for r in recorded_rewards(p))),
    )


def recorded_rewards(problem: Problem) -> list[float | None]:
    """Of the tries that a problem was imported with; None: nothing tells how one went."""
    told = problem.meta.get("outcomes")
    rows = told if isinstance(told, list) else []
    return [one.get("reward") for one in rows if isinstance(one, dict)]


def outcome_word(reward: float | None) -> str:
    return "unknown" if reward is None else {1.0: "right", 0.0: "wrong"}.get(reward, "partly right")


def doubts_line(report: DataReport) -> str | None:
    """What is doubtful in one line, for the start of a run; None where nothing is."""
    found = (
        ("without a question", len(report.empty)),
        ("without an answer", len(report.rows_without_answer)),
        ("repeating another", sum(len(same) - 1 for same in report.duplicates)),
        ("contradicting each other", sum(len(same) for same in report.contradictory)),
    )
    doubts = [f"{n} {report.unit}{'s' if n > 1 else ''} {what}" for what, n in found if n]
    return ", ".join(doubts) or None


def answer_set(problem: Problem) -> frozenset[str]:
    """Every answer that counts as right; empty where none is known."""
    return frozenset(problem.accepted_answers)


def _has_contradiction(sets: Sequence[frozenset[str]]) -> bool:
    """True when no single answer would be right in every row that has one."""
    known = [accepted for accepted in sets if accepted]
    return len(known) > 1 and not frozenset.intersection(*known)


MARK, MARKED_CONTENT, ORIGIN = "reviewed", "reviewed_content", "imported"


def content_hash(row: JsonObject) -> str:
    """Of all that an item holds but its mark."""
    content = {key: value for key, value in row.items() if key not in (MARK, MARKED_CONTENT)}
    return digest_bytes(json.dumps(content, sort_keys=True).encode(), 8)


def is_unreviewed(row: JsonObject) -> bool:
    """Whether a row waits for a person: it was imported, or says so, and has no mark that fits.

    A column `reviewed` of a foreign data set stops nothing, unless it says that nobody has.
    """
    if ORIGIN in row or MARKED_CONTENT in row:
        return row.get(MARK) is not True or row.get(MARKED_CONTENT) != content_hash(row)
    return str(row.get(MARK, "")).lower() == "false"


def set_mark(row: JsonObject, reviewed: bool) -> JsonObject:
    """The same row, marked as it is now or not at all."""
    kept = {key: value for key, value in row.items() if key not in (MARK, MARKED_CONTENT)}
    return {**kept, MARK: reviewed, **({MARKED_CONTENT: content_hash(kept)} if reviewed else {})}


def unreviewed_error(place: str, name: str, numbers: Sequence[int], unit: str) -> DataError:
    """What to say where data is to be used that holds unreviewed items."""
    first, *others = numbers
    more = f" (nor {len(others)} more)" if others else ""
    return DataError(
        f"{place}:{first}",
        f"The item of {unit} {first} is not reviewed{more}: it may not be sent to any model.",
        f"Look at it first: studio data review {name}.",
    )
