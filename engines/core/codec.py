"""JSON of the values: one encoder, and decoders built once from the type hints; hashes and seeds.

Decoding is for what we wrote ourselves (journal, records, socket); what people and models write
goes through pydantic or `engines.core.text.reply`.
"""

import dataclasses
import functools
import hashlib
import math
import types
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from engines.core.types import CallKey

T = TypeVar("T")
Decoder = Callable[[Any], Any]
JsonObject = dict[str, Any]
"""The fields of an object of JSON, or of a row, by name."""
JsonMapping = Mapping[str, Any]
"""The same where it is only read."""


def dumps(value: object) -> bytes:
    """Encode as one line of JSON. Lone surrogates become U+FFFD: UTF-8 has no place for them."""
    try:
        return orjson.dumps(value, _list_set, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return orjson.dumps(_fix_all_surrogates(value), _list_set, option=orjson.OPT_NON_STR_KEYS)


def _list_set(value: object) -> list[Any]:
    if isinstance(value, set):
        return sorted(value)
    raise TypeError


def fix_surrogates(text: str) -> str:
    """Text that UTF-8 can hold: surrogate pairs are joined, lone ones become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def to_dict(value: object) -> dict[str, Any]:
    data = orjson.loads(dumps(value))
    assert isinstance(data, dict)
    return data


def fields_of(value: object, *names: str) -> dict[str, Any]:
    """Some fields of a value, by their names."""
    return {name: getattr(value, name) for name in names}


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """Build a dataclass from the dict that `dumps` made of one.

    Raises ValueError: a field is missing, unknown or of another type.
    """
    value = read_json(cls, data)
    assert isinstance(value, cls)
    return value


def read_json(hint: Any, data: Any) -> Any:
    """Build a value of any type that the decoders know from its JSON; raises ValueError."""
    try:
        return _decoder(hint)(data)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a {getattr(hint, '__name__', hint)}: {error}") from error


@functools.cache
def _decoder(hint: Any) -> Decoder:
    if hint is Any:
        return lambda data: data
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass_decoder(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        item = _decoder(args[0])
        return lambda data: tuple(item(entry) for entry in data)
    if origin is tuple:
        items = [_decoder(arg) for arg in args]
        return lambda data: tuple(decode(entry) for decode, entry in zip(items, data, strict=True))
    if origin in (list, set):
        item, make = _decoder(args[0]), origin
        return lambda data: make(map(item, data))
    if origin in (Union, types.UnionType):
        inner = _decoder(next(arg for arg in args if arg is not type(None)))
        return lambda data: None if data is None else inner(data)
    if origin is Literal:
        allowed = frozenset(args)
        return lambda data: data if data in allowed else _refuse(data, f"one of {sorted(allowed)}")
    if origin is not None and issubclass(origin, Mapping):
        key, value = _key_decoder(args[0]), _decoder(int if origin is Counter else args[1])
        make = Counter if origin is Counter else dict
        return lambda data: make({key(k): value(entry) for k, entry in data.items()})
    if hint is float:
        return _decode_number
    if isinstance(hint, type):
        return lambda data: data if isinstance(data, hint) else _refuse(data, hint.__name__)
    return lambda data: data


def _key_decoder(hint: Any) -> Decoder:
    """JSON's keys are texts: "3" is a number, "3 1" a pair of them."""
    if hint is int:
        return int
    if get_origin(hint) is tuple:
        return lambda key: tuple(map(int, key.split()))
    return _decoder(hint)


def _dataclass_decoder(cls: type[Any]) -> Decoder:
    hints = get_type_hints(cls)

    @functools.cache  # at the first value, because a dataclass may refer to itself
    def decoders() -> dict[str, Decoder]:
        return {f.name: _decoder(hints[f.name]) for f in dataclasses.fields(cls) if f.init}

    def decode(data: Mapping[str, Any]) -> Any:
        fields = decoders()
        if not data.keys() <= fields.keys():
            unknown = sorted(data.keys() - fields.keys())
            raise TypeError(f"{cls.__name__} has no field {', '.join(unknown)}")
        return cls(**{name: read(data[name]) for name, read in fields.items() if name in data})

    return decode


def _decode_number(data: object) -> float:
    # JSON has no NaN and no infinities: `dumps` writes null for them.
    if data is None:
        return math.nan
    return float(data) if isinstance(data, int | float) else float(_refuse(data, "float"))


def _refuse(data: object, wanted: str) -> Any:
    raise TypeError(f"{data!r:.60} is not {wanted}")


def _fix_all_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return fix_surrogates(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        fix = _fix_all_surrogates
        return {fix(key): fix(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_fix_all_surrogates(entry) for entry in value]
    return value


def digest(value: object, size: int = 16) -> str:
    """Hex blake2b of a value's canonical JSON (sorted keys); `size` is in bytes."""
    return digest_bytes(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), size)


def digest_bytes(data: bytes, size: int = 16) -> str:
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def question_of(problem: str) -> str:
    """The question that a problem's id stands for: one that is repeated has `x`, `x#2`, `x#3`."""
    return problem.partition("#")[0]


def seed_for(run_seed: int, *parts: str | int) -> int:
    """A 31-bit seed (what every endpoint accepts) that follows from the parts alone."""
    text = "\x1f".join([str(run_seed), *(str(p) for p in parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


def call_seed(run_seed: int, key: CallKey) -> int:
    if key.problem:
        # Evaluations before and after a step draw the same seeds, and problems that are added to
        # a set leave the others' results as they are.
        return seed_for(run_seed, key.purpose, key.problem, key.index, key.turn)
    return seed_for(run_seed, key.purpose, key.epoch, key.step, key.position, key.index, key.turn)
