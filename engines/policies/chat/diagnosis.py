"""What a failed ping means to the person: place, cause and next move."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from engines.core.errors import CallFailed, PolicyError
from engines.policies.chat.endpoint import EndpointSettings

SHOWN = 8
SET_KEY = "Set api_key in the run file, for example to ${oc.env:OPENAI_API_KEY}"


def check_key(name: str, settings: EndpointSettings) -> None:
    """Raises PolicyError: the hosted service is to be asked without a key."""
    if settings.base_url is None and settings.api_key is None:
        cause = "no key is given, and the hosted service wants one."
        move = f"{SET_KEY}, or base_url for an endpoint of your own."
        raise PolicyError(_place_text(name, settings), cause, move)


def policy_error(
    name: str, settings: EndpointSettings, failed: CallFailed, known: Sequence[str]
) -> PolicyError:
    """Put a failed call into the words of a user error; `known` are the models on offer."""
    place = _place_text(name, settings)
    kind, _, text = str(failed).partition(": ")
    status = getattr(failed, "status", None)
    text = text.rstrip(".")
    cause = f"{text}."
    move = "Check that base_url leads to an OpenAI-compatible endpoint; it mostly ends in /v1."
    match kind, status:
        case "status", 401 | 403:
            what = "the key was refused" if settings.api_key else "no key is given"
            cause, move = f"{what} ({text}).", f"{SET_KEY}."
        case "status", 404 if known and settings.model not in known:
            cause = f"the model {settings.model!r} is not there ({text})."
            move = f"Choose one of {_models_text(settings.model, known)}."
        case "status", 404:
            move = "Check the model's name and base_url, which mostly ends in /v1."
        case "status", 400 | 422:
            move = "Change the setting it names."
        case "status", _:
            move = "Try again later, or ask its provider."
        case "refused", _:
            move = "Start the server, or correct base_url."
        case "timeout", _:
            move = "See whether the server is overloaded or still loads the model; try again."
    return PolicyError(place, cause, move)


def _place_text(name: str, settings: EndpointSettings) -> str:
    return f"policy {name} at {settings.url}"


def _models_text(model: str, known: Sequence[str]) -> str:
    near = get_close_matches(model, known, n=SHOWN, cutoff=0.4)
    first = list(dict.fromkeys([*near, *sorted(known)]))
    more = f" and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
    return ", ".join(first[:SHOWN]) + more
