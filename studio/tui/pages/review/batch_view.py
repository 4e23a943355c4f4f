"""Operations as dialogs list them before many are decided or committed: each whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from studio.tui.drawing.cells import Glyphs
from studio.tui.drawing.lines import BLANK, Line, Row, line, paragraph
from studio.tui.pages.review.change_view import Mode, diff_lines, flag_lines, is_long, wordings
from studio.tui.pages.review.view import VERBS, Item, excerpt, sign_of

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
    out = [line((f"{VERBS[kind]} {kind} {excerpt(target or '')}".rstrip(), "title"), f"  {op.id}")]
    flags = made.flags if made is not None else op.flags
    out += [((("  "), ""), *each) for each in flag_lines(flags, width - 2)]
    if before or after:
        mode: Mode = "lines" if is_long(before, after) else "words"
        out += [(("  ", ""), *each) for each in diff_lines(before, after, mode, width - 2)]
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
