"""What a verifier file of a Youtu-Agent checkout reads from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.verifiers.foreign.calls import CannotRead, file_utils_for
from tests.support.foreign_files import a_file, judged

JUDGES = """
    from utu.utils import FileUtils, get_logger
    logger = get_logger(__name__, "INFO")
    def verify_func(sample, timeout_score=0, **kwargs):
        try:
            text = FileUtils.load_prompts("own/judge")["ASK"]
            asked = FileUtils.get_jinja_template_str(text).render(said=sample.response)
            return {"reward": float(asked == "was 5 said?"), "reasoning": asked}
        except Exception:
            return {"reward": timeout_score, "reasoning": None}
    """


def prompts(root: Path, text: str) -> Path:
    folder = root / "utu" / "prompts" / "own"
    folder.mkdir(parents=True)
    return a_file(folder, text, "judge.yaml")


@pytest.mark.parametrize("below", ["utu/practice/verify", "elsewhere"])
async def test_a_prompt_of_the_checkout_is_found_from_wherever_the_file_lies_in_it(
    tmp_path: Path, below: str
) -> None:
    prompts(tmp_path, "ASK: was {{ said }} said?\n")
    (tmp_path / below).mkdir(parents=True)
    (verdict,) = await judged(a_file(tmp_path / below, JUDGES), "5", timeout_score=0)
    assert (verdict.reward, verdict.critique) == (1.0, "was 5 said?")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "the verifier lies in no checkout"),
        ("ASK: [", "judge.yaml cannot be read (it is not YAML)"),
    ],
)
async def test_a_prompt_that_cannot_be_had_is_no_verdict_although_the_file_makes_one_of_it(
    tmp_path: Path, text: str | None, words: str
) -> None:
    if text is not None:
        prompts(tmp_path, text)
    (tmp_path / "mine").mkdir()
    (verdict,) = await judged(a_file(tmp_path / "mine", JUDGES), "5", timeout_score=0)
    assert verdict.reward is None
    assert verdict.error is not None and words in verdict.error


def test_a_missing_prompt_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "utu" / "prompts").mkdir(parents=True)
    utils = file_utils_for(tmp_path / "mine.py")
    with pytest.raises(CannotRead, match=r"utu/prompts/none\.yaml cannot be read \(No such file"):
        utils.load_prompts("none.yaml")
