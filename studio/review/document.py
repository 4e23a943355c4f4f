"""Review as one file: the queue as text, and what a changed text asks for. Pure.

The file says how all shall be: a block as it stands is approved, one that is gone is rejected.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from engines.core.library import effective_operation
from engines.core.state.run_state import RunState
from engines.core.types import Operation
from studio.render.words import decided_text
from studio.review.evidence import GroupEvidence
from studio.review.line_text import operation_text
from studio.review.scripted import Wish
from studio.secrets.sanitize import sanitize
from studio.session.requests import ReviewQueue

HEAD = r"""# Run {run}: as this file stands once you save it and leave, so it shall be.
# You are asked before anything is recorded. An empty file, or one that is
# not saved, decides nothing. Lines that begin with # are not read.
# [op1.2] approve modify E3   takes the text below it, which you may change;
#     also E3, to merge into another, or the kind: add, modify E3, delete E3
# Delete the whole block to reject it. Or instead of approve write reject,
#     defer (puts it off) or open (decides nothing, or takes a decision back).
# because: WHY   on a line of its own in a block gives the reason.
# [E3] is an experience: change its text, or delete the block to delete it.
#     Those that an operation is about stand in its block alone.
# [+] adds the experience typed behind it, of several a paragraph each.
# A line of text that begins with # or [ has a \ before."""
NEW = "+"
_TEXTLESS = {"defer": "put off", "reject": "rejected", "open": "left open"}
_WIDTH = 78
_HEADER = re.compile(r"\[([\w.:/+-]+)\]\s*(.*)")
_OPERATION = re.compile(r"op\d+\.[\w.]+")
_READ_OTHERWISE = r"[#\[\\]|because:"


@dataclass(frozen=True, slots=True)
class Block:
    """An operation, an experience, or one that is new (`NEW`)."""

    name: str
    head: str = ""  # of an operation: `approve modify E3`
    text: str = ""
    because: str = ""
    context: tuple[str, ...] = ()
    line: int = 0

    def says_as(self, other: Block | None) -> bool:
        mine = (self.head, self.text, self.because)
        return other is not None and mine == (other.head, other.text, other.because)


def queue_blocks(
    state: RunState, queue: ReviewQueue, groups_of: Callable[[Operation], Sequence[GroupEvidence]]
) -> list[Block]:
    """The queue as the file has it before anybody changes it: what is open is approved."""
    blocks, inside = list[Block](), {NEW, *state.operations}
    put_off = {op.id for op in state.put_off_operations}
    for op in state.operations.values():
        made, note = state.decisions.get(op.id), queue.notes.get(op.id, "")
        word, wanted = "defer" if op.id in put_off else "approve", op
        if made is not None and made.action != "defer":
            context, note = [f"  {decided_text(made.action, made.reviewer, '')}"], made.reason
            word = "reject" if made.action == "reject" else "approve"
            wanted = op if word == "reject" else effective_operation(op, made)
            inside.add(made.assigned or "")
        else:
            seen = operation_text(op, queue, groups_of(op), note, brief=True)
            is_add = op.kind == "add" and queue.stale is None  # its text stands below
            context = seen.split("\n")[3 if is_add else 2 :]
        if word == "approve" and wanted.kind in ("modify", "delete"):
            inside.add(wanted.target or "")
        head = _flat(f"{word} {wanted.kind} {wanted.target or ''}")
        lines = tuple(f"#{line}" for line in context)
        blocks.append(Block(op.id, head, wording(wanted), _flat(note), lines))
    for name, text in queue.draft:
        if name not in inside and _HEADER.fullmatch(f"[{name}]"):  # others cannot be read back
            note = f"# {name} is pinned: nothing may change it"
            pinned = (note,) if name in queue.pinned else ()
            blocks.append(Block(name, text=_flat(text), context=pinned))
    return blocks


def wording(operation: Operation) -> str:
    """What the file has of an operation's text: "" where its kind has none."""
    return _flat(operation.text) if operation.kind in ("add", "modify") else ""


def _flat(text: str) -> str:
    return sanitize(" ".join(text.split()))


def format_document(run: str, blocks: Sequence[Block]) -> str:
    lines = [HEAD.format(run=run)]
    for block in (*blocks, Block(NEW)):
        name = f"[{block.name}] "
        first, *text = (
            [name + block.head, *_wrap(block.text)] if block.head else _wrap(name + block.text)
        )
        context = [line for one in block.context for line in _wrap(one, "#    ")]
        because = [f"because: {block.because}"] if block.because else []
        text = [re.sub(rf"^(?={_READ_OTHERWISE})", r"\\", line) for line in text]
        # Of an experience above, since its text begins in the first line.
        head = [first, *context] if block.head else [*context, first]
        lines += ["", *head, *text, *because]
    return "\n".join(lines) + "\n"


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def parse_document(
    text: str, known: Collection[str] | None = None, wrong: list[Wish] | None = None
) -> list[Block]:
    """The blocks of a file. It may have the `known` names.

    What is wrong, by line, is added to `wrong`; without it ValueError says the first of that.
    """
    blocks, names = list[Block](), set[str]()

    def complain(problem: str) -> None:
        if wrong is None:
            raise ValueError(f"line {number}: {problem}")
        wrong.append(Wish("", place=f"line {number}", wrong=problem))

    for number, raw in enumerate(text.split("\n"), 1):
        line, last = raw.strip(), blocks[-1] if blocks else None
        if line.startswith("#"):
            continue
        if found := _HEADER.fullmatch(line):
            name, rest = found.groups()
            if name != NEW and known is not None and name not in known:
                move = r"put a \ before a text that begins so"
                complain(f"[{name}] is nothing that stood here; {move}")
            if name in names:
                complain(f"[{name}] is here twice")
            names |= {name} - {NEW}
            rest = " ".join(rest.split())
            is_operation = _OPERATION.fullmatch(name) is not None
            blocks.append(Block(name, *(rest, "") if is_operation else ("", rest), line=number))
        elif last is None:
            if line:
                complain("put [+] before it to add it as an experience")
                blocks.append(Block(NEW, text=line, line=number))
        elif not line:
            blocks += [Block(NEW, line=number + 1)] if last.name == NEW and last.text else []
        elif line.startswith("because:"):
            reason = f"{last.because} {line.removeprefix('because:')}"
            blocks[-1] = replace(last, because=" ".join(reason.split()))
        else:
            more = re.sub(rf"^\\(?={_READ_OTHERWISE})", "", line)
            blocks[-1] = replace(last, text=" ".join(f"{last.text} {more}".split()))
    return [block for block in blocks if block.name != NEW or block.text]


def document_wishes(
    shown: Sequence[Block], edited: Sequence[Block], fresh: Sequence[Block], state: RunState
) -> tuple[list[Wish], list[str]]:
    """What an edited file asks for; and in words what of it counts for nothing.

    `shown` is the file as the person got it, `fresh` as it would be now: what is only there was
    shown to nobody, and stays as it is.
    """
    wishes, left_out = list[Wish](), list[str]()
    got, now = ({block.name: block for block in blocks} for blocks in (edited, fresh))
    for was in shown:
        block, operation = got.get(was.name), state.operations.get(was.name)
        place = f"line {block.line}" if block else f"[{was.name}], whose block is gone"
        is_same = was.says_as(block)
        if not was.says_as(now.get(was.name)):
            if was.head or not is_same:
                wrote = f'; you wrote: "{block.text}"' if block and block.text != was.text else ""
                left_out.append(f"{was.name} is another meanwhile, so it is left as it is{wrote}")
        elif operation is not None:
            if not is_same or was.head.startswith("approve"):
                wish = replace(_operation_wish(block, operation), place=place)
                wishes.append(wish)
                if block and block.text != was.text and wish.action in _TEXTLESS:
                    what = f"{was.name} is {_TEXTLESS[wish.action]}"
                    left_out.append(f"{what}: its changed text counts for nothing")
        elif block is None:
            wishes.append(Wish("delete", target=was.name, place=place))
        elif not is_same:
            changed = Wish("modify", text=block.text, target=was.name, reason=block.because)
            wishes.append(replace(changed, place=place))
    known = {block.name for block in shown}
    # Committed before a kill, perhaps; what was only proposed then is still to be decided.
    arrived = {block.text for block in fresh if not block.head and block.name not in known}
    new = [block for block in edited if block.name == NEW and block.text not in arrived]
    wishes += [Wish("add", text=b.text, reason=b.because, place=f"line {b.line}") for b in new]
    return wishes, left_out


def _operation_wish(block: Block | None, op: Operation) -> Wish:
    if block is None:
        return Wish("reject", op.id)
    word, kind, target = (*block.head.split(maxsplit=2), "", "", "")[:3]
    if word != "approve" or (kind, target, block.text) == (op.kind, op.target or "", wording(op)):
        return Wish(word, op.id, reason=block.because)
    return Wish(
        "edit",
        op.id,
        text=block.text if block.text or kind in ("add", "modify") else None,
        kind=kind if kind != op.kind else None,
        target=target if target and target != op.target else None,
        reason=block.because,
    )
