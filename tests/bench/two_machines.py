"""Two machines that train one run, against one process: `python -m tests.bench.two_machines`.

The machines are two network namespaces on this one, joined by a cable of their own, so that
nothing passes but what goes to the other's address. Needs root and iproute2. Prints JSON: the
seconds of each, and the largest difference between the weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

from studio.training.distributed import config_path

NAMES = ("studio-a", "studio-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
RUN = ["grpo-tiny", "practice.epochs=1", "policy.max_tokens=48", "practice.batch_size=2"]
RUN += ["practice.group_size=4", "data.truncate=8", "evaluation.do_eval=false"]
RUN += ["policy.local.threads=1"]
FSDP = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = ["--workspace", folder]
        alone = [sys.executable, "-m", "studio", "train", *RUN, "--name", "alone", *workspace]
        figures = {"alone_s": wait(subprocess.Popen(alone))}
        connect()
        try:
            for kind, options in (("ddp", []), ("fsdp", FSDP)):
                machines = [
                    start(rank, [*options, *RUN, "--name", kind, *workspace]) for rank in (0, 1)
                ]
                figures[f"{kind}_s"] = max(map(wait, machines))
                weights = [adapter(Path(folder), name) for name in ("alone", kind)]
                figures[f"{kind}_difference"] = max(
                    float((value - weights[1][name]).abs().max())
                    for name, value in weights[0].items()
                )
        finally:
            for name in NAMES:
                subprocess.run(["ip", "netns", "del", name], check=False)
        print(json.dumps(figures))


def connect() -> None:
    for name in NAMES:
        ip("netns", "add", name)
    ip("link", "add", "cable0", "netns", NAMES[0], "type", "veth", "peer", "cable1",
       "netns", NAMES[1])  # fmt: skip
    for number, (name, address) in enumerate(zip(NAMES, ADDRESSES, strict=True)):
        ip("-n", name, "addr", "add", f"{address}/24", "dev", f"cable{number}")
        for device in ("lo", f"cable{number}"):
            ip("-n", name, "link", "set", device, "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def start(rank: int, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = ["ip", "netns", "exec", NAMES[rank], sys.executable, "-m", "studio.launch"]
    command += ["--config_file", str(config_path("cpu")), "--num_machines", "2"]
    command += ["--num_processes", "2", "--machine_rank", str(rank)]
    command += ["--main_process_ip", ADDRESSES[0], "--main_process_port", "29500"]
    interface = {"GLOO_SOCKET_IFNAME": f"cable{rank}"}
    return subprocess.Popen([*command, *arguments], env=os.environ | interface)


def wait(process: subprocess.Popen[bytes]) -> float:
    began = time.perf_counter()
    assert process.wait(600) == 0
    return round(time.perf_counter() - began, 1)


def adapter(workspace: Path, name: str) -> dict[str, object]:
    (found,) = workspace.glob(
        f"runs/{name}/checkpoints/*/*/global_step_4/adapter_model.safetensors"
    )
    return load_file(found)


if __name__ == "__main__":
    main()
