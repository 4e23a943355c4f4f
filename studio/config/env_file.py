"""A file `.env` of NAME=VALUE lines, read for what the environment does not set."""

import re
from pathlib import Path

from engines.core.errors import ConfigError


def read_env_file(path: Path, *, foreign: bool = False) -> dict[str, str]:
    """What it sets; empty where there is none. `export`, quotes and comments as in a shell.

    Variables inside a value are not expanded. Lines of a `foreign` file that are nothing of all
    this are passed over.

    Raises ConfigError: it cannot be read, or a line of it cannot. Neither quotes the file: it holds
    keys.
    """
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = type(error).__name__
        move = "Save it as UTF-8 text."
        raise ConfigError(str(path), f"It cannot be read ({reason}).", move) from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        assigned = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", line)
        quoted = (
            re.match(r"""(['"])(.*?)(?<!\\)\1\s*(?:#.*)?$""", assigned[2]) if assigned else None
        )
        if assigned and quoted:
            found[assigned[1]] = quoted[2]
        elif assigned and (foreign or assigned[2][:1] not in ("'", '"')):
            # As in a shell, a `#` inside a word is part of it: URL#part stays whole.
            found[assigned[1]] = re.sub(r"(^|\s+)#.*$", "", assigned[2]).strip()
        elif not foreign and line.strip() and not line.lstrip().startswith("#"):
            cause = "a quote does not end on its line." if assigned else "it is not NAME=VALUE."
            raise ConfigError(f"{path}:{number}", cause, "Correct it, or write # in front of it.")
    return found
