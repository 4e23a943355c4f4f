"""Which models a run file names, and what asking each of them finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from engines.core.errors import CallFailed, PolicyError
from engines.policies.chat.embedding import open_embedder
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.vllm.connection import VLLMServer
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig
from studio.config.settings.run import RunConfig
from studio.run.acting import tool_protocol
from studio.run.budget import endpoint_roles
from studio.run.models import embedding_endpoint, endpoint_of
from studio.workspace.checks.endpoint import MOST_TOKENS, ask_endpoint, unreachable
from studio.workspace.checks.finding import Finding, run_check

LONGEST_S = 150.0
"""Of all questions to one address: each of five has its own deadline of 30 s."""
_UNASKED = {
    "rehearsal": "replies are scripted: there is nothing to ask.",
    "replay": "replies come from a log: there is nothing to ask.",
    "hf": "its weights are loaded by the run: there is no endpoint to ask.",
    "handoff": "whoever answers files is the model: there is nothing to ask.",
}


@dataclass(slots=True)
class Address:
    """One address of a model, with the roles that ask it."""

    settings: EndpointSettings
    roles: list[str]
    needs_tools: bool = False
    needs_json: bool = False

    @property
    def place(self) -> str:
        name = f"openai:{self.settings.model} at {self.settings.url}"
        return f"{', '.join(dict.fromkeys(self.roles))} ({name})"


@dataclass(slots=True)
class AskedModels:
    """What would be asked for a run file, and what needs no asking."""

    addresses: list[Address] = field(default_factory=list)
    embeddings: list[tuple[str, EmbeddingConfig]] = field(default_factory=list)
    servers: list[str] = field(default_factory=list)  # of vLLM, that sample in a policy's place
    unasked: list[Finding] = field(default_factory=list)

    @property
    def price(self) -> str:
        """What asking costs at most, in words; "" where nothing is asked."""
        many = len(self.addresses)
        if not many:
            return ""
        prices = [
            max(one.settings.price_in_usd_per_mtok, one.settings.price_out_usd_per_mtok)
            for one in self.addresses
            if one.settings.price_in_usd_per_mtok is not None
            and one.settings.price_out_usd_per_mtok is not None
        ]
        known = len(prices) == many
        cost = f", under ${sum(prices) * MOST_TOKENS / 1e6:.4f} in all" if known else ""
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
            if model.local.rollouts_url is not None:
                found.servers.append(model.local.rollouts_url)
            continue
        whole = replace(endpoint_of(model), model=model.model.partition(":")[2])
        for url in (whole.base_url, *whole.replicas):
            _add(found, replace(whole, base_url=url, replicas=()), role, native, team)
    embeddings = [("lint.embedding", config.lint.embedding)]
    tools = enumerate(config.agent.tools)
    embeddings += [(f"agent.tools.{number}.embedding", tool.embedding) for number, tool in tools]
    for role, wanted in embeddings:
        if wanted is not None and wanted.model == "rehearsal":
            found.unasked.append(Finding("ok", f"{role} (rehearsal)", _UNASKED["rehearsal"]))
        elif wanted is not None:
            found.embeddings.append((role, wanted))
    return found


def _add(
    found: AskedModels, settings: EndpointSettings, role: str, native: bool, team: bool
) -> None:
    same = [one for one in found.addresses if one.settings == settings]
    if not same:
        found.addresses.append(Address(settings, []))
        same = found.addresses[-1:]
    same[0].roles.append(role)
    same[0].needs_tools |= native and role == "policy"
    same[0].needs_json |= team and (role == "policy" or role.startswith("agent.team"))


def model_checks(
    config: RunConfig, asked: AskedModels, offsets: list[tuple[str, float]]
) -> list[Awaitable[Sequence[Finding]]]:
    """One check an address, to be awaited together; `offsets` gets what each clock says."""
    checks: list[tuple[str, Callable[[], Awaitable[list[Finding]]]]] = []
    for address in asked.addresses:
        checks.append((address.place, lambda one=address: _ask(one, offsets)))  # type: ignore[misc]
    for role, wanted in asked.embeddings:
        checks.append((role, lambda r=role, w=wanted: _embed(config, r, w)))  # type: ignore[misc]
    for url in asked.servers:
        checks.append((url, lambda url=url: _sampler(url, config)))  # type: ignore[misc]
    return [run_check(place, check(), LONGEST_S) for place, check in checks]


async def _ask(address: Address, offsets: list[tuple[str, float]]) -> list[Finding]:
    place, needs = address.place, (address.needs_tools, address.needs_json)
    try:
        found, offset = await ask_endpoint(
            place, address.settings, needs_tools=needs[0], needs_json=needs[1]
        )
    except PolicyError as error:
        return [unreachable(", ".join(dict.fromkeys(address.roles)), error)]
    if offset is not None:
        offsets.append((address.settings.url, offset))
    return found


async def _embed(config: RunConfig, role: str, wanted: EmbeddingConfig) -> list[Finding]:
    endpoint = embedding_endpoint(config, wanted)
    embedder = open_embedder(wanted.model, endpoint, None)
    try:
        await embedder.ping()
        made = await embedder.embed(["one word"])
    except PolicyError as error:
        return [unreachable(role, error)]
    except CallFailed as failed:
        return [Finding("fix", role, f"{failed}.", "Check model and address of the embeddings.")]
    finally:
        await embedder.aclose()
    place = f"{role} ({wanted.model} at {endpoint.url})"
    return [Finding("ok", place, f"gives vectors of {len(made.vectors[0])} numbers.")]


async def _sampler(url: str, config: RunConfig) -> list[Finding]:
    place = f"policy.local.rollouts_url ({url})"
    server = VLLMServer(replace(endpoint_of(config.policy), model="", base_url=url), 10.0)
    try:
        listed = (await server.ask("models")).get("data") or []
    except CallFailed as failed:
        return [Finding("fix", place, f"{failed}.", "Start vLLM there, or correct the address.")]
    finally:
        await server.aclose()
    return [Finding("ok", place, f"answers, and lists {len(listed)} models.")]
