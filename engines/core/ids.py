"""Content hashes and seeds. Nothing here reads a clock or draws a number."""

import hashlib

import orjson

from engines.core.types import CallKey


def digest(value: object, size: int = 16) -> str:
    """Hex blake2b of a value's canonical JSON (sorted keys); `size` is in bytes."""
    return digest_bytes(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), size)


def digest_bytes(data: bytes, size: int = 16) -> str:
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def question_of(problem: str) -> str:
    """The question that a problem's id stands for: one that is repeated has `x`, `x#2`, `x#3`."""
    return problem.partition("#")[0]


def seed_for(run_seed: int, *parts: str | int) -> int:
    """A 31-bit seed (what every endpoint accepts) that follows from the parts alone."""
    text = "\x1f".join([str(run_seed), *(str(p) for p in parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


def call_seed(run_seed: int, key: CallKey) -> int:
    if key.problem:
        # Evaluations before and after a step draw the same seeds, and problems that are added to
        # a set leave the others' results as they are.
        return seed_for(run_seed, key.purpose, key.problem, key.index, key.turn)
    return seed_for(run_seed, key.purpose, key.epoch, key.step, key.position, key.index, key.turn)
