"""What one operation would change, why, and who says so: lines for the pane beside the list.

Pure. Markers of a word diff are always printed; colour only repeats them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from engines.core.flags import (
    DUPLICATE,
    FROM_TOOL,
    HELD_OUT_LEAK,
    LEAK,
    REJECTED_BEFORE,
    TOO_LONG,
)
from engines.core.library import Experience, Provenance, effective_operation
from engines.core.state.run_state import RunState
from engines.core.text.similarity import Change, word_count, word_diff
from engines.core.types import Decision, Flag, Operation, UnparsedReply
from studio.secrets.sanitize import sanitize
from studio.tui.drawing.cells import normalize_width, wrap
from studio.tui.drawing.lines import Line, Span, line, paragraph, plain_text, spread, width_of
from studio.tui.pages.review.view import Item, excerpt
from studio.tui.pages.training_view import update_lines

Mode = Literal["words", "lines", "side by side"]
MODES: tuple[Mode, ...] = ("words", "lines", "side by side")
MOST_CHARS = 20_000
"""Of one text in the pane; what is longer is read in $EDITOR."""
MANY_WORDS = 200
"""From here on a word diff takes longer than a key may."""
_REPLY_CHARS = 6_000


def display_text(text: str) -> str:
    """As it is drawn: inert, and only of characters whose width is settled."""
    cut = f"{text[:MOST_CHARS]} … and {len(text) - MOST_CHARS} characters more"
    return normalize_width(sanitize(text if len(text) <= MOST_CHARS else cut))


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
    """`duplicate (similarity 0.91) of E3`."""
    what = _SCORES.get(flag.name, "score")
    score = "" if flag.score is None else f" ({what} {flag.score:.2f})"
    return excerpt(f"{flag.name}{score} {flag.detail}".strip())


def is_long(before: str, after: str) -> bool:
    """Whether their difference is not to be made while somebody waits for a key."""
    return max(len(before), len(after)) > 6 * MANY_WORDS


def head_line(item: Item, before: str, after: str, at: tuple[int, int], width: int) -> Line:
    """`MODIFY E14  op2.7  2 groups  9 -> 24 words`, and where in the list it is."""
    op = item.operation
    right = line((f"{at[0]} of {at[1]} ", "dim"))
    if op is None:
        return spread(line(("MEND ", "title"), (item.id, "title")), right, width)
    groups = len({name.rpartition("r")[0] for name in op.evidence})
    wanted = effective_operation(op, item.decision) if item.decision else op
    target = excerpt(wanted.target or ("policy" if wanted.kind == "weights" else ""))
    spans: list[Span] = [(f"{wanted.kind.upper()} {target}".strip(), "title"), (f"  {op.id}", "")]
    if groups:
        spans.append((f"  {groups} group" + ("s" if groups > 1 else ""), "dim"))
    words = f"{word_count(before)} -> {word_count(after)}" if before and after else ""
    if length := words or (f"{word_count(after or before)}" if after or before else ""):
        spans.append((f"  {length} words", "dim"))
    if item.is_own and item.standing == "open":
        spans.append(("  yours, open", "open"))
    elif item.standing != "open":
        spans.append((f"  {_standing_text(item)}", item.standing if item.decision else "dim"))
    return spread(tuple(spans), right, width)


def _standing_text(item: Item) -> str:
    by = item.decision.reviewer if item.decision else ""
    word = "decided later" if item.standing == "later" else item.standing
    return f"{word} by {excerpt(by)}" if by else word


def flag_lines(op: Operation, width: int) -> list[Line]:
    if not op.flags:
        return []
    text = "; ".join(flag_text(flag) for flag in op.flags)
    return paragraph([("FLAG ", "flag"), (text, "flag")], width, "     ")


def diff_lines(
    before: str, after: str, mode: Mode, width: int, changes: Sequence[Change] | None = None
) -> list[Line]:
    """Before and after: words marked `[-cut-]` and `{+new+}`, whole lines, or two columns.

    Args:
        before: "" where there was nothing.
        after: "" where nothing is left.
        mode: how.
        width: in cells.
        changes: the word diff where it is known; None makes it here.
    """
    before, after = display_text(before), display_text(after)
    if not before or not after or before == after:
        mark, style = ("+ ", "added") if after and not before else ("- ", "removed")
        if before == after:
            mark, style = "= ", ""
        return paragraph([(mark, style or "dim"), (after or before, style)], width, "  ")
    if mode == "words":
        found = word_diff(before, after) if changes is None else changes
        return paragraph([span for change in found for span in _change_spans(change)], width)
    if mode == "lines":
        return [
            *paragraph([("- ", "removed"), (before, "removed")], width, "  "),
            *paragraph([("+ ", "added"), (after, "added")], width, "  "),
        ]
    return side_by_side(before, after, width)


def _change_spans(change: Change) -> list[Span]:
    kind, text = change
    if kind == "same":
        return [(text, "")]
    # Blanks outside of the markers: a line may be broken there.
    core = text.strip()
    if not core:
        return [(text, "")] if kind == "new" else []
    start = text[: len(text) - len(text.lstrip())]
    end = text[len(text.rstrip()) :]
    if kind == "cut":
        return [(start, ""), (f"[-{core}-]", "removed"), (end, "")]
    return [(start, ""), (f"{{+{core}+}}", "added"), (end, "")]


def side_by_side(before: str, after: str, width: int) -> list[Line]:
    """Two columns of the same width, aligned in cells."""
    room = max(8, (width - 3) // 2)
    left, right = wrap(before, room), wrap(after, room)
    out: list[Line] = []
    for number in range(max(len(left), len(right))):
        one = left[number] if number < len(left) else ""
        other = right[number] if number < len(right) else ""
        gap = " " * max(0, room - width_of(((one, ""),)))
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
    source: bool = True,
    compact: bool = False,
) -> list[Line]:
    """Everything about one operation that is known without reading a file.

    Args:
        item: the operation, and what was decided of it.
        texts: of the library as the other decisions leave it.
        state: of the run.
        at: its place in the list from 1, and how many there are.
        mode: how the change is shown.
        width: in cells.
        changes: its word diff where it is long; None makes it here.
        note: the person's own, not sent yet.
        draft: a wording that was begun and not saved.
        target: the experience in the library's head, for its history.
        source: also say who proposed it.
        compact: without blank lines.
    """
    op = item.operation
    assert op is not None
    is_update = op.kind == "weights"
    before, after, proposed = wordings(item, texts)
    out = [head_line(item, before, after, at, width), *flag_lines(op, width)]
    if draft:
        told = f"{display_text(draft)} (not handed in; e takes it up)"
        out += _labelled_lines("yours", told, width)
    gap: list[Line] = [] if compact else [()]
    out += gap
    if is_update:
        out += update_lines(op, state, width)
    else:
        out += diff_lines(before, after, mode, width, changes)
    if op.target and op.kind != "add" and not before:
        out += paragraph([(f"{excerpt(op.target)} is not in the library any more", "flag")], width)
    if proposed:
        out += _labelled_lines("proposed", display_text(proposed), width)
    out += [*gap, *_reason_lines(op, item.decision, note, width)]
    return [*out, *source_lines(op, state, target, width)] if source else out


def _reason_lines(op: Operation, decision: Decision | None, note: str, width: int) -> list[Line]:
    """Why it was proposed, and why it was decided as it was."""
    told: list[tuple[str, str]] = []
    if op.rationale or op.kind != "weights":
        told.append(("why", display_text(op.rationale) or "(no reason given)"))
    if decision is not None and decision.reason:
        told.append(("reason", display_text(decision.reason)))
    if decision is not None and decision.flags:
        told.append(("flags now", "; ".join(flag_text(flag) for flag in decision.flags)))
    if note:
        told.append(("note", f"{display_text(note)} (goes with the decision)"))
    return [row for label, text in told for row in _labelled_lines(label, text, width)]


def wordings(item: Item, texts: Mapping[str, str]) -> tuple[str, str, str]:
    """Before, after, and what was proposed where a person made something else of it.

    Args:
        item: the operation.
        texts: of the library without it, whatever was decided of it.
    """
    op = item.operation
    assert op is not None
    edited = item.decision if item.standing == "edited" else None
    wanted = effective_operation(op, edited) if edited else op
    proposed = (op.text or op.kind) if edited else ""
    now = texts.get(wanted.target or "", "")
    match wanted.kind:
        case "add":
            return "", wanted.text, proposed
        case "modify":
            return now, wanted.text, proposed
        case "delete":
            return now, "", proposed
        case "keep":
            return now, now, proposed
        case "weights":
            return "", "", ""


def source_lines(
    op: Operation, state: RunState, target: Experience | None, width: int
) -> list[Line]:
    """Who or what proposed it, on which library, and what became of its target before."""
    who = excerpt(op.proposer) or "(unknown)"
    if op.prompt_hash:
        who += f", prompt {excerpt(op.prompt_hash)}"
    on = f"library v{state.base_version}"
    if op.kind == "weights":
        on = f"policy v{state.policy_version}"
    out = _labelled_lines("who", f"{who}, on {on}", width)
    if target is not None:
        out += _labelled_lines("history", history_text(target), width)
    return out


def history_text(target: Experience) -> str:
    """`v1 add, v4 modify; last by sam in step 4 of aime`."""
    known = target.history
    if not known:
        return f"{excerpt(target.id)} was there from v{target.born}"
    told = ", ".join(f"v{mark.version} {mark.kind}" for mark in known[-6:])
    return f"{told}; last {_author_text(known[-1])}"


def _author_text(mark: Provenance) -> str:
    where = f" in step {mark.step} of {excerpt(mark.run)}" if mark.run else ""
    return f"by {excerpt(mark.reviewer) or 'nobody'}{where}"


def unparsed_reply_lines(
    repair: UnparsedReply,
    at: tuple[int, int],
    width: int,
    *,
    problems: Sequence[str] = (),
    draft: str = "",
) -> list[Line]:
    """A reply that could not be understood: what is wrong with it, and what it says."""
    item = Item(repair.id, unparsed=repair)
    out = [head_line(item, "", "", at, width)]
    lead = f"This {repair.kind} reply could not be understood, so nothing was learned from it."
    out += paragraph([(lead, "")], width)
    out += paragraph([("e mends it, E in $EDITOR, D lets it go", "key")], width)
    out.append(())
    for reason in problems or repair.reasons[:10]:
        out += _labelled_lines("still" if problems else "wrong", display_text(reason), width)
    out.append(())
    text = display_text(draft or repair.reply[:_REPLY_CHARS])
    out.append(line(("as you began to mend it" if draft else "the reply", "dim")))
    for piece in wrap(text, max(1, width - 2)):
        out.append(line("  ", piece))
    return out


def _labelled_lines(label: str, text: str, width: int) -> list[Line]:
    wide = 10
    out: list[Line] = []
    for number, piece in enumerate(wrap(text, max(8, width - wide))):
        out.append(line((label.ljust(wide) if not number else " " * wide, "dim"), piece))
    return out


def lines_text(lines: Sequence[Line]) -> str:
    return "\n".join(plain_text(each).rstrip() for each in lines)
