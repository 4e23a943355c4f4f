"""Verifiers on the command line: listing them, and refusals before anything is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.core.events import RolloutJudged
from engines.record.run_dir import Workspace
from tests.support.run_studio import studio

FUNCTION = '''"""A file of mine."""


def verify_func(sample, timeout_score=0, **kwargs):
    """Half of it, always.

    And more about it.
    """
    return {"reward": 0.5, "reasoning": "half of it"}
'''
SMALL = "policy: rehearsal\ndata: {practice: arithmetic, truncate: 4}\npractice: {batch_size: 4}\n"


def a_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def listed(workspace: Path) -> list[dict[str, Any]]:
    done = studio("data", "verifiers", "--json", workspace=workspace)
    assert done.code == 0
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


# Listing


def test_built_in_verifiers_and_the_workspaces_files_are_listed(workspace: Path) -> None:
    file = a_file(workspace / "verifiers/mine.py", FUNCTION)
    rows = listed(workspace)
    built_in = ["math", "text", "judge", "accuracy", "length_penalty", "step", "format", "choice"]
    built_in += ["harbor", "reward_model", "own_reward", "recorded"]
    assert [row["name"] for row in rows[:13]] == [*built_in, "mine"]
    assert rows[12] == {
        "name": "mine",
        "kind": "youtu",
        "function": "verify_func",
        "about": "Half of it, always.",
        "where": "workspace",
        "path": str(file),
        "trouble": "",
    }
    shown = studio("data", "verifiers", workspace=workspace)
    assert shown.stdout.splitlines()[0].split()[:3] == ["NAME", "KIND", "FUNCTION"]
    names = [line.split()[0] for line in shown.stdout.splitlines() if line[0] != " "]
    assert names[:14] == ["NAME", *built_in, "mine.py"]
    assert "math.py" in names[10:], "told from the built-in one"
    assert shown.stderr == ""


def test_each_known_form_is_told_by_its_parameters_and_others_are_left_out(workspace: Path) -> None:
    a_file(
        workspace / "verifiers/forms.py",
        "def reward(completions, **kwargs):\n    return [1.0]\n\n\n"
        "async def judge(task, response, auxiliary_models=None): ...\n\n\n"
        "def helper(text): ...\n\n\ndef _private(sample): ...\n",
    )
    forms = [(r["kind"], r["function"]) for r in listed(workspace) if r["name"] == "forms"]
    assert forms == [("trl", "reward"), ("agentscope", "judge")]


def test_a_workspaces_file_hides_the_shipped_one_of_its_name(workspace: Path) -> None:
    a_file(workspace / "verifiers/exact.py", FUNCTION)
    where = [row["where"] for row in listed(workspace) if row["name"] == "exact"]
    assert where == ["workspace", "hidden"]


def test_a_broken_file_is_listed_with_its_trouble_and_nothing_is_run(workspace: Path) -> None:
    folder = workspace / "verifiers"
    a_file(folder / "broken.py", "def f(:\n")
    a_file(folder / "deep.py", "x = " + "(" * 5000 + ")" * 5000)
    a_file(folder / "none.py", "x = '\\d'\n")
    a_file(folder / "runs.py", f"open({str(workspace / 'ran')!r}, 'w')\n{FUNCTION}")
    (folder / "binary.py").write_bytes(b"\x00\xff")
    done = studio("data", "verifiers", workspace=workspace)
    assert done.code == 0
    notes = done.stderr.splitlines()
    assert [Path(note.split(": ")[1]).name for note in notes] == [
        "binary.py",
        "broken.py",
        "deep.py",
        "none.py",
    ]
    assert "not Python" in notes[1] and "known form" in notes[3]
    assert "broken" in done.stdout
    assert not (workspace / "ran").exists()


# Practising with them


def rewards(workspace: Path) -> list[RolloutJudged]:
    (run,) = Workspace(workspace).runs()
    return [e.event for e in run.entries() if isinstance(e.event, RolloutJudged)]


def test_a_run_is_judged_by_a_list_with_a_file_of_ones_own(workspace: Path) -> None:
    a_file(workspace.parent / "mine.py", FUNCTION)
    run_file = a_file(
        workspace.parent / "run.yaml",
        SMALL + "verifier:\n  - math\n  - {file: mine.py, weight: 3, as: half}\n  - judge\n",
    )
    done = studio("headless", str(run_file), "practice.epochs=1", workspace=workspace)
    assert done.code in (0, 4), done.stderr
    seen = rewards(workspace)
    assert len(seen) == 12  # 4 problems, 3 rollouts each
    for event in seen:
        right = event.verdict.metrics["math"]
        assert event.verdict.metrics == {"math": right, "half": 0.5, "judge": right}
        # (1 · right + 3 · 0.5 + 1 · right) / 5
        assert event.verdict.reward == pytest.approx((2 * right + 1.5) / 5)
        assert "half: half of it" in (event.verdict.critique or "")
        assert event.verdict.usage.calls == 1 and len(event.verdict.refs) == 1

    # The file's content belongs to the run: changed, it is another one.
    a_file(workspace.parent / "mine.py", FUNCTION.replace("0.5", "0.25"))
    again = studio("headless", str(run_file), "practice.epochs=2", workspace=workspace)
    assert again.code == 2
    assert "verifier" in again.stderr and "--accept-changes" in again.stderr


def test_data_without_answers_can_be_practised_on_with_a_judge(workspace: Path) -> None:
    rows = [{"question": f"What is {n} + 5?", "answer": None} for n in range(17, 21)]
    a_file(workspace.parent / "open.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    text = "policy: rehearsal\ndata: {practice: open}\npractice: {batch_size: 4, epochs: 1}\n"
    run_file = a_file(workspace.parent / "run.yaml", text + "verifier: judge\n")
    done = studio("headless", str(run_file), workspace=workspace)
    assert done.code in (0, 4), done.stderr
    assert {event.verdict.reward for event in rewards(workspace)} <= {0.0, 1.0}
    refused = studio("headless", str(run_file), "verifier=math", "exp_id=x", workspace=workspace)
    assert refused.code == 2
    assert '"answer" is ' in refused.stderr


def test_a_try_that_cannot_be_judged_prints_nothing(workspace: Path) -> None:
    a_file(workspace.parent / "mine.py", FUNCTION)
    text = SMALL + "verifier: {file: mine.py, function: nope}\n"
    refused = studio("try", str(a_file(workspace.parent / "run.yaml", text)), workspace=workspace)
    assert (refused.code, refused.stdout) == (2, "")
    assert 'no function "nope"' in refused.stderr


def test_a_try_asks_the_judge_too(workspace: Path) -> None:
    run_file = a_file(workspace.parent / "run.yaml", SMALL + "verifier: judge\n")
    done = studio("try", str(run_file), "--json", workspace=workspace)
    assert done.code in (0, 4), done.stderr
    assert "rehearsal (scripted)" in done.stdout
    spent = json.loads(done.stdout)
    assert (spent["usage"]["calls"], spent["judge_usage"]["calls"]) == (2, 1)
    assert spent["usage"]["prompt_tokens"] > spent["judge_usage"]["prompt_tokens"] > 0
    shown = studio("try", str(run_file), workspace=workspace).stdout
    assert "spent    2 calls, " in shown
    assert not workspace.exists()


# Refusals: what stands below `verifier:`, the line blamed, the cause, the move.
WRONG: dict[str, tuple[str, str, str, str]] = {
    "unknown name": ("verifier: mahts\n", "run.yaml:4", "no such verifier", '"math"'),
    "a name that is a file": ("verifier: mine\n", "run.yaml:4", "no such", "{file: mine.py}"),
    "unknown setting": (
        "verifier:\n  name: text\n  mod: exact\n",
        "run.yaml:6",
        'no setting "mod"',
        'Did you mean "mode"?',
    ),
    "bad type": (
        "verifier:\n  name: math\n  deadline_s: fast\n",
        "run.yaml:6",
        'deadline_s is "fast"',
        "a valid number",
    ),
    "out of range": ("verifier:\n  workers: 0\n", "run.yaml:5", "workers is 0", "equal to 1"),
    "neither text nor section": ("verifier: 5\n", "run.yaml:4", '"verifier" is 5', "verifier.name"),
    "empty list": ("verifier: []\n", "run.yaml:4", "it is no list", "at least one"),
    "weight 0": (
        "verifier:\n  - math\n  - name: text\n    weight: 0\n",
        "run.yaml:7",
        "weight is 0",
        "another number",
    ),
    "as twice": (
        "verifier:\n  - {name: math, as: x}\n  - name: text\n    as: x\n",
        "run.yaml:7",
        '"x" is taken',
        "a name of its own",
    ),
    "wrong entry": ("verifier:\n  - math\n  - 7\n", "run.yaml:6", "no verifier", "Write a name"),
    "unknown name in a list": ("verifier:\n  - txt\n", "run.yaml:5", "no such", '"text"'),
    "list in a list": ("verifier:\n  - [math]\n", "run.yaml:5", "it is no verifier", "weighted"),
    "file missing": ("verifier: {file: mien.py}\n", "run.yaml:4", "no such file", '"mine.py"'),
    "file missing by Youtu's name": (
        "evaluation:\n  verify_filename: mien.py\n",
        "run.yaml:5",
        "no such file",
        '"mine.py"',
    ),
    "function without a file": ("verifier: {function: f}\n", "run.yaml:4", '"file" is', "MINE.py"),
    "function missing": (
        "verifier: {file: mine.py, function: verify_fun}\n",
        "mine.py",
        'no function "verify_fun"',
        'Did you mean "verify_func"?',
    ),
    "function of another signature": (
        "verifier: {file: other.py}\n",
        "other.py",
        "known signatures",
        "Youtu-Agent",
    ),
    "file that is no Python": ("verifier: {file: bad.py}\n", "bad.py:1", "", ""),
    "failing import": ("verifier: {file: imports.py}\n", "imports.py:1", "nosuchmodule", ""),
    "name and file": (
        "verifier: {name: math, file: mine.py}\n",
        "run.yaml:4",
        '"file" stands beside the name "math"',
        "Leave one",
    ),
    "judge on a replay": (
        "judge: replay:log.jsonl\nverifier: judge\n",
        "run.yaml:5",
        "none that can judge",
        "Set judge: openai:MODEL",
    ),
    "judge that does not answer": (
        "judge: {model: 'openai:m', base_url: 'http://127.0.0.1:9/v1', max_retries: 0}\n"
        "verifier: judge\n",
        "127.0.0.1:9",
        "",
        "",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_verifier_ends_in_exit_2_with_nothing_spent(workspace: Path, case: str) -> None:
    folder = workspace.parent
    a_file(folder / "mine.py", FUNCTION)
    a_file(folder / "other.py", "def helper(text):\n    return 1.0\n")
    a_file(folder / "bad.py", "def f(:\n")
    a_file(folder / "imports.py", "import nosuchmodule\n" + FUNCTION)
    a_file(folder / "log.jsonl", '{"question": "q", "answer": "1", "response": "1"}\n')
    text, place, cause, move = WRONG[case]
    run_file = a_file(folder / "run.yaml", SMALL + text)
    done = studio("headless", str(run_file), workspace=workspace)
    assert done.code == 2, done.stderr
    assert place in done.stderr
    assert cause in done.stderr
    assert move in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((workspace / "runs").glob("*"))
    assert not list((workspace / "libraries").glob("*"))
