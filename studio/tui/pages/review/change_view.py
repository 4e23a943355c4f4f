"""What one operation would change, why, and who says so: lines for the pane beside the list.

Pure. Markers of a word diff are always printed; colour only repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

from engines.core.flags import DUPLICATE, FROM_TOOL, HELD_OUT_LEAK, LEAK, REJECTED_BEFORE, TOO_LONG
from engines.core.library import Experience, effective_operation
from engines.core.state.run_state import RunState
from engines.core.state.use_counts import NO_USES, UseCounts
from engines.core.text.similarity import Change, word_count, word_diff
from engines.core.types import HELPS, Decision, Flag, Operation, UnparsedReply
from studio.render.words import (
    count_text,
    dropped_texts,
    fates_under_review,
    kind_title,
    merged_text,
)
from studio.review.line_text import PIN_MEANING
from studio.review.wording import ChangedPart, changed_parts
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs, cell_width, wrap
from studio.tui.drawing.lines import BLANK, Line, Row, Span, labelled_lines, line, paragraph, spread
from studio.tui.pages.diff.view import change_spans
from studio.tui.pages.review.view import VERBS, Item, excerpt, sign_of
from studio.tui.pages.text import count_spans, display_text
from studio.tui.pages.training_view import update_lines

Mode = Literal["words", "lines", "side by side"]
MODES: tuple[Mode, ...] = ("words", "lines", "side by side")
MOST_CHARS = 20_000
"""Of one text in the pane; what is longer is read in $EDITOR."""
MANY_WORDS = 200
"""From here on a word diff takes longer than a key may."""
_REPLY_CHARS = 6_000


_MEANINGS = {"keep": "it stays as it is", **PIN_MEANING}


def _shortened(text: str) -> str:
    """Text of a model as it is drawn, cut where it is too long for the pane."""
    cut = f"{text[:MOST_CHARS]} … and {len(text) - MOST_CHARS} characters more"
    return display_text(text if len(text) <= MOST_CHARS else cut)


_SCORES = {
    DUPLICATE: "similarity",
    REJECTED_BEFORE: "similarity",
    LEAK: "certainty",
    HELD_OUT_LEAK: "certainty",
    TOO_LONG: "too much by",
    FROM_TOOL: "share of its words",
}
"""What the score of a flag is one of, by its name; in [0, 1]."""


def flag_text(flag: Flag) -> str:
    """`duplicate (similarity 0.91): of E3`."""
    what = _SCORES.get(flag.name, "score")
    score = "" if flag.score is None else f" ({what} {flag.score:.2f})"
    return excerpt(f"{flag.name}{score}: {flag.detail}".removesuffix(": "))


def is_long(before: str, after: str) -> bool:
    """Whether their difference is not to be made while somebody waits for a key."""
    return max(len(before), len(after)) > 6 * MANY_WORDS


def head_line(
    item: Item, before: str, after: str, at: tuple[int, int], width: int, pin: str = ""
) -> Line:
    """`MODIFY E14  op2.7  2 groups  9 -> 24 words`, and where in the list it is.

    `pin` is the sign of a pinned target; "" where it is not.
    """
    op = item.operation
    right = line((f"{at[0]} of {at[1]} ", "dim"))
    if op is None:
        return spread(line(("REPLY TO MEND ", "title"), (item.id, "title")), right, width)
    groups = len({name.rpartition("r")[0] for name in op.evidence})
    wanted = effective_operation(op, item.decision) if item.decision else op
    target = excerpt(wanted.target or ("policy" if wanted.kind == "weights" else ""))
    spans: list[Span] = [
        (f"{kind_title(wanted.kind)} {target}".strip(), "title"),
        (f"  {op.id}", ""),
    ]
    if pin:
        spans.insert(1, (f" {pin} pinned", "flag"))
    if groups:
        spans.append((f"  {groups} group" + ("s" if groups > 1 else ""), "dim"))
    lengths = [str(word_count(text)) for text in dict.fromkeys((before, after)) if text]
    if lengths:
        spans.append((f"  {' -> '.join(lengths)} words", "dim"))
    if item.is_own and item.standing == "open":
        spans.append(("  yours, open", "open"))
    elif item.standing != "open":
        spans.append((f"  {_standing_text(item)}", item.standing if item.decision else "dim"))
    return spread(tuple(spans), right, width)


def _standing_text(item: Item) -> str:
    by = item.decision.reviewer if item.decision else ""
    word = "decided later" if item.standing == "later" else item.standing
    return f"{word} by {excerpt(by)}" if by else word


def flag_lines(flags: Sequence[Flag], width: int, *, compact: bool = False) -> list[Line]:
    """A line for each, or where it is `compact` all of them as one text."""
    texts = [(flag_text(flag), "won" if flag.name == HELPS else "flag") for flag in flags]
    if compact and len(texts) > 1:
        texts = [("; ".join(text for text, _ in texts), "flag")]
    rows = (paragraph([(f"FLAG {text}", kind)], width, "     ") for text, kind in texts)
    return [row for each in rows for row in each]


def diff_lines(
    before: str, after: str, mode: Mode, width: int, changes: Sequence[Change] | None = None
) -> list[Line]:
    """Before and after: words marked `[-cut-]` and `{+new+}`, whole lines, or two columns.

    `changes` is the word diff where it is known; None makes it here.
    """
    before, after = _shortened(before), _shortened(after)
    if not before or not after or before == after:
        mark, style = ("+ ", "added") if after and not before else ("- ", "removed")
        if before == after:
            mark, style = "= ", ""
        return paragraph([(mark, style or "dim"), (after or before, style)], width, "  ")
    if mode == "words":
        found = word_diff(before, after) if changes is None else changes
        return paragraph(change_spans(found), width)
    if mode == "lines":
        return [
            *paragraph([("- ", "removed"), (before, "removed")], width, "  "),
            *paragraph([("+ ", "added"), (after, "added")], width, "  "),
        ]
    return side_by_side(before, after, width)


def side_by_side(before: str, after: str, width: int) -> list[Line]:
    room = max(8, (width - 3) // 2)
    left, right = wrap(before, room), wrap(after, room)
    out: list[Line] = []
    for one, other in zip_longest(left, right, fillvalue=""):
        gap = " " * max(0, room - cell_width(one))
        out.append(line((one, "removed"), gap, (" | ", "dim"), (other, "added")))
    return out


def change_lines(
    item: Item,
    texts: Mapping[str, str],
    state: RunState,
    *,
    at: tuple[int, int],
    mode: Mode,
    width: int,
    changes: Sequence[Change] | None = None,
    note: str = "",
    draft: str = "",
    target: Experience | None = None,
    compact: bool = False,
    pin: str = "",
    uses: UseCounts = NO_USES,
    whole: bool = False,
    signs: Glyphs = GLYPHS_UNICODE,
) -> list[Line]:
    """Everything about one operation that is known without reading a file.

    `texts` are of the library as the other decisions leave it; `at` is its place in the list from
    1, and how many there are. `changes` is its word diff where that is long (None makes it here),
    `note` and `draft` are the person's own, not sent yet, and `target` is as the library's head
    has it, with its `uses`; `pin` is the sign of one that is pinned. `compact` leaves out blank
    lines and who proposed it; `whole` shows all figures, and why proposals
    were dropped.
    """
    op = item.operation
    assert op is not None
    before, after, proposed = wordings(item, texts)
    flags = flag_lines(op.flags, width, compact=compact)
    out = [head_line(item, before, after, at, width, pin), *flags]
    if draft:
        out += labelled_lines("yours", f"{_shortened(draft)} (not handed in; e takes it up)", width)
    gap: list[Line] = [] if compact else [()]
    out += gap
    if op.kind in _MEANINGS and before == after:
        about = f"{op.kind}s {excerpt(op.target or '')}: {_MEANINGS[op.kind]}"
        out += paragraph([(about, "dim")], width)
    if op.kind == "weights":
        out += update_lines(op, state, width, whole, signs)
    else:
        out += diff_lines(before, after, mode, width, changes)
    if op.target and op.kind != "add" and not before:
        out += paragraph([(f"{excerpt(op.target)} is not in the library any more", "flag")], width)
    if uses != NO_USES:
        out += paragraph(
            [(f"{excerpt(op.target or '')} so far: ", "dim"), *count_spans(uses)], width
        )
    if proposed:
        out += labelled_lines("proposed", _shortened(proposed), width)
    out += [*gap, *_reason_lines(op, item.decision, note, width)]
    out += _fate_lines(op, state, width, whole)
    return out if compact else [*out, *source_lines(op, state, target, width)]


def _fate_lines(op: Operation, state: RunState, width: int, whole: bool) -> list[Line]:
    """Which proposals went into it, and which of its step into none; `whole` lists those."""
    fates, texts = fates_under_review(state)
    merged, dropped = merged_text(op.id, fates), dropped_texts(fates, texts)
    out = labelled_lines("merges", display_text(merged), width) if merged else []
    if dropped and not whole:
        count = count_text(len(dropped), "proposal")
        return out + labelled_lines("dropped", f"{count} of this step (z says why)", width)
    return out + [row for one in dropped for row in labelled_lines("dropped", one, width)]


def _reason_lines(op: Operation, decision: Decision | None, note: str, width: int) -> list[Line]:
    """Why it was proposed, and why it was decided as it was."""
    parts: list[tuple[str, str]] = []
    if op.rationale or op.kind != "weights":
        parts.append(("why", _shortened(op.rationale) or "(no reason given)"))
    if decision is not None and decision.reason:
        parts.append(("reason", _shortened(decision.reason)))
    if decision is not None and decision.flags:
        parts.append(("flags now", "; ".join(flag_text(flag) for flag in decision.flags)))
    if note:
        parts.append(("note", f"{_shortened(note)} (goes with the decision)"))
    return [row for label, text in parts for row in labelled_lines(label, text, width)]


def has_parts(item: Item, texts: Mapping[str, str]) -> bool:
    """Whether it changes a wording in several places, of which some can be taken alone."""
    before, after, _ = wordings(item, texts)
    return bool(before) and not is_long(before, after) and len(changed_parts(before, after)) > 1


def wordings(item: Item, texts: Mapping[str, str]) -> tuple[str, str, str]:
    """Before, after, and what was proposed where a person made something else of it.

    `texts` are of the library without it, whatever was decided of it.
    """
    op = item.operation
    assert op is not None
    edited = item.decision if item.standing == "edited" else None
    wanted = effective_operation(op, edited) if edited else op
    proposed = (op.text or op.kind) if edited else ""
    now = texts.get(wanted.target or "", "")
    same = dict.fromkeys(("keep", "pin", "unpin"), now)
    after = {**same, "delete": "", "weights": ""}.get(wanted.kind, wanted.text)
    return "" if wanted.kind in ("add", "weights") else now, after, proposed


def source_lines(
    op: Operation, state: RunState, target: Experience | None, width: int
) -> list[Line]:
    """Who or what proposed it, on which library, and what became of its target before."""
    who = excerpt(op.proposer) or "(unknown)"
    on = f"library v{state.base_version}"
    if op.kind == "weights":
        on = f"policy v{state.policy_version}"
    out = labelled_lines("who", f"{who}, on {on}", width)
    if target is not None:
        out += labelled_lines("history", history_text(target), width)
    return out


def history_text(target: Experience) -> str:
    """`v1 add, v4 modify; last by sam in step 4 of aime`."""
    known = target.history
    if not known:
        return f"{excerpt(target.id)} was there from v{target.born}"
    changes = ", ".join(f"v{mark.version} {mark.kind}" for mark in known[-6:])
    last = known[-1]
    where = f" in step {last.step} of {excerpt(last.run)}" if last.run else ""
    return f"{changes}; last by {excerpt(last.reviewer) or 'nobody'}{where}"


def unparsed_reply_lines(
    repair: UnparsedReply,
    at: tuple[int, int],
    width: int,
    *,
    problems: Sequence[str] = (),
    draft: str = "",
) -> list[Line]:
    """A reply that could not be understood: what is wrong with it, and what it says."""
    head = head_line(Item(repair.id, unparsed=repair), "", "", at, width)
    lead = f"This {repair.kind} reply could not be understood, so nothing was learned from it."
    keys = ("e mends it, E in $EDITOR, d lets it go", "key")
    out = [head, *paragraph([(lead, "")], width), *paragraph([keys], width), ()]
    for reason in problems or repair.reasons[:10]:
        out += labelled_lines("still" if problems else "wrong", _shortened(reason), width)
    out.append(())
    text = _shortened(draft or repair.reply[:_REPLY_CHARS])
    out.append(line(("as you began to mend it" if draft else "the reply", "dim")))
    return out + [line("  ", piece) for piece in wrap(text, max(1, width - 2))]


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
