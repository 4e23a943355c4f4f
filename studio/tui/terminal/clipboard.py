"""Copying: to the terminal's clipboard by OSC 52, or into a private file where that cannot do.

Whether a terminal took it cannot be known; the file always can be read.
"""

import base64
from collections.abc import Mapping

from engines.core.errors import RecordError
from studio.secrets.output import mask_text
from studio.tui.page import Host
from studio.tui.terminal.notify import wrap_for_tmux

MOST_BYTES = 74_000
"""In base64: the shortest limit among terminals in use, and the bound that tmux had."""
FILE = "copied.txt"


def has_clipboard(environ: Mapping[str, str]) -> bool:
    term = environ.get("TERM", "")
    return bool(term) and term not in ("dumb", "linux", "unknown") and not term.startswith("vt")


def copy_text(host: Host, text: str) -> str:
    """Copy a text; returns what to tell the person."""
    text = mask_text(text)
    if not text.strip():
        return "nothing to copy here"
    lines = text.count("\n") + 1
    size = f"{len(text):,} characters" if lines == 1 else f"{lines:,} lines"
    data = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    if has_clipboard(host.environ) and len(data) <= MOST_BYTES:
        host.copy_to_clipboard(text.encode("utf-8", "replace").decode())
        if host.environ.get("TMUX"):
            # tmux hears applications only with `set-clipboard on`; this goes around it.
            host.send_to_terminal(wrap_for_tmux(f"\x1b]52;c;{data}\x07", host.environ))
        return f"copied {size} (by OSC 52; shift-drag selects where the terminal refuses)"
    from engines.record.appender import make_folder, write_atomic

    path = host.workspace.path / FILE
    try:
        make_folder(path.parent)
        write_atomic(path, text.encode("utf-8", "replace"))
    except RecordError as error:
        return str(error)
    return f"copied {size} into {path}"
