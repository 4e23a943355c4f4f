"""Rules that no model can know are learned from what the verifier says, through the real loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studio.facts.evaluation import rate_changes
from studio.facts.run import run_nothing_read
from tests.support.harness import Practised, practised
from tests.support.house_rules import HouseVerifier, Reflector, practising, write_problems

HELD_OUT = 40


async def practise_house(
    folder: Path,
    verifier: HouseVerifier,
    *overrides: str,
    reflector: Any = None,
    answers: bool = True,
    luck: float = 0.0,
) -> Practised:
    """Two epochs of two steps, measured before and after each."""
    problems = write_problems(folder / "notes.jsonl", 12, 1, answers=answers)
    held_out = write_problems(folder / "others.jsonl", HELD_OUT, 2)
    return await practised(
        folder / "practice",
        f"data.practice={problems}",
        "practice.epochs=2",
        "practice.batch_size=6",
        "practice.group_size=4",
        "verifier=judge",
        "evaluation.do_eval=true",
        f"evaluation.data={held_out}",
        "evaluation.limit=null",
        *overrides,
        change=practising(verifier, reflector, luck),
    )


def held_out_means(done: Practised) -> list[float]:
    return [found.mean or 0.0 for found in done.state.evaluations]


async def test_right_or_wrong_alone_teaches_by_the_expected_answers(tmp_path: Path) -> None:
    """Known defect: twelve of twelve groups were all wrong, none was read, and nothing learned."""
    done = await practise_house(tmp_path, HouseVerifier(), reflector=Reflector())
    before, *_, after = held_out_means(done)
    assert before == 0.0 and after >= 0.9
    assert done.state.steps[1].groups["critique"] == 4  # of six: what is read has a limit
    assert len(done.library.experiences) == 3


async def test_right_or_wrong_with_a_critique_teaches_by_what_it_says(tmp_path: Path) -> None:
    """No answer is in the data: what the verifier says is all there is."""
    verifier = HouseVerifier(speaks=True)
    done = await practise_house(tmp_path, verifier, reflector=Reflector(), answers=False)
    before, *_, after = held_out_means(done)
    assert before == 0.0 and after >= 0.9


async def test_graded_rewards_teach_as_before(tmp_path: Path) -> None:
    """By contrast alone, without answers and critiques, and without the new readings."""
    off = "practice.read_without_contrast=0"
    for name, more in (("off", (off,)), ("on", ())):
        verifier = HouseVerifier(graded=True)
        done = await practise_house(
            tmp_path / name, verifier, *more, reflector=Reflector(), answers=False, luck=0.15
        )
        before, *_, after = held_out_means(done)
        assert before < 0.3 and after >= 0.9


async def test_with_lessons_that_are_beside_the_point_the_comparison_cannot_tell(
    tmp_path: Path,
) -> None:
    verifier = HouseVerifier(graded=True)
    useless = Reflector(useless=True)
    done = await practise_house(tmp_path, verifier, reflector=useless, luck=0.15)
    assert len(done.library.experiences) >= 2
    (change,) = rate_changes(done.state.evaluations)
    assert change.comparison.verdict == "cannot tell"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "give a verifier with a critique"),
        (("practice.read_without_contrast=0",), "set it above 0"),
    ],
)
async def test_where_nothing_says_why_nothing_is_read_and_that_is_told(
    more: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    quiet = ("practice.epochs=1", "evaluation.do_eval=false", *more)
    done = await practise_house(
        tmp_path, HouseVerifier(), *quiet, reflector=Reflector(), answers=bool(more)
    )
    assert done.state.group_outcomes() == {"all-wrong": 12}
    text = run_nothing_read(done.state)
    assert "12 of 12 groups all wrong" in text and says in text
    assert done.state.status == "finished"
