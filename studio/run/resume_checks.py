"""Whether a run can be resumed or forked with these settings.

Owns the refusals: steps that do not exist, and settings, problems or weights that would silently
be others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from engines.core.errors import ConfigError, ConflictError, StudioError
from engines.core.state.run_state import RunState
from engines.core.types import Problem
from engines.data.sampler import Sampler
from engines.grpo.checkpoint.folders import ADAPTER, check_seal
from engines.pipeline.replay_training import HistorySegment
from engines.record.run_dir import RunDir
from engines.record.seal import seal_fits
from engines.record.yaml_text import load_yaml
from studio.config.loading import LoadedRun
from studio.config.run_yaml import dump_run_yaml
from studio.config.settings.fingerprint import differences
from studio.config.settings.run import RunConfig

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel

_ALWAYS = ("seed", "practice.algorithm", "policy.model", "policy.adapter", "grpo.lora.")
_GRPO = ("policy.local.", "policy.temperature", "policy.max_tokens", "grpo.")
_BY_ALGORITHM = {
    "grpo": _GRPO,
    "both": (*_GRPO, "practice.weight_steps"),
    "sft": ("policy.local.", "sft.", "agent.instructions"),
}
_DECIDE_NOTHING = ("grpo.reject_",)  # they decide whether an update passes, not what it is


def check_fork(parent: str, state: RunState, steps: int, total_steps: int) -> None:
    """Refuse to adopt steps that a run does not have, or that leave nothing to do."""
    place = f"restart_step={steps}"
    if steps > state.steps_finished:
        move = f"Choose 1 to {state.steps_finished}, 0 to start afresh, or null to resume it."
        raise ConfigError(place, f"run {parent} has finished {state.steps_finished} steps.", move)
    if steps >= total_steps:
        cause = f"the run has {total_steps} steps in all, so none would be left."
        raise ConfigError(place, cause, "Give more epochs or adopt fewer steps.")
    started = state.started
    if started is not None and steps < started.forked_steps:
        raise ConflictError(
            place,
            f"run {parent} itself adopted {started.forked_steps} steps of {started.forked_from}.",
            f"Fork that run: --resume {started.forked_from} --restart-step {steps}.",
        )


def check_problems_unchanged(
    run: str, state: RunState, problems: tuple[Problem, ...], sampler: Sampler
) -> None:
    """Refuse other problems for a step that has begun, also where changes are accepted."""
    if (now := state.current) is None:
        return
    known = now.step <= sampler.total_steps
    if known and now.problems == tuple(problems[at].id for at in sampler.batch(now.step)):
        return
    raise ConfigError(
        f"run {run}, step {now.step}",
        "it has begun with problems that are not the batch of these settings.",
        f"Finish it with the settings it began with, or start after the step before it with "
        f"--restart-step {now.step - 1}.",
    )


def check_settings_unchanged(run: str, state: RunState, fingerprint: dict[str, Any]) -> None:
    """Refuse settings that change the results of a run that has begun with others."""
    changed = list(differences(state.settings, fingerprint))
    if changed:
        shown = "; ".join(change_text(*change) for change in changed[:5])
        raise ConfigError(
            f"run {run}",
            f"settings that change its results differ from those it began with: {shown}.",
            "Undo them, accept them with --accept-changes, or start a new run with "
            "--restart-step 0 or another --name.",
        )


def change_text(name: str, old: object, new: object) -> str:
    """A changed setting; of the fields of a request only the names, since any may hold a key."""
    if name.endswith(".extra_body"):
        before, after = (value if isinstance(value, dict) else {} for value in (old, new))
        fields = [f for f in sorted({*before, *after}) if before.get(f) != after.get(f)]
        return f"{name} (in {', '.join(fields)})"
    if isinstance(old, dict) and isinstance(new, dict):
        fields = [f for f in sorted({*old, *new}) if old.get(f) != new.get(f)]
        if fields == ["digest"] and (file := old.get("file")):
            return f"{name} (the contents of {file} have changed)"
        old, new = ({f: value.get(f) for f in fields} for value in (old, new))
    return f"{name}: {old!r} → {new!r}"[:160]


def check_recomputable(
    segments: tuple[HistorySegment, ...], fingerprint: Mapping[str, Any], place: str, *, fork: bool
) -> None:
    """Refuse to compute updates again under other settings than they were made with.

    `segments` are the history that the run continues, with `fork` as a new run; `place` names what
    was asked for. A checkpoint at the last step makes all of it right.
    """
    made: dict[int, tuple[str, ...]] = {}
    saved: dict[int, Path] = {}
    for segment in segments:
        history = segment.history()
        saved |= segment.checkpoints(history)
        for number, step in history.steps.items():
            if step.lesson is None:
                continue
            before = step.lesson_settings
            trained = before.get("practice.algorithm") in _BY_ALGORITHM
            made[number] = tuple(_training_changes(before, fingerprint)) if trained else ()
    if not any(made.values()):
        return
    steps = sorted((step for step, folder in saved.items() if _is_intact(folder)), reverse=True)
    newest = steps[0] if steps else 0
    # Steps up to a checkpoint are restored from it and not computed again.
    names = {name for step, changed in made.items() if step > newest for name in changed}
    if not names:
        return
    last = max(step for step in made if made[step])
    having = f"of step {' and '.join(map(str, steps[:4]))}" if steps else "of no step"
    choices = " or ".join(f"--restart-step {step}" for step in (*steps[:4], 0))
    earlier = "" if fork else ", or finish the run as it is up to its next checkpoint first"
    raise ConfigError(
        place,
        f"step {newest + 1 if newest + 1 == last else f'{newest + 1} to {last}'} would be "
        f"computed again under other settings ({', '.join(sorted(names))}), which gives other "
        f"weights; there is a checkpoint {having}.",
        f"Go on from such a step ({choices}), leave those settings as they were{earlier}.",
    )


def check_weights(
    run: str, state: RunState | None, fingerprint: Mapping[str, Any], local: LocalModel
) -> None:
    """Refuse a model or an adapter other than the one a run began with.

    `state` is that of the run which is resumed or forked; None: there is none.
    """
    if state is None or not state.engine_facts:
        return
    began, now = state.engine_facts, weight_facts(local)
    accepted = set(_training_changes(state.settings, fingerprint))
    afresh = "or begin anew with --restart-step 0 or another --name."

    def differs(fact: str) -> bool:
        return bool(began.get(fact, now[fact]) != now[fact])

    def refusal(cause: str, move: str) -> ConfigError:
        return ConfigError(f"run {run}", cause, f"{move}, {afresh}")

    if not accepted & {"policy.local.dtype", "policy.local.quantise"}:
        if differs("dtype"):
            cause = f"its weights were {began['dtype']}, and here they are {now['dtype']}."
            raise refusal(cause, f"Resume it where they are {began['dtype']}")
        if differs("base"):
            cause = f"the weights of {local.name} are not those it began with."
            raise refusal(cause, "Put the model back")
    # Runs from before bases were noted cannot be compared by their adapter either.
    if "policy.adapter" not in accepted and "base" in began and differs("adapter"):
        cause = f"the adapter {local.settings.adapter} is not the one it began with."
        raise refusal(cause, "Put the adapter back")


def weight_facts(local: LocalModel) -> dict[str, Any]:
    """How a model was loaded, with a digest of the adapter that it began with."""
    return {**local.facts(), "adapter": _adapter_digest(local.settings.adapter)}


def _training_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Settings that decide what an update is and differ."""
    decide = (*_ALWAYS, *_BY_ALGORITHM.get(str(new.get("practice.algorithm")), ()))
    for name, _, _ in differences(old, new):
        if name.startswith(_DECIDE_NOTHING) or not name.startswith(decide):
            continue
        # Dr. GRPO alone divides its loss by the token limit.
        if name != "policy.max_tokens" or new.get("grpo.aggregation") == "dr_grpo":
            yield name


def _is_intact(folder: Path) -> bool:
    try:
        check_seal(folder)
    except StudioError:
        return False
    return True


def _adapter_digest(adapter: Path | None) -> str | None:
    if adapter is None or not (adapter / ADAPTER).is_file():
        return None
    with (adapter / ADAPTER).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ignored_settings(run: RunDir, reviewer: str, loaded: LoadedRun) -> list[str]:
    """Settings of a command that a run which has a process already does not take over.

    Compares with what that process uses: its own `run.yaml`, and the reviewer in its journal.
    """
    state = run.state()  # read now: the run may have begun since it was planned
    if state.started is None:
        return []
    ignored = [] if reviewer == state.reviewer else [f"--review {reviewer}"]
    before = read_run_yaml(run.run_file)
    if before is None:
        return ignored
    # As it would be written, so that like is compared with like and no key is shown.
    asked = load_yaml(dump_run_yaml(loaded.config, loaded.mask))
    return [*ignored, *_changed_leaves(before, asked)]


def removed_budget_limits(run_file: Path, config: RunConfig) -> list[str]:
    """A sentence for each limit that a run file had and the config of the next process lacks."""
    before = read_run_yaml(run_file)
    budget = before.get("budget") if before is not None else None
    if not isinstance(budget, dict):
        return []
    return [
        f"the run had budget.{name}={limit}, which is no longer set: it may spend without that "
        "limit. Give it again, or take the run up with --resume, which keeps it."
        for name, limit in budget.items()
        if isinstance(limit, int | float) and getattr(config.budget, name, limit) is None
    ]


def read_run_yaml(run_file: Path) -> dict[str, Any] | None:
    """None where it cannot be read, was altered or is no mapping."""
    try:
        data = run_file.read_bytes()
        tree = None if seal_fits(data) is False else load_yaml(data.decode())
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return tree if isinstance(tree, dict) else None


def _changed_leaves(before: Any, asked: Any, name: str = "") -> list[str]:
    """Values that differ, by dotted name."""
    if before == asked:
        return []
    if isinstance(before, dict) and isinstance(asked, dict):
        pairs = ((f"{name}.{key}".lstrip("."), before.get(key), asked[key]) for key in asked)
        return [leaf for key, old, new in pairs for leaf in _changed_leaves(old, new, key)]
    return [f"{name}={asked!r}"[:80]]
