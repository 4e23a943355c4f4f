"""The shape of the product: rooms of a bearable size, and no circle of imports of any kind."""

from __future__ import annotations

import ast
import gc
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("studio", "engines")
LONG_FUNCTIONS = {
    "engines/core/state/fold.py:fold_history": "one flat match, an arm an event",
}
EVENTS = "engines.core.events"
MOST_READERS = 6
"""Files that may ask of which class an event is: the reducer, and who words or times each event."""

MOST_TOKENS = 590_000
"""Names, numbers and operators of the product: what is added pays with what goes."""


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Every module of the product by its dotted name."""
    found = {}
    # A thread of an earlier test that runs while garbage is collected may parse, too, and CPython
    # 3.11 then loses count of its depth ("recursion depth mismatch").
    gc.disable()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    gc.enable()
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported anywhere: also in functions, and also for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules() else node.module


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected parts of more than one module (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            part = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(part) > 1:
                found.append(sorted(part))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}
    assert circles(graph) == [["b", "c"]]


def test_no_import_goes_in_a_circle() -> None:
    graph = {
        name: {other for other in imports(tree) if other in modules() and other != name}
        for name, (_, tree) in modules().items()
    }
    assert circles(graph) == []


def test_no_file_is_longer_than_900_lines() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path, _ in modules().values()
    }
    assert {file: n for file, n in lengths.items() if n > 900} == {}


def test_no_class_has_more_than_forty_methods_and_no_function_more_than_80_lines() -> None:
    found = {}
    for path, tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(
                    isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in node.body
                )
                size, most = methods, 40
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size, most = (node.end_lineno or 0) - node.lineno + 1, 80
            else:
                continue
            if size > most:
                found[f"{path.relative_to(ROOT)}:{node.name}"] = size
    assert {name: n for name, n in found.items() if name not in LONG_FUNCTIONS} == {}


def test_the_product_grows_no_more() -> None:
    words = (tokenize.NAME, tokenize.NUMBER, tokenize.OP)
    tokens = 0
    for path, _ in modules().values():
        with path.open("rb") as source:
            tokens += sum(token.type in words for token in tokenize.tokenize(source.readline))
    assert tokens <= MOST_TOKENS


def test_the_map_for_developers_names_what_is_there() -> None:
    page = (ROOT / "studio/guide/developers.md").read_text(encoding="utf-8")
    tree, table = page.split("```\n")[3], page.partition("| to change |")[2]
    package, rooms = "", list[str]()
    for line in tree.splitlines():
        if line.startswith(PACKAGES):
            package = line
        elif re.match(r"  \w", line):
            rooms.append(package + line.split()[0])
            inner = [name for name in re.findall(r"(?<![\w`/])(\w+/)", line[2:])[1:]]
            rooms += [f"{rooms[-1]}{name}" for name in inner]
    assert len(rooms) > 50
    named = re.findall(r"`((?:studio|engines)/[\w./]*)`", table)
    assert [path for path in (*rooms, *named) if not (ROOT / path).exists()] == []


def event_readers() -> list[str]:
    """Files with an arm on an event class: a pattern of a match, or an isinstance."""
    body = modules()[EVENTS][1].body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    # The unions of classes have names, too.
    targets = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
    classes |= {target.id for target in targets if isinstance(target, ast.Name)}
    readers = []
    for path, tree in modules().values():
        names: set[str] = set()
        asked: list[ast.AST] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == EVENTS:
                names |= {a.asname or a.name for a in node.names if a.name in classes}
            elif isinstance(node, ast.ImportFrom) and node.module == "engines.core":
                names |= {a.asname or a.name for a in node.names if a.name == "events"}
            elif isinstance(node, ast.MatchClass):
                asked.append(node.cls)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked += ast.walk(node.args[1])
        if any(
            isinstance(node, ast.Name) and node.id in names for a in asked for node in ast.walk(a)
        ):
            readers.append(str(path.relative_to(ROOT)))
    return readers


def test_few_files_ask_of_which_class_an_event_is() -> None:
    """Everybody else reads the state and the history that the fold makes of events."""
    readers = event_readers()
    assert "engines/core/state/fold.py" in readers
    assert len(readers) <= MOST_READERS, readers
