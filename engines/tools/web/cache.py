"""What was found outside, kept in the workspace: who asks again sees the same."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from engines.core.ids import digest


class WebCache:
    """A small JSON file for each question; None keeps nothing. Processes may share a folder.

    Failures are not kept, and a damaged file counts as none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # Tries of one group ask the same at the same time: only the first one is sent.
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, kind: str, about: str, look_up: Callable[[], Awaitable[Any]]) -> Any:
        """What is kept about something, else what `look_up` gives: a JSON value.

        What that raises is passed on; OSError where it cannot be written.
        """
        if self._folder is None:
            return await look_up()
        name = digest([kind, about])
        path = self._folder / f"{name}.json"
        async with self._asking.setdefault(name, asyncio.Lock()):
            try:
                return json.loads(path.read_bytes())["found"]
            except (OSError, ValueError, KeyError, TypeError):
                found = await look_up()
            at = datetime.now(UTC).isoformat(timespec="seconds")
            kept = {"kind": kind, "about": about, "at": at, "found": found}
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_text(json.dumps(kept), "utf-8")
            temporary.replace(path)
            return found
