"""A text, or a whole review, in the person's own editor.

Owns what a person has written in a review from the first letter until it is recorded: it lies in
the run's folder, and the next `--editor` goes on with it. Meanwhile the run is not locked.
"""

import os
import re
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

import click

from engines.core.errors import ConfigError, ConflictError, DataError, StudioError
from engines.core.frozen import frozen
from engines.core.library import effective_operation
from engines.core.state.run_state import RunState
from engines.core.types import Operation
from engines.record import appender, lock
from studio.render.words import decided_text
from studio.review import evidence, line_mode, review_run
from studio.review.scripted import Todo, Wish, carry_out, check_wishes, refuse, result_text
from studio.review.wording import about_lines, change_lines, evidence_lines
from studio.secrets.sanitize import sanitize
from studio.session.requests import ReviewQueue

FOLDER = "editor"
"""Of a run: what a person is writing (`review.txt`), and what they were shown."""
NOT_SAVED = (
    "the file was not saved, so nothing is decided. An editor with a window of its own must wait "
    "until it is closed, as `code --wait` does"
)
NOT_SAVED_AGAIN = (
    "the file was not saved again, so nothing is decided; what you wrote is still kept: {}. "
    "Saving it once more, as `:wq` does in vi, records it"
)


def edit_text(text: str) -> str | None:
    """Open $VISUAL or $EDITOR on a text; None when it was not saved."""
    try:
        return click.edit(text, extension=".txt")
    except (click.ClickException, ValueError) as error:
        raise _editor_error(error) from error


def edit_file(path: Path) -> bool:
    """Open $VISUAL or $EDITOR on a file; whether it was saved. Ctrl-C is the editor's meanwhile."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not named and (os.environ.get("TERM", "dumb") == "dumb" or not sys.stdin.isatty()):
        raise ConfigError(
            "$EDITOR",
            "it is not set, and there is no terminal with a screen for an editor.",
            "Set it; or decide in line mode: `studio review RUN`.",
        )
    os.utime(path, (0, 0))  # some file systems tell times only to two seconds
    # A handler, which the editor does not inherit, as it would SIG_IGN.
    kept = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        click.edit(filename=str(path))
        return path.stat().st_mtime != 0
    except (click.ClickException, ValueError) as error:
        raise _editor_error(error) from error
    finally:
        signal.signal(signal.SIGINT, kept)


def _editor_error(error: click.ClickException | ValueError) -> ConfigError:
    ended = isinstance(error, click.ClickException) and not isinstance(error.__cause__, OSError)
    move = "Set it to an editor that is installed, or give the text on the command line."
    move = "It ended with an error, so nothing is decided." if ended else move
    return ConfigError("$EDITOR", f"{getattr(error, 'message', error)}.", move)


@dataclass(eq=False)
class EditorReview:
    """One person's review of one run as a file; with `yes` it is recorded without asking."""

    review: review_run.RunReview
    ask: line_mode.Ask
    yes: bool
    _version: int | None = None  # of the library as the file shows it
    _goes_on: bool = False  # with what was written before

    def __post_init__(self) -> None:
        self._run = self.review.session.run
        self._file = self._run.path / FOLDER / "review.txt"
        self._shown = self._file.with_name("shown.txt")

    def run(self) -> None:
        """Edit, ask, record. Raises StudioError with the text kept."""
        who, move = "another `studio review --editor`", "Finish there."
        with lock.write_lock(self._file.parent, who=who, move=move):
            blocks, kept = self._read_queue(), self._text(self._file)
            if kept.strip() and kept != self._text(self._shown):
                self._goes_on = True
                self.review.tell("what you wrote is opened again; to begin anew, empty the file")
            else:
                if not any(block.head for block in blocks):
                    self.review.tell(
                        f"run {self._run.run}: nothing is open but for changes of your own"
                    )
                text = format_document(self._run.run, blocks).encode()
                self._forget()  # first, so that no older text is held against what is shown now
                appender.write_atomic(self._shown, text)
                appender.write_atomic(self._file, text)
            try:
                while self._edit_once():
                    self._goes_on = True
            except StudioError:
                again = f"`studio review {quote(self._run.run)} --editor` goes on with it"
                self.review.tell(f"your text is kept in {self._file}; {again}")
                raise

    def _forget(self) -> None:
        self._file.unlink(missing_ok=True)
        self._shown.unlink(missing_ok=True)

    def _text(self, path: Path) -> str:
        return path.read_text("utf-8-sig", errors="replace") if path.exists() else ""

    def _read_queue(self) -> "list[Block]":
        self._queue = queue = self.review.read_queue()
        before, self._version = self._version, queue.base_version
        if before not in (None, self._version):
            moved = f"the library has moved to v{self._version} meanwhile"
            if self.yes:
                raise ConflictError(f"run {self._run.run}", f"{moved}.", "Look again.")
            self.review.tell(moved)
        groups_of = evidence.EvidenceLoader(self._run).operation_groups
        return queue_blocks(self.review.session.state, queue, groups_of)

    def _edit_once(self) -> bool:
        """One time in the editor, and what follows; True where it is to be opened again."""
        self.review.wait_for(self.review.session.release_lock())
        if not edit_file(self._file):
            kept = NOT_SAVED_AGAIN.format(self._file)
            self.review.tell(kept if self._goes_on else NOT_SAVED)
            return False
        try:
            todo = self._read_todo()
        except DataError as error:
            if self.yes:
                raise
            self.review.tell(str(error))
            if self._answer("edit it again? [e/N] ") == "e":
                return True
            raise
        if todo is None:
            self.review.tell("the file is empty, so nothing is decided")
        else:
            asked = f"{summary_text(todo)}: record? [y/N, e edits again] "
            answer = self._answer(asked) if todo and not self.yes else "y"
            if answer != "y":
                if answer != "e":
                    self.review.tell(f"nothing is decided; what you wrote is kept: {self._file}")
                return answer == "e"
            for result in self.review.wait_for(carry_out(self.review.session, todo)):
                self.review.say(result_text(result))
            left = len(self.review.session.state.open_operations)
            self.review.say(f"run {self._run.run}: {len(todo)} decided, {left} open")
        self._forget()
        if closing := self.review.closing_text():
            self.review.say(closing)
        return False

    def _read_todo(self) -> list[Todo] | None:
        """What the saved file asks for on the queue as it is now; None where it is empty."""
        name, (shown, _) = str(self._file), parse_document(self._shown.read_text("utf-8"))
        try:
            text = self._file.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(
                name,
                f"it is no UTF-8 text (byte {error.start}), so nothing is decided.",
                "Save it as UTF-8.",
            ) from error
        edited, wrong = parse_document(text, {block.name for block in shown})
        if wrong:
            raise refuse(name, wrong)
        if shown and not edited:
            return None
        fresh, state = self._read_queue(), self.review.session.state
        wishes, left_out = document_wishes(shown, edited, fresh, state)
        for one in left_out:
            self.review.tell(one)
        session, queue = self.review.session, self._queue
        todo, flags = self.review.wait_for(check_wishes(name, wishes, session, queue))
        if flags and self.yes:
            raise refuse(name, flags, "Reword it, or answer without --yes.")
        for flag in flags:
            self.review.tell(flag)
        return todo

    def _answer(self, question: str) -> str:
        return (self.ask(question) or "").strip().lower()[:1]


def summary_text(todo: Sequence[Todo]) -> str:
    """`approve 12, edit 3, reject 2, add 1 (3 of them are flagged)`."""
    counts = Counter((d.action if d else "open") if op.id else op.kind for op, d in todo)
    flagged = sum(op.is_flagged and d is not None and d.action == "approve" for op, d in todo)
    text = ", ".join(f"{word} {n}" for word, n in counts.items())
    return f"{text} ({flagged} of the approved ones flagged)" if flagged else text


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


@frozen
class Block:
    """An operation, an experience, or one that is new (`NEW`)."""

    name: str
    head: str = ""  # of an operation: `approve modify E3`
    text: str = ""
    because: str = ""
    context: tuple[str, ...] = ()
    line: int = 0

    def says_as(self, other: "Block | None") -> bool:
        mine = (self.head, self.text, self.because)
        return other is not None and mine == (other.head, other.text, other.because)


def queue_blocks(
    state: RunState,
    queue: ReviewQueue,
    groups_of: Callable[[Operation], Sequence[evidence.GroupEvidence]],
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
            context = [] if op.kind == "add" else change_lines(op, dict(queue.draft))
            context = [f"  {line}" for line in context] + about_lines(op, queue, note)
            context += [evidence_lines(group)[0] for group in groups_of(op)]
        if word == "approve" and wanted.kind in ("modify", "delete"):
            inside.add(wanted.target or "")
        head = _flat(f"{word} {wanted.kind} {wanted.target or ''}")
        lines = tuple(f"#{line}" for text in context for line in text.split("\n"))
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
    text: str, names: Collection[str] | None = None
) -> tuple[list[Block], list[str]]:
    """Return the blocks of a file, which may have these `names`; and what is wrong, by line."""
    blocks, wrong = list[Block](), list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line, problem = raw.strip(), ""
        last = blocks[-1] if blocks else Block(NEW)
        if line.startswith("#"):
            continue
        if match := _HEADER.fullmatch(line):
            name, behind = match[1], " ".join(match[2].split())
            if name != NEW and names is not None and name not in names:
                move = r"put a \ before a text that begins so"
                problem = f"[{name}] is nothing that stood here; {move}"
            elif name != NEW and any(block.name == name for block in blocks):
                problem = f"[{name}] is here twice"
            is_operation = _OPERATION.fullmatch(name) is not None
            head, words = (behind, "") if is_operation else ("", behind)
            blocks.append(Block(name, head, words, line=number))
        elif not line:
            if last.name == NEW and last.text:  # of several additions a paragraph each
                blocks.append(Block(NEW, line=number + 1))
        elif not blocks:
            problem = "put [+] before it to add it as an experience"
            blocks.append(Block(NEW, text=line, line=number))
        elif line.startswith("because:"):
            reason = f"{last.because} {line.removeprefix('because:')}"
            blocks[-1] = replace(last, because=" ".join(reason.split()))
        else:
            more = re.sub(rf"^\\(?={_READ_OTHERWISE})", "", line)
            blocks[-1] = replace(last, text=" ".join(f"{last.text} {more}".split()))
        if problem:
            wrong.append(f"line {number}: {problem}")
    return [block for block in blocks if block.name != NEW or block.text], wrong


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
