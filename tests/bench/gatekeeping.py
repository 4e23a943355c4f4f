"""Which of 60 bad and 60 good operations are committed unattended, and what stops the others.

`python -m tests.bench.gatekeeping` prints JSON; two thirds were used to tune the lint, a third
never was.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from engines.core import types as names
from engines.core.library import Experience, Library
from engines.core.types import Decision, Flag, Operation, Problem
from engines.pipeline.reviewers import AutoReviewer
from engines.training_free.lint import OperationLinter

FOLDER = Path(__file__).parents[1] / "engines/training_free/gatekeeping"
GROUPS = ("s1p0r0", "s1p1r0")


@dataclass(frozen=True)
class Case:
    """One operation, what is wrong with it ("" where it is good), and who stopped it."""

    operation: Operation
    bad: str
    committed: bool
    linted: frozenset[str]  # flags of the lint that auto rejects
    hinted: frozenset[str]  # flags that the reflector's reply gave
    reason: str


def hint_flags(hints: dict[str, Any]) -> tuple[Flag, ...]:
    """As the consolidation makes flags of its reply."""
    found = [
        Flag(names.CONFLICT, None, f"the reflector says that it contradicts {name}")
        for name in hints.get("conflicts_with", ())
    ]
    if hints.get("only_this_problem"):
        found.append(Flag(names.ONE_PROBLEM, None, "the reflector says so"))
    if name := hints.get("same_as"):
        found.append(Flag(names.DUPLICATE, None, f"the reflector says that it repeats {name}"))
    return tuple(found)


async def decide(file: str, *, hints: bool = True) -> list[Case]:
    """Lint, review and commit the operations of a file, each on the library as it is there."""
    told = yaml.safe_load((FOLDER / file).read_text("utf-8"))
    problems = [Problem(id, one["question"], one["answer"]) for id, one in told["problems"].items()]
    experiences = tuple(Experience(id, text) for id, text in told["library"].items())
    library = Library("lib", 1, experiences, len(experiences) + 1)
    operations = [
        Operation(
            f"op1.{number}",
            one.get("kind", "add"),
            one.get("target"),
            one["text"],
            evidence=GROUPS,
            problems=tuple(one["problems"]),
            flags=hint_flags(one.get("hints", {})) if hints else (),
        )
        for number, one in enumerate(told["operations"], 1)
    ]
    found = await OperationLinter(practised=problems).flags_of(operations, library)
    cases = []
    for one, operation, flags in zip(told["operations"], operations, found, strict=True):
        linted = replace(operation, flags=(*operation.flags, *flags))
        decision: Decision
        (decision,) = [made async for made in AutoReviewer().review((linted,), library)]
        (outcome,) = library.commit([(linted, decision)]).outcomes or (None,)
        rejects = set(names.REJECTED_BY_AUTO)
        case = Case(
            linted,
            one.get("bad", ""),
            outcome is not None and outcome.applied,
            frozenset({flag.name for flag in flags} & rejects),
            frozenset({flag.name for flag in operation.flags} & rejects),
            decision.reason,
        )
        cases.append(case)
    return cases


def score(cases: list[Case]) -> dict[str, Any]:
    bad, good = [c for c in cases if c.bad], [c for c in cases if not c.bad]
    stopped = [c for c in bad if not c.committed]
    return {
        "bad": len(bad),
        "bad_committed": sum(c.committed for c in bad),
        "good": len(good),
        "good_committed": sum(c.committed for c in good),
        "stopped_by": {
            "lint_alone": sum(bool(c.linted) and not c.hinted for c in stopped),
            "hint_alone": sum(bool(c.hinted) and not c.linted for c in stopped),
            "both": sum(bool(c.hinted) and bool(c.linted) for c in stopped),
            "gate": sum(not c.hinted and not c.linted for c in stopped),
        },
        "by_flag": dict(Counter(name for c in stopped for name in c.linted | c.hinted)),
        "missed": dict(Counter(c.bad for c in bad if c.committed)),
    }


def main() -> None:
    async def both(*, hints: bool) -> dict[str, Any]:
        tuned = await decide("tuned.yaml", hints=hints)
        held = await decide("held_back.yaml", hints=hints)
        scores = {"all": tuned + held, "tuned": tuned, "held_back": held}
        return {name: score(cases) for name, cases in scores.items()}

    async def everything() -> dict[str, Any]:
        return {
            "with_hints": await both(hints=True),
            "without_hints": await both(hints=False),
        }

    print(json.dumps(asyncio.run(everything()), indent=2))


if __name__ == "__main__":
    main()
