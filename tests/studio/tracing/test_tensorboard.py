"""Scalars for TensorBoard, read back as TensorBoard reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from studio.tracing.curves import ScalarWriter


def a_clock() -> Iterator[float]:
    return (float(second) for second in count(1_000_000))


def scalars(folder: Path, first_step: int = 1) -> ScalarWriter:
    ticks = a_clock()
    return ScalarWriter(folder, first_step=first_step, tell=pytest.fail, clock=lambda: next(ticks))


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder))
    read.Reload()
    # TensorBoard keeps float32: 0.1 comes back with seven digits.
    return [(point.step, round(point.value, 6)) for point in read.Scalars(tag)]


def test_figures_are_read_back_by_step_and_on_disk_before_it_is_closed(tmp_path: Path) -> None:
    written = scalars(tmp_path / "monitor" / "tensorboard")
    written.write(1, {"reward": 0.25, "kl": 0.0})
    written.write(2, {"reward": 0.5})
    written.write(0, {"skills-heldout": 0.3}, group="held-out")
    assert curve(tmp_path / "monitor" / "tensorboard", "train/reward") == [(1, 0.25), (2, 0.5)]
    assert curve(tmp_path / "monitor" / "tensorboard", "train/kl") == [(1, 0.0)]
    assert curve(tmp_path / "monitor" / "tensorboard", "held-out/skills-heldout") == [(0, 0.3)]
    written.close()
    written.write(3, {"reward": 0.5})  # after its end it is no error, and nothing
    written.close()
    assert len(curve(tmp_path / "monitor" / "tensorboard", "train/reward")) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_shows_each_step_once_and_as_it_was_last(tmp_path: Path) -> None:
    first = scalars(tmp_path)
    for step in (1, 2, 3):
        first.write(step, {"reward": step / 10})
    first.close()
    again = scalars(tmp_path, first_step=3)
    for step in (3, 4):
        again.write(step, {"reward": step / 5})
    again.close()
    assert curve(tmp_path, "train/reward") == [(1, 0.1), (2, 0.2), (3, 0.6), (4, 0.8)]


def test_without_tensorboard_it_is_told_once_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    told: list[str] = []
    written = ScalarWriter(tmp_path / "t", first_step=1, tell=told.append)
    for step in (1, 2):
        written.write(step, {"reward": 1.0})
    written.close()
    assert len(told) == 1
    assert "pip install" in told[0] and "[tensorboard]'" in told[0]
    assert not (tmp_path / "t").exists()


def test_a_folder_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    told: list[str] = []
    written = ScalarWriter(tmp_path / "file" / "t", first_step=1, tell=told.append)
    written.write(1, {"reward": 1.0})
    written.close()
    assert len(told) == 1
    assert told[0].startswith("No more scalars for TensorBoard")
