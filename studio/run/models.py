"""The models of a run: opened from the run file, asked at the start, closed with the run.

Owns how a role's settings become an endpoint and a way of sampling.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from engines.agents.open import open_agent
from engines.core.protocols import Agent, Ledger, Policy
from engines.core.types import Problem, Sampling
from engines.core.waiting.gather import gather_all
from engines.data.rollout_log import read_rollout_log
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.limits.paced import StreamPacedPolicy
from engines.policies.limits.pausable import PausablePolicy
from engines.policies.limits.throttle import Slots, Throttled
from engines.policies.open import is_scripted, open_policy
from engines.policies.replay import ReplayPolicy
from engines.verifiers.judge_context import JudgeContext
from engines.verifiers.open import asks_judge
from studio.config.settings.policy import WATCHABLE_TOKENS_PER_S, PolicyConfig, Role
from studio.config.settings.run import RunConfig
from studio.run.local_models import LocalModels, is_local, open_vllm_rollouts

if TYPE_CHECKING:
    from engines.policies.hf_local.policy import HFLocal
    from engines.policies.vllm.policy import VLLMRollouts

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
    local: HFLocal | None = None  # the policy itself, below what wraps it, if its weights are here
    rollouts: VLLMRollouts | None = None  # samples in its place, given each new adapter

    @property
    def join_batch(self) -> Callable[[], AbstractContextManager[None]] | None:
        """Counts a try of the policy as one that its batches wait for; None: it has no batches."""
        if self.local is None or self.rollouts is not None:
            return None
        return self.local.join_batch

    @property
    def leave_batch(self) -> Callable[[], AbstractContextManager[None]]:
        """Entered by a call that waits for money: the batches go on without its try."""
        return nullcontext if self.local is None else self.local.leave_batch

    @property
    def weights(self) -> Callable[[], str] | None:
        """Identifies the policy's weights as they are; None where they are not here."""
        return None if self.local is None else self.local.local.weights_digest

    async def ping(self) -> None:
        """Every role's endpoint, before anything is spent. Raises PolicyError."""
        await gather_all(policy.ping() for policy in self.distinct)

    def tell_notes(self, tell: Tell) -> None:
        """Say what endpoints refused and had to be left out of requests."""
        for policy in self.distinct:
            if isinstance(policy, OpenAICompat):
                for note in policy.dialect.notes:
                    tell(f"{policy.name}: {note}")


def open_roles(
    config: RunConfig,
    stack: AsyncExitStack,
    tell: Tell = lambda _: None,
    *,
    training: bool = False,
    threads: int | None = None,
) -> Roles:
    """Open the models a run file names; they are closed with the stack.

    Args:
        config: the run file.
        stack: closes them.
        tell: is told how weights were loaded that are on this machine.
        training: whether the policy's weights are to be updated.
        threads: of the CPU that an earlier process of the run trained with.

    Raises:
        PolicyError, DataError: a model has no known form, or its log cannot be read.
    """
    opened: list[tuple[object, Policy]] = []
    local = LocalModels(config, tell, training, threads)

    def open_role(role: Role) -> Policy:
        settings = config.role(role)
        here = is_local(settings.model)
        which = local.settings(settings) if here else endpoint_of(settings)
        for known, policy in opened:
            if known == which:
                return policy
        policy = local.open(settings) if here else open_model(settings)
        stack.push_async_callback(policy.aclose)
        opened.append((which, policy))
        return policy

    policy = open_role("policy")
    reflector = policy if config.trains else open_role("reflector")
    asked = config.judge is not None or asks_judge(config.verifier.spec)
    judge = open_role("judge") if asked else None
    own = cast("HFLocal", policy) if is_local(config.policy.model) else None
    distinct = tuple(policy for _, policy in opened)
    if own is None or not training or config.policy.local.rollouts_url is None:
        return Roles(policy, reflector, judge, distinct, own)
    served = open_vllm_rollouts(config, own, tell)
    stack.push_async_callback(served.aclose)
    return Roles(served, reflector, judge, (*distinct, served), own, served)


def make_pausable(roles: Roles, cleared: Callable[[], Awaitable[None]]) -> Roles:
    """The same models, each call waiting until it is cleared. Replies of a log are no calls."""

    def wrap_policy(policy: Policy) -> Policy:
        return policy if isinstance(policy, ReplayPolicy) else PausablePolicy(policy, cleared)

    return replace(
        roles,
        policy=wrap_policy(roles.policy),
        reflector=wrap_policy(roles.reflector),
        judge=None if roles.judge is None else wrap_policy(roles.judge),
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


def rollout_slots(config: RunConfig, shared: Slots) -> Slots:
    """Slots of rollouts.

    A policy whose weights are here has room for every try of a step: who shares a batch must
    not depend on who was done first.
    """
    if not is_local(config.policy.model) or config.policy.local.rollouts_url is not None:
        return slots_for(config.policy, shared)
    practice = config.practice
    tries = practice.batch_size * practice.group_size
    return Slots(max(tries, config.policy.local.max_batch), shared.tell)


def make_judging(
    config: RunConfig, roles: Roles, ledger: Ledger, shared: Slots
) -> JudgeContext | None:
    """The judge as verifiers ask it; None where there is none that can answer a question."""
    settings = config.role("judge")
    if roles.judge is None or settings.model.startswith("replay:"):
        return None
    slots = slots_for(config.judge, shared)
    return JudgeContext(Throttled(roles.judge, slots, (0,)), sampling_of(settings), ledger)


def open_model(settings: PolicyConfig) -> Policy:
    """Raises PolicyError, DataError: as `open_roles`."""
    return open_policy(settings.model, endpoint_of(settings), read_log=read_rollout_log)


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


def agent_of(config: RunConfig, sampling: Sampling) -> Agent:
    """Who tries the problems, asking its model in the given way."""
    agent = config.agent
    return open_agent(agent.kind, agent.instructions, sampling, agent.max_turns)


def sampling_of(settings: PolicyConfig) -> Sampling:
    return Sampling(settings.temperature, settings.top_p, settings.max_tokens, settings.stop)


def short_log_note(policy: Policy, problems: Sequence[Problem], group_size: int) -> str | None:
    """What to say where a log is too short for its groups; None where nothing repeats."""
    if isinstance(policy, StreamPacedPolicy):
        policy = policy.inner
    if not isinstance(policy, ReplayPolicy):
        return None
    questions = {problem.question for problem in problems}
    short = sum(0 < policy.reply_count(question) < group_size for question in questions)
    if not short:
        return None
    some = f"{short} questions have" if short > 1 else "1 question has"
    return (
        f"{policy.name}: {some} fewer replies in the log than practice.group_size={group_size}; "
        "some stand in a group twice"
    )


def is_rehearsal(config: RunConfig) -> bool:
    """Whether any reply of the run is scripted, also when it comes over a real endpoint."""
    return bool(_scripted_roles(config))


def rehearsal_note(config: RunConfig) -> str | None:
    """What to say of scripted replies; None where there are none."""
    scripted = _scripted_roles(config)
    if not scripted:
        return None
    if "policy" in scripted:
        return "rehearsal: replies are scripted, no model is asked"
    return (
        f"rehearsal: what the {' and the '.join(scripted)} says is scripted; the policy "
        f"{config.policy.model} is asked"
    )


def _scripted_roles(config: RunConfig) -> list[Role]:
    roles: list[Role] = ["policy"]
    if not config.trains:
        roles.append("reflector")  # a weight update is computed, nobody draws a lesson
    if asks_judge(config.verifier.spec):
        roles.append("judge")
    return [role for role in roles if "rehearsal" in config.role(role).model.split(":")[:2]]
