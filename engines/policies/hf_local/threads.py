"""How many threads torch computes with.

More threads help on a quiet machine and cost three to four times the time on a loaded one,
so they are taken only where they are measured to be clearly faster.
"""

from __future__ import annotations

import os
import time

import torch

CLEARLY_FASTER = 1.3
_ROUNDS = 5


def choose_threads(wanted: int | None, device: torch.device) -> int:
    """Set and return the number of threads: the wanted one, or what a probe finds best.

    With threads wanted nothing is measured, so that a resumed run computes as it did before.
    """
    count = wanted if wanted is not None else _probe_threads(device)
    torch.set_num_threads(count)
    return count


def _probe_threads(device: torch.device) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if device.type != "cpu" or not cores or cores < 2:
        return 1
    one, many = _workload_s(1), _workload_s(cores)
    return cores if one >= CLEARLY_FASTER * many else 1


def _workload_s(threads: int) -> float:
    """Seconds of matrix products like those of a small model, about 5 ms; the median counts."""
    torch.set_num_threads(threads)
    rows, weights = torch.ones(128, 128), torch.ones(128, 640)
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(20):
            (rows @ weights).relu_() @ weights.T
        times.append(time.perf_counter() - began)
    return sorted(times)[_ROUNDS // 2]
