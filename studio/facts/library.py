"""All that is told of libraries: versions, how they came about, and the difference of two."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engines.core import errors, events
from engines.core.frozen import frozen
from engines.core.library import Library, Provenance, effective_operation, provenance
from engines.core.text.similarity import Change, word_diff
from engines.core.types import CONFLICT, Decision, Names, Operation, OperationKind
from engines.pipeline.evaluation.verdict import Comparison, compare
from engines.record.libraries import LibraryFolder
from studio.facts.evaluation import EvaluationFacts, evaluation_facts, question_rewards
from studio.facts.subject import LIFTED, Subject
from studio.secrets.sanitize import sanitize


@frozen
class FoundVersion:
    """A version, what to call it, and the held-out results that belong to it."""

    label: str
    library: Library
    measured: tuple[events.EvaluationFinished, ...] = ()
    labels: Names = ()
    copied_from: str | None = None  # what its library was begun as a copy of
    weights: str = ""  # of a step of a training run: its figures, for the library stays as it is


@frozen
class ListedLibrary(Subject):
    """The head of one library of the workspace."""

    library: str
    version: int = 0
    experiences: int = 0
    tokens_per_call: int = 0
    content_hash: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)
    trouble: str = ""  # why it cannot be read


def listed_library(folder: LibraryFolder) -> ListedLibrary:
    head = folder.head()
    return ListedLibrary(
        library=head.name,
        version=head.version,
        experiences=len(head.experiences),
        tokens_per_call=head.guidance_tokens,
        content_hash=head.content_hash,
        labels=folder.labels(),
    )


def prompt_tokens(text: str) -> int:
    """Return about how many tokens a prompt spends on an experience."""
    return round(len(text.encode("utf-8", "replace")) / 4)


@frozen
class VersionFacts(Subject):
    """One version with where each experience comes from, as `studio library show` tells it."""

    data: Mapping[str, Any] = field(metadata=LIFTED)  # as files of ours hold a library
    labels: Names
    copied_from: str | None
    tokens_per_call: int
    prompt_tokens: Mapping[str, int]  # by experience


def version_facts(version: FoundVersion) -> VersionFacts:
    # It loads YAML, which the first frame of the screen has no need of.
    from engines.record.formats.rows import library_data

    library = version.library
    return VersionFacts(
        data=library_data(library),
        labels=version.labels,
        copied_from=version.copied_from,
        tokens_per_call=library.guidance_tokens,
        prompt_tokens={e.id: prompt_tokens(e.text) for e in library.experiences},
    )


# -- the difference of two -------------------------------------------------------------------

Sign = Literal["-", "~", "+", "*", "="]


@frozen
class ExperienceChange(Subject):
    """One experience in two libraries."""

    id: str
    before: str | None  # None where a side does not hold it
    after: str | None
    was: str = ""  # its id in the older one, where it is another
    pin: str = ""  # "pinned" or "unpinned", where that changed

    @property
    def sign(self) -> Sign:
        if self.before is None or self.after is None:
            return "+" if self.before is None else "-"
        if self.before != self.after:
            return "~"
        return "*" if self.pin else "="

    @property
    def differs(self) -> bool:
        return self.sign != "=" or bool(self.was)

    @property
    def text(self) -> str:
        return (self.before if self.after is None else self.after) or ""

    @property
    def words(self) -> tuple[Change, ...]:
        """What was kept, cut and added; masked as a whole, since half a key looks like none."""
        return word_diff(sanitize(self.before or ""), sanitize(self.after or ""))


def experience_changes(older: Library, newer: Library) -> tuple[ExperienceChange, ...]:
    """Return every experience of either, numbered ids in order behind those of other names."""
    diff = newer.diff(older)
    pins = {e.id: "pinned" for e in diff.pinned} | {e.id: "unpinned" for e in diff.unpinned}
    changes = [ExperienceChange(e.id, e.text, None) for e in diff.removed]
    for experience in diff.added:
        pin = pins.get(experience.id, "")
        changes.append(ExperienceChange(experience.id, None, experience.text, pin=pin))
    for before, after in (*diff.unchanged, *diff.modified):
        was = before.id if before.id != after.id else ""
        pin = pins.get(after.id, "")
        changes.append(ExperienceChange(after.id, before.text, after.text, was, pin))
    return tuple(sorted(changes, key=lambda change: _id_sort_key(change.id)))


def differing_changes(changes: Iterable[ExperienceChange]) -> list[ExperienceChange]:
    """Return those that differ: removed, reworded, added, then what is equal but for names."""
    differing = [change for change in changes if change.differs]
    return sorted(differing, key=lambda change: "-~+=*".index(change.sign))


def _id_sort_key(name: str) -> tuple[int, int]:
    """Sort numbered ids by number; others keep their order in front of them."""
    number = name.removeprefix("E")
    return (1, int(number)) if number.isdecimal() and len(number) < 19 else (0, 0)


@frozen
class DifferenceSide(Subject):
    """One of the two versions."""

    label: str
    version: int
    experiences: int
    tokens_per_call: int
    evaluations: tuple[EvaluationFacts, ...]
    weights: str


def _side(version: FoundVersion) -> DifferenceSide:
    return DifferenceSide(
        label=version.label,
        version=version.library.version,
        experiences=len(version.library.experiences),
        tokens_per_call=version.library.guidance_tokens,
        evaluations=tuple(map(evaluation_facts, version.measured)),
        weights=version.weights,
    )


@frozen
class HeldOutPair(Subject):
    """One held-out set beside two versions."""

    data: str
    before: EvaluationFacts | None  # None: it was not measured
    after: EvaluationFacts | None
    comparison: Comparison | None = None  # None where both cannot be compared


def _held_out_pairs(older: FoundVersion, newer: FoundVersion) -> Iterator[HeldOutPair]:
    """Pair the results of both versions. Only evaluations with the same settings are compared."""
    before = {e.data: e for e in older.measured}
    after = {e.data: e for e in newer.measured}
    for name in {**before, **after}:
        first, last = before.get(name), after.get(name)
        comparison = None
        if first and last and first != last and first.fingerprint == last.fingerprint:
            comparison = compare(question_rewards(first), question_rewards(last))
        yield HeldOutPair(
            data=name,
            before=evaluation_facts(first) if first else None,
            after=evaluation_facts(last) if last else None,
            comparison=comparison,
        )


@frozen
class Difference(Subject):
    """What distinguishes version b from version a."""

    a: DifferenceSide
    b: DifferenceSide
    experiences: tuple[ExperienceChange, ...]  # of either, those that are equal, too
    held_out: tuple[HeldOutPair, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many were changed in which way; what did not happen is left out."""
        counts = {"added": 0, "reworded": 0, "removed": 0, "under another id": 0, "equal": 0}
        words = {"+": "added", "~": "reworded", "-": "removed"}
        for change in self.experiences:
            same = "under another id" if change.was else "equal"
            counts[words.get(change.sign, same)] += 1
            if change.pin:
                counts[change.pin] = counts.get(change.pin, 0) + 1
        return {word: n for word, n in counts.items() if n}

    @property
    def changes_weights(self) -> bool:
        """Of two steps of a run that trains weights: there is no experience to compare."""
        reworded = any(change.sign in "+-~" for change in self.experiences)
        return bool(self.a.weights or self.b.weights) and not reworded

    def changes(self) -> list[ExperienceChange]:
        return differing_changes(self.experiences)


def difference(older: FoundVersion, newer: FoundVersion) -> Difference:
    return Difference(
        a=_side(older),
        b=_side(newer),
        experiences=experience_changes(older.library, newer.library),
        held_out=tuple(_held_out_pairs(older, newer)),
    )


def library_difference(older: Library, newer: Library) -> Difference:
    """Return the difference of two libraries, whatever was measured of them."""
    labels = [f"{library.name}@{library.version}" for library in (older, newer)]
    return difference(FoundVersion(labels[0], older), FoundVersion(labels[1], newer))


# -- how a version came about ----------------------------------------------------------------


@frozen
class CommittedChange(Subject):
    """One experience that a commit changed, and the operations that did it."""

    change: ExperienceChange = field(metadata=LIFTED)
    marks: tuple[Provenance, ...]


@frozen
class ReviewedOperation:
    """An operation with its decision."""

    operation: Operation
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts(Subject):
    """One version and what made it; of the first, what the library began with."""

    version: int
    run: str  # "" by hand
    step: int
    content_hash: str
    begun: bool  # the first version
    copied_from: str | None
    experiences: int
    changes: tuple[CommittedChange, ...] = ()
    reviewed: tuple[ReviewedOperation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFacts(Subject):
    """A label that was given to a version, or taken away."""

    label: str
    before: int | None  # versions; None is no version
    version: int | None
    who: str
    why: str
    at: float


HistoryEntry = CommitFacts | LabelFacts


def history_facts(folder: LibraryFolder, experience: str | None) -> list[HistoryEntry]:
    """Return the commits of a library, oldest first, then its labels; with an id, what concerns it.

    Raises ConflictError: no version has that experience.
    """
    history = folder.history()
    if experience is not None:
        _check_experience(folder.name, [library for library, _ in history], experience)
    entries: list[HistoryEntry] = []
    before: Library | None = None
    for library, commit in history:
        if before is not None and commit is not None:
            entries.append(_commit_facts(before, library, commit, experience))
        elif experience is None:
            entries.append(
                CommitFacts(
                    version=library.version,
                    run="",
                    step=0,
                    content_hash=library.content_hash,
                    begun=True,
                    copied_from=folder.copied_from(),
                    experiences=len(library.experiences),
                )
            )
        before = library
    if experience is None:
        versions: dict[str, int | None] = {}
        for at, event in folder.promotions():
            entries.append(
                LabelFacts(
                    label=event.label,
                    before=versions.get(event.label),
                    version=event.version,
                    who=event.who,
                    why=event.why,
                    at=at,
                )
            )
            versions[event.label] = event.version
    return entries


def _check_experience(name: str, versions: Sequence[Library], experience: str) -> None:
    ids = dict.fromkeys(e.id for library in versions for e in library.experiences)
    if experience not in ids:
        move = f"There are: {', '.join(ids)}." if ids else "It has never held one."
        place = f"library {name}, experience {experience}"
        raise errors.ConflictError(place, "no version of it has that experience.", move)


def _commit_facts(
    before: Library, after: Library, commit: events.LibraryCommitted, experience: str | None
) -> CommitFacts:
    changes = [
        CommittedChange(change, _marks(change, before, after, commit))
        for change in differing_changes(experience_changes(before, after))
        if experience in (None, change.id, change.was)
    ]
    reviewed = [
        ReviewedOperation(operation, decision)
        for operation, decision in commit.reviewed
        if experience in (None, operation.target, decision.target, decision.assigned)
    ]
    return CommitFacts(
        version=after.version,
        run=commit.run,
        step=commit.step,
        content_hash=after.content_hash,
        begun=False,
        copied_from=None,
        experiences=len(after.experiences),
        changes=tuple(changes),
        reviewed=tuple(reviewed),
    )


def _marks(
    change: ExperienceChange, before: Library, after: Library, commit: events.LibraryCommitted
) -> tuple[Provenance, ...]:
    """Return how a change came about: of a wording its own history tells it."""
    if change.sign in "+~=":
        # An experience that a lesson was taken over from has a mark of its own.
        holders = [after.get(name) for name in dict.fromkeys((change.id, change.was))]
        return tuple(e.history[-1] for e in holders if e is not None and e.history)
    # The history of a deleted wording went with it, and a pin has none.
    kinds: tuple[OperationKind, ...] = ("delete",) if change.sign == "-" else ("pin", "unpin")
    marks = []
    for operation, decision in commit.reviewed:
        effective = effective_operation(operation, decision)
        if decision.action == "reject" or effective.target != change.id:
            continue
        if effective.kind in kinds:
            uses = before.notes.uses.get(change.id) if change.sign == "-" else None
            mark = provenance(effective, decision, after.version, commit.run, commit.step)
            marks.append(replace(mark, uses_before=uses))
    return tuple(marks[-1:])


# -- what waits for a reviewer ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationFacts(Subject):
    """Operations from elsewhere that were put up for review."""

    run: str | None  # None: nothing new was left to ask, or it was only looked
    library: str
    version: int
    operations: tuple[Operation, ...]
    waiting: Mapping[str, int]  # run: how many of those asked wait there already
    already: int = 0  # in the library already
    losses: Names = ()
    format: str = ""  # of the file they come from

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each kind, and how many conflict."""
        counts = Counter[str](operation.kind for operation in self.operations)
        for operation in self.operations:
            counts.update(flag.name for flag in operation.flags if flag.name == CONFLICT)
        return dict(counts)
