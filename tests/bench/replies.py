"""How long the longest reply that is read takes, in CPU seconds: `python -m tests.bench.replies`.

Prints a line of JSON for every kind of reply; none should take a second.
"""

from __future__ import annotations

import json
import random
import time

from engines.core.text.objects import find_objects
from engines.core.text.reply import MAX_REPLY_CHARS, ReplyProblem

ROW = {"operation": "add", "id": None, "experience": "Units: name \\frac{1}{2}.", "attempts": [1]}
PARTS = {
    "prose full of brackets": "see [a] and {b}, [1, 2] and {c: 1} or [[1], [2]]. ",
    "open brackets": "[",
    "open rows": '[{"operation": ',
    "open objects": '{"operation": {',
    "open lists": '{"operation": [',
    "rows without end": '[{"operation": "add"} ',
    "quotes": '{"operation": "a "b" c" {1{1{1 ',
    "backslashes": '\\nu \\frac{a}{b} $ "\\\\ ',
    "comments": '{"operation": 1 // a # b /* c \n',
    "thoughts": 'a "b</think> ',
    "fences": '```json\n[{"operation": "add",,}]\n``` ',
    "whole rows": json.dumps(ROW) + ", ",
    "rows to mend": json.dumps(ROW)[:-1] + ",}, ",
    "rows of Python": str(ROW) + ", ",
}


def main() -> None:
    chance = random.Random(0)
    pieces = [
        '"',
        "{",
        "}",
        "[",
        "]",
        '{"operation": ',
        ":",
        ",",
        "\\",
        "x ",
        "1",
        "\n",
        "'",
        "```",
    ]
    mixed = {f"mixed {n}": "".join(chance.choices(pieces, k=12)) for n in range(40)}
    for name, part in (PARTS | mixed).items():
        for before in ("", "["):
            text = (before + part * (MAX_REPLY_CHARS // len(part)))[:MAX_REPLY_CHARS]
            started = time.process_time()
            try:
                found: object = len(find_objects(text, ("operation",)).rows)
            except ReplyProblem as problem:
                found = str(problem)[:60]
            seconds = round(time.process_time() - started, 3)
            print(json.dumps({"reply": before + name, "cpu_s": seconds, "found": found}))


if __name__ == "__main__":
    main()
