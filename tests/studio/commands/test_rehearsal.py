"""`studio rehearsal serve` as a real process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.support.forked_studio import ForkedStudio
from tests.support.processes import SMALL, STUDIO
from tests.support.run_studio import studio


def a_server(*arguments: str) -> subprocess.Popen[str]:
    return ForkedStudio(
        [*STUDIO, "rehearsal", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_line(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_answers_and_ends_as_interrupted(number: signal.Signals) -> None:
    with a_server() as server:
        try:
            base_url = first_line(server)
            with urllib.request.urlopen(f"{base_url}/models", timeout=20) as answer:
                assert "rehearsal" in answer.read().decode()
        finally:
            server.send_signal(number)
            rest, told = server.communicate(timeout=20)
    assert server.returncode == 130
    assert rest == ""
    assert "rehearsal: replies are scripted" in told
    assert "api_key" not in told  # it needs none, and a key typed there would be stored
    assert "Traceback" not in told


def test_a_try_against_the_server_gives_the_reply_of_the_one_in_process(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with a_server("--json") as server:
        try:
            said = json.loads(first_line(server))
            over_http = studio(
                "try",
                "rehearsal",
                *SMALL,
                "policy=openai:rehearsal",
                f"policy.base_url={said['base_url']}",
                "--json",
                workspace=workspace,
            )
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=20)
    assert said["rehearsal"] is True
    inside = studio("try", "rehearsal", *SMALL, "--json", workspace=workspace)
    assert over_http.code == inside.code == 0, over_http.stderr
    assert json.loads(over_http.stdout)["reply"] == json.loads(inside.stdout)["reply"]
    assert json.loads(over_http.stdout)["rehearsal"] is True


def test_a_taken_port_is_refused_with_a_way_out(workspace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = studio("rehearsal", "serve", "--port", port, workspace=workspace)
    assert (refused.code, refused.stdout) == (2, "")
    assert "another port" in refused.stderr
