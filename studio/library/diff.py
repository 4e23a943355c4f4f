"""The difference of two libraries (`Library.diff`) as lines, as JSON and as a page: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.library import Experience, Library
from engines.core.text.similarity import word_diff
from engines.pipeline.evaluation.statistics import compare
from studio.facts.evaluation import question_rewards
from studio.library.references import FoundVersion
from studio.render.evaluation_lines import finished_text
from studio.render.page import Page, Table, Text, Words, render_html
from studio.render.words import diff_counts_text, diff_lines, difference_text, was_text
from studio.secrets.sanitize import sanitize

_COLOURS = {"+": "green", "-": "red", "~": "yellow"}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of the text form; colour only repeats what its sign says."""

    text: str
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class ExperiencePair:
    """One experience in two libraries; None where one of them does not hold it."""

    id: str
    before: str | None
    after: str | None
    was: str = ""  # its id in the older one, where it is another
    pin: str = ""  # "pinned" or "unpinned", where that changed

    @property
    def sign(self) -> str:
        if self.before is None or self.after is None:
            return "+" if self.before is None else "-"
        if self.before != self.after:
            return "~"
        return "*" if self.pin else "="

    @property
    def words(self) -> Words:
        """What was kept, cut and added; masked as a whole, since half a key looks like none."""
        return word_diff(sanitize(self.before or ""), sanitize(self.after or ""))


@dataclass(frozen=True, slots=True)
class SetComparison:
    """One held-out set beside two versions, as text; `verdict` "" where both cannot be compared."""

    data: str
    before: str = ""
    after: str = ""
    verdict: str = ""


def pairs(older: Library, newer: Library) -> tuple[ExperiencePair, ...]:
    """Every experience of either, numbered ids in order behind those of other names."""
    found = newer.diff(older)
    pins = {e.id: "pinned" for e in found.pinned} | {e.id: "unpinned" for e in found.unpinned}
    out = [ExperiencePair(e.id, e.text, None) for e in found.removed]
    out += [ExperiencePair(e.id, None, e.text, pin=pins.get(e.id, "")) for e in found.added]
    for before, after in (*found.unchanged, *found.modified):
        was = before.id if before.id != after.id else ""
        out.append(ExperiencePair(after.id, before.text, after.text, was, pins.get(after.id, "")))
    return tuple(sorted(out, key=lambda pair: _id_sort_key(pair.id)))


def set_comparisons(older: FoundVersion, newer: FoundVersion) -> tuple[SetComparison, ...]:
    """The held-out results of both versions, with a verdict on their difference.

    Only evaluations with the same settings are compared. A verdict needs the rewards, which
    journals of the first versions do not hold.
    """
    before = {e.data: e for e in older.measured}
    after = {e.data: e for e in newer.measured}
    comparisons = []
    for name in {**before, **after}:
        first, last = before.get(name), after.get(name)
        verdict = ""
        if first and last and first != last and first.fingerprint == last.fingerprint:
            done = compare(question_rewards(first), question_rewards(last))
            verdict = f"{difference_text(done)} {done.verdict}" if done is not None else ""
        old, new = (finished_text(e) if e is not None else "" for e in (first, last))
        comparisons.append(SetComparison(name, old, new, verdict))
    return tuple(comparisons)


def as_lines(older: FoundVersion, newer: FoundVersion) -> list[DiffLine]:
    found = newer.library.diff(older.library)
    sides = f"{sanitize(older.label)} -> {sanitize(newer.label)}"
    results = [sanitize(text) for text in _result_lines(older, newer)]
    if weights := weights_lines(older, newer):
        compared = [one for one in set_comparisons(older, newer) if one.verdict]
        verdicts = [f"{sanitize(one.data)}: {one.verdict}" for one in compared]
        return [DiffLine(text) for text in (sides, *weights, *results, *verdicts)]
    head = [DiffLine(text) for text in (f"{sides}  {diff_counts_text(found)}", *results)]
    changes = [DiffLine(text, _COLOURS.get(text[0])) for text in diff_lines(found)]
    return head + (changes or [DiffLine("the same library: no experience differs")])


def _result_lines(older: FoundVersion, newer: FoundVersion) -> list[str]:
    """The held-out results of both, not yet sanitized."""
    before = [f"before: {result}" for result in older.evaluations]
    return before + [f"after: {result}" for result in newer.evaluations]


def weights_lines(older: FoundVersion, newer: FoundVersion) -> list[str]:
    """For two steps of a run that trains weights: a note, and the figures of both."""
    found = newer.library.diff(older.library)
    if not (older.weights or newer.weights) or found.added or found.removed or found.modified:
        return []
    lines = ["this run changes weights, not its library: there is no experience to compare"]
    for side, which in ((older, "before"), (newer, "after")):
        lines += [f"{which}: {sanitize(side.weights)}"] if side.weights else []
    return lines


def as_data(older: FoundVersion, newer: FoundVersion) -> dict[str, Any]:
    """The JSON form; modified entries carry their word diff as (kind, text) pairs.

    `was` is the id in `a`; `unchanged` counts what was renamed, too.
    """
    found = newer.library.diff(older.library)
    return {
        "a": _side_data(older),
        "b": _side_data(newer),
        "added": [_entry_data(e) for e in found.added],
        "removed": [_entry_data(e) for e in found.removed],
        "modified": [
            {
                "id": after.id,
                "was": before.id,
                "before": before.text,
                "after": after.text,
                "words": word_diff(before.text, after.text),
            }
            for before, after in found.modified
        ],
        "renamed": [{**_entry_data(after), "was": before.id} for before, after in found.renamed],
        "pinned": [e.id for e in found.pinned],
        "unpinned": [e.id for e in found.unpinned],
        "unchanged": len(found.unchanged),
        "tokens_per_call_before": found.tokens_before,
        "tokens_per_call_after": found.tokens_after,
    }


def as_html(older: FoundVersion, newer: FoundVersion) -> str:
    """A page of its own, without scripts or anything loaded from elsewhere."""
    found = newer.library.diff(older.library)
    texts = (*weights_lines(older, newer), *_result_lines(older, newer))
    changes = changes_table(f"{older.label} → {newer.label}", pairs(older.library, newer.library))
    told = (diff_counts_text(found), *texts)
    return render_html(Page(f"{older.label} → {newer.label}", [*map(Text, told), changes]))


def changes_table(title: str, entries: Sequence[ExperiencePair]) -> Table:
    """Those that differ; of what was reworded its words."""
    kinds = {"-": "removed", "~": "reworded", "+": "added", "*": "", "=": "renamed"}
    rows = [
        (
            f"{kinds[one.sign]} {one.pin}".strip(),
            one.id + was_text(one.was or one.id, one.id),
            one.words,
        )
        for one in sorted(entries, key=lambda one: [*kinds].index(one.sign))
        if one.sign != "=" or one.was
    ]
    return Table(title, ("Change", "Id", "Wording"), rows)


def _id_sort_key(name: str) -> tuple[int, int]:
    """Sorts numbered ids by number; others keep their order in front of them."""
    number = name.removeprefix("E")
    return (1, int(number)) if number.isdecimal() and len(number) < 19 else (0, 0)


def _side_data(found: FoundVersion) -> dict[str, Any]:
    return {
        "label": found.label,
        "version": found.library.version,
        "experiences": len(found.library.experiences),
        "evaluations": list(found.evaluations),
        "weights": found.weights or None,
    }


def _entry_data(experience: Experience) -> dict[str, Any]:
    return {"id": experience.id, "text": experience.text}
