"""Settings of one tool of an agent."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, model_validator

from engines.tools.settings import PROVIDERS, USER_AGENT
from studio.config.settings.base import Float, Settings, as_list, as_model, key, refusal
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig

Shipped = Literal["python", "calculator", "ask_model", "web_search", "read_page", "wikipedia"]
SHIPPED_TOOLS: tuple[Shipped, ...] = get_args(Shipped)
Texts = Annotated[tuple[str, ...], BeforeValidator(as_list)]
Provider = Literal["serper", "searxng", "gemini", "fixture", "direct", "jina", "api", "folder"]
READERS = ("read_page", "wikipedia")
READING_S = 120.0
"""Seconds of one call of a reader, which asks models, where a run file does not say otherwise."""
_WEB = ("web_search", *READERS)
_TOOLS_WITH = {
    **dict.fromkeys(("provider", "source", "user_agent", "allow_hosts", "cache"), _WEB),
    **dict.fromkeys(("answer", "embedding"), READERS),
    "model": ("ask_model", *READERS),
}
"""Keys that some shipped tools alone have."""
_SOURCES = {"searxng": "https?://.+", "gemini": r"|[\w.-]+", "fixture": ".+", "folder": ".+"}
_SOURCES["api"] = "|[a-z][a-z-]+|https?://.+"
"""What `source` may be, by the provider; the others have none."""
_NEEDED = {
    "searxng": "Set it to the address of your instance.",
    "gemini": "Set it to a model of the Gemini API, or leave it out.",
    "fixture": "Set it to a JSON lines file of {title, url, text}.",
    "folder": "Set it to a folder of *.md pages that begin with # Title.",
    "api": "Set it to a language, such as en, or the address of an api.php.",
}


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
    timeout_s: Float = key(
        30.0, f"seconds of one call at most; {READING_S:g} of {' and '.join(READERS)}", gt=0
    )
    repeatable: bool | None = key(
        None, "whether a call may be made again after a kill; null: as the tool itself says"
    )
    model: PolicyConfig | None = key(
        None, "model that ask_model asks, or that chooses and reads pages; null: the policy"
    )
    provider: Provider | None = key(
        None,
        "who answers: of web_search serper, searxng, gemini or fixture; of read_page direct, jina "
        "or fixture; of wikipedia api or folder; null: the first, or fixture where the search is",
    )
    source: str | None = key(
        None,
        "address of searxng, model of gemini, language or api.php of api, file of fixture, folder",
        min_length=1,
        examples=["web-pages.jsonl"],
    )
    answer: Literal["model", "passages"] = key(
        "model", "what read_page and wikipedia give: what a model says from the passages, or these"
    )
    embedding: Annotated[EmbeddingConfig | None, BeforeValidator(as_model)] = key(
        None, "model that ranks passages by meaning; null: by their words", examples=["rehearsal"]
    )
    user_agent: str = key(
        USER_AGENT,
        "what servers are told of who asks; Wikipedia wants a way to reach you in it",
        pattern=r"^[ -~]+$",
        examples=["'my-study/1.0 (me@example.org)'"],
    )
    allow_hosts: Texts = key(
        (),
        "hosts that may be reached although their addresses are private, as HOST or HOST:PORT",
        examples=["[wiki.intranet]"],
    )
    cache: bool = key(True, "whether what is found is kept in the workspace; false: look afresh")

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, given: object) -> object:
        if isinstance(given, str):
            given = {"function" if ":" in given else "name": given}
        if isinstance(given, dict) and given.get("name") in READERS:
            given = {"timeout_s": READING_S, **given}
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
        for name, tools in _TOOLS_WITH.items():
            if (
                self.name not in tools
                and getattr(self, name) != ToolConfig.model_fields[name].default
            ):
                move = f"Leave it out; it is for {', '.join(tools)}."
                raise refusal(name, "this key does not fit the tool", move)
        if self.name == "read_page" and self.answer == "passages" and self.model is not None:
            raise refusal("model", "no model is asked for passages", "Leave it out.")
        known = PROVIDERS.get(self.name or "", (None,))
        provider = self.provider or known[0]
        if provider not in known:
            move = f"Choose {', '.join(map(str, known))}."
            raise refusal("provider", "the tool has no such provider", move)
        usual = "|" if self.name == "read_page" else ""  # its fixture is that of the search
        if not re.fullmatch(_SOURCES.get(provider or "", "") + usual, self.source or ""):
            move = _NEEDED.get(provider or "", "Leave it out.")
            raise refusal("source", "the source does not fit the provider", move)
        if not all(re.fullmatch(r"(\[[0-9a-f:]+\]|[\w.-]+)(:\d+)?", h) for h in self.allow_hosts):
            raise refusal("allow_hosts", "an entry is no host", "Write HOST or HOST:PORT.")
        return self
