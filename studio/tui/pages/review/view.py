"""The review page as lines and rows, from the state of a run. Pure.

First the list of operations, then what one of them would change (markers of a word diff are always
printed; colour only repeats them), then the rollouts behind it and the experiences like it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple

from engines.core.library import Experience, Library, effective_operation
from engines.core.library_notes import NO_USES
from engines.core.state.run_state import RunState
from engines.core.text.similarity import word_count, word_diff
from engines.core.types import HELPS, Decision, Flag, Operation, OperationKind, UnparsedReply
from studio.render.words import (
    count_text,
    dropped_texts,
    fates_under_review,
    kind_title,
    merged_text,
)
from studio.review import wording
from studio.tui.drawing.cells import GLYPHS, cell_width, crop, fit, pad, wrap
from studio.tui.drawing.lines import (
    BLANK,
    CUT,
    Line,
    Row,
    Span,
    change_spans,
    count_spans,
    display_text,
    labelled_lines,
    legend_line,
    line,
    paragraph,
    spread,
    width_of,
)
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
    before: str = ""  # what its target says, or said when it was decided; "" of none

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

    @property
    def wanted(self) -> Operation:
        """The operation as it was proposed, or as a person edited it."""
        assert self.operation is not None
        if self.decision is None or self.decision.action != "edit":
            return self.operation
        return effective_operation(self.operation, self.decision)

    @property
    def after(self) -> str:
        """What its target would say; "" where it goes."""
        match self.wanted.kind:
            case "add" | "modify":
                return self.wanted.text
            case "delete" | "weights":
                return ""
            case _:
                return self.before


def items(
    state: RunState, *, sort: Sort = "flagged first", befores: Mapping[str, str] | None = None
) -> list[Item]:
    """Operations in an order that deciding them does not change, then replies to mend.

    Those that were put off in an earlier step come after all others. `befores` has by operation
    what its target says.
    """
    texts = befores or {}
    listed = [make_item(op, state, texts.get(op.id, "")) for op in state.operations.values()]
    if sort == "flagged first":
        listed.sort(key=lambda item: not (item.operation and item.operation.is_flagged))
    elif sort == "by kind":
        listed.sort(key=lambda item: KINDS.index(item.operation.kind) if item.operation else 9)
    listed.sort(key=lambda item: item.deferred)
    return listed + [Item(reply.id, unparsed=reply) for reply in state.repairs.values()]


def make_item(op: Operation, state: RunState, before: str) -> Item:
    own = op.id in state.own
    later, is_own = op.id in state.deferred and not own, own and not state.curates
    return Item(op.id, op, state.decisions.get(op.id), None, later, is_own, before)


def search_text(item: Item) -> str:
    """All that a filter looks through."""
    if item.unparsed is not None:
        return f"{item.id} mend {item.unparsed.kind} {item.unparsed.reply}"
    op = item.operation
    assert op is not None
    flags = [flag.name for flag in op.flags] + (["flagged"] if op.is_flagged else ["unflagged"])
    words = [op.id, op.kind, op.target or "new", op.text, item.before, item.standing]
    return " ".join([*words, *flags])


@lru_cache(maxsize=8192)  # a key press makes the rows of the whole queue anew
def excerpt(text: str) -> str:
    """The beginning of a text on one line, for a row of a list."""
    return fit(display_text(" ".join(text[:600].split())), 200)


def shorten(text: str, most: int = MOST_CHARS) -> str:
    """Text of a model as it is drawn, cut where it is longer than so many characters."""
    cut = f"{text[:most]} {CUT} and {len(text) - most} characters more"
    return display_text(text if len(text) <= most else cut)


@lru_cache(maxsize=8192)
def item_row(item: Item, *, width: int = 10_000, has_note: bool = False) -> Row:
    """How it stands, what it does, to what, whether it is flagged, and its whole wording below.

    `has_note`: the person wrote one that goes with the decision.
    """
    if item.unparsed is not None:
        lead = line((GLYPHS.undecided, "open"), "   ", (_id_column(item.id), "title"),
                    (GLYPHS.flag + " mend ", "flag"))  # fmt: skip
        return _wrapped_row(item.id, lead, excerpt(item.unparsed.reply), "", width)
    op = item.operation
    assert op is not None
    standing = item.standing
    noted = has_note or (item.decision is not None and bool(item.decision.reason))
    lead = line(
        (sign_of(standing), _STYLES.get(standing, standing)),
        " ",
        (GLYPHS.pinned if op.kind in PINS else VERBS[op.kind], _VERB_STYLES.get(op.kind, "")),
        " ",
        (_id_column(op.target or _NAMELESS.get(op.kind, "new")), "" if op.target else "dim"),
        (GLYPHS.flag + " " if op.is_flagged else "  ", "flag"),
        (GLYPHS.note + " " if noted else "", "focus"),
        (f"{op.kind}: " if op.kind in PINS else "", "title"),
    )
    style = "dim" if standing in ("rejected", "later") else ""
    text = " ".join(shorten(item.wanted.text or item.before, _ROW_CHARS).split())
    return _wrapped_row(op.id, lead, text, style, width)


def sign_of(standing: Standing) -> str:
    return GLYPHS.undecided if standing == "open" else str(getattr(GLYPHS, standing))


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


def legend_lines(now: Line) -> list[Line]:
    """What the signs mean, and `now`. Always as many lines."""
    first: tuple[Standing, ...] = ("open", "approved", "rejected")
    entries = [(sign_of(each), _STYLES.get(each, each), each) for each in first]
    others = [(GLYPHS.edited, "edited", "edited"), (GLYPHS.later, "dim", "later")]
    return [
        legend_line(*entries, (GLYPHS.pinned, "title", "pin")),
        legend_line(*others, (GLYPHS.flag, "flag", "flagged"), (GLYPHS.note, "focus", "note")),
        legend_line(*((VERBS[kind], _VERB_STYLES.get(kind, ""), kind) for kind in KINDS[:4])),
        now,
    ]


def count_standings(listed: Iterable[Item]) -> Mapping[str, int]:
    """How many operations stand how: `{"approved": 3, …}`; those of none are left away."""
    return Counter(item.standing for item in listed if item.operation is not None)


def counts_text(counted: Mapping[str, int]) -> str:
    """`3 approved, 1 rejected`, in a fixed order."""
    order = ("approved", "edited", "rejected", "later", "open")
    return ", ".join(f"{counted[name]} {name}" for name in order if counted.get(name)) or "nothing"


def commit_lines(state: RunState, listed: Sequence[Item]) -> list[Line]:
    """What `c` would do with all that there is, before it is done."""
    counted = count_standings(listed)
    operations = [item for item in listed if item.operation is not None]
    taken = [i.wanted.kind for i in operations if i.standing in ("approved", "edited")]
    changes = any(kind not in ("keep", "weights") for kind in taken)
    decided = counts_text({k: v for k, v in counted.items() if k != "open"})
    lines = [line(("decided    ", "dim"), decided)]
    trains = any(item.wanted.kind == "weights" for item in operations)
    if trains:
        policy = _version_text(state.policy_version, "weights" in taken)
        lines.append(line(("policy     ", "dim"), policy))
    if changes or not trains:
        lines.append(line(("library    ", "dim"), _version_text(state.base_version, changes)))
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


_MEANINGS = {"keep": "it stays as it is", **wording.PIN_MEANING}


def is_long(before: str, after: str) -> bool:
    """Whether their difference is not to be made while somebody waits for a key."""
    return max(len(before), len(after)) > 6 * MANY_WORDS


def head_line(item: Item, at: tuple[int, int], width: int, pin: str = "") -> Line:
    """`MODIFY E14  op2.7  2 groups  9 -> 24 words`, and where in the list it is.

    `pin` is the sign of a pinned target; "" where it is not.
    """
    op = item.operation
    right = line((f"{at[0]} of {at[1]} ", "dim"))
    if op is None:
        return spread(line(("REPLY TO MEND ", "title"), (item.id, "title")), right, width)
    groups = len({name.rpartition("r")[0] for name in op.evidence})
    wanted = item.wanted
    target = excerpt(wanted.target or ("policy" if wanted.kind == "weights" else ""))
    spans: list[Span] = [
        (f"{kind_title(wanted.kind)} {target}".strip(), "title"),
        (f"  {op.id}", ""),
    ]
    if pin:
        spans.insert(1, (f" {pin} pinned", "flag"))
    if groups:
        spans.append((f"  {groups} group" + ("s" if groups > 1 else ""), "dim"))
    lengths = [str(word_count(text)) for text in dict.fromkeys((item.before, item.after)) if text]
    if lengths:
        spans.append((f"  {' -> '.join(lengths)} words", "dim"))
    if item.is_own and item.standing == "open":
        spans.append(("  yours, open", "open"))
    elif item.standing != "open":
        word = "decided later" if item.standing == "later" else item.standing
        by = f" by {excerpt(item.decision.reviewer)}" if item.decision else ""
        spans.append((f"  {word}{by}", item.standing if item.decision else "dim"))
    return spread(tuple(spans), right, width)


def flag_lines(flags: Sequence[Flag], width: int) -> list[Line]:
    """A line for each."""
    texts = [
        (f"FLAG {excerpt(wording.flag_text(f))}", "won" if f.name == HELPS else "flag")
        for f in flags
    ]
    return [row for text in texts for row in paragraph([text], width, "     ")]


def diff_lines(before: str, after: str, mode: Mode, width: int) -> list[Line]:
    """Before and after: words marked `[-cut-]` and `{+new+}`, whole lines, or two columns.

    Of what is long the lines stand in place of the words.
    """
    before, after = shorten(before), shorten(after)
    if before == after:
        return paragraph([("= ", "dim"), (after, "")], width, "  ")
    if not before or not after:
        mark, style = ("+ ", "added") if after else ("- ", "removed")
        return paragraph([(mark, style), (after or before, style)], width, "  ")
    if mode == "words" and not is_long(before, after):
        return paragraph(change_spans(word_diff(before, after)), width)
    if mode != "side by side":
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
    state: RunState,
    *,
    at: tuple[int, int],
    mode: Mode,
    width: int,
    base: Library | None = None,
    note: str = "",
    draft: str = "",
    pin: str = "",
    whole: bool = False,
) -> list[Line]:
    """Everything about one operation that is known without reading a file.

    `at` is its place in the list from 1, and how many there are; `base` is the library that the
    decisions are about. `note` and `draft` are the person's own, not sent yet; `pin` is the sign of
    a target that is pinned. `whole` shows all figures, and why proposals were dropped.
    """
    op = item.operation
    assert op is not None
    name, before, after = excerpt(op.target or ""), item.before, item.after

    def labelled(label: str, text: str) -> list[Line]:
        return labelled_lines(label, shorten(text), width)

    out = [head_line(item, at, width, pin), *flag_lines(op.flags, width)]
    if draft:
        out += labelled("yours", f"{draft} (not handed in; e takes it up)")
    out.append(BLANK)
    if op.kind in _MEANINGS and before == after:
        out += paragraph([(f"{op.kind}s {name}: {_MEANINGS[op.kind]}", "dim")], width)
    if op.kind == "weights":
        out += update_lines(op, state, width, whole)
    else:
        out += diff_lines(before, after, mode, width)
    if op.target and op.kind != "add" and not before:
        out += paragraph([(f"{name} is not in the library any more", "flag")], width)
    uses = base.notes.uses.get(op.target or "", NO_USES) if base else NO_USES
    if uses != NO_USES:
        out += paragraph([(f"{name} so far: ", "dim"), *count_spans(uses)], width)
    if item.wanted is not op:
        out += labelled("proposed", op.text or op.kind)
    out.append(BLANK)
    fates, proposals = fates_under_review(state)
    for label, text in wording.reason_labels(op, note, merged_text(op.id, fates), item.decision):
        out += labelled(label, text)
    dropped = dropped_texts(fates, proposals)
    if dropped and not whole:
        dropped = [f"{count_text(len(dropped), 'proposal')} of this step (z says why)"]
    for text in dropped:
        out += labelled("dropped", text)
    on = f"library v{state.base_version}"
    if op.kind == "weights":
        on = f"policy v{state.policy_version}"
    out += labelled("who", f"{op.proposer or '(unknown)'}, on {on}")
    if base and (target := base.get(op.target or "")):
        out += labelled("history", history_text(target))
    return out


def has_parts(item: Item) -> bool:
    """Whether it changes a wording in several places, of which some can be taken alone."""
    before, after = item.before, item.after
    return (
        bool(before)
        and not is_long(before, after)
        and len(wording.changed_parts(before, after)) > 1
    )


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
    head = head_line(Item(repair.id, unparsed=repair), at, width)
    lead = f"This {repair.kind} reply could not be understood, so nothing was learned from it."
    keys = ("e mends it, E in $EDITOR, d lets it go", "key")
    out = [head, *paragraph([(lead, "")], width), *paragraph([keys], width), ()]
    for reason in problems or repair.reasons[:10]:
        out += labelled_lines("still" if problems else "wrong", shorten(reason), width)
    out.append(())
    text = shorten(draft or repair.reply[:_REPLY_CHARS])
    out.append(line(("as you began to mend it" if draft else "the reply", "dim")))
    return out + [line("  ", piece) for piece in wrap(text, max(1, width - 2))]


def item_rows(listed: Iterable[Item], width: int) -> list[Row]:
    """What each would do, its flags, and its wording with what changes in it."""
    rows = []
    for item in listed:
        if item.operation is not None:
            first, *further = _item_lines(item, width)
            rows.append(Row(item.id, first, tuple(further)))
    return rows


def _item_lines(item: Item, width: int) -> list[Line]:
    wanted, decision = item.wanted, item.decision
    target = excerpt(wanted.target or "")
    what = f"{VERBS[wanted.kind]} {kind_title(wanted.kind).lower()} {target}".rstrip()
    flags = wanted.flags
    if decision is not None and decision.action == "edit":
        flags = decision.flags
    further = flag_lines(flags, width - 2)
    if item.before or item.after:
        further += diff_lines(item.before, item.after, "words", width - 2)
    return [line((what, "title"), f"  {item.id}"), *((("  ", ""), *each) for each in further)]


def part_rows(
    before: str, after: str, parts: Sequence[wording.ChangedPart], width: int
) -> list[Row]:
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


def decided_lines(listed: Iterable[Item], width: int) -> Sequence[Line]:
    """Every decision that a commit takes in, whole, and why it was made."""
    out: list[Line] = []
    for item in listed:
        if item.operation is None or item.decision is None or item.standing == "later":
            continue
        head, *further = _item_lines(item, width)
        sign = (f"{sign_of(item.standing)} {item.standing}  ", item.standing)
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
            head = line((name, "title"), fit(asked, room, GLYPHS.ellipsis))
            out.append(Row("", spread(head, line((right, "title")), width - 2)))
        out += _parting_rows(group.parting, width)
        winners = [each for each in group.witnesses if each.sign == "+"]
        others = [each for each in group.witnesses if each.sign != "+"]
        few = len(group.witnesses) if opened else _SHOWN
        for witness in (*winners[:few], *others[:few]):
            out += _witness_rows(witness, width, opened, (answers or {}).get(witness.id))
        counts = (len(winners) - few, "winner"), (len(others) - few, "loser")
        if left := ", ".join(f"{n} more {what}{'s' * (n > 1)}" for n, what in counts if n > 0):
            out.append(Row("", line((f"  and {left} (enter)", "dim"))))
    return out


def _parting_rows(parting: "Sequence[PartingWords]", width: int) -> list[Row]:
    """The step at which a winner and a loser part, its words marked."""
    out: list[Row] = []
    for sign, name, words in parting:
        won = sign == "+"
        lead = f" {GLYPHS.won if won else GLYPHS.lost} r{name.rpartition('r')[2]} parts: "
        spans = change_spans((kind, display_text(text)) for kind, text in words)
        lines = paragraph(spans, max(8, width - _EDGE - len(lead)))
        for n, each in enumerate(lines):
            first = (lead, "won" if won else "lost") if not n else (" " * len(lead), "")
            out.append(Row(f"{name}/p{n}", (first, *each)))
    return out


def _witness_rows(
    witness: "EvidenceRollout", width: int, opened: bool, answer: str | None
) -> list[Row]:
    sign, style = {"+": (GLYPHS.won, "won"), "-": (GLYPHS.lost, "lost")}.get(
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
        judged = fit(excerpt(_verdict_text(witness)), room // 2, GLYPHS.ellipsis)
        words = fit(last, max(8, room - cell_width(judged) - 2), GLYPHS.ellipsis)
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
    near: Sequence[wording.Near],
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
