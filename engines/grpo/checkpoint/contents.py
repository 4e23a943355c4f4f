"""What a checkpoint holds: the adapter as PEFT saves it, tokenizer, optimiser and plain state.

That a folder is whole or absent, and its files as they were written, is `folders`'.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from engines.core.codec import JsonObject
from engines.core.errors import ConfigError, ConflictError
from engines.grpo.checkpoint import folders as files

if TYPE_CHECKING:
    from peft import PeftModel

    from engines.policies.hf_local.model import LocalModel

OPTIMISER = "optimiser.safetensors"
GUARD = "guard.safetensors"
_DECIDES = ("r", "lora_alpha", "target_modules", "use_rslora", "use_dora")
"""Settings of an adapter that change what the same tensors compute."""


@dataclass(slots=True)
class EngineState:
    """Everything from which an engine goes on to the same numbers.

    `adapter` has the names of `LocalModel.adapter_state`; `guard` the adapters that the
    collapse guard may go back to, by the same names with `STEP/` before them; `plain` is
    JSON: step counts, policy version, seeds and the guard's figures.
    """

    adapter: dict[str, Tensor]
    optimiser: dict[str, Tensor] = field(default_factory=dict)
    plain: JsonObject = field(default_factory=dict)
    guard: dict[str, Tensor] = field(default_factory=dict)


def write_checkpoint(folder: Path, local: "LocalModel", state: EngineState) -> str:
    """Save `state` as `folder`, which PEFT and vLLM load as an adapter too.

    Returns the digest over all files: that of the same state is always the same.

    Raises:
        ConfigError: the model has no adapter.
        RecordError: it cannot be written; what stood there before still does.
    """
    from peft import get_peft_model_state_dict  # takes three seconds to load

    model = _require_adapter(local)
    with files.atomic_folder(folder) as partial:
        # The embeddings are frozen. PEFT would ask the model hub whether they had been resized.
        adapter = get_peft_model_state_dict(
            model, state_dict=dict(state.adapter), save_embedding_layers=False
        )
        (partial / files.ADAPTER).write_bytes(_pack_tensors(adapter))
        (partial / files.ADAPTER_CONFIG).write_text(_json_text(adapter_config(model)))
        (partial / OPTIMISER).write_bytes(_pack_tensors(state.optimiser))
        if state.guard:
            (partial / GUARD).write_bytes(_pack_tensors(state.guard))
        local.tokenizer.save_pretrained(partial)
        facts = {
            "base": {
                "name": local.settings.path,
                "digest": local.base_digest,
                "dtype": str(local.dtype).removeprefix("torch."),
                "quantise": local.settings.quantise,
            },
            "versions": {
                name: version(name) for name in ("torch", "transformers", "peft", "safetensors")
            },
            "plain": state.plain,
        }
        (partial / files.STATE).write_text(_json_text(facts))
        return files.seal(partial)


def read_checkpoint(folder: Path, local: "LocalModel") -> EngineState:
    """Load what `write_checkpoint` saved, bit for bit, on the CPU; the model is left as it is.

    Raises:
        RecordError: there is none, or a file is damaged or missing.
        ConflictError: it belongs to another base model or to another shape of adapter.
    """
    model = _require_adapter(local)
    files.restore_replaced(folder)
    files.check_seal(folder)
    facts = files.read_facts(folder)
    base = facts.get("base", {})
    if base.get("digest") != local.base_digest:
        raise ConflictError(
            str(folder),
            f"it was trained on {base.get('name')} in {base.get('dtype')}, and those weights are "
            f"not what is loaded from {local.name}.",
            "Load the base model that it was trained on (policy.model), in the same dtype.",
        )
    _check_same_adapter(folder, model)
    saved = _load_tensors(folder / files.ADAPTER)
    # PEFT leaves the adapter's own name out of what it saves.
    own = f".{model.active_adapter}."
    names = {name.replace(own, "."): name for name in local.adapter_state()}
    if saved.keys() != names.keys():
        raise ConflictError(
            str(folder),
            f"its adapter has {len(saved)} tensors, and the model's {len(names)} are named "
            "otherwise.",
            "Set policy.local.lora as it was in that run.",
        )
    return EngineState(
        adapter={names[key]: tensor for key, tensor in saved.items()},
        optimiser=_load_tensors(folder / OPTIMISER),
        plain=facts.get("plain", {}),
        guard=_load_tensors(folder / GUARD) if (folder / GUARD).exists() else {},
    )


def adapter_config(model: "PeftModel") -> JsonObject:
    """What PEFT writes into adapter_config.json, in an order that is always the same."""
    config = model.peft_config[model.active_adapter]
    plain: JsonObject = config.to_dict()
    plain["inference_mode"] = True
    return {key: sorted(v) if isinstance(v, set) else v for key, v in plain.items()}


def _check_same_adapter(folder: Path, model: "PeftModel") -> None:
    saved = json.loads((folder / files.ADAPTER_CONFIG).read_bytes())
    current = json.loads(_json_text(adapter_config(model)))
    for key in _DECIDES:
        if saved.get(key) != current.get(key):
            raise ConflictError(
                str(folder),
                f"its adapter has {key} {saved.get(key)}, and this run's {current.get(key)}.",
                "Set policy.local.lora as it was in that run.",
            )


def _require_adapter(local: "LocalModel") -> "PeftModel":
    from peft import PeftModel

    if not isinstance(local.model, PeftModel):
        raise ConfigError(
            "policy.local.lora",
            f"{local.name} was loaded without an adapter, so there is nothing to save.",
            "Set policy.local.lora, for example to {rank: 8}.",
        )
    return local.model


def _pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """As safetensors, which refuses views and tensors that share memory."""
    whole = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in sorted(tensors.items())
    }
    return save(whole, metadata={"format": "pt"})


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise files.damaged_error(path, error) from error


def _json_text(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False)
