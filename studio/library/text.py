"""Libraries and their history as lines for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from textwrap import indent
from typing import Any

from engines.core import events as ev
from engines.core.codec import fields_of, to_dict
from engines.core.errors import ConflictError
from engines.core.library import Library, Provenance, effective_operation, provenance
from engines.core.text.sanitize import one_line
from engines.core.types import CONFLICT, GATE, OperationKind
from engines.record.libraries import LibraryFolder
from studio.library.curation import Curation
from studio.render.run_lines import operation_line
from studio.render.words import (
    count_text,
    decided_text,
    diff_changes,
    prompt_tokens_text,
    step_name,
)
from studio.secrets.sanitize import sanitize


def library_row(folder: LibraryFolder) -> dict[str, Any]:
    head = folder.head()
    return {
        "library": head.name,
        "version": head.version,
        "experiences": len(head.experiences),
        "tokens_per_call": head.guidance_tokens,
        "content_hash": head.content_hash,
        "labels": folder.labels(),
    }


def labels_text(labels: Mapping[str, int]) -> str:
    return ", ".join(f"{label} v{version}" for label, version in labels.items())


def library_lines(library: Library, labels: Sequence[str] = ()) -> list[str]:
    """A version with where each experience comes from."""
    held = count_text(len(library.experiences), "experience")
    called = f" ({', '.join(labels)})" if labels else ""
    lines = [
        f"library {library.name}@{library.version}{called}: {held}, "
        f"{prompt_tokens_text(library.guidance_tokens, len(library.experiences))} (estimated)"
    ]
    for experience in library.experiences:
        pinned = " (pinned)" if experience.pinned else ""
        lines.append(f"{experience.id}{pinned}  {sanitize(experience.text)}")
        if experience.history:
            lines.append(f"      {origin_line(experience.history[-1])}")
        if (uses := library.uses.get(experience.id)) is not None:
            lines.append(f"      attempts: {uses.text}")
        if (effect := library.effects.get(experience.id)) is not None:
            tokens = round(len(experience.text.encode("utf-8", "replace")) / 4)
            lines.append(f"      worth: {effect.worth}; {tokens} tokens a prompt")
    return lines


def where_text(run: str, step: int) -> str:
    """`run exp step 3`, `by hand`."""
    return f"run {run} {step_name(step)}" if run else "by hand"


def origin_line(mark: Provenance) -> str:
    where = where_text(mark.run, mark.step)
    edited = ", edited" if mark.edited else ""
    parts = [f"v{mark.version} {mark.kind} {mark.operation_id} ({where})"]
    if mark.run:
        parts.append(f"proposed by {sanitize(mark.proposer)}")
    parts.append(f"approved by {sanitize(mark.reviewer)}{edited} {date_text(mark.at)}".rstrip())
    if mark.evidence:
        more = f" and {len(mark.evidence) - 4} more" if len(mark.evidence) > 4 else ""
        parts.append(f"from {', '.join(mark.evidence[:4])}{more}")
    return "; ".join(parts)


def check_experience(folder: LibraryFolder, experience: str | None) -> None:
    """Refuse an id that no version of the library has."""
    ids = dict.fromkeys(e.id for library in folder.versions() for e in library.experiences)
    if experience is not None and experience not in ids:
        place = f"library {folder.name}, experience {experience}"
        move = f"There are: {', '.join(ids)}." if ids else "It has never held one."
        raise ConflictError(place, "no version of it has that experience.", move)


def history_lines(folder: LibraryFolder, experience: str | None) -> list[str]:
    """Commits of a library, oldest first; with an id, only what concerns it."""
    lines = []
    before: Library | None = None
    for library, commit in folder.history():
        if before is not None and commit is not None:
            lines += _commit_lines(before, library, commit, experience)
        elif experience is None:
            held = count_text(len(library.experiences), "experience")
            copy = f" as a copy of {of}," if (of := folder.copied_from()) else ""
            lines.append(f"v{library.version}  begun{copy} with {held}")
        before = library
    for row in promotion_rows(folder) if experience is None else ():
        old, new = ("none" if v is None else f"v{v}" for v in (row["from"], row["version"]))
        why = f": {sanitize(one_line(row['why']))}" if row["why"] else ""
        by = f"by {sanitize(row['who'])} {date_text(row['at'])}"
        lines.append(f"label {row['label']}  {old} -> {new}  {by}{why}")
    return lines


def promotion_rows(folder: LibraryFolder) -> list[dict[str, Any]]:
    """What became of labels, oldest first; a version of None is no version."""
    rows, last = [], dict[str, int | None]()
    for entry in folder.promotions():
        event = entry.event
        own = {"label": event.label, "from": last.get(event.label), "version": event.version}
        rows.append({**own, "who": event.who, "why": event.why, "at": entry.at, "reviewed": []})
        last[event.label] = event.version
    return rows


def history_data(folder: LibraryFolder, experience: str | None) -> list[dict[str, Any]]:
    """The same as data: every decided operation with its decision, then the labels."""
    rows = [
        {
            "version": library.version,
            "run": commit.run,
            "step": commit.step,
            "content_hash": library.content_hash,
            "reviewed": [
                {"operation": to_dict(operation), "decision": to_dict(decision)}
                for operation, decision in commit.reviewed
                if experience is None
                or experience in (operation.target, decision.target, decision.assigned)
            ],
        }
        for library, commit in folder.history()
        if commit is not None
    ]
    return rows if experience is not None else [*rows, *promotion_rows(folder)]


def _commit_lines(
    before: Library, after: Library, commit: ev.LibraryCommitted, experience: str | None
) -> list[str]:
    diff = after.diff(before)
    marks = {e.id: e.history[-1] for e in after.experiences if e.history}
    kinds: dict[str, tuple[OperationKind, ...]] = {"-": ("delete",), "*": ("pin", "unpin")}
    changes = []
    for names, text in diff_changes(diff):
        if text[0] in kinds:  # told by no history: that of a wording went with it, a pin has none
            known = _find_marks(kinds[text[0]], names[0], after.version, commit)
            if text[0] == "-":
                known = [replace(mark, uses_before=before.uses.get(names[0])) for mark in known]
        else:  # an experience that a lesson was taken over from has a mark of its own
            known = [marks[name] for name in names if name in marks]
        changes.append((names, text, known))
    shown = [change for change in changes if experience is None or experience in change[0]]
    if not shown:
        return []
    where = where_text(commit.run, commit.step)
    lines = [f"v{after.version}  {where}"]
    for _, text, known in shown:
        lines.append(f"  {text}")
        for mark in known:
            lines.append(f"      {origin_line(mark)}")
            if mark.rationale:
                lines.append(f"      why: {indent(sanitize(mark.rationale), 11 * ' ').lstrip()}")
            if mark.uses_before is not None:
                lines.append(f"      attempts with the wording before: {mark.uses_before.text}")
    if experience is None:
        for operation, decision in commit.reviewed:
            if decision.action == "reject":
                what = sanitize(one_line(operation.text or operation.target or ""))
                why = sanitize(one_line(decision.reason))
                said = decided_text("reject", sanitize(decision.reviewer), why)
                lines.append(f"  x {operation.id}  {operation.kind} {what}")
                more = f": {why}" if why and decision.reviewer != GATE else ""
                lines.append(f"      {said}{more}")
    return lines


def _find_marks(
    kinds: Collection[OperationKind], name: str, version: int, commit: ev.LibraryCommitted
) -> list[Provenance]:
    """Who did such a thing to an experience in a commit, and why; the last time only."""
    made = [
        provenance(wanted, decision, version, commit.run, commit.step)
        for operation, decision in commit.reviewed
        if decision.action != "reject"
        for wanted in [effective_operation(operation, decision)]
        if wanted.kind in kinds and wanted.target == name
    ]
    return made[-1:]


def date_text(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M") if at else ""


def opened_data(opened: Curation, library: Library) -> dict[str, Any]:
    """What an import or a merge put up for review; `run` is None where it opened none."""
    names = ("id", "kind", "target", "text", "rationale", "flags")
    return {
        "run": opened.run,
        "library": library.name,
        "version": library.version,
        "operations": [to_dict(fields_of(one, *names)) for one in opened.operations],
        "waiting": dict(opened.waiting),
    }


def opened_text(facts: dict[str, Any], most: int = 10) -> str:
    """The same in lines, with no more than so many of the operations."""
    operations, run = facts["operations"], facts["run"]
    counts = Counter(one["kind"] for one in operations)
    flags = (flag["name"] for one in operations for flag in one["flags"])
    counts.update(name for name in flags if name == CONFLICT)
    parts = ", ".join(f"{n} {what}" for what, n in counts.items())
    said = f"{count_text(len(operations), 'operation')} ({parts})" if operations else "nothing new"
    said += f" for library {facts['library']} v{facts['version']}"
    lines = [f"run {run}: {said}, to be decided" if run else said]
    lines += [f"  {operation_line(one)}" for one in operations[:most]]
    lines += [f"  … {len(operations) - most} more"] if len(operations) > most else []
    lines += [f"{facts['already']} in the library already"] if facts["already"] else []
    return "\n".join(lines + [f"{n} wait in run {name}" for name, n in facts["waiting"].items()])
