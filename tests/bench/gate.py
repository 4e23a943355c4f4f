"""What the gate by effect accepts: `python -m tests.bench.gate [RUNS]` prints JSON.

Runs of ten operations are decided at 40 problems × 4 tries in three worlds: the rehearsal model,
the same where luck is another in every wording (as a real model's is), and problems of every
difficulty with independent tries. Beside the gate stands what most programs do with the very same
tries: accept any raw improvement.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from engines.core.codec import digest, seed_for
from engines.core.library import guidance_text
from engines.pipeline.effect.sequential import SequentialPlan, judge_look
from engines.policies.rehearsal.solve import Draw, recognise
from sample_data.make_problems import additions, mixed_operations

PROBLEMS, K, RUN_ERROR, IN_A_RUN = 40, 4, 0.05, 10
FIXED = PROBLEMS * K
SKILL = "Carry: when a column adds up to ten or more, carry one into the next column."
AGAINST = "Carry: when a column adds up to ten or more, never carry into the next column."

Try = Callable[[int, int, int], float]
"""The reward of (operation, problem, number of the try) in one run; operation -1: without any."""


@dataclass
class Tally:
    """What became of the operations of many runs."""

    decided: int = 0
    accepted: int = 0
    raw: int = 0  # accepted by any raw improvement, on the same tries
    tries: int = 0
    runs: int = 0
    runs_with_one: int = 0
    claimed: float = 0.0
    raw_claimed: float = 0.0
    verdicts: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        n = self.decided
        return {
            "operations": n,
            "accepted": round(self.accepted / n, 4),
            "runs_with_an_accepted_one": round(self.runs_with_one / self.runs, 4),
            "tries_of_fixed_size": round(self.tries / n / FIXED, 3),
            "claimed_points_a_run": round(100 * self.claimed / self.runs, 2),
            "any_raw_improvement": {
                "accepted": round(self.raw / n, 4),
                "claimed_points_a_run": round(100 * self.raw_claimed / self.runs, 2),
            },
            "verdicts": self.verdicts,
        }


def decide_run(reward: Try, tally: Tally, *, in_a_row: bool) -> None:
    """Decide ten operations against the same tries without them.

    `in_a_row` each is tried on top of those that were accepted, as in a lesson; else each by
    itself, as the first of ten, which has the least error to spend.
    """
    left, base, found_one = RUN_ERROR, -1, False
    for number in range(IN_A_RUN):
        share = left / (IN_A_RUN - number) if in_a_row else RUN_ERROR / IN_A_RUN
        plan = SequentialPlan(PROBLEMS, K, share, PROBLEMS)
        for at, look in enumerate(plan.looks):
            pairs = [
                [reward(number, p, t) - reward(base, p, t) for t in range(look.tries)]
                for p in range(look.problems)
            ]
            result = judge_look(plan, at, pairs)
            if result.verdict is not None:
                break
        accepted = result.verdict == "helps"
        if accepted and in_a_row:
            base = number
        elif in_a_row:
            left -= share
        tally.decided += 1
        tally.tries += look.problems * look.tries
        tally.accepted += accepted
        tally.claimed += result.difference * accepted
        tally.raw += result.difference > 0
        tally.raw_claimed += max(0.0, result.difference)
        verdict = str(result.verdict)
        tally.verdicts[verdict] = tally.verdicts.get(verdict, 0) + 1
        found_one |= accepted
    tally.runs += 1
    tally.runs_with_one += found_one


def every_difficulty(rng: random.Random, effect: float) -> Try:
    """Chances are even between 0 and 1, and each operation moves their mean so far."""
    shift = shift_of_mean(effect)
    chances = [rng.random() for _ in range(PROBLEMS)]
    known: dict[tuple[int, int, int], float] = {}

    def reward(operation: int, problem: int, number: int) -> float:
        at = operation, problem, number
        if at not in known:
            known[at] = float(rng.random() < chances[problem] + shift * (operation >= 0))
        return known[at]

    return reward


def shift_of_mean(effect: float) -> float:
    """What is added to chances, even between 0 and 1, and cut there, so that their mean moves."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        shift = (low + high) / 2
        low, high = (shift, high) if shift - shift**2 / 2 < abs(effect) else (low, shift)
    return high if effect >= 0 else -high


def rehearsal(rng: random.Random, effect: float, *, own_luck: bool) -> Try:
    """The rehearsal model, in which a line about carrying is worth about `effect`.

    It acts on additions alone: of +20 points they are 14 of 40 problems, of -5 points 7.
    """
    count = 14 if effect > 0 else 7
    made = random.Random(rng.random())
    asked = [*islice(additions(made), count), *islice(mixed_operations(made), PROBLEMS - count)]
    tasks = [recognise(question) for question, _ in asked]
    line = SKILL if effect > 0 else AGAINST
    lines = [f"{null_line(rng)} {line if effect else ''}".strip() for _ in range(IN_A_RUN)]
    texts = [*(guidance_text([("E1", line)]) for line in lines), ""]  # the last without any
    run_seed = rng.getrandbits(31)

    def reward(operation: int, problem: int, number: int) -> float:
        seed, task = seed_for(run_seed, problem, number), tasks[problem]
        if own_luck:
            seed = seed_for(seed, digest(texts[operation]))
        assert task is not None
        return float(
            Draw(texts[operation], seed, 0.7).takes_right(
                task.family, asked[problem][0], task.traps
            )
        )

    return reward


def null_line(rng: random.Random) -> str:
    things = ("desk", "book", "window", "lamp", "chair", "garden", "kettle", "letter")
    one, other = rng.sample(things, 2)
    return f"Order: when the {one} is full, look at the {other} number {rng.randrange(10**6)}."


WORLDS: dict[str, Callable[[random.Random, float], Try]] = {
    "rehearsal": lambda rng, effect: rehearsal(rng, effect, own_luck=False),
    "rehearsal with luck of its own": lambda rng, effect: rehearsal(rng, effect, own_luck=True),
    "every difficulty": every_difficulty,
}
EFFECTS = {"null": 0.0, "+20 points": 0.2, "-5 points": -0.05}


def simulate(world: str, effect: float, runs: int, seed: int = 1) -> Tally:
    tally, rng = Tally(), random.Random(seed)
    for _ in range(runs):
        decide_run(WORLDS[world](rng, effect), tally, in_a_row=effect == 0)
    return tally


def main(runs: int) -> dict[str, object]:
    found: dict[str, object] = {"runs": runs, "in_a_run": IN_A_RUN, "problems": PROBLEMS, "k": K}
    for world in WORLDS:
        tallies = {name: simulate(world, effect, runs) for name, effect in EFFECTS.items()}
        tries = sum(one.tries for one in tallies.values())
        decided = sum(one.decided for one in tallies.values())
        found[world] = {name: one.as_dict() for name, one in tallies.items()} | {
            "mean_tries_of_fixed_size": round(tries / decided / FIXED, 3)
        }
    return found


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40), indent=2))
