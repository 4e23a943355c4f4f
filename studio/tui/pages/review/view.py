"""What waits to be decided and what was, as rows: pure, from the state of a run.

What one operation would do is `studio.tui.pages.review.change_view`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from engines.core.state.run_state import RunState
from engines.core.types import Decision, Operation, OperationKind, UnparsedReply
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs, crop, fit, pad, wrap
from studio.tui.drawing.lines import CUT, Line, Row, line, width_of
from studio.tui.pages.text import display_text, holds_words, legend_line

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
_MOST_CHARS = 2_000
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


@lru_cache(maxsize=8192)
def whole_text(text: str) -> str:
    """All of a wording as running text; only what no list could show is cut."""
    more = (
        f" {CUT} and {len(text) - _MOST_CHARS} characters more" if len(text) > _MOST_CHARS else ""
    )
    return display_text(" ".join(text[:_MOST_CHARS].split())) + more


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
    return _wrapped_row(op.id, lead, whole_text(edited or op.text or now), style, width)


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


def legend_lines(
    found: Sequence[Item],
    *,
    words: str,
    sort: Sort,
    done: int,
    person: str,
    now: str = "",
    signs: Glyphs = GLYPHS_UNICODE,
) -> list[Line]:
    """What the signs mean, what is safe, and how this session goes. Always as many lines.

    `now` says in place of the last one what is to be done.
    """
    safe = sum(item.is_safe for item in found)
    first: tuple[Standing, ...] = ("open", "approved", "rejected")
    entries = [(sign_of(each, signs), _STYLES.get(each, each), each) for each in first]
    others = [(signs.edited, "edited", "edited"), (signs.later, "dim", "later")]
    order = ("  sort: ", "dim"), f"{sort}", (" (S)", "dim")
    return [
        legend_line(*entries, (signs.pinned, "title", "pin")),
        legend_line(*others, (signs.flag, "flag", "flagged"), (signs.note, "focus", "note")),
        legend_line(*((VERBS[kind], _VERB_STYLES.get(kind, ""), kind) for kind in KINDS[:4])),
        line(("safe: ", "dim"), f"{safe}", (" without flag or delete (A approves)", "dim")),
        line(("filter: ", "dim"), excerpt(words) if words else "all", *order),
        line((now, "flag"))
        if now
        else line(("this session: ", "dim"), f"{done} done, by {excerpt(person)}"),
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
    left = counted.get("open", 0)
    changes = any(
        item.standing in ("approved", "edited")
        and item.operation
        and item.operation.kind not in ("keep", "weights")
        for item in found
    )
    weights = next((i for i in found if i.operation and i.operation.kind == "weights"), None)
    now = state.base_version
    version = f"v{now} becomes v{now + 1}" if changes else f"stays v{now}"
    decided = counts_text({k: v for k, v in counted.items() if k != "open"})
    lines = [line(("decided    ", "dim"), decided), line(("library    ", "dim"), version)]
    if weights is not None:
        at = state.policy_version
        is_taken = weights.standing == "approved"
        policy = f"v{at} becomes v{at + 1}" if is_taken else f"stays v{at}"
        lines[1:] = [line(("policy     ", "dim"), policy), *(lines[1:] if changes else [])]
    if hidden:
        what = "of them is" if hidden == 1 else "of them are"
        lines.append(line((f"filter     {hidden} {what} hidden by it, and committed too", "flag")))
    if left:
        more = "operation is" if left == 1 else "operations are"
        text = f"undecided  {left} {more} decided later: kept here, out of this version"
        lines.append(line((text, "flag")))
    return lines
