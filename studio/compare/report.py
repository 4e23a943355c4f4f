"""What `studio compare` prints: blocks, as text, Markdown or a page, and the same facts as JSON."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from engines.core.types import Usage
from studio.compare.log import Log, LogRow
from studio.compare.pairs import SetPair
from studio.report.rates import comparison_data, difference_text, mean_text, signs_text
from studio.report.tables import indent_text, table, wrap_text
from studio.secrets.sanitize import one_line

_NAMED = 5  # problems of a list


class Table(NamedTuple):
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = tuple[str, Sequence[str], Table | None]
"""A heading, lines and a table under it; each may be empty."""


@dataclass(frozen=True, slots=True)
class Report:
    """All comparisons, with what a CI demands of them."""

    logs: Sequence[Log]
    pairs: Sequence[SetPair]
    min_effect: float | None = None

    def letter(self, at: int) -> str:
        return chr(ord("A") + at) if at < 26 else f"L{at}"

    @property
    def worse(self) -> list[SetPair]:
        return [pair for pair in self.pairs if pair.comparison.verdict == "hurts"]

    @property
    def short_of_effect(self) -> list[SetPair]:
        """Those whose interval reaches below the smallest effect that is demanded."""
        least = self.min_effect
        return [p for p in self.pairs if least is not None and p.comparison.interval.low < least]

    def practised_elsewhere(self, pair: SetPair) -> str:
        """The practice data, where this set is known to be of another kind: by its first word."""
        known = [self.logs[at].practised for at in (pair.other, 0)]
        data = next((one.data for one in known if one is not None and one.data), "")
        return data if data and data.partition("-")[0] != pair.set.partition("-")[0] else ""


def blocks(report: Report) -> list[Block]:
    logs = [
        f"{report.letter(at)}  {one_line(log.label, 120)}" + " (baseline)" * (at == 0)
        for at, log in enumerate(report.logs)
    ]
    found: list[Block] = [("Compared", logs, None), ("Verdicts", [], _verdicts(report))]
    if report.min_effect is not None:
        named = ", ".join(f"{report.letter(p.other)} on {_set(p)}" for p in report.short_of_effect)
        held = f"not reached by {named}" if named else "reached everywhere"
        found.append((f"Effect of {report.min_effect:+g} or more", [held], None))
    for pair in report.pairs:
        found.append(
            (f"A to {report.letter(pair.other)}, {_set(pair)}", _lines(report, pair), None)
        )
    found.append(("Measured", [], _measured(report)))
    if any(log.practised for log in report.logs):
        found.append(("Practice", [], _practice(report)))
    said: dict[str, list[str]] = {}
    for at, log in enumerate(report.logs):
        for note in log.notes:
            said.setdefault(note, []).append(report.letter(at))
    notes = [f"{', '.join(letters)}: {note}" for note, letters in said.items()]
    if len({log.fingerprint for log in report.logs if log.fingerprint}) > 1:
        notes.append("they were measured with other settings (model, sampling, prompt or verifier)")
    return [*found, ("Notes", notes, None)] if notes else found


def _set(pair: SetPair) -> str:
    return one_line(pair.set or "all", 60)


def _verdicts(report: Report) -> Table:
    many = len(report.pairs) > 1
    rows = []
    for pair in report.pairs:
        done, (before, after) = pair.comparison, pair.means
        sides = [report.letter(pair.other), f"{before:.3f}", f"{after:.3f}"]
        p = "<0.001" if pair.adjusted < 0.001 else f"{pair.adjusted:.3f}"
        rows.append([_set(pair), *sides, difference_text(done), p, done.verdict])
    return Table(
        ("SET", "LOG", "BEFORE", "AFTER", "DIFFERENCE", "P (HOLM)" if many else "P", "VERDICT"),
        rows,
    )


def _lines(report: Report, pair: SetPair) -> list[str]:
    """Flipped cases first, then the rest of what the verdict rests on."""
    lines = []
    for words, right in (("right to wrong", True), ("wrong to right", False)):
        cases = [c.problem for c in pair.cases if c.flipped and (c.after < c.before) is right]
        lines.append(f"{words}: {_names(cases)}")
    lines.append(signs_text(pair.comparison))
    if pair.bootstrap is not None:
        lines.append(f"bootstrap {pair.bootstrap.low:+.3f} to {pair.bootstrap.high:+.3f}")
    if pair.smallest is not None:
        power = ", ".join(f"{effect:g} in {chance:.0%}" for effect, chance in pair.power.items())
        lines.append(f"would likely show {pair.smallest:.3f} or more; of a true {power} of cases")
    else:
        lines.append("too few problems, or too much alike, to say what it could show")
    for side, alone in zip((0, pair.other), pair.unmatched, strict=True):
        if alone:
            lines.append(f"only in {report.letter(side)}: {_names(alone)}")
    if data := report.practised_elsewhere(pair):
        lines.append(f"another set than was practised on ({one_line(data, 60)})")
    return lines


def _names(problems: Sequence[str]) -> str:
    few = ", ".join(one_line(name, 40) for name in problems[:_NAMED])
    return f"{len(problems)}" + f" ({few}{', …' * (len(problems) > _NAMED)})" * bool(problems)


def _rows_of(log: Log, name: str) -> list[LogRow]:
    return [row for row in log.rows if row.set == name]


def _per_try(rows: Sequence[LogRow]) -> tuple[float | None, float | None]:
    """Tokens and dollars a try, each over the tries that tell it."""
    told = ([r.tokens for r in rows if r.tokens is not None],
            [r.cost_usd for r in rows if r.cost_usd is not None])  # fmt: skip
    tokens, cost = (sum(known) / len(known) if known else None for known in told)
    return tokens, cost


def _by_problem(rows: Sequence[LogRow]) -> list[list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for row in rows:
        found.setdefault(row.problem, []).append(row.score)
    return list(found.values())


def _measured(report: Report) -> Table:
    rows = []
    for name in dict.fromkeys(row.set for log in report.logs for row in log.rows):
        for at, log in enumerate(report.logs):
            if tried := _rows_of(log, name):
                tokens, cost = _per_try(tried)
                judged = sum(row.score is not None for row in tried)
                problems = _by_problem(tried)
                rows.append([
                    one_line(name or "all", 60), report.letter(at), mean_text(problems),
                    str(len(problems)), f"{judged}" + f" of {len(tried)}" * (judged < len(tried)),
                    "-" if tokens is None else f"{tokens:,.0f}",
                    "-" if cost is None else f"{cost:.5f}",
                ])  # fmt: skip
    return Table(("SET", "LOG", "MEAN", "PROBLEMS", "TRIES", "TOKENS", "$ A TRY"), rows)


def _practice(report: Report) -> Table:
    """Quality beside what it took: frozen model, library or weights."""
    sets = list(dict.fromkeys(pair.set for pair in report.pairs))
    rows = []
    for at, log in enumerate(report.logs):
        facts = ["-", "-", "-", "-"]
        if (one := log.practised) is not None:
            facts = [one.learned, str(one.problems), f"{one.spent.tokens:,}", _dollars(one.spent)]
        means = [mean_text(_by_problem(_rows_of(log, name))).partition(" ")[0] for name in sets]
        rows.append([report.letter(at), *facts, *means])
    return Table(
        ("LOG", "LEARNED", "PROBLEMS", "TOKENS", "$", *(one_line(s, 16) for s in sets)), rows
    )


def _dollars(spent: Usage) -> str:
    return "-" if spent.cost_usd is None else f"{spent.cost_usd:.2f}"


def as_text(report: Report) -> str:
    parts = []
    for heading, lines, shown in blocks(report):
        body = [wrap_text(f"  {line}", 80) for line in lines]
        body += [indent_text(table(shown.headings, shown.rows, columns=78))] if shown else []
        parts.append("\n".join([heading, *body]))
    return "\n\n".join(parts)


def as_markdown(report: Report) -> str:
    """Fit for a CI's summary: text of files is escaped, tables are GitHub's."""

    def escape(text: str) -> str:
        return html.escape(re.sub(r"([\\`*_{}\[\]|~#])", r"\\\1", one_line(text, 400)), quote=False)

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(escape, cells))} |"

    parts = []
    for heading, lines, shown in blocks(report):
        body = [f"* {escape(text)}" for text in lines]
        if shown:
            body += [
                line(shown.headings),
                "|---" * len(shown.headings) + "|",
                *map(line, shown.rows),
            ]
        parts.append("\n".join([f"### {escape(heading)}", "", *body]))
    return "\n\n".join(parts)


def as_html(report: Report) -> str:
    """A page of its own, without scripts or anything loaded from elsewhere."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(one_line(t, 400))}" for t in texts)

    parts = []
    for heading, lines, shown in blocks(report):
        body = "".join(f"<li>{html.escape(one_line(text, 400))}" for text in lines)
        body = f"<ul>{body}</ul>" if body else ""
        if shown:
            body += f"<table>{cells('th', shown.headings)}"
            body += "".join(cells("td", row) for row in shown.rows) + "</table>"
        parts.append(f"<h2>{html.escape(heading)}</h2>{body}")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>studio compare</title>'
        '<meta name="viewport" content="width=device-width"><style>'
        ":root{color-scheme:light dark}body{font:16px/1.5 system-ui;max-width:60rem;margin:1rem "
        "auto;padding:0 1rem}table{display:block;overflow-x:auto}td,th{padding:.2rem .7rem;"
        f"text-align:left;white-space:nowrap}}</style>{''.join(parts)}</html>\n"
    )


def as_data(report: Report) -> dict[str, Any]:
    return {
        "kind": "Comparison",
        "logs": [
            {
                "label": log.label,
                "rows": len(log.rows),
                "practised": log.practised,
                "notes": log.notes,
                "tokens_per_try": _per_try(log.rows)[0],
                "cost_usd_per_try": _per_try(log.rows)[1],
            }
            for log in report.logs
        ],
        "comparisons": [
            {
                "set": pair.set,
                "before": report.logs[0].label,
                "after": report.logs[pair.other].label,
                "means": pair.means,
                **(comparison_data(pair.comparison) or {}),
                "p_adjusted": pair.adjusted,
                "bootstrap": pair.bootstrap and [pair.bootstrap.low, pair.bootstrap.high],
                "smallest_effect": pair.smallest,
                "power": {str(effect): chance for effect, chance in pair.power.items()},
                "practised_elsewhere": bool(report.practised_elsewhere(pair)),
                "cases": [{**case._asdict(), "flipped": case.flipped} for case in pair.cases],
                "unmatched": pair.unmatched,
            }
            for pair in report.pairs
        ],
        "worse": bool(report.worse),
        "min_effect_reached": None if report.min_effect is None else not report.short_of_effect,
    }
