"""What is private in Textual and Rich is touched in one folder, and known by name."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path

import pytest
import rich.console
import rich.style
import textual._xterm_parser
import textual.app
import textual.command
import textual.dom
import textual.driver
import textual.drivers._writer_thread
import textual.drivers.linux_driver
import textual.message_pump
import textual.screen
import textual.widget
import textual.widgets._option_list

import studio.tui

FOLDER = Path(studio.tui.__file__).parent
USED = {
    # of the app
    "_driver", "_display", "_filters", "_refresh_truecolor_filter", "_sync_available",
    "_exit_renderables", "_handle_exception", "_fatal_error", "_close_messages_no_wait",
    # of its driver
    "_writer_thread", "_queue", "_in_band_window_resize", "_get_terminal_size", "_auto_restart",
    # of widgets and screens
    "_get_breakpoint_classes", "_scroll_update", "_refresh_scrollbars", "_border_title",
    "_start_no_matches_countdown", "_list_visible", "_NO_MATCHES", "_action_command_list",
    "_index_to_line",
    # of the terminal's keys
    "_sequence_to_key_events",
    # of Rich
    "_make_ansi_codes", "_color_system",
}  # fmt: skip


def private_names(tree: ast.AST) -> set[str]:
    """Names with one underscore that a module defines, sets, or gives to `getattr`."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.Constant(value=str(name)):
                found.add(name)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


@cache
def private_in_textual() -> frozenset[str]:
    modules = (
        textual._xterm_parser, textual.widgets._option_list,
        textual.app, textual.command, textual.dom, textual.driver, textual.message_pump,
        textual.screen, textual.widget, textual.drivers.linux_driver,
        textual.drivers._writer_thread, rich.console, rich.style,
    )  # fmt: skip
    found: set[str] = set()
    for module in modules:
        found |= private_names(ast.parse(inspect.getsource(module)))
    return frozenset(found) | {"_NO_MATCHES"}


def test_private_parts_of_textual_are_touched_in_one_folder_and_known() -> None:
    used = {
        path: private_names(ast.parse(path.read_text(encoding="utf-8"))) & private_in_textual()
        for path in FOLDER.rglob("*.py")
    }
    inside = {
        name for path, names in used.items() if path.parent.name == "terminal" for name in names
    }
    assert inside >= USED
    elsewhere = {str(path.relative_to(FOLDER)): names & USED for path, names in used.items()
                 if path.parent.name != "terminal" and names & USED}  # fmt: skip
    assert elsewhere == {}


def test_every_private_part_is_still_there() -> None:
    assert private_in_textual() >= USED


@pytest.mark.parametrize(
    "typed, keys",
    [
        ("\x1b7", ["escape", "7"]),
        ("\x1b?", ["escape", "question_mark"]),
        ("\x1bA", ["escape", "A"]),
        ("\x1bP", ["escape", "P"]),
        ("\x1b[A", ["up"]),
        ("\x1bf", ["ctrl+right"]),
    ],
)
def test_a_key_typed_right_after_escape_is_itself(typed: str, keys: list[str]) -> None:
    parser = textual._xterm_parser.XTermParser()
    assert [each.key for each in [*parser.feed(typed), *parser.feed("")]] == keys
