"""A process that follows rank 0 of two, again and again: one line of stdin is one world.

A line is `run_rank_worker`, `sharded` or `leave` and the file where the two meet; a line of stdout
says how it ended. Who leaves ends without a word, as a killed process does.
"""

from __future__ import annotations

import os
import sys

import torch

from engines.core.errors import PolicyError
from engines.grpo.ranks.distributed import DistributedRanks, RankProcess


def main() -> None:
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        how, address = line.split()
        others = DistributedRanks(
            RankProcess(1, 2, 0, address), gpu=False, sharded=how == "sharded", timeout_s=60
        )
        if how == "leave":
            others.receive()
            os._exit(1)
        from engines.grpo.ranks.rank_worker import (
            run_rank_worker,  # seconds that a leaver need not wait
        )

        try:
            run_rank_worker(others)
        except PolicyError as error:
            print(f"failed {error}", flush=True)
        else:
            print("stopped", flush=True)
        finally:
            others.close()


if __name__ == "__main__":
    main()
