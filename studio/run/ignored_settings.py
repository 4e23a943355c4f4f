"""What a command asks of a run that goes on already, and goes on without.

Compares what was asked with what the run's process goes by: its own `run.yaml`, and the
reviewer that its journal names. Changes nothing.
"""

from __future__ import annotations

from typing import Any

from studio.config.run_yaml import dump_run_yaml
from studio.run.plan import RunPlan


def ignored_settings(plan: RunPlan) -> list[str]:
    """Each setting that was asked to be another, as it was asked."""
    import yaml

    # Not as the plan found it: it may have begun since.
    state = plan.run.state()
    if state.started is None:
        return []
    left = [] if plan.reviewer == state.reviewer else [f"--review {plan.reviewer}"]
    try:
        before = yaml.safe_load(plan.run.run_file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return left
    # As it was written, so that like is compared with like and no key is told.
    asked = yaml.safe_load(dump_run_yaml(plan.loaded.config, plan.loaded.mask))
    return [*left, *_changed_settings(before, asked)]


def _changed_settings(before: Any, asked: Any, name: str = "") -> list[str]:
    if before == asked:
        return []
    if isinstance(before, dict) and isinstance(asked, dict):
        return [
            change
            for key in asked
            for change in _changed_settings(
                before.get(key), asked[key], f"{name}.{key}".lstrip(".")
            )
        ]
    return [f"{name}={asked!r}"[:80]]
