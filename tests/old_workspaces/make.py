"""Makes the old workspaces and records what the release that made them says of them.

Run by hand, with the release that is to be remembered unpacked somewhere:

    python -m tests.old_workspaces.make RELEASE

It starts real processes of that release. Of this checkout it uses what lies beside it only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.old_workspaces import facts
from tests.old_workspaces.commands import (
    COPY,
    ENVIRONMENT,
    LOOKS,
    ONE_STEP_EPOCHS,
    RESUMES,
    RULES,
    SMALL_REHEARSAL,
    SMALL_TRAINING,
)
from tests.old_workspaces.kept import DATA, keep, put_back

WORKSHOP = Path("/tmp/old-workspaces")
"""Where they are made: some files name it, and it says nothing about who made them."""
_RUN = "from studio.cli import run; sys.exit(run(sys.argv[1:]))"
_AS_SAM = (
    "import os, pwd, sys; me = pwd.getpwuid(os.getuid()); "
    "pwd.getpwuid = lambda _: pwd.struct_passwd(('sam', *me[1:])); "
)
"""Decisions in the workspaces are a person's who has no account anywhere."""
_AT_TERMINAL = "import io, sys; sys.stdin.isatty = lambda: True; "


class Release:
    """Commands of one release, at one workspace."""

    def __init__(self, tree: Path, workspace: Path, *, sam: bool) -> None:
        self.tree, self.workspace = tree, workspace
        self._first = _AS_SAM if sam else ""
        self.environ = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(tree)}

    def command(self, *words: str, typed: str = "") -> list[str]:
        terminal = _AT_TERMINAL if typed else "import sys; "
        code = self._first + terminal + _RUN
        return [sys.executable, "-c", code, "--workspace", str(self.workspace), *words]

    def __call__(self, *words: str, typed: str = "", code: int | None = 0) -> tuple[str, int]:
        done = subprocess.run(
            self.command(*words, typed=typed),
            input=typed,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=self.environ,
            cwd=self.workspace.parent,
        )
        if code not in (None, done.returncode):
            sys.exit(f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout, done.returncode

    def python(self, code: str) -> None:
        """Run a few lines that import the release."""
        command = [sys.executable, "-c", code]
        subprocess.run(command, check=True, env=self.environ, cwd=self.workspace.parent)

    @contextmanager
    def started(self, *words: str) -> Iterator[Started]:
        child = subprocess.Popen(
            self.command(*words, "--json"),
            stdout=subprocess.PIPE,
            text=True,
            env=self.environ,
            cwd=self.workspace.parent,
        )
        try:
            yield Started(child)
        finally:
            child.kill()  # as a power cut would
            child.communicate()


class Started:
    """A run whose events are awaited."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child

    def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["kind"] == kind and fields.items() <= event.items():
                return event
        sys.exit(f"no {kind} with {fields}")


def make_held(studio: Release) -> None:
    """Cut in the review of its second step: a decision of each kind, and operations open."""
    with studio.started("headless", "rehearsal", *SMALL_REHEARSAL, "--review", "wait") as run:
        run.until("StageEntered", stage="review", step=1)
        studio("ctl", "pause")
        studio("ctl", "resume")
        propose(studio, kind="add", text="Units: name the unit of every number.")
        propose(studio, kind="add", text="Estimate: guess the size of the answer first.")
        studio("review", typed="a\nr not now\nu\nq\n")
        studio("library", "edit", "rehearsal", "--add", "Order: read from left to right.")
        studio("review", typed="a\nr no need of it\nq\n")
        run.until("LessonCommitted", step=1)
        run.until("StageEntered", stage="review", step=2)
        propose(studio, kind="modify", target="E1", text="Order: read from the left.")
        propose(studio, kind="add", text="Signs: write down the sign of every number.")
        propose(studio, kind="delete", target="E2")
        edit = "e Carry: write what is carried above the next column."
        studio("review", typed=f"d a person should look\na\n{edit}\nq\n")


def propose(studio: Release, **operation: str) -> None:
    """Put an operation of a person's own into the queue, which else only the screen does."""
    studio.python(
        "from pathlib import Path; from studio import link; "
        "from engines.record.run_dir import Workspace; "
        f"run = Workspace(Path({str(studio.workspace)!r})).run('rehearsal'); "
        f"link.ask(run, 'propose', reviewer='sam', operation={dict(operation, id='')!r})"
    )


def make_finished(studio: Release) -> None:
    """Two epochs of one step each, the second in a process of its own; a fork after the first."""
    words = ("headless", "rehearsal", *ONE_STEP_EPOCHS)
    studio(*words, "practice.epochs=1")
    studio(*words)
    studio(*words, "--restart-step", "1")


def make_rejections(studio: Release) -> None:
    """Rules that reject in each epoch, a run that starts from a copy, and a change by hand."""
    words = ("evaluation.do_eval=false", "--review", "rules:rules.yaml")
    studio("headless", "rehearsal", *SMALL_REHEARSAL, *words)
    studio("headless", "rehearsal", *COPY, "--name", "copy")
    studio("library", "edit", "rehearsal", "E1", "--delete", "--reason", "never of use")


def make_unparsed(studio: Release) -> None:
    """Replies of the reflector that are no JSON: one mended, one dropped, the others wait."""
    with _reflector_without_sense() as url:
        studio.environ["OPENAI_BASE_URL"] = url
        studio(
            *("headless", "rehearsal", *SMALL_REHEARSAL, "practice.batch_size=6"),
            *("data.truncate=6", "practice.epochs=1", "evaluation.do_eval=false"),
            "reflector=openai:served",
            code=4,
        )
    good = '[{"operation": "add", "experience": "Ones: begin with the ones.", "reason": "so"}]'
    studio("review", typed=f"e {good}\na\nr mere noise\nq\n")


def make_trained(studio: Release) -> None:
    """Killed in its last step; the update of the one before lies behind the only checkpoint."""
    with studio.started("headless", "grpo-tiny", *SMALL_TRAINING) as run:
        run.until("StepStarted", step=4)


@contextmanager
def _reflector_without_sense() -> Iterator[str]:
    """An endpoint whose every reply is prose."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            choice = {"index": 0, "delta": {"content": "I found nothing."}, "finish_reason": "stop"}
            counts = {"prompt_tokens": 7, "completion_tokens": 3}
            said = [{"model": "served", "choices": [choice]}, {"choices": [], "usage": counts}]
            lines = [*(json.dumps(one) for one in said), "[DONE]"]
            body = "".join(f"data: {line}\n\n" for line in lines).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


MAKERS = {
    "held": make_held,
    "finished": make_finished,
    "rejections": make_rejections,
    "unparsed": make_unparsed,
    "trained": make_trained,
}


def record(tree: Path, name: str) -> dict[str, Any]:
    """What the release says of a workspace, and what becomes of one that goes on."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        before = Release(tree, put_back(name, Path(first)), sam=False)
        after = Release(tree, put_back(name, Path(second)), sam=False)
        looks = {
            look.name: facts.answered(ask(before), look, before.workspace) for look in LOOKS[name]
        }
        resumed = facts.resumed(ask(after), RESUMES[name], before.workspace, after.workspace)
    return {"looks": looks, "resumed": resumed}


def ask(studio: Release) -> facts.Ask:
    return lambda command: studio(*command.words, typed=command.typed, code=None)


def lines_of(value: Any, depth: int = 4) -> Iterator[str]:
    """JSON in lines that a difference can be read in: what lies deeper stands in one."""
    if not depth or not isinstance(value, dict | list) or not value:
        yield json.dumps(value, ensure_ascii=False, sort_keys=True)
        return
    pairs = sorted(value.items()) if isinstance(value, dict) else [("", v) for v in value]
    opens, closes = "{}" if isinstance(value, dict) else "[]"
    for number, (key, entry) in enumerate(pairs):
        name = f"{json.dumps(key)}: " if isinstance(value, dict) else ""
        yield f"{',' if number else opens}\n{name}"
        yield from lines_of(entry, depth - 1)
    yield f"\n{closes}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("release", type=Path, help="where that release is unpacked")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(MAKERS)}")
    parser.add_argument("--record-only", action="store_true", help="keep the workspaces there are")
    asked = parser.parse_args()
    tree = asked.release.absolute()
    for name in asked.names or MAKERS:
        if not asked.record_only:
            make(tree, name)
        told = record(tree, name)
        (DATA / f"{name}.json").write_text("".join(lines_of(told)) + "\n", "utf-8")
        refused = {line: look["code"] for line, look in told["looks"].items() if look["code"]}
        print(name, told["resumed"]["codes"], refused or "")


def make(tree: Path, name: str) -> None:
    shutil.rmtree(WORKSHOP, ignore_errors=True)
    WORKSHOP.mkdir()
    (WORKSHOP / "rules.yaml").write_text(RULES)
    MAKERS[name](Release(tree, WORKSHOP / "practice", sam=True))
    keep(name, WORKSHOP / "practice")
    shutil.rmtree(WORKSHOP)


if __name__ == "__main__":
    main()
