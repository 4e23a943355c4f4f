"""What a run file can say of one tool of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.core.errors import did_you_mean
from engines.core.settings import SettingError, check_bounds, derived, setting
from engines.core.tools import Network

SHIPPED = ("python", "ask_model", "calculator")
_KINDS = ("name", "function", "mcp_command", "mcp_url")
_ONLY_FOR = {
    "env": ("mcp_command",),
    "headers": ("mcp_url",),
    "only": ("mcp_command", "mcp_url"),
    "model": ("name",),
}


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """One tool, or the tools of one MCP server.

    `started_by` is put in front of a server's command and contains it, as `tier` says.

    Secrets are named, never written: `env` and the values of `headers` are names of variables.
    """

    name: str | None = setting(
        None, f"tool that is shipped: {', '.join(SHIPPED)}", examples=["calculator"]
    )
    function: str | None = setting(
        None, "function of your own: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"
    )
    mcp_command: tuple[str, ...] | None = setting(
        None, "command that starts an MCP server", examples=["[npx,-y,SERVER]"]
    )
    mcp_url: str | None = setting(None, "address of an MCP server that is running")
    started_by: tuple[str, ...] = derived(())
    tier: str = derived("a process of its own that nothing contains")
    env: tuple[str, ...] = setting(
        (), "environment variables that the server gets, and no others but PATH"
    )
    headers: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"description": "headers sent to the server; their values are variables' names"},
    )
    only: tuple[str, ...] = setting((), "tools of the server that are offered; none named: all")
    timeout_s: float = setting(30.0, "seconds that one call may take", gt=0, le=3600)
    network: Network | None = setting(
        None, "what it reaches, as it is shown; null: public for an MCP server, else none"
    )
    model: object | None = setting(None, "model that ask_model asks; null: the agent's own")
    repeatable: bool | None = setting(
        None, "whether a call that was cut short may be made again; null: the tool says so"
    )

    def __post_init__(self) -> None:
        check_bounds(self, "tools")
        given = [kind for kind in _KINDS if getattr(self, kind)]
        if len(given) != 1:
            cause = f"{' and '.join(given)} stand together." if given else "it names no tool."
            move = f"Write exactly one of {', '.join(_KINDS)}."
            raise SettingError("tools", given[-1] if given else "name", cause, move)
        for key, kinds in _ONLY_FOR.items():
            if getattr(self, key) and given[0] not in kinds:
                move = f"Take it out, or write it beside {' or '.join(kinds)}."
                raise SettingError("tools", key, f"it means nothing beside {given[0]}.", move)
        if self.name and self.name not in SHIPPED:
            move = f"{did_you_mean(self.name, SHIPPED)}Known: {', '.join(SHIPPED)}."
            move += " For a function of your own write function: FILE.py:FUNCTION."
            raise SettingError("tools", "name", f'there is no tool "{self.name}".', move)
        if self.model is not None and self.name != "ask_model":
            move = "Take it out, or name the tool ask_model."
            raise SettingError("tools", "model", f"{self.name} asks no model.", move)
        if self.function and not all(self.function.rpartition(":")[::2]):
            cause = f'"{self.function}" names no file and function.'
            raise SettingError("tools", "function", cause, "Write it as FILE.py:FUNCTION.")

    @property
    def title(self) -> str:
        """What messages call it."""
        shown = self.name or self.function or self.mcp_url or " ".join(self.mcp_command or ())
        return f'MCP server "{shown}"' if self.mcp_url or self.mcp_command else f'tool "{shown}"'
