"""What a run file may say: one frozen tree of settings, and what they demand of each other.

A section holds the engine's own settings class, and besides it the keys that other parts read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, LiteralString
from urllib.parse import unquote

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from engines.core.codec import JsonObject
from engines.core.frozen import frozen
from engines.core.settings import (
    COUNT,
    LEAST_TRIED,
    LONGEST_NAME,
    MAX_COUNT,
    MAX_ROWS,
    SHOWN_WHOLE,
    setting,
)
from engines.core.text.prompts import load_prompt
from engines.core.types import FLAG_NAMES, REJECTED_BY_AUTO, Learns, Names
from engines.grpo.settings import GRPOSettings, SFTSettings
from engines.policies.hf_local.settings import LoraSettings
from engines.training_free.settings import LintSettings, TrainingFreeSettings
from studio.config.settings.agent import AgentConfig
from studio.config.settings.base import (
    Float,
    Int,
    Name,
    Settings,
    as_list,
    as_model,
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
    EmbeddingConfig,
    PolicyConfig,
    Role,
    check_address,
)


class EvaluationConfig(Settings):
    """How progress is measured."""

    do_eval: bool = key(False, "whether to evaluate while practising")
    strategy: Literal["epoch", "steps"] = key(
        "epoch", "when to evaluate: after each epoch, or after every_steps steps"
    )
    every_steps: Int = key(1, "steps between two evaluations, where strategy is steps", ge=1)
    data: Annotated[Names, BeforeValidator(as_list)] = key(
        (),
        "one or more data sets, held out from practice",
        examples=["[arithmetic-heldout,arithmetic-larger]"],
    )
    limit: Int | None = key(
        None, "use only the first so many problems of each set", ge=1, le=MAX_ROWS, examples=[100]
    )
    k: Int = key(1, "tries of each problem", ge=1, le=4_096)
    temperature: Float = key(0.0, "how much those tries vary", ge=0, le=10)
    concurrency: Int | None = key(
        None,
        "rollouts at a time; null: shares practice.concurrency",
        examples=[8],
        **COUNT,
    )

    @model_validator(mode="after")
    def _validate_data(self) -> "EvaluationConfig":
        if self.do_eval and not self.data:
            raise refusal(
                "do_eval",
                "evaluation is on, but evaluation.data names no data set",
                "Set evaluation.data, or evaluation.do_eval=false.",
            )
        return self


class VerifierConfig(Settings):
    """What scores the tries; every other key is the verifier's own setting.

    A plain text stands for {name: text}, a list for {name: weighted, of: list}, and
    {file: FILE} for {name: function, file: FILE}.
    """

    model_config = ConfigDict(extra="allow")

    name: str = key(
        "math",
        "math, text, judge, accuracy, length_penalty, step, format or choice; function with "
        "file: FILE; weighted with of: [...]",
        min_length=1,
        examples=["text"],
    )

    @property
    def settings(self) -> JsonObject:
        return dict(self.model_extra or {})

    @property
    def spec(self) -> JsonObject:
        return {"name": self.name, **self.settings}


ALGORITHMS = {
    "training_free": "training_free",
    "training_free_grpo": "training_free",
    "grpo": "grpo",
    "multi_step_grpo": "grpo",  # several turns are no algorithm of their own here
    "sft": "sft",
    "both": "both",
}
"""Every name an algorithm may be given → ours."""

Algorithm = Literal["training_free", "grpo", "sft", "both"]


def parse_algorithm(value: object) -> object:
    """Our name of an algorithm. Raises ValueError: it is none of the supported ones."""
    if not isinstance(value, str):
        return value
    if value.lower() not in ALGORITHMS:
        raise ValueError(f"{value} is not supported; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[value.lower()]


class DataConfig(Settings):
    """The problems to practise on."""

    practice: str | None = key(
        None,
        "data set to practise on: a name or a path; null: it is only evaluated",
        min_length=1,
        examples=["arithmetic"],
    )
    fields: dict[str, str] = key(
        {},
        "names of the fields, where they are not question and answer",
        examples=["'{question: prompt, answer: solution}'"],
    )
    truncate: Int | None = key(
        None, "use only the first so many problems", ge=1, le=MAX_ROWS, examples=[100]
    )
    shuffle: bool = key(True, "whether every epoch has a new order; false: the file's")

    @field_validator("fields")
    @classmethod
    def _validate_fields(cls, value: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(value) - {"question", "answer"}):
            raise ValueError(f'"{unknown[0]}" cannot be mapped, only question and answer')
        return value


# Not slotted: a class has one slotted base, and that is the engine's.
@dataclass(frozen=True)
class _Loop:
    algorithm: Annotated[Algorithm, BeforeValidator(parse_algorithm)] = setting(
        "training_free",
        "what is learned: training_free a library of experiences, grpo and sft weights, both a "
        "library in one step and weights with it in the prompt in the next ones",
    )
    weight_steps: int = setting(
        9, "of both: weight steps after each library step; the first is one", **COUNT
    )
    epochs: int = setting(5, "times that every problem is practised", **COUNT)
    batch_size: int = setting(32, "problems in one step", ge=1, le=MAX_ROWS)
    group_size: int = setting(3, "rollouts of each problem", **COUNT)
    sampling: Literal["uniform", "learnable"] = setting(
        "uniform",
        "learnable: fewer rollouts of problems that were right twice, more where all failed",
    )
    dropout: float = setting(
        0.0,
        "chance that a rollout goes without an experience, so that its worth shows for free",
        ge=0,
        le=0.5,
    )
    reflect_on_worsened: int = setting(
        0,
        "held-out problems an epoch that got worse, whose tries before and after go to the "
        "reflector; a quarter of the first held-out set is apart for it, in no figure",
        ge=0,
        le=MAX_COUNT,
    )
    concurrency: int = setting(64, "calls of models at a time; hf:… samples whole steps", **COUNT)
    temperature: float = setting(
        0.7, "how much rollouts of a problem vary", ge=0, le=10, examples=[1.0]
    )
    task_timeout_s: float = setting(3600.0, "seconds after which a rollout ends", gt=0)
    restart_step: int | None = setting(
        None,
        "null resumes the run, 0 starts a new one, N starts one that adopts the first N steps",
        ge=0,
        examples=[0],
    )


@frozen
class PracticeConfig(TrainingFreeSettings, _Loop):
    """How it practises."""

    agent_objective: str = setting(
        load_prompt("studio.config", "agent_objective").render(),
        "what the agent is given and gives back, as the reflector is told",
        examples=["'Input is a contract and output is its risks.'"],
    )
    learning_objective: str = setting(
        load_prompt("studio.config", "learning_objective").render(),
        "what the lessons are for, as the reflector is told",
        examples=["'Find rules that prevent wrong units.'"],
    )

    @property
    def reflects(self) -> bool:
        """Whether lessons are drawn in words, in all steps or in some."""
        return self.library_steps(1) > 0

    def library_steps(self, steps: int) -> int:
        """How many of the first so many steps learn a library; of both a cycle begins with one."""
        cycle = {"training_free": 1, "both": self.weight_steps + 1}.get(self.algorithm)
        return -(-steps // cycle) if cycle else 0

    def learns(self, step: int) -> Learns:
        """What a step learns; "" in a run that learns the same in all."""
        if self.algorithm != "both":
            return ""
        return "library" if self.library_steps(step) > self.library_steps(step - 1) else "weights"


@frozen
class LintConfig(LintSettings):
    """What is flagged in a proposed operation before it is reviewed."""

    embedding: Annotated[EmbeddingConfig | None, BeforeValidator(as_model)] = setting(
        None,
        "model that finds duplicates in other words; null: by wording only",
        examples=["rehearsal"],
    )


@frozen
class GRPOConfig(GRPOSettings):
    """How weights are updated."""

    reject_kl_above: float | None = setting(
        None, "updates that lead to a larger KL are rejected; null: none are", gt=0, examples=[0.1]
    )
    reject_grad_norm_above: float | None = setting(
        None, "updates with a longer gradient are rejected; null: none are", gt=0, examples=[10.0]
    )
    checkpoint_steps: int | None = setting(
        None, "steps between two checkpoints; null: one each epoch", ge=1, examples=[20]
    )
    monitor: Literal["wandb", "mlflow", "swanlab"] | None = setting(
        None, "where curves are shown besides, by that library", examples=["wandb"]
    )
    lora: Annotated[LoraSettings, as_section(LoraSettings)] = LoraSettings()


@dataclass(frozen=True)
class _Demonstrations:
    data: str | None = setting(
        None,
        "demonstrations of the stage: a data set with a field solution, completion or "
        "messages, or run:RUN for its verified rollouts",
        min_length=1,
        examples=["run:arithmetic"],
    )


@frozen
class SFTConfig(SFTSettings, _Demonstrations):
    """Supervised fine-tuning: stages of `studio train`, learnt and distilled without a library."""

    epochs: int = setting(2, "times that every demonstration is seen", **COUNT)
    batch_size: int = setting(16, "demonstrations in one step", ge=1, le=MAX_ROWS)


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


@frozen
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
        examples=[50],
        **COUNT,
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
    rejects: Names = key(
        REJECTED_BY_AUTO,
        "flags whose operations auto rejects by itself; []: it approves whatever fits",
        examples=["[leak,injection]"],
    )

    @field_validator("rejects")
    @classmethod
    def _check_flags(cls, value: Names) -> Names:
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
    tries_per_worker: Int = key(8, "tries that one worker process makes at once", **COUNT)
    cpus_per_worker: Float = key(
        1.0, "CPUs that a worker asks of the cluster; its tools run beside it", gt=0, le=1_000
    )


_MODEL: JsonObject = {"examples": ["openai:gpt-4o-mini"]}


_Rule = tuple[bool, str, LiteralString, str]
"""Whether settings do not fit each other, the key to change, why, and the next move."""


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
        policy, practice = self.policy, self.practice
        trains, judged = self.trains, practice.given_ground_truth
        rewarded = trains and practice.algorithm != "sft"
        learnable = practice.sampling == "learnable"
        rules: tuple[_Rule, ...] = (
            (
                trains and not policy.model.startswith("hf:"),
                "policy.model",
                "training needs a policy whose weights are here",
                "Set policy.model=hf:PATH_OR_NAME; hf:tiny is bundled.",
            ),
            (
                rewarded and policy.top_p is not None and policy.top_p < 1,
                "policy.top_p",
                "with top_p below 1 the scores that were sampled from are not the policy's own, "
                "so their log-probabilities cannot be trained on",
                "Leave it out in training.",
            ),
            (
                rewarded and practice.temperature == 0,
                "practice.temperature",
                "at temperature 0 all tries are the same, so nothing can be learned from them",
                "Set it above 0; 1.0 is usual.",
            ),
            (
                rewarded and practice.group_size < 2,
                "practice.group_size",
                "a single try has nothing to be compared with",
                "Set it to 2 or more; 8 is usual.",
            ),
            (
                rewarded and not judged,
                "practice.given_ground_truth",
                "without rewards there is nothing to train on",
                "Leave it out.",
            ),
            (
                learnable and trains,
                "practice.sampling",
                "updates of weights compare groups of one size",
                "Leave it out, or set practice.algorithm=training_free.",
            ),
            (
                learnable and not judged,
                "practice.sampling",
                "learnable goes by rewards, which practice.given_ground_truth=false hides",
                "Leave one of them out.",
            ),
            (
                practice.dropout > 0 and trains,
                "practice.dropout",
                "weights are updated, so that what an experience is worth changes each step",
                "Leave it out.",
            ),
            (
                practice.reflect_on_worsened > 0 and (trains or not self.evaluation.do_eval),
                "practice.reflect_on_worsened",
                "it reads what evaluations find, for lessons in words and not in weights",
                "Leave it out, or set practice.algorithm=training_free, evaluation.do_eval=true.",
            ),
        )
        return self._check_rules(rules)

    @model_validator(mode="after")
    def _validate_gate(self) -> "RunConfig":
        practice, gate = self.practice, self.review.gate
        gated, several = gate.problems is not None, practice.proposals > 1
        same = self.role("reflector").temperature == 0
        gate_or_not = "Leave it out, or set review.gate.problems=40 and the temperature above 0."
        rules: tuple[_Rule, ...] = (
            (
                gate.roll_back and not self.evaluation.do_eval,
                "review.gate.roll_back",
                "nothing is evaluated that could tell",
                "Set evaluation.do_eval=true.",
            ),
            (
                several and not practice.reflects,
                "practice.proposals",
                "no lessons are drawn, weights are updated",
                gate_or_not,
            ),
            (
                several and not gated,
                "practice.proposals",
                "without review.gate nothing chooses among several lessons",
                gate_or_not,
            ),
            (
                several and same,
                "practice.proposals",
                "at reflector.temperature 0 all lessons of a batch are the same",
                gate_or_not,
            ),
            (
                gated and practice.temperature == 0 and gate.k > 1,
                "review.gate.k",
                "at practice.temperature 0 all tries of a problem are the same",
                "Set it to 1, or the temperature above 0.",
            ),
            (
                gated and not practice.given_ground_truth,
                "review.gate.problems",
                "without rewards nothing shows whether an operation helps",
                "Leave it out.",
            ),
            (
                gated and gate.data in self.evaluation.data,
                "review.gate.data",
                "that set is evaluated, too, and what was decided by proves nothing any more",
                "Name another set, or leave it out.",
            ),
        )
        return self._check_rules(rules)

    def _check_rules(self, rules: tuple[_Rule, ...]) -> "RunConfig":
        for broken, at, cause, move in rules:
            if broken:
                raise refusal(at, cause, move)
        for role, own in (("reflector", self.reflector), ("judge", self.judge)):
            if own is not None and own.pace_tokens_per_s is not None:
                raise refusal(
                    f"{role}.pace_tokens_per_s",
                    "only rollouts are watched as they stream",
                    "Leave it out.",
                )
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


def section_of(key: Names) -> type | None:
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
