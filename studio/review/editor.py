"""A text, or a whole review, in the person's own editor.

Owns what a person has written in a review from the first letter until it is recorded: it lies in
the run's folder, and the next `--editor` goes on with it. Meanwhile the run is not locked.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import click

from engines.core.errors import ConfigError, ConflictError, DataError, StudioError
from engines.record.appender import write_atomic
from engines.record.lock import write_lock
from studio.review.document import (
    Block,
    document_wishes,
    format_document,
    parse_document,
    queue_blocks,
)
from studio.review.evidence import EvidenceLoader
from studio.review.line_mode import Ask
from studio.review.review_run import RunReview
from studio.review.scripted import Todo, Wish, carry_out, check_wishes, refuse, result_text
from studio.session.requests import ReadQueue

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
        cause = "it is not set, and there is no terminal with a screen for an editor."
        raise ConfigError("$EDITOR", cause, "Set it; or decide in line mode: `studio review RUN`.")
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

    review: RunReview
    person: str
    ask: Ask
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
        with write_lock(self._file.parent, who=who, move=move):
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
                write_atomic(self._shown, text)
                write_atomic(self._file, text)
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

    def _read_queue(self) -> list[Block]:
        self._queue = queue = self.review.wait_for(self.review.session.send(ReadQueue()))
        before, self._version = self._version, queue.base_version
        if before not in (None, self._version):
            moved = f"the library has moved to v{self._version} meanwhile"
            if self.yes:
                raise ConflictError(f"run {self._run.run}", f"{moved}.", "Look again.")
            self.review.tell(moved)
        groups_of = EvidenceLoader(self._run).operation_groups
        return queue_blocks(self._run.state(), queue, groups_of)

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
            left = len(self._run.state().open_operations)
            self.review.say(f"run {self._run.run}: {len(todo)} decided, {left} open")
        self._forget()
        if closing := self.review.closing_text():
            self.review.say(closing)
        return False

    def _read_todo(self) -> list[Todo] | None:
        """What the saved file asks for on the queue as it is now; None where it is empty."""
        name, shown = str(self._file), parse_document(self._shown.read_text("utf-8"))
        try:
            text = self._file.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            cause = f"it is no UTF-8 text (byte {error.start}), so nothing is decided."
            raise DataError(name, cause, "Save it as UTF-8.") from error
        edited = parse_document(text, {block.name for block in shown}, wrong := list[Wish]())
        if shown and not edited:
            return None
        fresh, state = self._read_queue(), self._run.state()
        wishes, left_out = document_wishes(shown, edited, fresh, state)
        for one in left_out:
            self.review.tell(one)
        wishes = [*wrong, *wishes]
        session, queue = self.review.session, self._queue
        todo, flags = self.review.wait_for(check_wishes(name, wishes, session, queue, self.person))
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
