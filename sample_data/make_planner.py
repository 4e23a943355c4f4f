"""Write what shows a planner learn: problems for a team, and demonstrations of its planner.

Run `python -m sample_data.make_planner [FOLDER]`; without a folder the files beside this program
are replaced. The same program always writes the same bytes.

A problem needs a product and then a sum. The demonstrations show three plans in even parts, and
only one is right: practice finds out which. Each row is one turn of the planner, who writes `it`
for the result before; whoever executes the step puts the number in.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from engines.core.text.maths import value_of
from sample_data.tiny_text import Share, share_of

EACH: dict[Share, int] = {"warm-up": 360, "practice": 128, "heldout": 128}
"""Problems of the demonstrations, the practice set and the held-out set."""
_SEED = 97
_QUESTIONS = ("{c} more than {a} times {b}?", "Add {c} to {a} times {b}.")


class Task(NamedTuple):
    """a times b, plus c."""

    question: str
    a: int
    b: int
    c: int

    def plan(self, way: int) -> list[str]:
        """The sub-goals of a plan: the right one, the sum before the product, too few steps."""
        product, added = f"{self.a}*{self.b}", f"{self.b}+{self.c}"
        return ([product, f"it+{self.c}"], [added, f"it*{self.a}"], [product])[way]


def tasks(share: Share) -> list[Task]:
    """Problems whose numbers belong to the share; no two have the same numbers."""
    chance = random.Random(f"{_SEED}/{share}")
    numbers = [
        (a, b, c)
        for a in range(12, 60)
        for b in range(3, 10)
        for c in range(11, 90, 2)
        if share_of((a, b, c)) == share
    ]
    return [
        Task(chance.choice(_QUESTIONS).format(a=a, b=b, c=c), a, b, c)
        for a, b, c in chance.sample(numbers, EACH[share])
    ]


def turns(task: Task, way: int) -> Iterator[list[dict[str, str]]]:
    """What the planner is shown and says, a turn at a time (`agent.team.plan_as: lines`)."""
    memory, it = "", 0
    for goal in [*task.plan(way), ""]:
        said = f"calculator: {goal}" if goal else "none"
        yield [
            {"role": "user", "content": f"{task.question}{memory}"},
            {"role": "assistant", "content": said},
        ]
        if goal:
            it = value_of(goal.replace("it", str(it)))
            memory += f"\n{said} = {it}"


def rows(share: Share) -> list[dict[str, Any]]:
    if share == "warm-up":
        shown = enumerate(tasks(share))
        return [{"messages": said} for n, task in shown for said in turns(task, n % 3)]
    return [
        {"question": t.question, "answer": str(t.a * t.b + t.c), "source": "two steps"}
        for t in tasks(share)
    ]


def main(folder: Path) -> None:
    names: dict[str, Share] = {
        "planner-demonstrations": "warm-up",
        "planner": "practice",
        "planner-heldout": "heldout",
    }
    for name, share in names.items():
        lines = (json.dumps(row, ensure_ascii=False) for row in rows(share))
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
