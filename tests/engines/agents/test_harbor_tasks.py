"""Task folders in the Harbor layout, from the data set to the verdict of their graders."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engines.agents.command import CommandAgent
from engines.core.errors import DataError
from engines.core.types import Rollout, Sampling, Verdict
from engines.data.dataset import read_problems
from engines.data.source import resolve_data
from engines.verifiers.harbor import HarborVerifier
from tests.support.builders import a_job, answering
from tests.support.plain_runner import PlainRunner

GRADER = """
set -e
test ! -e "$STUDIO_APP/tests"
if grep -q 42 out.txt; then score=1; else score=0; fi
echo "{\\"reward\\": $score, \\"lines\\": $(wc -l < out.txt)}" > "$STUDIO_LOGS/verifier/reward.json"
"""


def a_task(folder: Path, name: str = "one", grader: str = GRADER, toml: str = "") -> Path:
    task = folder / name
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "task.toml").write_text(f'version = "1.0"\n{toml}')
    (task / "instruction.md").write_text(f"Write 42 into out.txt ({name}).\n")
    (task / "tests/test.sh").write_text(grader)
    (task / "environment/seed.txt").write_text("42\n")
    return task


async def grade(folder: Path, code: str, grader: str = GRADER, timeout_s: float = 20) -> Verdict:
    a_task(folder / "tasks", grader=grader)
    (problem,) = read_problems(resolve_data("tasks", [folder]), needs_answer=False)
    agent = CommandAgent(
        command=(sys.executable, "-c", code),
        sampling=Sampling(),
        runner=PlainRunner(),
        kept=folder / "kept",
    )
    job = a_job(problem)
    attempt = await agent.attempt(job, answering())
    runner = PlainRunner(timeout_s=timeout_s)
    verifier = HarborVerifier(runner, folder / "kept")
    await verifier.check()
    (verdict,) = await verifier.verify(problem, [Rollout.from_job(job, attempt, 7)])
    for started in runner.started:
        assert not started["folder"].exists()
    return verdict


async def test_the_files_that_the_agent_left_are_graded_in_another_box(tmp_path: Path) -> None:
    code = "print('done'); open('out.txt', 'w').write(open('seed.txt').read())"
    assert await grade(tmp_path, code) == Verdict(1.0, metrics={"lines": 1.0})


async def test_a_wrong_file_is_wrong(tmp_path: Path) -> None:
    assert (await grade(tmp_path, "print(1); open('out.txt', 'w')")).reward == 0.0


@pytest.mark.parametrize(
    ("grader", "error"),
    [
        ("echo no such tool >&2; exit 3", "failed: the grader left no reward: no such tool"),
        ("sleep 60", "timeout: the grader was ended"),
        ('echo x > "$STUDIO_LOGS/verifier/reward.json"', "unparsable: the grader's reward"),
        ('echo 7 > "$STUDIO_LOGS/verifier/reward.txt"', "unparsable: the reward is 7"),
        ('ln -s /etc/hostname "$STUDIO_LOGS/verifier/reward.txt"', "left no reward"),
    ],
)
async def test_a_grader_that_says_nothing_is_not_a_reward_of_zero(
    tmp_path: Path, grader: str, error: str
) -> None:
    verdict = await grade(tmp_path, "print(1)", grader, timeout_s=1.0)
    assert verdict.reward is None and error in (verdict.error or "")


async def test_a_reward_may_be_a_plain_number(tmp_path: Path) -> None:
    grader = 'echo 0.5 > "$STUDIO_LOGS/verifier/reward.txt"'
    assert await grade(tmp_path, "print(1)", grader) == Verdict(0.5)


def test_tasks_are_problems_and_those_that_need_an_image_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    a_task(folder, "one")
    a_task(folder, "two")
    problems = read_problems(resolve_data("tasks", [tmp_path]), needs_answer=False)
    assert [problem.question for problem in problems] == [
        "Write 42 into out.txt (one).",
        "Write 42 into out.txt (two).",
    ]
    assert problems[0].meta["task"] == str(folder / "one")
    one = read_problems(resolve_data("tasks/one", [tmp_path]), needs_answer=False)
    assert one[0].id == problems[0].id
    a_task(folder, "three", toml='[environment]\ndocker_image = "ubuntu"\n')
    with pytest.raises(DataError, match="needs the image ubuntu"):
        read_problems(resolve_data("tasks", [tmp_path]), needs_answer=False)
    (a_task(folder, "four") / "environment/Dockerfile").touch()
    with pytest.raises(DataError, match=r"environment/Dockerfile. \(1 more cannot be used: row 3"):
        read_problems(resolve_data("tasks", [tmp_path]), needs_answer=False)


async def test_a_row_of_another_data_set_cannot_name_a_folder(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/secret.txt").touch()
    runner = PlainRunner()
    command = (sys.executable, "-c", "import os; print(os.listdir('.'))")
    agent = CommandAgent(command=command, sampling=Sampling(), runner=runner)
    job = a_job()
    job = replace(job, problem=replace(job.problem, meta={"task": str(tmp_path)}))
    attempt = await agent.attempt(job, answering())
    assert "secret" not in (attempt.answer or "")
