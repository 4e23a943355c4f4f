"""What every verifier owes the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from engines.core.protocols import Verifier
from engines.core.types import Attempt, Problem, Rollout, Verdict
from engines.verifiers.foreign.verifier import FunctionVerifier
from engines.verifiers.open import open_verifier

# Functions of the user's own, one of each signature, that need a truth as ours do.
YOUTU = """
def verify_func(sample, timeout_score=0, **kwargs):
    if not (sample.correct_answer or "").strip():
        return {"reward": None}
    right = sample.correct_answer in sample.response
    return {"reward": float(right), "reasoning": f"looked for {sample.correct_answer!a}"[:100]}
"""
TRL = """
def reward(completions, ground_truth, **kwargs):
    pairs = zip(completions, ground_truth)
    return [float(t in c) if (t or "").strip() else None for c, t in pairs]
"""
AGENTSCOPE = """
from agentscope.tuner import JudgeOutput
async def judge(task, response, auxiliary_models=None):
    truth = (task["answer"] or "").strip()
    return JudgeOutput(reward=float(truth in response.get_text_content()) if truth else None)
"""

NAMED = {"name": "text", "mode": "regex", "pattern": r"is (\w+)"}

# Each with an expected answer and a response that it must find right.
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "math": ({"name": "math"}, "0.5", "A: 1/2"),
    "exact": ({"name": "text"}, "Paris", "Answer: paris"),
    "contains": ({"name": "text", "mode": "contains"}, "Paris", "It is Paris."),
    "weighted": (
        {
            "name": "weighted",
            "of": [NAMED, {"name": "text", "mode": "contains", "weight": 2, "as": "words"}],
        },
        "Paris",
        "It is Paris.",
    ),
    "accuracy": ({"name": "accuracy", "by": "text"}, "Paris", "Answer: paris"),
    "length_penalty": (
        {"name": "length_penalty", "of": "text", "unit": "chars", "max_length": 20},
        "Paris",
        "Answer: paris",
    ),
    "step": ({"name": "step", "of": {"name": "text"}}, "Paris", "Answer: paris"),
    "choice": ({"name": "text", "mode": "choice"}, "B", "(B)"),
    "regex": ({"name": "text", "mode": "regex", "pattern": r"= (\d+)"}, "4", "2 + 2 = 4"),
    "youtu": ({"name": "function", "source": YOUTU}, "Paris", "It is Paris."),
    "trl": ({"name": "function", "source": TRL}, "Paris", "It is Paris."),
    "agentscope": ({"name": "function", "source": AGENTSCOPE}, "Paris", "It is Paris."),
}

WEIRD = {
    "empty": "",
    "blank": " \n\t ",
    "NUL": "A: 4\x002",
    "lone surrogate": "A: \ud800",
    "escape sequence": "\x1b[31mA: 42\x1b[0m",
    "unclosed box": "\\boxed{42",
    "only markers": "#### Answer: A: \\boxed{}",
    "many braces": "\\boxed{" * 5000,
    "a megabyte of one letter": "a" * 1_000_000,
    "a megabyte of lines": "\n" * 1_000_000,
    "a megabyte of blanks": " " * 999_999 + "x",
    "a megabyte of markers": "answer is " * 100_000,
    "a megabyte in a box": "\\boxed{" + "{}" * 500_000 + "}",
    "right to left": "A: ٤٢",
}


one_loop = pytest.mark.asyncio(loop_scope="module")  # that of the verifiers they share


@pytest_asyncio.fixture(params=CASES, ids=list(CASES), scope="module", loop_scope="module")
async def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Verifier, str, str]]:
    """One verifier of each kind for all tests: the processes of some take a second to start."""
    spec, gold, right = CASES[request.param]
    verifier = open_verifier(written(spec, tmp_path_factory.mktemp("verifier")))
    yield verifier, gold, right
    await verifier.aclose()


def written(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The spec, of a function that has a file."""
    if "source" not in spec:
        return spec
    (folder / "mine.py").write_text(spec["source"])
    return {"name": "function", "file": str(folder / "mine.py")}


def a_rollout(answer: str | None, index: int = 0, *, failed: bool = False) -> Rollout:
    attempt = Attempt((), answer, "failed" if failed else "ok", error="no reply" * failed or None)
    return Rollout(
        attempt=attempt,
        epoch=1,
        step=1,
        position=0,
        index=index,
        seed=0,
        policy_version=0,
        library_version=0,
    )


@one_loop
async def test_verdicts_are_aligned_with_rollouts(case: tuple[Verifier, str, str]) -> None:
    verifier, gold, right = case
    rollouts = [a_rollout(right if index in (1, 4) else "nothing", index) for index in range(6)]
    verdicts = await verifier.verify(Problem("p", "q", gold), rollouts)
    assert [verdict.reward for verdict in verdicts] == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert all(verdict.error is None for verdict in verdicts)
    own = isinstance(verifier, FunctionVerifier)  # which may say nothing
    assert own or all(verdict.critique for verdict in verdicts)


@one_loop
async def test_no_rollouts_give_no_verdicts(case: tuple[Verifier, str, str]) -> None:
    verifier, gold, _ = case
    assert list(await verifier.verify(Problem("p", "q", gold), [])) == []


@one_loop
async def test_a_weird_answer_is_a_fact_and_never_an_error(
    case: tuple[Verifier, str, str],
) -> None:
    verifier, gold, right = case
    rollouts = [a_rollout(text, index) for index, text in enumerate(WEIRD.values())]
    verdicts = await verifier.verify(Problem("p", "q", gold), [*rollouts, a_rollout(right)])
    for name, verdict in zip(WEIRD, verdicts, strict=False):
        assert verdict.reward in (0.0, None), name
        assert (verdict.reward is None) == (verdict.error is not None), name
        assert len(verdict.critique or "") < 200, name
        orjson.dumps([verdict.critique, verdict.error])  # the journal can hold it
    assert verdicts[-1].reward == 1.0


@one_loop
async def test_a_failed_attempt_is_unjudged(case: tuple[Verifier, str, str]) -> None:
    verifier, gold, right = case
    rollouts = [a_rollout(None, 0, failed=True), a_rollout(right, 1, failed=True)]
    for verdict in await verifier.verify(Problem("p", "q", gold), rollouts):
        assert verdict.reward is None
        assert verdict.error == "failed: rollout failed: no reply"


@one_loop
@pytest.mark.parametrize("truth", [None, "", "  "])
async def test_without_a_truth_there_is_no_reward(
    case: tuple[Verifier, str, str], truth: str | None
) -> None:
    verifier, _, right = case
    (verdict,) = await verifier.verify(Problem("p", "q", truth), [a_rollout(right)])
    assert verdict.reward is None
    assert verdict == Verdict(None)


@one_loop
async def test_a_weird_truth_is_no_error_either(case: tuple[Verifier, str, str]) -> None:
    verifier, _, right = case
    for truth in ("\x00", "\ud800", "$" * 300, "\\boxed{", "x" * 20_000):
        (verdict,) = await verifier.verify(Problem("p", "q", truth), [a_rollout(right)])
        assert verdict.reward in (0.0, None)


@pytest.mark.parametrize("name", CASES)
async def test_closing_twice_is_fine(name: str, tmp_path: Path) -> None:
    spec, gold, right = CASES[name]
    verifier = open_verifier(written(spec, tmp_path))
    await verifier.verify(Problem("p", "q", gold), [a_rollout(right)])
    await verifier.aclose()
    await verifier.aclose()
