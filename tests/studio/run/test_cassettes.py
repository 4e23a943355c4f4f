"""Cassettes: what is recorded, and that it plays the same run without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.record import lines
from engines.record.run_dir import RunDir
from tests.support.fake_endpoint import an_endpoint, hangs, refuses, says
from tests.support.harness import comparable
from tests.support.run_studio import Result, studio

TOOLS = (
    *("data.truncate=4", "practice.batch_size=2", "practice.group_size=3", "practice.epochs=1"),
    *("evaluation.do_eval=true", "evaluation.k=1"),
)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every socket but those of the run's own control."""

    def connect(self: socket.socket, address: Any, *rest: Any) -> None:
        assert self.family == socket.AF_UNIX, f"{address} was connected to"

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"a process was started: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr("engines.tools.sandbox.sandbox.Sandbox.start", refuse)
    monkeypatch.setattr("engines.tools.sandbox.sandbox.Sandbox.session", refuse)
    monkeypatch.setattr("engines.policies.chat.client.OpenAICompat.__init__", refuse)


def records_of(run: RunDir) -> list[str]:
    """The bodies of a run's records but for times, in no order."""
    found = []
    for path in run.records.glob("*.jsonl"):
        for line in lines.read(path, chained=False).lines:
            data = orjson.loads(line.body)
            del data["at"], data["elapsed_s"]
            found.append(json.dumps({"file": path.name, **data}, sort_keys=True))
    return sorted(found)


def run_of(workspace: Path, name: str) -> RunDir:
    return RunDir(workspace / "runs" / name)


def write_run_file(folder: Path, base_url: str, *more: str) -> Path:
    path = folder / "own.yaml"
    path.write_text(
        "exp_id: own\nseed: 1\nagent: {kind: single_turn}\n"
        f"policy: {{model: openai:m, base_url: '{base_url}', api_key: '${{oc.env:OWN_KEY}}', "
        "max_retries: 0, price_in_usd_per_mtok: 1, price_out_usd_per_mtok: 2}\n"
        "data: {practice: arithmetic, truncate: 2}\n"
        "practice: {batch_size: 2, group_size: 2, epochs: 1}\n"
        "evaluation: {do_eval: false}\n" + "".join(f"{line}\n" for line in more)
    )
    return path


@pytest.mark.nightly
@pytest.mark.parametrize("preset", ["math", "web", "research"])
def test_a_cassette_of_a_run_with_tools_repeats_it_byte_for_byte_but_for_times(
    preset: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tape, first, again = tmp_path / "tape", tmp_path / "first", tmp_path / "again"
    done = studio("headless", preset, *TOOLS, "--record", str(tape), workspace=first)
    request.getfixturevalue("no_network")
    played = studio("headless", preset, *TOOLS, "--cassette", str(tape), workspace=again)
    assert (done.code, played.code) == (0, 0), played.stderr
    assert f"cassette: replies are played from {tape}" in played.stderr
    assert "replies were played from the cassette tape" in played.stdout
    one, other = run_of(first, preset), run_of(again, preset)
    assert comparable(one) == comparable(other)
    assert records_of(one) == records_of(other) != []
    assert other.state().cassette == "tape" and one.state().cassette == ""
    for name in ("libraries", "evaluations"):
        files = [p.relative_to(first) for p in (first / name).rglob("v0*.yaml")]
        assert all((first / p).read_bytes() == (again / p).read_bytes() for p in files)


KEY = "sk-abcDEF0123456789abcDEF0123456789"
LESSON = '{"experiences": []}'


def test_failed_and_late_calls_are_played_as_they_ended_and_no_secret_is_on_the_cassette(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("OWN_KEY", KEY)
    tape, first, again = tmp_path / "tape", tmp_path / "first", tmp_path / "again"
    script = (
        says("pong"),
        refuses(400, f"bad {KEY}"),
        hangs(),
        says(f"{KEY} #### 4"),
        says("#### 1"),
    )
    with an_endpoint(*script) as endpoint:
        file = str(write_run_file(tmp_path, endpoint.base_url, f"# {KEY}"))
        given = f"agent.instructions=Your key is {KEY}.", "practice.task_timeout_s=2"
        done = studio("headless", file, *given, "--record", str(tape), workspace=first)
    assert done.code == 4 and KEY.encode() not in tape.read_bytes()
    request.getfixturevalue("no_network")
    monkeypatch.delenv("OWN_KEY")
    played = studio("headless", file, *given, "--cassette", str(tape), workspace=again)
    assert played.code == 4, played.stderr
    one, other = run_of(first, "own"), run_of(again, "own")
    free = [json.loads(line) for line in records_of(other)]
    assert {record["reply"]["usage"]["cost_usd"] for record in free} <= {0.0, None}
    assert {loss.reason for loss in one.state().losses} == {
        loss.reason for loss in other.state().losses
    }
    assert any("timeout: no answer within 2 s" in loss.reason for loss in other.state().losses)

    def without_cost(texts: list[str]) -> list[str]:
        # Remarks are about endpoints: where a cassette is played, none was asked.
        left_out = r"'?\"?cost_usd'?\"?: [^,}]+|'remarks': \[.*?\]"
        return [re.sub(left_out, "", text) for text in texts]

    assert without_cost(comparable(one)) == without_cost(comparable(other))
    assert without_cost(records_of(one)) == without_cost(records_of(other))


SMALL = ("data.truncate=2", "practice.batch_size=2", "practice.group_size=2", "practice.epochs=1")


@pytest.fixture(scope="module")
def taped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cassette of a small rehearsal."""
    folder = tmp_path_factory.mktemp("taped")
    words = "headless", "rehearsal", *SMALL, "evaluation.do_eval=false"
    done = studio(*words, "--record", str(folder / "tape"), workspace=folder / "first")
    assert done.code == 0
    return folder / "tape"


def play(tape: Path, folder: Path, *more: str) -> Result:
    words = "headless", "rehearsal", *SMALL, "evaluation.do_eval=false", *more
    return studio(*words, "--cassette", str(tape), workspace=folder / "again")


def test_a_changed_prompt_stops_the_run_with_the_first_difference(
    taped: Path, tmp_path: Path
) -> None:
    done = play(taped, tmp_path, "agent.instructions=Think in French.")
    assert done.code == 2
    assert re.search(r"asked at step 1, problem \d, try \d, turn 1 \(rollout\)", done.stderr)
    assert "--- recorded\n+++ asked\n@@" in done.stderr and "+Think in French." in done.stderr
    assert not list((tmp_path / "again").glob("runs/*/control.sock"))
    assert done.stderr.count("@@ ") >= 1 and "--record FILE" in done.stderr
    other = play(taped, tmp_path, "--restart-step=0", "practice.temperature=0.1")
    assert other.code == 2 and '+  "temperature": 0.1' in other.stderr


def test_more_than_was_recorded_is_told_as_such(taped: Path, tmp_path: Path) -> None:
    done = play(taped, tmp_path, "practice.group_size=3")
    assert done.code == 2 and "try 3, turn 1 (rollout): nothing was recorded there." in done.stderr


def test_a_recording_that_was_cut_off_goes_on_with_its_run(taped: Path, tmp_path: Path) -> None:
    """Cut at any byte: what the run had by then and what it asks anew are all of it."""
    whole, tape = taped.read_bytes(), tmp_path / "tape"
    words = "headless", "rehearsal", *SMALL, "evaluation.do_eval=false", "--record", str(tape)
    first = tmp_path / "first"
    shutil.copytree(taped.parent / "first", first)
    run = run_of(first, "rehearsal")
    journal, records = run.journal.read_bytes(), run.records / "step-0001.jsonl"
    kept, library = records.read_bytes(), first / "libraries/rehearsal/journal.jsonl"
    for share in (0.2, 0.5, 0.8):
        tape.write_bytes(whole[: int(len(whole) * share)])
        # Less of the run than of the cassette: a reply is there before its record is.
        records.write_bytes(kept[: int(len(kept) * (share - 0.15))])
        run.journal.write_bytes(b"".join(journal.splitlines(keepends=True)[:2]))
        library.write_bytes(library.read_bytes().splitlines(keepends=True)[0])
        done = studio(*words, workspace=first)
        assert done.code == 0, done.stderr
        again = play(tape, tmp_path, "--name", f"at-{share}")
        assert again.code == 0, again.stderr
        played = run_of(tmp_path / "again", f"at-{share}")
        assert records_of(played) == records_of(run)


def test_a_file_that_is_no_new_one_is_not_recorded_over(taped: Path, tmp_path: Path) -> None:
    before = taped.read_bytes()
    refused = studio("headless", "rehearsal", *SMALL, "--record", str(taped), workspace=tmp_path)
    assert refused.code == 2 and "holds a recording already, of run rehearsal" in refused.stderr
    other = tmp_path / "other"
    other.write_text("mine\n")
    for option in ("--record", "--cassette"):
        done = studio("headless", "rehearsal", *SMALL, option, str(other), workspace=tmp_path)
        assert done.code == 2 and "is no cassette" in done.stderr
        pipe = tmp_path / "pipe"  # nobody ever writes to it
        pipe.exists() or os.mkfifo(pipe)
        done = studio("headless", "rehearsal", *SMALL, option, str(pipe), workspace=tmp_path)
        assert done.code == 2 and "is no cassette" in done.stderr
    edited = tmp_path / "edited"
    edited.write_bytes(before.replace(b'"model"', b'"modal"', 1))
    done = studio("headless", "rehearsal", *SMALL, "--cassette", str(edited), workspace=tmp_path)
    assert done.code == 2 and "fails its checksum" in done.stderr and "doctor" not in done.stderr
    missing = str(tmp_path / "none")
    done = studio("headless", "rehearsal", *SMALL, "--cassette", missing, workspace=tmp_path)
    assert done.code == 2 and "there is no such file" in done.stderr
    both = "--record", missing, "--cassette", str(taped)
    done = studio("headless", "rehearsal", *SMALL, *both, workspace=tmp_path)
    assert done.code == 2 and "Leave one of the two out" in done.stderr
    assert (taped.read_bytes(), other.read_text()) == (before, "mine\n")
    assert not Path(missing).exists() and not (tmp_path / "runs").exists()


@pytest.mark.nightly
def test_a_recording_asks_what_its_workspace_knows_already_and_plays_anywhere(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tape, words = tmp_path / "tape", ("headless", "rehearsal", *SMALL, "--name")
    known, first, again = (tmp_path / name for name in ("known", "first", "again"))
    assert studio(*words, "known", workspace=first).code == 0
    assert studio(*words, "mine", "--record", str(tape), workspace=first).code == 0
    assert studio(*words, "later", workspace=first).code == 0
    assert studio(*words, "mine", workspace=known).code == 0
    request.getfixturevalue("no_network")
    played = studio(*words, "mine", "--cassette", str(tape), workspace=again)
    assert played.code == 0, played.stderr
    whole = comparable(run_of(first, "mine"))
    assert whole == comparable(run_of(again, "mine")) == comparable(run_of(known, "mine"))
    calls = [run_of(first, name).state().total_usage.calls for name in ("known", "mine", "later")]
    assert calls[0] == calls[1] > calls[2]  # what a recording found out is known as usual


def test_evaluations_and_tries_are_recorded_and_played_too(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def asked(*words: str, there: str) -> tuple[Result, Result]:
        tape = str(tmp_path / f"{words[0]}.tape")
        return tuple(
            studio(*words, "--json", option, tape, workspace=tmp_path / f"{words[0]}{option}")
            for option in there.split()
        )  # type: ignore[return-value]

    words = "eval", "rehearsal", "--library", "none", "evaluation.data=[planner-heldout]"
    (done,) = asked(*words, there="--record")
    (tried,) = asked("try", "rehearsal", there="--record")
    request.getfixturevalue("no_network")
    (again,) = asked(*words, there="--cassette")
    (retried,) = asked("try", "rehearsal", there="--cassette")
    one, other = json.loads(done.stdout), json.loads(again.stdout)
    assert (one.pop("cassette"), other.pop("cassette")) == (False, True)
    assert one == other and done.code == again.code
    first, second = json.loads(tried.stdout), json.loads(retried.stdout)
    assert (first.pop("cassette"), second.pop("cassette")) == (False, True)
    assert first.pop("elapsed_s") >= 0 <= second.pop("elapsed_s") and first == second


def test_practice_with_weights_is_played_to_the_same_weights(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tape = str(tmp_path / "tape")
    words = "train", "grpo-tiny", *SMALL, "practice.group_size=4", "evaluation.do_eval=false"
    assert studio(*words, "--record", tape, workspace=tmp_path / "first").code == 0
    request.getfixturevalue("no_network")
    played = studio(*words, "--cassette", tape, workspace=tmp_path / "again")
    assert played.code == 0, played.stderr
    runs = [run_of(tmp_path / name, "grpo-tiny") for name in ("first", "again")]
    one, other = (
        [line for line in comparable(run) if "'CheckpointSaved'" not in line] for run in runs
    )
    assert one == other and records_of(runs[0]) == records_of(runs[1])
    digests = [[saved.digest for saved in run.state().checkpoints] for run in runs]
    assert digests[0] == digests[1] != []
    refused = studio(*words, "--stage", "all", "--record", tape, workspace=tmp_path)
    assert refused.code == 2 and "Carry out one stage at a time" in refused.stderr


def test_the_screen_hands_the_file_to_the_process_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("studio.commands.run.check_terminal", lambda command: None)
    monkeypatch.setattr("studio.commands.run.show", lambda folder, starting: 0)
    monkeypatch.setattr("studio.run.detached.start", lambda words, folder: asked.append(words))
    for option in ("--record", "--cassette"):
        studio("run", "rehearsal", option, "tape", workspace=tmp_path / "practice")
    assert [words[0] for words in asked] == ["--record=tape", "--cassette=tape"]


def test_tries_on_a_cluster_are_neither_recorded_nor_played(taped: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = play(taped, tmp_path, "dispatch=ray")
    assert done.code == 2 and "Set dispatch=local" in done.stderr
