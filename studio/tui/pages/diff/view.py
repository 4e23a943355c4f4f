"""Two libraries beside each other, as lines: what changed, row by row. Pure.

Texts are sanitized before anything is compared, so that what is marked is what is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from engines.core.text.similarity import Change, word_diff
from studio.render.words import change_counts_text, count_text, prompt_tokens_text
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import Line, Row, Span, crop_line, line, paragraph, spread, width_of
from studio.tui.pages.text import display_text, holds_words

if TYPE_CHECKING:
    from studio.library.diff import SetComparison

Mode = Literal["side by side", "words", "lines"]
MODES: tuple[Mode, ...] = ("side by side", "words", "lines")

ARROW = " -> "
"""Between two references that are chosen at once."""
TWO_COLUMNS = 96
"""Cells from which two columns are readable; below, they become one."""

_INTERVAL = re.compile(r" \[[^]]*\]")
_COUNT = re.compile(r" \(n=[\d,]+\)")

STYLES = {"+": "added", "-": "removed", "~": "flag", "=": ""}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: how it is called, and how many experiences it holds."""

    reference: str
    label: str
    experiences: int
    tokens: int  # a call, estimated


@dataclass(frozen=True, slots=True)
class Entry:
    """One experience of either side; `words` say what changed between both."""

    id: str
    sign: str  # "+", "-", "~" or "="
    before: str
    after: str
    words: tuple[Change, ...] = ()
    was: str = ""  # its id in the base, where it is another
    pin: str = ""  # "pinned" or "unpinned", where that changed

    @property
    def name(self) -> str:
        """`E3 was E7` of a lesson that is called otherwise."""
        return " ".join(filter(None, (self.id, self.was and f"was {self.was}", self.pin)))

    @property
    def key(self) -> str:
        """Unlike its id unique: what is gone and what came may be called the same."""
        return f"-{self.id}" if self.sign == "-" else self.id

    @property
    def differs(self) -> bool:
        return self.sign != "=" or bool(self.was or self.pin)

    @property
    def text(self) -> str:
        return self.after or self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    base: Side
    target: Side
    entries: tuple[Entry, ...]
    measured: tuple[SetComparison, ...] = ()
    text: str = ""  # as `studio diff` prints it
    weights: tuple[str, ...] = ()  # of steps that differ in weights alone


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


def make_entry(name: str, before: str | None, after: str | None, was: str, pin: str) -> Entry:
    """One experience; None where a side does not hold it."""
    old, new = display_text(before or ""), display_text(after or "")
    if before is None or after is None:
        return Entry(display_text(name), "+" if before is None else "-", old, new, pin=pin)
    words = () if old == new else word_diff(old, new)
    return Entry(display_text(name), "~" if words else "=", old, new, words, display_text(was), pin)


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


def counts_text(of: Comparison) -> str:
    """`6 added, 3 reworded, 2 removed, 25 equal`."""
    signs = [one.sign for one in of.entries]
    added, reworded, removed = map(signs.count, "+~-")
    renamed = sum(one.sign == "=" and bool(one.was) for one in of.entries)
    equal = signs.count("=") - renamed
    pins = [one.pin for one in of.entries if one.pin]
    pinned = "".join(f", {pins.count(pin)} {pin}" for pin in dict.fromkeys(pins))
    differs = not of.entries or any(one.differs for one in of.entries)
    same = "" if differs else "the same library: "
    return same + change_counts_text(added, reworded, removed, renamed, equal) + pinned


def head_lines(of: Comparison, mode: Mode, width: int, height: int) -> list[Line]:
    """What is compared, how much differs, and what was measured of either side."""
    base, target = of.base, of.target
    held = max(base.experiences, target.experiences)
    tokens = prompt_tokens_text(f"{base.tokens} -> {target.tokens}", held)
    counted = line(counts_text(of), (f"   {tokens} (estimated)", "dim"))
    if of.weights:
        counted = line("two steps of a run that trains weights")
    title = line(
        (display_text(base.label), "title"), (" -> ", "dim"), (display_text(target.label), "title")
    )
    hint = line(("b, B choose epochs, versions, runs", "dim"))
    if width_of(title) + width_of(hint) + 2 <= width:
        title = spread(title, hint, width)
    out = [title, spread(counted, line((mode, "dim")), width)]
    measured = [_held_out_line(one, width) for one in of.measured] or [
        line(("no evaluation of either side was found: there is no rate to compare", "dim"))
    ]
    room = height - len(out)
    if len(measured) > room:
        left = len(of.measured) - max(0, room - 1)
        measured = [*measured[: max(0, room - 1)], line((f"and {left} more (Y copies all)", "dim"))]
    return [crop_line(one, width) for one in [*out, *measured][:height]]


def _held_out_line(one: SetComparison, width: int) -> Line:
    """A held-out set on one line: the sides' own intervals give way to the difference's.

    Where that is not enough an n that both sides share is said once.
    """
    sides = (one.before or "not measured", one.after or "not measured")
    brief = tuple(_INTERVAL.sub("", side) for side in sides)
    counts = [_COUNT.findall(side) for side in brief]
    once = (_COUNT.sub("", brief[0]), brief[1]) if counts[0] == counts[1] else brief
    name = (f"{display_text(one.data)}  ", "dim")
    verdict = (f"   {one.verdict}", "title")
    for before, after in (sides, brief, once):
        whole = line(name, f"{before} -> {after}", verdict)
        if width_of(whole) <= width or not one.verdict:
            return whole
    return line(name, (one.verdict, "title"))


def effective_mode(mode: Mode, width: int) -> Mode:
    return "words" if mode == "side by side" and width < TWO_COLUMNS else mode


def blocks(
    of: Comparison, width: int, mode: Mode, same: bool = True, words: str = ""
) -> list[Block]:
    """The experiences that hold all words of a filter; with `same` also those that are equal."""
    mode = effective_mode(mode, width)
    name_width = min(18, max((cells(one.name) for one in of.entries), default=0))
    draw = _column_lines if mode == "side by side" else partial(_full_width_lines, mode)
    return [
        Block(one.key, one.differs, tuple(draw(one, width, name_width)))
        for one in of.entries
        if (one.differs or same) and holds_words(f"{one.name} {one.before} {one.after}", words)
    ]


def pane_title(of: Comparison, width: int, mode: Mode) -> str:
    """Both names for the border above the columns, each over its own where there are two."""
    left, right = (display_text(side.label) for side in (of.base, of.target))
    n, m = of.base.experiences, of.target.experiences
    if effective_mode(mode, width) != "side by side":
        counts = f"{n} -> {count_text(m, 'experience')}"
        return fit(f"{left} -> {right}  {counts}", max(1, width - 4))
    half, other = _column_widths(width)
    left = fit(f"{left}  {count_text(n, 'experience')}", half - 2)
    right = fit(f"{right}  {count_text(m, 'experience')}", other - 4)
    return f"{left} {' ' * max(1, half + 2 - cells(left) - 1)} {right}"


def file_name(of: Comparison) -> str:
    """Of an export; a reference may be the path of a file."""
    sides = (re.sub(r"[^A-Za-z0-9@._-]+", "-", one.label)[-80:] for one in (of.base, of.target))
    return f"diff-{'-to-'.join(sides)}.txt"


def entry_text(one: Entry) -> str:
    """One experience as `y` copies it."""
    if one.sign != "~":
        return f"{one.sign.replace('=', ' ')} {one.name}  {one.text}"
    return f"~ {one.name}  " + "".join(text for text, _ in change_spans(one.words))


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


def _column_lines(one: Entry, width: int, name: int) -> list[Line]:
    half, other = _column_widths(width)
    cut: Iterable[Span] = ((one.before, STYLES[one.sign]),)
    new: Iterable[Span] = ((one.after, STYLES[one.sign]),)
    if one.sign == "~":
        cut, new = change_spans(one.words, keep="cut"), change_spans(one.words, keep="new")
    left = [] if one.sign == "+" else _entry_lines(one.sign, one.was or one.id, cut, half, name)
    right = [] if one.sign == "-" else _entry_lines(one.sign, one.name, new, other, name)
    left += [((" " * half, ""),)] * (len(right) - len(left))
    right += [((" " * other, ""),)] * (len(left) - len(right))
    return [(*a, (" │ ", "dim"), *b) for a, b in zip(left, right, strict=True)]


def _full_width_lines(mode: Mode, one: Entry, width: int, name: int) -> list[Line]:
    if one.sign == "~" and mode == "lines":
        before = _entry_lines("-", one.was or one.id, ((one.before, "removed"),), width, name)
        return before + _entry_lines("+", one.name, ((one.after, "added"),), width, name)
    spans = change_spans(one.words) if one.sign == "~" else ((one.text, STYLES[one.sign]),)
    return _entry_lines(one.sign, one.name, spans, width, name)
