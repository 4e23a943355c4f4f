"""A command `studio` for shells whose processes are forked: each saves a second of imports."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from tests.support.forked_studio import STUDIO, ForkedStudio

_CLIENT = """#!{python} -IS
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n"
    socket.send_fds(server, [b"\\n"], [0, 1, 2])
    server.sendall(asked)
    sys.exit(int(server.makefile().readline()))
"""
"""Hands its words, folder, environment and streams over, and ends as the studio does."""


@contextmanager
def studio_command() -> Iterator[Path]:
    """Yields the folder that has it, for the beginning of a PATH."""
    with (
        tempfile.TemporaryDirectory(prefix="studio-") as place,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        address = f"{place}/socket"  # an address has 107 bytes at most
        listening.bind(address)
        listening.listen()
        command = Path(place, "studio")
        command.write_text(_CLIENT.format(python=sys.executable, address=address), "utf-8")
        command.chmod(0o700)
        server = Thread(target=_serve, args=(listening,))
        server.start()
        try:
            yield command.parent
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            server.join()


def _serve(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # it was shut down
        Thread(target=_run, args=(connection,)).start()  # a pipe has several at a time


def _run(connection: socket.socket) -> None:
    with connection:
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        try:
            words, folder, environ = json.loads(connection.makefile("rb").readline())
            stdin, stdout, stderr = streams
            child = ForkedStudio(
                [*STUDIO, *words],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=environ,
            )
        finally:
            for stream in streams:
                os.close(stream)
        connection.sendall(b"%d\n" % child.wait())
