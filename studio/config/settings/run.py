"""What a run file may say: one frozen tree of settings, and what they demand of each other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import Field, PrivateAttr, field_validator, model_validator

from engines.core.settings import LEAST_TRIED, LONGEST_NAME, MAX_COUNT, SHOWN_WHOLE
from engines.core.types import FLAG_NAMES, REJECTED_BY_AUTO
from studio.config.settings.agent import AgentConfig
from studio.config.settings.base import (
    Float,
    Int,
    Name,
    Settings,
    as_section,
    declared_settings,
    key,
    refusal,
)
from studio.config.settings.policy import (
    CHOICE_TEMPERATURE,
    JUDGE_TEMPERATURE,
    REFLECTOR_TEMPERATURE,
    Address,
    PolicyConfig,
    Role,
    check_address,
)
from studio.config.settings.practice import (
    DataConfig,
    EvaluationConfig,
    GRPOConfig,
    LintConfig,
    PracticeConfig,
    SFTConfig,
    VerifierConfig,
)

PHOENIX = ("PHOENIX_ENDPOINT", "PHOENIX_COLLECTOR_ENDPOINT")
OTLP = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
PATH = "/v1/traces"
PROJECT = "practice-studio"


class TracingConfig(Settings):
    """Spans of the run, for Phoenix or another collector of OpenTelemetry."""

    base_url: Address | None = key(
        None,
        "address that takes OTLP over HTTP, with or without /v1/traces; null: $PHOENIX_ENDPOINT or "
        "$OTEL_EXPORTER_OTLP_ENDPOINT, and without these no spans",
        examples=["http://127.0.0.1:6006"],
    )
    content: bool = key(
        True, "whether spans hold what was said: questions, replies, arguments, results and errors"
    )


@dataclass(frozen=True, slots=True)
class CollectorAddress:
    """Where spans go. `asked` is the run file's; else only the environment names it."""

    url: str
    project: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    asked: bool = False


def find_collector(settings: TracingConfig, environ: Mapping[str, str]) -> CollectorAddress | None:
    """The collector of a run; None: none is named. Raises ValueError: a variable is no address."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    name = next((name for name in (*PHOENIX, *OTLP) if environ.get(name, "").strip()), "")
    url = settings.base_url or environ.get(name, "").strip()
    if not url:
        return None
    try:
        check_address(url)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if settings.base_url or name != OTLP[0]:  # that one is used as it stands
        place, question, query = url.partition("?")
        place = place.rstrip("/")
        url = f"{place if place.endswith(PATH) else place + PATH}{question}{query}"
    headers = dict(read_headers(environ))
    if (api_key := environ.get("PHOENIX_API_KEY")) and (settings.base_url or name in PHOENIX):
        headers.setdefault("authorization", f"Bearer {api_key}")
    project = environ.get("PHOENIX_PROJECT_NAME") or PROJECT
    return CollectorAddress(url, project, headers, settings.base_url is not None)


def read_headers(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """`name=value,…` as the standard variables hold them, with their values as they are sent."""
    written = next((environ[name] for name in _HEADERS if environ.get(name)), "")
    for pair in written.split(","):
        name, equals, value = pair.partition("=")
        if equals:
            yield name.strip().lower(), unquote(value.strip())


SELECTED = 10
"""Experiences chosen for a problem where not all stand in its prompt."""


class LibraryConfig(Settings):
    """Where experiences are kept and what the run begins with."""

    name: Name | None = key(
        None,
        "name of the library (letters, digits, . _ -); null: as the run is called",
        examples=["arithmetic"],
    )
    start: str = key(
        "empty",
        "what the run begins with: empty, or NAME@V or NAME@LABEL for a version of a library",
        # A run's own library has its number behind the name: longer than a name may be here.
        pattern=rf"^(empty|[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}"
        r"@(\d{1,18}|[A-Za-z][A-Za-z0-9._-]{0,63}))$",
        examples=["arithmetic@3"],
    )

    select_above: Int | None = key(
        SHOWN_WHOLE,
        "experiences that stand in every prompt at most; of more, each problem gets the pinned and "
        f"the {SELECTED} most relevant ones; null: always all",
        ge=1,
        le=MAX_COUNT,
        examples=[50],
    )

    @property
    def select_most(self) -> int:
        """How many are chosen for a problem, besides the pinned ones."""
        return min(SELECTED, self.select_above or SELECTED)


class GateConfig(Settings):
    """Whether what is proposed is tried before anybody decides about it."""

    problems: Int | None = key(
        None,
        "problems on which each operation is tried, with it and without; null: none is tried",
        ge=LEAST_TRIED,
        le=MAX_COUNT,
        examples=[40],
    )
    k: Int = key(4, "tries of each such problem at most, at practice.temperature", ge=1, le=64)
    error: Float = key(
        0.05, "chance that a whole run finds help in any operation that has no effect", gt=0, le=0.5
    )
    data: str | None = key(
        None,
        "data set to try on, held out from everything else; null: practice problems that are not "
        "in the batch",
        examples=["arithmetic-larger"],
    )
    unit: Literal["operation", "lesson"] = key(
        "operation",
        "what is tried at once: each operation, or a whole lesson and, where that does not help, "
        "its halves",
    )
    roll_back: bool = key(
        False,
        "whether the library goes back where a held-out set says after an epoch that it got worse; "
        "the last of several sets is not asked, so that nothing is chosen by it",
    )


class ReviewConfig(Settings):
    """Who decides what is learned."""

    gate: GateConfig = GateConfig()

    by: str | None = key(
        None,
        "who decides: auto, wait (a person) or rules:FILE; null: a person where there is a "
        "screen, else auto",
        pattern=r"^(auto|wait|rules:.+)$",
        examples=["wait"],
    )
    hold_s: Float | None = key(
        None,
        "seconds that a run is held for a decision; null: until there is one",
        gt=0,
        examples=[600],
    )
    rejects: tuple[str, ...] = key(
        REJECTED_BY_AUTO,
        "flags whose operations auto rejects by itself; []: it approves whatever fits",
        examples=["[leak,injection]"],
    )

    @field_validator("rejects")
    @classmethod
    def _check_flags(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in set(value) - set(FLAG_NAMES):
            raise ValueError(f'there is no flag "{name}"; there are {", ".join(FLAG_NAMES)}')
        return value


class BudgetConfig(Settings):
    """What may be spent; a call that might exceed it is not made, and the run ends."""

    calls: Int | None = key(None, "calls of models at most; null: no limit", ge=1, examples=[5000])
    tokens: Int | None = key(
        None, "tokens of prompts and replies at most; null: no limit", ge=1, examples=[5_000_000]
    )
    cost_usd: Float | None = key(
        None, "US dollars at most, of models with prices; null: no limit", gt=0, examples=[2.5]
    )


class RayConfig(Settings):
    """The cluster on which tries are made where `dispatch` is ray."""

    address: str | None = key(
        None,
        "HOST:PORT of its head; local: one that is started here and ends with the command; null: "
        "the one that runs on this machine, else local",
        pattern=r"^(local|[^/\s@]+:\d{1,5})$",
        examples=["10.0.0.5:6379"],
    )
    tries_per_worker: Int = key(
        8, "tries that one worker process makes at once", ge=1, le=MAX_COUNT
    )
    cpus_per_worker: Float = key(
        1.0, "CPUs that a worker asks of the cluster; its tools run beside it", gt=0, le=1_000
    )


_MODEL: dict[str, Any] = {"examples": ["openai:gpt-4o-mini"]}


class RunConfig(Settings):
    """A whole run."""

    exp_id: Name = Field(
        description="name of the experiment (letters, digits, . _ -); default: the file's name",
        examples=["arithmetic"],
    )
    seed: Int = key(1, "number from which all chance of the run follows")
    policy: PolicyConfig = Field(description="model that practises")
    reflector: PolicyConfig | None = key(
        None,
        "model that draws lessons, with settings as policy has; null: the policy",
        **_MODEL,
    )
    judge: PolicyConfig | None = key(
        None, "model that judges answers, with settings as policy has; null: the policy", **_MODEL
    )
    agent: AgentConfig = AgentConfig()
    data: DataConfig = DataConfig()
    practice: Annotated[PracticeConfig, as_section(PracticeConfig)] = PracticeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    verifier: VerifierConfig = VerifierConfig()
    library: LibraryConfig = LibraryConfig()
    review: ReviewConfig = ReviewConfig()
    lint: Annotated[LintConfig, as_section(LintConfig)] = LintConfig()
    budget: BudgetConfig = BudgetConfig()
    dispatch: Literal["local", "ray"] = key(
        "local",
        "where agents, tools and verifiers run: in the run's process, or on the workers of a Ray "
        "cluster; models are asked from the run's process in any case",
    )
    ray: RayConfig = RayConfig()
    tracing: TracingConfig = TracingConfig()
    tensorboard: bool | None = key(
        None,
        "whether curves for TensorBoard are written; null: where weights are trained",
        examples=["true"],
    )
    grpo: Annotated[GRPOConfig, as_section(GRPOConfig)] = GRPOConfig()
    sft: Annotated[SFTConfig, as_section(SFTConfig)] = SFTConfig()

    @property
    def trains(self) -> bool:
        """Whether practice updates weights."""
        return self.practice.algorithm != "training_free"

    @property
    def rollouts_a_problem(self) -> int:
        """In practice; fine-tuning makes none, since its problems bring what is learnt."""
        return 0 if self.practice.algorithm == "sft" else self.practice.group_size

    @model_validator(mode="after")
    def _validate_training(self) -> "RunConfig":
        if not self.trains:
            return self
        policy, practice = self.policy, self.practice
        if not policy.model.startswith("hf:"):
            move = "Set policy.model=hf:PATH_OR_NAME; hf:tiny is bundled."
            raise refusal("policy.model", "training needs a policy whose weights are here", move)
        if practice.algorithm == "sft":
            return self
        if policy.top_p is not None and policy.top_p < 1:
            raise refusal(
                "policy.top_p",
                "with top_p below 1 the scores that were sampled from are not the policy's own, "
                "so their log-probabilities cannot be trained on",
                "Leave it out in training.",
            )
        if practice.temperature == 0:
            cause = "at temperature 0 all tries are the same, so nothing can be learned from them"
            raise refusal("practice.temperature", cause, "Set it above 0; 1.0 is usual.")
        if practice.group_size < 2:
            cause = "a single try has nothing to be compared with"
            raise refusal("practice.group_size", cause, "Set it to 2 or more; 8 is usual.")
        if not practice.given_ground_truth:
            cause = "without rewards there is nothing to train on"
            raise refusal("practice.given_ground_truth", cause, "Leave it out.")
        return self

    @model_validator(mode="after")
    def _validate_sampling(self) -> "RunConfig":
        if self.practice.sampling == "learnable" and self.trains:
            cause = "updates of weights compare groups of one size"
            move = "Leave it out, or set practice.algorithm=training_free."
            raise refusal("practice.sampling", cause, move)
        if self.practice.sampling == "learnable" and not self.practice.given_ground_truth:
            cause = "learnable goes by rewards, which practice.given_ground_truth=false hides"
            raise refusal("practice.sampling", cause, "Leave one of them out.")
        return self

    @model_validator(mode="after")
    def _validate_gate(self) -> "RunConfig":
        gate = self.review.gate
        if gate.roll_back and not self.evaluation.do_eval:
            cause = "nothing is evaluated that could tell"
            raise refusal("review.gate.roll_back", cause, "Set evaluation.do_eval=true.")
        gated, same = gate.problems is not None, self.role("reflector").temperature == 0
        for wrong, cause in (
            (not self.practice.reflects, "no lessons are drawn, weights are updated"),
            (not gated, "without review.gate nothing chooses among several lessons"),
            (same, "at reflector.temperature 0 all lessons of a batch are the same"),
        ):
            if self.practice.proposals > 1 and wrong:
                move = "Leave it out, or set review.gate.problems=40 and the temperature above 0."
                raise refusal("practice.proposals", cause, move)
        if not gated:
            return self
        if self.practice.temperature == 0 and gate.k > 1:
            cause = "at practice.temperature 0 all tries of a problem are the same"
            raise refusal("review.gate.k", cause, "Set it to 1, or the temperature above 0.")
        if not self.practice.given_ground_truth:
            cause = "without rewards nothing shows whether an operation helps"
            raise refusal("review.gate.problems", cause, "Leave it out.")
        if gate.data in self.evaluation.data:
            cause = "that set is evaluated, too, and what was decided by proves nothing any more"
            raise refusal("review.gate.data", cause, "Name another set, or leave it out.")
        return self

    @model_validator(mode="after")
    def _validate_dropout(self) -> "RunConfig":
        if self.practice.dropout and self.trains:
            cause = "weights are updated, so that what an experience is worth changes each step"
            raise refusal("practice.dropout", cause, "Leave it out.")
        if self.practice.reflect_on_worsened and (self.trains or not self.evaluation.do_eval):
            cause = "it reads what evaluations find, for lessons in words and not in weights"
            move = "Leave it out, or set practice.algorithm=training_free, evaluation.do_eval=true."
            raise refusal("practice.reflect_on_worsened", cause, move)
        return self

    @model_validator(mode="after")
    def _validate_paced_roles(self) -> "RunConfig":
        for role, own in (("reflector", self.reflector), ("judge", self.judge)):
            if own is not None and own.pace_tokens_per_s is not None:
                cause = "only rollouts are watched as they stream"
                raise refusal(f"{role}.pace_tokens_per_s", cause, "Leave it out.")
        return self

    # Dotted key → the `${…}` text a secret came from; written back instead of its value.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    # What the environment and .env say of keys that tools need, and of where spans go; never
    # written.
    _tool_keys: dict[str, str] = PrivateAttr(default_factory=dict)
    _collector: CollectorAddress | None = PrivateAttr(default=None)

    @property
    def tool_keys(self) -> dict[str, str]:
        return self._tool_keys

    @property
    def collector(self) -> CollectorAddress | None:
        return self._collector

    def set_collector(self, found: CollectorAddress | None) -> None:
        self._collector = found

    @property
    def origins(self) -> dict[str, str]:
        return self._origins

    def role(self, role: Role) -> PolicyConfig:
        """The settings of a role with its temperature; one that is not set is the policy."""
        if role == "policy":
            return self.policy.model_copy(update={"temperature": self.practice.temperature})
        own, usual = self.judge, JUDGE_TEMPERATURE
        if role == "reflector":
            own, usual = self.reflector, REFLECTOR_TEMPERATURE
            if self.practice.proposals > 1:
                usual = CHOICE_TEMPERATURE
        temperature = usual if own is None or own.temperature is None else own.temperature
        return (own or self.policy).model_copy(update={"temperature": temperature})


def section_of(key: tuple[str, ...]) -> type | None:
    """The class of the settings below a key of a run file; None where there is none."""
    section: type | None = RunConfig
    for part in key:
        declared = declared_settings(section).get(part) if section else None
        section = declared.section if declared else None
    return section


def every_setting() -> dict[str, str]:
    """Dotted name → meaning, for all settings."""
    found: dict[str, str] = {}

    def visit(section: type, prefix: str) -> None:
        for name, declared in declared_settings(section).items():
            inner = declared.section
            found[f"{prefix}{name}"] = declared.meaning or (inner.__doc__ or "" if inner else "")
            if inner is not None:
                visit(inner, f"{prefix}{name}.")

    visit(RunConfig, "")
    return found
