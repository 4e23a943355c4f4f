"""Real `studio` processes for tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.forked_studio import STUDIO as STUDIO
from tests.support.forked_studio import ForkedStudio, run_forked

SMALL = (
    "practice.epochs=1",
    "practice.batch_size=4",
    "practice.group_size=3",
    "data.truncate=8",
    "evaluation.do_eval=false",
)


class Process:
    """A `studio headless … --json` whose events can be awaited."""

    def __init__(self, workspace: Path, *arguments: str) -> None:
        self.child = ForkedStudio(
            [*STUDIO, "--workspace", str(workspace), "headless", *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []

    def until(self, kind: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Read events up to the nth of a kind whose fields match."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event["kind"] == kind and fields.items() <= event.items():
                count -= 1
                if not count:
                    return event
        raise AssertionError(f"no {kind}: {self.child.stderr and self.child.stderr.read()}")

    def end(self) -> int:
        """Read to the end; returns the exit code."""
        output, _ = self.child.communicate(timeout=60)
        self.events += [json.loads(line) for line in output.splitlines()]
        return self.child.returncode


@contextmanager
def running(workspace: Path, *arguments: str) -> Iterator[Process]:
    process = Process(workspace, *arguments)
    try:
        yield process
    finally:
        process.child.kill()
        process.child.communicate()


def studio(
    workspace: Path, *arguments: str, typed: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `typed` is its standard input."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    done: subprocess.CompletedProcess[str] = run_forked(
        [*STUDIO, "--workspace", str(workspace), *arguments], input=typed or "", text=True, **pipes
    )
    return done
