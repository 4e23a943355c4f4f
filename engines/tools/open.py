"""From what a run file says of an agent's tools to its toolbox."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from engines.core.errors import ConfigError, did_you_mean, suggest_name
from engines.core.ids import digest
from engines.core.protocols import Policy, Tool
from engines.tools.error_text import error_text
from engines.tools.function import FunctionTool
from engines.tools.mcp import McpServer
from engines.tools.sandbox.sandbox import Sandbox
from engines.tools.settings import ToolSettings
from engines.tools.shipped import PythonTool, ask_model_tool, calculator_tool
from engines.tools.toolbox import CheckedToolbox, Entry, ToolSource


def open_toolbox(
    settings: Sequence[ToolSettings],
    *,
    folders: Sequence[Path] = (),
    sandbox: Sandbox | None = None,
    open_model: Callable[[object], Policy] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] = os.environ,
) -> CheckedToolbox:
    """Make the tools; nothing is started or asked before `check`.

    Args:
        settings: of each tool, in the order in which a model is shown them.
        folders: where FILE.py of a function is looked up, in order.
        sandbox: in which `python` runs; the toolbox closes it.
        open_model: makes a policy of `ToolSettings.model`; who opens it closes it.
        tell: is told of a server that is lost, once.
        environment: where the variables are read that a server is given by name.

    Raises ConfigError: a function that is not there or cannot be a tool, two tools of one name.
    """
    modules: dict[Path, ModuleType] = {}

    def open_one(tool: ToolSettings) -> Tool | ToolSource:
        opened: FunctionTool | PythonTool
        match tool.name:
            case "calculator":
                opened = calculator_tool()
            case "python" if sandbox is not None:
                opened = PythonTool(sandbox)
            case "ask_model" if open_model is not None:
                opened = ask_model_tool(open_model(tool.model))
            case None if tool.function:
                function = _load_function(tool.title, tool.function, folders, modules)
                opened = FunctionTool(function, place=tool.title)
            case None:
                return McpServer(tool, environment, tell)
            case _:
                raise ConfigError(tool.title, "it cannot be used here.", "Leave it out.")
        repeatable = opened.spec.repeatable if tool.repeatable is None else tool.repeatable
        network = tool.network or "none"
        opened.spec = replace(opened.spec, repeatable=repeatable, network=network)
        return opened

    return CheckedToolbox([Entry(open_one(t), t.title, t.timeout_s) for t in settings])


def _load_function(
    place: str, named: str, folders: Sequence[Path], modules: dict[Path, ModuleType]
) -> Callable[..., Any]:
    source, _, name = named.rpartition(":")
    try:
        if source.endswith(".py"):
            path = _find_file(place, source, folders)
            if path not in modules:  # functions of one file share what is in it
                modules[path] = _load_file(path)
            module = modules[path]
        else:
            module = importlib.import_module(source)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # it runs the user's code
        raise ConfigError(place, f"{source} cannot be loaded ({error_text(error)}).", "") from error
    function = getattr(module, name, None)
    if not callable(function):
        own = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        cause = f'there is no function "{name}" in {source}.'
        raise ConfigError(place, cause, suggest_name(name, own))
    found: Callable[..., Any] = function
    return found


def _find_file(place: str, source: str, folders: Sequence[Path]) -> Path:
    for folder in folders or (Path(),):
        if (path := folder / Path(source).expanduser()).is_file():
            return path.absolute()
    names = sorted({path.name for folder in folders for path in folder.glob("*.py")})
    searched = ", ".join(map(str, folders)) or "the current folder"
    move = f"{did_you_mean(Path(source).name, names)}Searched: {searched}."
    raise ConfigError(place, f"there is no file {source}.", move)


def _load_file(path: Path) -> ModuleType:
    name = f"practice_tool_{digest(str(path))[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: it may have a math.py
    spec.loader.exec_module(module)
    return module
