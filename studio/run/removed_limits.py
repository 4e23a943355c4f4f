"""What an earlier process of a run was allowed to spend, and a new one is not told of.

Reads a run folder's `run.yaml` before it is overwritten; changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from studio.config.settings.run import RunConfig


def removed_budget_limits(run_file: Path, config: RunConfig) -> list[str]:
    """A sentence for each limit that the run had and this config sets no more.

    Args:
        run_file: the run's own, as its last process left it. One that cannot be read says
            nothing.
        config: what the next process goes by.
    """
    import yaml

    try:
        before = yaml.safe_load(run_file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    budget = before.get("budget") if isinstance(before, dict) else None
    if not isinstance(budget, dict):
        return []
    return [
        f"the run had budget.{name}={limit}"
        + ", which is no longer set: it may spend without that limit. Give it again, or take "
        "the run up with --resume, which keeps it."
        for name, limit in budget.items()
        if isinstance(limit, int | float) and getattr(config.budget, name, limit) is None
    ]
