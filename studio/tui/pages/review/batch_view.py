"""Operations as dialogs list them before many are decided or committed: each whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from studio.report.decisions import kind_title
from studio.review.wording import ChangedPart
from studio.tui.drawing.cells import Glyphs
from studio.tui.drawing.lines import BLANK, Line, Row, line, paragraph
from studio.tui.pages.review.change_view import Mode, diff_lines, flag_lines, is_long, wordings
from studio.tui.pages.review.view import VERBS, Item, excerpt, sign_of
from studio.tui.pages.text import display_text

Texts = Callable[[Item], Mapping[str, str]]
"""The library without an item, by id."""


def item_rows(found: Iterable[Item], texts: Texts, width: int) -> list[Row]:
    """What each would do, its flags, and its wording with what changes in it."""
    return [
        Row(item.id, lines[0], tuple(lines[1:]))
        for item in found
        if (lines := _item_lines(item, texts(item), width))
    ]


def _item_lines(item: Item, texts: Mapping[str, str], width: int) -> list[Line]:
    op = item.operation
    if op is None:
        return []
    before, after, _ = wordings(item, texts)
    made = item.decision if item.standing == "edited" else None
    kind, target = (made and made.kind) or op.kind, (made and made.target) or op.target
    what = f"{VERBS[kind]} {kind_title(kind).lower()} {excerpt(target or '')}".rstrip()
    out = [line((what, "title"), f"  {op.id}")]
    flags = made.flags if made is not None else op.flags
    out += [((("  "), ""), *each) for each in flag_lines(flags, width - 2)]
    if before or after:
        mode: Mode = "lines" if is_long(before, after) else "words"
        out += [(("  ", ""), *each) for each in diff_lines(before, after, mode, width - 2)]
    return out


def part_rows(before: str, after: str, parts: Sequence[ChangedPart], width: int) -> list[Row]:
    """The places at which a wording changes, below the whole change."""
    whole = diff_lines(before, after, "words", width)
    out = [Row("", each) for each in (*whole, BLANK)]
    for part in parts:
        spans = [(f"{part.number}  ", "title")]
        if cut := part.cut.strip():
            spans.append((f"[-{display_text(cut)}-]", "removed"))
        if new := part.new.strip():
            spans.append((f"{{+{display_text(new)}+}}", "added"))
        first, *further = paragraph(spans, width, "   ")
        out.append(Row(str(part.number), first, tuple(further)))
    return out


def decided_lines(found: Iterable[Item], texts: Texts, width: int, signs: Glyphs) -> Sequence[Line]:
    """Every decision that a commit takes in, whole, and why it was made."""
    out: list[Line] = []
    for item in found:
        if item.operation is None or item.decision is None or item.standing == "later":
            continue
        head, *further = _item_lines(item, texts(item), width)
        sign = (f"{sign_of(item.standing, signs)} {item.standing}  ", item.standing)
        out += [BLANK, (sign, *head), *further]
        if item.decision.reason:
            why = [("  because ", "dim"), (excerpt(item.decision.reason), "")]
            out += paragraph(why, width, "    ")
    return out
