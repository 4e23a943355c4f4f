"""Settings of the agent that tries the problems, of its tools, and of its team."""

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from engines.agents.open import KINDS
from engines.core.settings import COUNT
from engines.core.text.prompts import load_prompt
from engines.core.types import Network
from engines.tools.settings import PROVIDERS, USER_AGENT
from studio.config.settings.base import Float, Int, Name, Settings, as_list, as_model, key, refusal
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
    def _validate_kind(self) -> "ToolConfig":
        given = (self.name, self.function, self.url, self.command or None)
        if sum(value is not None for value in given) != 1:
            raise refusal(
                "name",
                "a tool has one of name, function, command and url",
                "Give one, such as `python` or `{url: http://…/mcp}`.",
            )
        of_servers = {"pass_env": self.pass_env, "only": self.only, "readable": self.readable}
        for name, value in of_servers.items():
            if value and not (self.command or self.url):
                raise refusal(name, "it is a key of MCP servers", "Leave it out.")
        for name, tools in _TOOLS_WITH.items():
            if (
                self.name not in tools
                and getattr(self, name) != ToolConfig.model_fields[name].default
            ):
                raise refusal(
                    name,
                    "this key does not fit the tool",
                    f"Leave it out; it is for {', '.join(tools)}.",
                )
        if self.name == "read_page" and self.answer == "passages" and self.model is not None:
            raise refusal("model", "no model is asked for passages", "Leave it out.")
        known = PROVIDERS.get(self.name or "", (None,))
        provider = self.provider or known[0]
        if provider not in known:
            raise refusal(
                "provider", "the tool has no such provider", f"Choose {', '.join(map(str, known))}."
            )
        usual = "|" if self.name == "read_page" else ""  # its fixture is that of the search
        if not re.fullmatch(_SOURCES.get(provider or "", "") + usual, self.source or ""):
            raise refusal(
                "source",
                "the source does not fit the provider",
                _NEEDED.get(provider or "", "Leave it out."),
            )
        if not all(re.fullmatch(r"(\[[0-9a-f:]+\]|[\w.-]+)(:\d+)?", h) for h in self.allow_hosts):
            raise refusal("allow_hosts", "an entry is no host", "Write HOST or HOST:PORT.")
        return self


class TeamConfig(Settings):
    """Models of a team's fixed roles. Who plans the next step is the policy itself."""

    planner_fixed: PolicyConfig | None = key(
        None, "model that analyses the question; null: the policy", examples=["openai:gpt-4o-mini"]
    )
    executor: PolicyConfig | None = key(
        None, "model that writes commands; null: the policy", examples=["openai:gpt-4o-mini"]
    )
    verifier: PolicyConfig | None = key(
        None,
        "model that says whether enough is known; null: the policy",
        examples=["openai:gpt-4o-mini"],
    )
    generator: PolicyConfig | None = key(
        None, "model that writes the answer; null: the policy", examples=["openai:gpt-4o-mini"]
    )
    plan_as: Literal["json", "lines"] = key(
        "json",
        "how the planner states a step: as a JSON object, or as a line `TOOL: SUB-GOAL`, which "
        "small models learn sooner",
    )
    ungrounded: Literal["label", "refuse"] = key(
        "label",
        "what becomes of an answer for which no tool gave anything: label it, or refuse it, so "
        "that the try ends without an answer",
    )


DEFAULT_INSTRUCTIONS = load_prompt("studio.config", "instructions").render()


class MountedExperience(Settings):
    """One experience that an enhanced agent brings along."""

    id: Name = Field(description="stable id of the experience, such as E17")
    text: str = Field(min_length=1, description="what is put in front of the prompt")
    pinned: bool = Field(default=False, description="whether nothing may change or delete it")


_OWN = ("OPENAI_", "ANTHROPIC_", "STUDIO_", "HOME", "TMPDIR")
"""What the names of variables begin with that only a program's gateway and folder decide."""
if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[tuple(KINDS)]


class AgentConfig(Settings):
    """Who tries the problems; mountable as a file of its own."""

    name: str = key("solver", "what the agent is called", examples=["careful"])
    instructions: str = key(
        DEFAULT_INSTRUCTIONS, "system prompt of the agent", examples=["'Show every step.'"]
    )
    experiences: tuple[MountedExperience, ...] = key(
        (),
        "what an enhanced agent has learned, each with id and text; a run starts from it",
        examples=["'[{id: E1, text: Check the units.}]'"],
    )
    cite: bool = key(
        True, "whether the agent is asked to name experiences that help, as [E3], in its reasoning"
    )
    kind: KindName = key(
        "single_turn",
        "how it answers: in one reply, in several that may ask for a calculation or call tools, as "
        "a team, or as a program or function of one's own; follows from team, tools, command or "
        "function",
        examples=["calculator"],
    )
    max_turns: Int = key(
        2,
        "replies of a try at most, where an agent gives several, or steps of a team; "
        f"{KINDS['tools'].max_turns} with tools, {KINDS['team'].max_turns} in a team",
        **COUNT,
    )
    tools: Annotated[tuple[ToolConfig, ...], BeforeValidator(as_list)] = key(
        (),
        f"what an agent of kind tools may call: {', '.join(SHIPPED_TOOLS)}, FILE.py:FUNCTION, or "
        "an MCP server",
        examples=["[python]"],
    )
    team: TeamConfig | None = key(
        None, "who plays which part in a team that plans, commands, verifies and answers"
    )
    tool_protocol: Literal["auto", "native", "text"] = key(
        "auto",
        "how tools are called: by the endpoint's own calls, or in fenced blocks of text; auto: "
        "native where the model is asked over a network",
    )
    context_tokens: Int | None = key(
        24_000,
        "tokens of a conversation with tools at most, the oldest results left out first; null: "
        "no limit",
        ge=256,
    )
    sandbox: Literal["required", "resource-limits-only"] = key(
        "required",
        "what contains programs: required stops a run where a machine has no sandbox; "
        "resource-limits-only accepts limits on time and memory alone",
    )
    command: Texts = key(
        (),
        "program and arguments that try a problem, such as [python, my_agent.py]",
        examples=["'[python, my_agent.py]'"],
    )
    function: str | None = key(
        None,
        "function that tries a problem, FILE.py:NAME or MODULE:NAME: async (problem, model), or "
        "a workflow, async (task, model) or (task, system_prompt)",
        pattern=r".:\w+$",
        examples=["my_agent.py:solve"],
    )
    problem_as: Literal["stdin", "argument", "file"] = key(
        "stdin", "how a program gets the question"
    )
    answer_from: str = key(
        "last_line",
        "where a program's answer is: last_line or stdout of its output, or file:NAME",
        pattern=r"^(last_line|stdout|file:[^/]+)$",
        examples=["file:answer.txt"],
    )
    pass_env: Texts = key(
        (), "environment variables that a program gets; it gets no others", examples=["[LANG]"]
    )
    readable: Texts = key(
        (), "files and folders that a program may read beside its own file", examples=["[my_data]"]
    )
    network: Network = key(
        "none", "what a program may reach beside its model: none, allowlist or public"
    )
    allow_hosts: Texts = key(
        (), "hosts that network: allowlist lets a program reach", examples=["[example.com]"]
    )
    models: dict[str, Annotated[PolicyConfig, BeforeValidator(as_model)]] = key(
        {},
        "models that a workflow may ask by name, never trained",
        examples=["'{critic: openai:gpt-4o-mini}'"],
    )
    model: PolicyConfig | None = key(
        None,
        "model that the agent comes with, with settings as policy has; the policy where the run "
        "file sets none",
        examples=["openai:gpt-4o-mini"],
    )

    @model_validator(mode="before")
    @classmethod
    def _infer_kind(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        unset: tuple[object, ...] = (None, "", (), [])
        kinds = [kind for kind, row in KINDS.items() if row.key and given.get(row.key) not in unset]
        made: dict[str, Any] = {"kind": kinds[0], **given} if kinds else dict(given)
        if made.get("kind") == "team" and made.get("team") is None:
            made["team"] = {}
        if row := KINDS.get(made.get("kind", "single_turn")):
            made.setdefault("max_turns", row.max_turns)
        if made.get("allow_hosts"):
            made.setdefault("network", "allowlist")
        return made

    @model_validator(mode="after")
    def _validate_kind(self) -> "AgentConfig":
        if self.kind == "team" and not self.tools:
            raise refusal(
                "tools",
                "a team has nothing to find anything out with",
                "Set agent.tools, for example to [my_tools.py:look_up].",
            )
        for kind, row in KINDS.items():
            kinds = (kind, "team") if kind == "tools" else (kind,)
            if row.key and bool(getattr(self, row.key)) != (self.kind in kinds):
                raise refusal(
                    row.key,
                    "agent.kind and the key that says what it runs do not fit each other",
                    f"Set agent.kind={kind} and agent.{row.key}, or neither.",
                )
        if not all(re.fullmatch(r"[\w.*-]+(:\d+)?", host) for host in self.allow_hosts):
            raise refusal(
                "allow_hosts",
                "an entry is no host",
                "Write example.com, *.example.com or 10.0.0.5:8000.",
            )
        if taken := [name for name in self.pass_env if name.upper().startswith(_OWN)]:
            raise refusal(
                "pass_env", "a try sets such variables itself", f"Take {', '.join(taken)} out."
            )
        if self.models and self.kind != "function":
            raise refusal("models", "only a function asks models by name", "Set agent.function.")
        if (self.network == "allowlist") != bool(self.allow_hosts):
            raise refusal(
                "allow_hosts",
                "network: allowlist and allow_hosts go together",
                "Set both, or neither.",
            )
        return self

    @field_validator("experiences")
    @classmethod
    def _validate_unique(
        cls, value: tuple[MountedExperience, ...]
    ) -> tuple[MountedExperience, ...]:
        for what in ("id", "text"):
            counts = Counter(getattr(experience, what) for experience in value)
            if twice := [one for one, n in counts.items() if n > 1]:
                raise ValueError(f'the {what} "{twice[0][:60]}" stands there twice')
        return value
