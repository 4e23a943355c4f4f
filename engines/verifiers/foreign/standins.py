"""Stand-ins for what verifier files of other frameworks import.

The few names that Youtu-Agent's and AgentScope's documentation imports in such files, for where
those packages are not installed. A model asked through them is the run's judge; names that would
do the other framework's work exist so that a file loads, and say so when used.
"""

import copy
import importlib.util
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

from engines.agents import agentscope_classes as agentscope

Ask = Callable[[list[dict[str, str]]], Awaitable[str]]
"""Puts chat messages to the run's judge and returns its reply as text."""

current_ask: ContextVar[Ask] = ContextVar("current_ask")
"""Of the call under way, for clients that the user's file makes itself."""


class Fields(SimpleNamespace):
    """A record whose fields are attributes, all optional, as of the frameworks' models."""

    names: tuple[str, ...] = ()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**dict.fromkeys(self.names), **fields})

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def update(self, **fields: Any) -> None:
        vars(self).update(fields)

    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
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
    """A client bound to one call; unbound, it asks for whichever call makes use of it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._ask: Ask | None = None

    def bind(self, ask: Ask) -> Any:
        self._ask = ask
        return self

    async def _reply(self, messages: Any) -> str:
        return await (self._ask or current_ask.get())(agentscope.to_chat_messages(messages))


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

_FIELD = re.compile(r"\{\{-?\s*(\w+)\s*-?\}\}")


class CannotRead(Exception):
    """A prompt or a template cannot be had."""

    def __init__(self, text: str) -> None:
        unread.get([]).append(text)
        super().__init__(text)


class Template:
    """A Jinja template; without that package only one that puts in values by their names."""

    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, **fields: Any) -> str:
        try:
            import jinja2
        except ImportError:
            return render_fields(self._text, fields)
        return str(jinja2.Template(self._text).render(**fields))


def render_fields(text: str, fields: dict[str, Any]) -> str:
    """Put in `{{ name }}`, as Jinja does. CannotRead: the template has more than that."""
    if "{%" in text or "{{" in _FIELD.sub("", text):
        raise CannotRead("the template has more than {{ names }}, which needs the package jinja2")
    return _FIELD.sub(lambda found: str(fields.get(found[1], "")), text).removesuffix("\n")


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
