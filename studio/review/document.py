"""Review as one file: the queue as text, and what a changed text asks for. Pure.

The file says how all shall be: a block as it stands is approved, one that is gone is rejected.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from engines.core.library import effective_operation
from engines.core.state.run_state import RunState
from engines.core.types import Operation
from studio.report.decisions import decided_text
from studio.review.evidence import GroupEvidence
from studio.review.line_text import operation_text
from studio.review.scripted import Wish
from studio.secrets.sanitize import sanitize
from studio.session.base import ReviewQueue

HEAD = r"""# Run {run}: as this file stands once you save it and leave, so it shall be.
# You are asked before anything is recorded. An empty file, or one that is
# not saved, decides nothing. Lines that begin with # are not read.
# [op1.2] approve modify E3   takes the text below it, which you may change;
#     also E3, to merge into another one, or the kind: add, modify E3, delete E3
# Delete the whole block to reject it. Or instead of approve write reject,
#     defer (puts it off) or open (decides nothing, or takes a decision back).
# because: WHY   on a line of its own in a block gives the reason.
# [E3] is an experience: change its text, or delete the block to delete it.
#     Those that an operation is about stand in its block alone.
# [+] adds the experience typed behind it, of several a paragraph each.
# A line of text that begins with # or [ has a \ before."""
NEW = "+"
_HEADER = re.compile(r"\[([^\[\]\s]+)\]\s*(.*)")
_OPERATION = re.compile(r"op\d+\.\w+")
_WIDTH = 78
_ESCAPED = r"[#\[\\]|because:"


@dataclass(frozen=True, slots=True)
class Block:
    """An operation, an experience, or one that is new (`NEW`)."""

    name: str
    text: str = ""
    head: str = ""  # of an operation: `approve modify E3`
    because: str = ""
    context: tuple[str, ...] = ()
    line: int = 0

    @property
    def content(self) -> tuple[str, str, str]:
        return self.head, self.text, self.because


def queue_blocks(
    state: RunState,
    queue: ReviewQueue,
    groups_of: Callable[[Operation], Sequence[GroupEvidence]],
) -> list[Block]:
    """The queue as the file has it before anybody changes it: what is open is approved."""
    blocks, inside, put_off = list[Block](), set[str | None](), state.put_off_operations
    for operation in state.operations.values():
        made, word = state.decisions.get(operation.id), "approve"
        note = queue.notes.get(operation.id, "")
        wanted = effective_operation(operation, made) if made else operation
        if made is not None and made.action not in ("approve", "edit"):
            word, wanted = made.action, operation
        elif operation in put_off:
            word = "defer"
        elif wanted.kind in ("modify", "delete"):
            inside.add(wanted.target)
        inside.add(made.assigned if made else None)
        if made is not None and made.action != "defer":
            context = [f"  {decided_text(made.action, made.reviewer, made.reason)}"]
        else:
            seen = operation_text(operation, queue, groups_of(operation), note, brief=True)
            is_add = operation.kind == "add" and queue.stale is None  # its text stands below
            context = seen.split("\n")[3 if is_add else 2 :]
        blocks.append(
            Block(
                operation.id,
                _flat(wanted.text) if wanted.kind in ("add", "modify") else "",
                f"{word} {wanted.kind} {wanted.target or ''}".strip(),
                _flat(made.reason if made else note),
                tuple(f"#{line}" for line in context),
            )
        )
    for name, text in queue.draft:
        if name not in inside:
            pinned = ("# is pinned: nothing may change it",) if name in queue.pinned else ()
            blocks.append(Block(name, _flat(text), context=pinned))
    return blocks


def _flat(text: str) -> str:
    return sanitize(" ".join(text.split()))


def format_document(run: str, blocks: Sequence[Block]) -> str:
    """The blocks as one file."""
    lines = [HEAD.format(run=run)]
    for block in (*blocks, Block(NEW)):
        lines.append("")
        wrap = partial(textwrap.wrap, width=_WIDTH, break_long_words=False, break_on_hyphens=False)
        context = [w for one in block.context for w in wrap(one, subsequent_indent="#    ")]
        if block.head:
            text = [_escape(line) for line in wrap(block.text)]
            lines += [f"[{block.name}] {block.head}", *context, *text]
        else:
            first, *more = wrap(f"[{block.name}] {block.text}")
            lines += [first, *map(_escape, more), *context]
        lines += [f"because: {block.because}"] if block.because else []
    return "\n".join(lines) + "\n"


def _escape(line: str) -> str:
    return re.sub(rf"^(?={_ESCAPED})", r"\\", line)


def parse_document(text: str, known: Collection[str] | None = None) -> list[Block]:
    """The blocks of a file; ValueError: what is wrong, by line. It may have the `known` names."""
    blocks: list[Block] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("#"):
            continue
        if found := _HEADER.fullmatch(line):
            name, rest = found.groups()
            if name != NEW and known is not None and name not in known:
                move = r"put a \ before a text that begins so"
                raise ValueError(f"line {number}: [{name}] is nothing that stood here; {move}")
            if name != NEW and any(block.name == name for block in blocks):
                raise ValueError(f"line {number}: [{name}] is here twice")
            is_operation = _OPERATION.fullmatch(name)
            head, body = (" ".join(rest.split()), "") if is_operation else ("", rest)
            blocks.append(Block(name, body, head, line=number))
        elif not line:
            if blocks and blocks[-1].name == NEW and blocks[-1].text:
                blocks.append(Block(NEW, line=number + 1))
        elif not blocks:
            raise ValueError(f"line {number}: it stands below no [NAME]; [+] adds an experience")
        elif line.startswith("because:"):
            reason = line.removeprefix("because:").strip()
            blocks[-1] = replace(blocks[-1], because=f"{blocks[-1].because} {reason}".strip())
        else:
            more = re.sub(rf"^\\(?={_ESCAPED})", "", line)
            blocks[-1] = replace(blocks[-1], text=" ".join(f"{blocks[-1].text} {more}".split()))
    return [block for block in blocks if block.name != NEW or block.text]


def rebase(
    shown: Sequence[Block], edited: Sequence[Block], fresh: Sequence[Block], unseen: str
) -> tuple[list[Block], list[str]]:
    """What a person made of an older file, on the queue as it is now; second, what is left out.

    Operations that the file did not show get the word `unseen`.
    """
    was, got = ({b.name: b for b in blocks} for blocks in (shown, edited))
    out, left_out = list[Block](), list[str]()
    for now in fresh:
        before, wanted = was.get(now.name), got.get(now.name)
        if before is None:
            out.append(replace(now, head=now.head.replace("approve", unseen, 1)))
        elif before.content == now.content:
            out += [replace(wanted, context=now.context)] if wanted else []
        else:
            out.append(now)
            changed = wanted is None or wanted.content != before.content or bool(now.head)
            same = (
                now.head.startswith("reject") if wanted is None else wanted.content == now.content
            )
            if changed and not same:
                left_out.append(_left_out_text(now.name, wanted, "was decided or changed"))
    for name in [name for name in was if name not in {now.name for now in fresh}]:
        if was[name].head or (name in got and got[name].content != was[name].content):
            left_out.append(_left_out_text(name, got.get(name), "is not there any more"))
    new = {now.text for now in fresh if now.name not in was}
    out += [block for block in edited if block.name == NEW and block.text not in new]
    return out, left_out


def _left_out_text(name: str, wanted: Block | None, why: str) -> str:
    text = f'; you wrote: "{wanted.text}"' if wanted is not None and wanted.text else ""
    return f"{name} {why} meanwhile, so it is left as it is{text}"


def document_wishes(blocks: Sequence[Block], fresh: Sequence[Block], state: RunState) -> list[Wish]:
    """What the blocks ask for where they differ from the queue, in its order; additions last."""
    got, wishes = {block.name: block for block in blocks}, list[Wish]()
    for now in fresh:
        block, operation = got.get(now.name), state.operations.get(now.name)
        place = f"line {block.line}" if block else f"[{now.name}], whose block is gone"
        if block is None:
            if operation is None:
                wishes.append(Wish(place, "delete", target=now.name))
            elif not now.head.startswith("reject"):
                wishes.append(Wish(place, "reject", now.name))
        elif operation is None:
            if block.text != now.text:
                text, why = block.text, block.because
                wishes.append(Wish(place, "modify", text=text, target=now.name, reason=why))
        elif block.content != now.content or now.head.startswith("approve"):
            wishes.append(_operation_wish(place, block, operation))
    for block in blocks:
        if block.name == NEW:
            place = f"line {block.line}"
            wishes.append(Wish(place, "add", text=block.text, reason=block.because))
    return wishes


def _operation_wish(place: str, block: Block, operation: Operation) -> Wish:
    word, kind, target = (*block.head.split(), "", "", "")[:3]
    own = operation.text if operation.kind in ("add", "modify") else ""
    given = (kind, target, block.text)
    if word != "approve" or given == (operation.kind, operation.target or "", _flat(own)):
        return Wish(place, word, operation.id, reason=block.because)
    return Wish(
        place,
        "edit",
        operation.id,
        text=block.text if block.text or kind in ("add", "modify") else None,
        kind=kind if kind != operation.kind else None,
        target=target if target and target != operation.target else None,
        reason=block.because,
    )
