"""math-verify's own test-suite, run once: each comparison it makes, and how it came out.

A program (`python their_suite.py FOLDER`, the unpacked source distribution), because the
suite calls itself `tests` and would take this package's name. Prints one JSON list of
{test, gold, pred, rules, expected, verdict, verdict_at_defaults}. A row that extracts
letters without comparing them is compared here with the letter it expects.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import math_verify

PLAIN = ("test_precision",)  # compares two texts without being parametrised

parse, verify = math_verify.parse, math_verify.verify
texts: list[str] = []
verdicts: list[tuple[bool, dict[str, Any]]] = []


def noting_parse(text: str, *args: Any, **options: Any) -> Any:
    texts.append(text)
    return parse(text, *args, **options)


def noting_verify(*args: Any, **options: Any) -> bool:
    verdict = bool(verify(*args, **options))
    verdicts.append((verdict, options))
    return verdict


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    # Its modules take these two by name when they are imported.
    math_verify.parse, math_verify.verify = noting_parse, noting_verify
    package = types.ModuleType("tests")
    package.__path__ = [str(folder / "tests")]
    sys.modules["tests"] = package
    for path in sorted((folder / "tests").glob("test_*.py")):
        module = importlib.import_module(f"tests.{path.stem}")
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if test.__module__ == module.__name__:
                for row in rows(name, test):
                    yield {"test": f"{path.stem}.{name}", **case(test, row)}


def rows(name: str, test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names = [part.strip() for part in mark.args[0].split(",")]
            yield from (dict(zip(names, values, strict=True)) for values in mark.args[1])
    if name in PLAIN:
        yield {"expected": 1}


def case(test: Callable[..., None], row: Mapping[str, Any]) -> dict[str, Any]:
    if "config" in row:
        return letter_case(row)
    texts.clear()
    verdicts.clear()
    with contextlib.suppress(AssertionError):  # one row of 0.9.0 fails; what counts is its verdict
        test(**{key: row[key] for key in inspect.signature(test).parameters})
    (gold, pred), ((verdict, rules),) = texts, verdicts
    return {
        "gold": gold,
        "pred": pred,
        "rules": rules,
        "expected": bool(row.get("expected", row.get("result"))),
        "verdict": verdict,
        "verdict_at_defaults": bool(verify(parse(gold), parse(pred))),
    }


def letter_case(row: Mapping[str, Any]) -> dict[str, Any]:
    config = row["config"]
    gold = row["expected"][-1] if row["expected"] else config.strings[0]
    verdict = bool(verify(parse(gold, [config]), parse(row["pred"], [config])))
    return {
        "gold": gold,
        "pred": row["pred"],
        "rules": {},
        "expected": bool(row["expected"]),
        "verdict": verdict,
        "verdict_at_defaults": verdict,  # without the letters there is nothing to compare
    }


if __name__ == "__main__":
    print(json.dumps(list(cases(Path(sys.argv[1])))))
