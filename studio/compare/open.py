"""Opening what is to be compared: the format of a file or folder, and which log of it is meant."""

import gc
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engines.core.errors import ConflictError, DataError, StudioError, did_you_mean
from engines.record.run_dir import Workspace
from studio.compare import foreign, own
from studio.facts.comparison import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One form of a log: by which marks it is recognised, and what reads it.

    `read` takes a path and the metric that is asked for, and returns the logs in it.
    """

    read: Callable[[Path, str | None], list[Log]]
    file: str = ""  # a pattern of a file's name
    folder: str = ""  # a pattern of a file in a folder of it
    line: str = ""  # a field of the first line of a JSONL file
    document: str = ""  # a field of a JSON file
    start: bytes = b""  # a regular expression within the first bytes of a JSON file


FORMATS = (
    Format(read=own.read_scores, folder="scores.jsonl", file="scores.jsonl"),
    Format(read=own.read_evaluation, document="rewards"),
    Format(read=own.read_printed, document="kind"),
    Format(read=foreign.read_verifiers, folder="traces.jsonl", line="task"),
    Format(read=foreign.read_skills, folder="**/grading.json"),
    Format(read=foreign.read_skills, folder="benchmark.json", file="benchmark.json"),
    Format(read=foreign.read_lm_eval, folder="**/samples_*.jsonl", line="doc_id"),
    Format(read=foreign.read_promptfoo_lines, line="testIdx"),
    Format(
        read=foreign.read_promptfoo,
        start=rb'"results"\s*:\s*\{\s*"(?:version|timestamp|prompts|results)"',
    ),
    Format(read=foreign.read_inspect, file="*.eval"),
    Format(read=foreign.read_inspect_json, document="samples"),
    Format(read=foreign.read_csv, file="*.csv"),
)
_START_BYTES = 1 << 16


def open_logs(references: Sequence[str], workspace: Workspace, metric: str | None) -> list[Log]:
    """Return the logs to compare, the baseline first.

    One file with several logs in it may stand alone; among others `FILE#NAME` takes one of them.
    """
    # Rows hold no circles, and a search among a hundred thousand of them takes as long as reading.
    gc.disable()
    try:
        opened = [_open(reference, workspace, metric) for reference in references]
    finally:
        gc.enable()
    if metric is not None and not any(log.metrics for logs in opened for log in logs):
        raise ConflictError(
            f"--metric {metric}", "what is compared has one score alone.", "Leave it out."
        )
    if len(opened) == 1 and len(opened[0]) > 1:
        return opened[0]
    for reference, logs in zip(references, opened, strict=True):
        if len(logs) > 1:
            raise ConflictError(
                reference,
                f"it holds {len(logs)} logs.",
                f"Name one of them as {reference}#NAME: {_labels(logs)}.",
            )
    if len(opened) < 2:
        raise ConflictError(
            references[0], "there is nothing to compare it with.", "Name a second one."
        )
    return [
        replace(log, label=reference) for reference, (log,) in zip(references, opened, strict=True)
    ]


def _labels(logs: Sequence[Log]) -> str:
    return ", ".join(f'"{log.label}"' for log in logs[:8])


def _open(reference: str, workspace: Workspace, metric: str | None) -> list[Log]:
    path, name = Path(reference), ""
    if not path.exists() and "#" in reference:
        before, _, name = reference.partition("#")
        path = Path(before)
    # A run goes before a folder of its name, which `./NAME` is.
    is_run = "/" not in reference and (workspace.runs_folder / reference.split("@")[0]).is_dir()
    if is_run or not path.exists():
        try:
            return [own.read_reference(reference, workspace)]
        except StudioError as error:
            if not is_run and (path.suffix or len(path.parts) > 1):
                raise DataError(
                    reference, "there is no such file or folder.", foreign.MOVE
                ) from error
            raise
    logs = _find_format(path).read(path, metric)
    if not any(log.rows for log in logs):
        raise DataError(str(path), "no scored try is in it.", foreign.MOVE)
    matching = [log for log in logs if name in ("", log.label)]
    if not matching:
        raise ConflictError(
            reference,
            f"no log in it is called {name!r}.",
            f"{did_you_mean(name, [log.label for log in logs])}It holds: {_labels(logs)}.",
        )
    return matching


def _find_format(path: Path) -> Format:
    """Return the first format that recognises a file or folder. Raises DataError: none does."""
    if path.is_dir():
        by_folder = _first(lambda f: bool(f.folder) and any(True for _ in path.glob(f.folder)))
        if by_folder is None:
            raise DataError(str(path), "no known log is in this folder.", foreign.MOVE)
        return by_folder
    if not path.is_file():
        raise DataError(
            str(path), "it is a pipe or a device.", "Give a file that can be read twice."
        )
    if by_name := _first(lambda f: bool(f.file) and path.match(f.file)):
        return by_name
    with path.open("rb") as file:
        if path.suffix == ".jsonl":
            place = f"{path}:1"
            fields = foreign.Fields(foreign.load_json(file.readline(), place), place).row
            by_content = _first(lambda f: f.line in fields)
        else:
            start = file.read(_START_BYTES)
            by_content = _first(lambda f: bool(f.start and re.search(f.start, start)))
            # Only where no start is known: as one value a long log takes hundreds of megabytes.
            fields = {} if by_content else foreign.read_json(path).row
            by_content = by_content or _first(lambda f: f.document in fields)
    if by_content is None:
        raise DataError(
            str(path), f"it has no known form: {', '.join(list(fields)[:6])}.", foreign.MOVE
        )
    return by_content


def _first(recognises: Callable[[Format], bool]) -> Format | None:
    return next(filter(recognises, FORMATS), None)
