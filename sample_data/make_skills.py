"""Write the practice set and the held-out set of the tiny policy.

Run `python -m sample_data.make_skills [FOLDER]`; without a folder the files beside this
program are replaced. The same program always writes the same bytes.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import chain
from pathlib import Path

from sample_data.tiny_text import SKILLS, SOURCES, Share, Skill, exercises, numbers_in

EACH: dict[Share, int] = {"practice": 192, "heldout": 128}
"""Problems of one skill in each of the two sets."""
_SEED = 61


def rows_of(skill: Skill, share: Share, count: int) -> list[dict[str, str]]:
    """Problems of one skill; no two have the same numbers."""
    chance = random.Random(f"{_SEED}/{skill}/{share}")
    found: dict[tuple[int, ...], dict[str, str]] = {}
    for exercise in exercises(skill, chance, share):
        row = {
            "question": exercise.question,
            "answer": str(exercise.answer),
            "source": SOURCES[skill],
        }
        found.setdefault(tuple(sorted(numbers_in(exercise.question))), row)
        if len(found) == count:
            break
    return list(found.values())


def problems(share: Share) -> list[dict[str, str]]:
    """The skills take turns."""
    skills = [rows_of(skill, share, EACH[share]) for skill in SKILLS]
    return list(chain.from_iterable(zip(*skills, strict=True)))


def write(folder: Path) -> None:
    files: dict[str, Share] = {"skills.jsonl": "practice", "skills-heldout.jsonl": "heldout"}
    for name, share in files.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in problems(share))
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
