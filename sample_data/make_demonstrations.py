"""Write demonstrations of the tiny policy's skills: problems with their right solutions.

Run `python -m sample_data.make_demonstrations [FOLDER]`; without a folder the file beside this
program is replaced. The same program always writes the same bytes.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import chain, islice
from pathlib import Path

from sample_data.tiny_text import SKILLS, SOURCES, Skill, exercises

EACH = 32
"""Demonstrations of one skill."""
_SEED = 71


def rows_of(skill: Skill) -> list[dict[str, str]]:
    """Of one skill, with numbers that may be practised on: none is held out."""
    chance = random.Random(f"{_SEED}/{skill}")
    found = {
        exercise.question: exercise
        for exercise in islice(exercises(skill, chance, "practice"), 4 * EACH)
    }
    return [
        {
            "question": exercise.question,
            "answer": str(exercise.answer),
            "solution": exercise.right,
            "source": SOURCES[skill],
        }
        for exercise in islice(found.values(), EACH)
    ]


def demonstrations() -> list[dict[str, str]]:
    """The skills take turns."""
    return list(chain.from_iterable(zip(*map(rows_of, SKILLS), strict=True)))


def write(folder: Path) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in demonstrations())
    (folder / "skills-demonstrations.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
