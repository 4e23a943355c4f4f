"""Writes the tables of keys into the manual's page about the screen.

python -m tests.studio.guide.key_tables
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from studio.tui.keymap import SCOPES, Key, format_key, keys_of_scope

PAGE = Path(str(files("studio.guide"))) / "screen.md"
_BETWEEN = re.compile(r"(<!-- keys: .*? -->\n).*?(<!-- end of keys -->)", re.DOTALL)


def key_tables() -> str:
    """Every key of the screen, a table a scope."""
    parts = []
    for scope, title in SCOPES.items():
        rows = [f"| {_pressed(key)} | {key.tooltip} |" for key in keys_of_scope(scope)]
        heading = title[0].upper() + title[1:]
        parts.append("\n".join([f"\n### {heading}\n", "| key | |", "|---|---|", *rows, ""]))
    return "".join(parts)


def _pressed(key: Key) -> str:
    prefix = "s " if key.scope == "loop" else ""
    return ", ".join(f"`{prefix}{format_key(one)}`" for one in key.keys.split(","))


def with_key_tables(page: str) -> str:
    return _BETWEEN.sub(lambda found: f"{found[1]}{key_tables()}\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_key_tables(PAGE.read_text("utf-8")), "utf-8")
