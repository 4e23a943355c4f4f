"""A sweep as a page: each run before and after, and which key its gain depends on."""

from studio.facts.sweep import Gain, SweepFacts
from studio.render.comparison_page import p_text
from studio.render.page import Items, Page, Part, Table
from studio.render.words import difference_text


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
