"""Started by accelerate: what it says, what the machine has, and a run in two processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from engines.core.errors import ConfigError
from engines.grpo.ranks.ranks import LaunchRequest, read_request, start_processes
from studio import exit_codes
from studio.config.loading import load_run
from studio.config.source import Source
from studio.launch import (
    LaunchedProcess,
    apply_launch_config,
    check_devices,
    config_path,
    read_launch,
    run,
)
from studio.presets import list_presets
from tests.engines.grpo.follower import KINDS

SHORT = (
    "practice.epochs=1",
    "policy.max_tokens=48",
    "practice.batch_size=2",
    "practice.group_size=4",
    "data.truncate=4",
    "evaluation.do_eval=false",
    "tensorboard=false",
)
DIVIDED = ("--use_fsdp", "--fsdp_version", "2")
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SHIPPED = ("cpu", "ddp", "fsdp", "zero2")
SINGLE = {"ACCELERATE_MIXED_PRECISION": "no"}
RANK_1 = {
    **SINGLE,
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    **MEETING,
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
    assert not process.deepspeed


def test_a_deepspeed_config_says_its_accumulation_and_clipping() -> None:
    process = read_launch(ZERO_2)
    assert (process.deepspeed, process.accumulation, process.clipping) == (True, 4, 1.0)


def test_version_2_of_fsdp_is_taken() -> None:
    assert read_launch(RANK_1 | {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}).size == 4


def test_one_process_of_accelerate_trains_alone() -> None:
    assert read_launch(SINGLE) == LaunchedProcess()


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({}, "accelerate did not start it"),
        (SINGLE | {"MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "True"}, "one process of several"),
        (RANK_1 | {"RANK": "first"}, "'first', which is no number"),
        (RANK_1 | {"ACCELERATE_USE_FSDP": "true"}, "version 1 of FSDP"),
        (RANK_1 | {"ACCELERATE_USE_MEGATRON_LM": "true"}, "Megatron-LM"),
        (ZERO_2 | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, "ZeRO stage 3 is not done here"),
        (ZERO_2 | {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu"}, "offload_param_device"),
        (
            ZERO_2 | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"},
            "config file of its own is not done",
        ),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(environment: dict[str, str], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause) as refused:
        read_launch(environment)
    assert refused.value.move


@pytest.mark.parametrize(
    ("process", "gpus", "cores", "cause"),
    [
        (LaunchedProcess(size=4, local_size=4), 2, 64, "4 processes with a GPU .* has 2 GPUs"),
        (LaunchedProcess(size=4, local_size=4), 0, 64, "4 processes with a GPU .* has no GPUs"),
        (LaunchedProcess(local_size=4, on_cpu=True), 8, 2, "4 processes with a core .* 2 cores"),
        (LaunchedProcess(local_size=2, on_cpu=True), 0, 1, "this machine has 1 core"),
        (LaunchedProcess(on_cpu=True, precision="fp16"), 8, 8, "fp16 is for GPUs"),
        (LaunchedProcess(precision="fp8"), 8, 8, "fp8 is not done here"),
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
    check_devices(LaunchedProcess(size=2, local_size=2, on_cpu=True), gpus=0, cores=2)


def fitted_to(process: LaunchedProcess, *overrides: str) -> tuple[str, ...]:
    loaded = load_run("grpo-tiny", overrides, Path("practice"))
    return apply_launch_config(Source(overrides, "grpo-tiny"), loaded, process).overrides


def test_accelerates_config_decides_what_the_run_file_leaves_open_and_nothing_else() -> None:
    assert fitted_to(LaunchedProcess(size=4)) == ()
    zero = LaunchedProcess(size=4, precision="bf16", accumulation=4, clipping=1.0)
    # 16 problems × 8 rollouts over 4 processes, each share in 4 parts
    assert fitted_to(zero) == ("policy.local.dtype=bfloat16", "grpo.micro_batch=8")
    own = ("policy.local.dtype=float32", "grpo.micro_batch=8")
    assert fitted_to(zero, *own) == own
    with pytest.raises(ConfigError, match=r"3 makes 11 forwards .* 32 .* gradient_accum.* is 4"):
        fitted_to(zero, "grpo.micro_batch=3")
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
    assert line.startswith("studio: studio.launch: 4096 processes with a core")
    assert run([], SINGLE) == exit_codes.USER_ERROR
    assert "it needs a run file or a preset" in capsys.readouterr().err
    assert run(["grpo-tiny", "--nosuch"], SINGLE) == exit_codes.USER_ERROR
    assert "--nosuch" in capsys.readouterr().err


def a_config(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(config_path(name).read_text(encoding="utf-8"))
    return read


SEED = Path(__file__).parent / "accelerate"
"""Files as the seed has them and `accelerate config` writes them: A13, A14, X04."""


@pytest.mark.parametrize(
    "path", [*sorted(SEED.glob("*.yaml")), *map(config_path, SHIPPED)], ids=str
)
def test_accelerates_own_classes_read_every_file(path: Path) -> None:
    asked = read_request(["--config_file", str(path), "grpo-tiny", "--name", "x"])
    of_two = path.stem == "two_machines"
    assert (asked.processes, asked.machines) == (
        2 if path.stem == "cpu" else 8 if of_two else 4,
        1 + of_two,
    )
    assert asked.deepspeed == (path.stem == "zero2")
    assert asked.options.training_script_args == ["--name", "x"]


def test_the_seeds_files_are_refused_for_missing_hardware_or_package_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(name: str, *options: str) -> str:
        arguments = ["--config_file", str(SEED / f"{name}.yaml"), *options, "grpo-tiny"]
        assert run(arguments, {}) == exit_codes.USER_ERROR
        return capsys.readouterr().err

    monkeypatch.setattr("engines.grpo.ranks.accelerated.gpu_count", lambda: 2)
    assert "4 processes with a GPU each are asked for, and this machine has 2 GPUs" in start("ddp")
    assert "4 processes with a GPU each" in start("two_machines", "--machine_rank", "1")
    monkeypatch.setattr("studio.launch.find_spec", lambda name: None)
    assert "deepspeed is not installed" in start("zero2")
    assert "there is no such file" in start("nowhere")
    started: list[LaunchRequest] = []
    monkeypatch.setattr("engines.grpo.ranks.accelerated.gpu_count", lambda: 4)
    monkeypatch.setattr("studio.launch.find_spec", lambda name: object())
    monkeypatch.setattr(
        "engines.grpo.ranks.ranks.start_processes", lambda asked, _: started.append(asked) or 5
    )
    for name in ("ddp", "zero2", "two_machines"):
        assert run(["--config_file", str(SEED / f"{name}.yaml"), "grpo-tiny"], {}) == 5
    assert [asked.precision for asked in started] == ["fp16", "bf16", "fp16"]


def test_a_file_that_accelerate_cannot_read_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.yaml").write_text("num_processes: 2\n")
    assert run(["--config_file", str(tmp_path / "odd.yaml"), "x"], {}) == exit_codes.USER_ERROR
    assert f"{tmp_path}/odd.yaml: accelerate cannot read it (A `distributed_type`" in (
        capsys.readouterr().err
    )


def test_the_configs_say_what_they_should() -> None:
    zero, fsdp = a_config("zero2"), a_config("fsdp")
    assert zero["deepspeed_config"] == {
        "zero_stage": 2,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
    }
    assert (fsdp["distributed_type"], fsdp["fsdp_config"]["fsdp_version"]) == ("FSDP", 2)


def test_the_configs_are_no_run_files() -> None:
    assert not set(SHIPPED) & {name for name, _ in list_presets()}


@pytest.fixture
def signals_put_back() -> Iterator[None]:
    """Torch's launcher takes them for its whole process."""
    taken = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
    before = [signal.getsignal(number) for number in taken]
    yield
    for number, handler in zip(taken, before, strict=True):
        signal.signal(number, handler)


def test_processes_are_started_by_accelerate_and_their_exit_code_is_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals_put_back: None
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "")  # set for the processes, and put back
    (tmp_path / "ending.py").write_text(
        "import json, os, sys\n"
        "told = {n: v for n, v in os.environ.items() if n.startswith(('ACC', 'FSDP_V', 'RANK'))}\n"
        "name = f\"{sys.argv[1]}/{told['RANK']}\"\n"
        "open(name, 'w').write(json.dumps([told, sys.argv]))\n"
        "os.replace(name, name + '.json')\n"
        "sys.exit(5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["--config_file", str(config_path("cpu")), *DIVIDED, str(tmp_path), "a=1"]
    assert start_processes(read_request(words), "ending") == 5
    first = min(tmp_path.glob("?.json"))  # the other may have been ended with it, before it wrote
    told, argv = orjson.loads(first.read_bytes())
    rank = told["RANK"]
    assert argv[1:] == [str(tmp_path), "a=1"]
    process = read_launch(told | MEETING | {"WORLD_SIZE": "2", "LOCAL_RANK": rank})
    assert (process.rank, process.on_cpu) == (int(rank), True)
    assert (told["ACCELERATE_USE_FSDP"], told["FSDP_VERSION"]) == ("true", "2")


@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes need two cores")
def test_two_processes_train_the_tiny_policy_divided_and_leave_one_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 is this process, by FSDP: what DDP needs is part of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**KINDS["fsdp"], **MEETING, "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    environment |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    for name, value in (environment | {"RANK": "0", "LOCAL_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    cores = os.sched_getaffinity(0)
    other = subprocess.Popen(
        [sys.executable, "-m", "studio.launch", "grpo-tiny"],
        env=os.environ | {"RANK": "1", "LOCAL_RANK": "1"},
    )
    try:
        code = run(["grpo-tiny", *SHORT, "--workspace", str(tmp_path)], os.environ)
        said = capsys.readouterr().err
        assert (code, other.wait(60)) == (0, 0), said
    finally:
        os.sched_setaffinity(0, cores)
        other.kill()
    assert said.count("2 processes train together") == 1
    (run_folder,) = (tmp_path / "runs").iterdir()
    lines = (run_folder / "journal.jsonl").read_bytes().splitlines()
    kinds = Counter(orjson.loads(line)["e"]["kind"] for line in lines)
    assert (kinds["RunStarted"], kinds["RunEnded"], kinds["CheckpointSaved"]) == (1, 1, 1)
    assert (kinds["StepFinished"], kinds["RolloutFinished"]) == (2, 4 * 4)
    assert kinds["LessonCommitted"] == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ddp", "fsdp", "zero2"])
def test_two_gpus_train_the_tiny_policy(name: str, tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if name == "zero2" and find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra deepspeed)")
    command = [sys.executable, "-m", "studio.launch", "--config_file", str(config_path(name))]
    command += ["--num_processes", "2", "grpo-tiny", *SHORT, "--workspace", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
