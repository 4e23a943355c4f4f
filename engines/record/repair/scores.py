"""What is wrong with a file of scores, and with what is told beside it. Each costs only money."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import orjson

from engines.record import lines
from engines.record.appender import write_atomic
from engines.record.repair.cut import free_name, move_aside
from engines.record.repair.files import read_written
from engines.record.repair.trouble import Trouble
from engines.record.scores import count_scores
from engines.record.seal import ALTERED, seal_fits

_AGAIN = "they are skipped, and what is gone with them is measured again when it is needed."


def score_troubles(path: Path) -> Iterator[Trouble]:
    """Damaged lines, a torn end, and scores that were there when the file was last closed."""
    beside = path.with_name("about.json")
    # First: the scores only grow.
    about, unreadable = read_written(beside) if os.path.lexists(beside) else (b"{}", "")
    content = path.read_bytes()
    every = content.splitlines(keepends=True)
    whole = dict.fromkeys(raw for raw in every if lines.decode(raw) is not None)
    twice = len(every) - len(set(every))
    unread = len(every) - twice - len(whole)
    try:
        held = orjson.loads(about).get("scores")
        fits = seal_fits(about) or (held is None and seal_fits(about) is None)  # an older studio's
        counted = held is None or _has_prefix(content, held["bytes"], held["sha256"])
    except (ValueError, AttributeError, TypeError, KeyError):
        held, fits, counted = None, False, True
    if unread or twice:
        told = ((unread, "cannot be read"), (twice, "stand there twice"))
        cause = f"{', '.join(f'lines that {what}: {n}' for n, what in told if n)}."
        move = f"Nothing need be done: {_AGAIN} {lines.REPAIR} takes them out."
        kept = about if fits and held else None
        yield Trouble(str(path), cause, move, partial(_write_whole, path, [*whole], kept), False)
    if not fits:
        move = f"{lines.REPAIR} moves it aside; the next evaluation writes it again."
        mend = partial(move_aside, beside)
        yield Trouble(str(beside), unreadable or ALTERED, move, mend, False, True)
    elif not counted:
        cause = "scores that it held when it was last closed are gone, or stand elsewhere in it."
        move = f"What is gone is measured again; {lines.REPAIR} takes the file as it is."
        yield Trouble(str(path), cause, move, partial(_count_anew, path, about), False, True)


def _has_prefix(content: bytes, size: int, digest: str) -> bool:
    return len(content) >= size and hashlib.sha256(content[:size]).hexdigest() == digest


def _write_whole(path: Path, whole: Iterable[bytes], about: bytes | None) -> str:
    """Write the lines that can be read, once each, and count them where `about` did."""
    kept = free_name(path)
    write_atomic(kept, path.read_bytes())
    write_atomic(path, b"".join(whole))
    if about is not None:
        count_scores(path, about)
    return f"taken out; {kept.name} is the file as it was"


def _count_anew(path: Path, about: bytes) -> str:
    count_scores(path, about)
    return "taken as it is"
