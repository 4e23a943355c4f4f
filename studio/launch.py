"""`accelerate launch … -m studio.launch RUNFILE`: one training run in several processes.

`python -m studio.launch --config_file FILE … RUNFILE` starts them so itself, once the machine is
known to fit, and ends with the run's exit code. Rank 0 is `studio train`; the others only compute
and have no run file, no journal and no screen. What accelerate says of the processes it started
stands in environment variables, whose names are owned here.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engines.core.errors import ConfigError, install_command
from engines.core.frozen import frozen
from engines.record.run_dir import Workspace
from studio import errors, exit_codes
from studio.commands import AcceptChanges, EventsAsJson, Name, Overrides, RestartStep, RunFile
from studio.config.loading import LoadedRun
from studio.config.source import Source, parse_source
from studio.estimate.cost import tell_estimate
from studio.presets import presets_folder
from studio.process import harden
from studio.render.lines import to_stderr
from studio.run import assemble, headless, new_or_resume
from studio.secrets import output, run_files
from studio.secrets.sanitize import sanitize

if TYPE_CHECKING:
    from engines.grpo.ranks.accelerated import AcceleratedRanks


PLACE = "studio.launch"
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_OPEN = ("none", "None", "auto")
"""What accelerate writes for a number that its config leaves open."""


def config_path(name: str) -> Path:
    """The config named cpu, ddp, fsdp or zero2 that ships for `accelerate launch`."""
    return presets_folder() / "accelerate" / f"{name}.yaml"


def launch_command(name: str) -> str:
    return f"python -m studio.launch --config_file {config_path(name)} RUNFILE"


def _refusal(cause: str, move: str) -> ConfigError:
    return ConfigError(PLACE, cause, move)


@frozen
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
        clipping = environment.get("ACCELERATE_GRADIENT_CLIPPING", "none")
        started = replace(
            started,
            deepspeed=True,
            accumulation=_number(environment, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1),
            clipping=None if clipping in _OPEN else float(clipping),
        )
    if "WORLD_SIZE" not in environment:
        if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_PORT" not in environment:
            return started
        raise _refusal(
            "accelerate did not start it, or started one process of several: with --cpu it leaves "
            "them to mpirun.",
            f"Start it so: {launch_command('ddp')} (cpu in the place of ddp without a GPU); or "
            "train with one process: studio train RUNFILE.",
        )
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
    deepspeed = _is_set(environment, "ACCELERATE_USE_DEEPSPEED")
    refused = {
        "Megatron-LM": _is_set(environment, "ACCELERATE_USE_MEGATRON_LM"),
        "a parallelism config": _is_set(environment, "ACCELERATE_USE_PARALLELISM_CONFIG"),
        "version 1 of FSDP": _is_set(environment, "ACCELERATE_USE_FSDP")
        and environment.get("FSDP_VERSION") != "2",
        "a DeepSpeed config file of its own": deepspeed
        and bool(environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")),
        "ZeRO stage 3": deepspeed and environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3",
    }
    for which in ("OPTIMIZER", "PARAM"):
        device = environment.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{which}_DEVICE", "none")
        refused[f"offload_{which.lower()}_device"] = deepspeed and device != "none"
    for what, is_asked in refused.items():
        if is_asked:
            raise _refusal(
                f"{what} is not done here.",
                f"Use {launch_command('fsdp')}, or start from {config_path('zero2')}.",
            )


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "true", "yes")


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "none")
    if text.isdecimal():
        return int(text)
    if text in _OPEN and default is not None:
        return default
    raise _refusal(
        f"{name} is {text!r}, which is no number.", f"Start it so: {launch_command('ddp')}."
    )


app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def launch(
    context: typer.Context,
    runfile: RunFile = None,
    overrides: Overrides = None,
    workspace: Annotated[
        Path,
        typer.Option(envvar="STUDIO_WORKSPACE", help="Folder of runs, libraries and data sets."),
    ] = Path("practice"),
    name: Name = None,
    restart_step: RestartStep = None,
    accept_changes: AcceptChanges = False,
    json: EventsAsJson = False,
) -> int:
    """Train the weights of a policy in several processes; starts or resumes a run."""
    process: LaunchedProcess = context.obj
    source = parse_source(PLACE, "practice", runfile, overrides, example="grpo-tiny")
    # Asked without importing it, which takes seconds in every process.
    if find_spec("torch") is None:
        raise ConfigError(
            PLACE, "torch is not installed.", f"Install it: {install_command('grpo')}"
        )
    if not process.on_cpu:
        from engines.grpo.ranks.accelerated import gpu_count

        # accelerate's launcher does not pass use_cpu on where it starts several processes.
        process = replace(process, on_cpu=gpu_count() == 0)
    _check_devices(process)
    with _connect_ranks(process) as ranks:
        if ranks is not None and ranks.rank > 0:
            from engines.grpo.ranks.accelerated import run_rank_worker

            run_rank_worker(ranks)
            return exit_codes.DONE
        request = new_or_resume.RunRequest(
            workspace=Workspace(workspace.expanduser()),
            source=source,
            name=name,
            restart_step=restart_step,
            accept_changes=accept_changes,
        )
        source = apply_launch_config(source, request.load(), process)
        plan = new_or_resume.load_plan(replace(request, source=source))
        for warning in assemble.training_warnings(plan.loaded.config):
            to_stderr(f"warning: {warning}")
        if ranks is not None:
            to_stderr(f"{ranks.size} processes train together, each its share of the groups")
        return asyncio.run(
            headless.run_headless(plan, json=json, tell_estimate=tell_estimate, ranks=ranks)
        )


def apply_launch_config(source: Source, loaded: LoadedRun, process: LaunchedProcess) -> Source:
    """Take settings that the run file leaves open from the config of accelerate."""
    config = loaded.config
    if not config.trains or config.practice.algorithm != "grpo":
        raise ConfigError(
            loaded.place("practice.algorithm"),
            f"practice.algorithm is {config.practice.algorithm}, and only grpo trains in several "
            "processes.",
            "Set practice.algorithm=grpo, or use one process: studio train, studio headless.",
        )
    if process.clipping is not None and process.clipping != config.grpo.max_grad_norm:
        raise ConfigError(
            loaded.place("grpo.max_grad_norm"),
            f"it is {config.grpo.max_grad_norm:g}, and gradient_clipping of the DeepSpeed config "
            f"is {process.clipping:g}.",
            "Set both alike.",
        )
    further = []
    if process.precision != "no" and config.policy.local.dtype == "auto":
        further.append(f"policy.local.dtype={DTYPES[process.precision]}")
    if process.accumulation is not None:
        sequences = config.practice.batch_size * config.practice.group_size
        share = max(1, -(-sequences // process.size))
        own = config.grpo.micro_batch
        if own is None:
            further.append(f"grpo.micro_batch={max(1, -(-share // process.accumulation))}")
        elif (forwards := -(-share // own)) != process.accumulation:
            raise ConfigError(
                loaded.place("grpo.micro_batch"),
                f"{own} makes {forwards} forwards of a process's {share} sequences, and "
                f"gradient_accumulation_steps of the DeepSpeed config is {process.accumulation}.",
                "Leave grpo.micro_batch out, which then follows from it, or make them fit.",
            )
    return replace(source, overrides=(*source.overrides, *further))


@contextmanager
def _connect_ranks(process: LaunchedProcess) -> "Iterator[AcceleratedRanks | None]":
    """The processes that train together, connected; None for a single process."""
    from engines.grpo.ranks.accelerated import AcceleratedRanks

    if process.size == 1:
        yield None
        return
    if process.on_cpu:
        _pin_cores(process)
    ranks = AcceleratedRanks(gpu=not process.on_cpu)
    if process.rank > 0:
        # A signal goes to every process; rank 0 ends the run in order and then stops the others.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    try:
        yield ranks
    finally:
        if process.rank == 0:
            ranks.stop()
        ranks.close()


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Carry out this process's part and return its exit code; bugs are raised."""
    output.forget()
    output.remember(run_files.environment_secrets())
    with output.mask_output():
        try:
            if not is_started(environment) and any(
                a.startswith("--config_file") for a in arguments
            ):
                return _start(arguments)
            process = read_launch(environment)
            command = typer.main.get_command(app)
            result = command.main(
                list(arguments), prog_name=f"python -m {PLACE}", standalone_mode=False, obj=process
            )
        except BaseException as error:
            if (described := errors.describe_error(error)) is None:
                raise  # a bug
            text, code = described
            rank, local = environment.get("RANK", "0"), environment.get("LOCAL_RANK", "0")
            # Of the processes of a machine one refuses the settings and words that all have.
            if local == "0" or not isinstance(error, ConfigError | typer.TyperException):
                who = "studio" if rank == "0" else f"studio (rank {rank})"
                with suppress(OSError):
                    print(f"{who}: {sanitize(text)}", file=sys.stderr, flush=True)
            return code
    return result if isinstance(result, int) else exit_codes.DONE


def _start(arguments: Sequence[str]) -> int:
    from engines.grpo.ranks.ranks import read_request, start_processes

    asked = read_request(arguments)
    here = -(-asked.processes // asked.machines)
    process = LaunchedProcess(size=asked.processes, local_size=here, on_cpu=asked.on_cpu)
    process = replace(process, precision=asked.precision, deepspeed=asked.deepspeed)
    _check_devices(process)
    return start_processes(asked, PLACE)


def _check_devices(process: LaunchedProcess) -> None:
    from engines.grpo.ranks.accelerated import gpu_count

    check_devices(process, gpus=gpu_count(), cores=os.cpu_count() or 1)


def _pin_cores(process: LaunchedProcess) -> None:
    """Give each process cores of its own, so that none takes those of another."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[process.local_rank :: process.local_size])


def main() -> None:
    """Run this process and leave with its exit code."""
    harden()
    output.mask_tracebacks()
    code = run(sys.argv[1:], os.environ)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed or without a reader
            stream.flush()
    # Everything is closed. Gloo's own threads sometimes abort an interpreter that shuts down,
    # which would turn a finished run into a failed one.
    os._exit(code)


if __name__ == "__main__":
    main()
