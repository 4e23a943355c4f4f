"""Who decides what a run proposes, from the reviewer that a command line or a run file names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engines.core.errors import ConfigError
from engines.core.flags import REJECTED_BY_AUTO
from engines.core.protocols import Reviewer
from engines.pipeline.reviewers.human import AutoReviewer, HumanReviewer


def open_reviewers(
    spec: str, hold_s: float | None, rejects: Sequence[str] = REJECTED_BY_AUTO
) -> tuple[Reviewer, ...]:
    """`auto`, `wait`, or `rules:FILE`, where a person decides what no rule does.

    A step waits `hold_s` seconds for a person; None: without end. `rejects` are the flags that
    auto rejects.

    Raises ConfigError: another name, or the rules cannot be read.
    """
    kind, _, file = spec.partition(":")
    match kind:
        case "auto":
            return (AutoReviewer(rejects),)
        case "wait":
            return (HumanReviewer(hold_s),)
        case "rules" if file:
            from engines.pipeline.reviewers.rules import read_rules

            return (read_rules(Path(file).expanduser()), HumanReviewer(hold_s))
    raise ConfigError(
        f"reviewer {spec!r}", "there is no such reviewer.", "Choose auto, wait or rules:FILE."
    )
