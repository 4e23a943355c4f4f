"""Names of what a lint can say of an operation; `engines.training_free.lint` says when it does."""

from __future__ import annotations

from engines.core.types import BASE_MOVED

DUPLICATE = "duplicate"
LEAK = "leak"
HELD_OUT_LEAK = "held-out leak"
TOO_LONG = "too long"
FROM_TOOL = "from a tool"
SAME_TARGET = "same target"
ONE_GROUP = "one group"
REJECTED_BEFORE = "rejected before"
PINNED = "pinned"
NOT_COMPARED = "compared by wording only"
"""The embedding model failed: a duplicate in other words may have gone unseen."""

UNSCORED = (PINNED, SAME_TARGET, ONE_GROUP, NOT_COMPARED, BASE_MOVED)
"""Flags that say something is so, and not how much."""

FLAG_NAMES = (
    DUPLICATE,
    LEAK,
    HELD_OUT_LEAK,
    TOO_LONG,
    FROM_TOOL,
    SAME_TARGET,
    ONE_GROUP,
    REJECTED_BEFORE,
    PINNED,
    NOT_COMPARED,
    BASE_MOVED,
)
