"""Every value goes into JSON and comes back equal."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core import events as ev
from engines.core.codec import dumps, fix_surrogates, from_dict, to_dict
from engines.core.types import CallKey, Completion, Message, Problem, Usage, Verdict

_json = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4)
_EVENTS = (*ev.DurableEvent.__args__, *ev.TransientEvent.__args__)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that fit an annotation, for the annotations that events use."""
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        fields = [f.name for f in dataclasses.fields(hint) if f.init]
        return st.builds(hint, **{name: values_of(hints[name]) for name in fields})
    if origin is tuple and args[1:] == (Ellipsis,):
        return st.lists(values_of(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, args))
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if a is type(None) else values_of(a) for a in args))
    if origin is Literal:
        return st.sampled_from(args)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=2)
    plain = {
        str: st.text(max_size=6),
        int: st.integers(-(2**31), 2**31),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
    }
    return plain.get(hint, _json)


@pytest.mark.parametrize("cls", _EVENTS, ids=lambda cls: cls.__name__)
def test_every_event_comes_back_from_its_line_equal(cls: type[Any]) -> None:
    @settings(derandomize=True, max_examples=15, deadline=None)
    @given(values_of(cls))
    def round_trip(event: Any) -> None:
        line = orjson.loads(dumps(ev.event_to_dict(event)))
        assert line["kind"] == cls.__name__
        back = ev.event_from_dict(line)
        assert type(back) is cls
        assert back == event

    round_trip()


def test_an_unknown_kind_of_event_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown event 'RunVanished'"):
        ev.event_from_dict({"kind": "RunVanished"})
    with pytest.raises(ValueError, match="unknown event None"):
        ev.event_from_dict({})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"epoch": 1, "step": 2, "extra": 3}, "has no field extra"),
        ({"epoch": 1}, "step"),
        ({"epoch": 1, "step": "2"}, "is not int"),
    ],
)
def test_what_does_not_fit_is_a_value_error_that_says_what(data: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=f"not a StepFinished: .*{what}"):
        from_dict(ev.StepFinished, data)


def test_a_word_outside_a_literal_is_refused() -> None:
    with pytest.raises(ValueError, match="is not one of"):
        from_dict(Message, {"role": "robot", "content": ""})


def test_fields_that_a_newer_release_added_take_their_default() -> None:
    assert from_dict(Usage, {"prompt_tokens": 2}) == Usage(2)


@dataclasses.dataclass(frozen=True)
class Numbered:
    texts: Mapping[int, str]


def test_whole_numbers_as_keys_and_floats_written_as_integers_come_back() -> None:
    data = orjson.loads(dumps(Numbered({0: "a", 2: "b"})))
    assert from_dict(Numbered, data).texts == {0: "a", 2: "b"}
    verdict = from_dict(Verdict, {"reward": 1, "metrics": {"length": 3}})
    assert (verdict.reward, verdict.metrics["length"]) == (1.0, 3.0)
    assert isinstance(verdict.reward, float)


def test_not_a_number_survives_in_metrics_and_is_no_reward() -> None:
    """One NaN of a foreign verifier must not make the whole journal unreadable."""
    back = from_dict(Verdict, to_dict(Verdict(math.nan, metrics={"loss": math.nan})))
    assert back.reward is None
    assert math.isnan(back.metrics["loss"])


def test_lone_surrogates_become_replacement_characters_at_any_depth() -> None:
    problem = Problem("p", "half \ud83d", None, meta={"k\udc00": ["\ud83d\ude00", 1]})
    assert to_dict(problem)["question"] == "half �"
    assert to_dict(problem)["meta"] == {"k�": ["😀", 1]}


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(st.characters(), max_size=8))
def test_sound_text_always_fits_utf8_and_sound_text_stays_as_it_is(text: str) -> None:
    made = fix_surrogates(text)
    made.encode()
    assert fix_surrogates(made) == made
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert made == text


def test_aligned_token_ids_and_keys_of_calls_come_back_as_tuples() -> None:
    reply = Completion("x", token_ids=(1, 2), logprobs=(-0.5, 0.0))
    assert from_dict(Completion, to_dict(reply)) == reply
    key = CallKey(purpose="judge", epoch=1, step=2, position=3, index=4, turn=5)
    assert from_dict(CallKey, to_dict(key)) == key
