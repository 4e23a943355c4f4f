"""One line of a file: what is torn, what is damaged, what is only short of a newline."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.errors import DamagedError
from engines.record import lines

BODIES = (b'{"a":1}', b'{"text":"two words"}', b"{}")


def written(path: Path, *, chained: bool = True) -> list[bytes]:
    """Write the three bodies; returns the raw lines."""
    raw, chain = [], ""
    for body in BODIES:
        line, checksum = lines.encode(body, chain)
        raw.append(line)
        chain = checksum if chained else ""
    path.write_bytes(b"".join(raw))
    return raw


def test_lines_come_back_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "f"
    raw = written(path)
    contents = lines.read(path, chained=True)
    assert [line.body for line in contents.lines] == list(BODIES)
    assert [line.number for line in contents.lines] == [1, 2, 3]
    assert [(line.offset, line.length) for line in contents.lines] == [
        (0, len(raw[0])),
        (len(raw[0]), len(raw[1])),
        (len(raw[0] + raw[1]), len(raw[2])),
    ]
    assert (contents.end, contents.torn, contents.newline_missing) == (
        path.stat().st_size,
        b"",
        False,
    )


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert lines.read(tmp_path / "none", chained=True) == lines.Contents((), 0)


def test_a_file_cut_anywhere_loses_only_the_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "f"
    raw = written(path)
    whole, ends = b"".join(raw), [0, len(raw[0]), len(raw[0] + raw[1]), sum(map(len, raw))]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        contents = lines.read(path, chained=True)
        complete = sum(end <= cut for end in ends) - 1
        lacks_newline = cut + 1 in ends
        assert len(contents.lines) == complete + lacks_newline
        assert contents.newline_missing is lacks_newline
        expected = b"" if lacks_newline else whole[ends[complete] : cut]
        assert contents.torn == expected


def test_every_flipped_byte_of_a_complete_line_is_damage_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "f"
    raw = written(path)
    whole, last = b"".join(raw), sum(map(len, raw)) - 1
    starts = [0, len(raw[0]), len(raw[0] + raw[1])]
    for place in range(last):  # the file's last newline has a test of its own
        for mask in (0x01, 0x20, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= mask
            path.write_bytes(damaged)
            number = sum(start <= place for start in starts)
            with pytest.raises(DamagedError) as refused:
                lines.read(path, chained=True)
            assert refused.value.place == f"{path}:{number}"


def test_a_damaged_last_newline_is_one_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    whole = b"".join(written(path))
    path.write_bytes(whole[:-1] + b"x")
    contents = lines.read(path, chained=True)
    assert (len(contents.lines), contents.newline_missing, contents.end) == (3, True, len(whole))


def test_a_damaged_newline_is_damage_whatever_follows_it(tmp_path: Path) -> None:
    """Known defect elsewhere: a lost newline made two records one, and both were dropped."""
    path = tmp_path / "f"
    raw = written(path)
    for tail in range(2, len(raw[2]) + 1):  # also where the line after it is torn
        path.write_bytes(raw[0] + raw[1][:-1] + b"\x0b" + raw[2][:tail])
        with pytest.raises(DamagedError, match=r"f:2: "):
            lines.read(path, chained=True)


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (0, 2, 1), (0, 1, 1, 2)])
def test_a_chain_notices_lines_dropped_swapped_or_repeated(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    path = tmp_path / "f"
    raw = written(path)
    path.write_bytes(b"".join(raw[n] for n in order))
    with pytest.raises(DamagedError):
        lines.read(path, chained=True)


def test_one_line_of_an_unchained_file_is_read_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    written(path, chained=False)
    for line in lines.read(path, chained=False).lines:
        assert lines.read_at(path, line.offset, line.length) == line.body
    with pytest.raises(DamagedError, match="at byte 1"):
        lines.read_at(path, 1, 30)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.binary(max_size=30).filter(lambda body: b"\n" not in body), st.text("0a", max_size=4))
def test_a_line_is_as_long_as_it_says(body: bytes, chain: str) -> None:
    raw, checksum = lines.encode(body, chain)
    assert raw.startswith(b'{"n":%d,"h":"%s","e":' % (len(body), checksum.encode()))
    assert raw.count(b"\n") == 1
