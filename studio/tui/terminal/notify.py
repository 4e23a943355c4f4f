"""Calling a person who looks elsewhere: title, bell, the terminal's note, a command of theirs.

Never moves the cursor or the focus, and sends no text of a model.
"""

import subprocess
import threading
from collections.abc import Mapping

from engines.core.state.run_state import RunState
from engines.core.types import Tell
from studio.secrets.sanitize import one_line
from studio.tui.page import Host

AGAIN_S = 15 * 60.0
SETTLED_S = 1.0


def waiting_count(state: RunState | None) -> int:
    """How many operations and replies a held run needs a person for; 0 while it works."""
    if state is None or state.ending or state.status not in ("reviewing", "held"):
        return 0
    return len(state.undecided_operations) + len(state.repairs)


def wrap_for_tmux(sequence: str, environ: Mapping[str, str]) -> str:
    """A sequence for the terminal itself, also from within tmux (`allow-passthrough on`)."""
    if not environ.get("TMUX"):
        return sequence
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


def _run_name(state: RunState | None) -> str:
    return state.started.run if state is not None and state.started is not None else "a run"


class Notifier:
    """Calls once when a run begins to need a person, and rarely again while no key is pressed."""

    def __init__(self, host: Host, send: Tell) -> None:
        self._host, self._send = host, send
        self._waiting = 0
        self._since: float | None = None  # when it began to wait
        self._called_at: float | None = None  # None: not yet for what waits now
        self._titled = False

    def tick(self, state: RunState | None, now: float, last_key: float) -> None:
        """Look whether somebody is needed; at every frame, with times of one clock in seconds.

        A call waits a second, since rules may decide what a lesson proposes at once.
        """
        count = waiting_count(state)
        if not count:
            self._since, self._called_at = None, None
        else:
            self._since = now if self._since is None else self._since
            if now - self._since < SETTLED_S:
                return
        if count != self._waiting:
            self._waiting = count
            self._set_title(state)
        called = self._called_at
        if count and (called is None or (now - called >= AGAIN_S and last_key <= called)):
            self._call_person(state, now)

    def restore_title(self) -> None:
        if self._titled:
            self._titled = False
            # Those that keep a stack of titles take theirs from it, the others a blank one.
            self._send_title("\x1b]2;\x07\x1b[23;2t")

    def _set_title(self, state: RunState | None) -> None:
        before = "" if self._titled else "\x1b[22;2t"
        self._titled = True
        count = f"({self._waiting}) " if self._waiting else ""
        run = f" - {_run_name(state)}" if state is not None and state.started is not None else ""
        self._send_title(f"{before}\x1b]2;{one_line(f'{count}studio{run}', 80)}\x07")

    def _send_title(self, sequence: str) -> None:
        """Inside tmux both to the pane and to the terminal that is looked at."""
        self._send(sequence)
        if (wrapped := wrap_for_tmux(sequence, self._host.environ)) != sequence:
            self._send(wrapped)

    def _call_person(self, state: RunState | None, now: float) -> None:
        settings = self._host.settings
        self._called_at = now
        run = _run_name(state)
        what = "operation" if self._waiting == 1 else "operations"
        if state is not None and state.step_trains:
            what = "weight update"  # never more than one
        text = one_line(f"{run}: {self._waiting} {what} to decide", 120)
        if settings.bell:
            self._send("\x07")
        if settings.desktop:
            # The parts of 777 are separated by semicolons, so a text may hold none.
            parts = f"\x1b]777;notify;studio;{text.replace(';', ',')}\x07"
            for sequence in (f"\x1b]9;studio: {text}\x07", parts):
                self._send(wrap_for_tmux(sequence, self._host.environ))
        if settings.command:
            self._run_command(settings.command, text)

    def _run_command(self, command: str, text: str) -> None:
        """Start the person's command, without a shell: no text can become a part of it."""
        import shlex

        try:
            words = [*shlex.split(command), text]
            process = subprocess.Popen(
                words,
                env={**self._host.environ, "STUDIO_NOTE": text},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._host.tell(f"notify.command could not be started: {error}", "failed")
            return
        threading.Thread(target=process.wait, name="notify", daemon=True).start()
