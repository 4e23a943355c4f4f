"""Which models a run file names, and what asking each of them finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from engines.core.errors import CallFailed, PolicyError
from engines.core.types import Usage
from engines.policies.chat.embedding import open_embedder
from engines.policies.chat.endpoint import EndpointSettings
from engines.record.repair import Finding, Grade
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig
from studio.config.settings.run import RunConfig
from studio.run.acting import tool_protocol
from studio.run.budget import endpoint_roles
from studio.run.models import embedding_endpoint, endpoint_of
from studio.workspace.ask import run_check
from studio.workspace.checks.endpoint import MOST_TOKENS, endpoint_findings, observe

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
    asking = [(", ".join(one.roles), _ask(one)) for one in asked.endpoints]
    asking += [(role, _embed(config, role, wanted)) for role, wanted in asked.embeddings]
    return [run_check(place, check, LONGEST_S) for place, check in asking]


async def _ask(endpoint: Endpoint) -> list[Finding]:
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
