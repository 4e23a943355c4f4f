"""The library of experiences: an immutable value and the only function that changes it.

Knows no files; `engines.record.libraries` keeps versions on disk.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache

from engines.core import codec, library_notes
from engines.core.frozen import frozen
from engines.core.text import prompts, sanitize, similarity
from engines.core.types import Decision, Names, Operation, OperationKind


@frozen
class Provenance:
    """How one wording came about: the operation, its evidence, and who let it in."""

    version: int
    kind: OperationKind
    text: str
    operation_id: str
    run: str  # "" for an edit outside any run
    step: int
    rationale: str
    evidence: Names
    proposer: str
    prompt_hash: str
    reviewer: str
    reason: str
    edited: bool
    at: float
    uses_before: library_notes.UseCounts | None = (
        None  # of the wording that it replaced, where any were counted
    )


@frozen
class Experience:
    """One entry. `id` is never renumbered and never given to another experience."""

    id: str
    text: str
    born: int = 0
    revised: int = 0
    history: tuple[Provenance, ...] = ()
    pinned: bool = False  # nothing may change or delete it


@frozen
class OperationOutcome:
    """What a commit did with one decided operation."""

    operation_id: str
    kind: OperationKind
    applied: bool  # False for rejections and for approvals that no longer fitted
    id: str | None = None  # of the experience it was applied to
    reason: str = ""  # why it was not applied


@frozen
class CommitResult:
    library: "Library"
    outcomes: tuple[OperationOutcome, ...]


@frozen
class LibraryDiff:
    """What distinguishes a newer library from an older one; entries in library order."""

    added: tuple[Experience, ...]
    removed: tuple[Experience, ...]
    modified: tuple[tuple[Experience, Experience], ...]  # (before, after)
    unchanged: tuple[tuple[Experience, Experience], ...]  # the same wording; ids may differ
    pinned: tuple[Experience, ...]  # and were not; in any of the above but `removed`
    unpinned: tuple[Experience, ...]
    tokens_before: int
    tokens_after: int

    @property
    def renamed(self) -> tuple[tuple[Experience, Experience], ...]:
        """Equal wordings under another id."""
        return tuple((b, a) for b, a in self.unchanged if b.id != a.id)


Reviewed = Sequence[tuple[Operation, Decision]]


@frozen
class Library:
    """Experiences in order of birth.

    `notes` are no part of the content: versions with other notes are the same.
    """

    name: str
    version: int = 0
    experiences: tuple[Experience, ...] = ()
    next_number: int = 1  # only ever grows
    notes: library_notes.LibraryNotes = library_notes.NO_NOTES

    def get(self, experience_id: str | None) -> Experience | None:
        return next((e for e in self.experiences if e.id == experience_id), None)

    @property
    def pinned_ids(self) -> Names:
        return tuple(e.id for e in self.experiences if e.pinned)

    @property
    def content_hash(self) -> str:
        """Of ids and texts, which is what prompts show: a pin changes nothing of it."""
        return codec.digest([[e.id, e.text] for e in self.experiences], 8)

    def objection(self, operation: Operation, limit: int | None = None) -> str | None:
        """Say why an operation, edits included, does not fit this library, or None when it does.

        `limit` is the most experiences the library may hold.
        """
        return _Draft(self).objection(operation, limit)

    def commit(
        self, reviewed: Reviewed, *, run: str = "", step: int = 0, limit: int | None = None
    ) -> CommitResult:
        """Apply decided operations in the order given; deferred ones are ignored.

        An approval that does not fit the library as it stands at that point becomes
        an unapplied outcome with the objection as its reason. The version rises by
        one when any text or pin changed, and not otherwise; rejections and edits of reviewers are
        remembered in the notes either way. `run` is "" outside runs.
        """
        draft = _Draft(self)
        outcomes = []
        decided = []  # each operation as proposed and applied, and what its target said then
        for operation, decision in reviewed:
            target = draft.entries.get(operation.target or "")
            effective = effective_operation(operation, decision)
            decided.append((operation, effective, decision, target.text if target else ""))
            if decision.action == "defer":
                continue
            rejected = decision.action == "reject"
            reason = decision.reason if rejected else draft.objection(effective, limit) or ""
            applied = not rejected and not reason
            touched = draft.apply(effective, decision, run, step) if applied else None
            outcomes.append(
                OperationOutcome(operation.id, effective.kind, applied, touched, reason)
            )
        after = self
        # An addition deleted again in the same commit has still used up its id.
        if draft.next_number != self.next_number or draft.readings != _Draft(self).readings:
            after = replace(
                self,
                version=draft.version,
                experiences=tuple(draft.entries.values()),
                next_number=draft.next_number,
                notes=replace(self.notes, uses=draft.uses, effects=draft.effects),
            )
        notes = after.notes.remember(decided, run, step)
        if notes is not after.notes:
            after = replace(after, notes=notes)
        return CommitResult(after, tuple(outcomes))

    def diff(self, older: "Library") -> LibraryDiff:
        """Compare by wording, then by id, as `pair_entries` says; `self` is the newer one."""
        before, after = older.experiences, self.experiences
        paired = similarity.pair_entries(
            [(e.id, e.text) for e in before], [(e.id, e.text) for e in after]
        )
        kept, here = {i for i, _ in paired}, {j for _, j in paired}
        shared = [(before[i], after[j]) for i, j in paired]
        were_pinned = {id(a) for b, a in shared if b.pinned}
        return LibraryDiff(
            added=tuple(e for j, e in enumerate(after) if j not in here),
            removed=tuple(e for i, e in enumerate(before) if i not in kept),
            modified=tuple((b, a) for b, a in shared if b.text != a.text),
            unchanged=tuple((b, a) for b, a in shared if b.text == a.text),
            pinned=tuple(e for e in after if e.pinned and id(e) not in were_pinned),
            unpinned=tuple(a for b, a in shared if b.pinned and not a.pinned),
            tokens_before=older.guidance_tokens,
            tokens_after=self.guidance_tokens,
        )

    def guidance(self, cite: bool = False, shown: Collection[str] | None = None) -> str:
        """The block that goes in front of a prompt; "" when there is nothing to say.

        With `cite` it asks for the id of each experience that helps. `shown` are the ids of those
        that stand in it; None: all.
        """
        ids = None if shown is None else set(shown)
        chosen = ((e.id, e.text) for e in self.experiences if ids is None or e.id in ids)
        return guidance_text(chosen, cite)

    @property
    def guidance_tokens(self) -> int:
        """Estimated prompt tokens of the guidance a call: a token for 4 UTF-8 bytes."""
        return math.ceil(len(self.guidance().encode("utf-8", "replace")) / 4)


class _Draft:
    """A library that operations are applied to, one after another."""

    def __init__(self, library: Library) -> None:
        self.version = library.version + 1
        self.next_number = library.next_number
        self.entries = {e.id: e for e in library.experiences}
        self.uses, self.effects = dict(library.notes.uses), dict(library.notes.effects)
        self._texts = Counter(e.text for e in library.experiences)

    @property
    def readings(self) -> dict[str, tuple[str, bool]]:
        """Text and pin of each experience, of which a version is made."""
        return {name: (e.text, e.pinned) for name, e in self.entries.items()}

    def objection(self, operation: Operation, limit: int | None) -> str | None:
        """See `Library.objection`."""
        text, target = sanitize.one_line(operation.text), operation.target
        before = self.entries.get(target or "")
        match operation.kind:
            case "weights":
                return "a weight update is no part of a library"
            case "add" if not text:
                return "an addition needs a text"
            case "add" if self._texts[text]:
                twin = next(e.id for e in self.entries.values() if e.text == text)
                return f"{twin} already says exactly this"
            case "add" if target is not None and (before or not self._was_used(target)):
                return f"{target} was not deleted, so it cannot be brought back"
            case "add" if limit is not None and len(self.entries) >= limit:
                return f"the library is full ({limit}): modify or delete an experience instead"
            case "add":
                return None
        if target is None:
            return "it names no experience"
        if before is None:
            used = self._was_used(target)
            return f"{target} is gone" if used else f"{target} was never in this library"
        match operation.kind:
            case "modify" | "delete" if before.pinned:
                return f"{target} is pinned: nothing may change it; unpin it first"
            case "modify" if not text:
                return "a modification needs a text"
            case "modify" if before.text == text:
                return f"{target} already reads so"
            case "pin" if before.pinned:
                return f"{target} is pinned already"
            case "unpin" if not before.pinned:
                return f"{target} is not pinned"
        return None

    def _was_used(self, target: str) -> bool:
        """Return whether an id was given away; that of a mounted agent may have no number."""
        number = target.removeprefix("E")
        return not number.isdecimal() or int(number) < self.next_number

    def apply(self, operation: Operation, decision: Decision, run: str, step: int) -> str | None:
        """Apply an operation that fits, and return the id of the experience that it is about."""
        text = sanitize.one_line(operation.text)
        mark = provenance(operation, decision, self.version, run, step)
        name = operation.target or ""
        match operation.kind:
            case "add" if operation.target is not None:
                # Brought back under its own id: the same experience, not another one.
                self._put(Experience(name, text, self.version, self.version, (mark,)))
                self.entries = dict(
                    sorted(self.entries.items(), key=lambda item: _id_order(item[0]))
                )
            case "add":
                # An assigned id that is lower was used before, perhaps by one that is gone.
                number = max(self.next_number, int((decision.assigned or "E0").removeprefix("E")))
                name, self.next_number = f"E{number}", number + 1
                self._put(Experience(name, text, self.version, self.version, (mark,)))
            case "modify":
                before = self._forget(name)
                mark = replace(mark, uses_before=self.uses.pop(name, None))
                history = (*before.history, mark)
                self._put(replace(before, text=text, revised=self.version, history=history))
            case "delete":
                self._forget(name)
                self.uses.pop(name, None)
                del self.entries[name]
            case "pin" | "unpin":  # its history is that of its wordings
                pinned = operation.kind == "pin"
                self.entries[name] = replace(self.entries[name], pinned=pinned)
        return name

    def _put(self, experience: Experience) -> None:
        self.entries[experience.id] = experience
        self._texts[experience.text] += 1

    def _forget(self, name: str) -> Experience:
        """Let go of a wording that is gone, with what it was measured to be worth."""
        self.effects.pop(name, None)
        experience = self.entries[name]
        self._texts[experience.text] -= 1
        return experience


def provenance(
    wanted: Operation, decision: Decision, version: int, run: str, step: int
) -> Provenance:
    """How an applied operation made its experience what it is in `version`."""
    return Provenance(
        version=version,
        kind=wanted.kind,
        text=sanitize.one_line(wanted.text),
        operation_id=wanted.id,
        run=run,
        step=step,
        rationale=wanted.rationale,
        evidence=wanted.evidence,
        proposer=wanted.proposer,
        prompt_hash=wanted.prompt_hash,
        reviewer=decision.reviewer,
        reason=decision.reason,
        edited=decision.action == "edit",
        at=decision.at,
    )


def _id_order(name: str) -> tuple[int, int]:
    """Sorts numbered ids by number, behind those that a mounted agent brought along."""
    number = name.removeprefix("E")
    return (1, int(number)) if number.isdecimal() else (0, 0)


def effective_operation(operation: Operation, decision: Decision) -> Operation:
    """The operation as it is applied: what an edit names replaces what was proposed."""
    kind = decision.kind or operation.kind
    target = decision.target if decision.target is not None else operation.target
    if kind == "add" and operation.kind != "add":
        target = None
    text = decision.text if decision.text is not None else operation.text
    evidence = tuple(dict.fromkeys((*operation.evidence, *decision.evidence)))
    return replace(operation, kind=kind, target=target, text=text, evidence=evidence)


def guidance_text(experiences: Iterable[tuple[str, str]], cite: bool = False) -> str:
    """Render (id, text) pairs as the block that goes in front of a prompt."""
    lines = [f"[{name}] {sanitize.one_line(text)}" for name, text in experiences]
    if not lines:
        return ""
    block = _load_prompt("engines.core", "guidance").render(experiences="\n".join(lines))
    return f"{block}\n\n{_load_prompt('engines.core', 'cite').render()}" if cite else block


_load_prompt = cache(prompts.load_prompt)
