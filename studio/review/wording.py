"""Wordings of a review: parts of a change, merges, and what line mode prints of them. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import indent

from engines.core.frozen import frozen
from engines.core.text.similarity import format_changes, similarity, word_diff
from engines.core.types import (
    DUPLICATE,
    FROM_TOOL,
    HELD_OUT_LEAK,
    LEAK,
    MERGED,
    REJECTED_BEFORE,
    TOO_LONG,
    Decision,
    Flag,
    Operation,
    UnparsedReply,
)
from studio.render.words import kind_title
from studio.review.evidence import GroupEvidence
from studio.secrets.sanitize import one_line, sanitize
from studio.session.requests import ReviewQueue

Near = tuple[str, float, str]
"""Id, similarity in [0, 1] and text of an experience."""
_NEAR_MOST, _NEAR_FROM = 5, 0.3
"""How many are told, and how like they are: below, two texts merely share a language."""


@frozen
class ChangedPart:
    """One place at which two wordings differ: the words cut, and those put there instead."""

    number: int  # from 1, in reading order
    cut: str
    new: str


def changed_parts(before: str, after: str) -> tuple[ChangedPart, ...]:
    """The places at which they differ; changes with only blanks between them are one."""
    return tuple(piece for piece in _pieces(before, after) if isinstance(piece, ChangedPart))


def text_with_parts(before: str, after: str, chosen: Collection[int]) -> str:
    """`before` with these parts of the change alone: all of them give `after`, none `before`."""
    return "".join(
        piece if isinstance(piece, str) else piece.new if piece.number in chosen else piece.cut
        for piece in _pieces(before, after)
    )


def _pieces(before: str, after: str) -> list[str | ChangedPart]:
    """What both say as text, and between it what differs, in reading order."""
    changes = word_diff(before, after)
    last = len(changes) - 1

    def differs(at: int) -> bool:
        kind, text = changes[at]
        return kind != "same" or (0 < at < last and text.isspace())

    out: list[str | ChangedPart] = []
    for is_part, places in groupby(range(len(changes)), differs):
        piece = [changes[at] for at in places]
        if is_part:
            cut = "".join(text for kind, text in piece if kind != "new")
            new = "".join(text for kind, text in piece if kind != "cut")
            out.append(ChangedPart(sum(not isinstance(p, str) for p in out) + 1, cut, new))
        else:
            out.append("".join(text for _, text in piece))
    return out


def merge_decisions(
    first: Operation, others: Sequence[Operation], edit: Decision
) -> list[tuple[Operation, Decision]]:
    """One batch that makes one wording of several proposals; evidence of all counts for it.

    The others come first: what they would change must not stand in the way of the one that stays.
    """
    why = f"{MERGED}{first.id}"
    pairs = [(op, Decision(op.id, "reject", reason=why, reviewer=edit.reviewer)) for op in others]
    evidence = dict.fromkeys(name for op in others for name in op.evidence)
    more = tuple(name for name in evidence if name not in first.evidence)
    return [*pairs, (first, replace(edit, evidence=more))]


def find_similar(text: str, others: Iterable[tuple[str, str]]) -> tuple[Near, ...]:
    """Those of the others, by id, that are most like a text, the likest first.

    Takes 20 microseconds for each: not for a key's own handler.
    """
    scores = ((name, similarity(text, other), other) for name, other in others)
    near = [each for each in scores if each[1] >= _NEAR_FROM]
    return tuple(sorted(near, key=lambda each: -each[1])[:_NEAR_MOST])


def find_alike(
    operation: Operation, decision: Decision | None, text: str, draft: Mapping[str, str]
) -> tuple[Near, ...]:
    """Return what is like the text of an operation, but for what it changes or has become."""
    if operation.kind == "weights":
        return ()
    own = {operation.target, *((decision.assigned, decision.target) if decision else ())}
    return find_similar(text, [entry for entry in draft.items() if entry[0] not in own])


WEIGHTS_AS_A_WHOLE = "a weight update is approved or rejected as a whole: a, or r REASON"

PIN_MEANING = {
    "pin": "nothing may change or delete it, until a person unpins it",
    "unpin": "it may be changed and deleted again",
}

HELP = """\
a [1 3]      approve; with numbers only these parts of a change
e [TEXT]     edit the wording (in $EDITOR without TEXT), then approve it
E            edit the wording in $EDITOR, then approve it
r [REASON]   reject
R [REASON]   reject with a reason, which is asked for
t [REASON]   later: leave it open without holding the run up
m [NOTE]     keep a note, which goes with the decision (without NOTE: none)
M ID [TEXT]  merge it with operation ID, or into experience ID (in $EDITOR without TEXT)
p [ID]       propose to pin, or unpin, the experience it is about, or ID
u            undo the last decision of this session (again: the one before)
n            leave it for later and show the next
N            go back to the one before that you left for later
o            open the rollouts it rests on, whole
w            show the wording before and after, each whole
l            list what is open, what was dropped, and the library as it would become
q            quit; go on later with the same command
h            this help; also ?"""

WEIGHTS_KEYS = "a r R m u n N o l q"
WEIGHTS_HELP = "\n".join(
    line if line[0] != "a" else "a            approve"
    for line in HELP.splitlines()
    if line[0] in WEIGHTS_KEYS + "h"
)

REPLY_HELP = """\
e [TEXT]     mend: change the reply (in $EDITOR without TEXT), and read it again
d REASON     let it go: nobody can understand it, it stays lost
o            open the whole reply, the prompt, and the rollouts behind it
n            leave it for later and show the next
l            list what is open, and the library as it would become
q            quit; go on later with the same command
h            this help; also ?"""


def unknown_key_hint(key: str) -> str:
    """What is said of a letter without a meaning."""
    return f"{one_line(key, 20)} does nothing here; ? lists the letters"


def change_lines(operation: Operation, texts: Mapping[str, str]) -> list[str]:
    """What the operation would do to the draft, in words that need no colour."""
    before = texts.get(operation.target or "", "")
    match operation.kind:
        case "add":
            return [f"+ {sanitize(operation.text)}"]
        case "modify":
            changes = word_diff(before, operation.text)
            same = sum(len(text.split()) for kind, text in changes if kind == "same")
            lines = [f"~ {sanitize(format_changes(changes))}"]
            if 2 * same < max(len(before.split()), len(operation.text.split())):
                lines = [f"- {sanitize(before)}", f"+ {sanitize(operation.text)}"]
            parts = changed_parts(before, operation.text)
            if len(parts) > 1:  # `a 1` takes one of them alone
                lines += [f"  {part.number}: {_part_text(part)}" for part in parts]
            return lines
        case "delete":
            return [f"- {sanitize(before)}"]
        case "keep":
            return [f"= {sanitize(before)}"]
        case "pin" | "unpin":
            return [f"* {sanitize(before)}", f"  {PIN_MEANING[operation.kind]}"]
        case "weights":
            return [f"^ {sanitize(figure)}" for figure in operation.text.split(", ")]


def _part_text(part: ChangedPart) -> str:
    cut, new = one_line(part.cut, 120), one_line(part.new, 120)
    if not (cut and new):
        return f"put in {new}" if new else f"cut {cut}"
    return f"{cut} -> {new}"


def whole_lines(operation: Operation, texts: Mapping[str, str]) -> list[str]:
    """The wording before and after, each on a line of its own."""
    before = texts.get(operation.target or "", "")
    after = operation.text or (before if operation.kind in ("keep", "pin", "unpin") else "")
    return [f"before  {sanitize(before) or '(none)'}", f"after   {sanitize(after) or '(none)'}"]


def reply_lines(reply: UnparsedReply, left: int) -> list[str]:
    """A reply that could not be parsed: what it is, what is wrong, how it begins."""
    several = f"  ({left} to mend)" if left > 1 else ""
    lines = [f"{reply.id}  {reply.kind} reply that could not be understood{several}"]
    lines += [f"  wrong     {one_line(reason, 400)}" for reason in reply.reasons[:10]]
    if len(reply.reasons) > 10:
        lines.append(f"  wrong     … and {len(reply.reasons) - 10} more")
    return [*lines, f"  reply     {one_line(reply.reply, 160)}"]


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
    measure = _SCORES.get(flag.name, "score")
    score = "" if flag.score is None else f" ({measure} {flag.score:.2f})"
    detail = f": {one_line(flag.detail, 200)}" if flag.detail else ""
    return f"{flag.name}{score}{detail}"


def evidence_lines(group: GroupEvidence) -> list[str]:
    lines = [f"  {group.id}  {group.won} of {group.n} won  {one_line(group.question, 90)}"]
    for witness in group.witnesses:
        answer = witness.rollout.tail or witness.rollout.error or ""
        critique = witness.verdict.critique if witness.verdict and witness.verdict.critique else ""
        last = answer.strip().rsplit("\n", 1)[-1]
        tail = f"  ({one_line(critique, 60)})" if critique else ""
        tail += f"  verdict doubted: {one_line(witness.doubt, 120)}" if witness.doubt else ""
        lines.append(f"    {witness.sign} r{witness.rollout.index}  {one_line(last, 60)}{tail}")
    for sign, name, words in group.parting:
        text = one_line(format_changes(words), 400)
        lines.append(f"    {sign} r{name.rpartition('r')[2]}  parts here: {text}")
    return lines


def operation_text(
    operation: Operation, queue: ReviewQueue, groups: Sequence[GroupEvidence], note: str = ""
) -> str:
    """An operation as it is shown before the question about it; `note` is what is kept of it."""
    target = f" {operation.target}" if operation.target else ""
    lines = ["", f"{operation.id}  {kind_title(operation.kind)}{target}  ({len(queue.open)} open)"]
    lines += [f"  {line}" for line in change_lines(operation, dict(queue.draft))]
    lines += about_lines(operation, queue, note)
    for group in groups:
        # A batch may have hundreds of rollouts: of each group a line, and v shows all.
        lines += evidence_lines(group)[: 1 if operation.kind == "weights" else None]
    decided = (made for made in queue.decided if made.operation_id == operation.id)
    near = find_alike(operation, next(decided, None), operation.text, dict(queue.draft))
    for name, score, text in near[:1] if operation.text else ():
        lines.append(f"  similar   {name} {score:.2f}  {one_line(text, 90)}")
    return "\n".join(lines)


def about_lines(operation: Operation, queue: ReviewQueue, note: str = "") -> list[str]:
    """What a reviewer sees of an operation besides its change and its evidence."""
    lines = []
    if queue.stale is not None:
        lines.append(f"  ! the library has moved to v{queue.stale} since this was proposed")
    if (uses := queue.uses.get(operation.target or "")) is not None:
        lines.append(f"  so far    {uses.text}")
    for label, text in reason_labels(operation, note, queue.merged.get(operation.id, "")):
        lines.append(f"  {label:<9} {indent(sanitize(text), 12 * ' ').lstrip()}")
    lines.append(f"  proposed  by {sanitize(operation.proposer) or '(unknown)'}")
    return lines + [f"  flag      {flag_text(flag)}" for flag in operation.flags]


def reason_labels(
    operation: Operation, note: str = "", merged: str = "", decision: Decision | None = None
) -> list[tuple[str, str]]:
    """Why it was proposed and decided so, what is noted and merged: texts and their labels."""
    labels = []
    if operation.rationale or operation.kind != "weights":
        labels.append(("why", operation.rationale or "(no reason given)"))
    if decision is not None:
        labels.append(("reason", decision.reason))
        labels.append(("flags now", "; ".join(map(flag_text, decision.flags))))
    labels += [("note", note), ("merges", merged)]
    return [(label, text) for label, text in labels if text]


def queue_lines(queue: ReviewQueue) -> list[str]:
    """What is open, and the library as the standing decisions would leave it."""
    lines = [
        f"{operation.id:8} {operation.kind:7} "
        f"{one_line(operation.text or operation.target or '', 90)}"
        for operation in queue.open
    ]
    lines += [
        f"{reply.id:8} to mend {one_line(' '.join(reply.reasons), 90)}" for reply in queue.repairs
    ]
    lines += [f"dropped  proposal {sanitize(one)}" for one in queue.dropped]
    if queue.draft or not any(operation.kind == "weights" for operation in queue.open):
        empty = "" if queue.draft else " empty"
        lines.append(f"the library as it would become:{empty}")
    return lines + [f"  {name}  {sanitize(text)}" for name, text in queue.draft]
