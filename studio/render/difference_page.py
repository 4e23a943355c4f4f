"""The difference of two libraries as a page."""

from collections.abc import Iterable

from studio.facts.library import Difference, ExperienceChange
from studio.render.library_lines import counts_text, result_lines, tokens_text, weights_lines
from studio.render.page import Page, Table, Text

_CHANGE_WORDS = {"-": "removed", "~": "reworded", "+": "added", "*": "", "=": "renamed"}


def difference_page(facts: Difference) -> Page:
    title = f"{facts.a.label} → {facts.b.label}"
    counts = f"{counts_text(facts)}; {tokens_text(facts)}"
    texts = [counts, *weights_lines(facts), *result_lines(facts)]
    return Page(title, [*map(Text, texts), changes_table(title, facts.changes())])


def changes_table(title: str, changes: Iterable[ExperienceChange]) -> Table:
    """Those that differ; of what was reworded its words."""
    rows = []
    for change in sorted(changes, key=lambda change: [*_CHANGE_WORDS].index(change.sign)):
        if change.differs:
            what = f"{_CHANGE_WORDS[change.sign]} {change.pin}".strip()
            was = f" (was {change.was})" if change.was else ""
            rows.append((what, change.id + was, change.words))
    return Table(title, ("Change", "Id", "Wording"), rows)
