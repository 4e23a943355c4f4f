"""Lines with one wrong bit or byte come back as they were written, and no others do."""

from __future__ import annotations

import random

import pytest

from engines.record import lines
from engines.record.salvage import LONGEST_FOR_BITS, LONGEST_FOR_BYTES, restored

CHAIN = "0123456789abcdef"


def a_line(size: int) -> bytes:
    raw, _ = lines.encode(b'{"text":"' + b"abc " * (size // 4) + b'"}', CHAIN)
    return raw


@pytest.mark.parametrize("seed", range(40))
def test_any_flipped_bit_is_put_back_wherever_it_lies(seed: int) -> None:
    raw = a_line(400)
    chance = random.Random(seed)
    at, bit = chance.randrange(len(raw)), chance.randrange(8)
    damaged = raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :]
    assert restored(damaged, CHAIN) == raw


def test_every_byte_of_the_form_is_put_back() -> None:
    raw = a_line(40)
    for at in (*range(45), len(raw) - 2, len(raw) - 1):
        damaged = raw[:at] + b"~" + raw[at + 1 :]
        assert restored(damaged, CHAIN) == raw, at


def test_a_changed_byte_is_put_back_in_a_short_line_and_a_bit_in_a_longer_one() -> None:
    short, longer = a_line(LONGEST_FOR_BYTES // 2), a_line(LONGEST_FOR_BYTES * 2)
    assert restored(short[:90] + b"~" + short[91:], CHAIN) == short
    flipped = bytes([longer[90] ^ 4])
    assert restored(longer[:90] + flipped + longer[91:], CHAIN) == longer
    assert restored(longer[:90] + b"~" + longer[91:], CHAIN) is None


def test_what_has_more_than_one_wrong_byte_or_stands_elsewhere_stays_damaged() -> None:
    raw = a_line(200)
    assert restored(raw[:90] + b"~~" + raw[92:], CHAIN) is None
    assert restored(raw[:90] + raw[91:], CHAIN) is None, "a lost byte"
    assert restored(raw, "f" * 16) is None, "whole, but not after this line"
    assert restored(a_line(LONGEST_FOR_BITS + 8), "f" * 16) is None
