"""What happened in a run before a screen was opened, from its journal.

Reads; changes nothing. Blocks while it does, so it belongs into a thread.
"""

from __future__ import annotations

from collections import deque

from engines.core.errors import StudioError
from engines.core.run_state import RunState
from engines.core.state import fold
from engines.record.run_dir import RunDir
from studio.tui.live_words import happened


def recalled(run: RunDir, most: int = 200) -> list[tuple[float, str]]:
    """The last things that happened: seconds since the epoch, and what, oldest first."""
    from studio.narrate import Lines

    out: deque[tuple[float, str]] = deque(maxlen=most)
    state = RunState()
    now = 0.0

    def say(text: str) -> None:
        out.append((now, text))

    lines = Lines(state, say)
    try:
        for entry in run.entries():
            now = entry.at
            fold(state, entry.event)
            told = happened(entry.event)
            if told is None:
                lines(entry.event)
            else:
                for text in told:
                    say(text)
    except StudioError as error:  # a damaged journal: 5 says so, with the move
        say(str(error))
    return list(out)
