"""Planted keys appear in no file of the workspace and in no output.

Five kinds are planted: in headers, in the URL, in the run file, in the argument of a tool
that the model calls, and in the server's error, which quotes what it was sent. Each comes
in a known shape and, where the run was told its value, also without any shape; a shapeless
key in a reply that nobody announced cannot be told from a word.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import orjson
import pytest

from engines.policies.rehearsal.reply import read_request, write_reply
from tests.support.forked_studio import ForkedStudio
from tests.support.processes import STUDIO, running
from tests.support.processes import studio as process_studio
from tests.support.run_studio import Result, studio
from tests.support.span_collector import SpanCollector, collecting
from tests.support.threaded_server import Reply, serving, streamed

PLANTED = {
    "api key": "Kf-planted-words-only-api",
    "header, shaped": "sk-head-4f6G8h0J2k4L6m8N",
    "header, plain": "header words of mine only",
    "URL": "url-pass-words-only",
    "URL, as a header": b64encode(b"me:url-pass-words-only").decode(),
    "URL query": "query-words-only-here",
    "run file, usual name": "extra-body-words-only",
    "run file, unusual name": "sk-unus-7h9J1k3L5m7N9p1Q",
    "run file, from a variable": "variable-words-only",
    "environment, unused": "unused7Environment2words",
    "nested": "nested-words-of-mine",
    "in a list": "list-words-of-mine",
    "pass": "pass-words-of-mine",
    "beside a variable": "literal-words-of-mine",
    "URL query, beside a variable": "judge+query/words",
    "several lines, folded": "first line 0f mine4 second line 0f mine7",
    "one of several lines": "second line 0f mine7",
    "part of a path": "9f8e7d6c5b4a3f2e",
    "tool argument": "sk-tool-1a3B5c7D9e1F3g5H",
    "reply": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "header of the collector": "collector words of mine",
    "address of the collector": "collector-pass-words",
}
TOLD_BY = [name for name in PLANTED if name not in ("tool argument", "reply")]
TOLD = [PLANTED[name] for name in TOLD_BY]
NOT_SENT = (
    "URL",  # its user goes out as a header, which takes the place of the key
    "api key",
    "environment, unused",
    "several lines, folded",
    "one of several lines",
    "URL query, beside a variable",  # of the judge, whom nobody asks in these runs
    "part of a path",
    "header of the collector",  # for the collector alone, as the next
    "address of the collector",
)

RUN = """\
defaults: [/rehearsal, _self_]
exp_id: planted
policy:
  model: openai:rehearsal
  base_url: http://me:{url}@127.0.0.1:{port}/v1?token={query}
  api_key: ${{oc.env:MY_GATEWAY}}
  max_retries: 0
  headers:
    X-Shaped: {shaped}
    X-Plain: {plain}
    X-Beside: "Bearer {beside}-${{oc.env:MY_REGION}}"
  extra_body:
    metadata: {{access_token: {usual}, note: {unusual}, from: "${{oc.env:MY_TOKEN}}"}}
    auth: {{user: me, value: {nested}}}
    tokens: [{listed}]
    pass: {passed}
judge:
  model: openai:rehearsal
  base_url: "http://127.0.0.1:{port}/${{oc.env:MY_TENANT}}/v1?sig={sig}&region=${{oc.env:MY_REGION}}"
  api_key: none
practice: {{epochs: 1, batch_size: 4, group_size: 3}}
data: {{truncate: 4}}
evaluation: {{do_eval: true, limit: 2}}
"""


@dataclass
class Gossip:
    """A rehearsal server that says again whatever it was sent, and more."""

    fails: bool = False
    heard: set[str] = field(default_factory=set)
    port: int = 0

    def reply(self, request: BaseHTTPRequestHandler, body: bytes) -> Reply:
        asked = orjson.loads(body)
        told = [*request.headers.values(), request.path, body.decode()]
        self.heard.update(v for v in PLANTED.values() if any(v in text for text in told))
        gossip = " ".join(sorted({*self.heard, *TOLD}))
        if self.fails:
            error = {"message": f"Incorrect API key provided: {gossip}."}
            return 400, "application/json", orjson.dumps({"error": error})
        text = write_reply(read_request(asked)).text
        if "# Task" not in asked["messages"][-1]["content"]:
            text = f"I was sent {gossip} and {PLANTED['reply']}\n{text}"
        else:
            text = re.sub(r'("(?:text|experience|reason)": ")', rf"\g<1>{gossip} ", text)
        arguments = json.dumps({"q": PLANTED["tool argument"]})
        call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": arguments}}
        deltas = [{"content": text[at : at + 7]} for at in range(0, len(text), 7)]
        chunks = [*deltas, {"tool_calls": [call]}]
        return streamed(chunks)


@contextmanager
def gossiping(*, fails: bool = False) -> Iterator[Gossip]:
    gossip = Gossip(fails)
    with serving(gossip.reply) as port:
        gossip.port = port
        yield gossip


def collector_address(port: int) -> str:
    return f"http://me:{PLANTED['address of the collector']}@127.0.0.1:{port}"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_GATEWAY", PLANTED["api key"])
    monkeypatch.setenv("MY_TOKEN", PLANTED["run file, from a variable"])
    monkeypatch.setenv("LINES_SECRET", "first line 0f mine4\nsecond line 0f mine7\n")
    monkeypatch.setenv("MY_TENANT", PLANTED["part of a path"])
    monkeypatch.setenv("MY_REGION", "eu1")
    monkeypatch.setenv("OTHER_API_KEY", PLANTED["environment, unused"])
    header = PLANTED["header of the collector"].replace(" ", "%20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-key={header}")
    # Nobody listens there, unless a test starts a collector.
    monkeypatch.setenv("PHOENIX_ENDPOINT", collector_address(1))


def run_file(folder: Path, gossip: Gossip) -> str:
    path = folder / "planted.yaml"
    text = RUN.format(
        url=PLANTED["URL"],
        port=gossip.port,
        query=PLANTED["URL query"],
        shaped=PLANTED["header, shaped"],
        plain=PLANTED["header, plain"],
        usual=PLANTED["run file, usual name"],
        unusual=PLANTED["run file, unusual name"],
        beside=PLANTED["beside a variable"],
        nested=PLANTED["nested"],
        listed=PLANTED["in a list"],
        passed=PLANTED["pass"],
        sig=PLANTED["URL query, beside a variable"],
    )
    path.write_text(text)
    return str(path)


@contextmanager
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanCollector]:
    """Where the environment says that spans go."""
    with collecting() as collector:
        monkeypatch.setenv("PHOENIX_ENDPOINT", collector_address(collector.port))
        yield collector


def sent(collector: SpanCollector) -> list[str]:
    """What the collector was sent, and that its own keys came as headers alone."""
    assert {one["x-key"] for one in collector.headers} == {PLANTED["header of the collector"]}
    basic = b64encode(f"me:{PLANTED['address of the collector']}".encode()).decode()
    assert {one["Authorization"] for one in collector.headers} == {f"Basic {basic}"}
    assert len(collector.spans) > 20
    return [body.decode("utf-8", "replace") for body in collector.bodies]


def leaks(workspace: Path, outputs: Sequence[str]) -> list[str]:
    found = [
        f"{name} in {path.relative_to(workspace)}"
        for path in workspace.rglob("*")
        if path.is_file()
        for name, value in PLANTED.items()
        if value.encode() in path.read_bytes() or value.encode() in os.fsencode(path)
    ]
    found += [
        f"{name} in output {number}: …{text[max(0, text.index(value) - 60) :][:120]}…"
        for number, text in enumerate(outputs)
        for name, value in PLANTED.items()
        if value in text
    ]
    return found


def everything_about(workspace: Path, run: str) -> list[Result]:
    """All commands that show what a run left."""
    commands = [
        ("runs", "list"),
        ("runs", "show", run),
        ("runs", "show", run, "--step", "1", "--prompts"),
        ("runs", "show", run, "--rollout", "s1p0r0"),
        ("ctl", "status", run),
        ("library", "list"),
        ("library", "show", run),
        ("library", "history", run),
        ("diff", f"{run}@0", f"{run}@1"),
        ("doctor",),
    ]
    found = [studio(*words, workspace=workspace) for words in commands]
    found += [studio(*words, "--json", workspace=workspace) for words in commands[:-1]]
    found.append(studio("diff", f"{run}@0", f"{run}@1", "--format", "html", workspace=workspace))
    return found


@pytest.mark.usefixtures("told")
def test_no_planted_key_appears_after_runs_tries_evaluations_and_edits(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is spelled out in a run file is known to the run's own process alone.
    known = ("run file, from a variable", "environment, unused", "api key")
    shaped = ("header, shaped", "run file, unusual name", "tool argument", "reply")
    keys = " ".join(PLANTED[name] for name in (*known, *shaped))
    said: list[Result] = []
    with gossiping() as gossip, traced(monkeypatch) as collector:
        file = run_file(workspace.parent, gossip)
        said += [
            studio("try", file, workspace=workspace),
            studio("try", file, "--json", workspace=workspace),
            studio("headless", file, workspace=workspace),
            studio("headless", file, "exp_id=asking", "--review", "auto", "--json",
                   workspace=workspace),
            studio("eval", file, "--library", "planted", "--baseline", "none",
                   workspace=workspace),
            studio("eval", file, "--library", "none", "--json", workspace=workspace),
            studio("library", "edit", "planted", "--add", f"Never say {keys}.", "--reason", keys,
                   workspace=workspace),
        ]  # fmt: skip
        assert {r.code for r in said} <= {0, 4}, [r.stderr for r in said]
        assert gossip.heard >= {PLANTED[name] for name in TOLD_BY if name not in NOT_SENT}
        said += everything_about(workspace, "planted")
        said.append(studio("runs", "trace", "planted", workspace=workspace))
        assert said[-1].code == 0, said[-1].stderr
        words = ("runs", "export", "planted", "--to", str(workspace / "trajectories"))
        said.append(studio(*words, workspace=workspace))
        spans = sent(collector)
    assert len(list(workspace.rglob("*.jsonl"))) > 5
    texts = [text for result in said for text in (result.stdout, result.stderr)]
    assert leaks(workspace, [*texts, *spans]) == []
    assert any("***" in text for text in texts) and any("***" in text for text in spans)


@pytest.mark.usefixtures("told")
def test_no_planted_key_appears_where_the_server_quotes_it_in_its_error(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Result] = []
    with gossiping(fails=True) as gossip, traced(monkeypatch) as collector:
        file = run_file(workspace.parent, gossip)
        for words in (("try", file), ("headless", file), ("eval", file, "--library", "none")):
            said += [studio(*words, workspace=workspace)]
            said += [studio(*words, "--json", workspace=workspace)]
    assert all(result.code in (2, 4) for result in said), said
    assert any("Incorrect API key" in result.stderr for result in said)
    spans = [body.decode("utf-8", "replace") for body in collector.bodies]
    assert leaks(workspace, [*spans, *(t for r in said for t in (r.stdout, r.stderr))]) == []


@pytest.mark.usefixtures("told")
def test_no_planted_key_appears_to_a_watcher_or_after_an_edit_that_holds_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = f"{PLANTED['api key']} {PLANTED['tool argument']} {PLANTED['URL query']}"
    with gossiping() as gossip:
        file = run_file(workspace.parent, gossip)
        with running(workspace, file, "--review", "wait", "evaluation.do_eval=false") as process:
            process.until("StageEntered", stage="review")
            watching = [
                ForkedStudio(
                    [*STUDIO, "--workspace", str(workspace), "ctl", "watch", *more],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                for more in ((), ("--json",))
            ]  # fmt: skip
            for child in watching:
                assert child.stdout is not None
                child.stdout.readline()  # it has been told where the run stands
            monkeypatch.setenv("EDITOR", f"sed -i s/.*/edited:{keys.replace(' ', '_')}/")
            typed = "e\n" + "a\n" * 8
            reviewed = process_studio(workspace, "review", typed=typed)
            code = process.end()
            seen = [child.communicate(timeout=30)[0] for child in watching]
        events = json.dumps(process.events)
    assert code in (0, 3, 4)
    assert "edited:" in reviewed.stdout + events
    assert leaks(workspace, [reviewed.stdout, reviewed.stderr, events, *seen]) == []


def test_a_traceback_of_a_bug_holds_no_key() -> None:
    code = (
        "import os, studio.cli as cli\n"
        "def bug(words): raise RuntimeError('with ' + os.environ['OTHER_API_KEY'] + '\\x1b[2J')\n"
        "cli.move_workspace_first = bug\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OTHER_API_KEY": "unused7Environment2words"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "RuntimeError: with ***\\u001b[2J" in done.stderr
    assert "unused7Environment2words" not in done.stderr


@pytest.mark.usefixtures("told")
def test_all_that_is_written_is_for_its_owner_alone_whatever_the_umask_says(
    workspace: Path,
) -> None:
    before = os.umask(0)
    try:
        few = ("data.truncate=4", "evaluation.limit=2")
        with running(workspace, "rehearsal", "--review", "wait", *few) as process:
            process.until("StageEntered", stage="review")
            sockets = list(workspace.rglob("control.sock"))
            assert [stat.S_IMODE(path.stat().st_mode) for path in sockets] == [0o600]
            assert modes(workspace) == set()
        assert studio("headless", "rehearsal", *few, "practice.epochs=1",
                      "--review", "auto", workspace=workspace).code == 0  # fmt: skip
        studio("eval", "rehearsal", few[1], "--library", "rehearsal", workspace=workspace)
        studio("data", "add", "arithmetic", "--name", "mine", workspace=workspace)
        studio("library", "edit", "rehearsal", "--add", "By hand.", workspace=workspace)
        studio("doctor", workspace=workspace)
    finally:
        os.umask(before)
    assert modes(workspace) == set()
    names = {path.name for path in workspace.rglob("*")}
    assert {"journal.jsonl", "run.yaml", "agent.yaml", "scores.jsonl", "catalogue.json"} <= names


def modes(workspace: Path) -> set[str]:
    """What others may read or write."""
    found = set()
    for path in (workspace, *workspace.rglob("*")):
        with suppress(FileNotFoundError):  # a living run makes and takes away files
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & 0o077 and not path.is_symlink():
                found.add(f"{path.relative_to(workspace)} {mode:o}")
    return found


def test_a_run_says_how_many_answers_hold_a_secret_and_judges_no_try_at_them(
    workspace: Path,
) -> None:
    rows = [("Say the word.", "seventeen"), ("1 + 1?", "2"), ("2 + 3?", "5")]
    data = workspace.parent / "rows.jsonl"
    data.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))
    done = studio(
        "headless", "rehearsal", "policy.api_key=seventeen", f"data.practice={data}",
        "practice.epochs=1", "evaluation.do_eval=false", "data.truncate=3",
        workspace=workspace,
    )  # fmt: skip
    assert done.code == 4, done.stderr
    assert "note: policy.api_key is a common word: it is masked" in done.stderr
    assert "note: 1 expected answer with what looks like" in done.stderr
    journal = (workspace / "runs/rehearsal/journal.jsonl").read_text()
    assert "masked: the expected answer holds what looks like a secret" in journal
    assert "seventeen" not in journal
