"""The replies that a run's journal names, against its record files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from engines.core import events as ev
from engines.core.errors import RecordError
from engines.core.types import RecordRef
from engines.record import lines
from engines.record.lines import StoredLine
from engines.record.repair.cut import cut_move, mend_by_cut
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir


def _record_refs(event: ev.DurableEvent) -> tuple[RecordRef, ...]:
    match event:
        case ev.RolloutFinished():
            return event.refs
        case ev.RolloutJudged():
            return event.verdict.refs
        case ev.GroupReflected():
            return event.reflection.refs
        case ev.LessonProposed():
            return event.lesson.refs
    return ()


def note_shown(shown: dict[str, list[RecordRef]], steps: list[tuple[int, ev.DurableEvent]]) -> None:
    for _, event in steps:
        for ref in _record_refs(event):
            shown.setdefault(ref.file, []).append(ref)
    steps.clear()


def shown_troubles(run: RunDir, shown: Mapping[str, list[RecordRef]]) -> Iterator[Trouble]:
    """Replies that are named and gone, and that a run can be taken up without."""
    for name, refs in sorted(shown.items()):
        path = run.records / name
        checksums, whole = _checksums(path)
        gone = sum(checksums.get(ref.offset) != ref.digest for ref in refs)
        if gone and whole:  # damage is told of where record files are looked at
            there = "some of it is" if path.exists() else "it is"
            yield Trouble(
                str(path),
                f"{there} gone: {gone} of {len(refs)} replies that the journal names.",
                "The run needs none of them to go on. Restore the file from a copy if they are "
                "to be shown again; nothing else brings them back.",
                damage=False,
            )


def reference_troubles(
    run: RunDir, steps: list[tuple[int, ev.DurableEvent]], found: tuple[StoredLine, ...]
) -> Iterator[Trouble]:
    """The first reply that the step under way needs and that is not there, or not for long.

    What stands behind damage goes with the cut of its file: its loss is told of before.
    """
    read_checksums = cache(_checksums)
    for at, event in steps:
        for ref in _record_refs(event):
            path = run.records / ref.file
            if read_checksums(path)[0].get(ref.offset) == ref.digest:
                continue
            what = f"at byte {ref.offset} that is not there, or behind damage."
            yield Trouble(
                f"{run.journal}:{found[at].number}",
                f"it names a reply in {ref.file}"
                + (f" {what}" if path.exists() else ", which is not there."),
                cut_move(run.journal, found[at].offset),
                mend_by_cut(run.path, run.journal, found[at].offset),
            )
            return


def _checksums(path: Path) -> tuple[dict[int, str], bool]:
    """The checksum of each record by its offset up to any damage, and whether there is none."""
    found: dict[int, str] = {}

    def note_checksum(line: StoredLine) -> None:
        found[line.offset] = line.digest

    try:
        lines.read(path, chained=False, visit=note_checksum)
    except RecordError:
        return found, False
    return found, True
