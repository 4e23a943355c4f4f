"""Same seed, same journal; same library whichever way the model is reached."""

from __future__ import annotations

from pathlib import Path

from engines.policies.rehearsal.server import background_server
from tests.support.harness import comparable, practised

SMALL = ("practice.epochs=1", "data.truncate=8")


async def test_concurrency_does_not_change_the_journal(tmp_path: Path) -> None:
    two_steps = ("practice.epochs=1", "practice.batch_size=8", "data.truncate=16")
    alone = await practised(tmp_path / "one", *two_steps, "practice.concurrency=1")
    crowd = await practised(tmp_path / "many", *two_steps, "practice.concurrency=32")
    assert comparable(alone.run) == comparable(crowd.run)
    assert len(comparable(alone.run)) > 175  # 80 rollouts, as many verdicts, 16 groups …


async def test_another_seed_gives_another_journal(tmp_path: Path) -> None:
    one = await practised(tmp_path / "one", *SMALL)
    other = await practised(tmp_path / "other", *SMALL, "seed=2")
    assert comparable(one.run) != comparable(other.run)


async def test_over_real_http_the_library_is_the_same_as_in_process(tmp_path: Path) -> None:
    inside = await practised(tmp_path / "inside", *SMALL)
    async with background_server() as url:
        outside = await practised(
            tmp_path / "outside",
            *SMALL,
            "policy.model=openai:rehearsal",
            f"policy.base_url={url}",
        )
    assert outside.texts == inside.texts
    assert outside.texts
    assert outside.state.started is not None
    assert outside.state.started.rehearsal
