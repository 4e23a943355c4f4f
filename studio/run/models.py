"""The models of a run, and the verifier that may ask them.

Models are opened from the run file, asked once at the start and closed with the run; nothing of
torch is imported until one is opened. `engines.verifiers.open` knows the kinds of verifiers,
`studio.data.catalogue` their folders.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engines.core import codec, errors, waiting
from engines.core.frozen import frozen
from engines.core.protocols import Embedder, Ledger, Policy, Verifier, judges_whole_groups
from engines.core.state.run_state import RunState
from engines.core.types import NO_USAGE, CallKey, Problem, Rollout, Tell, Usage, Verdict
from engines.data.dataset import read_rollout_log
from engines.data.source import resolve_data
from engines.pipeline.budget import (
    BYTES_A_TOKEN,
    Amounts,
    Budget,
    BudgetedPolicy,
    BudgetLimits,
    CallPricing,
    earlier_amounts,
)
from engines.policies import handoff, replay
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.embedding import Reserve, open_embedder
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.hf_local.settings import LocalSettings
from engines.policies.limits import PausablePolicy, Slots, StreamPacedPolicy, Throttled
from engines.policies.open import is_scripted, open_policy
from engines.record.cassette import (
    Cassette,
    PlayedPolicy,
    RecordingPolicy,
    TapedEmbedder,
    is_played,
)
from engines.record.derived.run_state import usage_sums
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from engines.rollouts.manager import RolloutManager
from engines.secrets.mask import Mask
from engines.verifiers.compose import LearnedSettings, LearnedVerifier
from engines.verifiers.foreign.calls import shared_columns
from engines.verifiers.judge import JudgeContext
from engines.verifiers.open import (
    ParsedVerifier,
    SpecError,
    asks_judge,
    grades_tasks,
    loads_weights,
    open_verifier,
    parse_spec,
)
from studio.config.loading import LoadedRun, own_programs
from studio.config.run_yaml import fingerprint
from studio.config.settings.policy import (
    WATCHABLE_TOKENS_PER_S,
    EmbeddingConfig,
    PolicyConfig,
    Role,
)
from studio.config.settings.run import EvaluationConfig, RunConfig
from studio.data.catalogue import verifier_folders
from studio.render import lines, words
from studio.run.acting import Acting, RemoteWork, open_acting, open_remote_work, sampling_of
from studio.secrets.run_files import without_secrets

if TYPE_CHECKING:
    from engines.policies.hf_local.policy import HFLocal
    from engines.policies.vllm import VLLMRollouts


BUNDLED = "tiny"
"""The model that ships with the studio."""
_DIGEST_BYTES = 4_000_000
"""Read of each end of a weights file: whole files of many gigabytes would take minutes."""


@frozen
class Roles:
    """The models of a run; two roles with the same endpoint share one client."""

    policy: Policy
    reflector: Policy
    judge: Policy | None  # None: the run file sets none, and the verifier asks none
    distinct: tuple[Policy, ...]
    acting: Acting
    local: "HFLocal | None" = None  # the policy without its wrappers, if its weights are here
    rollouts: "VLLMRollouts | None" = None  # samples in its place, with each new adapter
    cassette: Cassette | None = None  # of what all of them say
    remote: RemoteWork | None = None  # where tries are made; None: in this process

    @property
    def join_batch(self) -> Callable[[], AbstractContextManager[None]] | None:
        """Entered by a try that the policy's batches then wait for; None: it has no batches."""
        if self.local is None or self.rollouts is not None or is_played(self.cassette):
            return None
        return self.local.join_batch

    @property
    def leave_batch(self) -> Callable[[], AbstractContextManager[None]]:
        """Entered by a call that waits for its budget: the batches go on without its try."""
        return nullcontext if self.local is None else self.local.leave_batch

    @property
    def weights(self) -> Callable[[], str] | None:
        """Gives a digest of the policy's weights as they are now; None: they are not here."""
        return None if self.local is None else self.local.local.weights_digest

    def wrap(self, wrap: Callable[[Policy, PolicyConfig], Policy]) -> "Roles":
        """The same models, each wrapped; a log of replies, which is never asked, stays as it is."""
        config = self.acting.config

        def wrap_one(policy: Policy, settings: PolicyConfig) -> Policy:
            return policy if isinstance(policy, replay.ReplayPolicy) else wrap(policy, settings)

        for model in self.acting.models:  # of tools, round which the same is put
            model.inner = wrap_one(model.inner, model.settings)
        return replace(
            self,
            policy=wrap_one(self.policy, config.role("policy")),
            reflector=wrap_one(self.reflector, config.role("reflector")),
            judge=None if self.judge is None else wrap_one(self.judge, config.role("judge")),
        )

    async def ping(self) -> None:
        """Ask every role's endpoint once, before anything is spent. Raises PolicyError."""
        await waiting.gather_all(policy.ping() for policy in self.distinct)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which fields endpoints refused, so that requests left them out, and who answered."""
        return tuple(
            f"{policy.name}: {note}"
            for policy in self.distinct
            if isinstance(policy, OpenAICompat)
            for note in policy.dialect.notes
        )

    def tell_strays(self, tell: Tell) -> None:
        """Tell which files of handoffs belong to no call that was made."""
        handoffs = [policy for policy in self.distinct if isinstance(policy, handoff.HandoffPolicy)]
        tell_each(tell, handoff.folder_remarks(handoffs))


def open_roles(
    config: RunConfig,
    stack: AsyncExitStack,
    tell: Tell = lambda _: None,
    *,
    training: bool = False,
    threads: int | None = None,
    workspace: Path | None = None,
    cassette: Cassette | None = None,
    budget: Budget | None = None,
    ledger: RecordLedger | None = None,
) -> Roles:
    """Open the models a run file names; they are closed with the stack.

    With `training` the policy's weights are to be updated; `threads` of the CPU are those that an
    earlier process of the run trained with. What tools find is kept in the workspace. Where a
    `cassette` is played none is opened but weights to train. Each call, but no ping, is reserved
    in the `budget` first; the `ledger` records what vectors cost.

    Raises PolicyError, DataError: a model has no known form, or its log cannot be read.
    """
    opened: list[tuple[object, Policy]] = []
    trained, frozen = LocalModels(config, tell, training, threads), LocalModels(config, tell)

    def open_new(settings: PolicyConfig, local: LocalModels) -> Policy:
        here = is_local(settings.model)
        which = local.settings(settings) if here else endpoint_of(settings)
        # Equal settings share one client, so that its limits hold for both roles together.
        if same := [policy for known, policy in opened if known == which]:
            return same[0]
        policy = local.open(settings) if here else open_model(settings)
        stack.push_async_callback(policy.aclose)
        opened.append((which, policy))
        return policy

    def open_one(settings: PolicyConfig, local: LocalModels = trained) -> Policy:
        if cassette is None or settings.model.startswith("replay:"):
            return open_new(settings, local)
        if not cassette.plays:
            return RecordingPolicy(open_new(settings, local), cassette)
        kind, _, rest = settings.model.partition(":")
        name = f"handoff:{Path(rest).name}" if kind == "handoff" else settings.model
        return PlayedPolicy(cassette, name.removesuffix(":"))

    weights_here = is_local(config.policy.model) and (training or not is_played(cassette))
    own = cast("HFLocal", open_new(config.role("policy"), trained)) if weights_here else None
    policy = open_one(config.role("policy"))
    # GRPO alone asks no reflector; an endpoint of its own is not even pinged then.
    reflector = open_one(config.role("reflector")) if config.practice.reflects else policy
    asked = config.judge is not None or asks_judge(config.verifier.spec)
    judge = open_one(config.role("judge")) if asked else None
    acting = Acting(config, tell, cassette=cassette)
    acting.open_models(lambda other: open_one(other, frozen))
    vectors = _open_tool_vectors(acting, stack, workspace, budget, ledger)
    open_acting(acting, stack, policy, open_one, vectors, workspace)
    remote, served = open_remote_work(acting, stack, tell), None
    if own and training and config.policy.local.rollouts_url and not is_played(cassette):
        served = open_vllm_rollouts(config, own, tell)
        stack.push_async_callback(served.aclose)
        opened.append((None, served))
        policy = served if cassette is None else RecordingPolicy(served, cassette)
    distinct = tuple(one for _, one in opened)
    roles = Roles(policy, reflector, judge, distinct, acting, own, served, cassette, remote)
    if budget is None:
        return roles
    aside = roles.leave_batch
    return roles.wrap(lambda one, role: BudgetedPolicy(one, budget, terms_of(role), aside=aside))


def _open_tool_vectors(
    acting: Acting,
    stack: AsyncExitStack,
    workspace: Path | None,
    budget: Budget | None,
    ledger: RecordLedger | None,
) -> Callable[[object], Embedder]:
    def open_one(wanted: object) -> Embedder:
        assert isinstance(wanted, EmbeddingConfig)
        reserve = count_vectors(wanted, budget, ledger)
        embedder = open_vectors(acting.config, wanted, workspace, reserve, acting.cassette)
        stack.push_async_callback(embedder.aclose)
        acting.embedders.append(embedder)
        return embedder

    return open_one


def count_vectors(
    wanted: EmbeddingConfig, budget: Budget | None, ledger: RecordLedger | None
) -> Reserve:
    """Takes what vectors cost out of the budget, and has it recorded."""
    terms = embedding_terms(wanted)

    def record_cost(usage: Usage) -> None:
        if ledger is not None and usage.calls:
            ledger.record_cost(CallKey("embedding", 0, 0), wanted.model, usage, "vectors of texts")

    async def reserve(texts: Sequence[str]) -> Callable[[Usage], None]:
        if budget is None:
            return record_cost
        # By bytes, as for replies: the endpoint's tokenizer is not here.
        tokens = sum(len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN + 1 for text in texts)
        settle = await budget.reserve(Amounts(1, tokens, terms.cost_usd(tokens, 0)))

        def record_paid(usage: Usage) -> None:
            settle(terms.amounts_of(usage))
            record_cost(usage)

        return record_paid

    return reserve


def open_vectors(
    config: RunConfig,
    wanted: EmbeddingConfig,
    workspace: Path | None,
    reserve: Reserve,
    cassette: Cassette | None,
) -> Embedder:
    """The embedding model of one setting; what it gave is kept in the workspace."""

    def open_inner(reserve: Reserve) -> Embedder:
        folder = workspace and workspace / "embeddings"
        return open_embedder(wanted.model, embedding_endpoint(config, wanted), folder, reserve)

    if cassette is None:
        return open_inner(reserve)
    return TapedEmbedder(wanted.model, cassette, reserve, open_inner)


def tell_each(tell: Tell, remarks: Sequence[str]) -> None:
    for remark in remarks:
        tell(remark)


def make_pausable(roles: Roles, wait: Callable[[], Awaitable[None]]) -> Roles:
    """The same models, each call waiting for `wait` first."""
    return roles.wrap(lambda policy, _: PausablePolicy(policy, wait))


def pace_of(config: RunConfig, *, watched: bool, played: bool = False) -> float | None:
    """Tokens a second at which each scripted or `played` rollout streams; None: all at once."""
    pace = config.policy.pace_tokens_per_s
    if pace is None and watched and (played or is_scripted(config.policy.model)):
        return WATCHABLE_TOKENS_PER_S
    return pace


def apply_pace(roles: Roles, pace: float | None, wait: Callable[[], Awaitable[None]]) -> Roles:
    """The same models, the policy's replies streamed at a pace; None: as fast as they come."""
    if pace is None:
        return roles
    return replace(roles, policy=StreamPacedPolicy(roles.policy, pace, wait))


def slots_for(settings: PolicyConfig | EvaluationConfig | None, shared: Slots) -> Slots:
    """Slots of its own for what has a limit, else the shared ones."""
    limit = settings.concurrency if settings is not None else None
    return shared if limit is None else Slots(limit, shared.tell)


def rollout_slots(config: RunConfig, shared: Slots) -> Slots:
    if not is_local(config.policy.model) or config.policy.local.rollouts_url is not None:
        return slots_for(config.policy, shared)
    # Local weights have room for every try of a step: which tries share a batch must not depend
    # on which of them ended first.
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
        price_cached_usd_per_mtok=settings.price_cached_usd_per_mtok,
        replicas=settings.replicas,
    )


def embedding_endpoint(config: RunConfig, wanted: EmbeddingConfig) -> EndpointSettings:
    """Address and key belong together: the policy's, unless one of its own is set."""
    own = EndpointSettings(
        base_url=wanted.base_url,
        api_key=wanted.api_key.get_secret_value() if wanted.api_key else None,
        timeout_s=wanted.timeout_s,
        max_retries=3,
        price_in_usd_per_mtok=wanted.price_in_usd_per_mtok,
    )
    is_shared = wanted.base_url is None and wanted.api_key is None
    if not is_shared or not config.policy.model.startswith("openai:"):
        return own
    policy = endpoint_of(config.policy)
    return replace(own, base_url=policy.base_url, api_key=policy.api_key, headers=policy.headers)


def make_rollouts(
    config: RunConfig,
    roles: Roles,
    ledger: RecordLedger,
    slots: Slots,
    *,
    wait: Callable[[], Awaitable[None]] | None = None,
    temperature: float | None = None,
) -> RolloutManager:
    """How tries are made, in practice, evaluations and `studio try` alike.

    `wait` is awaited before each try; None: nothing ever pauses. Evaluations set a `temperature`
    of their own.
    """
    sampling = sampling_of(config.role("policy"))
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    return RolloutManager(
        roles.acting.make_agent(sampling),
        roles.acting.wrap(roles.policy),
        ledger,
        slots,
        config.practice.task_timeout_s,
        wait,
        roles.join_batch,
    )


@frozen
class LocalModels:
    """How `hf:` models of a run are opened."""

    config: RunConfig
    tell: Tell = lambda _: None
    training: bool = False  # the policy gets an adapter that can be trained
    threads: int | None = None  # of an earlier process of the run; None: as the run file says

    def open(self, settings: PolicyConfig) -> "HFLocal":
        """Load a model, which takes seconds."""
        from engines.policies.open import load_local

        self.tell(f"loading {settings.model} …")
        # First, since it names a package that is missing instead of failing to import it.
        local = load_local(self.settings(settings), self.tell)
        from engines.policies.hf_local.policy import HFLocal

        return HFLocal(local, name=settings.model, tell=self.tell)

    def settings(self, settings: PolicyConfig) -> LocalSettings:
        local = settings.local
        trained = self.training and settings.model == self.config.policy.model
        return replace(
            local,
            path=model_path(settings.model),
            adapter=None if settings.adapter is None else Path(settings.adapter),
            lora=self.config.grpo.lora if trained else None,
            threads=self.threads or local.threads,
            # Two roles may share one model, whoever samples.
            rollouts_url=None,
            seed=self.config.seed,
        )


def open_vllm_rollouts(config: RunConfig, local: "HFLocal", tell: Tell) -> "VLLMRollouts":
    """The vLLM servers of `policy.local.rollouts_url`, asked with the ids of a local model."""
    from engines.policies.hf_local.policy import encode_prompt
    from engines.policies.vllm import RolloutServer, VLLMRollouts

    policy, (first, *others) = config.policy, config.policy.local.rollouts_url or ("",)
    endpoint = replace(endpoint_of(policy), model="", base_url=first, replicas=tuple(others))
    server = RolloutServer(
        replace(endpoint, extra_body={}),
        lambda messages, tools: encode_prompt(local.local, messages, tools),
        local.local.window,
        config.practice.temperature,
    )
    return VLLMRollouts(server, name=policy.model, tell=tell)


def weights_digest(settings: PolicyConfig) -> str:
    """Identifies a model's weights by its files, without loading it; "" where they are not here.

    Of large files only size, beginning and end are read. A name on the hub stands for itself.
    """
    if not is_local(settings.model):
        return ""
    folders = [Path(model_path(settings.model))]
    if settings.adapter is not None:
        folders.append(Path(settings.adapter))
    seen = hashlib.sha256(settings.model.encode() if not folders[0].is_dir() else b"")
    for path in (file for folder in folders for file in sorted(folder.glob("*.safetensors"))):
        size = path.stat().st_size
        seen.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            seen.update(file.read(_DIGEST_BYTES))
            file.seek(max(0, size - _DIGEST_BYTES))
            seen.update(file.read(_DIGEST_BYTES))
    return f"files-{seen.hexdigest()[:32]}"


def is_local(model: str) -> bool:
    """Whether a model's weights are on this machine."""
    return model.startswith("hf:")


def model_path(model: str) -> str:
    """The folder or hub name behind `hf:…`."""
    path = model.removeprefix("hf:")
    return str(files("sample_data") / BUNDLED) if path == BUNDLED else path


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


def _priced_models(config: RunConfig) -> list[tuple[str, str, CallPricing]]:
    """Place in the run file, name and terms of each model whose calls may cost money."""
    priced: list[tuple[str, str, CallPricing]] = []
    for role in endpoint_roles(config):
        section = role if getattr(config, role) is not None else "policy"
        settings = config.role(role)
        priced.append((section, settings.model, terms_of(settings)))
    vectors = [("lint.embedding", config.lint.embedding)]
    for number, tool in enumerate(config.agent.tools):
        place = f"agent.tools.{number}"
        vectors.append((f"{place}.embedding", tool.embedding))
        if tool.model is not None:
            priced.append((f"{place}.model", tool.model.model, terms_of(tool.model)))
    for place, embedding in vectors:
        if embedding is not None and embedding.model != "rehearsal":
            priced.append((place, embedding.model, embedding_terms(embedding)))
    return priced


def check_budget(loaded: LoadedRun, config: RunConfig) -> None:
    """Refuse a budget in money where the price of a role is unknown.

    `loaded` names the line of the run file; `config` may be a part of its settings.
    """
    if config.budget.cost_usd is None:
        return
    for place, model, terms in _priced_models(config):
        if not terms.has_price:
            raise errors.ConfigError(
                loaded.place("budget.cost_usd"),
                f"what {place} ({model}) costs is unknown, so a budget in dollars cannot be kept.",
                f"Set {place}.price_in_usd_per_mtok and {place}.price_out_usd_per_mtok (of "
                "embeddings only the first), or give the budget as budget.calls or budget.tokens.",
            )


def open_budget(
    loaded: LoadedRun, config: RunConfig, records: Path, give_up: Tell
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


def _terms_by_name(config: RunConfig) -> dict[str, CallPricing]:
    """Prices by the name that records have; of two with one name the dearer counts."""
    by_name: dict[str, CallPricing] = {}
    for _, model, terms in _priced_models(config):
        by_name[model] = max(
            by_name.get(model, terms), terms, key=lambda found: found.cost_usd(1, 1)
        )
    return by_name


def prior_usage(records: Path, state: RunState) -> Usage:
    """What earlier processes of a run spent; from the journal where a record is damaged."""
    try:
        return sum((usage for _, usage in usage_sums(records)), NO_USAGE)
    except errors.DamagedError:
        return state.total_usage


def open_run_verifier(
    loaded: LoadedRun,
    workspace: Workspace,
    roles: Roles,
    ledger: Ledger,
    slots: Slots,
    *,
    stack: AsyncExitStack,
    sets: Sequence[Sequence[Problem]] = (),
) -> Verifier:
    """Make the verifier that a run file asks for; its `check` is left to the caller.

    `sets` are what it will judge, practice and held-out: its `check` refuses a function that needs
    a column which one of them lacks.

    Raises VerifierError: unknown, wrongly set, or without a model that it needs; the place is a
    line of the run file.
    """
    config = loaded.config
    judging = make_judging(config, roles, ledger, slots)
    with _locate_errors(loaded):
        spec, folders = config.verifier.spec, verifier_folders(loaded, workspace)
        columns = shared_columns(*sets)
        if (pool := roles.acting.worker_pool) and roles.remote and not loads_weights(spec):
            roles.remote.want_verifier(spec, folders, columns, judging)
            return MaskedAnswers(pool.verifier(), loaded.mask)
        grading = roles.acting.grading() if grades_tasks(spec) else None
        verifier = open_verifier(
            spec,
            judging,
            folders,
            columns=columns,
            grading=grading,
            open_learned=lambda folder: _open_reward_model(folder, loaded, workspace),
        )
    stack.push_async_callback(verifier.aclose)
    return MaskedAnswers(verifier, loaded.mask)


REWARD_MODEL, HEAD_FILE = "reward_model", "head.safetensors"
"""The folder of a run in which `studio train --stage reward` keeps what it made."""


def _reward_folder(named: str, workspace: Workspace) -> Path:
    kind, _, run = named.partition(":")
    return workspace.run(run).path / REWARD_MODEL if kind == "run" else Path(named).expanduser()


def _open_reward_model(named: str, loaded: LoadedRun, workspace: Workspace) -> LearnedVerifier:
    """Load head and base model. Raises DataError, PolicyError: one of them cannot be used."""
    folder = _reward_folder(named, workspace)
    if not folder.is_dir():
        raise errors.VerifierError(
            named,
            f"there is no reward model at {folder}.",
            "Train one: studio train RUNFILE --stage reward.",
        )
    settings = PolicyConfig(model=json.loads((folder / "reward_model.json").read_bytes())["model"])
    local = LocalModels(loaded.config, lines.to_stderr).open(settings).local
    from engines.policies.hf_local.reward_head import features_of, load_head

    head, card = load_head(folder)
    about = (
        f"learned from run {card['run']}, with whose verifier it agrees on "
        f"{card['held_out_agreement']:.2f} of n={card['held_out_pairs']} pairs"
    )
    lines.to_stderr(f"note: rewards are guesses of a model {about}")
    return LearnedVerifier(lambda pairs: head.rewards(features_of(local, pairs)).tolist(), about)


class MaskedAnswers:
    """A verifier that leaves a try unjudged where the expected answer holds a secret.

    Such an answer is masked in journals and in prompts: the same try would be right when it is
    made and wrong when a resume judges it, which is no reward of 0.
    """

    def __init__(self, verifier: Verifier, mask: Mask) -> None:
        self._verifier, self._mask = verifier, mask

    @property
    def whole_groups(self) -> bool:
        return judges_whole_groups(self._verifier)

    async def check(self) -> None:
        await self._verifier.check()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        if is_answer_masked(problem, self._mask):
            return [Verdict(None, error=ANSWER_MASKED) for _ in rollouts]
        return await self._verifier.verify(problem, rollouts)

    async def aclose(self) -> None:
        await self._verifier.aclose()


ANSWER_MASKED = "masked: the expected answer holds what looks like a secret"


def is_answer_masked(problem: Problem, mask: Mask) -> bool:
    return any(mask(text) != text for text in problem.accepted_answers)


def masked_answers_warning(problems: Sequence[Problem], mask: Mask) -> str | None:
    """A note before practice begins; None where every answer can be judged."""
    # Masked together first, since looking at one text costs as much as at many.
    texts = "\n".join(text for problem in problems for text in problem.accepted_answers)
    if mask(texts) == texts:
        return None
    count = sum(is_answer_masked(problem, mask) for problem in problems)
    if not count:
        return None
    answers = words.count_text(count, "expected answer")
    return f"{answers} with what looks like a secret: tries at them stay unjudged"


def fingerprint_of(
    loaded: LoadedRun, workspace: Workspace, data_digest: str = ""
) -> codec.JsonObject:
    """`RunConfig.fingerprint` with what the verifier's files hold.

    A file counts by its name and content, in whatever folder; what it imports does not.

    Raises VerifierError: see `open_run_verifier`; or a file cannot be read.
    """
    spec = loaded.config.verifier.spec
    with _locate_errors(loaded):
        ready = parse_spec(spec, verifier_folders(loaded, workspace))
    # By content, so that a resume after an edited verifier or log is noticed.
    found = fingerprint(loaded.config, data_digest, _portable_spec(spec, ready, workspace))
    found["agent.files"] = {file.name: _digest(file) for file in own_programs(loaded.config.agent)}
    for role in ("policy", "reflector", "judge"):
        name = f"{role}.model"
        if str(found[name]).startswith("replay:"):
            found[name] += f"#{_log_digest(loaded.config.role(role).model)}"
    return found


def _log_digest(model: str) -> str:
    """Of a log's content: another log of the same name is another model."""
    source = resolve_data(model.partition(":")[2], (Path(),))
    return codec.digest([_digest(file) for file in source.files()], 6)


def _portable_spec(
    spec: Mapping[str, Any], ready: ParsedVerifier, workspace: Workspace
) -> codec.JsonObject:
    plain: codec.JsonObject = without_secrets(spec)
    if isinstance(ready.settings, LearnedSettings):
        plain["digest"] = _digest(_reward_folder(ready.settings.folder, workspace) / HEAD_FILE)
    if ready.path is not None:
        plain |= {"file": ready.path.stem, "digest": _digest(ready.path)}
    if ready.of:
        inner = spec.get("of")
        if isinstance(inner, list | tuple):
            plain["of"] = [
                _portable_spec(entry, criterion.verifier, workspace)
                for entry, criterion in zip(inner, ready.of, strict=True)
            ]
        elif isinstance(inner, Mapping):  # the one that is shaped
            plain["of"] = _portable_spec(inner, ready.of[0].verifier, workspace)
    return plain


def _digest(file: Path) -> str:
    try:
        return codec.digest_bytes(file.read_bytes())
    except OSError as error:
        raise errors.VerifierError(
            str(file), f"it cannot be read ({error.strerror or error}).", "Check its permissions."
        ) from error


@contextmanager
def _locate_errors(loaded: LoadedRun) -> Iterator[None]:
    """Name the line of the run file that has a refused setting."""
    try:
        yield
    except SpecError as error:
        place = loaded.place(".".join(("verifier", *error.at)))
        raise errors.VerifierError(place, f"{error.place}: {error.cause}", error.move) from error
