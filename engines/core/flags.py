"""Names of what a lint can say of an operation; `engines.training_free.lint` says when it does."""

from __future__ import annotations

from collections.abc import Mapping

from engines.core.effects import EffectVerdict
from engines.core.types import BASE_MOVED, HELPS

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
OVERGENERAL = "overgeneral"
"""It says always or never of everything, without the condition under which it holds."""
ONE_PROBLEM = "one problem"
"""It tells of one problem, with its names and figures, and helps with no other."""
FORMAT_ONLY = "format only"
"""It tells how to please the verifier, and not how to solve anything."""
INJECTION = "injection"
"""It gives orders to the reader or the system around it, and is no lesson."""
AGAINST_TOOLS = "against tools"
"""It says that a tool does not work, or must not be used."""
SHOUTING = "shouting"
CONFLICT = "conflict"
"""It contradicts an experience that stays, or what another curator made of the same one."""

BAD_WORDINGS = (OVERGENERAL, ONE_PROBLEM, FORMAT_ONLY, INJECTION, AGAINST_TOOLS, SHOUTING)
"""What a lesson should not be, whatever it is about."""

HURTS = "hurts"
UNPROVEN = "unproven"
"""What trying it showed, with and without it (`review.gate`); unproven where it cannot be told."""
PROVED: Mapping[EffectVerdict, str] = {"helps": HELPS, "hurts": HURTS, "cannot tell": UNPROVEN}

UNSCORED = (
    PINNED,
    SAME_TARGET,
    ONE_GROUP,
    NOT_COMPARED,
    BASE_MOVED,
    *BAD_WORDINGS,
    CONFLICT,
    *PROVED.values(),
)
"""Flags that say something is so, and not how much."""

FLAG_NAMES = (DUPLICATE, LEAK, HELD_OUT_LEAK, TOO_LONG, FROM_TOOL, REJECTED_BEFORE, *UNSCORED)

AUTO = "auto"
"""Name of the reviewer that decides by itself."""

REJECTED_BY_AUTO = (LEAK, *BAD_WORDINGS, FROM_TOOL, CONFLICT, DUPLICATE, HURTS, UNPROVEN)
"""What it rejects by itself, unless `review.rejects` says otherwise."""
