"""What a training run stands on that goes on: the weights it began with, and its settings.

Owns the refusals of weights that would silently be others. Reads journals and checkpoints;
writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.core import events as ev
from engines.core.errors import ConfigError, StudioError
from engines.grpo.checkpoint.folders import ADAPTER, check_seal
from engines.pipeline.replay_training import HistorySegment
from studio.config.settings.fingerprint import differences

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel
    from studio.run.plan import RunPlan

_ALWAYS = ("seed", "practice.algorithm", "policy.model", "policy.adapter", "grpo.lora.")
_BY_ALGORITHM = {
    "grpo": ("policy.local.", "policy.temperature", "policy.max_tokens", "grpo."),
    "sft": ("policy.local.", "sft.", "agent.instructions"),
}
_DECIDE_NOTHING = ("grpo.reject_",)  # of what an update is; only of whether it passes


def check_recomputable(
    chapters: tuple[HistorySegment, ...], fingerprint: Mapping[str, Any], place: str, *, fork: bool
) -> None:
    """Refuse to compute updates again under other settings than they were made with.

    Args:
        chapters: the history that is gone on from.
        fingerprint: of the settings now.
        place: names what was asked for.
        fork: whether a new run adopts them.

    Raises:
        ConfigError: training settings differ, and no checkpoint stands at the last step.
    """
    made: dict[int, tuple[str, ...]] = {}
    saved: dict[int, Path] = {}
    settings: Mapping[str, Any] = {}
    for chapter in chapters:
        for event in chapter.own_events():
            if isinstance(event, ev.RunStarted | ev.RunResumed):
                settings = event.settings or settings
            elif isinstance(event, ev.LessonProposed):
                trained = settings.get("practice.algorithm") in _BY_ALGORITHM
                made[event.step] = (
                    tuple(_changed_settings(settings, fingerprint)) if trained else ()
                )
            elif isinstance(event, ev.CheckpointSaved):
                saved[event.step] = chapter.root / event.folder
    if not any(made.values()):
        return
    steps = sorted((step for step, folder in saved.items() if _is_intact(folder)), reverse=True)
    newest = steps[0] if steps else 0
    names = {name for step, changed in made.items() if step > newest for name in changed}
    if not names:
        return
    last = max(step for step in made if made[step])
    having = f"of step {' and '.join(map(str, steps[:4]))}" if steps else "of no step"
    choices = " or ".join(f"--restart-step {step}" for step in (*steps[:4], 0))
    before = "" if fork else ", or finish the run as it is up to its next checkpoint first"
    raise ConfigError(
        place,
        f"step {newest + 1 if newest + 1 == last else f'{newest + 1} to {last}'} would be "
        f"computed again under other settings ({', '.join(sorted(names))}), which gives other "
        f"weights; there is a checkpoint {having}.",
        f"Go on from such a step ({choices}), leave those settings as they were{before}.",
    )


def check_weights(plan: RunPlan, local: LocalModel) -> None:
    """Refuse a model or an adapter that is not what the run, or its parent, began with.

    Raises:
        ConfigError: its weights are others; nothing has been recorded.
    """
    state = plan.state or (plan.parent.state() if plan.parent else None)
    if state is None or not state.engine_facts:
        return
    began, now = state.engine_facts, weight_facts(local)
    accepted = set(_changed_settings(state.settings, plan.fingerprint))
    of = plan.parent.run if plan.parent else plan.run.run
    afresh = "or begin anew with --restart-step 0 or another --name."
    if not accepted & {"policy.local.dtype", "policy.local.quantise"}:
        if began.get("dtype", now["dtype"]) != now["dtype"]:
            raise ConfigError(
                f"run {of}",
                f"its weights were {began['dtype']}, and here they are {now['dtype']}.",
                f"Go on where they are {began['dtype']}, {afresh}",
            )
        if began.get("base", now["base"]) != now["base"]:
            raise ConfigError(
                f"run {of}",
                f"the weights of {local.name} are not those it began with.",
                f"Put the model back, {afresh}",
            )
    if "policy.adapter" in accepted or "base" not in began:
        return
    if began.get("adapter", now["adapter"]) != now["adapter"]:
        raise ConfigError(
            f"run {of}",
            f"the adapter {local.settings.adapter} is not the one it began with.",
            f"Put the adapter back, {afresh}",
        )


def weight_facts(local: LocalModel) -> dict[str, Any]:
    """What a model was loaded as, with a digest of the adapter that it began with."""
    return {**local.facts(), "adapter": _adapter_digest(local.settings.adapter)}


def _changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Settings that decide what an update is and differ."""
    decide = (*_ALWAYS, *_BY_ALGORITHM.get(str(new.get("practice.algorithm")), ()))
    for name, _, _ in differences(old, new):
        if name.startswith(_DECIDE_NOTHING) or not name.startswith(decide):
            continue
        if name != "policy.max_tokens" or new.get("grpo.aggregation") == "dr_grpo":
            yield name


def _is_intact(folder: Path) -> bool:
    try:
        check_seal(folder)
    except StudioError:
        return False
    return True


def _adapter_digest(adapter: Path | None) -> str | None:
    """Of an adapter's weights; None without one."""
    if adapter is None or not (adapter / ADAPTER).is_file():
        return None
    with (adapter / ADAPTER).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
