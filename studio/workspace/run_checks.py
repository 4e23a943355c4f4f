"""What a run file needs, tried out: models answer a few short questions, parts are opened.

Data, verifier and tools are tried by their own checks in a process of their own: there a verifier
that hangs or ends its process harms nothing, and a cluster leaves nothing behind.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import CallFailed, PolicyError, installed_version
from engines.core.text.tokens import prompt_tokens, text_tokens
from engines.core.types import Completion, Message, Sampling, Usage
from engines.policies.chat.client import PING_S, OpenAICompat
from engines.policies.chat.embedding import open_embedder
from engines.policies.chat.endpoint import EndpointSettings
from engines.record.repair import Finding, Grade
from engines.record.run_dir import Workspace
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig
from studio.config.settings.run import RunConfig
from studio.config.source import Source
from studio.render.words import count_text
from studio.run.acting import rebuild, tool_protocol
from studio.run.assemble import check_verifier
from studio.run.models import embedding_endpoint, endpoint_of, endpoint_roles
from studio.run.new_or_resume import RunPlan, RunRequest, load_plan
from studio.workspace.machine import ask_apart, find_address, run_check

_ASKED = (Message("user", "Write twelve random English nouns, separated by commas."),)
_ASKED_JSON = (Message("user", 'Reply with the JSON object {"ok": true} and nothing else.'),)
_ASKED_TOOL = (Message("user", "How is the weather in Oslo? Call get_weather to find out."),)
_TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
# No temperature: some models refuse one, and at 0 equal replies would say nothing of seeds.
_PLAIN = Sampling(temperature=None, max_tokens=32, seed=11)
_QUESTIONS = (
    (_ASKED, _PLAIN),
    (_ASKED, _PLAIN),
    (_ASKED_TOOL, replace(_PLAIN, max_tokens=64, tools=(_TOOL,))),
    (_ASKED_JSON, replace(_PLAIN, max_tokens=24, json_object=True)),
)
MOST_TOKENS = 10 + sum(
    prompt_tokens(asked, drawn.tools) + (drawn.max_tokens or 0) for asked, drawn in _QUESTIONS
)
"""Of all questions together, the first ping included, without what an endpoint adds of its own."""
AT_ONCE_S, TOLD_S = 0.01, 0.1
"""Pieces that come within the first time did not stream: no model is as fast. Whether a whole reply
that takes less than the second would have streamed cannot be told."""
_FEW_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply with when its pieces came, in seconds since it was asked for."""

    made: Completion
    pieces: tuple[float, ...]
    took_s: float
    is_counted: bool = True

    @property
    def streams(self) -> bool | None:
        """Whether pieces come before the end; None: it is too short to tell."""
        if self.pieces and self.pieces[-1] - self.pieces[0] >= AT_ONCE_S:
            return True
        few = not self.pieces or text_tokens(self.made.text) < _FEW_TOKENS
        return None if few or self.took_s < TOLD_S else False


@dataclass(frozen=True, slots=True)
class Observed:
    """What an endpoint was seen to do; a reply that failed is the failure's text."""

    plain: tuple[Reply | str, ...]
    tool: Reply | str
    json: Reply | str
    listing: Mapping[str, int | None] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()  # fields that it refused
    remarks: tuple[str, ...] = ()


async def observe(
    settings: EndpointSettings,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Observed:
    """Ask all questions, one after the other. Raises PolicyError: it does not answer at all."""
    limit_s = min(settings.timeout_s, PING_S)
    own = replace(settings, timeout_s=limit_s, max_retries=min(settings.max_retries, 1))
    policy = OpenAICompat(own)
    try:
        await policy.ping()
        listing = await policy.list_models()
        first, again, tool, json = [
            await _ask(policy, asked, drawn, clock) for asked, drawn in _QUESTIONS
        ]
    finally:
        await policy.aclose()
    known = policy.dialect
    told = tuple(sorted(known.remarks))
    left_out = frozenset(known.without)
    return Observed((first, again), tool, json, listing, left_out, told)


async def _ask(
    policy: OpenAICompat, asked: Sequence[Message], drawn: Sampling, clock: Callable[[], float]
) -> Reply | str:
    pieces: list[float] = []
    began, before = clock(), policy.dialect.uncounted
    try:
        made = await policy.complete(asked, drawn, lambda _: pieces.append(clock() - began))
    except CallFailed as failed:
        return str(failed).partition(": ")[2] or str(failed)
    counted = policy.dialect.uncounted == before
    return Reply(made, tuple(pieces), clock() - began, counted)


def endpoint_findings(
    place: str, seen: Observed, model: str, needs_tools: bool, needs_json: bool
) -> list[Finding]:
    """`needs_tools`: the run offers tools and reads native calls; `needs_json`: JSON mode helps."""
    able, found = ["answers"], list[Finding]()

    def note(cause: str, move: str, *, fix: bool = False) -> None:
        found.append(Finding("fix" if fix else "note", place, cause, move))

    replies = [reply for reply in seen.plain if isinstance(reply, Reply)]
    for text in {reply for reply in seen.plain if isinstance(reply, str)}:
        note(f"it fails at a short question ({text}).", "Give the command again; see its log.")
    streams = {reply.streams for reply in replies}
    if False in streams:
        note(
            "it does not stream: a reply comes all at once.",
            "Look for a proxy that holds replies back; rollouts show at their end only.",
        )
    elif True in streams:
        able.append("streams")
    _judge_tools(seen, able, note if needs_tools else None)
    _judge_json(seen, able, note if needs_json else None)
    _judge_counts(seen, replies, able, note)
    if window := seen.listing.get(model):
        able.append(f"context of {window:,} tokens")
    for remark in seen.remarks:
        note(f"{remark}.", "See whether that is the model you want.")
    return [*found, Finding("ok", place, f"{', '.join(able)}.")]


def _judge_tools(seen: Observed, able: list[str], note: Callable[..., None] | None) -> None:
    reply, cause, is_sure = seen.tool, "a function call does not come back as one", True
    if isinstance(reply, str):
        cause = f"it refuses tools ({reply})"
    elif any(call.name == _TOOL["name"] for call in reply.made.tool_calls):
        able.append("native tool calls")
        return
    elif str(_TOOL["name"]) in reply.made.text:
        cause = "it writes function calls into its text"
    else:
        cause, is_sure = "asked once for a function call, it makes none", False
    if note is None:
        able.append(f"no native tool calls, which this run does without ({cause})")
        return
    note(
        f"{cause}, and this run's agent needs that.",
        "Set agent.tool_protocol=text, or start the server with its parser of tool calls.",
        fix=is_sure,
    )


def _judge_json(seen: Observed, able: list[str], note: Callable[..., None] | None) -> None:
    reply = seen.json
    if "response_format" in seen.left_out or isinstance(reply, str):
        cause = "it refuses JSON mode"
    else:
        with suppress(orjson.JSONDecodeError):
            if isinstance(orjson.loads(reply.made.text), dict):
                able.append("JSON mode")
                return
        cause = "it takes JSON mode, and what comes is no JSON"
    if note is None:
        able.append(f"no JSON mode, which this run does without ({cause})")
    else:
        note(f"{cause}: the prompt alone asks for the form.", "A model that has it errs less.")


def _judge_counts(
    seen: Observed, replies: Sequence[Reply], able: list[str], note: Callable[..., None]
) -> None:
    counted = [reply for reply in replies if reply.is_counted]
    if replies and not counted:
        note("it counts no tokens: budgets and costs are estimates.", "Ask its maker for `usage`.")
    elif counted:
        able.append("counts tokens")
    texts = [(reply.made.text, reply.made.reasoning) for reply in replies]
    if "seed" in seen.left_out or (len(texts) > 1 and texts[0] != texts[1]):
        cause = "refuses a seed" if "seed" in seen.left_out else "gives two replies for one seed"
        note(f"it {cause}: a run cannot be repeated.", "--record keeps replies to play them again.")
    elif len(texts) > 1:
        able.append("honours seeds (2 replies alike)")


LONGEST_S = 150.0
"""Of all questions to one address: each of five has its own deadline of 30 s."""
_UNASKED = {
    "rehearsal": "replies are scripted: there is nothing to ask.",
    "replay": "replies come from a log: there is nothing to ask.",
    "hf": "its weights are loaded by the run: there is no endpoint to ask.",
    "handoff": "whoever answers files is the model: there is nothing to ask.",
}


@dataclass(slots=True)
class Endpoint:
    """A model at one address or several, with the roles that ask it."""

    settings: EndpointSettings
    roles: list[str]
    needs_tools: bool = False
    needs_json: bool = False

    @property
    def addresses(self) -> list[EndpointSettings]:
        own = self.settings
        return [replace(own, base_url=url, replicas=()) for url in (own.base_url, *own.replicas)]

    def place(self, address: EndpointSettings) -> str:
        roles = ", ".join(dict.fromkeys(self.roles))
        return f"{roles} (openai:{address.model} at {address.url})"


@dataclass(slots=True)
class AskedModels:
    """What would be asked for a run file, and what needs no asking."""

    endpoints: list[Endpoint] = field(default_factory=list)
    embeddings: list[tuple[str, EmbeddingConfig]] = field(default_factory=list)
    unasked: list[Finding] = field(default_factory=list)

    @property
    def price(self) -> str:
        """What asking costs at most, in words; "" where nothing is asked."""
        every = [address for endpoint in self.endpoints for address in endpoint.addresses]
        many = len(every)
        if not many:
            return ""
        asked = Usage(MOST_TOKENS, MOST_TOKENS, 1)
        prices = [usd for one in every if (usd := one.cost_usd(asked)) is not None]
        cost = f", under ${sum(prices):.4f} in all" if len(prices) == many else ""
        where = "1 address" if many == 1 else f"{many} addresses"
        return f"asking {where}: about {MOST_TOKENS} tokens at most each{cost}"


def named_models(config: RunConfig) -> Iterator[tuple[str, PolicyConfig]]:
    """Every model that the run asks, by the setting that names it."""
    used = [*endpoint_roles(config), "policy", "reflector"]
    for role in dict.fromkeys(used):
        if role != "reflector" or config.practice.reflects:
            yield role, config.role(role)
    agent = config.agent
    yield from ((f"agent.models.{name}", model) for name, model in agent.models.items())
    for number, tool in enumerate(agent.tools):
        if tool.model is not None:
            yield f"agent.tools.{number}.model", tool.model
    if agent.team is not None:
        for member in ("planner_fixed", "executor", "verifier", "generator"):
            if (model := getattr(agent.team, member)) is not None:
                yield f"agent.team.{member}", model


def asked_models(config: RunConfig) -> AskedModels:
    found, team = AskedModels(), config.agent.team is not None
    native = config.agent.kind == "tools" and tool_protocol(config) == "native"
    for role, model in named_models(config):
        kind = model.model.partition(":")[0]
        if kind != "openai":
            found.unasked.append(Finding("ok", f"{role} ({model.model})", _UNASKED[kind]))
            continue
        settings = replace(endpoint_of(model), model=model.model.partition(":")[2])
        same = [one for one in found.endpoints if one.settings == settings]
        if not same:
            found.endpoints.append(Endpoint(settings, []))
            same = found.endpoints[-1:]
        same[0].roles.append(role)
        same[0].needs_tools |= native and role == "policy"
        same[0].needs_json |= team and (role == "policy" or role.startswith("agent.team"))
    embeddings = [("lint.embedding", config.lint.embedding)]
    tools = enumerate(config.agent.tools)
    embeddings += [(f"agent.tools.{number}.embedding", tool.embedding) for number, tool in tools]
    for role, wanted in embeddings:
        if wanted is not None and wanted.model == "rehearsal":
            found.unasked.append(Finding("ok", f"{role} (rehearsal)", _UNASKED["rehearsal"]))
        elif wanted is not None:
            found.embeddings.append((role, wanted))
    return found


def model_checks(config: RunConfig, asked: AskedModels) -> list[Awaitable[Sequence[Finding]]]:
    """One check an address, to be awaited together."""
    asking = [(", ".join(one.roles), _ask_addresses(one)) for one in asked.endpoints]
    asking += [(role, _embed(config, role, wanted)) for role, wanted in asked.embeddings]
    return [run_check(place, check, LONGEST_S) for place, check in asking]


async def _ask_addresses(endpoint: Endpoint) -> list[Finding]:
    """All addresses at once; one that does not answer is left out by a run that has others."""
    seen = [observe(address) for address in endpoint.addresses]
    found: list[Finding] = []
    replies = await asyncio.gather(*seen, return_exceptions=True)
    grade: Grade = "fix" if all(isinstance(one, PolicyError) for one in replies) else "note"
    for address, reply in zip(endpoint.addresses, replies, strict=True):
        place = endpoint.place(address)
        if isinstance(reply, PolicyError):
            move = f"The run leaves it out until it answers. {reply.move}"
            move = reply.move if grade == "fix" else move
            found.append(Finding(grade, place, reply.cause, move))
        elif isinstance(reply, BaseException):
            raise reply
        else:
            tools, json = endpoint.needs_tools, endpoint.needs_json
            found += endpoint_findings(place, reply, address.model, tools, json)
    return found


async def _embed(config: RunConfig, role: str, wanted: EmbeddingConfig) -> list[Finding]:
    endpoint = embedding_endpoint(config, wanted)
    place = f"{role} ({wanted.model} at {endpoint.url})"
    embedder = open_embedder(wanted.model, endpoint, None)
    try:
        await embedder.ping()
        made = await embedder.embed(["one word"])
    except PolicyError as error:
        return [Finding("fix", place, error.cause, error.move)]
    except CallFailed as failed:
        return [Finding("fix", place, f"{failed}.", "Check model and address of the embeddings.")]
    finally:
        await embedder.aclose()
    return [Finding("ok", place, f"gives vectors of {len(made.vectors[0])} numbers.")]


# -- data, verifier and tools -----------------------------------------------------------------

PARTS_S = 120.0


async def run_checks(
    workspace: Path,
    config: RunConfig,
    runfile: str,
    overrides: tuple[str, ...],
    tell: Callable[[str], None],
) -> list[Finding]:
    """Models, data, verifier and tools; `tell` hears what asking costs before it is asked."""
    asked = asked_models(config)
    if asked.price:
        tell(asked.price)
    parts = part_findings(workspace, runfile, overrides)
    place = "run" if config.dispatch == "local" else "run on the cluster"
    groups = await asyncio.gather(*model_checks(config, asked), run_check(place, parts, PARTS_S))
    return [*(finding for group in groups for finding in group), *asked.unasked]


def load_new(workspace: Path, runfile: str, overrides: tuple[str, ...]) -> RunPlan:
    """The run file as a new run would have it, whatever runs there are. Raises StudioError."""
    source = Source(overrides, runfile)
    request = RunRequest(workspace=Workspace(workspace), source=source, restart_step="0")
    return load_plan(request, lambda _: None)


async def part_findings(workspace: Path, runfile: str, overrides: tuple[str, ...]) -> list[Finding]:
    order = (str(workspace.absolute()), runfile, overrides)
    return await ask_apart(f"{__name__}:look_at_parts", *order)


def look_at_parts(workspace: str, runfile: str, overrides: list[str]) -> list[Finding]:
    """In the other process. Raises StudioError: a part cannot be opened."""
    plan = load_new(Path(workspace), runfile, tuple(overrides))
    config: RunConfig = rebuild(plan.loaded.config, _without_weights)
    told = [count_text(len(plan.problems), "problem"), f"verifier {config.verifier.name} is there"]
    if config.dispatch == "ray" and installed_version("ray"):
        address = config.ray.address or find_address(os.environ) or "local"
        where: dict[str, Any] = {"ray": config.ray.model_copy(update={"address": address})}
        told.append(f"a worker of the cluster at {address} opens both")
        if address == "local":  # which a run starts, and a doctor does not
            where, told[-1] = {"dispatch": "local"}, "the run starts a cluster of its own"
        config = config.model_copy(update=where)
    facts = asyncio.run(_open(replace(plan, loaded=replace(plan.loaded, config=config))))
    if tools := [str(tool["name"]) for tool in facts.get("tools", ())]:
        told.append(f"tools work: {', '.join(tools)}")
    lacks = [Finding("note", "agent.tools", f"{text}.") for text in facts.get("absent", ())]
    return [*lacks, Finding("ok", "run", f"{'; '.join(told)}.")]


async def _open(plan: RunPlan) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        return await check_verifier(plan, stack)


def _without_weights(value: Any) -> Any:
    """No weights are loaded: a verifier that asks a model is checked without an answer."""
    if isinstance(value, PolicyConfig) and value.model.startswith("hf:"):
        return PolicyConfig(model="rehearsal")
    return value
