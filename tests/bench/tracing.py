"""Spans of a run in a real Phoenix, and what a collector that is down costs.

    python -m venv /tmp/phoenix && /tmp/phoenix/bin/pip install arize-phoenix==20.26.1
    python -m tests.bench.tracing --phoenix /tmp/phoenix/bin/python
    python -m tests.bench.tracing --repeats 5

With `--phoenix` Phoenix is started on loopback; a run with tools and one without send their spans
there, and what its API returns is compared, span by span, with what journal and records say.
Seconds, of the clock and of the processor, are the least of alternating repeats: of a scripted run,
which is nothing but CPU, and of one whose replies stream at a model's pace.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

from engines.record.run_dir import Workspace
from studio.config.loading import load_run
from studio.tracing.run_spans import run_spans
from tests.support.span_collector import collecting

RUNS = {
    "rehearsal": ("rehearsal", "practice.epochs=1"),
    "tools": ("math", "practice.epochs=1", "practice.batch_size=4", "data.truncate=8"),
    "team": ("research", "practice.epochs=1", "practice.batch_size=2", "data.truncate=2"),
}
TIMED = {
    "scripted": ("rehearsal", "practice.epochs=2", "evaluation.do_eval=false"),
    "streamed": (
        *("rehearsal", "practice.epochs=1", "evaluation.do_eval=false"),
        *("data.truncate=24", "policy.pace_tokens_per_s=40", "practice.concurrency=32"),
    ),
}


def run_studio(folder: Path, *words: str, url: str = "", project: str = "") -> tuple[float, float]:
    """Practise in a process of its own; returns its seconds, of the clock and of the processor."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PHOENIX_", "OTEL_"))}
    environ |= {"PHOENIX_ENDPOINT": url, "PHOENIX_PROJECT_NAME": project} if url else {}
    command = [sys.executable, "-m", "studio", "--workspace", str(folder), "headless", *words]
    began = time.perf_counter()
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, env=environ, stdout=quiet, stderr=quiet)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode in (0, 4), command
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def phoenix(python: str, folder: Path):  # type: ignore[no-untyped-def]
    """A server of its own; yields its address."""
    port = free_port()
    environ = {
        **os.environ,
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    command = [python, "-m", "phoenix.server.main", "serve"]
    server = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urlopen(f"{url}/v1/projects", timeout=2).read()
                break
            except (URLError, OSError):
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait()


def received(url: str, project: str, wanted: int) -> list[dict[str, Any]]:
    """Every span of a project, once Phoenix has stored as many or a minute has passed."""
    found: list[dict[str, Any]] = []
    for _ in range(60):
        found, cursor = [], ""
        while True:
            place = f"{url}/v1/projects/{quote(project)}/spans?limit=1000&cursor={quote(cursor)}"
            try:
                page = json.loads(urlopen(place if cursor else place.partition("&")[0]).read())
            except HTTPError as error:
                if error.code != 404:
                    raise
                break  # it has not stored the first one yet
            found += page["data"]
            if not (cursor := page.get("next_cursor") or ""):
                break
        if len(found) >= wanted:
            break
        time.sleep(1)
    return found


def compare(url: str, folder: Path, name: str) -> dict[str, Any]:
    """A run's spans as Phoenix has them against those that its files give."""
    run_studio(folder, *RUNS[name], url=url, project=name)
    run = Workspace(folder).runs()[-1]
    loaded = load_run(str(run.run_file), [], folder, {}, keyless=True)
    expected = {f"{span.id:016x}": span for span in run_spans(loaded, run)}
    found = received(url, name, len(expected))
    by_id = {span["context"]["span_id"]: span for span in found}
    wrong = [
        span["name"]
        for key, span in by_id.items()
        if key not in expected
        or span["name"] != expected[key].name
        or span["context"]["trace_id"] != f"{expected[key].trace:032x}"
        or span["parent_id"] != (f"{p:016x}" if (p := expected[key].parent) is not None else None)
        or span["span_kind"] != expected[key].attributes["openinference.span.kind"]
    ]
    tree = Counter(
        f"{by_id[up]['name'].split()[0] if (up := span['parent_id']) else '-'}"
        f" > {span['name'].split()[0]}"
        for span in found
    )
    return {
        "expected": len(expected),
        "received": len(found),
        "missing": len(expected.keys() - by_id.keys()),
        "wrong": wrong,
        "tree": dict(sorted(tree.items())),
    }


def timed(
    folder: Path, words: tuple[str, ...], repeats: int, states: Sequence[str]
) -> dict[str, Any]:
    """Least seconds without tracing, and with a collector in several states."""
    times: dict[str, list[tuple[float, float]]] = {}
    with collecting() as up, collecting(held=True) as silent, collecting(500) as broken:
        places = {
            "none": "",
            "down": f"http://127.0.0.1:{free_port()}",
            "silent": silent.url,
            "errors": broken.url,
            "up": up.url,
        }
        for number in range(repeats):
            for name in ("none", *states):
                place = folder / f"{name}-{number}"
                times.setdefault(name, []).append(run_studio(place, *words, url=places[name]))
    found: dict[str, Any] = {}
    for at, what in enumerate(("clock", "processor")):
        least = {name: min(took[at] for took in of) for name, of in times.items()}
        more = {k: round(100 * (v / least["none"] - 1), 2) for k, v in least.items()}
        found[what] = {"seconds": {k: round(v, 3) for k, v in least.items()}, "percent_more": more}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phoenix", help="the Python that has arize-phoenix")
    parser.add_argument("--repeats", type=int, default=0, help="of each timed run")
    parser.add_argument("--states", nargs="*", default=["down", "silent", "errors", "up"])
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        folder = Path(place)
        if given.phoenix:
            with phoenix(given.phoenix, folder / "phoenix") as url:
                found["phoenix"] = {n: compare(url, folder / "practice" / n, n) for n in RUNS}
        for name, words in TIMED.items() if given.repeats else ():
            found[name] = timed(folder / name, words, given.repeats, given.states)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
