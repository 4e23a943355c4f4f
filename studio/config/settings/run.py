"""What a run file may say: one frozen tree of settings.

Owns names, types, ranges, defaults and meaning of every setting, and which of them
change results. Does not read files or the environment (`studio.config.loading` does).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from engines.core.ids import digest
from engines.core.text.prompts import load_prompt
from engines.policies.open import is_scripted
from studio.config.settings.base import MOST, MOST_ROWS, Float, Int, Name, Settings, as_list
from studio.config.settings.training import (
    Algorithm,
    GRPOConfig,
    LocalConfig,
    LoraConfig,
    SFTConfig,
    parse_algorithm,
)
from studio.secrets.rules import names_secret, without_secrets

REFLECTOR_TEMPERATURE = 0.3  # lessons should vary little, but a repair must differ
JUDGE_TEMPERATURE = 0.0

WATCHABLE_TOKENS_PER_S = 40.0
"""Of a scripted reply before somebody's eyes: a batch of the rehearsal preset takes about 4 s."""

DEFAULT_INSTRUCTIONS = load_prompt("studio.config", "instructions").render()

Role = Literal["policy", "reflector", "judge"]


def _model_mapping(value: object) -> object:
    return {"model": value} if isinstance(value, str) else value


def _check_printable(value: str) -> str:
    """Refuse what no line of an HTTP request can carry."""
    if not value.isascii():
        raise ValueError("it holds a character that is not ASCII, which no header can carry")
    if not value.isprintable():
        raise ValueError("it holds a control character, which no header can carry")
    return value


def _check_key(value: SecretStr) -> SecretStr:
    _check_printable(value.get_secret_value())
    return value


def _check_address(value: str) -> str:
    """Refuse what is no address, before a client stumbles over it."""
    if not value.startswith(("http://", "https://")):
        raise ValueError("it must begin with http:// or https://")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("it holds a blank, a control or a character that is not ASCII")
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018  (raises where it is none)
    except ValueError as error:
        raise ValueError(f"it is no address ({error})") from None
    if not parts.hostname:
        raise ValueError("it names no host")
    return value


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
ApiKey = Annotated[SecretStr, AfterValidator(_check_key)]


class PolicyConfig(Settings):
    """A model and how it is reached. A plain text stands for {model: text}."""

    model: str = Field(
        min_length=1,
        description="rehearsal, openai:MODEL, hf:PATH_OR_NAME (hf:tiny is bundled) or replay:FILE "
        "(a log of rollouts)",
    )
    adapter: str | None = Field(
        default=None,
        min_length=1,
        description="folder of a LoRA adapter of hf:…, run:RUN for its newest checkpoint, or "
        "run:RUN@STEP",
    )
    local: LocalConfig = LocalConfig()
    base_url: str | None = Field(
        default=None,
        description="endpoint of openai:MODEL; default $OPENAI_BASE_URL, else the hosted one",
    )
    api_key: ApiKey | None = Field(
        default=None, description="its key, best as ${oc.env:NAME}; default $OPENAI_API_KEY"
    )
    temperature: Float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="null: practice.temperature for rollouts, "
        f"{REFLECTOR_TEMPERATURE} for the reflector, {JUDGE_TEMPERATURE} for the judge",
    )
    top_p: Float | None = Field(
        default=None, gt=0, le=1, description="null: the endpoint's default"
    )
    max_tokens: Int | None = Field(
        default=None, ge=1, description="of one reply; null: the endpoint's"
    )
    stop: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        default=(), description="texts that end a reply"
    )
    timeout_s: Float = Field(
        default=120.0, gt=0, description="deadline of one call, retries included"
    )
    max_retries: Int = Field(
        default=4, ge=0, le=MOST, description="of a call that failed for a passing reason"
    )
    concurrency: Int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="calls at a time to this role; null: shares practice.concurrency",
    )
    extra_body: dict[str, Any] = Field(
        default={}, repr=False, description="further fields of the request"
    )
    headers: dict[str, SecretStr] = Field(default={}, description="further headers of the request")
    price_in_usd_per_mtok: Float | None = Field(default=None, ge=0, description="of prompt tokens")
    price_out_usd_per_mtok: Float | None = Field(default=None, ge=0, description="of reply tokens")
    pace_tokens_per_s: Float | None = Field(
        default=None,
        gt=0,
        description="of a scripted rollout, as it streams; null: at once, or "
        f"{WATCHABLE_TOKENS_PER_S:g} for a screen",
    )

    @field_validator("base_url")
    @classmethod
    def _validate_address(cls, value: str | None) -> str | None:
        return value if value is None else _check_address(value)

    @field_validator("headers")
    @classmethod
    def _validate_headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, said in value.items():
            if not _HEADER.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a header")
            try:
                _check_printable(said.get_secret_value())
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return value

    @model_validator(mode="after")
    def _validate_pace(self) -> PolicyConfig:
        if self.pace_tokens_per_s is not None and not is_scripted(self.model):
            raise PydanticCustomError(
                "unmet",
                "a real model streams at its own pace",
                {
                    "at": "pace_tokens_per_s",
                    "move": "Leave it out; rehearsal and replay:FILE have a pace.",
                },
            )
        return self


class MountedExperience(Settings):
    """One experience that an enhanced agent brings along."""

    id: Name = Field(description="its stable id, such as E17")
    text: str = Field(min_length=1, description="what is put in front of the prompt")


class AgentConfig(Settings):
    """Who tries the problems; mountable as a file of its own."""

    name: str = Field(default="solver", description="of the agent, for people")
    instructions: str = Field(default=DEFAULT_INSTRUCTIONS, description="its system prompt")
    experiences: tuple[MountedExperience, ...] = Field(
        default=(),
        description="of an enhanced agent; the library that a run starts from",
    )
    kind: Literal["single_turn", "calculator"] = Field(
        default="single_turn", description="one reply, or replies that may ask for a calculation"
    )
    max_turns: Int = Field(
        default=2, ge=1, le=MOST, description="replies at most, where there is more than one"
    )
    model: PolicyConfig | None = Field(
        default=None,
        description="the model the agent comes with; used where the run file sets no policy",
    )

    @field_validator("experiences")
    @classmethod
    def _validate_unique(
        cls, value: tuple[MountedExperience, ...]
    ) -> tuple[MountedExperience, ...]:
        for what in ("id", "text"):
            seen = [getattr(experience, what) for experience in value]
            if twice := [one for one in seen if seen.count(one) > 1]:
                raise ValueError(f'the {what} "{twice[0][:60]}" stands there twice')
        return value


class DataConfig(Settings):
    """The problems to practise on."""

    practice: str | None = Field(
        default=None,
        min_length=1,
        description="data set to practise on: a name or a path; null: it is only evaluated",
    )
    fields: dict[str, str] = Field(
        default={}, description="{question: NAME, answer: NAME} where the file has unusual names"
    )
    truncate: Int | None = Field(
        default=None, ge=1, le=MOST_ROWS, description="use only the first so many problems"
    )
    shuffle: bool = Field(default=True, description="a new order in every epoch; false: the file's")

    @field_validator("fields")
    @classmethod
    def _validate_fields(cls, value: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(value) - {"question", "answer"}):
            raise ValueError(f'"{unknown[0]}" cannot be mapped, only question and answer')
        return value


class PracticeConfig(Settings):
    """How it practises."""

    algorithm: Annotated[Algorithm, BeforeValidator(parse_algorithm)] = Field(
        default="training_free",
        description="training_free: a library is learned; grpo, sft: weights are",
    )
    epochs: Int = Field(default=5, ge=1, le=MOST, description="times every problem is met")
    batch_size: Int = Field(default=32, ge=1, le=MOST_ROWS, description="problems a step")
    group_size: Int = Field(default=3, ge=1, le=MOST, description="rollouts of each problem")
    concurrency: Int = Field(
        default=64, ge=1, le=MOST, description="model calls at a time; hf:… samples whole steps"
    )
    temperature: Float = Field(default=0.7, ge=0, le=10, description="of rollouts")
    task_timeout_s: Float = Field(default=3600.0, gt=0, description="deadline of one rollout")
    restart_step: Int | None = Field(
        default=None, ge=0, description="null resumes, 0 starts afresh, N adopts the first N steps"
    )
    agent_objective: str = Field(
        default=load_prompt("studio.config", "agent_objective").render(),
        description="what the agent is given and gives back, as the reflector is told",
    )
    learning_objective: str = Field(
        default=load_prompt("studio.config", "learning_objective").render(),
        description="what the lessons are for, as the reflector is told",
    )
    experiences_per_query: Int = Field(default=1, ge=1, description="lessons one group may propose")
    given_ground_truth: bool = Field(default=True, description="false: hide answers and rewards")
    summarise: Literal["auto", "always", "never"] = Field(
        default="auto", description="summarise rollouts before comparing; auto: only long ones"
    )
    summarise_above_chars: Int = Field(default=2000, ge=1, description="what auto calls long")
    library_limit: Int | None = Field(
        default=50, ge=1, description="experiences at most; null: no limit"
    )


class EvaluationConfig(Settings):
    """How progress is measured."""

    do_eval: bool = Field(default=False, description="evaluate while practising")
    strategy: Literal["epoch", "steps"] = Field(
        default="epoch", description="after each epoch or k steps"
    )
    every_steps: Int = Field(default=1, ge=1, description="k, where strategy is steps")
    data: Annotated[tuple[str, ...], BeforeValidator(as_list)] = Field(
        default=(), description="one or more data sets, held out from practice"
    )
    limit: Int | None = Field(
        default=None, ge=1, le=MOST_ROWS, description="use only the first so many of each"
    )
    k: Int = Field(default=1, ge=1, le=4_096, description="tries a problem")
    temperature: Float = Field(default=0.0, ge=0, le=10, description="of those tries")
    concurrency: Int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="rollouts at a time; null: shares practice.concurrency",
    )

    @model_validator(mode="after")
    def _validate_data(self) -> EvaluationConfig:
        if self.do_eval and not self.data:
            raise PydanticCustomError(
                "unmet",
                "evaluation is on, but evaluation.data names no data set",
                {"at": "do_eval", "move": "Set evaluation.data, or evaluation.do_eval=false."},
            )
        return self


class VerifierConfig(Settings):
    """What scores the tries; every other key is the verifier's own setting.

    A plain text stands for {name: text}, a list for {name: weighted, of: list}, and
    {file: FILE} for {name: function, file: FILE}.
    """

    model_config = ConfigDict(extra="allow")

    name: str = Field(
        default="math",
        min_length=1,
        description="math, text, judge, accuracy, length_penalty, step or format; function with "
        "file: FILE; weighted with of: [...]",
    )

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings}


class LibraryConfig(Settings):
    """Where experiences are kept and what the run begins with."""

    name: Name | None = Field(
        default=None, description="letters, digits, . _ -; null: as the run is called"
    )
    start: str = Field(
        default="empty",
        pattern=r"^(empty|[A-Za-z0-9][A-Za-z0-9._-]*@\d{1,18})$",
        description="empty or NAME@V",
    )


class ReviewConfig(Settings):
    """Who decides what is learned."""

    by: str | None = Field(
        default=None,
        pattern=r"^(auto|wait|rules:.+)$",
        description="auto, wait or rules:FILE; null: the face decides (a person, or auto headless)",
    )
    hold_s: Float | None = Field(
        default=None, gt=0, description="how long wait holds a run; null: until decided"
    )


class BudgetConfig(Settings):
    """What may be spent; a call that might exceed it is not made, and the run ends."""

    calls: Int | None = Field(default=None, ge=1, description="model calls; null: no limit")
    tokens: Int | None = Field(
        default=None, ge=1, description="of prompts and replies; null: no limit"
    )
    cost_usd: Float | None = Field(
        default=None, gt=0, description="in US dollars, of models with prices; null: no limit"
    )


class EmbeddingConfig(Settings):
    """A model that places texts by their meaning. A plain text stands for {model: text}."""

    model: str = Field(
        pattern=r"^(rehearsal|openai:.+)$",
        description="openai:MODEL, or rehearsal (offline, by letters)",
    )
    base_url: str | None = Field(
        default=None, description="its endpoint; null with no api_key: those of the policy"
    )
    api_key: ApiKey | None = Field(default=None, description="its key, best as ${oc.env:NAME}")
    timeout_s: Float = Field(default=30.0, gt=0, description="deadline, retries included")
    price_in_usd_per_mtok: Float | None = Field(default=None, ge=0, description="of its tokens")

    @field_validator("base_url")
    @classmethod
    def _validate_address(cls, value: str | None) -> str | None:
        return value if value is None else _check_address(value)


class LintConfig(Settings):
    """What is flagged in a proposed operation before it is reviewed."""

    duplicate_at: Float = Field(
        default=0.8, gt=0, le=1, description="similarity from which two texts say the same"
    )
    leak_words: Int = Field(default=8, ge=3, description="words in a row that give a question away")
    max_words: Int = Field(default=60, ge=1, description="of an experience, before it is too long")
    embedding: Annotated[EmbeddingConfig | None, BeforeValidator(_model_mapping)] = Field(
        default=None, description="finds duplicates in other words; null: by wording only"
    )


class RunConfig(Settings):
    """A whole run."""

    exp_id: Name = Field(
        description="name of the experiment (letters, digits, . _ -); default: the file's name"
    )
    seed: Int = Field(default=1, description="all chance of the run follows from it")
    policy: PolicyConfig = Field(description="the model that practises")
    reflector: PolicyConfig | None = Field(
        default=None, description="draws the lessons; null: the policy"
    )
    judge: PolicyConfig | None = Field(default=None, description="judges answers; null: the policy")
    agent: AgentConfig = AgentConfig()
    data: DataConfig = DataConfig()
    practice: PracticeConfig = PracticeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    verifier: VerifierConfig = VerifierConfig()
    library: LibraryConfig = LibraryConfig()
    review: ReviewConfig = ReviewConfig()
    lint: LintConfig = LintConfig()
    budget: BudgetConfig = BudgetConfig()
    grpo: GRPOConfig = GRPOConfig()
    sft: SFTConfig = SFTConfig()

    @property
    def trains(self) -> bool:
        """Whether practice updates weights."""
        return self.practice.algorithm != "training_free"

    @property
    def rollouts_a_problem(self) -> int:
        """In practice; fine-tuning makes none, since its problems bring what is learnt."""
        return 0 if self.practice.algorithm == "sft" else self.practice.group_size

    @model_validator(mode="after")
    def _validate_training(self) -> RunConfig:
        if not self.trains:
            return self
        practice = self.practice
        if not self.policy.model.startswith("hf:"):
            raise PydanticCustomError(
                "unmet",
                "training needs a policy whose weights are here",
                {
                    "at": "policy.model",
                    "move": "Set policy.model=hf:PATH_OR_NAME; hf:tiny is bundled.",
                },
            )
        if practice.algorithm == "sft":
            return self
        unmet = [
            (
                self.policy.top_p is not None and self.policy.top_p < 1,
                "with top_p below 1 the scores that were sampled from are not the policy's own, "
                "so their log-probabilities cannot be trained on",
                ("policy.top_p", "Leave it out in training."),
            ),
            (
                practice.temperature == 0,
                "at temperature 0 all tries are the same, so nothing can be learned from them",
                ("practice.temperature", "Set it above 0; 1.0 is usual."),
            ),
            (
                practice.group_size < 2,
                "a single try has nothing to be compared with",
                ("practice.group_size", "Set it to 2 or more; 8 is usual."),
            ),
            (
                not practice.given_ground_truth,
                "without rewards there is nothing to train on",
                ("practice.given_ground_truth", "Leave it out."),
            ),
        ]
        for wrong, cause, (at, move) in unmet:
            if wrong:
                raise PydanticCustomError("unmet", cause, {"at": at, "move": move})
        return self

    @model_validator(mode="after")
    def _validate_paced_roles(self) -> RunConfig:
        for role in ("reflector", "judge"):
            own: PolicyConfig | None = getattr(self, role)
            if own is not None and own.pace_tokens_per_s is not None:
                raise PydanticCustomError(
                    "unmet",
                    "only rollouts are watched as they stream",
                    {"at": f"{role}.pace_tokens_per_s", "move": "Leave it out."},
                )
        return self

    # Dotted key → the `${…}` text a secret came from; written back instead of its value.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def role(self, role: Role) -> PolicyConfig:
        """The settings of a model role, always with a temperature.

        A role that is not set is the policy (P08) at the role's own temperature.
        """
        if role == "policy":
            return self.policy.model_copy(update={"temperature": self.practice.temperature})
        own = self.reflector if role == "reflector" else self.judge
        usual = REFLECTOR_TEMPERATURE if role == "reflector" else JUDGE_TEMPERATURE
        temperature = usual if own is None or own.temperature is None else own.temperature
        return (own or self.policy).model_copy(update={"temperature": temperature})

    def fingerprint(
        self, data_digest: str = "", verifier: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What results depend on, as plain JSON values keyed by `RESULT_FIELDS`.

        Args:
            data_digest: content hash of the practised data; a path may change, content not.
            verifier: the verifier with what its files hold; None: as the run file says it.
        """
        plain = self.model_dump(mode="json")
        for role in ("policy", "reflector", "judge"):
            settings = self.role(role).model_dump(mode="json")
            settings["extra_body"] = without_secrets(
                self._with_origins(role, settings["extra_body"])
            )
            settings["model"] = _portable_model(settings["model"])
            settings["adapter"] = _relative_adapter(settings["adapter"])
            plain[role] = settings
        plain["data"] |= {
            "practice": Path(self.data.practice or "").stem.removesuffix(".jsonl"),
            "digest": data_digest,
        }
        embedding = self.lint.embedding
        plain["lint"]["embedding"] = None if embedding is None else embedding.model
        plain["verifier"] = without_secrets(self.verifier.spec) if verifier is None else verifier
        return {name: _value_at(plain, name) for name in RESULT_FIELDS}

    def _with_origins(self, role: Role, value: Any, key: tuple[str, ...] = ()) -> Any:
        """Fields of a request, with what came from `${…}` as that text instead of its value.

        A short hash tells values apart, except those of variables that are named as secrets.
        """
        if isinstance(value, dict):
            return {
                k: self._with_origins(role, inner, (*key, str(k))) for k, inner in value.items()
            }
        if isinstance(value, list):
            return [self._with_origins(role, v, (*key, str(n))) for n, v in enumerate(value)]
        section = role if getattr(self, role) is not None else "policy"
        origin = self._origins.get(".".join((section, "extra_body", *key)))
        if origin is None:
            return value
        return origin if names_secret(origin) else f"{origin} #{digest(value, 4)}"


_MODEL_FIELDS = ("model", "temperature", "top_p", "max_tokens", "stop", "extra_body")

_STAGE_ONLY = {"data", "min_reward", "epochs", "batch_size"}  # what they say stands elsewhere
_NOT_RESULTS = {"checkpoint_steps", "keep", "tensorboard", "lora"}

RESULT_FIELDS = (
    "seed",
    "practice.algorithm",
    "policy.adapter",
    "policy.local.dtype",
    "policy.local.quantise",
    *(f"grpo.{name}" for name in GRPOConfig.model_fields if name not in _NOT_RESULTS),
    *(f"sft.{name}" for name in SFTConfig.model_fields if name not in _STAGE_ONLY),
    *(f"grpo.lora.{name}" for name in LoraConfig.model_fields),
    *(f"{role}.{name}" for role in ("policy", "reflector", "judge") for name in _MODEL_FIELDS),
    "agent.instructions",
    "agent.experiences",
    "agent.kind",
    "agent.max_turns",
    "data.practice",
    "data.digest",
    "data.fields",
    "data.truncate",
    "data.shuffle",
    "practice.batch_size",
    "practice.group_size",
    "practice.agent_objective",
    "practice.learning_objective",
    "practice.experiences_per_query",
    "practice.given_ground_truth",
    "practice.summarise",
    "practice.summarise_above_chars",
    "practice.library_limit",
    "lint.duplicate_at",
    "lint.leak_words",
    "lint.max_words",
    "lint.embedding",
    "verifier",
    "library.name",
    "library.start",
)
"""Settings a resumed run must share; all others (epochs, keys, URLs, deadlines, review,
evaluation, concurrency) may change freely. `policy.temperature` is that of rollouts."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Fields in which two fingerprints differ, with both values.

    A field that the older one lacks is a setting that did not exist when its run began: it
    is no change of the user's.
    """
    names = [*RESULT_FIELDS, *sorted(set(old) - set(RESULT_FIELDS))]
    return tuple((n, old[n], new.get(n)) for n in names if n in old and old[n] != new.get(n))


def model_at(key: tuple[str, ...]) -> type[BaseModel] | None:
    """The settings class that holds the keys below `key`; None where there is none."""
    model: type[BaseModel] = RunConfig
    for part in key:
        field = model.model_fields.get(part)
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not inner:
            return None
        model = inner[0]
    return model


def every_setting() -> dict[str, str]:
    """Dotted name → meaning, for all settings."""
    found: dict[str, str] = {}

    def visit(model: type[BaseModel], prefix: str) -> None:
        for name, field in model.model_fields.items():
            dotted = f"{prefix}{name}"
            inner = model_at(tuple(dotted.split(".")))
            found[dotted] = field.description or (inner.__doc__ or "" if inner else "")
            if inner is not None:
                visit(inner, f"{dotted}.")

    visit(RunConfig, "")
    return found


def _portable_model(model: str) -> str:
    scheme, _, rest = model.partition(":")
    if scheme == "hf" and Path(rest).is_absolute():
        return f"hf:{Path(rest).name}"  # its weights are told apart by what they are
    return f"replay:{Path(rest).stem}" if scheme == "replay" else model


def _relative_adapter(adapter: str | None) -> str | None:
    """An adapter's folder as a moved workspace has it too, where it is a run's."""
    return adapter if adapter is None else adapter.rpartition("/runs/")[2]


def _value_at(tree: Any, name: str) -> Any:
    for part in name.split("."):
        tree = tree[part]
    return tree
