"""Libraries as lines: what `studio library` and `studio diff` print."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from textwrap import indent

from engines.core.library import Library, Provenance
from engines.core.text.sanitize import one_line
from engines.core.text.similarity import format_changes
from engines.core.types import GATE
from studio.facts.library import (
    CommitFacts,
    CurationFacts,
    Difference,
    ExperienceChange,
    HeldOutPair,
    HistoryEntry,
    LabelFacts,
    ListedLibrary,
    prompt_tokens,
)
from studio.render import evaluation_lines, words
from studio.secrets.sanitize import sanitize

COLOURS = {"+": "green", "-": "red", "~": "yellow"}


def list_lines(listed: Iterable[ListedLibrary]) -> list[str]:
    lines = []
    for facts in listed:
        held = words.count_text(facts.experiences, "experience")
        tokens = words.prompt_tokens_text(f"{facts.tokens_per_call:>5}", facts.experiences)
        labels = labels_text(facts.labels)
        line = f"{facts.library:30} v{facts.version:<4} {held:>15} {tokens}  {labels}"
        lines.append(line.rstrip())
    return lines


def labels_text(labels: Mapping[str, int]) -> str:
    return ", ".join(f"{label} v{version}" for label, version in labels.items())


def library_lines(
    library: Library, labels: Sequence[str] = (), copied_from: str | None = None
) -> list[str]:
    """A version with where each experience comes from."""
    held = words.count_text(len(library.experiences), "experience")
    named = f" ({', '.join(labels)})" if labels else ""
    tokens = words.prompt_tokens_text(library.guidance_tokens, len(library.experiences))
    lines = [f"library {library.name}@{library.version}{named}: {held}, {tokens} (estimated)"]
    if copied_from:
        lines.append(f"begun as a copy of {sanitize(copied_from)}")
    for experience in library.experiences:
        pinned = " (pinned)" if experience.pinned else ""
        lines.append(f"{experience.id}{pinned}  {sanitize(experience.text)}")
        if experience.history:
            lines.append(f"      {origin_line(experience.history[-1])}")
        if (uses := library.notes.uses.get(experience.id)) is not None:
            lines.append(f"      attempts: {uses.text}")
        if (effect := library.notes.effects.get(experience.id)) is not None:
            tokens_each = prompt_tokens(experience.text)
            lines.append(f"      worth: {effect.worth}; {tokens_each} tokens a prompt")
    return lines


def where_text(run: str, step: int) -> str:
    """`run exp step 3`, `by hand`."""
    return f"run {run} {words.step_name(step)}" if run else "by hand"


def origin_line(mark: Provenance) -> str:
    parts = [f"v{mark.version} {mark.kind} {mark.operation_id} ({where_text(mark.run, mark.step)})"]
    if mark.run:
        parts.append(f"proposed by {sanitize(mark.proposer)}")
    edited = ", edited" if mark.edited else ""
    parts.append(f"approved by {sanitize(mark.reviewer)}{edited} {date_text(mark.at)}".rstrip())
    if mark.evidence:
        more = f" and {len(mark.evidence) - 4} more" if len(mark.evidence) > 4 else ""
        parts.append(f"from {', '.join(mark.evidence[:4])}{more}")
    return "; ".join(parts)


def date_text(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M") if at else ""


# -- history ---------------------------------------------------------------------------------


def history_lines(entries: Iterable[HistoryEntry], *, rejections: bool = True) -> list[str]:
    """Commits and labels; `rejections` are told with them."""
    lines = []
    for entry in entries:
        if isinstance(entry, LabelFacts):
            lines.append(_label_line(entry))
        elif entry.begun:
            held = words.count_text(entry.experiences, "experience")
            copy = f" as a copy of {entry.copied_from}," if entry.copied_from else ""
            lines.append(f"v{entry.version}  begun{copy} with {held}")
        elif entry.changes:
            lines += _commit_lines(entry, rejections=rejections)
    return lines


def _label_line(facts: LabelFacts) -> str:
    before, after = ("none" if v is None else f"v{v}" for v in (facts.before, facts.version))
    why = f": {sanitize(one_line(facts.why))}" if facts.why else ""
    by = f"by {sanitize(facts.who)} {date_text(facts.at)}"
    return f"label {facts.label}  {before} -> {after}  {by}{why}"


def _commit_lines(facts: CommitFacts, *, rejections: bool) -> list[str]:
    lines = [f"v{facts.version}  {where_text(facts.run, facts.step)}"]
    for committed in facts.changes:
        lines.append(f"  {experience_line(committed.change)}")
        for mark in committed.marks:
            lines.append(f"      {origin_line(mark)}")
            if mark.rationale:
                lines.append(f"      why: {indent(sanitize(mark.rationale), 11 * ' ').lstrip()}")
            if mark.uses_before is not None:
                lines.append(f"      attempts with the wording before: {mark.uses_before.text}")
    for reviewed in facts.reviewed if rejections else ():
        operation, decision = reviewed.operation, reviewed.decision
        if decision.action == "reject":
            wish = sanitize(one_line(operation.text or operation.target or ""))
            why = sanitize(one_line(decision.reason))
            fate = words.decided_text("reject", sanitize(decision.reviewer), why)
            more = f": {why}" if why and decision.reviewer != GATE else ""
            lines.append(f"  x {operation.id}  {operation.kind} {wish}")
            lines.append(f"      {fate}{more}")
    return lines


# -- the difference of two -------------------------------------------------------------------


def experience_line(change: ExperienceChange) -> str:
    """`~ E2  Carry the [-one-]{+ten+}`: a change behind its sign."""
    name = change.id + (f" (was {change.was})" if change.was else "")
    match change.sign:
        case "*" if change.pin == "pinned":
            return f"* {name}  pinned: nothing may change it"
        case "*":
            return f"* {name}  unpinned"
        case "~":
            text = sanitize(format_changes(change.words))
        case _:
            text = sanitize(change.text)
    pin = f", {change.pin}" if change.pin else ""
    return f"{change.sign} {name}{pin}  {text}"


def counts_text(facts: Difference) -> str:
    """`6 added, 3 reworded, 2 removed, 25 equal`."""
    return ", ".join(f"{n} {word}" for word, n in facts.counts.items()) or "both are empty"


def tokens_text(facts: Difference) -> str:
    held = max(facts.a.experiences, facts.b.experiences)
    tokens = f"{facts.a.tokens_per_call} -> {facts.b.tokens_per_call}"
    return f"{words.prompt_tokens_text(tokens, held)} (estimated)"


def verdict_text(pair: HeldOutPair) -> str:
    """`+0.660 [+0.56, +0.76] helps`; "" where both cannot be compared."""
    change = pair.comparison
    return f"{words.difference_text(change)} {change.verdict}" if change is not None else ""


def difference_lines(facts: Difference) -> list[str]:
    sides = f"{sanitize(facts.a.label)} -> {sanitize(facts.b.label)}"
    if facts.changes_weights:
        verdicts = [
            f"{sanitize(pair.data)}: {verdict_text(pair)}"
            for pair in facts.held_out
            if pair.comparison
        ]
        return [sides, *weights_lines(facts), *result_lines(facts), *verdicts]
    changes = [experience_line(change) for change in facts.changes()]
    counts = f"{counts_text(facts)}; {tokens_text(facts)}"
    nothing = ["the same library: no experience differs"]
    return [f"{sides}  {counts}", *result_lines(facts), *(changes or nothing)]


def result_lines(facts: Difference) -> list[str]:
    """The held-out results of both sides."""
    lines = []
    for which, side in (("before", facts.a), ("after", facts.b)):
        for evaluation in side.evaluations:
            rate = f"mean reward {evaluation_lines.evaluation_text(evaluation)}"
            lines.append(sanitize(f"{which}: {evaluation.data}: {rate}"))
    return lines


def weights_lines(facts: Difference) -> list[str]:
    """For two steps of a run that trains weights: a note, and the figures of both."""
    if not facts.changes_weights:
        return []
    lines = ["this run changes weights, not its library: there is no experience to compare"]
    for which, side in (("before", facts.a), ("after", facts.b)):
        if side.weights:
            lines.append(f"{which}: {sanitize(side.weights)}")
    return lines


# -- what waits for a reviewer ---------------------------------------------------------------


def curation_lines(facts: CurationFacts, most: int = 10) -> list[str]:
    """With no more than so many of the operations."""
    operations = facts.operations
    text = "nothing new"
    if operations:
        kinds = ", ".join(f"{n} {kind}" for kind, n in facts.counts.items())
        text = f"{words.count_text(len(operations), 'operation')} ({kinds})"
    text += f" for library {facts.library} v{facts.version}"
    lines = [f"run {facts.run}: {text}, to be decided" if facts.run else text]
    lines += [f"  {words.operation_line(operation)}" for operation in operations[:most]]
    if len(operations) > most:
        lines.append(f"  … {len(operations) - most} more")
    if facts.already:
        lines.append(f"{facts.already} in the library already")
    return lines + [f"{n} wait in run {run}" for run, n in facts.waiting.items()]
