"""Started by accelerate: what it says, what the machine has, and a run in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from engines.core.errors import ConfigError
from studio import exit_codes
from studio.config.loading import load_run
from studio.config.source import Source
from studio.launch import apply_launch_config, run
from studio.presets import list_presets
from studio.training.distributed import LaunchedProcess, check_devices, config_path, read_launch

SINGLE = {"ACCELERATE_MIXED_PRECISION": "no"}
RANK_1 = {
    **SINGLE,
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
ZERO_2 = {
    **RANK_1,
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_GRADIENT_CLIPPING": "1.0",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
}


def test_rank_size_and_meeting_place_are_read_from_what_accelerate_sets() -> None:
    process = read_launch(RANK_1)
    assert (process.rank, process.size, process.local_rank, process.local_size) == (1, 4, 1, 4)
    assert process.address == "tcp://127.0.0.1:29500"
    assert not process.sharded


def test_a_deepspeed_config_divides_the_optimisers_state() -> None:
    process = read_launch(ZERO_2)
    assert (process.sharded, process.accumulation, process.clipping) == (True, 4, 1.0)
    assert not read_launch(ZERO_2 | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "0"}).sharded


def test_one_process_of_accelerate_trains_alone() -> None:
    assert read_launch(SINGLE) == LaunchedProcess()


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({}, "accelerate did not start it"),
        (SINGLE | {"MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "True"}, "one was started"),
        (RANK_1 | {"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
        (RANK_1 | {"RANK": "first"}, "'first', which is no number"),
        (RANK_1 | {"ACCELERATE_MIXED_PRECISION": "fp8"}, "fp8 is not done here"),
        (RANK_1 | {"ACCELERATE_USE_FSDP": "true"}, "FSDP divides the weights"),
        (ZERO_2 | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "stage 3 divides the weights"),
        (ZERO_2 | {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu"}, "offload_param_device"),
        (ZERO_2 | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"}, "is not read here"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(environment: dict[str, str], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause) as refused:
        read_launch(environment)
    assert refused.value.move


@pytest.mark.parametrize(
    ("process", "gpus", "cores", "cause"),
    [
        (LaunchedProcess(size=4, local_size=4), 2, 64, "4 processes were started, .* has 2 GPUs"),
        (LaunchedProcess(size=4, local_size=4), 0, 2, "4 processes were started, .* has 2 cores"),
        (LaunchedProcess(size=2, local_size=2), 0, 1, "1 core: each"),
        (LaunchedProcess(size=2, local_size=2, precision="bf16"), 0, 8, "bf16 is for GPUs"),
        (
            LaunchedProcess(size=2, local_size=2, on_cpu=True, precision="fp16"),
            8,
            8,
            "fp16 is for GPUs",
        ),
    ],
)
def test_a_config_that_the_machine_does_not_match_is_refused(
    process: LaunchedProcess, gpus: int, cores: int, cause: str
) -> None:
    """A20: a distributed config must match the hardware."""
    with pytest.raises(ConfigError, match=cause):
        check_devices(process, gpus=gpus, cores=cores)


def test_as_many_processes_as_devices_are_accepted() -> None:
    check_devices(LaunchedProcess(size=8, local_size=4, precision="bf16"), gpus=4, cores=1)
    check_devices(LaunchedProcess(size=2, local_size=2), gpus=0, cores=2)


def fitted_to(process: LaunchedProcess, *overrides: str) -> tuple[str, ...]:
    loaded = load_run("grpo-tiny", overrides, Path("practice"))
    return apply_launch_config(Source(overrides, "grpo-tiny"), loaded, process).overrides


def test_accelerates_config_decides_what_the_run_file_leaves_open_and_nothing_else() -> None:
    assert fitted_to(LaunchedProcess(size=4)) == ()
    zero = LaunchedProcess(size=4, precision="bf16", accumulation=4, clipping=1.0)
    # 16 problems × 8 rollouts over 4 processes, each share in 4 parts
    assert fitted_to(zero) == ("policy.local.dtype=bfloat16", "grpo.micro_batch=8")
    own = ("policy.local.dtype=float32", "grpo.micro_batch=3")
    assert fitted_to(zero, *own) == own
    with pytest.raises(ConfigError, match="gradient_clipping of the DeepSpeed config is 1"):
        fitted_to(zero, "grpo.max_grad_norm=0.5")


def test_a_run_file_that_trains_nothing_is_refused() -> None:
    loaded = load_run("rehearsal", [], Path("practice"))
    with pytest.raises(ConfigError, match="only grpo trains in several processes"):
        apply_launch_config(Source((), "rehearsal"), loaded, LaunchedProcess(size=2))


def test_a_refusal_is_one_line_exit_2_and_said_by_one_process_of_a_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = RANK_1 | {"WORLD_SIZE": "4096", "LOCAL_WORLD_SIZE": "4096"}
    assert run(["grpo-tiny"], many) == exit_codes.USER_ERROR
    assert capsys.readouterr().err == ""
    first = many | {"RANK": "0", "LOCAL_RANK": "0"}
    assert run(["grpo-tiny"], first) == exit_codes.USER_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("studio: studio.launch: 4096 processes were started")
    assert run([], SINGLE) == exit_codes.USER_ERROR
    assert "it needs a run file or a preset" in capsys.readouterr().err
    assert run(["grpo-tiny", "--nosuch"], SINGLE) == exit_codes.USER_ERROR
    assert "--nosuch" in capsys.readouterr().err


def a_config(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(config_path(name).read_text(encoding="utf-8"))
    return read


@pytest.mark.parametrize("name", ["cpu", "ddp", "zero2"])
def test_accelerate_reads_every_config_of_ours(name: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    read = load_config_from_file(str(config_path(name)))
    assert read.num_machines == 1
    assert read.num_processes == (2 if name == "cpu" else 4)


def test_the_configs_say_what_they_should() -> None:
    """A13 and A14."""
    ddp, zero = a_config("ddp"), a_config("zero2")
    assert (ddp["distributed_type"], ddp["gpu_ids"]) == ("MULTI_GPU", "all")
    assert (ddp["num_processes"], ddp["num_machines"], ddp["mixed_precision"]) == (4, 1, "bf16")
    assert zero["distributed_type"] == "DEEPSPEED"
    assert zero["deepspeed_config"] == {
        "zero_stage": 2,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
    }


def test_the_configs_are_no_run_files() -> None:
    assert not {"cpu", "ddp", "zero2"} & {name for name, _ in list_presets()}


def test_deepspeeds_own_config_class_accepts_the_zero_2_file() -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from accelerate.utils import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig

    said = a_config("zero2")["deepspeed_config"]
    plugin = DeepSpeedPlugin(
        zero_stage=said["zero_stage"],
        gradient_accumulation_steps=said["gradient_accumulation_steps"],
        gradient_clipping=said["gradient_clipping"],
        offload_optimizer_device=said["offload_optimizer_device"],
        offload_param_device=said["offload_param_device"],
        zero3_init_flag=said["zero3_init_flag"],
    )
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}
    read = DeepSpeedConfig({**plugin.deepspeed_config, **sizes})
    assert (read.zero_config.stage, read.gradient_accumulation_steps) == (2, 4)
    assert (read.gradient_clipping, read.zero_config.offload_optimizer.device) == (1.0, "none")


def launch(workspace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In two processes, on a port that is free: the config names none.

    `accelerate launch` itself imports the modules of its other commands too, a second more.
    """
    command = ["accelerate.commands.launch", "--config_file", str(config_path("cpu"))]
    command += ["-m", "studio.launch"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
    }
    return subprocess.run(
        [sys.executable, "-m", *command, *words, "--workspace", str(workspace)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=environment | {"PYTHONPATH": os.getcwd()},
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes need two cores")
def test_two_processes_train_the_tiny_policy_and_leave_one_journal(tmp_path: Path) -> None:
    done = launch(
        tmp_path,
        "grpo-tiny",
        "practice.epochs=1",
        "policy.max_tokens=48",
        "practice.batch_size=2",
        "practice.group_size=4",
        "data.truncate=4",
        "evaluation.do_eval=false",
        "tensorboard=false",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("2 processes train together") == 1
    (run_folder,) = (tmp_path / "runs").iterdir()
    lines = (run_folder / "journal.jsonl").read_bytes().splitlines()
    kinds = Counter(orjson.loads(line)["e"]["kind"] for line in lines)
    assert (kinds["RunStarted"], kinds["RunEnded"], kinds["CheckpointSaved"]) == (1, 1, 1)
    assert (kinds["StepFinished"], kinds["RolloutFinished"]) == (2, 4 * 4)
    assert kinds["LessonCommitted"] == 2
