"""YAML reads back as it was written, whatever stands in its texts."""

from __future__ import annotations

import random

import pytest

from engines.record.yaml_text import dump_yaml, load_yaml

PIECES = """
carry the tens #4 a: b:c 'so' "no" - ? {} [1] &a * ! | > % @ `x` é it's
数字 、 5 1.5 null yes ~ = \\ E7 日 x …
""".split()  # noqa: SIM905 - as a list it fills a page
PIECES += ["- x", "\xa0", "\t", "\n", "", "\ufeff", "word" * 40, "—", "🙂"]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_reads_back(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        {"id": f"E{n}", "text": " ".join(chance.choices(PIECES, k=chance.choice([0, 1, 2, 30])))}
        for n in range(200)
    ]
    assert load_yaml(dump_yaml({"rows": rows})) == {"rows": rows}


def test_half_of_a_surrogate_pair_is_written() -> None:
    """The emitter in C cannot."""
    assert "text" in dump_yaml({"text": "a \ud800 b"})
