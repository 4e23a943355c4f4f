"""From settings to tools: what may be written, and how functions are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import ConfigError
from engines.core.types import ToolResult
from engines.tools.settings import ToolSettings
from engines.tools.toolbox import open_toolbox
from engines.tools.web.tools import WebContext
from tests.support.builders import answering
from tests.support.tool_tries import FakeSandbox, a_call, a_try

MINE = '''
"""Tools of my own."""
from numbers_of_mine import ONE

seen = []

async def count(word: str) -> int:
    """Count the letters."""
    seen.append(word)
    return len(word) + ONE

async def remember() -> list[str]:
    """Tell the words."""
    return seen
'''


WEB = WebContext({}, lambda _: answering())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "numbers_of_mine.py").write_text("ONE = 1")
    (tmp_path / "bad.py").write_text("raise RuntimeError('no licence')")
    return tmp_path


async def test_functions_of_one_file_are_found_beside_each_other(folder: Path) -> None:
    settings = [ToolSettings(function=f"{folder}/mine.py:{name}") for name in ("count", "remember")]
    toolbox = open_toolbox(settings, WEB)
    await toolbox.check()
    async with a_try() as within:
        assert await toolbox.call(a_call("count", '{"word": "ab"}'), within) == ToolResult("3")
        assert await toolbox.call(a_call("remember"), within) == ToolResult('["ab"]')
    await toolbox.aclose()


def test_a_function_of_an_installed_package_is_found() -> None:
    (spec,) = open_toolbox([ToolSettings(function="tests.support.sample_tool:shout")], WEB).specs
    assert (spec.name, spec.description) == ("shout", "Say it louder.")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("mime.py:count", 'there is no file mime.py. Did you mean "mine.py"?'),
        ("mine.py:counts", 'there is no function "counts" in mine.py. Did you mean "count"?'),
        ("bad.py:f", "bad.py cannot be loaded (RuntimeError: no licence)."),
        ("no_package.here:f", "no_package.here cannot be loaded (ModuleNotFoundError: No module"),
    ],
)
def test_a_function_that_is_not_there_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError) as refused:
        open_toolbox([ToolSettings(function=function)], WEB)
    assert str(refused.value).startswith(f'tool "{function}": {said}')


async def test_the_shipped_tools_are_opened_with_what_they_need() -> None:
    asked: list[object] = []
    sandbox = FakeSandbox()

    def open_model(model: object) -> Any:
        asked.append(model)
        return answering()

    settings = [
        ToolSettings(name="python"),
        ToolSettings(name="ask_model", model="openai:small"),
        ToolSettings(name="calculator", repeatable=False),
    ]
    toolbox = open_toolbox(settings, WebContext({}, open_model), sandbox=sandbox)
    await toolbox.check()
    assert [(spec.name, spec.repeatable) for spec in toolbox.specs] == [
        ("python", True),
        ("ask_model", True),
        ("calculator", False),
    ]
    assert asked == ["openai:small"]
