"""What a run file needs, tried out: models answer a few short questions, parts are opened.

Data, verifier and tools are tried by their own checks in a process of their own: there a verifier
that hangs or ends its process harms nothing, and a cluster leaves nothing behind.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import CallFailed, PolicyError, installed_version
from engines.core.frozen import frozen
from engines.core.text.tokens import prompt_tokens
from engines.core.types import Completion, Message, Sampling, Tell, Usage
from engines.policies.chat import client, embedding
from engines.policies.chat.endpoint import EndpointSettings
from engines.record.repair import Finding, Grade
from engines.record.run_dir import Workspace
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig
from studio.config.settings.run import RunConfig
from studio.config.source import Source
from studio.render.words import count_text
from studio.run import acting, assemble, models, new_or_resume
from studio.workspace import machine

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
AT_ONCE_S = 0.01
"""Pieces that come within this time did not stream: no model is as fast."""


@frozen
class Observed:
    """What an endpoint was seen to do; of a question that failed its failure's text."""

    plain: tuple[Completion | str, ...]
    tool: Completion | str
    json: Completion | str
    streams: bool  # pieces of a plain reply came one after the other
    counts_tokens: bool
    listing: Mapping[str, int | None]
    refused_fields: frozenset[str]
    remarks: tuple[str, ...]


async def observe(
    settings: EndpointSettings, *, clock: Callable[[], float] = time.monotonic
) -> Observed:
    """Ask all questions, one after the other. Raises PolicyError: it does not answer at all."""
    limit_s = min(settings.timeout_s, client.PING_S)
    retries = min(settings.max_retries, 1)
    policy = client.OpenAICompat(replace(settings, timeout_s=limit_s, max_retries=retries))
    replies: list[Completion | str] = []
    pieces: list[float] = []  # when those of a reply came
    streams = False
    try:
        await policy.ping()
        listing = await policy.list_models()
        for asked, sampling in _QUESTIONS:
            pieces.clear()
            try:
                reply = await policy.complete(asked, sampling, lambda _: pieces.append(clock()))
            except CallFailed as failed:
                replies.append(str(failed).partition(": ")[2] or str(failed))
                continue
            replies.append(reply)
            if asked is _ASKED and pieces:
                streams |= pieces[-1] - pieces[0] >= AT_ONCE_S
    finally:
        await policy.aclose()
    *plain, tool, json = replies
    return Observed(
        plain=tuple(plain),
        tool=tool,
        json=json,
        streams=streams,
        counts_tokens=not policy.dialect.uncounted,
        listing=listing,
        refused_fields=frozenset(policy.dialect.without),
        remarks=tuple(sorted(policy.dialect.remarks)),
    )


def endpoint_findings(
    place: str, seen: Observed, model: str, needs_tools: bool, needs_json: bool
) -> list[Finding]:
    """`needs_tools`: the run offers tools and reads native calls; `needs_json`: JSON mode helps."""
    able, findings = ["answers"], list[Finding]()

    def note(cause: str, move: str, grade: Grade = "note") -> None:
        findings.append(Finding(grade, place, cause, move))

    texts = [reply.text for reply in seen.plain if isinstance(reply, Completion)]
    for failure in {reply for reply in seen.plain if isinstance(reply, str)}:
        note(f"it fails at a short question ({failure}).", "Give the command again; see its log.")
    if seen.streams:
        able.append("streams")
    elif texts:
        move = "Look for a proxy that holds replies back; rollouts show at their end only."
        note("it does not stream: a reply comes all at once.", move)

    grade, cause = _tool_trouble(seen.tool)
    if not cause:
        able.append("native tool calls")
    elif needs_tools:
        move = "Set agent.tool_protocol=text, or start the server with its parser of tool calls."
        note(f"{cause}, and this run's agent needs that.", move, grade)
    else:
        able.append(f"no native tool calls, which this run does without ({cause})")

    cause = _json_trouble(seen)
    if not cause:
        able.append("JSON mode")
    elif needs_json:
        note(f"{cause}: the prompt alone asks for the form.", "A model that has it errs less.")
    else:
        able.append(f"no JSON mode, which this run does without ({cause})")

    if seen.counts_tokens:
        able.append("counts tokens")
    else:
        note("it counts no tokens: budgets and costs are estimates.", "Ask its maker for `usage`.")
    cause = "refuses a seed" if "seed" in seen.refused_fields else "gives two replies for one seed"
    if "seed" in seen.refused_fields or len(set(texts)) > 1:
        note(f"it {cause}: a run cannot be repeated.", "--record keeps replies to play them again.")
    elif len(texts) > 1:
        able.append("honours seeds (2 replies alike)")
    if window := seen.listing.get(model):
        able.append(f"context of {window:,} tokens")
    for remark in seen.remarks:
        note(f"{remark}.", "See whether that is the model you want.")
    return [*findings, Finding("ok", place, f"{', '.join(able)}.")]


def _tool_trouble(reply: Completion | str) -> tuple[Grade, str]:
    """What is wrong with native tool calls, and how sure that is; "" where they work."""
    if isinstance(reply, str):
        return "fix", f"it refuses tools ({reply})"
    if any(call.name == _TOOL["name"] for call in reply.tool_calls):
        return "ok", ""
    if str(_TOOL["name"]) in reply.text:
        return "fix", "it writes function calls into its text"
    return "note", "asked once for a function call, it makes none"


def _json_trouble(seen: Observed) -> str:
    if "response_format" in seen.refused_fields or isinstance(seen.json, str):
        return "it refuses JSON mode"
    with suppress(orjson.JSONDecodeError):
        if isinstance(orjson.loads(seen.json.text), dict):
            return ""
    return "it takes JSON mode, and what comes is no JSON"


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
    roles: list[str] = field(default_factory=list)
    needs_tools: bool = False
    needs_json: bool = False

    @property
    def addresses(self) -> list[EndpointSettings]:
        own = self.settings
        return [replace(own, base_url=url, replicas=()) for url in (own.base_url, *own.replicas)]


@dataclass(slots=True)
class AskedModels:
    """What would be asked for a run file, and what needs no asking."""

    endpoints: list[Endpoint] = field(default_factory=list)
    embeddings: list[tuple[str, EmbeddingConfig]] = field(default_factory=list)
    unasked: list[Finding] = field(default_factory=list)

    @property
    def price(self) -> str:
        """What asking costs at most, in words; "" where nothing is asked."""
        addresses = [address for endpoint in self.endpoints for address in endpoint.addresses]
        if not addresses:
            return ""
        usage = Usage(MOST_TOKENS, MOST_TOKENS, 1)
        prices = [usd for address in addresses if (usd := address.cost_usd(usage)) is not None]
        cost = f", under ${sum(prices):.4f} in all" if len(prices) == len(addresses) else ""
        where = count_text(len(addresses), "address", "addresses")
        return f"asking {where}: about {MOST_TOKENS} tokens at most each{cost}"


def named_models(config: RunConfig) -> Iterator[tuple[str, PolicyConfig]]:
    """Every model that the run asks, by the setting that names it."""
    used = [*models.endpoint_roles(config), "policy", "reflector"]
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
    result, team = AskedModels(), config.agent.team is not None
    native = config.agent.kind == "tools" and acting.tool_protocol(config) == "native"
    endpoints: dict[str, Endpoint] = {}
    for role, model in named_models(config):
        kind, _, name = model.model.partition(":")
        if kind != "openai":
            result.unasked.append(Finding("ok", f"{role} ({model.model})", _UNASKED[kind]))
            continue
        settings = replace(models.endpoint_of(model), model=name)
        endpoint = endpoints.setdefault(repr(settings), Endpoint(settings))
        endpoint.roles.append(role)
        endpoint.needs_tools |= native and role == "policy"
        endpoint.needs_json |= team and (role == "policy" or role.startswith("agent.team"))
    result.endpoints += endpoints.values()
    embeddings = {"lint.embedding": config.lint.embedding}
    for number, tool in enumerate(config.agent.tools):
        embeddings[f"agent.tools.{number}.embedding"] = tool.embedding
    for role, wanted in embeddings.items():
        if wanted is not None and wanted.model == "rehearsal":
            result.unasked.append(Finding("ok", f"{role} (rehearsal)", _UNASKED["rehearsal"]))
        elif wanted is not None:
            result.embeddings.append((role, wanted))
    return result


async def _ask_addresses(endpoint: Endpoint) -> list[Finding]:
    """All addresses at once; one that does not answer is left out by a run that has others."""
    observing = [observe(address) for address in endpoint.addresses]
    results = await asyncio.gather(*observing, return_exceptions=True)
    answers = any(isinstance(result, Observed) for result in results)
    findings: list[Finding] = []
    for address, result in zip(endpoint.addresses, results, strict=True):
        place = f"{', '.join(endpoint.roles)} (openai:{address.model} at {address.url})"
        if isinstance(result, Observed):
            needs = endpoint.needs_tools, endpoint.needs_json
            findings += endpoint_findings(place, result, address.model, *needs)
        elif not isinstance(result, PolicyError):
            raise result
        elif answers:
            findings.append(
                Finding(
                    "note",
                    place,
                    result.cause,
                    f"The run leaves it out until it answers. {result.move}",
                )
            )
        else:
            findings.append(Finding("fix", place, result.cause, result.move))
    return findings


async def _embed(config: RunConfig, role: str, wanted: EmbeddingConfig) -> list[Finding]:
    endpoint = models.embedding_endpoint(config, wanted)
    place = f"{role} ({wanted.model} at {endpoint.url})"
    embedder = embedding.open_embedder(wanted.model, endpoint, None)
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
    overrides: Sequence[str],
    tell: Tell,
) -> list[Finding]:
    """Models, data, verifier and tools; `tell` hears what asking costs before it is asked."""
    asked = asked_models(config)
    if asked.price:
        tell(asked.price)
    order = str(workspace.absolute()), runfile, overrides
    place = "run" if config.dispatch == "local" else "run on the cluster"
    parts = machine.ask_apart(f"{__name__}:look_at_parts", *order)
    checks = [machine.run_check(place, parts, PARTS_S)]
    for endpoint in asked.endpoints:
        place = ", ".join(endpoint.roles)
        checks.append(machine.run_check(place, _ask_addresses(endpoint), LONGEST_S))
    for role, wanted in asked.embeddings:
        checks.append(machine.run_check(role, _embed(config, role, wanted), LONGEST_S))
    groups = await asyncio.gather(*checks)
    return [*(finding for group in groups for finding in group), *asked.unasked]


def load_new(workspace: Path, runfile: str, overrides: Sequence[str]) -> new_or_resume.RunPlan:
    """The run file as a new run would have it, whatever runs there are. Raises StudioError."""
    source = Source(tuple(overrides), runfile)
    request = new_or_resume.RunRequest(
        workspace=Workspace(workspace), source=source, restart_step="0"
    )
    return new_or_resume.load_plan(request, lambda _: None)


def look_at_parts(workspace: str, runfile: str, overrides: list[str]) -> list[Finding]:
    """In the other process. Raises StudioError: a part cannot be opened."""
    plan = load_new(Path(workspace), runfile, overrides)
    config: RunConfig = acting.rebuild(plan.loaded.config, _without_weights)
    told = [count_text(len(plan.problems), "problem"), f"verifier {config.verifier.name} is there"]
    if config.dispatch == "ray" and installed_version("ray"):
        address = config.ray.address or machine.find_address(os.environ) or "local"
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


async def _open(plan: new_or_resume.RunPlan) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        return await assemble.check_verifier(plan, stack)


def _without_weights(value: Any) -> Any:
    """No weights are loaded: a verifier that asks a model is checked without an answer."""
    if isinstance(value, PolicyConfig) and value.model.startswith("hf:"):
        return PolicyConfig(model="rehearsal")
    return value
