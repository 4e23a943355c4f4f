"""What apps of one process have in common, worked out once: Textual parses all sheets for each."""

from __future__ import annotations

from typing import Any

from textual.css.stylesheet import Stylesheet

_parse_rules = Stylesheet._parse_rules
_parsed: dict[object, Any] = {}


def quicken() -> None:
    """Parse each sheet once, in every app from now on."""
    Stylesheet._parse_rules = _parse_rules_once  # type: ignore[method-assign]


def _parse_rules_once(sheet: Stylesheet, css: str, *arguments: Any, **named: Any) -> Any:
    """Rules are only read once they are parsed, so that apps of one theme can share them."""
    key = (css, arguments, tuple(named.items()), tuple(sheet._variables.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, css, *arguments, **named)
    return _parsed[key]
