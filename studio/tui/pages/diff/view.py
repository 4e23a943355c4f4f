"""Two libraries beside each other, as lines: each change row by row. Pure.

Texts are sanitized before anything is compared, so that what is marked is what is drawn.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from engines.core.text.similarity import Change
from studio.facts.library import Difference, ExperienceChange, HeldOutPair
from studio.render.evaluation_lines import evaluation_text
from studio.render.library_lines import counts_text, difference_lines, tokens_text, verdict_text
from studio.render.words import count_text, reward_rate_text
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import Line, Row, Span, crop_line, line, paragraph, spread, width_of
from studio.tui.pages.text import display_text, holds_words

Mode = Literal["side by side", "words", "lines"]
MODES: tuple[Mode, ...] = ("side by side", "words", "lines")

ARROW = " -> "
"""Between two references that are chosen at once."""
TWO_COLUMNS = 96
"""Cells from which two columns are readable; below, they become one."""

STYLES = {"+": "added", "-": "removed", "~": "flag", "=": "", "*": ""}


@dataclass(frozen=True, slots=True)
class Compared:
    """Two references and their difference."""

    base: str
    target: str
    facts: Difference
    entries: tuple[ExperienceChange, ...]  # of either, as they may be drawn and measured

    @property
    def text(self) -> str:
        """The difference as `studio diff` prints it."""
        return "\n".join(difference_lines(self.facts))


def compare_references(base: str, target: str, facts: Difference) -> Compared:
    return Compared(base, target, facts, tuple(map(_displayed, facts.experiences)))


def _displayed(change: ExperienceChange) -> ExperienceChange:
    return ExperienceChange(
        id=display_text(change.id),
        before=None if change.before is None else display_text(change.before),
        after=None if change.after is None else display_text(change.after),
        was=display_text(change.was),
        pin=change.pin,
    )


def key_of(change: ExperienceChange) -> str:
    """Unlike its id unique: what is gone and what came may be called the same."""
    return f"-{change.id}" if change.sign == "-" else change.id


def _name_of(change: ExperienceChange) -> str:
    """`E3 was E7` of a lesson that is called otherwise."""
    return " ".join(filter(None, (change.id, change.was and f"was {change.was}", change.pin)))


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be compared; a heading has no reference."""

    reference: str
    about: str


@dataclass(frozen=True, slots=True)
class Block:
    """The lines of one experience, all of them as wide as the layout; `id` is its key."""

    id: str
    differs: bool
    lines: tuple[Line, ...]


def change_spans(words: Iterable[Change], *, keep: str = "cut new") -> tuple[Span, ...]:
    """A word diff as spans; its marks are readable without any colour.

    `keep` is "cut new" for both, or one of them for a side's own column. Blanks stand outside of
    the marks: a line may be broken there.
    """
    out: list[Span] = []
    for kind, text in words:
        core = text.strip()
        if kind == "same" or (kind == "new" and "new" in keep and not core):
            out.append((text, ""))
        elif kind in keep and core:
            left, right, style = ("[-", "-]", "removed") if kind == "cut" else ("{+", "+}", "added")
            start, _, end = text.partition(core)
            out += [(start, ""), (left + core + right, style), (end, "")]
    return tuple(out)


def head_lines(of: Compared, mode: Mode, width: int, height: int) -> list[Line]:
    """What is compared, how much differs, and what was measured of either side."""
    facts = of.facts
    same = "" if not facts.experiences or facts.changes() else "the same library: "
    counted = line(same + counts_text(facts), (f"   {tokens_text(facts)}", "dim"))
    if facts.changes_weights:
        counted = line("two steps of a run that trains weights")
    a, b = display_text(facts.a.label), display_text(facts.b.label)
    title = line((a, "title"), (" -> ", "dim"), (b, "title"))
    hint = line(("b, B choose epochs, versions, runs", "dim"))
    if width_of(title) + width_of(hint) + 2 <= width:
        title = spread(title, hint, width)
    lines = [title, spread(counted, line((mode, "dim")), width)]
    measured = [_held_out_line(pair, width) for pair in facts.held_out] or [
        line(("no evaluation of either side was found: there is no rate to compare", "dim"))
    ]
    room = height - len(lines)
    if len(measured) > room:
        left = len(facts.held_out) - max(0, room - 1)
        measured = [*measured[: max(0, room - 1)], line((f"and {left} more (Y copies all)", "dim"))]
    return [crop_line(each, width) for each in [*lines, *measured][:height]]


def _held_out_line(pair: HeldOutPair, width: int) -> Line:
    """A held-out set on one line; without room the sides' intervals give way, then their rates."""
    name, verdict = (f"{display_text(pair.data)}  ", "dim"), verdict_text(pair)
    sides = (pair.before, pair.after)
    rates = [evaluation_text(e) if e else "not measured" for e in sides]
    means = [reward_rate_text(e.mean_reward, e.n) if e else "not measured" for e in sides]
    for texts in (rates, means):
        whole = line(name, " -> ".join(texts), (f"   {verdict}", "title"))
        if width_of(whole) <= width or not verdict:
            return whole
    return line(name, (verdict, "title"))


def effective_mode(mode: Mode, width: int) -> Mode:
    return "words" if mode == "side by side" and width < TWO_COLUMNS else mode


def blocks(of: Compared, width: int, mode: Mode, same: bool = True, words: str = "") -> list[Block]:
    """The experiences that hold all words of a filter; with `same` also those that are equal."""
    mode = effective_mode(mode, width)
    name_width = min(18, max((cells(_name_of(one)) for one in of.entries), default=0))
    draw = _column_lines if mode == "side by side" else partial(_full_width_lines, mode)
    return [
        Block(key_of(one), one.differs, tuple(draw(one, width, name_width)))
        for one in of.entries
        if (one.differs or same)
        and holds_words(f"{_name_of(one)} {one.before or ''} {one.after or ''}", words)
    ]


def pane_title(of: Compared, width: int, mode: Mode) -> str:
    """Both names for the border above the columns, each over its own where there are two."""
    a, b = of.facts.a, of.facts.b
    left, right = display_text(a.label), display_text(b.label)
    n, m = a.experiences, b.experiences
    if effective_mode(mode, width) != "side by side":
        counts = f"{n} -> {count_text(m, 'experience')}"
        return fit(f"{left} -> {right}  {counts}", max(1, width - 4))
    half, other = _column_widths(width)
    left = fit(f"{left}  {count_text(n, 'experience')}", half - 2)
    right = fit(f"{right}  {count_text(m, 'experience')}", other - 4)
    return f"{left} {' ' * max(1, half + 2 - cells(left) - 1)} {right}"


def file_name(of: Compared) -> str:
    """Of an export; a reference may be the path of a file."""
    sides = (
        re.sub(r"[^A-Za-z0-9@._-]+", "-", side.label)[-80:] for side in (of.facts.a, of.facts.b)
    )
    return f"diff-{'-to-'.join(sides)}.txt"


def entry_text(one: ExperienceChange) -> str:
    """One experience as `y` copies it."""
    if one.sign != "~":
        return f"{one.sign.replace('=', ' ')} {_name_of(one)}  {one.text}"
    return f"~ {_name_of(one)}  " + "".join(text for text, _ in change_spans(one.words))


def find_next_change(found: Sequence[Block], at: str, step: int) -> str:
    """The id of the next change after `at`, or before it; "" where nothing differs."""
    changes = [number for number, block in enumerate(found) if block.differs]
    if not changes:
        return ""
    here = next((number for number, block in enumerate(found) if block.id == at), None)
    if here is None:
        return found[changes[0]].id
    if step > 0:
        return found[next((n for n in changes if n > here), changes[-1])].id
    return found[next((n for n in reversed(changes) if n < here), changes[0])].id


def choice_rows(choices: Sequence[Choice], words: str, width: int) -> list[Row]:
    """What can be compared, as a list; headings stay out of a filtered one."""
    longest = max((cells(display_text(c.reference)) for c in choices), default=0)
    longest = min(longest, max(16, width // 2))
    rows = []
    for choice in choices:
        about = line((display_text(choice.about), "dim" if choice.reference else "title"))
        if not choice.reference:
            if not words.strip():
                rows.append(Row("", about))
        elif holds_words(f"{choice.reference} {choice.about}", words):
            name = pad(display_text(choice.reference), longest + 1)
            about = crop_line(about, max(0, width - longest - 3))
            rows.append(Row(choice.reference, ((name, ""), *about)))
    return rows


def _column_widths(width: int) -> tuple[int, int]:
    half = (width - 3) // 2
    return half, width - 3 - half


def _entry_lines(
    sign: str, name: str, spans: Iterable[Span], width: int, name_width: int
) -> list[Line]:
    """`~ E14  text`, further lines under the text; every line as wide as asked."""
    prefix = f"{sign.replace('=', ' ')} {pad(name, name_width)} "
    first, *further = paragraph(spans, max(1, width - cells(prefix)))
    indent = (" " * cells(prefix), "")
    lines = [((prefix, STYLES[sign]), *first), *((indent, *row) for row in further)]
    return [_pad_line(each, width) for each in lines]


def _pad_line(of: Line, width: int) -> Line:
    left = width - width_of(of)
    return (*of, (" " * left, "")) if left > 0 else crop_line(of, width)


def _column_lines(one: ExperienceChange, width: int, name: int) -> list[Line]:
    half, other = _column_widths(width)
    cut: Iterable[Span] = ((one.before or "", STYLES[one.sign]),)
    new: Iterable[Span] = ((one.after or "", STYLES[one.sign]),)
    if one.sign == "~":
        cut, new = change_spans(one.words, keep="cut"), change_spans(one.words, keep="new")
    left = [] if one.sign == "+" else _entry_lines(one.sign, one.was or one.id, cut, half, name)
    right = [] if one.sign == "-" else _entry_lines(one.sign, _name_of(one), new, other, name)
    left += [((" " * half, ""),)] * (len(right) - len(left))
    right += [((" " * other, ""),)] * (len(left) - len(right))
    return [(*a, (" │ ", "dim"), *b) for a, b in zip(left, right, strict=True)]


def _full_width_lines(mode: Mode, one: ExperienceChange, width: int, name: int) -> list[Line]:
    if one.sign == "~" and mode == "lines":
        before = _entry_lines("-", one.was or one.id, ((one.before or "", "removed"),), width, name)
        return before + _entry_lines("+", _name_of(one), ((one.after or "", "added"),), width, name)
    spans = change_spans(one.words) if one.sign == "~" else ((one.text, STYLES[one.sign]),)
    return _entry_lines(one.sign, _name_of(one), spans, width, name)
