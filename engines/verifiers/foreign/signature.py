"""The three signatures of other frameworks, and which of them a function has.

Standard library only: the worker loads it before the user's file.

Sources: Youtu-Agent's `verify_func(sample, timeout_score, **kwargs)`, TRL's reward
functions of `GRPOTrainer`, AgentScope's `JudgeType` (agentscope.tuner).
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

Signature = Literal["youtu", "trl", "agentscope", "metric"]

DEFAULT_FUNCTION = "verify_func"
FORMS: Mapping[Signature, str] = {
    "youtu": "verify_func(sample, timeout_score=0, **kwargs) of Youtu-Agent",
    "trl": "reward_func(completions, **kwargs) of TRL",
    "agentscope": "judge(task, response, auxiliary_models=None) of AgentScope",
    "metric": "a class of AgentScope's MetricBase",
}
_KNOWN = f"Give it the form of {'; or '.join(FORMS.values())}."
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class FileRefused(Exception):
    """The file cannot serve as a verifier; becomes the parent's VerifierError."""

    def __init__(self, cause: str, move: str, line: int | None = None) -> None:
        self.cause, self.move, self.line = cause, move, line
        super().__init__(cause)


@dataclass(frozen=True, slots=True)
class ChosenFunction:
    name: str
    call: Callable[..., Any]
    signature: Signature

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(
            getattr(self.call, "__call__", None)  # noqa: B004 (its kind, not whether it is there)
        )


def detect_signature(names: Sequence[str]) -> Signature | None:
    """Tell the framework by parameter names; None where none fits."""
    if names[:1] == ["sample"] or names[:1] == ("sample",):
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
        cause = f'there is no function "{name}".'
        raise FileRefused(cause, f"{did_you_mean(name, known)}{there}")
    call = getattr(module, name)
    if not callable(call):
        kind = type(call).__name__
        raise FileRefused(f'"{name}" is not a function: it is of type {kind}.', _KNOWN)
    if is_metric_class(call):
        return ChosenFunction(name, call, "metric")
    line = _definition_line(module, call)
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError) as error:
        cause = f'the parameters of "{name}" cannot be told ({error}).'
        raise FileRefused(cause, _KNOWN) from error
    found = f"{name}({', '.join(map(str, parameters))})"
    signature = detect_signature([parameter.name for parameter in parameters])
    if signature is None:
        raise FileRefused(f"{found} has none of the known signatures.", _KNOWN, line)
    if objection := _objection_text(parameters, signature):
        move = f"Give it the form of {FORMS[signature]}."
        raise FileRefused(f"{found} {objection}.", move, line)
    return ChosenFunction(name, call, signature)


def is_metric_class(value: object) -> bool:
    """Whether it is a class of AgentScope's metrics, installed or standing in, that can be made."""
    if not inspect.isclass(value) or inspect.isabstract(value):
        return False
    return any(base.__name__ == "MetricBase" for base in value.__mro__[1:])


def accepted_arguments(
    call: Callable[..., Any], offered: Mapping[str, Any], skip: int = 0
) -> dict[str, Any]:
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
    known = known or [
        name
        for name, value in vars(module).items()
        if is_metric_class(value) and value.__module__ == module.__name__
    ]
    if len(known) == 1:
        return known[0]
    if known:
        cause = f"several functions could be meant: {', '.join(known)}."
        raise FileRefused(cause, "Name one of them as function.")
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


def _objection_text(parameters: Sequence[inspect.Parameter], signature: Signature) -> str | None:
    """What keeps a function from being called the way of a framework."""
    if signature == "trl":
        unreachable = [p.name for p in parameters if _is_required(p) and p.kind is _BY_PLACE[0]]
        return f"takes {', '.join(unreachable)} by place only" if unreachable else None
    place, offered = {
        "youtu": (1, {"timeout_score", "llm"}),
        "agentscope": (2, {"auxiliary_models"}),
    }[signature]
    first = [p for p in parameters if p.kind in _BY_PLACE][:place]
    if len(first) < place and not any(
        p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters
    ):
        return "takes too few arguments"
    rest = parameters[len(first) :]
    more = [p.name for p in rest if _is_required(p) and p.name not in offered]
    return f"needs {', '.join(more)}, which nothing gives it" if more else None


def _definition_line(module: ModuleType, call: Callable[..., Any]) -> int | None:
    code = getattr(inspect.unwrap(call), "__code__", None)
    return code.co_firstlineno if code and code.co_filename == module.__file__ else None
