"""A process that follows rank 0 of two, again and again: one line of stdin is one world.

A line is the kind of training (`ddp`, `fsdp`, `deepspeed`), or `leave`, and the file where the two
meet; a line of stdout says how it ended. Who leaves ends without a word, as a killed process does.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from engines.core.errors import PolicyError
from engines.grpo.ranks.accelerated import AcceleratedRanks

LIMIT_S = 60
KINDS = {
    "ddp": {},
    "fsdp": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    },
    "deepspeed": {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    },
}
"""What accelerate's launcher sets for each, beside ranks."""


def join(how: str, address: str, rank: int) -> AcceleratedRanks:
    """This process as one of two on this machine."""
    for variables in KINDS.values():
        for name in variables:
            os.environ.pop(name, None)
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2)):
        os.environ[name] = str(value)
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", **KINDS.get(how, {})}
    # accelerate takes a process group that is there; a file needs no free port.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{address}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=LIMIT_S),
    )
    return AcceleratedRanks(gpu=False)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        how, address = line.split()
        ranks = join(how, address, 1)
        if how == "leave":
            ranks.receive()
            os._exit(1)
        # Takes seconds, which a leaver need not wait.
        from engines.grpo.ranks.accelerated import run_rank_worker

        try:
            run_rank_worker(ranks)
        except PolicyError as error:
            print(f"failed {error}", flush=True)
        else:
            print("stopped", flush=True)
        finally:
            ranks.close()


if __name__ == "__main__":
    main()
