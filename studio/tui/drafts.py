"""What a person has begun on a run's screen and not handed in: `runs/<id>/screen.json`.

Losing it loses no decision, so nothing that is wrong with the file ever stops the screen.
"""

import contextlib
import json
from typing import Any

from engines.core.errors import RecordError
from engines.record.appender import write_atomic
from engines.record.run_dir import RunDir
from studio.secrets.output import mask_text

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
        self._read()
        self.left_at = (self.page, self.cursor)  # as the file had them
        self._saved: object = self._contents  # as the file has it

    @property
    def _contents(self) -> dict[str, Any]:
        return {
            "v": _VERSION,
            "page": self.page,
            "cursor": mask_text(self.cursor),
            "scroll": self.scroll,
            "filter": mask_text(self.filter),
            "edits": {key: mask_text(text) for key, text in self.edits.items()},
            "notes": {key: mask_text(text) for key, text in self.notes.items()},
        }

    def take_over_file(self) -> None:
        """Keep the file from now on, with the texts that another screen wrote meanwhile."""
        place = self.page, self.cursor, self.scroll, self.filter
        self._read()
        self.page, self.cursor, self.scroll, self.filter = place

    def save_if_due(self, now: float) -> None:
        """Save what changed, at most every two seconds of the screen's monotonic clock."""
        if not 0 <= now - self._saved_at < SAVE_EVERY_S and self._contents != self._saved:
            self._saved_at = now
            self.save()

    def save(self) -> None:
        """Save at once what changed. A disk that refuses is told in `trouble`, once."""
        contents = self._contents
        if contents == self._saved or self.run is None or not self.writes:
            return
        try:
            write_atomic(self.run.path / FILE, json.dumps(contents, indent=1).encode())
        except RecordError as error:  # perhaps there is room again in two seconds
            if not self._refused:
                self.trouble = f"drafts are not kept: {error}"
            self._refused = True
        else:
            self._refused = False
            self._saved = contents

    def _read(self) -> None:
        path = self.run.path / FILE if self.run is not None else None
        if path is None or not path.exists():
            return
        try:
            if not path.is_file() or path.stat().st_size > MOST_BYTES:
                raise ValueError
            file = json.loads(path.read_bytes())
            if file["v"] != _VERSION:
                raise ValueError
            edits, notes = _parse_texts(file["edits"]), _parse_texts(file["notes"])
            page, cursor, scroll = str(file["page"]), str(file["cursor"]), int(file["scroll"])
            words = str(file["filter"])
        except OSError as error:
            self.trouble = f"{path}: your drafts cannot be read ({error.strerror})."
        except _DAMAGE:
            damaged = path.with_name(f"{FILE}.damaged")
            with contextlib.suppress(OSError):
                path.replace(damaged)
            self.trouble = f"drafts could not be understood and lie in {damaged}"
        else:
            self.page, self.cursor, self.scroll, self.filter = page, cursor, scroll, words
            self.edits, self.notes = edits, notes


def _parse_texts(texts: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in texts.items()}
