"""Policies whose weights are on this machine: from a run file's settings to a loaded model.

Owns how `hf:tiny` is found and which role gets an adapter. Imports nothing of torch until a
model is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from engines.policies.hf_local.settings import LocalSettings
from studio.config.settings.policy import PolicyConfig
from studio.config.settings.run import RunConfig

if TYPE_CHECKING:
    from engines.policies.hf_local.policy import HFLocal
    from engines.policies.vllm.policy import VLLMRollouts

BUNDLED = "tiny"
"""The model that ships with the studio."""
_READ = 4_000_000


@dataclass(frozen=True, slots=True)
class LocalModels:
    """How `hf:` models of a run are opened.

    `training`: the policy gets an adapter that can be trained. `threads` are those an earlier
    process of the run used; None: as the run file says.
    """

    config: RunConfig
    tell: Callable[[str], None] = lambda _: None
    training: bool = False
    threads: int | None = None

    def open(self, settings: PolicyConfig) -> HFLocal:
        """Load a model, which takes seconds.

        Raises:
            PolicyError: it cannot be loaded, or what loads it is not installed.
        """
        from engines.policies.hf_local.loading import load_local

        local = load_local(self.settings(settings), self.tell)  # tells what is not installed
        from engines.policies.hf_local.policy import HFLocal

        return HFLocal(local, name=settings.model, tell=self.tell)

    def settings(self, settings: PolicyConfig) -> LocalSettings:
        local = settings.local
        trained = self.training and settings.model == self.config.policy.model
        return replace(
            local,
            path=model_path(settings.model),
            adapter=None if settings.adapter is None else Path(settings.adapter),
            lora=self.config.grpo.lora if trained else None,
            threads=self.threads or local.threads,
            rollouts_url=None,  # two roles may share one model, whoever samples
            seed=self.config.seed,
        )


def open_vllm_rollouts(
    config: RunConfig, local: HFLocal, tell: Callable[[str], None]
) -> VLLMRollouts:
    """The vLLM server of `policy.local.rollouts_url`, asked with the ids of a local model."""
    from engines.policies.chat.endpoint import EndpointSettings
    from engines.policies.hf_local.chat_template import encode_prompt
    from engines.policies.vllm.policy import RolloutServer, VLLMRollouts

    policy, key = config.policy, config.policy.api_key
    endpoint = EndpointSettings(
        model="",
        base_url=policy.local.rollouts_url,
        api_key=key.get_secret_value() if key else None,
        timeout_s=policy.timeout_s,
        max_retries=policy.max_retries,
        headers={name: value.get_secret_value() for name, value in policy.headers.items()},
        price_in_usd_per_mtok=policy.price_in_usd_per_mtok,
        price_out_usd_per_mtok=policy.price_out_usd_per_mtok,
    )
    server = RolloutServer(
        endpoint,
        lambda messages, tools: encode_prompt(local.local, messages, tools),
        local.local.window,
        config.practice.temperature,
    )
    return VLLMRollouts(server, name=policy.model, tell=tell)


def weights_digest(settings: PolicyConfig) -> str:
    """Identifies a model's weights by its files, without loading it; "" where they are not here.

    Of large files only size, beginning and end are read. A name on the hub stands for itself.
    """
    if not is_local(settings.model):
        return ""
    folders = [Path(model_path(settings.model))]
    if settings.adapter is not None:
        folders.append(Path(settings.adapter))
    seen = hashlib.sha256(settings.model.encode() if not folders[0].is_dir() else b"")
    for path in (file for folder in folders for file in sorted(folder.glob("*.safetensors"))):
        size = path.stat().st_size
        seen.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            seen.update(file.read(_READ))
            file.seek(max(0, size - _READ))
            seen.update(file.read(_READ))
    return f"files-{seen.hexdigest()[:32]}"


def is_local(model: str) -> bool:
    """Whether a model's weights are on this machine."""
    return model.startswith("hf:")


def model_path(model: str) -> str:
    """The folder or hub name behind `hf:…`."""
    path = model.removeprefix("hf:")
    return str(files("sample_data") / BUNDLED) if path == BUNDLED else path
