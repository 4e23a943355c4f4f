"""Long lists of experiences are written by hand, to the letter as YAML writes them."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from engines.record.yaml_text import LONG, _dump, dump_yaml, load_yaml

PIECES = """
carry the tens #4 a: b:c 'so' "no" - ? {} [1] &a * ! | > % @ `x` é it's
数字 、 5 1.5 null yes ~ = \\ E7 日 x …
""".split()  # noqa: SIM905 - as a list it fills a page
PIECES += ["- x", "\u2028", "\x85", "\xa0", "\t", "\n", "", "\ufeff", "word" * 40, "—", "‘x’"]
IN_PYTHON = ["🙂", "\ud800"]
"""The emitter in C writes neither, and the other one folds quoted texts elsewhere."""
PLAIN = ["when", "a", "column", "carries", "add", "it.", "First,", "longer-words", "(so)", "7"]


def random_text(chance: random.Random, pieces: list[str]) -> str:
    rare = chance.sample(pieces, 3)
    chosen = chance.choice([PLAIN, PLAIN, PLAIN + rare, [*PLAIN, "Carry:", "it's"]])
    return " ".join(chance.choices(chosen, k=chance.choice([0, 1, 2, 8, 30, 90])))


def random_row(chance: random.Random, pieces: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": chance.choice(["E1", "E12345", "e-1", "yes", "12", "", "E"])}
    row["text"] = random_text(chance, pieces)
    if chance.random() < 0.3:
        row["pinned"] = chance.choice([True, False, None, 1, 0, "true"])
    if chance.random() < 0.05:
        row[chance.choice(["note", "y", "on"])] = chance.choice(["x", 2.5, ["a", {"b": 1}], {}])
    return row


@pytest.mark.parametrize("width", [96, 100])
@pytest.mark.parametrize("seed", range(12))
def test_a_long_list_is_written_as_yaml_writes_it(seed: int, width: int) -> None:
    chance = random.Random(seed)
    rows = [random_row(chance, PIECES) for _ in range(4 * LONG)]
    rows.append({"id": "E1", "text": "the last"})  # one with lines at its end would end the file
    for data in (
        {"name": "a", "experiences": rows, "after": {"x": [1]}},
        {"agent": {"experiences": rows, "more": deepcopy(rows[::2])}, "seed": 1},
        {"a": {"b": {"c": rows}}},
        {"rows": [*rows, {}]},
        rows,
    ):
        # libyaml ends the file with dots where any text in it ended in lines.
        assert dump_yaml(data, width) == _dump(data, width).removesuffix("...\n")


def test_what_is_written_reads_back() -> None:
    chance = random.Random(20)
    rows = [random_row(chance, [*PIECES, *IN_PYTHON[:1]]) for _ in range(4 * LONG)]
    assert load_yaml(dump_yaml({"rows": rows})) == {"rows": rows}
    rows += [random_row(chance, IN_PYTHON * 2) for _ in range(LONG)]
    assert dump_yaml({"rows": rows}).count("\n- id") == 5 * LONG


def test_the_words_that_stand_for_a_list_may_stand_in_a_text() -> None:
    rows = [{"id": f"E{n}", "text": "rows of list 0 stand here"} for n in range(LONG)]
    for data in ({"rows": rows}, {"rows": rows, "name": "rows of list 0 stand here"}):
        assert load_yaml(dump_yaml(data)) == data
