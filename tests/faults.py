"""Faults put in on purpose, and which tests catch them; run by hand.

    python -m tests.faults                 every fault of `tests.fault_table`
    python -m tests.faults undo "one step" those whose name holds one of these words
    python -m tests.faults --list          their names and files, and nothing is run
    python -m tests.faults --json          the rows as JSON, for comparing two commits

Answers one question after the code was moved or rewritten: do the tests still catch what they
caught before? Works on a copy of the tracked files as they are in the working tree, so that
nothing of it is changed. The tests that the faults name run once without any fault first: one
that fails by itself catches nothing. Exits 1 unless every fault is caught.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tests.fault_table import FAULTS, Fault

ROOT = Path(__file__).parents[1]
TEST_LIMIT_S = 60
"""For one test: a fault may make it wait for ever, which is a way of being caught."""
RUN_LIMIT_S = 900
"""For the one call of pytest without any fault."""
FAULT_LIMIT_S = 200
"""For a call with a fault: a test's own limit ends with its failure, and what follows may hang."""

Outcome = Literal["caught", "NOT CAUGHT", "no such text", "no such tests", "no import"]


@dataclass(frozen=True, slots=True)
class TestRun:
    """What one call of pytest came to; `code` is pytest's own, -1 where it was ended."""

    code: int
    failed: tuple[str, ...]  # ids of the tests
    output: str


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one fault. `by` are the tests that failed, or says what is wrong."""

    name: str
    file: str
    outcome: Outcome
    by: tuple[str, ...]
    seconds: float


def copy_tracked_files(target: Path) -> None:
    """Copy what git tracks, as it is in the working tree; what was deleted there is left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(
    tree: Path, tests: Iterable[str], *options: str, limit_s: float = RUN_LIMIT_S
) -> TestRun:
    """Run tests in a tree, whose code is what they import."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:xdist"]
    command += [f"--timeout={TEST_LIMIT_S}", *options, *tests]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        written, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return TestRun(-1, ("a test that never ended",), "")
    finally:
        with suppress(ProcessLookupError):  # with the children that a fault may leave at work
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    output = written.decode(errors="replace")
    told = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.partition(" ")[2].partition(" - ")[0] for line in told]
    if "+ Timeout +" in output:  # pytest ends on the spot then, without its list of failures
        failed.append("a test that waited for ever")
    return TestRun(process.returncode, tuple(failed), output)


def needed_tests(faults: Sequence[Fault]) -> list[str]:
    """Every test that the faults name, once; single ones of a file that is named whole go."""
    named = dict.fromkeys(test for fault in faults for test in fault.tests)
    return [test for test in named if "::" not in test or test.partition("::")[0] not in named]


def find_missing_tests(tree: Path, tests: Iterable[str]) -> list[str]:
    """Those that are not there under that name, after a move perhaps: pytest would run nothing."""
    missing = []
    for test in tests:
        file, _, name = test.partition("::")
        path = tree / file
        code = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not code or (name and f"def {name}(" not in code):
            missing.append(test)
    return missing


def write_code(path: Path, text: str) -> None:
    """Write a module and remove what Python compiled of the one before.

    Python compares seconds and sizes, and two faults can be as long within one second.
    """
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def try_fault(tree: Path, fault: Fault, failing: frozenset[str]) -> Row:
    """Put one fault into the copy, run its tests, and take it out again.

    Args:
        tree: the copy.
        fault: what is put in.
        failing: tests that fail without it, which therefore catch nothing.
    """
    began = time.monotonic()
    path = tree / fault.file
    code = path.read_text(encoding="utf-8") if path.is_file() else ""
    if (found := code.count(fault.text)) != 1:
        what = f"it stands there {found} times" if code else "there is no such file"
        return Row(fault.name, fault.file, "no such text", (what,), 0.0)
    if missing := find_missing_tests(tree, fault.tests):
        return Row(fault.name, fault.file, "no such tests", tuple(missing), 0.0)
    skipped = [f"--deselect={test}" for test in failing]
    write_code(path, code.replace(fault.text, fault.becomes))
    try:
        run = run_tests(tree, fault.tests, "-x", *skipped, limit_s=FAULT_LIMIT_S)
    finally:
        write_code(path, code)
    outcome, by = judge_run(run)
    return Row(fault.name, fault.file, outcome, by, round(time.monotonic() - began, 1))


def judge_run(run: TestRun) -> tuple[Outcome, tuple[str, ...]]:
    """What a run of a fault's tests says of it, with the tests that failed or the reason."""
    match run.code:
        case 0:
            return "NOT CAUGHT", ()
        case 2:  # a module that cannot be imported is no fault that anybody would overlook
            return "no import", run.failed
        case 5:  # all that it names fail without it
            return "NOT CAUGHT", ("no test is left that passes without it",)
    return "caught", run.failed or (f"pytest ended with code {run.code}",)


def chosen_faults(words: Sequence[str]) -> list[Fault]:
    """The faults whose name holds one of the words; all of them where there are no words."""
    wanted = [word.casefold() for word in words]
    return [
        fault
        for fault in FAULTS
        if not wanted or any(word in fault.name.casefold() for word in wanted)
    ]


def show_row(row: Row) -> None:
    """Tell of one fault on stderr, so that stdout holds nothing but JSON where that is asked."""
    by = ", ".join(test.removeprefix("tests/") for test in row.by)
    print(f"{row.outcome:<13} {row.seconds:5.1f} s  {row.name}  [{by}]", file=sys.stderr)


def main() -> int:
    """Try the faults; returns 1 unless each of them is caught."""
    parser = argparse.ArgumentParser(description="Which tests catch which fault?")
    parser.add_argument("words", nargs="*", metavar="NAME", help="part of a fault's name")
    parser.add_argument("--list", action="store_true", help="only print names and files")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args()
    faults = chosen_faults(given.words)
    if not faults:
        parser.error("no fault has such a name; --list prints all of them")
    if given.list:
        with suppress(BrokenPipeError):  # `head` has read enough
            print("\n".join(f"{fault.file:<40} {fault.name}" for fault in faults), flush=True)
            return 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing is left to be written at the end
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder)
        copy_tracked_files(tree)
        needed = needed_tests(faults)
        missing = find_missing_tests(tree, needed)
        tests = [test for test in needed if test not in missing]
        print(f"without any fault: {len(tests)} tests or files", file=sys.stderr)
        sound = run_tests(tree, tests)
        for test in sound.failed:
            print(f"fails without any fault: {test}", file=sys.stderr)
        if sound.code not in (0, 1):
            print(sound.output[-2000:], file=sys.stderr)
        rows = []
        for fault in faults:
            rows.append(try_fault(tree, fault, frozenset(sound.failed)))
            show_row(rows[-1])
    caught = sum(row.outcome == "caught" for row in rows)
    print(f"{caught} of {len(rows)} caught", file=sys.stderr)
    if given.json:
        told = {"failing_without": sound.failed, "faults": [asdict(row) for row in rows]}
        print(json.dumps(told, indent=1))
    return 0 if caught == len(rows) and sound.code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
