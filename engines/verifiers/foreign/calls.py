"""The forms of other frameworks: which one a function has, what it is given, what its return means.

A problem and its rollouts become plain JSON (parent), then arguments (worker), and what came back
plain results (worker). The worker loads this before the user's file, so it stays light.

The few names that Youtu-Agent's and AgentScope's documentation imports in such files are served by
stand-ins where those packages are not installed. A model asked through them is the run's judge;
names that would do the other framework's work exist so that a file loads, and say so when used.

Sources: Youtu-Agent's `verify_func(sample, timeout_score, **kwargs)`, TRL's reward functions of
`GRPOTrainer`, AgentScope's `JudgeType` (agentscope.tuner).
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import inspect
import json
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from reprlib import repr as short_repr
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self

from engines.agents import agentscope_classes as agentscope
from engines.core.codec import JsonMapping, JsonObject, fields_of
from engines.core.frozen import frozen

if TYPE_CHECKING:
    from engines.core.types import Message, Problem, Rollout


MAX_CRITIQUE = 4_000


class WrongReturn(Exception):
    """The function returned what its framework does not allow."""


def build_question(
    problem: Problem, rollouts: Sequence[Rollout], timeout_score: float
) -> JsonObject:
    """The part of a call's message that says what is judged."""
    return {
        "problem": {
            **fields_of(problem, "id", "question", "answer", "source"),
            "meta": json.loads(json.dumps(dict(problem.meta), default=str)),
        },
        "rollouts": [
            {
                **fields_of(rollout, "id", "position", "epoch", "step"),
                **fields_of(rollout.attempt, "answer", "elapsed_s"),
                # -1 for each token where the policy tells only how many there are.
                "tokens": [token for turn in rollout.attempt.turns for token in turn.token_ids]
                or [-1] * rollout.attempt.usage.completion_tokens,
                "messages": [_message_fields(m) for m in rollout.attempt.messages],
            }
            for rollout in rollouts
        ],
        "timeout_score": timeout_score,
    }


def _message_fields(message: Message) -> JsonObject:
    """With the tools it calls, where it calls any."""
    calls = [fields_of(call, "id", "name", "arguments") for call in message.tool_calls]
    return fields_of(message, "role", "content") | ({"tool_calls": calls} if calls else {})


def build_arguments(
    chosen: ChosenFunction,
    order: JsonMapping,
    logged: dict[str, float],
    *,
    as_messages: bool,
) -> tuple[list[Any], JsonObject]:
    """Arguments by place and by name, for the question in `order` (see `build_question`).

    `logged` receives what the function logs as metrics. With `as_messages` completions are
    lists of one message, not texts.

    Raises FileRefused: the function needs a column that the data does not have.
    """
    problem, rollouts = order["problem"], order["rollouts"]
    match chosen.signature:
        case "youtu":
            offered = {"timeout_score": order["timeout_score"], "llm": SimplifiedAsyncOpenAI()}
            return [build_sample(problem, rollouts[0])], accepted_arguments(
                chosen.call, offered, skip=1
            )
        case "agentscope":
            models = AuxiliaryModels(judge=ChatModelBase())
            named = accepted_arguments(chosen.call, {"auxiliary_models": models}, skip=2)
            return [build_row(problem), agentscope.Answer(rollouts[0]["answer"])], named
        case "trl":
            offered = build_columns(problem, rollouts, as_messages=as_messages)
            offered["log_metric"] = logged.__setitem__
            return [], accepted_arguments(chosen.call, offered)


def build_sample(problem: JsonMapping, rollout: JsonMapping) -> EvaluationSample:
    """What Youtu-Agent's functions get. What the loop does not know stays None."""
    meta, messages = problem["meta"], rollout["messages"]
    prompt = next((m["content"] for m in messages if m["role"] == "user"), problem["question"])
    return EvaluationSample(
        dataset=str(meta.get("dataset", problem["source"])),
        dataset_index=rollout["position"],
        source=problem["source"],
        raw_question=problem["question"],
        level=meta.get("level"),
        augmented_question=prompt,
        correct_answer=problem["answer"],
        file_name=meta.get("file_name"),
        meta=meta,
        trace_id=rollout["id"],
        response=rollout["answer"],
        time_cost=rollout["elapsed_s"],
        trajectory=json.dumps(messages),
        trajectories=json.dumps([{"agent": "agent", "trajectory": messages}]),
        exp_id="",
        stage="rollout",
    )


def build_row(problem: JsonMapping) -> JsonObject:
    """The data row: question, answer and truth under their usual names, then all else."""
    answer = problem["answer"]
    usual = {"question": problem["question"], "answer": answer, "ground_truth": answer}
    return {**usual, "solution": answer, "source": problem["source"], **problem["meta"]}


def build_columns(
    problem: JsonMapping, rollouts: Sequence[JsonMapping], *, as_messages: bool
) -> JsonObject:
    """What TRL's functions get: one entry a rollout in every column."""
    n = len(rollouts)
    prompt: Any = problem["question"]
    completions: list[Any] = [rollout["answer"] for rollout in rollouts]
    if as_messages:
        prompt = [{"role": "user", "content": prompt}]
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    return {
        **{name: [value] * n for name, value in build_row(problem).items()},
        "prompts": [prompt] * n,
        "completions": completions,
        "completion_ids": [rollout["tokens"] for rollout in rollouts],
        "trainer_state": _trainer_state(rollouts),
        "log_extra": lambda column, values: None,
    }


def _trainer_state(rollouts: Sequence[JsonMapping]) -> SimpleNamespace:
    """Where the run is: `global_step` counts the updates made so far, as in TRL."""
    first = rollouts[0] if rollouts else {"step": 0, "epoch": 0}
    done = first["step"] - bool(first["epoch"])  # a held-out try comes after its step
    return SimpleNamespace(
        global_step=max(0, done), epoch=float(first["epoch"]), is_world_process_zero=True
    )


def shared_columns(*sets: Sequence[Problem]) -> frozenset[str] | None:
    """The columns beside question and answer that every set of problems has somewhere.

    A row without one is told when its turn comes. None where there are no problems.
    """
    found = [frozenset(name for problem in s for name in problem.meta) for s in sets if s]
    return frozenset.intersection(*found) if found else None


def check_columns(chosen: ChosenFunction, known: Collection[str]) -> None:
    """Check that a reward function of TRL can be given all that it needs.

    `known` are the columns beside question and answer. FileRefused: it needs another one.
    """
    problem = {"question": "", "answer": None, "source": "", "meta": dict.fromkeys(known)}
    if chosen.signature == "trl":
        offered = build_columns(problem, (), as_messages=False)
        accepted_arguments(chosen.call, {**offered, "log_metric": None})


def parse_results(
    returned: Any, signature: Signature, count: int, logged: Mapping[str, float]
) -> list[JsonObject]:
    """What was returned as {"reward", "critique", "metrics"} for each rollout.

    Raises WrongReturn: it has not the shape that the framework documents.
    """
    if signature != "trl":
        return [_parse_result(returned)]
    if hasattr(returned, "tolist"):  # an array or tensor
        returned = returned.tolist()
    if not isinstance(returned, list | tuple):
        raise WrongReturn(f"the verifier returned {short_repr(returned)}, not a list of rewards")
    if len(returned) != count:
        raise WrongReturn(f"the verifier returned {len(returned)} rewards for {count} completions")
    metrics = _parse_metrics(logged)
    return [{"reward": _parse_number(x), "critique": None, "metrics": metrics} for x in returned]


def rescale_reward(reward: float, low: float, high: float) -> float:
    """A reward of [low, high] in [0, 1]. WrongReturn: it is no finite number of that range."""
    if not math.isfinite(reward):
        raise WrongReturn(f"the verifier returned {reward:g}")
    slack = 1e-9 * (high - low)  # 0.1 + 0.2 + 0.7 is a little above 1
    if not low - slack <= reward <= high + slack:
        wider = f"verifier.range=[{min(low, reward):g},{max(high, reward):g}] or wider"
        said = f"the verifier returned {reward:g}, outside {low:g} to {high:g}"
        raise WrongReturn(f"{said}; set {wider}, so that it is mapped to 0 to 1")
    return min(1.0, max(0.0, (reward - low) / (high - low)))


def _parse_result(returned: Any) -> JsonObject:
    if returned is None:
        raise WrongReturn("the verifier returned None, not a reward")
    if isinstance(returned, Mapping):
        if "reward" not in returned:
            raise WrongReturn(f'the verifier returned {short_repr(returned)}, without "reward"')
        fields = dict(returned)
    elif hasattr(returned, "reward"):
        names = ("reward", "reasoning", "metrics", "step_rewards")
        fields = {name: getattr(returned, name, None) for name in names}
    else:
        fields = {"reward": returned}
    critique = fields.get("reasoning")
    if critique is not None and not isinstance(critique, str):
        raise WrongReturn(f"the verifier returned {short_repr(critique)} as reasoning, not a text")
    reward, metrics = _parse_number(fields["reward"]), _parse_metrics(fields.get("metrics"))
    steps = fields.get("step_rewards")
    return {
        "reward": reward,
        "critique": (critique or "")[:MAX_CRITIQUE],
        "metrics": metrics,
        "step_rewards": [] if steps is None else _parse_step_rewards(steps),
    }


def _parse_step_rewards(given: Any) -> list[float]:
    """Rewards of a try's replies, in order, each in [-1, 1]."""
    numbers = [_parse_number(one) for one in given] if isinstance(given, list | tuple) else [None]
    known = [one for one in numbers if one is not None and -1 <= one <= 1]
    if len(known) < len(numbers):
        shown = short_repr(given)
        raise WrongReturn(f"the verifier returned {shown} as step_rewards, not numbers of -1 to 1")
    return known


def _parse_number(value: Any) -> float | None:
    """None stays None: the function has no opinion. NaN stays, for whoever knows its cause."""
    if value is None:
        return None
    if isinstance(value, str | bytes):
        raise WrongReturn(f"the verifier returned {short_repr(value)}, not a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise WrongReturn(f"the verifier returned {short_repr(value)}, not a number") from error


def _parse_metrics(given: Any) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise WrongReturn(f"the verifier returned {short_repr(given)} as metrics, not a dict")
    metrics = {}
    for name, value in given.items():
        number = _parse_number(value)
        if number is None or not math.isfinite(number):
            raise WrongReturn(f"the verifier's metric {short_repr(name)} is {short_repr(value)}")
        metrics[str(name)] = number
    return metrics


Signature = Literal["youtu", "trl", "agentscope"]

DEFAULT_FUNCTION = "verify_func"
FORMS: Mapping[Signature, str] = {
    "youtu": "verify_func(sample, timeout_score=0, **kwargs) of Youtu-Agent",
    "trl": "reward_func(completions, **kwargs) of TRL",
    "agentscope": "judge(task, response, auxiliary_models=None) of AgentScope",
}
_KNOWN = f"Give it the form of {'; or '.join(FORMS.values())}."
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class FileRefused(Exception):
    """The file cannot serve as a verifier; becomes the parent's VerifierError."""

    def __init__(self, cause: str, move: str, line: int | None = None) -> None:
        self.cause, self.move, self.line = cause, move, line
        super().__init__(cause)


@frozen
class ChosenFunction:
    name: str
    call: Callable[..., Any]
    signature: Signature

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(
            getattr(self.call, "__call__", None)  # noqa: B004 (its kind, not whether it is there)
        )


def detect_signature(names: list[str]) -> Signature | None:
    """Tell the framework by parameter names; None where none fits."""
    if names[:1] == ["sample"]:
        return "youtu"
    if "completions" in names or "completion_ids" in names:
        return "trl"
    if "task" in names and "response" in names:
        return "agentscope"
    return None


def choose_function(module: ModuleType, name: str | None) -> ChosenFunction:
    """Find the function to use; FileRefused where none has a known signature.

    Without a name it is the only public one of a known signature, else `verify_func`. The
    parameter names tell the signature.
    """
    name = name or _only_function(module)
    if not hasattr(module, name):
        from engines.core.errors import did_you_mean  # only a mistake needs more than the library

        known = list(_public_functions(module))
        there = f"It defines: {', '.join(known)}." if known else "It defines none."
        raise FileRefused(f'there is no function "{name}".', f"{did_you_mean(name, known)}{there}")
    call = getattr(module, name)
    if not callable(call):
        kind = type(call).__name__
        raise FileRefused(f'"{name}" is not a function: it is of type {kind}.', _KNOWN)
    line = _definition_line(module, call)
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError) as error:
        raise FileRefused(
            f'the parameters of "{name}" cannot be told ({error}).', _KNOWN
        ) from error
    found = f"{name}({', '.join(map(str, parameters))})"
    signature = detect_signature([parameter.name for parameter in parameters])
    if signature is None:
        raise FileRefused(f"{found} has none of the known signatures.", _KNOWN, line)
    try:
        _check_form(parameters, signature)
    except TypeError as error:
        raise FileRefused(
            f"{found} cannot be called so: {error}.",
            f"Give it the form of {FORMS[signature]}.",
            line,
        ) from error
    return ChosenFunction(name, call, signature)


def accepted_arguments(call: Callable[..., Any], offered: JsonMapping, skip: int = 0) -> JsonObject:
    """Those of the offered keyword arguments that a function takes.

    Its first `skip` parameters are given by place. FileRefused: it needs one not offered.
    """
    parameters = list(inspect.signature(call).parameters.values())[skip:]
    missing = [p.name for p in parameters if _is_required(p) and p.name not in offered]
    if missing:
        named = ", ".join(f'"{name}"' for name in missing)
        has = ", ".join(sorted(offered))
        raise FileRefused(f"it needs {named}, and the data has only: {has}.", "Add the column.")
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return dict(offered)
    return {p.name: offered[p.name] for p in parameters if p.name in offered}


def reads_messages(tree: ast.Module) -> bool:
    """True when something in the file reads `[…]["content"]`, or is imported from TRL's rewards."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="trl.rewards"):
                return True
            case ast.Subscript(slice=ast.Constant(value="content")):
                return True
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value="content"), *_]):
                return True
    return False


def _only_function(module: ModuleType) -> str:
    known = [
        name
        for name, call in _public_functions(module).items()
        if detect_signature(list(inspect.signature(call).parameters))
    ]
    if len(known) == 1:
        return known[0]
    if hasattr(module, DEFAULT_FUNCTION):
        return DEFAULT_FUNCTION
    if known:
        raise FileRefused(
            f"several functions could be meant: {', '.join(known)}.",
            "Name one of them as function.",
        )
    raise FileRefused("no function has one of the known signatures.", _KNOWN)


def _public_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions that the file itself defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _VARIADIC


def _check_form(parameters: Sequence[inspect.Parameter], signature: Signature) -> None:
    """Raises TypeError: a function cannot be called the way of its framework."""
    names = [p.name for p in parameters if p.kind not in _VARIADIC]
    by_place, offered = {
        "youtu": (1, ("timeout_score", "llm")),
        "agentscope": (2, ("auxiliary_models",)),
    }.get(signature, (0, tuple(names)))
    named = {name: None for name in offered if name in names}
    inspect.Signature(parameters).bind(*[None] * by_place, **named)


def _definition_line(module: ModuleType, call: Callable[..., Any]) -> int | None:
    code = getattr(inspect.unwrap(call), "__code__", None)
    return code.co_firstlineno if code and code.co_filename == module.__file__ else None


Ask = Callable[[list[dict[str, str]]], Awaitable[str]]
"""Puts chat messages to the run's judge and returns its reply as text."""

current_ask: ContextVar[Ask] = ContextVar("current_ask")
"""Of the call under way."""


class Fields(SimpleNamespace):
    """A record whose fields are attributes, all optional, as of the frameworks' models."""

    names: tuple[str, ...] = ()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**dict.fromkeys(self.names), **fields})

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def update(self, **fields: Any) -> None:
        vars(self).update(fields)

    def model_dump(self) -> JsonObject:
        return dict(vars(self))

    def as_dict(self) -> JsonObject:
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Self:
        return cls(**data)

    def model_copy(self, *, update: JsonMapping | None = None, deep: bool = False) -> Self:
        fields = copy.deepcopy(vars(self)) if deep else vars(self)
        return type(self)(**{**fields, **(update or {})})

    copy = model_copy


class DatasetSample(Fields):
    names = (
        *("dataset", "index", "source", "source_index"),
        *("question", "answer", "topic", "level", "file_name", "meta", "id"),
    )


class EvaluationSample(Fields):
    names = (
        *("dataset", "dataset_index", "source", "raw_question", "level", "augmented_question"),
        *("correct_answer", "file_name", "meta", "trace_id", "response", "time_cost"),
        *("trajectory", "trajectories", "extracted_final_answer", "judged_response"),
        *("reasoning", "correct", "confidence", "exp_id", "stage"),
        *("id", "trace_url", "reward", "created_at", "updated_at"),
    )


class JudgeOutput(Fields):
    names = ("reward", "metrics")

    def __init__(self, *, reward: float, metrics: dict[str, float] | None = None) -> None:
        super().__init__(reward=reward, metrics=metrics)


class WorkflowOutput(Fields):
    names = ("reward", "response", "metrics")


class ChatResponse(agentscope.Msg):
    def __init__(self, text: str) -> None:
        super().__init__("judge", [agentscope.TextBlock(text=text)], "assistant")


class JudgeClient:
    """A client that asks for whichever call makes use of it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Whatever a file gives, its questions go to the run's judge."""

    async def _reply(self, messages: Any) -> str:
        return await current_ask.get()(agentscope.to_chat_messages(messages))


class SimplifiedAsyncOpenAI(JudgeClient):
    async def query_one(self, messages: Any = "", **_: Any) -> str:
        return await self._reply(messages)


class ChatModelBase(JudgeClient):
    model_name = "judge"
    stream = False

    async def __call__(self, messages: Any, *_: Any, **__: Any) -> ChatResponse:
        return ChatResponse(await self._reply(messages))


class AuxiliaryModels(dict[str, ChatModelBase]):
    """The judge under every name: a run has one, and files name theirs as they like."""

    def __missing__(self, name: str) -> ChatModelBase:
        return self["judge"]


def _placeholder_class(module: str, name: str) -> type:
    def refuse(self: object, *_: Any, **__: Any) -> None:
        package = module.partition(".")[0]
        raise RuntimeError(
            f"{module}.{name} does nothing here because {package} is not installed: a verifier "
            "asks the model it is given"
        )

    return type(name, (), {"__init__": refuse, "__module__": module})


def get_logger(name: str, *_: Any, **__: Any) -> logging.Logger:
    return logging.getLogger(name)


_REFUSED = {
    "utu.config": "ConfigLoader EvalConfig ModelConfigs",
    "agentscope.tuner": "AlgorithmConfig DatasetConfig TunerChatModel TunerModelConfig tune",
    "agentscope.model": "DashScopeChatModel OpenAIChatModel TrinityChatModel",
    "agentscope.agent": "AgentBase ReActAgent",
    "agentscope.formatter": "DashScopeChatFormatter OpenAIChatFormatter",
}
"""Names that a file may import, and that say so when they are used."""


def build_modules(file: Path | None = None) -> dict[str, ModuleType]:
    """Fresh stand-in modules by full name, for the verifier `file`."""
    file_utils = file_utils_for(file)
    served: dict[str, tuple[Callable[..., Any], ...]] = {
        "utu": (),
        "utu.db": (EvaluationSample, DatasetSample),
        "utu.utils": (SimplifiedAsyncOpenAI, file_utils, get_logger),
        "agentscope": (),
        "agentscope.tuner": (JudgeOutput, WorkflowOutput),
        "agentscope.model": (ChatModelBase, ChatResponse),
        "agentscope.message": (agentscope.Msg, *agentscope.BLOCK_CLASSES),
        "agentscope.evaluate": agentscope.METRIC_CLASSES,
    }
    modules: dict[str, ModuleType] = {}
    for name in dict.fromkeys((*served, *_REFUSED)):
        module = modules[name] = ModuleType(name, "Stand-in of the practice studio.")
        module.__path__ = []  # a package as far as imports go
        vars(module).update({one.__name__: one for one in served.get(name, ())})
        refused = _REFUSED.get(name, "").split()
        vars(module).update({only: _placeholder_class(name, only) for only in refused})
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    vars(modules["utu.utils"]).update(DIR_ROOT=file_utils.root)
    vars(modules["agentscope.message"]).update(ContentBlock=dict)
    vars(modules["agentscope.tuner"]).update(
        JudgeType=Callable[..., Awaitable[JudgeOutput]],
        WorkflowType=Callable[..., Awaitable[WorkflowOutput]],
    )
    return modules


def serve_imports(file: Path) -> None:
    """Serve imports of packages that are not there, in a process that is that file's own.

    They stay, since its functions may import at each call.
    """
    modules = build_modules(file).items()
    there = {name for name, _ in modules if importlib.util.find_spec(name.partition(".")[0])}
    sys.modules.update({name: module for name, module in modules if name not in there})


unread: ContextVar[list[str]] = ContextVar("unread")
"""What the call under way asked for in vain."""


class CannotRead(Exception):
    """A prompt or a template cannot be had."""

    def __init__(self, text: str) -> None:
        unread.get([]).append(text)
        super().__init__(text)


@frozen
class Template:
    """A Jinja template. CannotRead: that package is not installed."""

    text: str

    def render(self, **fields: Any) -> str:
        try:
            import jinja2
        except ImportError as error:
            raise CannotRead("a template needs the package jinja2") from error
        return str(jinja2.Template(self.text).render(**fields))


class FileUtils:
    """Reads below the checkout `root`; None: the verifier file lies in none."""

    root: Path | None = None

    @classmethod
    def load_prompts(cls, fn: str | Path) -> Any:
        if isinstance(fn, str):
            name = f"utu/prompts/{fn.removesuffix('.yaml')}.yaml"
            if cls.root is None:
                raise CannotRead(f"{name} is asked for, and the verifier lies in no checkout")
            fn = cls.root / name
        return cls.load_yaml(fn)

    @staticmethod
    def load_yaml(file_path: str | Path) -> Any:
        import yaml  # a process for a file that reads none starts sooner

        try:
            return yaml.safe_load(Path(file_path).read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = getattr(error, "strerror", None) or "it is not YAML"
            raise CannotRead(f"{file_path} cannot be read ({reason})") from error

    @staticmethod
    def get_jinja_template_str(template_str: str) -> Template:
        return Template(template_str)


def file_utils_for(file: Path | None) -> type[FileUtils]:
    """FileUtils of the checkout that a verifier file lies in."""
    above = () if file is None else file.absolute().parents
    root = next((folder for folder in above if (folder / "utu" / "prompts").is_dir()), None)
    return type("FileUtils", (FileUtils,), {"root": root})
