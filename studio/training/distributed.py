"""What accelerate says of the processes that it started, and whether the machine matches it.

Owns the names of its environment variables. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from engines.core.errors import ConfigError
from studio.presets import presets_folder

PLACE = "studio.launch"
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
Precision = Literal["no", "fp16", "bf16"]


def config_path(name: str) -> Path:
    """The config named cpu, ddp or zero2 that ships for `accelerate launch`."""
    return presets_folder() / "accelerate" / f"{name}.yaml"


def launch_command(name: str) -> str:
    return f"accelerate launch --config_file {config_path(name)} -m studio.launch RUNFILE"


def _refusal(cause: str, move: str) -> ConfigError:
    return ConfigError(PLACE, cause, move)


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """This process among those of its run; `local_` counts on its own machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = ""  # where they meet; "" for a single process
    precision: Precision = "no"
    sharded: bool = False  # the optimiser's state is divided over the processes
    accumulation: int | None = None  # of a DeepSpeed config
    clipping: float | None = None  # of a DeepSpeed config
    on_cpu: bool = False  # asked for, even if the machine has GPUs


def read_launch(environment: Mapping[str, str]) -> LaunchedProcess:
    """Read what accelerate or torchrun set.

    Raises:
        ConfigError: nobody started several processes, or a config asks for what is not done here.
    """
    _check_kind(environment)
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", *DTYPES):
        raise _refusal(
            f"mixed_precision {precision} is not done here.", "Set it to bf16, fp16 or no."
        )
    started = LaunchedProcess(
        precision=precision,  # type: ignore[arg-type]  # checked above
        on_cpu=_is_set(environment, "ACCELERATE_USE_CPU"),
    )
    if _is_set(environment, "ACCELERATE_USE_DEEPSPEED"):
        started = replace(
            started,
            sharded=_number(environment, "ACCELERATE_DEEPSPEED_ZERO_STAGE", 2) > 0,
            accumulation=_number(environment, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1),
            clipping=_parse_float(environment.get("ACCELERATE_GRADIENT_CLIPPING", "")),
        )
    if "WORLD_SIZE" not in environment:
        _check_single(environment)
        return started
    host, port = (_required(environment, f"MASTER_{part}") for part in ("ADDR", "PORT"))
    size = _number(environment, "WORLD_SIZE")
    return replace(
        started,
        rank=_number(environment, "RANK"),
        size=size,
        local_rank=_number(environment, "LOCAL_RANK"),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", size),
        address=f"tcp://{host}:{port}",
        sharded=started.sharded and size > 1,
    )


def check_devices(process: LaunchedProcess, *, gpus: int, cores: int) -> None:
    """Refuse a config that names more devices than there are, or GPUs where there are none."""
    on_gpus = gpus > 0 and not process.on_cpu
    if not on_gpus and process.precision != "no":
        raise _refusal(
            f"mixed_precision {process.precision} is for GPUs, and this machine shows none to "
            "its processes.",
            f"Set it to no, or train on the CPU: {launch_command('cpu')}.",
        )
    have, what = (gpus, "GPU") if on_gpus else (cores, "core")
    if process.local_size > have:
        plural = "" if have == 1 else "s"
        single = "" if have > 1 else ", or train with one process: studio train RUNFILE"
        raise _refusal(
            f"{process.local_size} processes were started, and this machine has {have} {what}"
            f"{plural}: each needs one of its own.",
            f"Start {have} with --num_processes {have}{single}.",
        )


def _check_kind(environment: Mapping[str, str]) -> None:
    """Refuse what divides the weights: here every process holds them whole."""
    for variable, what in (
        ("ACCELERATE_USE_FSDP", "FSDP divides the weights"),
        ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM divides the weights"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "a parallelism config divides the weights"),
    ):
        if _is_set(environment, variable):
            raise _refusal(f"{what}, which is not done here.", f"Use {launch_command('ddp')}.")
    if not _is_set(environment, "ACCELERATE_USE_DEEPSPEED"):
        return
    if environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"):
        move = f"Write its fields into deepspeed_config, as {config_path('zero2')} does."
        raise _refusal("a DeepSpeed config file of its own is not read here.", move)
    if _number(environment, "ACCELERATE_DEEPSPEED_ZERO_STAGE", 2) > 2:
        raise _refusal(
            "ZeRO stage 3 divides the weights, which is not done here.", "Use zero_stage 2."
        )
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
