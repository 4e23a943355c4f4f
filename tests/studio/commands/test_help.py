"""What `studio --help` may not load: it has to be there at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run_studio import studio

# Besides the contract's names, what costs as much.
HEAVY = (
    "openai",
    "textual",
    "sympy",
    "torch",
    "pydantic",
    "hydra",
    "math_verify",
    "tinydb",
    "rich",
    "omegaconf",
    "httpx2",
    "uvicorn",
)

PROGRAM = """
import sys
from studio.cli import run
code = run(sys.argv[1:])
print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}))
sys.exit(code)
"""


def loaded_by(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded: ")[2].split())


def test_help_loads_nothing_heavy() -> None:
    loaded = loaded_by("--help")
    assert "studio" in loaded
    assert not set(HEAVY) & loaded


@pytest.mark.parametrize(
    "words", [("data",), ("runs", "rm"), ("try",), ("init",), ("headless",), ("run",), ("attach",)]
)
def test_the_help_of_a_command_loads_nothing_heavy_of_ours(words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words, "--help")
    assert "studio" in loaded
    # typer converts the words of a command with pydantic, whatever the command is.
    assert not (set(HEAVY) - {"pydantic"}) & loaded


@pytest.mark.parametrize(
    "words",
    [("--bogus",), ("nope",), ("data", "list", "extra"), ("runs", "show"), ("init", "--to")],
)
def test_words_that_fit_no_command_are_a_user_error(
    words: tuple[str, ...], workspace: Path
) -> None:
    wrong = studio(*words, workspace=workspace)
    assert (wrong.code, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("studio")
    assert "studio: studio" not in wrong.stderr
    assert " -h`." in wrong.stderr


def test_nobody_answering_a_question_counts_as_interrupted(practised: Path) -> None:
    # The terminal ends (Ctrl-D) after a word that is no answer.
    gone = studio("runs", "rm", "rehearsal", workspace=practised, typed="perhaps\n")
    assert gone.code == 130
    assert (practised / "runs" / "rehearsal" / "journal.jsonl").exists()
