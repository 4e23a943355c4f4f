"""From what a run file says of an agent's tools to its toolbox."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engines.core.errors import ConfigError
from engines.core.protocols import Embedder, Policy, Tool
from engines.core.user_code import load_function
from engines.tools.function import FunctionTool
from engines.tools.mcp import McpServer
from engines.tools.sandbox.sandbox import Sandbox
from engines.tools.settings import PROVIDERS, ToolSettings
from engines.tools.shipped import PythonTool, ask_model_tool, calculator_tool
from engines.tools.toolbox import CheckedToolbox, Entry
from engines.tools.web.open import WebContext, missing_key, open_web_tool, with_provider


def open_toolbox(
    settings: Sequence[ToolSettings],
    *,
    folders: Sequence[Path] = (),
    sandbox: Sandbox | None = None,
    open_model: Callable[[object], Policy] | None = None,
    open_embedder: Callable[[object], Embedder] | None = None,
    cache: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] = os.environ,
) -> CheckedToolbox:
    """Make the tools; nothing is started or asked before `check`.

    FILE.py of a function is looked up in `folders`. The toolbox closes the sandbox, but not what
    `open_model` and `open_embedder` make of `ToolSettings.model` and `embedding`. What is found on
    the web is kept in `cache`. `tell` is told of a server that is lost, once. A tool whose key is
    not set is left out, and `CheckedToolbox.absent` says so.

    Raises ConfigError: a function that is not there or cannot be a tool, two tools of one name, or
    no tool is left. ToolError: pages that cannot be read.
    """
    web = open_model and WebContext(environment, open_model, open_embedder, cache)

    def open_one(tool: ToolSettings) -> Tool | McpServer:
        opened: FunctionTool | PythonTool
        network = tool.network
        match tool.name:
            case "calculator":
                opened = calculator_tool()
            case "python" if sandbox is not None:
                opened = PythonTool(sandbox)
            case "ask_model" if open_model is not None:
                opened = ask_model_tool(open_model(tool.model))
            case name if name in PROVIDERS and web is not None:
                opened = open_web_tool(tool, web)
                network = opened.spec.network
            case None if tool.function:
                function = load_function(tool.title, tool.function, folders)
                opened = FunctionTool(function, place=tool.title)
            case None:
                return McpServer(tool, environment, tell)
            case _:
                raise ConfigError(tool.title, "it cannot be used here.", "Leave it out.")
        repeatable = opened.spec.repeatable if tool.repeatable is None else tool.repeatable
        opened.spec = replace(opened.spec, repeatable=repeatable, network=network)
        return opened

    ready = [with_provider(t, settings) if t.name in PROVIDERS else t for t in settings]
    missing = [missing_key(tool, environment) for tool in ready]
    pairs = list(zip(ready, missing, strict=True))
    absent = [f"{tool.title} is absent: {key} is not set" for tool, key in pairs if key]
    if absent and all(missing):
        named = ", ".join(dict.fromkeys(missing))
        move = f"Set {named} in the environment, or choose a provider that needs no key."
        raise ConfigError("agent.tools", f"no tool is left: {'; '.join(absent)}.", move)
    opened = [Entry(open_one(t), t.title, t.timeout_s) for t, key in pairs if not key]
    return CheckedToolbox(opened, absent)
