"""Libraries on disk: a journal of commits each, and one readable file per version.

The journal is the truth; `vNNNN.yaml` files follow from it and are rewritten when missing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.core import codec, library_notes, settings
from engines.core import events as ev
from engines.core.errors import ConflictError, DamagedError, StudioError, suggest_name
from engines.core.frozen import frozen
from engines.core.library import CommitResult, Experience, Library, Reviewed
from engines.core.state import fold
from engines.core.types import Decision, Operation, Tell
from engines.record import appender, lines, lock, seal
from engines.record.journal import Entry, Journal, Place, parse_entry
from engines.secrets.mask import NO_SECRETS, Mask

LOCK_WAIT_S = 10.0
"""How long a commit waits for another process that is writing there."""
_NAME = re.compile(rf"[A-Za-z0-9][\w.-]{{0,{settings.LONGEST_NAME - 1}}}")
"""Settings allow 100: a run adds its number, a stage its name."""

_LABEL = re.compile(r"(?!(?i:best|last|head)$)[A-Za-z][\w.-]{0,63}", re.ASCII)
"""Never what names a version otherwise: digits, or a place in a run."""

_Version = tuple[Library, ev.LibraryCommitted | None]
"""A version with the commit that made it; None for version 0."""


@dataclass(slots=True)
class _ReadState:
    """The journal as far as it was read: a long run looks often, and reads only what is new."""

    history: fold.LibraryHistory = field(default_factory=fold.LibraryHistory)
    last: lines.StoredLine | None = None

    def resume_line(self, path: Path) -> lines.StoredLine | None:
        """Return the line behind which reading goes on; None, with nothing known, for all of it."""
        if self.last is None or not lines.is_unchanged(path, self.last):
            self.history, self.last = fold.LibraryHistory(), None
        return self.last

    def take(self, path: Path, entries: Iterable[Entry], last: lines.StoredLine | None) -> None:
        """Take what follows in, all of it or nothing."""
        before = self.history
        history = replace(before, versions=[*before.versions], labels=[*before.labels])
        for entry in entries:
            try:
                fold.fold_library_history(history, entry.event, entry.at)
            except (ValueError, StudioError) as error:
                raise DamagedError(
                    f"{path}:{entry.seq}",
                    f"{error}.",
                    f"Restore the journal from a copy, or run {lines.REPAIR}.",
                ) from error
        self.history, self.last = history, last


@frozen
class LibraryFolder:
    """`libraries/<name>` of a workspace. `mask` takes secrets out of all that is written."""

    path: Path
    mask: Mask = NO_SECRETS
    known: _ReadState = field(default_factory=_ReadState, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def journal_path(self) -> Path:
        return self.path / "journal.jsonl"

    def exists(self) -> bool:
        """Whether it was begun: a first line that was cut by a crash is none."""
        return lines.has_first_line(self.journal_path)

    def describe_survivors(self) -> str:
        """What brings its wordings back without a journal; "" where no version's file is left."""
        newest = max(self.path.glob("v[0-9]*.yaml"), default=None)
        command = f"`studio library import {newest} --into NEW`"
        return f"{command} takes its wordings into a new library." if newest else ""

    def versions(self) -> tuple[Library, ...]:
        """Every version, oldest first; index i holds version i."""
        return tuple(library for library, _ in self.history())

    def history(self) -> tuple[_Version, ...]:
        """Every version with the commit that made it.

        Raises DamagedError: a commit does not follow from the version before. ConflictError: there
        is no such library.
        """
        path, after = self.journal_path, self._resume_line()
        new = lines.read(path, chained=True, after=after).lines
        self.known.take(path, [parse_entry(path, line) for line in new], new[-1] if new else after)
        return tuple(self.known.history.versions)

    def copied_from(self) -> str | None:
        """What it was begun as a copy of, such as `NAME@7 (LABEL)`; None: of nothing."""
        self.history()
        return self.known.history.copied_from

    def promotions(self) -> tuple[tuple[float, ev.LibraryLabelled], ...]:
        """Return what labels were given, moved and removed, and when, oldest first."""
        self.history()
        return tuple(self.known.history.labels)

    def labels(self) -> dict[str, int]:
        """The labels there are, with the version that each names."""
        last = {event.label: event.version for _, event in self.promotions()}
        return {label: version for label, version in sorted(last.items()) if version is not None}

    def labelled(self, label: str) -> int:
        """The version that a label names; raises ConflictError where there is no such label."""
        labels = self.labels()
        if label not in labels:
            known = ", ".join(f"{name} (v{version})" for name, version in labels.items())
            move = f"There are: {known}." if known else "`studio library label` gives one."
            raise ConflictError(f"library {self.name}@{label}", "it has no such label.", move)
        return labels[label]

    def head(self) -> Library:
        return self.versions()[-1]

    def at(self, version: int) -> Library:
        """Raises ConflictError where the library has no such version."""
        versions = self.versions()
        newest = len(versions) - 1
        if not 0 <= version <= newest:
            raise ConflictError(
                f"library {self.name}@{version}",
                f"its newest version is {newest}.",
                f"Choose one from 0 to {newest}; if it was there before, run {lines.REPAIR}.",
            )
        return versions[version]

    def create(self, start: Library | None, copied_from: str | None = None) -> Library:
        """Begin a library, empty or as a copy whose ids count on.

        Raises ConflictError where one of that name exists, or the name cannot be a folder.
        """
        check_name(self.name)
        with lock.write_lock(self.path):
            if self.exists():
                raise ConflictError(
                    f"library {self.name}", "it exists already.", "Choose another library.name."
                )
            if survivors := self.describe_survivors():
                raise ConflictError(
                    f"library {self.name}",
                    f"its journal is gone, and files of its versions are left in {self.path}.",
                    f"Choose another name, or move them away; {survivors}",
                )
            start = start or Library(self.name)
            event = ev.LibraryCreated(
                self.name,
                start.next_number,
                start.experiences,
                copied_from,
                start.notes.curated,
                start.notes.uses,
                start.notes.effects,
            )
            journal = Journal(self.journal_path, mask=self.mask)
            written = journal.append_now(event).event
            journal.close()
            library = fold.fold_library(None, written)
            write_version(self.path, library, "")
            return library

    @contextmanager
    def lock_for_commit(
        self, tell: Tell = lambda _: None, *, timeout_s: float | None = None
    ) -> "Iterator[Committer]":
        """Hold the library's lock with its head at hand; raises LockedError after `timeout_s`.

        None stands for `LOCK_WAIT_S`.
        """
        self._resume_line()  # where there is no such library, no lock is made for it
        with lock.write_lock(self.path, timeout_s=LOCK_WAIT_S if timeout_s is None else timeout_s):
            after = self._resume_line()
            place = Place(1, after) if after else None  # a library's journal is never rolled
            journal = Journal(self.journal_path, tell=tell, mask=self.mask, after=place)
            try:
                yield Committer(self, journal)
            finally:
                journal.close()

    def _resume_line(self) -> lines.StoredLine | None:
        """See `_ReadState`; raises ConflictError where there is no such library."""
        after = self.known.resume_line(self.journal_path)
        if after is None and not self.exists():
            others = sorted(p.parent.name for p in self.path.parent.glob("*/journal.jsonl"))
            raise ConflictError(
                f"library {self.name}",
                "there is no such library.",
                suggest_name(self.name, others, workspace=self.path.parents[1]),
            )
        return after


class Committer:
    """The head of a locked library, and the way to the next version."""

    def __init__(self, folder: LibraryFolder, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        last = journal.last.line if journal.last else None
        folder.known.take(journal.path, journal.entries, last)
        self._found = list(folder.known.history.versions)
        if not version_path(folder.path, self.head.version).exists():  # cut before it was written
            self._write_head()

    @property
    def head(self) -> Library:
        return self._found[-1][0]

    def _write_head(self) -> None:
        library, made_by = self._found[-1]
        write_version(self._folder.path, library, made_by.run if made_by else "")

    def _note(self, event: ev.LibraryNote) -> Library:
        """Journal something about the head, and return it as it is with that."""
        self._journal.append_now(event)
        self._found[-1] = (fold.fold_library(self.head, event), self._found[-1][1])
        return self.head

    def earlier_commit(self, run: str, step: int, base: int) -> CommitResult | None:
        """What an earlier try of the same commit did, if its line reached the disk.

        Only versions after `base`, on which the decisions stand, can be that commit: run-ids
        of removed runs are given again.
        """
        for (before, _), (_, commit) in zip(self._found, self._found[1:], strict=False):
            assert commit is not None
            if commit.version > base and (commit.run, commit.step) == (run, step):
                return fold.replay_commit(before, commit)
        return None

    def credit(
        self,
        counts: Mapping[str, library_notes.UseCounts],
        *,
        run: str,
        step: int,
        since: library_notes.NotesMark,
    ) -> None:
        """Journal what a step of a run shows of the experiences, once.

        `since`: the notes as the run began. Counts come before the step's commit,
        so that they are of the wordings that its attempts were shown.
        """
        credited = self.head.notes.own_credits(run, step, since)
        if counts and all(credit.step != step for credit in credited):
            self._note(ev.LibraryCredited(run, step, counts))

    def measure(self, measured: Library, effects: Mapping[str, library_notes.Effect]) -> Library:
        """Journal what experiences are worth, where they still read as they were `measured`."""
        head = self.head
        texts = {e.id: e.text for e in measured.experiences}
        stand = {
            e.id: effects[e.id]
            for e in head.experiences
            if texts.get(e.id) == e.text and e.id in effects
        }
        if stand.items() <= head.notes.effects.items():
            return head
        self._note(ev.LibraryMeasured(stand))
        self._write_head()
        return self.head

    def label(self, label: str, version: int | None, *, who: str, why: str) -> None:
        """Journal that a label names this version from now on; None: that it is no more."""
        self._journal.append_now(ev.LibraryLabelled(label, version, who, why))

    def commit(
        self, reviewed: Reviewed, *, run: str = "", step: int = 0, limit: int | None = None
    ) -> CommitResult:
        """Journal and apply; no line is written where nothing is changed or to be remembered."""
        # Before, not while it is written: the hash of the content is that of what is read.
        reviewed = tuple(_mask_decision(pair, self._folder.mask) for pair in reviewed)
        done = self.head.commit(reviewed, run=run, step=step, limit=limit)
        if done.library.version == self.head.version:
            return CommitResult(self._remember(reviewed, run, step), done.outcomes)
        event = ev.LibraryCommitted(
            version=done.library.version,
            run=run,
            step=step,
            reviewed=tuple(pair for pair in reviewed if pair[1].action != "defer"),
            content_hash=done.library.content_hash,
            limit=limit,
        )
        self._journal.append_now(event)
        self._found.append((done.library, event))
        self._write_head()
        return done

    def _remember(self, reviewed: Reviewed, run: str, step: int) -> Library:
        """The head, with rejections that no version tells of."""
        rejected = tuple(pair for pair in reviewed if pair[1].action == "reject")
        if self.head.commit(rejected, run=run, step=step).library != self.head:
            self._note(ev.LibraryCurated(run, step, rejected))
        return self.head


def _mask_decision(pair: tuple[Operation, Decision], mask: Mask) -> tuple[Operation, Decision]:
    operation, decision = pair
    return (
        codec.from_dict(Operation, mask.tree(codec.to_dict(operation))),
        codec.from_dict(Decision, mask.tree(codec.to_dict(decision))),
    )


def check_name(name: str) -> None:
    """Refuse a name that could not be a folder of its own with a ConflictError."""
    if not _NAME.fullmatch(name):
        allowed = f"at most {settings.LONGEST_NAME} letters, digits, '.', '_' or '-'"
        raise ConflictError(
            f"name {name!r}",
            f"it must be {allowed}, and begin with a letter or digit.",
            "Choose another name.",
        )


def is_label(text: str) -> bool:
    """Whether a version may be called so."""
    return _LABEL.fullmatch(text) is not None


def write_version(folder: Path, library: Library, run: str) -> None:
    """Write `vNNNN.yaml`: what a person reads and what `agent.yaml` is made from."""
    appender.write_atomic(version_path(folder, library.version), format_version(library, run))


def format_version(library: Library, run: str) -> bytes:
    """Return what the file of a version holds, sealed; `run` made it, "" outside runs."""
    effects = library.notes.effects
    data = {
        "library": library.name,
        "version": library.version,
        "made_by": run or None,
        "content_hash": library.content_hash,
        "next_number": library.next_number,
        "experiences": [
            experience_row(e) | ({"worth": effects[e.id].worth_text} if e.id in effects else {})
            for e in library.experiences
        ],
    }
    # What only reads a library, as a screen does, need not wait for it.
    from engines.record.yaml_text import dump_yaml

    text = dump_yaml(data, width=100)
    return seal.add_seal(text.encode("utf-8", "replace"))


def experience_row(experience: Experience) -> dict[str, Any]:
    """An experience as readable files hold it."""
    row = {"id": experience.id, "text": experience.text}
    return {**row, "pinned": True} if experience.pinned else row


def version_path(folder: Path, version: int) -> Path:
    return folder / f"v{version:04d}.yaml"
