"""What a vLLM server answers to a completion request, as ids and log-probabilities.

Pure. Tolerant of where ids stand, since versions differ; never of their absence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.errors import CallFailed
from engines.core.finish import meaning_of
from engines.policies.chat.endpoint import EndpointFailed

_ID = "token_id:"
"""How a token is written where `return_tokens_as_token_ids` was asked for."""


@dataclass(frozen=True, slots=True)
class ScoredReply:
    """`logprobs` are aligned with `token_ids`, the end-of-turn token among them."""

    text: str
    finish: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    model: str = ""


def parse_reply(body: Mapping[str, Any], prompt_ids: Sequence[int]) -> ScoredReply:
    """Read the one choice of a reply.

    Raises CallFailed: something is missing or does not fit; the kind is "shape".
    """
    choice = _parse_choice(body)
    ids = _parse_ids(choice)
    scores = _as_mapping(choice.get("logprobs")).get("token_logprobs")
    if ids is None:
        raise _shape_failure("no token ids came back", "return_token_ids is not honoured")
    if not isinstance(scores, Sequence) or not all(_is_finite(score) for score in scores):
        raise _shape_failure("no log-probabilities came back", "the field logprobs is not honoured")
    if len(ids) != len(scores):
        raise _shape_failure(
            f"{len(ids)} token ids came back", f"with {len(scores)} log-probabilities"
        )
    shown = choice.get("prompt_token_ids", body.get("prompt_token_ids"))
    if shown is not None and list(shown) != list(prompt_ids):
        raise _shape_failure("the model was shown other ids than it was sent", "tokenizers differ")
    text, finish = choice.get("text"), choice.get("finish_reason")
    if not isinstance(text, str):
        raise _shape_failure("no text came back", "this is no completion")
    if not ids:
        raise CallFailed("shape", "the reply is empty")
    if meaning_of(str(finish or "")) == "broken":
        raise EndpointFailed("cut", f"the server ended the reply with {finish!r}", transient=True)
    return ScoredReply(
        text=text.encode("utf-8", "replace").decode(),
        finish=str(finish or "stop"),
        token_ids=ids,
        logprobs=tuple(float(score) for score in scores),
        model=str(body.get("model") or ""),
    )


def parse_top_logprob(body: Mapping[str, Any]) -> float:
    """The log-probability of the likeliest first token. Raises CallFailed: it is not there."""
    tops = _as_mapping(_parse_choice(body).get("logprobs")).get("top_logprobs")
    first = _as_mapping(tops[0]) if isinstance(tops, Sequence) and tops else {}
    known = [value for value in first.values() if _is_finite(value)]
    if not known:
        raise _shape_failure("no log-probabilities came back", "the field logprobs is not honoured")
    return float(max(known))


def _parse_choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, Sequence) or len(choices) != 1:
        raise _shape_failure("no choice came back", "this is no completion")
    return _as_mapping(choices[0])


def _parse_ids(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    plain = choice.get("token_ids")
    if isinstance(plain, Sequence) and all(type(one) is int for one in plain):
        return tuple(plain)
    named = _as_mapping(choice.get("logprobs")).get("tokens")
    if not isinstance(named, Sequence):
        return None
    cut = [str(one).removeprefix(_ID) for one in named if str(one).startswith(_ID)]
    return tuple(map(int, cut)) if len(cut) == len(named) and all(map(str.isdigit, cut)) else None


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _shape_failure(what: str, why: str) -> EndpointFailed:
    """Not worth another try: the server would answer so again."""
    return EndpointFailed("shape", f"{what} ({why})", transient=False)
