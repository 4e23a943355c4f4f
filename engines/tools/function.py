"""A tool that is a typed function with a docstring, and the arguments of a call of any tool.

Name, schema and what the model is told come from the function itself. It runs in the studio's own
process and is not contained: the code is the user's. Of arguments three slips are mended: a code
fence around them, an object written as a text, a comma too many. Whatever else is wrong is refused
in words that a model can act on.
"""

import asyncio
import concurrent.futures
import inspect
import json
import math
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, NotRequired, get_type_hints

from engines.core import errors, protocols
from engines.core.codec import JsonMapping, JsonObject, fix_surrogates
from engines.core.types import NO_OUTPUT, ToolResult, ToolSpec

_ARGS = re.compile(r"^Args:[ \t]*\n((?:[ \t]+.*(?:\n|\Z)|[ \t]*\n)*)", re.MULTILINE)
_ARG = re.compile(r"^(\w+)(?: \([^)]*\))?:[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)
_REPEATABLE = re.compile(r"^Repeatable:[ \t]*(yes|no)\b.*\n?", re.MULTILINE)
_PLACES = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class FunctionTool:
    """A function as a tool; a plain one runs in a thread.

    A parameter that is annotated with `ToolTry` receives the try, and the model does not know
    of it. A line `Repeatable: yes` of the docstring says that a call may be made twice.
    """

    test: Callable[[], Awaitable[None]] | None = None  # what `check` is to do

    def __init__(self, function: Callable[..., Any], *, place: str = "") -> None:
        name = getattr(function, "__name__", "")
        self._place, self._function = place or f'tool "{name}"', function
        self._is_async = inspect.iscoroutinefunction(function)
        text = inspect.cleandoc(function.__doc__ or "")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", name):
            raise self._refusal(f'"{name}" is no name for a tool.', "Define it with def NAME.")
        told = re.sub(r"\n{3,}", "\n\n", _REPEATABLE.sub("", _ARGS.sub("", text))).strip()
        if not told:
            raise self._refusal(
                "it has no docstring.",
                "Say in it what the tool does, its limits and how to use it well.",
            )
        self._within: str | None = None
        self._adapter = self._build_adapter(_read_args(text))
        schema = self._adapter.json_schema()
        for titled in (schema, *schema.setdefault("properties", {}).values()):
            titled.pop("title", None)
        says = _REPEATABLE.search(text)
        self.spec = ToolSpec(
            name=name,
            description=told,
            parameters=schema,
            repeatable=bool(says and says[1] == "yes"),
        )

    async def check(self) -> None:
        """What can be wrong with a function was found when it was made."""
        if self.test is not None:
            await self.test()

    async def call(self, arguments: JsonMapping, within: protocols.ToolTry) -> ToolResult:
        from pydantic import ValidationError
        from pydantic_core import to_json

        try:
            # As JSON: strict, and yet a date may be a text.
            given = self._adapter.validate_json(to_json(arguments), strict=True)
        except ValidationError as error:
            return ToolResult(_objection_text(error, self.spec), "refused")
        if self._within:
            given[self._within] = within
        if self._is_async:
            value = await self._function(**given)
        else:
            value = await _run_in_thread(lambda: self._function(**given))
        if isinstance(value, ToolResult):
            return value
        if not isinstance(value, str | None):
            value = to_json(value, fallback=str).decode()
        return ToolResult(value or NO_OUTPUT)

    async def aclose(self) -> None:
        """It holds nothing."""

    def _build_adapter(self, described: Mapping[str, str]) -> Any:
        from pydantic import ConfigDict, Field, TypeAdapter, with_config
        from pydantic_core import to_jsonable_python
        from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

        try:
            hints = get_type_hints(self._function, include_extras=True)
        except Exception as error:
            raise self._refusal(
                f"the type of a parameter cannot be told ({error}).",
                "Import what its annotations name.",
            ) from error
        fields: JsonObject = {}
        for name, parameter in inspect.signature(self._function).parameters.items():
            if parameter.kind not in _PLACES:
                raise self._refusal(
                    f'the parameter "{parameter}" cannot be given by name.',
                    "Write out each parameter with its type.",
                )
            if name not in hints:
                raise self._refusal(
                    f'the parameter "{name}" has no type.', f"Write one, such as {name}: str."
                )
            if hints[name] is protocols.ToolTry:
                self._within = name
                continue
            more: JsonObject = {"description": described[name]} if name in described else {}
            if parameter.default is not parameter.empty:
                more["json_schema_extra"] = {
                    "default": to_jsonable_python(parameter.default, fallback=str)
                }
            kind: Any = Annotated[hints[name], Field(**more)]
            fields[name] = NotRequired[kind] if "json_schema_extra" in more else kind
        build: Any = TypedDict  # of fields that are known only here
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        shape = with_config(config)(build("Arguments", fields))
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(shape)
            adapter.json_schema()
        except Exception as error:
            raise self._refusal(
                f"its parameters have no JSON schema ({str(error).splitlines()[0]}).",
                "Use texts, numbers, lists and such as types.",
            ) from error
        return adapter

    def _refusal(self, cause: str, move: str) -> errors.ConfigError:
        return errors.ConfigError(self._place, cause, move)


def _read_args(docstring: str) -> dict[str, str]:
    """What the section `Args:` says of each parameter, in Google's form."""
    section = _ARGS.search(docstring)
    found = _ARG.findall(inspect.cleandoc(f"\n{section[1]}")) if section else []
    return {name: " ".join(said.split()) for name, said in found}


def _objection_text(error: Any, spec: ToolSpec) -> str:
    first = error.errors(include_url=False)[0]
    at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    said = f"{first['msg'].replace('Input should', 'should')}, is {shown_value(first['input'])}"
    return f"arguments{at}: {said}. {usage_text(spec.parameters)}"


async def _run_in_thread(work: Callable[[], Any]) -> Any:
    """In a thread of its own that nobody waits for: one that hangs ends with the process."""
    outcome: concurrent.futures.Future[tuple[Any, BaseException | None]]
    outcome = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result((work(), None))
        except BaseException as error:  # sys.exit, too
            outcome.set_result((None, error))

    threading.Thread(target=run, name="tool", daemon=True).start()
    value, error = await asyncio.shield(asyncio.wrap_future(outcome))
    if error is not None:
        raise error
    return value


MAX_CHARS = 200_000
_FENCED = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)
# A text is one token even where it is not closed, so that no text is searched twice.
_TEXT_OR_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+"?)|,(?=\s*[}\]])', re.DOTALL)


class ArgumentsRefused(ValueError):
    """Arguments that have no reading, or not the names of the schema; says so to the model."""


def read_arguments(text: str, schema: JsonMapping) -> JsonObject:
    """The arguments in `text`, of which none is missing or unknown; ArgumentsRefused else.

    Whether a value fits its type is for the tool to say.
    """
    try:
        value = _read_object(text)
    except RecursionError:
        raise ArgumentsRefused(f"arguments: nested too deeply. {usage_text(schema)}") from None
    except ValueError as error:
        raise ArgumentsRefused(f"arguments: {error}. {usage_text(schema)}") from error
    known = schema["properties"]
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        raise ArgumentsRefused(f"arguments.{missing[0]}: is missing. {usage_text(schema)}")
    unknown = [name for name in value if name not in known]
    if unknown and schema.get("additionalProperties") is False:
        near = errors.did_you_mean(unknown[0][:80], known)
        raise ArgumentsRefused(
            f"arguments: there is no {shown_value(unknown[0])}. {near}{usage_text(schema)}"
        )
    return value


def usage_text(schema: JsonMapping) -> str:
    """The names of what a tool takes."""
    required = schema.get("required", ())
    names = [name if name in required else f"{name} (optional)" for name in schema["properties"]]
    return f"It takes: {', '.join(names[:20])}." if names else "It takes no arguments: {}"


def shown_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _read_object(text: str) -> JsonObject:
    if len(text) > MAX_CHARS:
        raise ValueError(f"they have {len(text):,} characters, at most {MAX_CHARS:,} are read")
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    value = _read_json(text) if text.strip() else None
    if isinstance(value, str):
        value = _read_json(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"should be a JSON object, is {shown_value(value)}")
    fixed: JsonObject = json.loads(fix_surrogates(json.dumps(value, ensure_ascii=False)))
    return fixed


def _read_json(text: str) -> Any:
    try:
        return _load(text)
    except json.JSONDecodeError as error:
        try:
            return _load(_TEXT_OR_COMMA.sub(lambda found: found[1] or "", text))
        except json.JSONDecodeError:
            raise ValueError(
                f"not JSON ({error.msg} at character {error.pos + 1:,} of {len(text):,})"
            ) from error


def _load(text: str) -> Any:
    return json.loads(
        text,
        strict=False,  # a line break may stand within a text
        object_pairs_hook=_read_pairs,
        parse_int=lambda written: int(_read_number(written)),
        parse_float=lambda written: float(_read_number(written)),
        parse_constant=_read_number,
    )


def _read_pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    read: JsonObject = {}
    for name, value in pairs:
        if name in read:
            raise ValueError(f"{shown_value(name)} stands twice in one object")
        read[name] = value
    return read


def _read_number(written: str) -> str:
    if not math.isfinite(float(written)):
        raise ValueError(f"{written[:20]} is no number that is read here")
    return written
