"""What a person has begun on a run's screen and not handed in: `runs/<id>/screen.json`.

Losing it loses no decision, so nothing that is wrong with the file ever stops the screen.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from engines.core.errors import RecordError
from engines.record.appender import write_atomic
from engines.record.run_dir import RunDir
from studio.secrets.output import mask_text

Texts = dict[str, str]
SAVE_EVERY_S = 2.0
MOST_BYTES = 4_000_000
"""Of the file: what is larger was not written here."""
FILE = "screen.json"
_VERSION = 1
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file ends in that holds anything else than drafts."""


class Drafts:
    """Page, place and wordings under way of one run; of none, nothing is written."""

    def __init__(self, run: RunDir | None) -> None:
        self._refused = False  # the disk did, the last time, and it was told
        self._saved_at = float("-inf")
        self.run = run
        self.restored = False  # whether the screen went back to where the person was
        self.trouble = ""  # what is wrong with the file and was not told yet
        self.writes = True  # False for one that looks on: who decides keeps the file
        self.page = self.cursor = self.filter = ""  # the cursor: the operation under review
        self.scroll = 0  # lines
        self.edits: dict[str, str] = {}  # operation id → wording under way
        self.notes: dict[str, str] = {}  # operation id → note, until a decision takes it along
        self._known: tuple[Texts, Texts] = ({}, {})  # edits and notes as the file had them last
        if run is not None:
            self._read(run.path / FILE)
        self.left_at = (self.page, self.cursor)  # as the file had them
        self._saved: object = self._contents  # as the file has it; None: whatever it has

    @property
    def _contents(self) -> tuple[object, ...]:
        place = self.page, self.cursor, self.scroll, self.filter
        return (*place, dict(self.edits), dict(self.notes))

    def take_over_file(self) -> None:
        """Keep the file from now on, with the texts that another screen wrote meanwhile."""
        self._merge()
        self._saved = None

    def save_if_due(self, now: float) -> None:
        """Save what changed, at most every two seconds of the screen's monotonic clock."""
        if not 0 <= now - self._saved_at < SAVE_EVERY_S and self._contents != self._saved:
            self._saved_at = now
            self.save()

    def save(self) -> None:
        """Save at once what changed. A disk that refuses is told in `trouble`, once."""
        if self._contents == self._saved or self.run is None or not self.writes:
            return
        self._merge()
        data = json.dumps(self._as_dict(), ensure_ascii=True, indent=1).encode()
        try:
            write_atomic(self.run.path / FILE, data)
        except RecordError as error:  # perhaps there is room again in two seconds
            if not self._refused:
                self.trouble = f"drafts are not kept: {error}"
            self._refused = True
        else:
            self._refused = False
            self._saved = self._contents
            self._known = dict(self.edits), dict(self.notes)

    def _merge(self) -> None:
        """Take over, key by key, what another screen wrote and nobody touched here."""
        if self.run is None:
            return
        try:
            found = _load_file(self.run.path / FILE)
            theirs = _parse_texts(found["edits"]), _parse_texts(found["notes"])
        except (OSError, *_DAMAGE):
            return  # there is none, or none that says anything
        ours = self.edits, self.notes
        for mine, known, other in zip(ours, self._known, theirs, strict=True):
            for key, text in known.items():
                if key in other and other[key] == mask_text(text):
                    other[key] = text  # written from here: only the secret in it is hidden
            kept = merge_texts(known, mine, other)
            mine.clear()
            mine.update(kept)
        self._known = theirs

    def _as_dict(self) -> dict[str, Any]:
        return {
            "v": _VERSION,
            "page": self.page,
            "cursor": mask_text(self.cursor),
            "scroll": self.scroll,
            "filter": mask_text(self.filter),
            "edits": {key: mask_text(text) for key, text in self.edits.items()},
            "notes": {key: mask_text(text) for key, text in self.notes.items()},
        }

    def _read(self, path: Path) -> None:
        try:
            if not path.exists():
                return
            found = _load_file(path)
            if found["v"] != _VERSION:
                raise ValueError
            self.page, self.cursor = str(found["page"]), str(found["cursor"])
            self.scroll, self.filter = int(found["scroll"]), str(found["filter"])
            self.edits, self.notes = _parse_texts(found["edits"]), _parse_texts(found["notes"])
            self._known = dict(self.edits), dict(self.notes)
        except OSError as error:
            self.trouble = f"{path}: your drafts cannot be read ({error.strerror})."
        except _DAMAGE:
            self.page, self.cursor, self.scroll, self.filter = "", "", 0, ""
            self.edits, self.notes = {}, {}
            damaged = path.with_name(f"{FILE}.damaged")
            with contextlib.suppress(OSError):
                path.replace(damaged)
            self.trouble = f"drafts could not be understood and lie in {damaged}"


def _load_file(path: Path) -> Any:
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise ValueError
    return json.loads(path.read_bytes())


def merge_texts(known: Texts, ours: Texts, theirs: Texts) -> Texts:
    """Ours where it is not what both began with, else theirs; a text that is gone is gone."""
    out = {}
    for key in (*ours, *(key for key in theirs if key not in ours)):
        text = theirs.get(key) if ours.get(key) == known.get(key) else ours.get(key)
        if text is not None:
            out[key] = text
    return out


def _parse_texts(found: Any) -> Texts:
    return {str(key): str(text) for key, text in found.items()}
