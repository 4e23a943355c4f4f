"""What is found of a library of 20 by random halves, and by practice with dropout.

`python -m tests.bench.utility [LIBRARIES]` prints JSON: how many of 3 good and 2 bad experiences
(10 points each) are found, and of 15 idle ones called wrongly, over so many simulated libraries.
Problems of the policy `even` are of one kind of difficulty, those of `spread` from hopeless to
easy, where an effect is largest in the middle. `--tiny` measures the shipped policy instead.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from engines.core.effects import Effect
from engines.core.library import Experience, Library
from engines.core.text.sanitize import one_line
from engines.pipeline.effect.inclusion import Keep, dropout, random_half
from engines.pipeline.effect.regression import (
    Effects,
    Observation,
    leave_one_out_rollouts,
    regress,
    smallest_effect,
)
from engines.record.run_dir import Workspace
from sample_data.tiny_text import SKILLS
from sample_data.tiny_tips import HELPFUL, helpful_experience, useless_experience
from tests.support.run_studio import studio

NAMES = tuple(f"E{n}" for n in range(1, 21))
GOOD, BAD = NAMES[:3], NAMES[3:5]
SIGNS = {**dict.fromkeys(GOOD, 1.0), **dict.fromkeys(BAD, -1.0)}
ROLLOUTS, PROBLEMS = 1024, 128
PRACTICE, PRACTISED = 2048, 64
DROPOUT = 0.1

Policy = Literal["even", "spread"]


def simulated_chance(policy: Policy, difficulty: float, strength: float) -> float:
    """Of a right try: `difficulty` in [0, 1] is the problem's, `strength` the sum of its signs."""
    if policy == "even":
        return 0.2 + 0.5 * difficulty + 0.1 * strength
    logit = statistics.NormalDist(0, 1.5).inv_cdf(min(max(difficulty, 1e-6), 1 - 1e-6))
    return 1 / (1 + math.exp(-logit - 0.59 * strength))


def simulated_tries(
    policy: Policy, chance: random.Random, keeps: Mapping[str, list[Keep]]
) -> Iterator[Observation]:
    """Tries of each problem, whose prompts hold what the `keeps` keep."""
    for problem, tries in keeps.items():
        difficulty = chance.random()
        for keep in tries:
            shown = frozenset(filter(keep, NAMES))
            right = simulated_chance(policy, difficulty, sum(map(signed, shown)))
            yield Observation(problem, problem, shown, float(chance.random() < right))


def signed(name: str) -> float:
    return SIGNS.get(name, 0.0)


def halves(policy: Policy, seed: int) -> Effects:
    """A library measured by `ROLLOUTS` rollouts with random halves."""
    tries = range(ROLLOUTS // PROBLEMS)
    keeps = {f"p{n}": [random_half(seed, f"p{n}", i) for i in tries] for n in range(PROBLEMS)}
    return regress(simulated_tries(policy, random.Random(seed), keeps), NAMES, "inclusion")


def practice(policy: Policy, seed: int) -> Effects:
    """The same from `PRACTICE` practice rollouts with dropout, whose library did not change."""
    tries = range(PRACTICE // PRACTISED)
    keeps = {f"p{n}": [dropout(seed, f"p{n}", i, DROPOUT) for i in tries] for n in range(PRACTISED)}
    return regress(simulated_tries(policy, random.Random(seed), keeps), NAMES, "practice")


@dataclass(slots=True)
class Tally:
    """Over several libraries."""

    libraries: int = 0
    found: int = 0
    idle_called: int = 0
    wrong_way: int = 0
    sure: int = 0  # found with at most 5 % false discoveries expected
    sure_called: int = 0
    errors: list[float] = field(default_factory=list)

    def add(self, single: Mapping[str, Effect]) -> None:
        self.libraries += 1
        for name, effect in single.items():
            sign, called = signed(name), {"helps": 1, "hurts": -1}.get(effect.verdict, 0)
            sure = called != 0 and (effect.false_discovery or 0.0) <= 0.05
            if sign:
                self.found += called == sign
                self.sure += sure and called == sign
                self.wrong_way += called == -sign
            else:
                self.idle_called += called != 0
                self.sure_called += sure
            self.errors.append((effect.high - effect.low) / 4)

    def facts(self) -> dict[str, float]:
        real, idle = 5 * self.libraries, 15 * self.libraries
        return {
            "libraries": self.libraries,
            "found": self.found / real,
            "false_of_idle": self.idle_called / idle,
            "wrong_way": self.wrong_way,
            "found_at_fdr_5": self.sure / real,
            "false_of_those_at_fdr_5": self.sure_called / max(1, self.sure + self.sure_called),
            "standard_error": statistics.mean(self.errors),
        }


def tally(measure: Callable[[Policy, int], Effects], policy: Policy, libraries: int) -> Tally:
    found = Tally()
    for seed in range(libraries):
        found.add(measure(policy, seed).single)
    return found


def main(libraries: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"rollouts": ROLLOUTS, "problems": PROBLEMS}
    for policy in ("even", "spread"):
        began = time.perf_counter()
        facts[policy] = {
            "halves": tally(halves, policy, libraries).facts(),
            f"dropout of {DROPOUT}, {PRACTICE} rollouts": tally(
                practice, policy, libraries
            ).facts(),
            "seconds": time.perf_counter() - began,
        }
    facts["smallest_effect"] = smallest_effect(ROLLOUTS, PROBLEMS, len(NAMES))
    facts["leave_one_out_rollouts"] = leave_one_out_rollouts(ROLLOUTS, len(NAMES))
    return facts


def tiny() -> dict[str, Any]:
    """The shipped policy with tips on three skills, 2 that recommend the slip and 15 idle ones.

    It was taught to leave the slips' tips aside, and by prompts of six tips at most: of ten at a
    time every further one costs it a little, so that what says nothing is not idle for it.
    """
    chance = random.Random(1)
    # Short ones: ten of them and a problem stand in its 640 positions.
    texts = [
        min((helpful_experience(skill, chance) for _ in range(50)), key=len) for skill in SKILLS[:3]
    ]
    for skill in SKILLS[:2]:
        words = HELPFUL[skill]
        texts.append(f"{words.names[0]}: {words.conditions[0]}, {words.lazy[0]}.")
    while len(texts) < len(NAMES):
        text = useless_experience("precedence", chance)
        stated = (word in text for skill in SKILLS for word in HELPFUL[skill].names)
        if len(text) <= 30 and not any(stated):
            texts.append(text)
    entries = tuple(Experience(n, one_line(t)) for n, t in zip(NAMES, texts, strict=True))
    with TemporaryDirectory() as folder:
        workspace = Path(folder) / "practice"
        Workspace(workspace).library("tips").create(Library("tips", 0, entries, 21))
        began = time.perf_counter()
        words = ("library", "utility", "tips", "--run", "tiny", "--k", "8", "--json")
        found = json.loads(studio(*words, workspace=workspace).stdout)
    called = {n: e["verdict"] for n, e in found["single"].items() if e["verdict"] != "cannot tell"}
    return {
        "rollouts": found["rollouts"],
        "problems": found["problems"],
        "good": {name: found["single"][name] for name in GOOD},
        "slips": {name: found["single"][name]["verdict"] for name in BAD},
        "idle_called": {name: called[name] for name in called if name not in SIGNS},
        "pairs": len(found["pairs"]),
        "seconds": time.perf_counter() - began,
    }


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    if "--tiny" in sys.argv:
        print(json.dumps({"tiny": tiny()}, indent=2))
    else:
        print(json.dumps(main(given[0] if given else 300), indent=2))
