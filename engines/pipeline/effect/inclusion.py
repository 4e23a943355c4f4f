"""Which experiences stand in the prompt of one try, by chance that follows from a seed.

A try that is made or looked up again carries what it carried before.
"""

from __future__ import annotations

from collections.abc import Callable

from engines.core.ids import seed_for

Keep = Callable[[str], bool]
"""Whether the experience of this id stands in a prompt."""

_DRAWS = 1 << 31  # values of `seed_for`


def random_half(seed: int, problem: str, index: int) -> Keep:
    """Each with chance 1/2; the tries 2j and 2j+1 of a problem carry opposite halves.

    So every experience is in exactly half of an even number of tries, which loses nothing to
    problem effects, and no pair of experiences can pass for the effect of a single one (a
    folded-over design: Box, Hunter & Hunter, Statistics for Experimenters, ch. 6). `problem` is
    its digest. More tries leave those before as they are.
    """
    pair, opposite = divmod(index, 2)
    return lambda name: seed_for(seed, "half", problem, pair, name) % 2 != opposite


def dropout(seed: int, problem: str, index: int, chance: float) -> Keep:
    """Each is left out with this chance, on its own, as evenly as can be among a problem's tries.

    At 0.1 one in ten of consecutive tries goes without it: a problem without any such try, or with
    many, tells less (systematic sampling; Cochran, Sampling Techniques, ch. 8). `index` is the
    place of the try among those of the whole run.
    """

    def keep(name: str) -> bool:
        return (seed_for(seed, "dropout", problem, name) / _DRAWS + index * chance) % 1 >= chance

    return keep
