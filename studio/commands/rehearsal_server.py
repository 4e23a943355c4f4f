"""The rehearsal server as a process of its own: says where it is, ends on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from engines.policies.rehearsal.server import serve
from studio import exit_codes
from studio.report.tables import print_json


async def serve_until_stopped(port: int, *, json: bool) -> int:
    """Serve until Ctrl-C or SIGTERM, which is the only way it ends: exit code 130.

    Raises:
        ConfigError: the port cannot be had.
    """

    def print_ready(base_url: str) -> None:
        if json:
            print_json({"base_url": base_url, "model": "rehearsal", "rehearsal": True})
        else:
            print(base_url, flush=True)
        print(
            "rehearsal: replies are scripted, no model is asked\n"
            "try it: studio headless rehearsal policy=openai:rehearsal "
            f"policy.base_url={base_url}\n"
            "Ctrl-C ends it",
            file=sys.stderr,
            flush=True,
        )

    loop = asyncio.get_running_loop()
    server = asyncio.create_task(serve(port, on_ready=print_ready))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await server
    print("studio: the rehearsal server has ended", file=sys.stderr)
    return exit_codes.INTERRUPTED
