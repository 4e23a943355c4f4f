"""A damaged line made whole again, where one flipped bit or one changed byte is all it is.

Owns the search. Its checksum proves what it finds: a line that passes is the line that was
written. Looks no further than a few seconds' work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from engines.record import lines

LONGEST_FOR_BITS = 16_384
"""Bytes of a line in which each bit is tried; the work grows with the square of it."""
HEAD_BYTES = 60
"""No head is longer: its two numbers have at most 12 and 16 characters."""
LONGEST_FOR_BYTES = 2_048
"""The same where every other value of each byte is tried: 32 times the work."""


def restored(raw: bytes, chain: str) -> bytes | None:
    """The line as it was written, newline included; None where more than one byte is wrong.

    Args:
        raw: the damaged line, with its newline or what stands in its place.
        chain: checksum of the line before, "" in an unchained file.
    """
    if len(raw) > LONGEST_FOR_BITS:
        return None
    found = _by_body(raw, chain)
    if found is not None:
        return found
    # Beyond the body lie a few dozen bytes of form: all of their values are quickly tried.
    form = [*range(min(len(raw), HEAD_BYTES)), *range(max(0, len(raw) - 2), len(raw))]
    for at in form:
        for value in range(256):
            candidate = raw[:at] + bytes([value]) + raw[at + 1 :]
            if lines.whole(candidate, chain) is not None:
                return candidate
    return None


def _by_body(raw: bytes, chain: str) -> bytes | None:
    """Try the body alone against the checksum in the line's own head."""
    head = lines.HEAD.match(raw)
    if head is None or not raw.endswith(lines.TAIL):
        return None
    start, end = head.end(), len(raw) - len(lines.TAIL)
    body, wanted = raw[start:end], bytes.fromhex(head[2].decode())
    if len(body) != int(head[1]):
        return None
    for bits_only in (True, False):
        if not bits_only and len(body) > LONGEST_FOR_BYTES:
            break
        before = hashlib.blake2b(chain.encode(), digest_size=len(wanted))
        for at, byte in enumerate(body):
            rest = body[at + 1 :]
            for value in _others(byte, bits_only):
                tried = before.copy()
                tried.update(bytes([value]) + rest)
                if tried.digest() == wanted:
                    return raw[:start] + body[:at] + bytes([value]) + rest + raw[end:]
            before.update(body[at : at + 1])
    return None


def _others(byte: int, bits_only: bool) -> Iterable[int]:
    """What else the byte may have been: single bits are how storage and memory fail."""
    return (byte ^ (1 << bit) for bit in range(8)) if bits_only else range(256)
