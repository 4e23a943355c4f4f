"""Practice on logged rollouts of other systems."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from engines.core.events import RolloutJudged
from tests.support.harness import practised

DATA = Path(os.environ.get("PRACTICE_DATA", Path(__file__).parents[4] / "shared/data"))
ROLLOUTS = DATA / "gsm8k/rollouts.jsonl"


async def test_the_bundled_log_gives_a_library(tmp_path: Path) -> None:
    done = await practised(tmp_path, preset="replay")
    assert done.state.group_outcomes()["used"] == 10  # ten of its twelve groups are mixed
    assert done.state.group_outcomes()["all-right"] == 1
    assert done.state.group_outcomes()["critique"] == 1  # all wrong, and the answers are known
    assert done.texts


@pytest.mark.skipif(not ROLLOUTS.exists(), reason=f"real data is not at {DATA} (set PRACTICE_DATA)")
async def test_real_logged_rollouts_are_scored_as_their_authors_did(tmp_path: Path) -> None:
    flags = [
        [rollout["reward"] for rollout in orjson.loads(line)["rollouts"]]
        for line in ROLLOUTS.read_bytes().splitlines()[:200]
    ]
    scored: dict[tuple[int, int], float | None] = {}
    done = await practised(
        tmp_path,
        f"data.practice={ROLLOUTS}",
        "data.truncate=200",
        "data.shuffle=false",
        "practice.batch_size=20",
        "practice.group_size=4",
        "practice.read_without_contrast=0",
        preset="replay",
    )
    for entry in done.run.entries():
        if isinstance(entry.event, RolloutJudged):
            problem = (entry.event.step - 1) * 20 + entry.event.position
            scored[problem, entry.event.index] = entry.event.verdict.reward
    assert len(scored) == 800
    wrong = [at for at, reward in scored.items() if reward != flags[at[0]][at[1]]]
    assert wrong == []
    # The groups as the authors' flags alone would have it.
    expected = {
        "used": sum(len(set(group)) > 1 for group in flags),
        "all-right": sum(set(group) == {1.0} for group in flags),
        "all-wrong": sum(set(group) == {0.0} for group in flags),
    }
    assert {name: done.state.group_outcomes()[name] for name in expected} == expected  # type: ignore[index]
    assert sum(expected.values()) == 200
    assert done.texts
