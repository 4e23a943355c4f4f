"""Settings of one tool of an agent."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, model_validator

from studio.config.settings.base import Float, Settings, as_list, key, refusal
from studio.config.settings.policy import PolicyConfig

Shipped = Literal["python", "calculator", "ask_model"]
SHIPPED_TOOLS: tuple[Shipped, ...] = get_args(Shipped)
Texts = Annotated[tuple[str, ...], BeforeValidator(as_list)]


class ToolConfig(Settings):
    """A tool of the agent: a shipped one, a function of one's own, or those of an MCP server."""

    name: Shipped | None = key(None, "a shipped tool")
    function: str | None = key(
        None, "a typed function of one's own, FILE.py:NAME or MODULE:NAME", pattern=r".:\w+$"
    )
    command: Texts = key((), "program and arguments that start an MCP server")
    url: str | None = key(None, "address of an MCP server", pattern=r"^https?://")
    pass_env: Texts = key((), "environment variables that the MCP server gets; it gets no others")
    only: Texts = key((), "tools of the MCP server that are offered; []: all")
    network: Literal["none", "public"] = key(
        "none", "what an MCP server that is started may reach; with public nothing contains it"
    )
    readable: Texts = key((), "files and folders that such a server may read beside its own")
    timeout_s: Float = key(30.0, "seconds of one call at most", gt=0)
    repeatable: bool | None = key(
        None, "whether a call may be made again after a kill; null: as the tool itself says"
    )
    model: PolicyConfig | None = key(None, "model that ask_model asks; null: the policy")

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, given: object) -> object:
        if isinstance(given, str):
            return {"function" if ":" in given else "name": given}
        return given

    @model_validator(mode="after")
    def _validate_kind(self) -> ToolConfig:
        given = (self.name, self.function, self.url, self.command or None)
        if sum(value is not None for value in given) != 1:
            cause = "a tool has one of name, function, command and url"
            raise refusal("name", cause, "Give one, such as `python` or `{url: http://…/mcp}`.")
        of_servers = {"pass_env": self.pass_env, "only": self.only, "readable": self.readable}
        for name, value in of_servers.items():
            if value and not (self.command or self.url):
                raise refusal(name, "it is a key of MCP servers", "Leave it out.")
        if self.model is not None and self.name != "ask_model":
            raise refusal("model", "only ask_model asks a model", "Leave it out.")
        return self
