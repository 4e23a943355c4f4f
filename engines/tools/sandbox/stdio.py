"""Runs a server in the sandbox that is spoken to over our own standard streams.

`python -m engines.tools.sandbox.stdio {"folder": …, "readable": […], "accept": false} PROGRAM …`
takes the place of PROGRAM: it has its environment, no network, and ends when this process does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path

from engines.tools.sandbox.launch import Launcher
from engines.tools.sandbox.limits import Limits
from engines.tools.sandbox.program import give_to_nobody
from engines.tools.sandbox.tiers import find_tier

LIMITS = Limits(wall_s=1e9, cpu_s=1_000_000, memory_mb=4_096, disk_mb=1_024, processes=256)
"""Of a server, which lives as long as its run."""


def main() -> None:
    """Confine ourselves and become the program; says on standard error why it cannot."""
    asked, *argv = sys.argv[1:]
    settings = json.loads(asked)
    report = asyncio.run(find_tier())
    if report.tier == "resource-limits-only" and not settings["accept"]:
        sys.exit("this machine has no sandbox: set agent.sandbox: resource-limits-only")
    if report.tier == "namespaces" and os.geteuid() == 0:
        give_to_nobody(settings["folder"])
    order = {
        "argv": argv,
        # The interpreter of the studio first, as for programs that are agents.
        "env": {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        "folder": settings["folder"],
        "readable": settings["readable"],
        "layers": report.in_force,
        "network": "none",
        "port": 0,
        "limits": asdict(LIMITS),
    }
    ours, theirs = socket.socketpair()
    with ours:  # as long as it is open, the program may run
        Launcher(order, theirs, keep_output=False).run()


if __name__ == "__main__":
    main()
