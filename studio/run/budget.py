"""The budget of a run file: its limits, the prices of each role, and what is spent."""

from collections.abc import Callable, Mapping
from pathlib import Path

from engines.core.errors import ConfigError, DamagedError
from engines.core.state.run_state import RunState
from engines.core.types import NO_USAGE, Usage
from engines.pipeline.budget import (
    Budget,
    BudgetedPolicy,
    BudgetLimits,
    CallPricing,
    earlier_amounts,
)
from engines.policies.chat.endpoint import EndpointSettings
from engines.record.cassette import is_played
from engines.record.derived.run_state import usage_sums
from engines.verifiers.open import asks_judge
from studio.config.loading import LoadedRun
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig, Role
from studio.config.settings.run import RunConfig
from studio.run.models import Roles, endpoint_of

USUAL_MAX_TOKENS = EndpointSettings().max_tokens or 4096


def limits_of(config: RunConfig) -> BudgetLimits:
    return BudgetLimits(config.budget.calls, config.budget.tokens, config.budget.cost_usd)


def terms_of(settings: PolicyConfig) -> CallPricing:
    """What a role's calls may cost at most."""
    endpoint = endpoint_of(settings)
    limits = (settings.extra_body.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return CallPricing(
        settings.max_tokens or endpoint.max_tokens or USUAL_MAX_TOKENS,
        endpoint.price_in_usd_per_mtok,
        endpoint.price_out_usd_per_mtok,
        # Which of two limits holds is up to the endpoint, so the larger one counts.
        max(_positive_int(limit) for limit in limits),
        max(1, _positive_int(settings.extra_body.get("n"))),
    )


def embedding_terms(settings: EmbeddingConfig) -> CallPricing:
    """What embeddings may cost: they have no reply, so only what is sent counts."""
    return CallPricing(0, settings.price_in_usd_per_mtok, 0.0)


def _positive_int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def endpoint_roles(config: RunConfig) -> tuple[Role, ...]:
    """The roles that may cost money here; a log of rollouts and a handoff cost nothing."""
    roles: list[Role] = ["policy", "reflector"]
    if config.judge is not None or asks_judge(config.verifier.spec):
        roles.append("judge")
    free = ("replay:", "handoff:")
    return tuple(role for role in roles if not config.role(role).model.startswith(free))


def check_budget(loaded: LoadedRun, config: RunConfig) -> None:
    """Refuse a budget in money where the price of a role is unknown.

    `loaded` names the line of the run file; `config` may be a part of its settings.
    """
    if config.budget.cost_usd is None:
        return
    place, unkept = loaded.place("budget.cost_usd"), "so a budget in dollars cannot be kept."
    for role in endpoint_roles(config):
        if terms_of(config.role(role)).has_price:
            continue
        section = role if getattr(config, role) is not None else "policy"
        raise ConfigError(
            place,
            f"what the {role} ({config.role(role).model}) costs is unknown, {unkept}",
            f"Set {section}.price_in_usd_per_mtok and {section}.price_out_usd_per_mtok, or "
            "give the budget as budget.calls or budget.tokens.",
        )
    vectors = {"lint.embedding": config.lint.embedding}
    for number, tool in enumerate(config.agent.tools):
        vectors[f"agent.tools.{number}.embedding"] = tool.embedding
        if tool.model is not None and not terms_of(tool.model).has_price:
            at = f"agent.tools.{number}.model"
            cause = f"what the model of a tool ({tool.model.model}) costs is unknown, {unkept}"
            move = f"Set price_in_usd_per_mtok and price_out_usd_per_mtok of {at}."
            raise ConfigError(place, cause, move)
    for at, wanted in vectors.items():
        if wanted and wanted.model != "rehearsal" and not embedding_terms(wanted).has_price:
            cause = f"what the embeddings ({wanted.model}) cost is unknown, {unkept}"
            raise ConfigError(place, cause, f"Set {at}.price_in_usd_per_mtok.")


def open_budget(
    loaded: LoadedRun, config: RunConfig, records: Path, give_up: Callable[[str], None]
) -> Budget | None:
    """The budget of a run file with what its records say was spent; None where it sets none.

    Raises ConfigError: see `check_budget`. DamagedError: a record cannot be read.
    """
    limits = limits_of(config)
    if not limits or is_played(loaded.tape):  # what is played is free
        return None
    check_budget(loaded, config)
    # Replies of a log were paid for by the run that made the log.
    asked = ((name, usage) for name, usage in usage_sums(records) if not name.startswith("replay:"))
    return Budget(limits, give_up, earlier_amounts(asked, _terms_by_name(config)))


def apply_budget(roles: Roles, config: RunConfig, budget: Budget | None) -> Roles:
    """The same models, each call reserved in the budget first; a ping is a token and is not."""
    if budget is None:
        return roles
    return roles.wrap(
        lambda policy, settings: BudgetedPolicy(
            policy, budget, terms_of(settings), aside=roles.leave_batch
        )
    )


def _terms_by_name(config: RunConfig) -> Mapping[str, CallPricing]:
    """Prices by the name that records have; of two roles with one name the dearer counts."""
    roles = [config.role(role) for role in endpoint_roles(config)]
    roles += [tool.model for tool in config.agent.tools if tool.model is not None]
    pairs = [(settings.model, terms_of(settings)) for settings in roles]
    found = dict(sorted(pairs[::-1], key=lambda pair: pair[1].cost_usd(1, 1)))
    for wanted in (config.lint.embedding, *(tool.embedding for tool in config.agent.tools)):
        if wanted is not None:
            found.setdefault(wanted.model, embedding_terms(wanted))
    return found


def prior_usage(records: Path, state: RunState) -> Usage:
    """What earlier processes of a run spent; from the journal where a record is damaged."""
    try:
        return sum((usage for _, usage in usage_sums(records)), NO_USAGE)
    except DamagedError:
        return state.total_usage
