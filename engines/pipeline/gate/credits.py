"""What a step's attempts show of the experiences that stood in their prompts. Pure."""

from collections import Counter

from engines.core.library import Library
from engines.core.library_notes import UseCounts
from engines.core.state.run_state import StepState
from engines.core.types import rollout_id

_RANKS = {"misled": 0, "used": 1, "ignored": 2}
"""Harm first: an attempt counts once for an experience, whatever else is said of it."""


def count_uses(now: StepState, shown: Library, head: Library) -> dict[str, UseCounts]:
    """Attempts that used each experience, ignored it, were misled by it, or cited it.

    `shown` is the library as the step began. What `head` no longer words so is not counted.
    """
    prompts = {rollout_id(now.step, *at): one.shown for at, one in now.rollouts.items()}
    counted: dict[str, Counter[str]] = {}  # of those that something is said of
    ids = {e.id for e in shown.experiences}

    def count(experience: str, rollout: str, use: str) -> None:
        in_prompt = prompts.get(rollout, ())
        if experience in ids and (in_prompt is None or experience in in_prompt):
            counted.setdefault(experience, Counter())[use] += 1

    for at, one in now.rollouts.items():
        for experience in one.cited or ():
            count(experience, rollout_id(now.step, *at), "cited")
    for reflection in now.reflections.values():
        seen: set[tuple[str, str]] = set()
        for credit in sorted(reflection.credits, key=lambda one: _RANKS[one.use]):
            for rollout in credit.evidence:
                if (credit.experience, rollout) not in seen:
                    seen.add((credit.experience, rollout))
                    count(credit.experience, rollout, credit.use)
    stands = {e.id: e.text for e in head.experiences if e.id in counted}
    return {
        e.id: UseCounts(**counted[e.id])
        for e in shown.experiences
        if e.id in counted and stands.get(e.id) == e.text
    }
