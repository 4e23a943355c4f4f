"""Builds a LocalModel with transformers and peft, and words what they refuse."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engines.core.errors import PolicyError
from engines.core.types import Tell
from engines.policies.hf_local.model import (
    LocalModel,
    adapter_mismatch_text,
    add_lora,
    base_digest,
    load_adapter,
)
from engines.policies.hf_local.policy import template_note
from engines.policies.hf_local.settings import LocalSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_S = 10.0
_LANGUAGE_MODEL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def build_model(settings: LocalSettings, folder: Path | None, place: str, tell: Tell) -> LocalModel:
    """Load from `folder`, or by name from the hub where it is None.

    Raises PolicyError: what is there is no causal language model, or its parts do not fit.
    """
    best = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(best if settings.device == "auto" else settings.device)
    dtype = _choose_dtype(settings.dtype, device)
    source = settings.path if folder is None else str(folder)
    with quiet_transformers(), _explain_load_errors(place, source, folder):
        cached = folder is None and _must_use_cache(source)
        how: dict[str, Any] = {
            "trust_remote_code": False,
            "local_files_only": cached,
        }
        config = transformers.AutoConfig.from_pretrained(source, **how)
        _check_config(config, place)
        threads = choose_threads(settings.threads, device)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, padding_side="left", **how)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            # transformers looks for an adapter by itself, and would try the hub for 23 s.
            adapter_kwargs={"local_files_only": cached},
            output_loading_info=True,
            **how,
            **_quantising_options(settings, device, place),
        )
    _check_weights(info, place)
    if settings.quantise == "nf4":
        import peft

        model = peft.prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=settings.gradient_checkpointing
        )
    else:
        model.to(device)
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    digest = base_digest(model)
    model.requires_grad_(False)
    with quiet_transformers():
        model = _add_adapter(model, settings, place, tell)
    local = LocalModel(
        model, tokenizer, settings, device=device, dtype=dtype, threads=threads, base_digest=digest
    )
    trained = local.trainable_note() if local.trainable_parameters() else ""
    for line in (template_note(tokenizer), local.decoder_note, trained):
        if line:
            tell(line)
    return local


def _add_adapter(model: Any, settings: LocalSettings, place: str, tell: Tell) -> Any:
    wanted = settings.lora
    if settings.adapter is None:
        return model if wanted is None else add_lora(model, wanted, settings.seed, place)
    model = load_adapter(model, settings.adapter, wanted is not None)
    if wanted is not None and (odd := adapter_mismatch_text(settings.adapter, wanted)):
        tell(f"the adapter goes on as it was made: {odd} (grpo.lora)")
    return model


def _must_use_cache(name: str) -> bool:
    """Whether a model of the hub must come from what was downloaded before.

    One request tells: transformers would try each file six times, with rests of 23 s in all.

    Raises OSError: the hub does not give it, and it was never downloaded.
    """
    try:
        huggingface_hub.HfApi().model_info(name, timeout=_HUB_S)
    except Exception as error:  # of its HTTP library too, which changes
        if isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str):
            return True
        raise OSError(_first_line(error)) from None
    return False


def _choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return _DTYPES[name]
    good = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if good else torch.float32


def _quantising_options(
    settings: LocalSettings, device: torch.device, place: str
) -> dict[str, Any]:
    if settings.quantise != "nf4":
        return {}
    if device.type != "cuda":
        raise PolicyError(
            place,
            "4-bit weights (quantise: nf4) need a GPU, and there is none.",
            "Write quantise: none.",
        )
    quantised = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )
    return {"quantization_config": quantised, "device_map": {"": device}}


def choose_threads(wanted: int | None, device: torch.device) -> int:
    """Set and return how many threads torch computes with: as many as wanted, or the best.

    More help on a quiet machine and cost three to four times the time on a loaded one. Those
    wanted do not follow the load: a resumed run computes as it did before.
    """
    count = wanted or 1
    if wanted is None and device.type == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        if cores and os.getloadavg()[0] < cores / 2:
            count = cores
    torch.set_num_threads(count)
    return count


def _check_config(config: Any, place: str) -> None:
    named = tuple(getattr(config, "architectures", None) or ())
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or "AutoModelForCausalLM" in (
        getattr(config, "auto_map", None) or {}
    )
    fits = not named or any(name.endswith(_LANGUAGE_MODEL) for name in named)
    if not known or not fits or getattr(config, "is_encoder_decoder", False):
        what = named[0] if named else config.model_type
        raise PolicyError(
            place,
            f"{what} is no causal language model.",
            "Choose a decoder such as Llama, Qwen, Mistral or Gemma.",
        )


def _check_weights(info: Any, place: str) -> None:
    # transformers fills what is missing with random numbers and goes on.
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PolicyError(
            place,
            f"its files lack the weight {missing[0]}{more}.",
            "Save the model again, or choose another folder.",
        )


@contextlib.contextmanager
def _explain_load_errors(place: str, source: str, folder: Path | None) -> Iterator[None]:
    try:
        yield
    except PolicyError:
        raise
    except Exception as error:  # libraries raise OSError, ValueError, KeyError, safetensors' own
        if "trust_remote_code" in str(error):
            raise PolicyError(
                place,
                "it comes with program code of its own, which is never run.",
                "Choose a model that transformers knows by itself.",
            ) from None
        if folder is None and isinstance(error, OSError):
            raise PolicyError(
                place,
                f"there is no folder {source!r} here, and the hub gave none of that name "
                f"({_first_line(error)}).",
                "Check the name and the connection, or write the folder of a model.",
            ) from None
        raise PolicyError(
            place,
            f"transformers cannot load it ({type(error).__name__}: {_first_line(error)}).",
            "Check that the folder is whole and made for transformers 5.",
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without progress bars and reports on stderr, which would tear a screen."""
    level = transformers.utils.logging.get_verbosity()
    bar = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.utils.logging.set_verbosity(level)
        if bar:
            transformers.utils.logging.enable_progress_bar()
