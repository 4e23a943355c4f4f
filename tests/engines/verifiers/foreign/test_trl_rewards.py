"""TRL's `reward(completions, **columns)` unchanged: columns, groups, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

from engines.core.types import Problem, Verdict
from engines.data.dataset import read_problems
from engines.verifiers.foreign.calls import shared_columns
from engines.verifiers.foreign.verifier import FunctionSettings, FunctionVerifier
from engines.verifiers.open import open_verifier
from tests.support.builders import a_rollout
from tests.support.foreign_files import FILES, a_file, judged

BROKEN = FILES / "broken_trl.py"

ROW = {
    "question": "Half of one?",
    "answer": "0.50",
    "level": 2,
    "tags": ["easy", "sums"],
    "extra": {"tolerance": 0.01, "none": None, "deep": [1, {"a": "é"}]},
    "solution": "worked out: 1/2",
}


async def test_every_column_of_the_data_set_arrives_unchanged(tmp_path: Path) -> None:
    data = tmp_path / "set.jsonl"
    data.write_text(json.dumps(ROW) + "\n")
    (problem,) = read_problems(data)
    verifier = FunctionVerifier(
        FunctionSettings(), FILES / "columns_trl.py", columns=shared_columns([problem])
    )
    await verifier.check()
    for count in (1, 3):  # a try alone, as the loop hands them over, and a group at once
        rollouts = [a_rollout("0.5", index=index) for index in range(count)]
        verdicts = await verifier.verify(problem, rollouts)
        assert verdicts == (Verdict(1.0, metrics={"completions": float(count)}),) * count
    await verifier.aclose()


async def test_a_group_that_is_verified_at_once_is_one_call(tmp_path: Path) -> None:
    source = """
        def nearest(completions, ground_truth, **kwargs):
            # Relative to the group: it can only be told with all of them at hand.
            errors = [abs(float(c) - float(t)) for c, t in zip(completions, ground_truth)]
            return [float(error == min(errors)) for error in errors]
        """
    path = a_file(tmp_path, source)
    assert [v.reward for v in await judged(path, "9", "4", "6")] == [0.0, 1.0, 1.0]
    alone = [(await judged(path, answer))[0].reward for answer in ("9", "4", "6")]
    assert alone == [1.0, 1.0, 1.0]  # lists of one: what the loop does, try by try


# What the function does, and what came back in words; "" where it names no line.
WRONG = {
    "raises": ("KeyError: 'missing'", ":6"),
    "too few": ("the verifier returned 0 rewards for 1 completions", ""),
    "too many": ("the verifier returned 2 rewards for 1 completions", ""),
    "no list": ("the verifier returned 1.0, not a list of rewards", ""),
    "text": ("the verifier returned '1.0', not a number", ""),
    "nan": ("the verifier returned nan", ""),
    "infinite": ("the verifier returned inf", ""),
    "beyond": (
        "the verifier returned 1.5, outside 0 to 1; set verifier.range=[0,1.5] or wider, so that "
        "it is mapped to 0 to 1",
        "",
    ),
    "nothing": ("the verifier returned None, not a list of rewards", ""),
}


async def test_a_wrong_return_is_a_failure_that_names_file_function_and_what_came_back() -> None:
    verifier = open_verifier({"name": "function", "file": str(BROKEN)})
    problem = Problem("p", "q", "5")
    for said, (what, line) in WRONG.items():
        (verdict,) = await verifier.verify(problem, [a_rollout(said)])
        error = f"failed: {what} (closeness_reward in broken_trl.py{line})"
        assert verdict == Verdict(None, error=error), said
    # The process goes on, and the next answer has its verdict.
    (verdict,) = await verifier.verify(problem, [a_rollout("5")])
    assert verdict == Verdict(1.0)
    await verifier.aclose()


async def test_a_wrong_length_costs_the_whole_group() -> None:
    failed = await judged(BROKEN, "too few", "5", "5")
    error = "failed: the verifier returned 2 rewards for 3 completions"
    assert failed == [Verdict(None, error=f"{error} (closeness_reward in broken_trl.py)")] * 3


async def test_a_broken_function_in_a_list_leaves_the_whole_unjudged_and_is_named() -> None:
    spec = {
        "name": "weighted",
        "of": ["text", {"name": "step", "of": {"name": "function", "file": str(BROKEN)}}],
    }
    verifier = open_verifier(spec)
    problem = Problem("p", "q", "5")
    bad, good = [(await verifier.verify(problem, [a_rollout(s)]))[0] for s in ("nan", "5")]
    await verifier.aclose()
    assert (bad.reward, good.reward) == (None, 1.0)
    where = "(closeness_reward in broken_trl.py)"
    assert bad.error == f"failed: step: the verifier returned nan {where}"
    assert good.metrics["step/broken_trl"] == 1.0
