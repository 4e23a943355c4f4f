"""What a run file can say of one tool of an agent."""

from collections.abc import Mapping
from typing import Literal

from engines.core.frozen import frozen
from engines.core.types import Names, Network

PROVIDERS: Mapping[str, Names] = {
    "web_search": ("serper", "searxng", "gemini", "fixture"),
    "read_page": ("direct", "jina", "fixture"),
    "wikipedia": ("api", "folder"),
}
"""Tools of the web, and who may answer for each; the first where none is named."""
KEYS: Mapping[str, Names] = {
    "serper": ("SERPER_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "jina": ("JINA_API_KEY",),
}
"""Variables of which a provider needs one; jina works without, more slowly."""
TOOL_KEYS = tuple(name for names in KEYS.values() for name in names)
USER_AGENT = "practice-studio (a tool of a language model)"


@frozen
class ToolSettings:
    """One tool, or the tools of one MCP server: one of the first four says which.

    `studio.config` refuses what cannot be meant. Secrets are named, never written.
    """

    name: str | None = None  # of a tool that is shipped
    function: str | None = None  # FILE.py:NAME or MODULE:NAME
    command: Names = ()  # of an MCP server that is started
    url: str | None = None  # of one that runs
    started_by: Names = ()  # stands in front of `command`, and contains the server
    tier: str = "a process of its own that nothing contains"
    pass_env: Names = ()  # variables that the server gets, and no others but PATH
    only: Names = ()  # tools of the server that are offered; (): all
    timeout_s: float = 30.0  # of one call
    network: Network = "none"  # as it is shown
    model: object | None = None  # that ask_model and readers ask; None: the agent's own
    repeatable: bool | None = None  # None: the tool says so
    # Of tools of the web; `studio.config.settings.agent` says what each means.
    provider: str | None = None
    source: str | None = None
    answer: Literal["model", "passages"] = "model"
    embedding: object | None = None
    user_agent: str = USER_AGENT
    allow_hosts: Names = ()
    cache: bool = True

    def __post_init__(self) -> None:
        given = (self.name, self.function, self.command, self.url)
        assert sum(map(bool, given)) == 1, "a tool is one of name, function, command and url"

    @property
    def title(self) -> str:
        """What messages call it."""
        shown = self.name or self.function or self.url or " ".join(self.command)
        return f'MCP server "{shown}"' if self.url or self.command else f'tool "{shown}"'
