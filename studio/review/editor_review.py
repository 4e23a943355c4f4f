"""`studio review --editor`: one file that says how all shall be, opened in the person's editor.

Owns what a person has written from the first letter until it is recorded: it lies in the run's
folder, and the next `--editor` goes on with it. While the editor is open the run is not locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from engines.core.errors import ConflictError, DataError, StudioError
from engines.core.state.run_state import RunState
from engines.record.appender import write_atomic
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.review.document import (
    Block,
    document_wishes,
    format_document,
    parse_document,
    queue_blocks,
    rebase,
)
from studio.review.evidence import EvidenceLoader
from studio.review.line_mode import Ask, WaitFor
from studio.review.scripted import Checked, base_library, carry_out, check_wishes, result_text
from studio.session.base import Session

FOLDER = "editor"
"""Of a run: what a person is writing, and what they were shown."""
_WORDS = {"approve": "approve", "edit": "reword", "reject": "reject", "defer": "put off"}


@dataclass(eq=False)
class EditorReview:
    """One person's review of one run in their editor.

    `open_session` opens a session for as long as one is needed; `finish` leaves it in good order
    and returns what happened.
    """

    workspace: Workspace
    run: RunDir
    person: str
    open_session: Callable[[], AbstractContextManager[tuple[Session, WaitFor]]]
    finish: Callable[[Session, WaitFor], str]
    ask: Ask
    edit: Callable[[Path], bool]
    say: Callable[[str], None]
    tell: Callable[[str], None]
    yes: bool  # record without asking
    _version: int | None = None  # of the library as the file shows it

    @property
    def _file(self) -> Path:
        return self.run.path / FOLDER / "review.txt"

    @property
    def _shown(self) -> Path:
        return self.run.path / FOLDER / "shown.txt"

    def review(self) -> None:
        """Edit, ask, record. Raises StudioError with the text kept."""
        who, move = "another `studio review --editor`", "Finish there."
        with write_lock(self._file.parent, who=who, move=move):
            with self.open_session() as (session, wait_for):
                blocks, _ = self._fresh_blocks(session, wait_for)
            if not self._begin(blocks):
                self.say(f"run {self.run.run}: nothing is open")
                return
            try:
                while self._edit_once():
                    pass
            except StudioError:
                if self._file.exists():
                    again = f"studio review {quote(self.run.run)} --editor"
                    self.tell(f"your text is kept in {self._file}; `{again}` goes on with it")
                raise

    def _fresh_blocks(self, session: Session, wait_for: WaitFor) -> tuple[list[Block], RunState]:
        queue = wait_for(session.review_queue())
        state, loader, version = self.run.state(), EvidenceLoader(self.run), queue.base_version
        if self._version not in (None, version):
            self.tell(f"the library has moved to v{version} meanwhile")
        self._version = version
        return queue_blocks(state, queue, loader.operation_groups), state

    def _begin(self, fresh: Sequence[Block]) -> bool:
        """Write what the editor opens, with what was kept; False where there is nothing in it."""
        text = begun = format_document(self.run.run, fresh)
        try:
            kept, shown = self._file.read_text("utf-8-sig"), self._shown.read_text("utf-8")
        except (OSError, ValueError):
            kept = shown = ""
        if kept != shown and kept.strip():
            try:
                blocks, left_out = rebase(
                    parse_document(shown), parse_document(kept), fresh, "approve"
                )
                text = format_document(self.run.run, blocks)
            except ValueError:  # it is shown as it was left, and told of once it is saved
                text, begun, left_out = kept, shown, []
            for one in left_out:
                self.tell(one)
            if text != begun:
                self.tell("what you wrote before is opened again; to begin anew, empty the file")
        self._write(text, begun)
        return any(block.head for block in fresh) or text != begun

    def _write(self, text: str, shown: str) -> None:
        # In this order: what an old text lacks and a new `shown` has would count as deleted.
        write_atomic(self._file, text.encode())
        write_atomic(self._shown, shown.encode())

    def _forget(self) -> None:
        self._file.unlink(missing_ok=True)
        self._shown.unlink(missing_ok=True)

    def _edit_once(self) -> bool:
        """One time in the editor, and what follows; True where it is to be opened again."""
        if not self.edit(self._file):
            self.tell(
                "the file was not saved, so nothing is decided. An editor with a window of its own"
                " must wait until it is closed, as `code --wait` does"
            )
            return False
        try:
            text = self._file.read_text("utf-8-sig")
            shown = parse_document(self._shown.read_text("utf-8"))
            edited = parse_document(text, {block.name for block in shown})
        except ValueError as error:  # also what is no UTF-8
            return self._ask_again(DataError(str(self._file), f"{error}.", "Nothing is decided."))
        if not edited:
            self._forget()
            self.tell("the file is empty, so nothing is decided")
            return False
        with self.open_session() as (session, wait_for):
            version = self._version
            fresh, state = self._fresh_blocks(session, wait_for)
            blocks, left_out = rebase(shown, edited, fresh, "open")
            for one in left_out:
                self.tell(one)
            begun = format_document(self.run.run, fresh)
            if begun != self._shown.read_text("utf-8"):
                self._write(format_document(self.run.run, blocks), begun)
                blocks = parse_document(
                    self._file.read_text("utf-8")
                )  # for the numbers of the lines
                if self.yes and version != self._version:
                    move = "Look again, or leave --yes out."
                    raise ConflictError(f"run {self.run.run}", "its library has moved.", move)
            try:
                wishes = document_wishes(blocks, fresh, state)
                base = base_library(self.workspace, state)
                checked = check_wishes(str(self._file), wishes, state, base, self.person)
                to_do = [one for one in checked if not one.stands]
                answer = self._confirm(to_do) if to_do else "y"
                if answer == "y":
                    for result in wait_for(carry_out(session, to_do)):
                        self.say(result_text(result))
                    self._forget()
                    self.say(self._left_text(len(to_do)))
                    if closing := self.finish(session, wait_for):
                        self.say(closing)
                    return False
            except DataError as error:
                problem = error
            else:
                if answer != "e":
                    self.tell(f"nothing is decided; what you wrote is kept in {self._file}")
                return answer == "e"
        return self._ask_again(problem)

    def _left_text(self, done: int) -> str:
        return f"run {self.run.run}: {done} decided, {len(self.run.state().open_operations)} open"

    def _ask_again(self, error: DataError) -> bool:
        self.tell(str(error))
        if not self.yes and (self.ask("e edits it again, anything else leaves it ? ") or "") == "e":
            return True
        raise error

    def _confirm(self, to_do: Sequence[Checked]) -> str:
        """`y`, `e` for another look, or "" for neither."""
        if self.yes:
            return "y"
        answer = self.ask(f"{summary_text(to_do)}: record? [y/N/e] ") or ""
        return answer.strip().lower()[:1]


def summary_text(to_do: Sequence[Checked]) -> str:
    """`approve 12 (3 flagged), reword 3, reject 2, add 1`."""
    counts, flagged = Counter[str](), Counter[str]()
    for one in to_do:
        word = _WORDS[one.decision.action] if one.decision else "take back"
        if not one.operation.id:
            word = f"{one.operation.kind} of your own"
        counts[word] += 1
        flagged[word] += word == "approve" and one.operation.is_flagged
    return ", ".join(
        f"{word} {n}" + (f" ({flagged[word]} flagged)" if flagged[word] else "")
        for word, n in counts.items()
    )
