"""What a run file can say about how lessons are drawn, and when one is flagged."""

from engines.core.frozen import frozen
from engines.core.settings import MAX_COUNT, derived, setting
from engines.core.types import Sampling

MAX_WORDS = 60
"""Of an experience: what prompts ask for, and what the lint holds them to."""


@frozen
class TrainingFreeSettings:
    """Settings of the training-free engine.

    `given_ground_truth` False hides truth and rewards and keeps every group. `replies` is how
    the reflector replies, `max_words` the lint's bound.
    """

    agent_objective: str
    learning_objective: str
    experiences_per_query: int = setting(1, "lessons that one group may propose", ge=1)
    given_ground_truth: bool = setting(
        True, "whether the reflector sees answers and rewards; false hides them"
    )
    # A step's worst groups tell the same story: four readings of 32 find it at an eighth more
    # cost, and what they miss comes again in the next epoch.
    read_without_contrast: int = setting(
        4,
        "groups of a step that are read although no try was good, from what the verifier says; "
        "0: none",
        ge=0,
        le=MAX_COUNT,
    )
    # Penalties for length and form move rewards by hundredths, graded answers by tenths.
    min_contrast: float = setting(
        0.05, "smallest difference in reward that lessons are drawn from", ge=0, le=1
    )
    summarise_above_chars: int = derived(2000)  # of a rollout, in a group above read_chars
    # About 10,000 tokens. Below, a summary costs more than the text it saves.
    read_chars: int = setting(
        40_000, "characters of a group's rollouts that are read whole at most", ge=100
    )
    proposals: int = setting(
        1,
        "lessons drawn from each batch, with other seeds; above 1 that which does best on some "
        "problems is proposed, and proved on others (needs review.gate)",
        ge=1,
        le=16,
    )
    proposals_per_call: int = derived(8)  # that one call consolidates; more are merged first
    operations_per_call: int = derived(200)  # of one reply; more are refused
    library_limit: int | None = setting(
        50, "experiences in the library at most; null: no limit", ge=1
    )
    replies: Sampling = derived(Sampling())
    max_words: int = derived(MAX_WORDS)


@frozen
class LintSettings:
    """When a flag is raised. `duplicate_at` holds for texts and for their embeddings."""

    duplicate_at: float = setting(0.8, "similarity from which two texts say the same", gt=0, le=1)
    leak_words: int = derived(8)  # in a row, that give a question away
    max_words: int = setting(MAX_WORDS, "words of an experience before it is too long", ge=1)
