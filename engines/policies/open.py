"""Opens a policy by the name it has in a run file.

Owns the prefixes. Reads no environment and makes no connection; `ping` does that. Imports no torch
itself, so that a missing extra is a sentence and no traceback.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.errors import PolicyError, install_command
from engines.core.protocols import Policy
from engines.core.types import Completion, Tell
from engines.policies import handoff, replay
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.hf_local.settings import LocalSettings

if TYPE_CHECKING:
    import httpx2

    from engines.policies.hf_local.model import LocalModel

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
            return replay.ReplayPolicy(path, read_log(path))
        case "handoff", where if where:
            return handoff.HandoffPolicy(Path(where).expanduser(), endpoint.max_tokens)
    raise _form_error(spec, prefix)


def is_scripted(spec: str) -> bool:
    """Whether replies of the policy are made or read here, without asking a model."""
    return spec.partition(":")[0] in SCRIPTED


def _open_local(spec: str, path: str) -> Policy:
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
        return PolicyError(
            place, f"nothing stands after {prefix!r}: it wants {form}.", f"Write {form}."
        )
    move = (
        f"Write openai:{spec} for a model behind an endpoint, hf:{spec} for one in this process, "
        "rehearsal, replay:FILE, or handoff:DIR to answer by files."
    )
    if near := get_close_matches(prefix, PREFIXES, n=1):
        move = f"Did you mean {near[0]}{spec[len(prefix) :]}?"
    return PolicyError(place, f"{prefix!r} is no kind of policy.", move)


EXTRA = f"Install the extra: {install_command('grpo')}"
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")


def load_local(
    settings: LocalSettings, tell: Tell = lambda line: print(line, file=sys.stderr)
) -> "LocalModel":
    """Load model and tokenizer, and put an adapter on it where one is wanted.

    `tell` receives one line for each thing that a person should know of.

    Raises PolicyError: a package is missing, or the folder cannot be used.
    """
    place = f"policy 'hf:{settings.path}'"
    _check_packages(settings, place)
    folder = _find_folder(settings.path, place)
    adapter = settings.adapter
    if adapter is not None and not (adapter / "adapter_config.json").is_file():
        raise PolicyError(
            f"adapter {adapter}",
            "there is no adapter_config.json." if adapter.is_dir() else "it is no folder.",
            "Write a folder that PEFT wrote, such as one of a checkpoint.",
        )
    from engines.policies.hf_local.building import build_model

    return build_model(settings, folder, place, tell)


def _check_packages(settings: LocalSettings, place: str) -> None:
    needed = ["torch", "transformers"]
    if settings.lora is not None or settings.adapter is not None:
        needed.append("peft")
    if settings.quantise == "nf4":
        needed.append("accelerate")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise PolicyError(place, f"{' and '.join(missing)} cannot be imported.", EXTRA)
    if settings.quantise == "nf4" and find_spec("bitsandbytes") is None:
        raise PolicyError(
            place,
            "4-bit weights (quantise: nf4) need bitsandbytes, which cannot be imported.",
            f"Install the extra: {install_command('qlora')}. Or write quantise: none.",
        )


def _find_folder(path: str, place: str) -> Path | None:
    """The folder, or None where `path` can only be a name on the hub."""
    folder = Path(path).expanduser()
    if _HUB_NAME.match(path) and not folder.exists():
        return None
    if not folder.is_dir():
        raise PolicyError(
            place,
            f"{folder} is {'a file' if folder.exists() else 'no folder'}.",
            "Write the folder of a transformers model, or its name on the hub.",
        )
    if not (folder / "config.json").is_file():
        raise PolicyError(
            place,
            "the folder has no config.json.",
            "Write the folder of a transformers model; an adapter is named as policy.adapter.",
        )
    return folder
