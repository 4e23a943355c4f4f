"""What accelerate says of the processes that it started, and whether the machine matches it.

Owns the names of its environment variables. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from engines.core.errors import ConfigError
from engines.core.extras import install_command
from studio.presets import presets_folder

PLACE = "studio.launch"
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


def config_path(name: str) -> Path:
    """The config named cpu, ddp, fsdp or zero2 that ships for `accelerate launch`."""
    return presets_folder() / "accelerate" / f"{name}.yaml"


def launch_command(name: str) -> str:
    return f"python -m studio.launch --config_file {config_path(name)} RUNFILE"


def _refusal(cause: str, move: str) -> ConfigError:
    return ConfigError(PLACE, cause, move)


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """This process among those of its run; `local_` counts on its own machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    precision: str = "no"
    deepspeed: bool = False
    accumulation: int | None = None  # of a DeepSpeed config
    clipping: float | None = None  # of a DeepSpeed config
    on_cpu: bool = False  # asked for, even if the machine has GPUs


def read_launch(environment: Mapping[str, str]) -> LaunchedProcess:
    """Read what accelerate or torchrun set.

    Raises:
        ConfigError: nobody started several processes, or a config asks for what is not done here.
    """
    _check_kind(environment)
    started = LaunchedProcess(
        precision=environment.get("ACCELERATE_MIXED_PRECISION", "no"),
        on_cpu=_is_set(environment, "ACCELERATE_USE_CPU"),
    )
    if _is_set(environment, "ACCELERATE_USE_DEEPSPEED"):
        started = replace(
            started,
            deepspeed=True,
            accumulation=_number(environment, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1),
            clipping=_parse_float(environment.get("ACCELERATE_GRADIENT_CLIPPING", "")),
        )
    if "WORLD_SIZE" not in environment:
        _check_single(environment)
        return started
    for part in ("ADDR", "PORT"):
        _required(environment, f"MASTER_{part}")
    size = _number(environment, "WORLD_SIZE")
    return replace(
        started,
        rank=_number(environment, "RANK"),
        size=size,
        local_rank=_number(environment, "LOCAL_RANK"),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", size),
    )


def is_started(environment: Mapping[str, str]) -> bool:
    """Whether accelerate or torchrun started this process."""
    return "WORLD_SIZE" in environment or "ACCELERATE_MIXED_PRECISION" in environment


def check_devices(process: LaunchedProcess, *, gpus: int, cores: int) -> None:
    """Refuse a config that names more devices than there are, or a package that is not."""
    if process.deepspeed and find_spec("deepspeed") is None:
        raise _refusal(
            "deepspeed is not installed, and the config asks for it.",
            f"Install it: {install_command('deepspeed')}",
        )
    if process.precision not in ("no", *DTYPES):
        raise _refusal(
            f"mixed_precision {process.precision} is not done here.", "Set it to bf16, fp16 or no."
        )
    if process.on_cpu and process.precision != "no":
        raise _refusal(
            f"mixed_precision {process.precision} is for GPUs, and none is used here.",
            f"Set it to no, or train on the CPU: {launch_command('cpu')}.",
        )
    have, what = (cores, "core") if process.on_cpu else (gpus, "GPU")
    if process.local_size > have:
        fewer = f"Start {have} with --num_processes {have}, or t" if have > 1 else "T"
        raise _refusal(
            f"{process.local_size} processes with a {what} each are asked for, and this machine "
            f"has {have or 'no'} {what}{'' if have == 1 else 's'}.",
            f"{fewer}rain with one process: studio train RUNFILE.",
        )


def _check_kind(environment: Mapping[str, str]) -> None:
    """Refuse what the forwards or the rollouts here cannot go with."""
    for variable, what in (
        ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "a parallelism config"),
    ):
        if _is_set(environment, variable):
            raise _refusal(f"{what} is not done here.", f"Use {launch_command('fsdp')}.")
    if _is_set(environment, "ACCELERATE_USE_FSDP") and environment.get("FSDP_VERSION") != "2":
        raise _refusal("version 1 of FSDP is not done here.", "Write fsdp_version: 2.")
    if not _is_set(environment, "ACCELERATE_USE_DEEPSPEED"):
        return
    if environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"):
        move = f"Write its fields into deepspeed_config, as {config_path('zero2')} does."
        raise _refusal("a DeepSpeed config file of its own is not read here.", move)
    if _number(environment, "ACCELERATE_DEEPSPEED_ZERO_STAGE", 2) > 2:
        move = f"Use zero_stage 2, or {launch_command('fsdp')}, which divides the weights, too."
        raise _refusal("ZeRO stage 3 is not done here.", move)
    for which in ("OPTIMIZER", "PARAM"):
        where = environment.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{which}_DEVICE", "none")
        if where != "none":
            cause = f"offload_{which.lower()}_device {where} is not done here."
            raise _refusal(cause, "Set it to none: an adapter's state is small.")


def _check_single(environment: Mapping[str, str]) -> None:
    """Refuse a single process where accelerate was asked for several."""
    if "ACCELERATE_MIXED_PRECISION" not in environment:
        raise _refusal(
            "accelerate did not start it.",
            f"Start it so: {launch_command('ddp')}; or train with one process: studio train "
            "RUNFILE.",
        )
    if "MASTER_PORT" in environment:
        raise _refusal(
            "several processes were asked for and one was started: with --cpu or MULTI_CPU "
            "accelerate leaves the others to mpirun.",
            f"Start them so: {launch_command('cpu')}.",
        )


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "true", "yes")


def _required(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise _refusal(
            f"WORLD_SIZE is set and {name} is not.", f"Start it so: {launch_command('ddp')}."
        )
    return environment[name]


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "none")
    if text in ("none", "None", "auto") and default is not None:
        return default
    text = _required(environment, name)
    if not text.isdecimal():
        raise _refusal(f"{name} is {text!r}, which is no number.", "Correct the config.")
    return int(text)


def _parse_float(text: str) -> float | None:
    """A number, or None for `none` and `auto`."""
    try:
        return float(text)
    except ValueError:
        return None
