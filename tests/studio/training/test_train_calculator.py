"""`studio train grpo-calculator --stage all`: a form that is taught, and a choice that pays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engines.agents.loops import requested_expression, result_line
from engines.core import events as ev
from engines.core.types import Turn, rollout_id
from engines.grpo.loss.loss import trajectory_samples
from engines.pipeline.evaluation.statistics import paired_interval_of
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir, Workspace
from sample_data import make_calculator
from sample_data.tiny_text import numbers_in
from tests.engines.grpo.trainable import a_try
from tests.support.run_studio import Result, studio

SHORT = (
    "policy.local.threads=1",
    "data.truncate=64",
    "grpo.learning_rate=0.0015",  # of few steps
    "practice.epochs=1",
    "sft.epochs=2",
    "evaluation.limit=64",
    "tensorboard=false",
)
STEPS = 4


def train(workspace: Path, stage: str, *words: str) -> Result:
    pytest.importorskip("peft", reason="needs the extra grpo")
    return studio("train", "grpo-calculator", "--stage", stage, *SHORT, *words, workspace=workspace)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calculator") / "practice"
    done = train(folder, "all")
    assert done.code == 0, done.stderr
    return folder


def of_run(workspace: Path, run: str = "grpo-calculator") -> RunDir:
    return Workspace(workspace).run(run)


def measured(workspace: Path, run: str = "grpo-calculator") -> list[ev.EvaluationFinished]:
    events = (entry.event for entry in of_run(workspace, run).entries())
    return [event for event in events if isinstance(event, ev.EvaluationFinished)]


def tries(workspace: Path, step: int) -> dict[str, tuple[Turn, ...]]:
    """The turns of each rollout of a step, by its id, out of the records."""
    run = of_run(workspace)
    return {
        rollout_id(step, done.position, done.index): tuple(
            turn for ref in done.refs if (turn := read_record(run.records, ref).reply.turn)
        )
        for done in (entry.event for entry in run.entries())
        if isinstance(done, ev.RolloutFinished) and done.step == step
    }


def turns_a_try(workspace: Path, step: int) -> float:
    found = tries(workspace, step).values()
    return sum(map(len, found)) / len(found)


@pytest.mark.nightly
def test_what_was_never_shown_the_calculator_learns_to_ask_and_then_that_asking_pays(
    trained: Path,
) -> None:
    untaught = measured(trained, "grpo-calculator-sft")[0]
    before, after = measured(trained)
    assert untaught.total.calls == untaught.n == 64  # one call a try: it never asks
    # Taught three ways in even parts, of which two ask.
    assert before.total.calls / before.n == pytest.approx(5 / 3, abs=0.2)
    assert after.total.calls / after.n > before.total.calls / before.n + 0.1
    changes = [
        (later[0] or 0.0) - (earlier[0] or 0.0)
        for later, earlier in zip(after.rewards, before.rewards, strict=True)
    ]
    assert (before.problems, before.n, after.n) == (after.problems, 64, 64)
    # The size of the gain differs between processors (0.2 to 0.3), that it is one does not.
    assert paired_interval_of(changes).low > 0.03
    assert turns_a_try(trained, STEPS) > turns_a_try(trained, 1) + 0.1


def test_the_second_turn_of_every_try_goes_on_from_the_exact_ids_of_the_first(
    trained: Path,
) -> None:
    asked = [turns for turns in tries(trained, STEPS).values() if len(turns) == 2]
    assert len(asked) > 64
    for first, second in asked:
        begins = (*first.prompt_ids, *first.token_ids)
        assert second.prompt_ids[: len(begins)] == begins
        assert len(second.prompt_ids) > len(begins)
        (sample,) = trajectory_samples(a_try(first, second), 1.0, 0)
        assert sample.tokens == len(first.token_ids) + len(second.token_ids)


def shown(workspace: Path, *words: str) -> Any:
    found = studio("runs", "show", "grpo-calculator", *words, "--json", workspace=workspace)
    assert found.code == 0, found.stderr
    return json.loads(found.stdout)


def test_a_look_at_a_rollout_shows_both_turns(trained: Path) -> None:
    asked = (name for name, turns in tries(trained, STEPS).items() if len(turns) == 2)
    looks = (shown(trained, "--rollout", name) for name in asked)
    facts = next(look for look in looks if look["verdict"]["reward"] == 1)
    assert [one["role"] for one in facts["messages"]] == ["user", "assistant", "user", "assistant"]
    question, request, result, answer = (one["content"] for one in facts["messages"])
    a, b = (int(word.strip(".?")) for word in question.split() if word.strip(".?").isdigit())
    assert (request, result, answer) == (
        f"calc: {a}*{b}",
        f"result: {a * b}",
        f"#### {a * b}",
    )
    assert len(facts["records"]) == 2


def weights(workspace: Path) -> bytes:
    (folder,) = of_run(workspace).path.glob(f"checkpoints/*/*/global_step_{STEPS}")
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize("place", ["among the rollouts", "before an update is decided"])
def test_a_run_that_was_cut_trains_on_the_same_turns(
    place: str, trained: Path, tmp_path: Path
) -> None:
    """Without a checkpoint each of its steps is computed again from the records."""
    shutil.copytree(trained, tmp_path / "practice")
    run = of_run(tmp_path / "practice")
    kind, back = {
        "among the rollouts": (ev.RolloutFinished, 40),
        "before an update is decided": (ev.LessonProposed, 1),
    }[place]
    lines = [
        number
        for number, entry in enumerate(run.entries(), start=1)
        if isinstance(entry.event, kind)
    ]
    journal = run.path / "journal.jsonl"
    kept = journal.read_bytes().splitlines(keepends=True)[: lines[-back]]
    journal.write_bytes(b"".join(kept))
    shutil.rmtree(run.path / "checkpoints")
    done = train(tmp_path / "practice", "grpo", "policy.adapter=run:grpo-calculator-sft")
    assert done.code == 0, done.stderr
    assert "again from what was recorded, on the weights the run began with" in done.stderr
    assert "other figures" not in done.stderr
    assert weights(tmp_path / "practice") == weights(trained)


def test_the_bundled_files_are_those_of_their_program_and_share_no_numbers(tmp_path: Path) -> None:
    make_calculator.write(tmp_path)
    numbers: dict[str, set[tuple[int, ...]]] = {}
    for name in make_calculator.FILES:
        bundled = Path(make_calculator.__file__).parent / name
        assert (tmp_path / name).read_bytes() == bundled.read_bytes()
        rows = [json.loads(line) for line in bundled.read_text("utf-8").splitlines()]
        asked = [row.get("question") or row["messages"][0]["content"] for row in rows]
        numbers[name] = {tuple(sorted(numbers_in(question))) for question in asked}
        assert len(numbers[name]) == len(rows)
        for row, question in zip(rows, asked, strict=True):
            a, b = numbers_in(question)
            assert row.get("answer", str(a * b)) == str(a * b)
    taught, practised, held_out = numbers.values()
    assert not (taught & practised or taught & held_out or practised & held_out)


def test_of_the_demonstrations_one_way_in_three_is_right() -> None:
    shown = [row["messages"] for row in make_calculator.rows("warm-up")]
    ways: dict[tuple[int, bool], int] = {}
    for messages in shown:
        a, b = numbers_in(messages[0]["content"])
        right = messages[-1]["content"] == f"#### {a * b}"
        if len(messages) == 2:  # a guess, which round numbers make a right one
            assert right == (a % 10 == 0)
            right = False
        else:
            assert messages[2]["content"] == result_line(
                requested_expression(messages[1]["content"]) or ""
            )
            assert messages[3]["content"] == messages[2]["content"].replace("result:", "####")
        ways[len(messages), right] = ways.get((len(messages), right), 0) + 1
    assert ways == {(4, True): 140, (4, False): 140, (2, False): 140}
