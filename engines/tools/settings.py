"""What a run file can say of one tool of an agent."""

from __future__ import annotations

from dataclasses import dataclass

from engines.core.tools import Network


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """One tool, or the tools of one MCP server: one of the first four says which.

    `studio.config` refuses what cannot be meant. Secrets are named, never written.
    """

    name: str | None = None  # of a tool that is shipped
    function: str | None = None  # FILE.py:NAME or MODULE:NAME
    mcp_command: tuple[str, ...] | None = None
    mcp_url: str | None = None
    started_by: tuple[str, ...] = ()  # stands in front of `mcp_command`, and contains the server
    tier: str = "a process of its own that nothing contains"
    env: tuple[str, ...] = ()  # variables that the server gets, and no others but PATH
    only: tuple[str, ...] = ()  # tools of the server that are offered; (): all
    timeout_s: float = 30.0  # of one call
    network: Network = "none"  # as it is shown
    model: object | None = None  # that ask_model asks; None: the agent's own
    repeatable: bool | None = None  # None: the tool says so

    def __post_init__(self) -> None:
        given = (self.name, self.function, self.mcp_command, self.mcp_url)
        assert sum(map(bool, given)) == 1, "a tool is one of name, function, command and url"

    @property
    def title(self) -> str:
        """What messages call it."""
        shown = self.name or self.function or self.mcp_url or " ".join(self.mcp_command or ())
        return f'MCP server "{shown}"' if self.mcp_url or self.mcp_command else f'tool "{shown}"'
