"""Results of held-out rollouts, found again by content, so that none is paid for twice.

They lie in `evaluations/ID/scores.jsonl`. ID is the hash of all that a result depends on besides
problem and try: model, sampling, instructions, experiences, verifier and seed.

Several processes may add at a time; each writes whole lines. A line that was cut is
skipped: what it told is worked out again from the recorded reply, or paid for once more. Beside
them `about.json` tells people what was measured.
"""

import asyncio
import errno
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engines.core.codec import digest, digest_bytes, dumps, from_dict
from engines.core.types import NO_USAGE, AttemptStatus, Problem, Usage
from engines.record import appender, lines
from engines.secrets.mask import NO_SECRETS, Mask

ID_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one held-out rollout came to. Only what was judged is kept, so it has a reward."""

    problem: str  # `problem_digest` the problem
    index: int  # of the try, from 0
    reward: float
    critique: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    status: AttemptStatus = "ok"
    usage: Usage = NO_USAGE  # the judge's included
    tool_calls: int = 0
    elapsed_s: float = 0.0
    payer: str = ""  # whose evaluation paid for it, where that keeps accounts


class ScoreBook:
    """The scores of one measured thing. Used from one event loop.

    `under_way` holds the tries that are being made, so that a problem which stands in two
    sets is asked once.
    """

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        mask: Mask = NO_SECRETS,
        *,
        passed_over: dict[Path, int] | None = None,
    ) -> None:
        """Open the book of `about`, plain JSON values; nothing is written yet.

        `mask` takes secrets out of what is written; the hash is of the values as they are. Where
        `passed_over` is given, it keeps how many bytes each book had when it was first opened: what
        was known by then is asked anew.
        """
        self.path = folder / digest(about, ID_BYTES)
        self._file = self.path / "scores.jsonl"  # kept, as it is asked about at every try
        self.under_way: dict[tuple[str, int], asyncio.Future[Any]] = {}
        self._about = about
        self._mask = mask
        self._known: dict[tuple[str, int], Score] = {}
        self._fd: int | None = None
        self._read_to = 0
        if passed_over is not None:
            size = self._file.stat().st_size if self._file.exists() else 0
            self._read_to = passed_over.setdefault(self._file, size)
        self._read_new_scores()

    def find(self, content: str, index: int) -> Score | None:
        """The score of a try; also one that another process has added meanwhile."""
        if (content, index) not in self._known:
            self._read_new_scores()
        return self._known.get((content, index))

    def by_problem(self) -> dict[str, list[Score]]:
        """All that is known, the tries of each problem in order."""
        found: dict[str, list[Score]] = {}
        for (content, _), score in sorted(self._known.items()):
            found.setdefault(content, []).append(score)
        return found

    def count_missing(self, contents: Iterable[str], k: int) -> int:
        """How many different first k tries have no score."""
        return len(self.missing_tries(contents, k))

    def missing_tries(self, contents: Iterable[str], k: int, at: int = 0) -> set[tuple[str, int]]:
        """The different k tries from `at` on that have no score and are not being made."""
        wanted = {(content, at + n) for content in contents for n in range(k)}
        return wanted - self._known.keys() - self.under_way.keys()

    def add(self, score: Score) -> Score:
        """Keep a score and return the one that stands, which is the first of its try."""
        known = self.find(score.problem, score.index)
        if known is not None:
            return known
        raw, _ = lines.encode(self._mask.line(dumps(score)))
        try:
            # One write, at the end whoever else writes: lines are never mixed.
            file = self._open_file()
            if os.write(file, raw) < len(raw):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            end = os.lseek(file, 0, os.SEEK_CUR)
        except OSError as error:
            raise appender.unwritable_error(self._file, error) from error
        if end - len(raw) == self._read_to:  # else another process has added before it
            self._read_to = end
        self._known[score.problem, score.index] = score
        return score

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open_file(self) -> int:
        if self._fd is None:
            appender.make_folder(self.path)
            self._fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            end = os.fstat(self._fd).st_size
            if end and os.pread(self._fd, 1, end - 1) != b"\n":
                os.write(self._fd, b"\n")  # closes a cut line, so that it spoils no other
            if not (about := self.path / "about.json").exists():
                appender.write_atomic(about, self._mask.line(dumps(self._about)))
        return self._fd

    def _read_new_scores(self) -> None:
        """Read what has been added since; a last line without its end waits."""
        try:
            if self._file.stat().st_size == self._read_to:
                return
            with self._file.open("rb") as file:
                file.seek(self._read_to)
                added = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise lines.unreadable_error(self._file, error) from error
        whole = added[: added.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for raw in whole.splitlines(keepends=True):
            body = lines.decode(raw)
            if body is None:
                continue
            try:
                score = from_dict(Score, orjson.loads(body))
            except ValueError:  # of a version that kept other fields
                continue
            self._known.setdefault((score.problem, score.index), score)


def problem_digest(problem: Problem) -> str:
    """The problem with all that a verifier may look at, as one hash; repeats count apart."""
    # The standard encoder, because a row may hold whole numbers of any size.
    held = json.dumps([problem.id, problem.source, dict(problem.meta)], sort_keys=True, default=str)
    return digest_bytes(held.encode(), ID_BYTES)
