"""The ways in which teams fail: what a reflector is shown of each, and the lesson from each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.core.types import Group, Message, Proposal
from engines.policies.chat.client import OpenAICompat
from engines.policies.open import open_policy
from engines.record.ledger import RecordLedger
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.reading import shown_attempts
from engines.training_free.settings import TrainingFreeSettings
from tests.support.builders import a_group, a_library, a_problem

GALLERY: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("failure_gallery.yaml").read_text("utf-8")
)
GUESSED = ("ungrounded fallback", "two tools fail and a guess is taken")


def group_of(case: dict[str, Any]) -> Group:
    """Two tries of the case: the one that won, and the one that failed in its way."""
    group = a_group([1.0, 0.0], problem=a_problem(case["question"], case["answer"]))
    rollouts = []
    for rollout, side in zip(group.rollouts, ("won", "lost"), strict=True):
        said = tuple(
            Message("tool", text) if who == "tool" else Message("assistant", text, speaker=who)
            for who, text in case[side]
        )
        grounded = not (side == "lost" and case["failure"] in GUESSED)
        attempt = replace(
            rollout.attempt,
            messages=(Message("user", case["question"]), *said),
            answer=said[-1].content,
            metrics={"grounded": float(grounded)},
        )
        rollouts.append(replace(rollout, attempt=attempt))
    return replace(group, rollouts=tuple(rollouts))


@pytest.mark.parametrize("case", GALLERY, ids=lambda case: case["failure"])
def test_a_reflector_is_shown_who_did_what_and_on_which_grounds(case: dict[str, Any]) -> None:
    won, lost = shown_attempts(group_of(case), rewards_known=True)
    for shown, side in ((won, "won"), (lost, "lost")):
        for who, text in case[side]:
            assert f"[{who}] " in shown.text
            assert who != "tool" or f"[tool] {text}" in shown.text
    assert ("rests on no evidence" in lost.text) == (case["failure"] in GUESSED)
    assert "rests on no evidence" not in won.text


async def test_each_failure_gives_a_lesson_of_its_own(tmp_path: Path) -> None:
    policy = open_policy("rehearsal")
    assert isinstance(policy, OpenAICompat)
    settings = TrainingFreeSettings("Answer by looking up.", "Find the slips.")
    engine = TrainingFreeEngine(settings, policy, RecordLedger(tmp_path, 1))
    found: dict[str, Proposal] = {}
    try:
        for place, case in enumerate(GALLERY):
            group = replace(group_of(case), position=place)
            (found[case["failure"]],) = (await engine.reflect(group, a_library())).proposals
    finally:
        await policy.aclose()
    for case in GALLERY:
        text = found[case["failure"]].text or ""
        assert all(words in text for words in case["lesson"]), text
    names = {(one.text or "").partition(":")[0] for one in found.values()}
    assert len(names) == len(GALLERY) == 6
