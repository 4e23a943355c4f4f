"""The formats of recorded sessions, and every session of a file or folder of one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.core.errors import DataError
from engines.data.sessions import inspect_log, otel
from engines.data.sessions.agents import read_atif, read_claude, read_codex, read_opencode
from engines.data.sessions.steps import Intake, Reader, Session


@dataclass(frozen=True, slots=True)
class Format:
    read: Reader
    patterns: tuple[str, ...]  # of its files in a folder
    what: str


FORMATS = {
    "claude": Format(read_claude, ("*.jsonl",), "sessions of Claude Code, *.jsonl"),
    "codex": Format(read_codex, ("rollout-*.jsonl",), "sessions of Codex CLI, rollout-*.jsonl"),
    "opencode": Format(
        read_opencode, ("opencode*.db", "ses*.json"), "opencode.db, or an export of opencode"
    ),
    "atif": Format(read_atif, ("*.json",), "ATIF trajectories, *.json"),
    "inspect": Format(inspect_log.read, ("*.eval", "*.json"), "logs of inspect, .eval or .json"),
    "otel": Format(otel.read, ("*.json", "*.jsonl"), "spans in OTLP JSON, *.json or *.jsonl"),
}


def read_sessions(name: str, path: Path, intake: Intake) -> Iterator[Session]:
    """Every session of a file, or of the files below a folder, in the order of their paths.

    Raises DataError: there is no such path, or nothing of that format there; also once all is read.
    """
    format, found = FORMATS[name], 0
    if not path.exists():
        raise DataError(str(path), "There is no such file or folder.", "Check the path.")
    files = (
        [path]
        if path.is_file()
        else sorted({f for p in format.patterns for f in path.rglob(p) if f.is_file()})
    )
    for file in files:
        before = found
        try:
            for session in format.read(file, intake):
                found += 1
                yield session
        except OSError as error:
            raise DataError(
                str(file), f"it cannot be read ({error.strerror}).", "Check it."
            ) from error
        if found == before:
            intake.drop_in("files without a session", file)
    if not found:
        looked = f"{len(files)} files" if len(files) != 1 else "1 file"
        cause = f"It holds none of the {name} format's sessions ({looked} looked at)."
        others = ", ".join(other for other in FORMATS if other != name)
        raise DataError(str(path), cause, f"Give {format.what}. Other formats: {others}.")
