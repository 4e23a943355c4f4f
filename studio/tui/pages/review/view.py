"""The review page as lines and rows, from the state of a run. Pure.

First the list of operations, then what one of them would change (markers of a word diff are always
printed; colour only repeats them), then the rollouts behind it and the experiences like it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple

from engines.core.library import Experience, effective_operation
from engines.core.library_notes import NO_USES, UseCounts
from engines.core.state.run_state import RunState
from engines.core.text.similarity import Change, word_count, word_diff
from engines.core.types import (
    HELPS,
    Decision,
    Flag,
    Operation,
    OperationKind,
    UnparsedReply,
)
from studio.render.words import (
    count_text,
    dropped_texts,
    fates_under_review,
    kind_title,
    merged_text,
)
from studio.review.wording import PIN_MEANING, ChangedPart, Near, changed_parts, flag_text
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs, cell_width, crop, fit, pad, wrap
from studio.tui.drawing.lines import (
    BLANK,
    CUT,
    Line,
    Row,
    Span,
    labelled_lines,
    line,
    paragraph,
    spread,
    width_of,
)
from studio.tui.pages.text import change_spans, count_spans, display_text, holds_words, legend_line
from studio.tui.pages.training_view import update_lines

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceRollout, GroupEvidence, PartingWords


Sort = Literal["flagged first", "by kind", "in order"]
Standing = Literal["open", "approved", "rejected", "edited", "later"]

SORTS: tuple[Sort, ...] = ("flagged first", "by kind", "in order")
KINDS: tuple[OperationKind, ...] = ("add", "modify", "delete", "keep", "pin", "unpin", "weights")
VERBS = {"add": "+", "modify": "~", "delete": "-", "keep": "=", "weights": "^"}
VERBS |= {"pin": "*", "unpin": "*"}
PINS = ("pin", "unpin")
_VERB_STYLES = {"add": "added", "delete": "removed", "keep": "dim"}
_STYLES: Mapping[str, str] = {"later": "dim"}
_STANDING: Mapping[str, Standing] = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "edited",
    "defer": "later",
}
_NAMELESS = {"weights": "policy"}  # what stands for a target where there is none
_INDENT = "    "
_ROW_CHARS = 2_000
MOST_CHARS = 20_000
"""Of one text in the pane; what is longer is read in $EDITOR."""
_SAFE_KINDS = ("add", "modify", "keep")


class Item(NamedTuple):  # made a thousand times a key: a dataclass takes four times as long
    """One thing on the desk: an operation with what was decided of it, or a reply to mend."""

    id: str
    operation: Operation | None = None
    decision: Decision | None = None
    unparsed: UnparsedReply | None = None
    deferred: bool = False
    is_own: bool = False  # a person proposed it: it was never put off, so it is not `deferred`

    @property
    def standing(self) -> Standing:
        if self.decision is not None:
            return _STANDING[self.decision.action]
        return "later" if self.deferred else "open"

    @property
    def is_open(self) -> bool:
        """Whether `n` stops here; what was put off waits until somebody goes to it."""
        return self.standing == "open"

    @property
    def is_safe(self) -> bool:
        """No flag, and no experience goes: what `A` approves."""
        op = self.operation
        return op is not None and self.is_open and not op.is_flagged and op.kind in _SAFE_KINDS


def items(
    state: RunState,
    *,
    sort: Sort = "flagged first",
    words: str = "",
    texts: Mapping[str, str] | None = None,
) -> list[Item]:
    """Operations in an order that deciding them does not change, then replies to mend.

    Those that were put off in an earlier step come after all others. `texts` are what the targets
    say, which a filter looks through too.
    """
    found = [_item_of(op, state) for op in state.operations.values()]
    if sort == "flagged first":
        found.sort(key=lambda item: not (item.operation and item.operation.is_flagged))
    elif sort == "by kind":
        found.sort(key=lambda item: KINDS.index(item.operation.kind) if item.operation else 9)
    found.sort(key=lambda item: item.deferred)
    found += [Item(reply.id, unparsed=reply) for reply in state.repairs.values()]
    if not words.strip():
        return found
    return [item for item in found if holds_words(_search_text(item, texts or {}), words)]


def item_now(name: str, state: RunState) -> Item | None:
    """One of them as it stands; None where it is gone."""
    if (op := state.operations.get(name)) is not None:
        return _item_of(op, state)
    return Item(name, unparsed=state.repairs[name]) if name in state.repairs else None


def _item_of(op: Operation, state: RunState) -> Item:
    own = op.id in state.own
    later, is_own = op.id in state.deferred and not own, own and not state.curates
    return Item(op.id, op, state.decisions.get(op.id), None, later, is_own)


def _search_text(item: Item, texts: Mapping[str, str]) -> str:
    if item.unparsed is not None:
        return f"{item.id} mend {item.unparsed.kind} {item.unparsed.reply}"
    op = item.operation
    assert op is not None
    flags = [flag.name for flag in op.flags] + (["flagged"] if op.is_flagged else ["unflagged"])
    now = texts.get(op.target or "", "")
    return " ".join([op.id, op.kind, op.target or "new", op.text, now, item.standing, *flags])


@lru_cache(maxsize=8192)  # a key press makes the rows of the whole queue anew
def excerpt(text: str) -> str:
    """The beginning of a text on one line, for a row of a list."""
    return fit(display_text(" ".join(text[:600].split())), 200)


def shorten(text: str, most: int = MOST_CHARS) -> str:
    """Text of a model as it is drawn, cut where it is longer than so many characters."""
    cut = f"{text[:most]} {CUT} and {len(text) - most} characters more"
    return display_text(text if len(text) <= most else cut)


@lru_cache(maxsize=8192)
def item_row(
    item: Item,
    now: str = "",
    signs: Glyphs = GLYPHS_UNICODE,
    *,
    width: int = 10_000,
    has_note: bool = False,
) -> Row:
    """How it stands, what it does, to what, whether it is flagged, and its whole wording below.

    `now` is what its target says before it; "" where there is none. `has_note`: the person wrote
    one that goes with the decision.
    """
    if item.unparsed is not None:
        lead = line((signs.undecided, "open"), "   ", (_id_column(item.id), "title"),
                    (signs.flag + " mend ", "flag"))  # fmt: skip
        return _wrapped_row(item.id, lead, excerpt(item.unparsed.reply), "", width)
    op = item.operation
    assert op is not None
    standing = item.standing
    noted = has_note or (item.decision is not None and bool(item.decision.reason))
    lead = line(
        (sign_of(standing, signs), _STYLES.get(standing, standing)),
        " ",
        (signs.pinned if op.kind in PINS else VERBS[op.kind], _VERB_STYLES.get(op.kind, "")),
        " ",
        (_id_column(op.target or _NAMELESS.get(op.kind, "new")), "" if op.target else "dim"),
        (signs.flag + " " if op.is_flagged else "  ", "flag"),
        (signs.note + " " if noted else "", "focus"),
        (f"{op.kind}: " if op.kind in PINS else "", "title"),
    )
    style = "dim" if standing in ("rejected", "later") else ""
    edited = item.decision.text if item.decision is not None and standing == "edited" else ""
    text = " ".join(shorten(edited or op.text or now, _ROW_CHARS).split())
    return _wrapped_row(op.id, lead, text, style, width)


def sign_of(standing: Standing, signs: Glyphs) -> str:
    return signs.undecided if standing == "open" else str(getattr(signs, standing))


def _wrapped_row(key: str, lead: Line, text: str, style: str, width: int) -> Row:
    """A text behind what leads it, further lines of it below; a little indented."""
    room = max(8, width - len(_INDENT))
    # What leads the first line takes its place in it, and no blank of it may be broken at.
    filler = "x" * (width_of(lead) - len(_INDENT) - 1) + " "
    first, *further = wrap(filler + text, room)
    more = tuple(((_INDENT, ""), (piece, style)) for piece in further)
    return Row(key, (*lead, (first[len(filler) :], style)), more)


@lru_cache(maxsize=4096)
def _id_column(name: str) -> str:
    """An id in a column of its own, and a blank behind it."""
    name = display_text(name)
    return pad(crop(name, 8), 5) + " " if len(name) < 5 else crop(name, 8) + " "


def legend_lines(now: Line, signs: Glyphs = GLYPHS_UNICODE) -> list[Line]:
    """What the signs mean, and `now`. Always as many lines."""
    first: tuple[Standing, ...] = ("open", "approved", "rejected")
    entries = [(sign_of(each, signs), _STYLES.get(each, each), each) for each in first]
    others = [(signs.edited, "edited", "edited"), (signs.later, "dim", "later")]
    return [
        legend_line(*entries, (signs.pinned, "title", "pin")),
        legend_line(*others, (signs.flag, "flag", "flagged"), (signs.note, "focus", "note")),
        legend_line(*((VERBS[kind], _VERB_STYLES.get(kind, ""), kind) for kind in KINDS[:4])),
        now,
    ]


def count_standings(found: Iterable[Item]) -> Mapping[str, int]:
    """How many operations stand how: `{"approved": 3, …}`; those of none are left away."""
    return Counter(item.standing for item in found if item.operation is not None)


def counts_text(counted: Mapping[str, int]) -> str:
    """`3 approved, 1 rejected`, in a fixed order."""
    order = ("approved", "edited", "rejected", "later", "open")
    return ", ".join(f"{counted[name]} {name}" for name in order if counted.get(name)) or "nothing"


def commit_lines(state: RunState, found: Sequence[Item], hidden: int = 0) -> list[Line]:
    """What `c` would do, before it is done.

    `found` is everything there is; `hidden` says how many decided ones of it the filter hides.
    """
    counted = count_standings(found)
    operations = [item for item in found if item.operation is not None]
    taken = [item.operation.kind for item in operations
             if item.operation and item.standing in ("approved", "edited")]  # fmt: skip
    changes = any(kind not in ("keep", "weights") for kind in taken)
    decided = counts_text({k: v for k, v in counted.items() if k != "open"})
    lines = [line(("decided    ", "dim"), decided)]
    trains = any(item.operation and item.operation.kind == "weights" for item in operations)
    if trains:
        policy = _version_text(state.policy_version, "weights" in taken)
        lines.append(line(("policy     ", "dim"), policy))
    if changes or not trains:
        lines.append(line(("library    ", "dim"), _version_text(state.base_version, changes)))
    if hidden:
        what = "of them is" if hidden == 1 else "of them are"
        lines.append(line((f"filter     {hidden} {what} hidden by it, and committed too", "flag")))
    if left := counted.get("open", 0):
        more = "operation is" if left == 1 else "operations are"
        text = f"undecided  {left} {more} decided later: kept here, out of this version"
        lines.append(line((text, "flag")))
    return lines


def _version_text(now: int, grows: bool) -> str:
    return f"v{now} becomes v{now + 1}" if grows else f"stays v{now}"


Mode = Literal["words", "lines", "side by side"]
MODES: tuple[Mode, ...] = ("words", "lines", "side by side")
MANY_WORDS = 200
"""From here on a word diff takes longer than a key may."""
_REPLY_CHARS = 6_000


_MEANINGS = {"keep": "it stays as it is", **PIN_MEANING}


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


def flag_lines(flags: Sequence[Flag], width: int) -> list[Line]:
    """A line for each."""
    texts = [(f"FLAG {excerpt(flag_text(f))}", "won" if f.name == HELPS else "flag") for f in flags]
    return [row for text in texts for row in paragraph([text], width, "     ")]


def diff_lines(
    before: str, after: str, mode: Mode, width: int, changes: Sequence[Change] | None = None
) -> list[Line]:
    """Before and after: words marked `[-cut-]` and `{+new+}`, whole lines, or two columns.

    `changes` is the word diff where it is known; None makes it here.
    """
    before, after = shorten(before), shorten(after)
    if before == after:
        return paragraph([("= ", "dim"), (after, "")], width, "  ")
    if not before or not after:
        mark, style = ("+ ", "added") if after else ("- ", "removed")
        return paragraph([(mark, style), (after or before, style)], width, "  ")
    if mode == "words":
        found = word_diff(before, after) if changes is None else changes
        return paragraph(change_spans(found), width)
    if mode == "lines":
        return [
            *paragraph([("- ", "removed"), (before, "removed")], width, "  "),
            *paragraph([("+ ", "added"), (after, "added")], width, "  "),
        ]
    room = max(8, (width - 3) // 2)
    rows = zip_longest(wrap(before, room), wrap(after, room), fillvalue="")
    return [
        line((pad(left, room), "removed"), (" | ", "dim"), (right, "added")) for left, right in rows
    ]


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
    flags = flag_lines(op.flags, width)
    out = [head_line(item, before, after, at, width, pin), *flags]
    if draft:
        out += labelled_lines("yours", f"{shorten(draft)} (not handed in; e takes it up)", width)
    out.append(BLANK)
    if op.kind in _MEANINGS and before == after:
        about = f"{op.kind}s {excerpt(op.target or '')}: {_MEANINGS[op.kind]}"
        out += paragraph([(about, "dim")], width)
    if op.kind == "weights":
        out += update_lines(op, state, width, whole)
    else:
        out += diff_lines(before, after, mode, width, changes)
    if op.target and op.kind != "add" and not before:
        out += paragraph([(f"{excerpt(op.target)} is not in the library any more", "flag")], width)
    if uses != NO_USES:
        out += paragraph(
            [(f"{excerpt(op.target or '')} so far: ", "dim"), *count_spans(uses)], width
        )
    if proposed:
        out += labelled_lines("proposed", shorten(proposed), width)
    out += [BLANK, *_reason_lines(op, item.decision, note, width)]
    out += _fate_lines(op, state, width, whole)
    return [*out, *source_lines(op, state, target, width)]


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
        parts.append(("why", shorten(op.rationale) or "(no reason given)"))
    if decision is not None and decision.reason:
        parts.append(("reason", shorten(decision.reason)))
    if decision is not None and decision.flags:
        parts.append(("flags now", "; ".join(excerpt(flag_text(flag)) for flag in decision.flags)))
    if note:
        parts.append(("note", f"{shorten(note)} (goes with the decision)"))
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
        out += labelled_lines("still" if problems else "wrong", shorten(reason), width)
    out.append(())
    text = shorten(draft or repair.reply[:_REPLY_CHARS])
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


_SHOWN = 2
"""Winners and losers of a group that are shown before it is opened."""
_WHOLE_CHARS = 4_000
_EDGE = 2
"""Cells that a list draws before each of its rows."""


def rollout_of(key: str) -> str:
    """The rollout that a row belongs to: `s1p0r2` of `s1p0r2/3`."""
    return key.partition("/")[0]


def evidence_rows(
    groups: "Sequence[GroupEvidence]",
    width: int,
    *,
    opened: bool = False,
    answers: Mapping[str, str] | None = None,
    signs: Glyphs = GLYPHS_UNICODE,
) -> list[Row]:
    """Per group its question, how many won and where they part, then winners, then losers.

    With `opened` every rollout is shown with its last words, or with its whole reply where
    `answers` has that by the rollout's id.
    """
    out: list[Row] = []
    for group in groups:
        right = f"{group.won} of {group.n} won"
        asked = display_text(" ".join(group.question[:2_000].split()))
        name = f"{group.id}  "
        if opened:
            key = f"{group.witnesses[0].id if group.witnesses else f'{group.id}r0'}/q"
            out.append(Row(key, line((name, "title"), (right, "title"))))
            pieces = wrap(asked, max(8, width - _EDGE - 2))
            out += [Row(f"{key}{n}", line("  ", piece)) for n, piece in enumerate(pieces)]
        else:
            room = max(8, width - len(name) - len(right) - 6)
            head = line((name, "title"), fit(asked, room, signs.ellipsis))
            out.append(Row("", spread(head, line((right, "title")), width - 2)))
        out += _parting_rows(group.parting, width, signs)
        winners = [each for each in group.witnesses if each.sign == "+"]
        others = [each for each in group.witnesses if each.sign != "+"]
        few = len(group.witnesses) if opened else _SHOWN
        for witness in (*winners[:few], *others[:few]):
            out += _witness_rows(witness, width, opened, (answers or {}).get(witness.id), signs)
        counts = (len(winners) - few, "winner"), (len(others) - few, "loser")
        if left := ", ".join(f"{n} more {what}{'s' * (n > 1)}" for n, what in counts if n > 0):
            out.append(Row("", line((f"  and {left} (enter)", "dim"))))
    return out


def _parting_rows(parting: "Sequence[PartingWords]", width: int, signs: Glyphs) -> list[Row]:
    """The step at which a winner and a loser part, its words marked."""
    out: list[Row] = []
    for sign, name, words in parting:
        won = sign == "+"
        lead = f" {signs.won if won else signs.lost} r{name.rpartition('r')[2]} parts: "
        spans = change_spans((kind, display_text(text)) for kind, text in words)
        lines = paragraph(spans, max(8, width - _EDGE - len(lead)))
        for n, each in enumerate(lines):
            first = (lead, "won" if won else "lost") if not n else (" " * len(lead), "")
            out.append(Row(f"{name}/p{n}", (first, *each)))
    return out


def _witness_rows(
    witness: "EvidenceRollout", width: int, opened: bool, answer: str | None, signs: Glyphs
) -> list[Row]:
    sign, style = {"+": (signs.won, "won"), "-": (signs.lost, "lost")}.get(
        witness.sign, ("?", "flag")
    )
    rollout, verdict = witness.rollout, witness.verdict
    reward = "  ? " if verdict is None or verdict.reward is None else f"{verdict.reward:4.2f}"
    tokens = f"{rollout.usage.completion_tokens:>6}t"
    lead: Line = line(" ", (f"{sign} r{rollout.index}", style), f" {reward}{tokens}  ")
    said = rollout.tail or rollout.error or "(said nothing)"
    if not opened:
        last = display_text(said.strip().rsplit("\n", 1)[-1][-400:])
        if rollout.status == "truncated":
            last = f"{last} (cut at max tokens)"
        room = max(8, width - 21)
        judged = fit(excerpt(_verdict_text(witness)), room // 2, signs.ellipsis)
        words = fit(last, max(8, room - cell_width(judged) - 2), signs.ellipsis)
        return [Row(witness.id, (*lead, *line(words, (f"  {judged}" if judged else "", "dim"))))]
    edge = " " * width_of(lead)
    reason = wrap(
        display_text(_verdict_text(witness)[:_WHOLE_CHARS]), max(8, width - _EDGE - len(edge))
    )
    rows = [Row(witness.id, (*lead, (reason[0], "dim")))]
    for n, each in enumerate(reason[1:]):
        rows.append(Row(f"{witness.id}/v{n}", line(edge, (each, "dim"))))
    body = answer if answer is not None else said
    if len(body) > _WHOLE_CHARS:
        body = f"… {body[-_WHOLE_CHARS:]}"
    pieces = wrap(display_text(body.strip()), max(8, width - _EDGE - 5))
    return rows + [Row(f"{witness.id}/{n}", line("     ", each)) for n, each in enumerate(pieces)]


def _verdict_text(witness: "EvidenceRollout") -> str:
    verdict = witness.verdict
    if verdict is None:
        return "not judged"
    said = verdict.critique or verdict.error or ""
    if witness.doubt:
        return f"doubted: {witness.doubt}" + (f" ({said})" if said else "")
    return said


def record_files_text(groups: "Sequence[GroupEvidence]") -> str:
    """Where the rollouts are recorded: `records/step-0001.jsonl`."""
    files = dict.fromkeys(
        f"records/{ref.file}"
        for group in groups
        for witness in group.witnesses
        for ref in witness.rollout.refs
    )
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    return ", ".join(list(files)[:2]) + more


def similar_rows(
    near: Sequence[Near],
    width: int,
    pinned: Collection[str] = (),
    pin: str = "",
) -> list[Row]:
    """Each on as many lines as it takes; `pin` is the sign of those that are `pinned`."""
    out: list[Row] = []
    for name, score, text in near:
        lead = f"{excerpt(name)[:8]:<5} {score:.2f}  " + f"{pin} " * (name in pinned)
        first, *further = wrap(display_text(text), max(8, width - len(lead) - 2))
        more = tuple(line(" " * len(lead), piece) for piece in further)
        out.append(Row(name, line((lead, "title"), first), more))
    return out
