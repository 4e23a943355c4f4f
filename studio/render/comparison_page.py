"""Comparisons as pages: of logs, of the runs of a sweep key by key, and of two libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from studio.facts.comparison import ComparisonFacts, LogFacts, SetPair
from studio.facts.library import Difference, ExperienceChange
from studio.facts.sweep import Gain, SweepFacts
from studio.render.library_lines import counts_text, result_lines, tokens_text, weights_lines
from studio.render.page import Block, Items, Page, Part, Table, Text
from studio.render.words import difference_text, rate_text, signs_text
from studio.secrets.sanitize import one_line

_NAMED = 5  # problems of a list


def comparison_page(facts: ComparisonFacts) -> Page:
    labels = [f"{log.letter}  {one_line(log.label, 120)}" for log in facts.logs]
    labels[0] += " (baseline)"
    parts: list[Block] = [Part("Compared", [Items(labels)]), _verdicts(facts)]
    if facts.min_effect is not None:
        short = [f"{pair.log} on {_set_name(pair.set)}" for pair in facts.short_of_effect()]
        reached = f"not reached by {', '.join(short)}" if short else "reached everywhere"
        parts.append(Part(f"Effect of {facts.min_effect:+g} or more", [Items([reached])]))
    for pair in facts.comparisons:
        parts.append(Part(f"A to {pair.log}, {_set_name(pair.set)}", [Items(_details(pair))]))
    parts.append(_measured(facts.logs))
    if any(log.practised for log in facts.logs):
        parts.append(_practice(facts))
    letters_of_note: dict[str, list[str]] = {}
    for log in facts.logs:
        for note in log.notes:
            letters_of_note.setdefault(note, []).append(log.letter)
    notes = [f"{', '.join(letters)}: {note}" for note, letters in letters_of_note.items()]
    notes += facts.notes
    if notes:
        parts.append(Part("Notes", [Items(notes)]))
    return Page("studio compare", parts)


def _set_name(name: str, width: int = 60) -> str:
    return one_line(name or "all", width)


def p_text(p: float) -> str:
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def _verdicts(facts: ComparisonFacts) -> Part:
    rows = []
    for pair in facts.comparisons:
        before, after = pair.means
        change = pair.comparison
        rows.append(
            (
                _set_name(pair.set),
                pair.log,
                f"{before:.3f}",
                f"{after:.3f}",
                difference_text(change),
                p_text(pair.p_adjusted),
                change.verdict,
            )
        )
    headings = ("SET", "LOG", "BEFORE", "AFTER", "DIFFERENCE", "P", "VERDICT")
    blocks: list[Block] = [Table("Each log against the baseline", headings, rows)]
    if len(rows) > 1:
        blocks.insert(0, Items([f"p and verdicts hold for all {len(rows)} at once (Holm)"]))
    return Part("Verdicts", blocks)


def _details(pair: SetPair) -> list[str]:
    """Flipped cases first, then the rest of what the verdict rests on."""
    lines = []
    for words, worse in (("right to wrong", True), ("wrong to right", False)):
        flips = pair.flips(worse=worse)
        lines.append(f"{words}: {_names([case.question or case.problem for case in flips])}")
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
    for letter, alone in zip(("A", pair.log), pair.unmatched, strict=True):
        if alone:
            lines.append(f"only in {letter}: {_names(alone)}")
    return lines


def _names(problems: Sequence[str]) -> str:
    few = "; ".join(one_line(name, 40) for name in problems[:_NAMED])
    more = "; …" * (len(problems) > _NAMED)
    return f"{len(problems)} ({few}{more})" if problems else "0"


def _measured(logs: Iterable[LogFacts]) -> Part:
    sets: dict[str, list[tuple[str, ...]]] = {}
    for log in logs:
        for facts in log.sets:
            judged = f"{facts.judged}"
            if facts.judged < facts.rollouts:
                judged += f" of {facts.rollouts}"
            tokens, cost = facts.tokens_per_try, facts.cost_usd_per_try
            row = (
                _set_name(facts.set),
                log.letter,
                rate_text(facts.mean, facts.interval),
                str(facts.problems),
                judged,
                "-" if tokens is None else f"{tokens:,.0f}",
                "-" if cost is None else f"{cost:.5f}",
            )
            sets.setdefault(facts.set, []).append(row)
    headings = ("SET", "LOG", "MEAN", "PROBLEMS", "TRIES", "TOKENS", "$ A TRY")
    rows = [row for of_set in sets.values() for row in of_set]
    return Part("Measured", [Table("Means with their 95 % intervals", headings, rows)])


def _practice(facts: ComparisonFacts) -> Part:
    """Quality beside what it took: frozen model, library or weights."""
    sets = list(dict.fromkeys(pair.set for pair in facts.comparisons))
    rows = []
    for log in facts.logs:
        cells = ["-", "-", "-", "-"]
        if (practised := log.practised) is not None:
            spent = practised.spent
            cost = "-" if spent.cost_usd is None else f"{spent.cost_usd:.2f}"
            cells = [practised.learned, str(practised.problems), f"{spent.tokens:,}", cost]
        means = {of_set.set: of_set.mean for of_set in log.sets}
        for name in sets:
            mean = means.get(name)
            cells.append("none" if mean is None else f"{mean:.3f}")
        rows.append([log.letter, *cells])
    names = [_set_name(name, 16) for name in sets]
    headings = ("LOG", "LEARNED", "PROBLEMS", "TOKENS", "$", *names)
    return Part("Practice", [Table("What each had practised, and what that took", headings, rows)])


def sweep_page(facts: SweepFacts) -> Page:
    parts = [_runs(facts), *_spreads(facts)]
    return Page(f"studio sweep {facts.sweep}", parts)


def _runs(facts: SweepFacts) -> Part:
    rows = []
    for run in facts.runs:
        tokens = "-" if run.tokens is None else f"{run.tokens:,}"
        cost = "-" if run.cost_usd is None else f"{run.cost_usd:.4f}"
        settings = [run.settings[key] for key in facts.keys]
        figures = [_gain_cells(gain) for gain in run.held_out]
        for cells in figures or [["-", "-", "-", "-", run.status]]:
            rows.append([*settings, *cells, tokens, cost])
    headings = [key.rpartition(".")[2].upper() for key in facts.keys]
    headings += ["SET", "BEFORE", "AFTER", "GAIN", "VERDICT", "TOKENS", "$"]
    head = f"{facts.finished} of {len(facts.runs)} runs are finished; TOKENS and $ are what each "
    head += "paid itself"
    if any(run.held_out for run in facts.runs):
        head += ", and what another run had measured was not paid again"
    return Part(
        "Runs", [Items([head]), Table("Each run before and after practice", headings, rows)]
    )


def _gain_cells(gain: Gain) -> list[str]:
    means = [f"{mean:.3f} (n={n})" for mean, n in zip(gain.means, gain.n, strict=True)]
    return [gain.data, *means, difference_text(gain.comparison), gain.comparison.verdict]


def _spreads(facts: SweepFacts) -> list[Part]:
    lines, rows = [], []
    for data, spread in facts.spread.items():
        if spread.unknown:
            lines.append(f"{data}: {spread.unknown}")
            continue
        for key in spread.keys:
            means = ", ".join(f"{value} {mean:+.3f}" for value, mean in key.means.items())
            rows.append(
                (
                    data,
                    key.key,
                    f"{key.share:.0%}",
                    f"{key.deviation:.3f}",
                    p_text(key.p),
                    key.verdict,
                    means,
                )
            )
        against = "the noise of measuring" if spread.by_noise else "these"
        lines.append(
            f"{data}: {spread.rest:.0%} of the differences follow from no key alone; "
            f"P is of a key's differences against {against}"
        )
    if not lines:
        return []
    headings = ("SET", "KEY", "SHARE", "SD", "P", "VERDICT", "MEAN GAIN")
    table = [Table("What the gain depends on", headings, rows)] if rows else []
    return [Part("Spread", [Items(lines), *table])]


_CHANGE_WORDS = {"-": "removed", "~": "reworded", "+": "added", "*": "", "=": "renamed"}


def difference_page(facts: Difference) -> Page:
    title = f"{facts.a.label} → {facts.b.label}"
    counts = f"{counts_text(facts)}; {tokens_text(facts)}"
    texts = [counts, *weights_lines(facts), *result_lines(facts)]
    return Page(title, [*map(Text, texts), changes_table(title, facts.changes())])


def changes_table(title: str, changes: Iterable[ExperienceChange]) -> Table:
    """Return what differs; of what was reworded its words."""
    rows = []
    for change in changes:
        what = f"{_CHANGE_WORDS[change.sign]} {change.pin}".strip()
        was = f" (was {change.was})" if change.was else ""
        rows.append((what, change.id + was, change.words))
    return Table(title, ("Change", "Id", "Wording"), rows)
