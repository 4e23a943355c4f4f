"""Opens a policy by the name it has in a run file.

Owns the prefixes. Reads no environment and makes no connection; `ping` does that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.errors import PolicyError
from engines.core.protocols import Policy
from engines.core.types import Completion
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.handoff import HandoffPolicy
from engines.policies.replay import ReplayPolicy

if TYPE_CHECKING:
    import httpx2

PREFIXES = ("openai", "hf", "rehearsal", "replay", "handoff")
SCRIPTED = ("rehearsal", "replay")
"""Their replies are there at once, so that a pace can be given to them."""

ANY_ENDPOINT = EndpointSettings()

ReadLog = Callable[[Path], Mapping[str, Sequence[Completion]]]
"""Reads the log of a replay: question → its replies. It is `engines.data`'s to know how."""


def open_policy(
    spec: str, endpoint: EndpointSettings = ANY_ENDPOINT, *, read_log: ReadLog | None = None
) -> Policy:
    """Open `openai:MODEL`, `hf:MODEL`, `rehearsal[:VARIANT]`, `replay:FILE` or `handoff:DIR`.

    Its model takes the place of the one in `endpoint`. Rehearsal takes deadline, limits and
    prices from `endpoint`, but no address or key: with prices written down money can be
    rehearsed, without them the cost is unknown. `read_log` reads FILE.

    Raises:
        PolicyError: the name has no known form, or a model of this process cannot be loaded.
        DataError: the log of a replay cannot be read.
    """
    prefix, _, rest = spec.partition(":")
    match prefix, rest:
        case "openai", model if model:
            return OpenAICompat(replace(endpoint, model=model))
        case "hf", model if model:
            return _open_local(spec, model)
        case "rehearsal", _:
            return _open_rehearsal(spec.removesuffix(":"), endpoint)
        case "replay", file if file:
            if read_log is None:
                raise ValueError("a replay is opened with read_log")
            path = Path(file).expanduser()
            return ReplayPolicy(path, read_log(path))
        case "handoff", where if where:
            return HandoffPolicy(Path(where).expanduser(), endpoint.max_tokens)
    raise _form_error(spec, prefix)


def is_scripted(spec: str) -> bool:
    """Whether replies of the policy are made or read here, without asking a model."""
    return spec.partition(":")[0] in SCRIPTED


def _open_local(spec: str, path: str) -> Policy:
    from engines.policies.hf_local.settings import LocalSettings, load_local

    folder = Path(path).expanduser()
    model = load_local(LocalSettings(str(folder) if folder.is_dir() else path))
    from engines.policies.hf_local.policy import HFLocal  # imports torch, which is there now

    return HFLocal(model, name=spec)


def _open_rehearsal(spec: str, endpoint: EndpointSettings) -> Policy:
    # The model's name is the whole spec, so that a request has the same body as one
    # of `openai:rehearsal` to the real server.
    url = "http://rehearsal.invalid/v1"
    own = replace(endpoint, model=spec, base_url=url, api_key=None, headers={})
    return OpenAICompat(own, name=spec, transport=_rehearsal_transport)


def _rehearsal_transport() -> "httpx2.AsyncBaseTransport":
    from engines.policies.rehearsal.server import RehearsalTransport

    return RehearsalTransport()


def _form_error(spec: str, prefix: str) -> PolicyError:
    place = f"policy {spec!r}"
    if prefix in PREFIXES:
        form = f"{prefix}:{ {'replay': 'FILE', 'handoff': 'DIR'}.get(prefix, 'MODEL') }"
        cause = f"nothing stands after {prefix!r}: it wants {form}."
        return PolicyError(place, cause, f"Write {form}.")
    move = (
        f"Write openai:{spec} for a model behind an endpoint, hf:{spec} for one in this process, "
        "rehearsal, replay:FILE, or handoff:DIR to answer by files."
    )
    if near := get_close_matches(prefix, PREFIXES, n=1):
        move = f"Did you mean {near[0]}{spec[len(prefix) :]}?"
    return PolicyError(place, f"{prefix!r} is no kind of policy.", move)
