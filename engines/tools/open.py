"""From what a run file says of an agent's tools to its toolbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engines.core.errors import ConfigError
from engines.core.process.user_code import load_function
from engines.core.protocols import Policy, Tool
from engines.tools.function import FunctionTool
from engines.tools.mcp import McpServer
from engines.tools.sandbox.sandbox import Sandbox
from engines.tools.settings import ToolSettings
from engines.tools.shipped import PythonTool, ask_model_tool, calculator_tool
from engines.tools.toolbox import CheckedToolbox, Entry


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

    FILE.py of a function is looked up in `folders`. The toolbox closes the sandbox, but not what
    `open_model` makes of `ToolSettings.model`. `tell` is told of a server that is lost, once.

    Raises ConfigError: a function that is not there or cannot be a tool, two tools of one name.
    """

    def open_one(tool: ToolSettings) -> Tool | McpServer:
        opened: FunctionTool | PythonTool
        match tool.name:
            case "calculator":
                opened = calculator_tool()
            case "python" if sandbox is not None:
                opened = PythonTool(sandbox)
            case "ask_model" if open_model is not None:
                opened = ask_model_tool(open_model(tool.model))
            case None if tool.function:
                function = load_function(tool.title, tool.function, folders)
                opened = FunctionTool(function, place=tool.title)
            case None:
                return McpServer(tool, environment, tell)
            case _:
                raise ConfigError(tool.title, "it cannot be used here.", "Leave it out.")
        repeatable = opened.spec.repeatable if tool.repeatable is None else tool.repeatable
        opened.spec = replace(opened.spec, repeatable=repeatable, network=tool.network)
        return opened

    return CheckedToolbox([Entry(open_one(t), t.title, t.timeout_s) for t in settings])
