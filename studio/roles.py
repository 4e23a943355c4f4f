"""The models of a run: opened from the run file, asked at the start, closed with the run.

Owns how a role's settings become an endpoint and a way of sampling.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from engines.core.concurrently import all_of
from engines.core.protocols import Ledger, Policy
from engines.core.types import Problem, Sampling
from engines.data.rollout_log import read_log
from engines.policies.endpoint import EndpointSettings
from engines.policies.open import is_scripted, open_policy
from engines.policies.openai_compat import OpenAICompat
from engines.policies.paced import Paced
from engines.policies.parked import Parked
from engines.policies.replay import Replay
from engines.policies.throttle import Slots, Throttled
from engines.verifiers.judging import Judging
from engines.verifiers.open import asks_judge
from studio.config.settings import WATCHABLE_TOKENS_PER_S, PolicyConfig, Role, RunConfig

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Roles:
    """The models of a run; two roles with the same endpoint share one client.

    `judge` is None where the run file sets none and the verifier asks none. One that is
    set is among the distinct ones, so it is asked at the start.
    """

    policy: Policy
    reflector: Policy
    judge: Policy | None
    distinct: tuple[Policy, ...]

    async def ping(self) -> None:
        """Every role's endpoint, before anything is spent. Raises PolicyError."""
        await all_of(policy.ping() for policy in self.distinct)

    def tell_notes(self, tell: Tell) -> None:
        """Say what endpoints refused and had to be left out of requests."""
        for policy in self.distinct:
            if isinstance(policy, OpenAICompat):
                for note in policy.dialect.notes:
                    tell(f"{policy.name}: {note}")


def open_roles(config: RunConfig, stack: AsyncExitStack) -> Roles:
    """Open the models a run file names; they are closed with the stack.

    Raises:
        PolicyError, DataError: a model has no known form, or its log cannot be read.
    """
    opened: list[tuple[EndpointSettings, Policy]] = []

    def opened_for(role: Role) -> Policy:
        settings = config.role(role)
        endpoint = endpoint_of(settings)
        for known, policy in opened:
            if known == endpoint:
                return policy
        policy = open_model(settings)
        stack.push_async_callback(policy.aclose)
        opened.append((endpoint, policy))
        return policy

    policy, reflector = opened_for("policy"), opened_for("reflector")
    asked = config.judge is not None or asks_judge(config.verifier.spec)
    judge = opened_for("judge") if asked else None
    return Roles(policy, reflector, judge, tuple(policy for _, policy in opened))


def parkable(roles: Roles, cleared: Callable[[], Awaitable[None]]) -> Roles:
    """The same models, each call waiting until it is cleared. Replies of a log are no calls."""

    def waiting(policy: Policy) -> Policy:
        return policy if isinstance(policy, Replay) else Parked(policy, cleared)

    return replace(
        roles,
        policy=waiting(roles.policy),
        reflector=waiting(roles.reflector),
        judge=None if roles.judge is None else waiting(roles.judge),
    )


def pace_of(config: RunConfig, *, watched: bool) -> float | None:
    """Tokens a second at which each scripted rollout streams; None: all of it at once.

    Args:
        config: of the run.
        watched: a screen is to be attached, so that there is somebody to stream for.
    """
    pace = config.policy.pace_tokens_per_s
    if pace is None and watched and is_scripted(config.policy.model):
        return WATCHABLE_TOKENS_PER_S
    return pace


def slots_for(settings: PolicyConfig | None, shared: Slots) -> Slots:
    """Slots of a role's own where its settings limit its calls, else the shared ones."""
    limit = settings.concurrency if settings is not None else None
    return shared if limit is None else Slots(limit, shared.tell)


def judging_of(config: RunConfig, roles: Roles, ledger: Ledger, shared: Slots) -> Judging | None:
    """The judge as verifiers ask it; None where there is none that can answer a question."""
    settings = config.role("judge")
    if roles.judge is None or settings.model.startswith("replay:"):
        return None
    slots = slots_for(config.judge, shared)
    return Judging(Throttled(roles.judge, slots, (0,)), sampling_of(settings), ledger)


def open_model(settings: PolicyConfig) -> Policy:
    """Raises PolicyError, DataError: as `open_roles`."""
    return open_policy(settings.model, endpoint_of(settings), read_log=read_log)


def endpoint_of(settings: PolicyConfig) -> EndpointSettings:
    key = settings.api_key
    return EndpointSettings(
        model=settings.model,
        base_url=settings.base_url,
        api_key=key.get_secret_value() if key else None,
        timeout_s=settings.timeout_s,
        max_retries=settings.max_retries,
        extra_body=settings.extra_body,
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
        price_in_usd_per_mtok=settings.price_in_usd_per_mtok,
        price_out_usd_per_mtok=settings.price_out_usd_per_mtok,
    )


def sampling_of(settings: PolicyConfig) -> Sampling:
    return Sampling(settings.temperature, settings.top_p, settings.max_tokens, settings.stop)


def repeats(policy: Policy, problems: Sequence[Problem], group_size: int) -> str | None:
    """What to say where a log is too short for its groups; None where nothing repeats."""
    if isinstance(policy, Paced):
        policy = policy.inner
    if not isinstance(policy, Replay):
        return None
    questions = {problem.question for problem in problems}
    short = sum(0 < policy.replies(question) < group_size for question in questions)
    if not short:
        return None
    some = f"{short} questions have" if short > 1 else "1 question has"
    return (
        f"{policy.name}: {some} fewer replies in the log than practice.group_size={group_size}; "
        "some stand in a group twice"
    )


def is_rehearsal(config: RunConfig) -> bool:
    """Whether any reply of the run is scripted, also when it comes over a real endpoint."""
    models = [config.policy.model, (config.reflector or config.policy).model]
    if asks_judge(config.verifier.spec):
        models.append((config.judge or config.policy).model)
    return any("rehearsal" in model.split(":")[:2] for model in models)
