"""`studio eval`: what it prints, what it refuses, and what it does not pay for twice."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.support.fake_endpoint import (
    FakeEndpoint,
    an_endpoint,
    fake_endpoint,
    hangs,
    refuses,
    says,
)
from tests.support.forked_studio import STUDIO, ForkedStudio
from tests.support.run_studio import Result, studio

FEW = ("evaluation.limit=12",)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "practice"


@pytest.fixture(scope="module")
def after_practice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which the preset was practised, with few problems held out."""
    workspace = tmp_path_factory.mktemp("practised") / "practice"
    assert studio("headless", "rehearsal", *FEW, workspace=workspace).code == 0
    return workspace


def evaluated(workspace: Path, *arguments: str) -> dict[str, Any]:
    """The JSON of an evaluation that went well."""
    done = studio("eval", "rehearsal", *FEW, *arguments, "--json", workspace=workspace)
    assert done.code == 0, done.stderr
    data = json.loads(done.stdout)
    assert isinstance(data, dict)
    return data


def prompts(workspace: Path) -> list[bytes]:
    """Every recorded request of evaluations outside runs, without its seed, sorted."""
    found = []
    for file in (workspace / "evaluations/replies").glob("*/eval-*.jsonl"):
        for line in file.read_bytes().splitlines():
            found.append(orjson.dumps(orjson.loads(line)["e"]["messages"]))
    return sorted(found)


def test_baseline_practice_and_enhanced_evaluation_end_in_a_table_of_two_sets(
    workspace: Path,
) -> None:
    sixty = "evaluation.limit=60"
    before = studio("eval", "rehearsal", sixty, "--library", "none", workspace=workspace)
    assert (before.code, before.stdout.count("MEAN@1")) == (0, 2)
    assert studio("headless", "rehearsal", sixty, workspace=workspace).code == 0
    after = studio(
        "eval", "rehearsal", sixty, "--library", "rehearsal", "--baseline", "none",
        workspace=workspace,
    )  # fmt: skip
    assert after.code == 0
    assert "rehearsal" in after.stdout.splitlines()[0]
    table = after.stdout[after.stdout.index("HELD-OUT SET") :].splitlines()
    assert table[0].split()[2:] == ["BEFORE", "AFTER", "DIFFERENCE", "QUESTIONS", "VERDICT"]
    assert [row.split()[0] for row in table[1:3]] == ["arithmetic-heldout", "arithmetic-larger"]
    assert all(row.endswith("helps") for row in table[1:3])
    # The run measured both libraries already: nothing is left to pay for.
    assert "0 calls" in after.stdout
    assert (
        "rehearsal: rehearsal@1 against none, judged by math: 0 rollouts to make, 240 known"
        in after.stderr
    )


def test_what_the_set_can_show_is_said_before_anything_is_spent(workspace: Path) -> None:
    wrong = ("policy=openai:m", "policy.base_url=http://127.0.0.1:9/v1", "policy.api_key=k")
    done = studio("eval", "rehearsal", *FEW, *wrong, workspace=workspace)
    assert done.code == 2
    assert "arithmetic-heldout: 12 of 256 problems, 1 try each\n  would likely" in done.stderr
    assert done.stderr.index("miss smaller ones") < done.stderr.index("127.0.0.1:9")
    five = studio("eval", "rehearsal", "evaluation.limit=5", workspace=workspace)
    assert "5 of 256 problems, 1 try each\n  too few to show any difference" in five.stderr
    one = studio("eval", "rehearsal", "evaluation.limit=1", "--step", "judge", workspace=workspace)
    assert "arithmetic-heldout: 1 of 256 problems, 1 try each" in one.stderr


def test_json_holds_rates_intervals_pass_and_every_reward(after_practice: Path) -> None:
    data = evaluated(after_practice, "--library", "rehearsal", "--baseline", "none", "--k", "3")
    assert (data["kind"], data["rehearsal"], data["k"]) == ("Evaluation", True, 3)
    first = data["sets"][0]
    assert first["data"] == "arithmetic-heldout"
    assert len(first["problems"]) == 12
    bare, practised = first["results"]
    assert [bare["experiences"], practised["experiences"]] == ["none", "rehearsal@1"]
    assert bare["n"] == 36
    assert [len(row) for row in bare["rewards"]] == [3] * 12
    known = [reward for row in bare["rewards"] for reward in row]
    assert bare["mean"] == pytest.approx(sum(known) / 36)
    right = [sum(row) for row in bare["rewards"]]
    assert bare["pass_at"]["3"]["value"] == pytest.approx(sum(n > 0 for n in right) / 12)
    assert (bare["pass_at"]["3"]["questions"], bare["questions"]) == (12, 12)
    assert bare["interval"][0] <= bare["mean"] <= bare["interval"][1]
    assert practised["tokens_per_try"] > bare["tokens_per_try"] > 0
    assert practised["tool_calls_per_try"] == 0
    assert first["comparison"]["verdict"] == "helps"
    assert first["comparison"]["better"] + first["comparison"]["level"] == 12


def test_an_agent_file_and_its_library_give_byte_equal_prompts(
    after_practice: Path, tmp_path: Path
) -> None:
    awkward = "Check: read ${oc.env:HOME}, \\${x} and {{braces}} as they stand: #### \u2603"
    edited = studio("library", "edit", "rehearsal", "--add", awkward, workspace=after_practice)
    assert edited.code == 0
    other = studio(
        "headless", "rehearsal", "evaluation.do_eval=false", "library.start=rehearsal@2",
        "practice.epochs=1", "data.truncate=1", "practice.group_size=1", "--name", "again",
        workspace=after_practice,
    )  # fmt: skip
    assert other.code == 0, other.stderr
    agent = after_practice / "runs/again/agent.yaml"
    texts = [e["text"] for e in yaml.safe_load(agent.read_text())["experiences"]]
    assert any("braces" in text for text in texts)
    for name, option in (("a", ("--agent", str(agent))), ("b", ("--library", "again"))):
        copy = tmp_path / name
        (copy / "libraries").mkdir(parents=True)
        (copy / "libraries/again").symlink_to(after_practice / "libraries/again")
        evaluated(copy, *option)
    assert len(prompts(tmp_path / "a")) == 24
    assert prompts(tmp_path / "a") == prompts(tmp_path / "b")
    assert b"${oc.env:HOME}, \\\\${x}" in prompts(tmp_path / "a")[0]


def test_an_agent_s_own_instructions_are_what_is_measured(workspace: Path, tmp_path: Path) -> None:
    agent = tmp_path / "terse.yaml"
    agent.write_text("name: terse\ninstructions: Answer with the number alone.\n")
    evaluated(workspace, "--agent", str(agent))
    assert all(b"Answer with the number alone." in prompt for prompt in prompts(workspace))


def test_the_evaluation_is_named_as_its_run_file_says(after_practice: Path) -> None:
    named = "exp_id=aime_eval"
    assert evaluated(after_practice, named)["exp_id"] == "aime_eval"
    shown = studio("eval", "rehearsal", *FEW, named, workspace=after_practice)
    assert shown.stdout.splitlines()[1] == "aime_eval: none, judged by math"


def test_best_and_last_of_a_run_can_be_named(after_practice: Path) -> None:
    for which in ("best", "last"):
        shown = studio("diff", "rehearsal@epoch:0", f"rehearsal@{which}", workspace=after_practice)
        assert shown.code == 0
        assert f"rehearsal@{which} (rehearsal@1)" in shown.stdout
        assert "4 added" in shown.stdout
    assert (after_practice / "runs/rehearsal/agent-best.yaml").is_file()


def _child(workspace: Path, *arguments: str) -> ForkedStudio:
    command = [*STUDIO, "--workspace", str(workspace), *arguments]
    return ForkedStudio(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def test_a_stopped_evaluation_goes_on_where_it_was(workspace: Path) -> None:
    """Of 30 rollouts 12 are answered before SIGTERM; the second command asks for 18."""
    answered = [says("#### 7")] * 13  # a ping first
    async with fake_endpoint(*answered, hangs(), says("#### 7")) as endpoint:
        child = _child(workspace, *_asking(endpoint))
        await endpoint.until(lambda: len(endpoint.requests) == 14)
        child.send_signal(signal.SIGTERM)
        _, said = await asyncio.to_thread(child.communicate)
        assert child.returncode == 130
        assert b"the same command goes on from there" in said
        child = _child(workspace, *_asking(endpoint))
        out, _ = await asyncio.to_thread(child.communicate)
        assert len(endpoint.requests) == 14 + 1 + 18
    assert child.returncode == 0
    data = json.loads(out)
    assert data["sets"][0]["results"][0]["n"] == 30
    assert data["paid"]["calls"] == 18


def test_another_endpoint_is_another_measurement(workspace: Path) -> None:
    for text in ("#### 7", "no idea"):
        with an_endpoint(says(text)) as endpoint:
            studio(*_asking(endpoint), workspace=workspace)
            assert len(endpoint.requests) == 1 + 30


def test_an_evaluation_with_gaps_ends_with_losses_and_says_why(workspace: Path) -> None:
    # Fewer than would be taken for an outage are left without an answer.
    with an_endpoint(*[says("#### 7")] * 19, refuses(400, "no more today")) as endpoint:
        done = studio(*_asking(endpoint)[:-1], workspace=workspace)
    assert done.code == 4
    assert "none: 12 unjudged, the first because: " in done.stdout
    assert "no more today" in done.stdout


def _asking(endpoint: FakeEndpoint) -> list[str]:
    return [
        "eval", "rehearsal", "policy=openai:m", f"policy.base_url={endpoint.base_url}",
        "policy.api_key=k", "policy.max_retries=0", "evaluation.data=arithmetic-heldout",
        "evaluation.limit=30", "evaluation.concurrency=1", "--json",
    ]  # fmt: skip


WRONG = [
    (("rehearsal", "--agent", "none.yaml"), "--agent none.yaml: There is no such file."),
    (("rehearsal", "--agent", "x.yaml", "--library", "y"), "--agent: --library names other"),
    (("rehearsal", "--library", "nobody"), "nobody: it is no library"),
    (("rehearsal", "--library", "rehearsal@9"), "rehearsal"),
    (("rehearsal", "--baseline", "ghost@best"), "run ghost: there is none"),
    (("api", "policy=rehearsal"), "no held-out set is named"),
    (("rehearsal", "evaluation.data=nowhere"), 'data set "nowhere": It is not found'),
    (("rehearsal", "evaluation.k=0"), '"evaluation.k" is 0'),
    (("rehearsal", "verifier=maths"), "maths"),
    ((), "studio eval: it needs a run file or a preset"),
    (("rehearsal", "--config-name", "math/x"), "--config-name: it names a config of a checkout"),
    (("--from-youtu", "nowhere", "--config-name", "x"), "--from-youtu nowhere"),
    (("nopreset",), "There is no such file and no preset of that name."),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_what_cannot_be_evaluated_is_refused_with_its_place(
    workspace: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = studio("eval", *arguments, workspace=workspace)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (workspace / "evaluations").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The agent file is empty."),
        ("- a list\n", "The file holds no keys."),
        ("instructions: [broken\n", "The YAML is broken"),
        ("instructions: !foo x\n", "could not determine a constructor for the tag"),
        ("instructions: !!int x\n", "A value in it cannot be read: invalid literal"),
        ("instruction: x\n", 'Did you mean "agent.instructions"?'),
        ("instructions: x\nexperiences:\n  - text: no id\n", "agent.experiences.0.id"),
    ],
)
def test_a_wrong_agent_file_is_refused_with_its_line(
    workspace: Path, tmp_path: Path, text: str, said: str
) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text(text)
    done: Result = studio("eval", "rehearsal", "--agent", str(agent), workspace=workspace)
    assert done.code == 2
    assert said in done.stderr
    assert str(agent) in done.stderr


def test_a_lesson_that_looks_like_a_date_is_a_text(workspace: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text("instructions: 2020-13-45\nexperiences: [{id: E1, text: 2020-01-01}]\n")
    done = studio("eval", "rehearsal", "--agent", str(agent), "--dry-run", workspace=workspace)
    assert done.code == 0, done.stderr


def test_both_sides_with_the_same_experiences_are_measured_once(after_practice: Path) -> None:
    done = studio(
        "eval", "rehearsal", "evaluation.limit=13", "--library", "rehearsal@1",
        "--baseline", "rehearsal@1", "--k", "4", "seed=77", workspace=after_practice,
    )  # fmt: skip
    assert "both sides hold the same experiences" in done.stderr
    assert "paid     104 calls" in done.stdout  # 2 sets of 13 problems, 4 tries
    assert done.stdout.count("cannot tell") == 4


def test_repeats_of_a_question_are_one_question(workspace: Path, tmp_path: Path) -> None:
    data = tmp_path / "twice.jsonl"
    data.write_text('{"question": "What is 27 + 35?", "answer": "62"}\n' * 12)
    done = studio("eval", "rehearsal", f"evaluation.data={data}", workspace=workspace)
    assert "12 problems (1 different), 1 try each\n  too few to show" in done.stderr
    assert "12 problems (1 different), 1 try each\n  EXPERIENCES" in done.stdout  # told once
    row = next(line for line in done.stdout.splitlines() if line.strip().startswith("none"))
    assert row.split()[-3:-1] == ["1", "12"]


def test_overrides_of_the_agent_count_over_its_file(workspace: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text("instructions: from the file\nexperiences:\n- {id: E1, text: kept}\n")
    evaluated(workspace, "--agent", str(agent), "agent.instructions=typed here")
    assert all(b"typed here" in prompt and b"kept" in prompt for prompt in prompts(workspace))


@pytest.mark.parametrize("text", ["${policy.api_key}", "${oc.env:HOME}", "a \\\\${b}"])
def test_an_agent_file_cannot_reach_for_what_is_not_its_own(
    workspace: Path, tmp_path: Path, text: str
) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text(f"instructions: '{text}'\n")
    done = studio("eval", "rehearsal", "--agent", str(agent), workspace=workspace)
    assert done.code == 2
    assert f'{agent}:1: "agent.instructions" refers to something outside' in done.stderr


def test_the_model_of_an_agent_file_cannot_reach_further_through_a_default(
    workspace: Path, tmp_path: Path
) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text("instructions: x\nmodel: 'openai:${oc.env:NONE,${policy.api_key}}'\n")
    done = studio("eval", "rehearsal", "--agent", str(agent), workspace=workspace)
    assert done.code == 2
    assert '"agent.model" refers to something outside the agent file' in done.stderr


def test_a_file_that_holds_itself_is_no_crash(workspace: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text("name: &a\n  b: *a\n")
    done = studio("eval", "rehearsal", "--agent", str(agent), workspace=workspace)
    assert (done.code, "By its YAML aliases it holds itself" in done.stderr) == (2, True)


def test_a_secret_of_the_request_reaches_no_file(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_FIELD", "a-value-nobody-may-see")
    with an_endpoint(says("#### 7")) as endpoint:
        mine = "policy.extra_body={mine: '${oc.env:MY_FIELD}'}"
        assert studio(*_asking(endpoint), mine, workspace=workspace).code == 0
        assert endpoint.bodies[-1]["mine"] == "a-value-nobody-may-see"
    kept = b"".join(file.read_bytes() for file in workspace.rglob("*") if file.is_file())
    assert b"oc.env:MY_FIELD" in kept
    assert b"a-value-nobody-may-see" not in kept


def test_another_value_of_a_named_variable_is_another_measurement(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with an_endpoint(says("#### 7")) as endpoint:
        for effort in ("low", "high"):
            monkeypatch.setenv("EFFORT", effort)
            more = "policy.extra_body={effort: '${oc.env:EFFORT}'}"
            studio(*_asking(endpoint), more, workspace=workspace)
        assert len(endpoint.requests) == 2 * 31
    kept = b"".join(f.read_bytes() for f in (workspace / "evaluations").glob("*/about.json"))
    assert kept.count(b"${oc.env:EFFORT} #") == 2
    assert b'"low"' not in kept + b""


def test_the_reflector_is_neither_asked_nor_spoken_of(workspace: Path) -> None:
    with an_endpoint(says("#### 7")) as endpoint:
        dead = "reflector={model: 'openai:r', base_url: 'http://127.0.0.1:9/v1', api_key: k}"
        assert studio(*_asking(endpoint), dead, workspace=workspace).code == 0
        done = studio(*_asking(endpoint), "reflector=rehearsal", workspace=workspace)
    assert json.loads(done.stdout)["rehearsal"] is False
    assert "scripted" not in done.stderr


def test_another_log_of_the_same_name_is_another_model(workspace: Path, tmp_path: Path) -> None:
    row = {"question": "What is 27 + 35?", "answer": "62"}
    means = []
    for folder, said in (("right", "#### 62"), ("wrong", "#### 5")):
        log = tmp_path / folder / "log.jsonl"
        log.parent.mkdir()
        log.write_text(json.dumps({**row, "rollouts": [{"response": said}]}) + "\n")
        done = studio(
            "eval", "replay", f"data.practice={log}", f"evaluation.data={log}", "--json",
            workspace=workspace,
        )  # fmt: skip
        means.append(json.loads(done.stdout)["sets"][0]["results"][0]["mean"])
    assert means == [1.0, 0.0]


def test_what_is_steered_by_names_of_files_stays_on_its_line(
    workspace: Path, tmp_path: Path
) -> None:
    data = tmp_path / "s\x1b[31m.jsonl"
    data.write_text('{"question": "What is 27 + 35?", "answer": "62"}\n')
    done = studio("eval", "rehearsal", f"evaluation.data='{data}'", workspace=workspace)
    assert done.code == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\\u001b[31m: 1 problem" in done.stdout


def test_an_agent_with_instructions_alone_is_called_by_its_name(
    workspace: Path, tmp_path: Path
) -> None:
    agent = tmp_path / "terse.yaml"
    agent.write_text("agent:\n  name: terse\n  instructions: Answer with the number alone.\n")
    shown = studio(
        "eval", "rehearsal", *FEW, "--agent", str(agent), "--baseline", "none", workspace=workspace
    )
    assert shown.stdout.splitlines()[1] == "rehearsal: agent terse against none, judged by math"
    assert "both sides have the agent's instructions; only experiences differ" in shown.stderr
