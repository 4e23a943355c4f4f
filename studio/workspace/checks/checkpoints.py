"""Checkpoints of a run that trains weights: as they were written, and there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.grpo.checkpoint.folders import check_seal
from engines.pipeline.checkpoints import Checkpoints
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import RunDir
from engines.record.yaml_text import load_yaml


def checkpoint_troubles(run: RunDir, state: RunState) -> Iterator[Trouble]:
    """Checkpoints that are not as they were written, or gone although nothing removes them."""
    if not state.checkpoints:
        return
    kept = Checkpoints(run.path, run.path, _missing_engine_text, keep=_kept_checkpoints(run))
    removed = kept.removable_checkpoints(state)
    for saved in state.checkpoints:
        folder = run.path / saved.folder
        if not folder.exists():
            if saved not in removed:
                cause = f"the checkpoint of step {saved.step} is gone."
                yield Trouble(str(folder), cause, _CHECKPOINT, damage=False)
            continue
        try:
            check_seal(folder)
        except StudioError as error:
            move = f"{_CHECKPOINT} Once nothing of it is needed, remove the folder."
            yield Trouble(error.place, error.cause, move)


_CHECKPOINT = (
    "Nothing mends it, and the run goes on without: an earlier one serves, and later steps are "
    "computed again from what was recorded."
)


async def _missing_engine_text(folder: Path) -> str:
    raise AssertionError(f"nothing is saved in {folder} by a look at it")


def _kept_checkpoints(run: RunDir) -> int:
    """How many checkpoints the run file keeps; 1 where it cannot be read."""
    try:
        return int(load_yaml(run.run_file.read_text("utf-8"))["grpo"]["keep"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError, RecursionError):
        return 1
