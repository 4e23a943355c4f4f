"""Functions of the user's own are found, or refused with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from engines.core.user_code import load_function


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("async def solve(problem, model): return '5'\n")
    (tmp_path / "broken.py").write_text("import nothing_here\n")
    return tmp_path


def test_a_function_is_found_in_its_file_which_is_loaded_once(folder: Path) -> None:
    found = [load_function("agent.function", "mine.py:solve") for _ in range(2)]
    assert found[0].__name__ == "solve" and found[0] is found[1]


def test_a_file_that_was_changed_is_loaded_anew(folder: Path) -> None:
    load_function("agent.function", "mine.py:solve")
    (folder / "mine.py").write_text("def other(problem, model): return '6'\n")
    assert load_function("agent.function", "mine.py:other")(0, 0) == "6"


@pytest.mark.parametrize(
    ("named", "cause"),
    [
        ("other.py:solve", "there is no file other.py"),
        ("mine.py:solves", 'there is no function "solves" in mine.py. Did you mean "solve"?'),
        ("broken.py:solve", "broken.py cannot be loaded (ModuleNotFoundError"),
        ("no_package.here:f", "no_package.here cannot be loaded (ModuleNotFoundError"),
    ],
)
def test_a_function_that_is_not_there_is_refused(folder: Path, named: str, cause: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_function("agent.function", named)
    assert str(refused.value).startswith(f"agent.function: {cause}")
