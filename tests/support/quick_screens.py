"""What apps of one process have in common, worked out once: a quarter of what opening one takes.

Textual parses the sheets of all widgets for each app, and matches each widget with all rules.
"""

from __future__ import annotations

from typing import Any

from textual.app import App
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode

_FLAGS = ("_has_hover_style", "_has_focus_within", "_has_order_style", "_has_odd_or_even")
_OF_APPS = frozenset({"dark", "light", "ansi", "nocolor", "inline"})
"""States that all widgets of an app are in, or none."""
_parse_rules, _apply = Stylesheet._parse_rules, Stylesheet.apply
_replace_rules = Stylesheet.replace_rules
_parsed: dict[object, Any] = {}
_applied: dict[object, tuple[frozenset[str], dict[object, Any]]] = {}


def quicken() -> None:
    """Work that out once, in every app from now on."""
    Stylesheet._parse_rules = _parse_rules_once  # type: ignore[method-assign]
    Stylesheet.apply = _apply_known  # type: ignore[method-assign]


def _parse_rules_once(sheet: Stylesheet, css: str, *arguments: Any, **named: Any) -> Any:
    """Rules are only read once they are parsed, so that apps of one theme can share them."""
    key = (css, arguments, tuple(named.items()), tuple(sheet._variables.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, css, *arguments, **named)
    return _parsed[key]


def _apply_known(sheet: Any, node: Any, *, animate: bool = False, cache: object = None) -> None:
    """Style a widget as one in the same place of another app was, by the same rules."""
    states, known = _known_of(sheet)
    key = tuple(_traits(one, states) for one in node.css_path_nodes)
    if key in known:
        flags, rules = known[key]
        for name, value in zip(_FLAGS, flags, strict=True):
            setattr(node, name, value)
        if rules is not None:
            sheet.replace_rules(node, rules, animate=animate)
        sheet._process_component_classes(node)
        return
    rules, outer = None, sheet.replace_rules

    def keep(one: Any, found: Any, animate: bool = False) -> None:
        nonlocal rules
        rules = found if one is node else rules
        _replace_rules(one, found, animate=animate)

    sheet.replace_rules = keep
    try:
        _apply(sheet, node, animate=animate)
    finally:
        sheet.replace_rules = outer
    known[key] = (tuple(getattr(node, name) for name in _FLAGS), rules)


def _known_of(sheet: Any) -> tuple[frozenset[str], dict[object, Any]]:
    rules = sheet.rules
    if getattr(sheet, "known_for", None) is not rules:
        states: frozenset[str] = frozenset().union(*(rule.pseudo_classes for rule in rules))
        same = tuple(map(id, rules))  # parsed ones are kept, so that no id is given twice
        sheet.known_for, sheet.known = rules, _applied.setdefault(same, (states, {}))
    return sheet.known  # type: ignore[no-any-return]


def _traits(node: DOMNode, states: frozenset[str]) -> tuple[object, ...]:
    checks = node._PSEUDO_CLASSES
    asked = states if isinstance(node, App) else states - _OF_APPS
    shown = tuple(name for name in asked if name in checks and checks[name](node))
    return type(node), node._id, node.classes, shown
