"""What `studio compare` prints: blocks, as text, Markdown or a page, and the same facts as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from engines.core.codec import fields_of
from studio.compare.log import Log, LogRow
from studio.compare.pairs import SetPair
from studio.render.evaluation_lines import mean_text
from studio.render.json import json_data, print_json
from studio.render.lines import indent_text, table, wrap_text
from studio.render.page import Items, Page, Part, Table, render_html, render_markdown
from studio.render.words import difference_text, signs_text
from studio.secrets.sanitize import one_line

_NAMED = 5  # problems of a list
_CAPTIONS = {
    "Verdicts": "Each log against the baseline",
    "Measured": "Means with their 95 % intervals",
    "Practice": "What each had practised, and what that took",
}


class Block(NamedTuple):
    """A heading with lines and a table under it; both may be empty."""

    heading: str
    lines: Sequence[str] = ()
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All comparisons, with what a CI demands of them."""

    logs: Sequence[Log]
    pairs: Sequence[SetPair]
    min_effect: float | None = None

    @property
    def worse(self) -> bool:
        return any(pair.comparison.verdict == "hurts" for pair in self.pairs)

    @property
    def short_of_effect(self) -> list[SetPair]:
        """Those whose interval reaches below the effect that is demanded."""
        least = -2 if self.min_effect is None else self.min_effect
        return [pair for pair in self.pairs if pair.comparison.interval.low < least]

    def practised_elsewhere(self, pair: SetPair) -> str:
        """The practice data, where this set is known to be of another kind: by its first word."""
        known = [self.logs[at].practised for at in (pair.other, 0)]
        data = next((one.data for one in known if one is not None and one.data), "")
        return data if data.partition("-")[0] != pair.set.partition("-")[0] else ""


def _letter(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else f"L{at}"


def _set(name: str, width: int = 60) -> str:
    return one_line(name or "all", width)


def blocks(report: Report) -> list[Block]:
    labels = [f"{_letter(at)}  {one_line(log.label, 120)}" for at, log in enumerate(report.logs)]
    labels[0] += " (baseline)"
    found = [Block("Compared", labels), _verdicts(report)]
    if report.min_effect is not None:
        short = [f"{_letter(pair.other)} on {_set(pair.set)}" for pair in report.short_of_effect]
        held = f"not reached by {', '.join(short)}" if short else "reached everywhere"
        found.append(Block(f"Effect of {report.min_effect:+g} or more", [held]))
    for pair in report.pairs:
        heading = f"A to {_letter(pair.other)}, {_set(pair.set)}"
        found.append(Block(heading, _details(report, pair)))
    found.append(_measured(report))
    if any(log.practised for log in report.logs):
        found.append(_practice(report))
    said: dict[str, list[str]] = {}
    for at, log in enumerate(report.logs):
        for note in log.notes:
            said.setdefault(note, []).append(_letter(at))
    notes = [f"{', '.join(letters)}: {note}" for note, letters in said.items()]
    first, *others = (log.rows for log in report.logs)
    same = [_letter(at) for at, rows in enumerate(others, start=1) if rows == first]
    notes += [f"A and {', '.join(same)} hold the same results"] if same else []
    sets = [dict.fromkeys(row.set for row in log.rows if row.set) for log in report.logs]
    for name in dict.fromkeys(name for one in sets for name in one):
        having = [_letter(at) for at, one in enumerate(sets) if name in one]
        if len(having) < sum(map(bool, sets)):
            notes.append(f"the set {_set(name)} is only in {', '.join(having)}")
    if len({log.fingerprint for log in report.logs if log.fingerprint}) > 1:
        notes.append("they were measured with other settings (model, sampling, prompt or verifier)")
    return [*found, Block("Notes", notes)] if notes else found


def _verdicts(report: Report) -> Block:
    n, rows = len(report.pairs), []
    for pair in report.pairs:
        done, p = pair.comparison, f"{pair.p_adjusted:.3f}"
        means = [f"{mean:.3f}" for mean in pair.means]
        change = [difference_text(done), "<0.001" if p == "0.000" else p, done.verdict]
        rows.append([_set(pair.set), _letter(pair.other), *means, *change])
    several = [f"p and verdicts hold for all {n} at once (Holm)"] if n > 1 else []
    headings = ("SET", "LOG", "BEFORE", "AFTER", "DIFFERENCE", "P", "VERDICT")
    return Block("Verdicts", several, headings, rows)


def _details(report: Report, pair: SetPair) -> list[str]:
    """Flipped cases first, then the rest of what the verdict rests on."""
    lines = []
    for words, worse in (("right to wrong", True), ("wrong to right", False)):
        flipped = [c.problem for c in pair.cases if c.is_flipped and (c.change < 0) is worse]
        known = report.logs[0].questions
        lines.append(f"{words}: {_names([known.get(name, name) for name in flipped])}")
    lines.append(signs_text(pair.comparison))
    if pair.bootstrap is not None:
        lines.append(f"bootstrap {pair.bootstrap.low:+.3f} to {pair.bootstrap.high:+.3f}")
    if pair.smallest_effect is None:
        lines.append("too few problems, or too much alike, to say what it could show")
    else:
        power = ", ".join(f"{effect:g} in {chance:.0%}" for effect, chance in pair.power.items())
        lines.append(
            f"with the noise seen it would likely show {pair.smallest_effect:.3f} or more; "
            f"of a true {power} of cases"
        )
    for side, alone in zip((0, pair.other), pair.unmatched, strict=True):
        lines += [f"only in {_letter(side)}: {_names(alone)}"] if alone else []
    if data := report.practised_elsewhere(pair):
        lines.append(f"another set than was practised on ({one_line(data, 60)})")
    return lines


def _names(problems: Sequence[str]) -> str:
    few = "; ".join(one_line(name, 40) for name in problems[:_NAMED])
    more = "; …" * (len(problems) > _NAMED)
    return f"{len(problems)} ({few}{more})" if problems else "0"


def _rows_by_set(log: Log) -> dict[str, list[LogRow]]:
    found: dict[str, list[LogRow]] = {}
    for row in log.rows:
        found.setdefault(row.set, []).append(row)
    return found


def _per_try(rows: Sequence[LogRow]) -> list[float | None]:
    """Tokens and dollars a try, each over the tries that tell it."""
    columns = ([row.tokens for row in rows], [row.cost_usd for row in rows])
    told = [[value for value in column if value is not None] for column in columns]
    return [sum(known) / len(known) if known else None for known in told]


def _mean(rows: Sequence[LogRow]) -> tuple[str, int]:
    """mean@k with its interval, and the number of problems."""
    tries: dict[str, list[float | None]] = {}
    for row in rows:
        tries.setdefault(row.problem, []).append(row.score)
    return mean_text(list(tries.values())), len(tries)


def _measured(report: Report) -> Block:
    rows, by_set = [], [_rows_by_set(log) for log in report.logs]
    for name in dict.fromkeys(name for one in by_set for name in one):
        for at, one in enumerate(by_set):
            if tried := one.get(name):
                (mean, problems), (tokens, cost) = _mean(tried), _per_try(tried)
                judged = sum(row.score is not None for row in tried)
                tries = f"{judged}" + f" of {len(tried)}" * (judged < len(tried))
                spent = ["-" if tokens is None else f"{tokens:,.0f}"]
                spent.append("-" if cost is None else f"{cost:.5f}")
                rows.append([_set(name), _letter(at), mean, str(problems), tries, *spent])
    headings = ("SET", "LOG", "MEAN", "PROBLEMS", "TRIES", "TOKENS", "$ A TRY")
    return Block("Measured", (), headings, rows)


def _practice(report: Report) -> Block:
    """Quality beside what it took: frozen model, library or weights."""
    sets = list(dict.fromkeys(pair.set for pair in report.pairs))
    rows = []
    for at, log in enumerate(report.logs):
        facts = ["-", "-", "-", "-"]
        if (one := log.practised) is not None:
            cost = "-" if one.spent.cost_usd is None else f"{one.spent.cost_usd:.2f}"
            facts = [one.learned, str(one.problems), f"{one.spent.tokens:,}", cost]
        by_set = _rows_by_set(log)
        means = [_mean(by_set.get(name, []))[0].partition(" ")[0] for name in sets]
        rows.append([_letter(at), *facts, *means])
    headings = ("LOG", "LEARNED", "PROBLEMS", "TOKENS", "$", *(_set(name, 16) for name in sets))
    return Block("Practice", (), headings, rows)


def as_text(found: Sequence[Block]) -> str:
    parts = []
    for block in found:
        shown = table(block.headings, block.rows, columns=78) if block.rows else ""
        lines = [wrap_text(f"  {one_line(line, 400)}", 80) for line in block.lines]
        parts.append("\n".join([block.heading, *lines, *([indent_text(shown)] if shown else [])]))
    return "\n\n".join(parts)


def as_page(title: str, found: Sequence[Block], captions: Mapping[str, str] = _CAPTIONS) -> Page:
    parts = []
    for one in found:
        shown: list[Items | Table] = [Items(one.lines)] if one.lines else []
        shown += [Table(captions[one.heading], one.headings, one.rows)] if one.rows else []
        parts.append(Part(one.heading, shown))
    return Page(title, parts)


def as_data(report: Report) -> dict[str, Any]:
    logs = []
    for log in report.logs:
        tokens, cost = _per_try(log.rows)
        told = {"rows": len(log.rows), "tokens_per_try": tokens, "cost_usd_per_try": cost}
        logs.append(fields_of(log, "label", "practised", "notes") | told)
    comparisons = [
        {
            "before": report.logs[0].label,
            "after": report.logs[pair.other].label,
            **(json_data(pair.comparison) or {}),
            **fields_of(
                pair, "set", "means", "p_adjusted", "smallest_effect", "power", "unmatched"
            ),
            "bootstrap": pair.bootstrap,
            "practised_elsewhere": bool(report.practised_elsewhere(pair)),
            "cases": [
                {
                    **case._asdict(),
                    "flipped": case.is_flipped,
                    "question": report.logs[0].questions.get(case.problem),
                }
                for case in pair.cases
            ],
        }
        for pair in report.pairs
    ]
    reached = None if report.min_effect is None else not report.short_of_effect
    found = {"kind": "Comparison", "logs": logs, "comparisons": comparisons}
    return {**found, "worse": report.worse, "min_effect_reached": reached}


def print_report(report: Report, form: str) -> None:
    if form == "json":
        print_json(as_data(report))
    else:
        print_blocks("studio compare", blocks(report), form)


def print_blocks(
    title: str, found: Sequence[Block], form: str, captions: Mapping[str, str] = _CAPTIONS
) -> None:
    """Print blocks as text, Markdown (`form` md) or a page (html)."""
    page = {"md": render_markdown, "html": render_html}.get(form)
    text = page(as_page(title, found, captions)) if page else as_text(found)
    print(text.rstrip("\n"), flush=True)
