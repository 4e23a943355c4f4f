"""Who sits at the keyboard, for the record of who decided."""

from __future__ import annotations

import os


def login_name() -> str:
    """The login name of the process's user; no environment variable is asked."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # no such database, or a user without a name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "person"
