"""A client of `studio review --mcp` that speaks JSON lines itself, so that it can stop anywhere."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any, Self

from engines.record.run_dir import RunDir
from tests.support.forked_studio import STUDIO, ForkedStudio


class LineClient:
    """One process of the studio and the handshake with it; killed at the end."""

    def __init__(self, run: RunDir) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        words = ("--workspace", str(run.path.parents[1]), "review", run.run, "--mcp")
        self.process: Any = ForkedStudio([*STUDIO, *words], **pipes)
        self._number = 0

    def __enter__(self) -> Self:
        client = {"name": "line-client", "version": "1"}
        able = {"elicitation": {}}
        asked = {"protocolVersion": "2025-11-25", "capabilities": able, "clientInfo": client}
        try:
            number = self._request("initialize", asked)
            assert self.read()["id"] == number
            self.write({"method": "notifications/initialized"})
        except BaseException:  # it was killed meanwhile
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError, ValueError):
                stream.close()

    def close(self) -> int:
        """Leave as a client does; returns the exit code."""
        self.process.stdin.close()
        assert self.process.stdout.read() == b""
        return int(self.process.wait(60))

    def write(self, message: dict[str, Any]) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "error" in found:  # it is ending
            raise ConnectionError(found)
        return found

    def _request(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        self.write({"id": self._number, "method": method, "params": params})
        return self._number

    def decide(self, name: str, action: str) -> Iterator[str]:
        """Have the person asked and answer: "asked", "answered", "told" as each has happened."""
        arguments = {"name": "decide_operation", "arguments": {"operation": name}}
        number = self._request("tools/call", arguments)
        form = self.read()
        assert form.get("method") == "elicitation/create", form
        yield "asked"
        answer = {"action": "accept", "content": {"action": action}}
        self.write({"id": form["id"], "result": answer})
        yield "answered"
        result = self.read()
        assert result["id"] == number and not result["result"].get("isError"), result
        yield "told"
