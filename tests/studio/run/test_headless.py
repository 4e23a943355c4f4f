"""`studio headless`: exit codes, what each option does, and what is never written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.record.run_dir import Workspace
from tests.support.fake_endpoint import an_endpoint, refuses, says
from tests.support.forked_studio import ForkedStudio
from tests.support.processes import SMALL, STUDIO
from tests.support.run_studio import Result, studio

TINY = (*SMALL, "data.truncate=4")
"""One step of 4 problems in groups of 3."""
KEY = "sk-test-51c9e0aa7d"


def headless(workspace: Path, *arguments: str) -> Result:
    return studio("headless", *arguments, workspace=workspace)


def events(result: Result) -> list[dict[str, Any]]:
    """Every line of stdout, each of which must be JSON."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def runs(workspace: Path) -> list[str]:
    return [run.run for run in Workspace(workspace).runs()]


def asking(endpoint: str, role: str = "policy") -> tuple[str, ...]:
    """Overrides that let a role be played by an endpoint; lessons stay scripted."""
    return (
        f"{role}.model=openai:m",
        f"{role}.base_url={endpoint}",
        f"{role}.api_key=none",
        f"{role}.max_retries=0",
        "reflector=rehearsal",
    )


@pytest.fixture
def nobody() -> str:
    """The base URL of a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def test_the_end_is_printed_on_stdout_and_the_narration_on_stderr(workspace: Path) -> None:
    done = headless(workspace, "rehearsal", *TINY)
    assert done.code == 0
    assert "run rehearsal: finished after step 1 of 1" in done.stdout
    assert "(n=12)" in done.stdout  # 4 problems in groups of 3
    assert "step 1 of 1, epoch 1 of 1" in done.stderr
    assert "step 1 of 1, epoch" not in done.stdout
    assert "rehearsal" in done.stdout.replace("run rehearsal", "")
    assert "rehearsal: replies are scripted" in done.stderr
    told = "review: auto (every operation that fits is approved by itself, but for those flagged"
    assert f"{told} leak, overgeneral, " in done.stderr


def test_json_prints_nothing_but_events_and_ends_in_the_summary(workspace: Path) -> None:
    done = headless(workspace, "rehearsal", *TINY, "--json")
    kinds = [event["kind"] for event in events(done)]
    assert kinds.count("RolloutFinished") == 12
    assert kinds.index("LessonProposed") < kinds.index("LessonCommitted")
    assert kinds[-2:] == ["RunEnded", "Summary"]
    assert "TextStreamed" not in kinds
    summary = events(done)[-1]
    assert summary["rehearsal"] is True
    head = Workspace(workspace).library("rehearsal").head()
    assert summary["library"]["experiences"] == [
        {"id": e.id, "text": e.text} for e in head.experiences
    ]


def test_a_finished_run_says_so_and_does_nothing(practised: Path) -> None:
    journal = practised / "runs/rehearsal/journal.jsonl"
    before = journal.read_bytes()
    again = headless(practised, "rehearsal", *SMALL)
    assert again.code == 0
    assert "run rehearsal is finished" in again.stderr
    assert "practice.epochs" in again.stderr and "--restart-step 0" in again.stderr
    assert "finished after step 2 of 2" in again.stdout
    assert journal.read_bytes() == before
    assert [e["kind"] for e in events(headless(practised, "rehearsal", *SMALL, "--json"))] == [
        "Summary"
    ]


def test_epochs_may_grow_and_the_finished_run_goes_on(practised: Path) -> None:
    more = headless(practised, "rehearsal", *SMALL, "practice.epochs=2")
    assert more.code == 0, more.stderr
    assert "resumed after step 2" in more.stderr
    assert "finished after step 4 of 4" in more.stdout
    assert runs(practised) == ["rehearsal"]


def test_fewer_epochs_than_are_finished_are_refused(practised: Path) -> None:
    assert headless(practised, "rehearsal", *SMALL, "practice.epochs=2").code == 0
    fewer = headless(practised, "rehearsal", *SMALL)
    assert fewer.code == 2
    assert "practice.epochs=1" in fewer.stderr and "finished 4 steps" in fewer.stderr


def test_a_name_makes_a_run_and_a_library_of_that_name(practised: Path) -> None:
    done = headless(practised, "rehearsal", *TINY, "--name", "other")
    assert done.code == 0, done.stderr
    assert runs(practised) == ["rehearsal", "other"]
    assert Workspace(practised).library("other").head().experiences


@pytest.mark.parametrize("name", ["../out", "a/b", "", " ", "-x", ".hidden"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, workspace: Path) -> None:
    refused = headless(workspace, "rehearsal", *TINY, f"--name={name}")
    assert (refused.code, refused.stdout) == (2, "")
    assert not workspace.exists()


def test_an_override_is_obeyed(workspace: Path) -> None:
    done = headless(workspace, "rehearsal", *TINY, "practice.group_size=2", "exp_id=two", "--json")
    kinds = [event["kind"] for event in events(done)]
    assert kinds.count("RolloutFinished") == 8  # 4 problems in groups of 2
    assert runs(workspace) == ["two"]


def test_restart_step_null_resumes_and_0_starts_a_new_run(practised: Path) -> None:
    resumed = headless(practised, "rehearsal", *SMALL, "--restart-step", "null")
    assert "is finished" in resumed.stderr
    afresh = headless(practised, "rehearsal", *SMALL, "--restart-step", "0")
    assert afresh.code == 0, afresh.stderr
    assert "run rehearsal-2: new" in afresh.stderr
    assert "library rehearsal-2  v0 -> v2" in afresh.stdout
    assert runs(practised) == ["rehearsal", "rehearsal-2"]


def test_restart_step_n_adopts_the_first_n_steps_and_leaves_the_old_run_whole(
    practised: Path,
) -> None:
    before = (practised / "runs/rehearsal/journal.jsonl").read_bytes()
    forked = headless(practised, "rehearsal", *SMALL, "--restart-step", "1", "--json")
    assert forked.code == 0, forked.stderr
    assert [e["step"] for e in events(forked) if e["kind"] == "StepStarted"] == [2]
    assert "with the first 1 steps of rehearsal" in forked.stderr
    assert (practised / "runs/rehearsal/journal.jsonl").read_bytes() == before
    at_one = Workspace(practised).library("rehearsal").at(1)
    assert Workspace(practised).library("rehearsal-2").at(0).experiences == at_one.experiences


@pytest.mark.parametrize("step", ["garbage", "1.5", "-1", "", "2", "99"])
def test_a_restart_step_that_cannot_be_is_refused(step: str, practised: Path) -> None:
    refused = headless(practised, "rehearsal", *SMALL, f"--restart-step={step}")
    assert (refused.code, refused.stdout) == (2, "")
    assert f"restart_step={step}:" in refused.stderr or f"--restart-step {step}:" in refused.stderr
    assert runs(practised) == ["rehearsal"]


def test_steps_of_a_run_that_never_was_cannot_be_adopted(workspace: Path) -> None:
    refused = headless(workspace, "rehearsal", *TINY, "--restart-step", "1")
    assert refused.code == 2
    assert "no run named rehearsal" in refused.stderr
    assert not workspace.exists()


def test_resume_takes_a_run_by_its_id_with_its_own_run_file(practised: Path) -> None:
    assert headless(practised, "rehearsal", *SMALL, "--restart-step", "0").code == 0
    older = headless(practised, "--resume", "rehearsal", "practice.epochs=2")
    assert older.code == 0, older.stderr
    assert "run rehearsal: resumed after step 2" in older.stderr
    states = {run.run: run.state().steps_finished for run in Workspace(practised).runs()}
    assert states == {"rehearsal": 4, "rehearsal-2": 2}


def test_restart_step_applies_to_the_run_that_resume_picks(practised: Path) -> None:
    assert headless(practised, "rehearsal", *SMALL, "--restart-step", "0").code == 0
    forked = headless(practised, "--resume", "rehearsal", "--restart-step", "1")
    assert "run rehearsal-3: new, with the first 1 steps of rehearsal" in forked.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "it needs a run file or a preset"),
        (("rehearsal", "--resume", "rehearsal"), "--resume"),
        (("--resume", "rehearsal", "--name", "x"), "--resume"),
        (("--resume", "nope"), "There are: rehearsal. A new run appears"),
        (("nope",), "nope"),
        (("rehearsal", "practice.epoch=2"), "epochs"),
        (("rehearsal", "nonsense"), "nonsense"),
        (("rehearsal", "--review", "someone"), "auto, wait or rules:FILE"),
        (("rehearsal", "--review", "rules:nope.yaml"), "nope.yaml"),
        (("rehearsal", "data.practice=nope"), "nope"),
        (("rehearsal", "verifier=nope"), "nope"),
    ],
)
def test_a_mistake_is_exit_2_with_words_and_changes_nothing(
    arguments: tuple[str, ...], said: str, practised: Path
) -> None:
    before = sorted(practised.rglob("*"))
    name = () if "--name" in arguments or "--resume" in arguments else ("--name", "new")
    refused = headless(practised, *arguments, *(name if arguments else ()))
    assert (refused.code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert sorted(practised.rglob("*")) == before


def test_a_setting_changed_since_is_refused_by_name_with_both_values(practised: Path) -> None:
    changed = (*SMALL, "practice.epochs=2", "practice.group_size=4")
    refused = headless(practised, "rehearsal", *changed)
    assert (refused.code, refused.stdout) == (2, "")
    assert "practice.group_size: 3 → 4" in refused.stderr
    assert "--accept-changes" in refused.stderr and "--restart-step 0" in refused.stderr
    accepted = headless(practised, "rehearsal", *changed, "--accept-changes", "--json")
    assert accepted.code == 0, accepted.stderr
    # Two more steps of 4 problems, now in groups of 4.
    assert sum(e["kind"] == "RolloutFinished" for e in events(accepted)) == 32


def test_what_changes_no_result_may_change_without_a_word(practised: Path) -> None:
    free = ("practice.epochs=2", "practice.concurrency=1", "policy.timeout_s=99")
    assert headless(practised, "rehearsal", *SMALL, *free).code == 0


def test_operations_left_open_are_exit_3_and_the_reviewer_stays_over_a_resume(
    workspace: Path,
) -> None:
    held = headless(workspace, "rehearsal", *TINY, "--review", "wait", "review.hold_s=0.01")
    assert held.code == 3
    assert "review: wait" in held.stderr
    assert "2 operations to review (studio review rehearsal)" in held.stderr
    assert "open     2 operations: studio review rehearsal" in held.stdout
    again = headless(workspace, "--resume", "rehearsal", "--json")
    assert again.code == 3, "nobody decided, and it still waits"
    assert [op["id"] for op in events(again)[-1]["open"]] == ["op1.1", "op1.2"]
    assert not any(e["kind"] == "RolloutFinished" for e in events(again))
    by_itself = headless(workspace, "--resume", "rehearsal", "--review", "auto", "--json")
    assert by_itself.code == 0
    assert events(by_itself)[-1]["library"]["added"] == ["E1", "E2"]


@pytest.mark.parametrize(
    ("review", "said"), [("maybe", "auto, wait or rules:FILE"), ("rules:nope.yaml", "nope.yaml")]
)
def test_a_reviewer_that_cannot_be_is_refused_also_for_a_finished_run(
    practised: Path, review: str, said: str
) -> None:
    for asked in (("rehearsal", *SMALL), ("--resume", "rehearsal")):
        refused = headless(practised, *asked, "--review", review)
        assert (refused.code, refused.stdout) == (2, "")
        assert said in refused.stderr


def test_rules_decide_what_they_name_and_leave_the_rest_open(workspace: Path) -> None:
    rules = workspace.parent / "mine.yaml"
    rules.write_text(
        "rules:\n  - when: {matches: Borrow}\n    do: reject\n    reason: known by heart\n", "utf-8"
    )
    arguments = (*TINY, "--review", f"rules:{rules}", "review.hold_s=0.01", "--json")
    done = headless(workspace, "rehearsal", *arguments)
    assert done.code == 3, done.stderr
    (decided,) = [e["decision"] for e in events(done) if e["kind"] == "OperationDecided"]
    assert (decided["action"], decided["reason"]) == ("reject", "known by heart")
    assert decided["reviewer"] == "rules:mine.yaml"
    assert len(events(done)[-1]["open"]) == 1


def test_the_run_file_s_reviewer_is_asked_and_the_command_line_s_before_it(
    workspace: Path,
) -> None:
    asked = (*TINY, "review.by=wait", "review.hold_s=0.01")
    assert headless(workspace, "rehearsal", *asked).code == 3
    assert headless(workspace, "rehearsal", *asked, "--name", "b", "--review", "auto").code == 0


def test_a_failing_rollout_is_a_counted_loss_and_exit_4(workspace: Path) -> None:
    with an_endpoint(says("OK"), refuses(400, "no \x1b[31mluck"), says("#### 5")) as endpoint:
        done = headless(workspace, "rehearsal", *TINY, *asking(endpoint.base_url), "--json")
        # A ping and 12 rollouts, of which none is tried twice.
        assert len(endpoint.requests) == 13
    assert done.code == 4, done.stderr
    summary = events(done)[-1]
    assert summary["lost"] == {"rollout": 1}
    (failed,) = [e for e in events(done) if e.get("status") == "failed"]
    assert "luck" in failed["error"]
    judged = {(e["position"], e["index"]): e["verdict"]["reward"] for e in events(done)
              if e["kind"] == "RolloutJudged"}  # fmt: skip
    assert judged.get((failed["position"], failed["index"])) is None
    assert summary["epochs"][0]["n"] == 11
    told = headless(workspace, "rehearsal", *TINY, *asking(endpoint.base_url))
    assert told.code == 4, "a finished run ends as it ended"
    assert "lost     1 rollout" in told.stdout
    assert "\x1b" not in told.stdout


@pytest.mark.parametrize("role", ["policy", "reflector", "judge"])
def test_an_endpoint_of_any_role_that_cannot_be_reached_is_exit_2_before_anything_is_spent(
    role: str, nobody: str, workspace: Path
) -> None:
    away = [word for word in asking(nobody, role) if role != "reflector" or "=reh" not in word]
    refused = headless(workspace, "rehearsal", *TINY, *away)
    assert (refused.code, refused.stdout) == (2, "")
    assert nobody in refused.stderr and "a server must run there" in refused.stderr
    assert runs(workspace) == []
    assert not list(workspace.glob("libraries/*"))
    again = headless(workspace, "rehearsal", *TINY)
    assert again.code == 0, again.stderr
    assert runs(workspace) == ["rehearsal"]


def test_a_library_that_is_taken_is_refused_and_does_not_stand_in_the_next_try_s_way(
    practised: Path,
) -> None:
    taken = headless(practised, "rehearsal", *TINY, "--name", "b", "library.name=rehearsal")
    assert taken.code == 2
    assert "library.start=rehearsal@2" in taken.stderr
    assert headless(practised, "rehearsal", *TINY, "--name", "b").code == 0
    assert runs(practised) == ["rehearsal", "b"]


@pytest.mark.parametrize("given", [KEY, "${oc.env:PLANTED_KEY}"])
def test_a_key_is_sent_and_stands_in_no_file_and_no_output(
    given: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    quoting = refuses(401, f"Incorrect API key provided: {KEY}")
    with an_endpoint(says("OK"), quoting, says("#### 5")) as endpoint:
        secret = (
            f"policy.api_key={given}",
            f"policy.headers.x-team={given}",
            f"policy.extra_body.session_token={given}",
        )
        words = [*asking(endpoint.base_url), *secret]
        done = headless(workspace, "rehearsal", *TINY, *words, "--json")
        sent = endpoint.requests[-1]
    assert done.code == 4, done.stderr
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["x-team"] == sent.body["session_token"] == KEY
    shown = headless(workspace, "rehearsal", *TINY, *words)  # the summary of the finished run
    changed = headless(workspace, "rehearsal", *TINY, *words, "seed=2")  # and a refusal
    assert (shown.code, changed.code) == (4, 2)
    for result in (done, shown, changed):
        assert KEY not in result.stdout + result.stderr
    files = [path for path in workspace.rglob("*") if path.is_file()]
    assert {"run.yaml", "journal.jsonl", "agent.yaml", "catalogue.json"} <= {f.name for f in files}
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    run_file = (workspace / "runs/rehearsal/run.yaml").read_text()
    assert (given in run_file) == given.startswith("${")


def test_a_masked_header_is_asked_for_again_and_never_sent_as_its_mask(workspace: Path) -> None:
    with an_endpoint(says("#### 5")) as endpoint:
        words = [*asking(endpoint.base_url), f"policy.headers.x-team={KEY}"]
        assert headless(workspace, "rehearsal", *TINY, *words).code == 0
        more = ("--resume", "rehearsal", "practice.epochs=2", "policy.api_key=none")
        asked = len(endpoint.requests)
        refused = headless(workspace, *more)
        assert refused.code == 2
        assert '"policy.headers.x-team" is masked' in refused.stderr
        assert len(endpoint.requests) == asked
        again = headless(workspace, *more, f"policy.headers.x-team={KEY}")
        assert again.code == 0, again.stderr
        assert endpoint.requests[-1].headers["x-team"] == KEY


def test_a_refused_key_is_not_shown(workspace: Path) -> None:
    with an_endpoint(refuses(401, f"Incorrect API key provided: {KEY}")) as endpoint:
        words = [*asking(endpoint.base_url), f"policy.api_key={KEY}"]
        refused = headless(workspace, "rehearsal", *TINY, *words)
    assert (refused.code, refused.stdout) == (2, "")
    assert "the key was refused" in refused.stderr
    assert KEY not in refused.stderr


def test_a_reader_that_leaves_does_not_end_the_run_nor_change_its_exit_code(
    workspace: Path,
) -> None:
    data = workspace.parent / "unknown.jsonl"
    data.write_text('{"question": "Who wrote it?", "answer": "1"}\n', "utf-8")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with ForkedStudio(
        [*STUDIO, "--workspace", str(workspace), "headless", "replay", f"data.practice={data}",
         "policy=replay:replay", "practice.epochs=2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(60) == 4, "a log that holds none of the rollouts loses them"
    state = Workspace(workspace).run("replay").state()
    assert (state.status, state.steps_finished) == ("finished", 2)


def test_a_reader_that_leaves_a_listing_is_no_bug(practised: Path) -> None:
    with ForkedStudio(
        [*STUDIO, "--workspace", str(practised), "library", "show", "rehearsal"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.wait(60) == 0
        assert child.stderr.read() == b""


def test_a_run_file_that_only_evaluates_cannot_be_practised(
    workspace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "only.yaml"
    file.write_text("policy: rehearsal\nevaluation: {data: arithmetic-heldout, limit: 5}\n")
    assert studio("eval", str(file), workspace=workspace).code == 0
    done = studio("headless", str(file), workspace=workspace)
    assert done.code == 2
    assert '"data.practice" is missing: there is nothing to practise on' in done.stderr
    assert f"{file}" in done.stderr
    assert not (workspace / "runs").exists()


def test_doubtful_rows_are_told_when_a_run_begins(workspace: Path, tmp_path: Path) -> None:
    data = tmp_path / "odd.jsonl"
    row = '{"question": "What is 27 + 35?", "answer": "62"}\n'
    data.write_text(row * 2 + row.replace("62", "63"))
    done = studio(
        "headless", "rehearsal", *SMALL, f"data.practice={data}", "data.truncate=1",
        workspace=workspace,
    )  # fmt: skip
    assert done.code == 0
    assert "1 row repeating another, 3 rows contradicting each other" in done.stderr
    assert f"studio data check {data}" in done.stderr


def test_a_model_that_answers_in_anothers_name_is_told_once_and_shown_with_the_run(
    workspace: Path,
) -> None:
    with an_endpoint(says("#### 5")) as endpoint:  # which calls itself "served"
        done = headless(workspace, "rehearsal", *TINY, *asking(endpoint.base_url))
    note = "openai:m: replies come from the model 'served', not from 'm'"
    assert done.stderr.count(note) == 1 and f"note     {note}" in done.stdout
    shown = studio("runs", "show", "rehearsal", workspace=workspace)
    assert note in shown.stdout
    facts = studio("runs", "show", "rehearsal", "--json", workspace=workspace)
    assert json.loads(facts.stdout)["remarks"] == [note]
