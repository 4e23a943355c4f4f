"""Libraries with the texts, ids, pins and counts that a format is most likely to trip over."""

from __future__ import annotations

import random

from engines.core.library import Experience, Library, Provenance
from engines.core.library_notes import Effect, LibraryNotes, UseCounts
from engines.core.text.sanitize import one_line

PIECES = (
    *("Carry", "check: the units", "a :: b", "[E1] x", "[x]", "] [", "- item", "* star", "1. one"),
    *(
        "# no heading",
        "--- three",
        "----- five",
        "'quoted'",
        '"double"',
        "${oc.env:HOME}",
        "\\${x}",
    ),
    *("{{experiences}}", "%s %d", "héllo", "日本語", "🎉", "a|b", "<!-- c -->", "-->", "`code`"),
    *("<b>&amp;</b>", "key: [1, 2]", "{a: b}", "!tag", "&anchor *alias", "@at", "\\n", "C:\\dir"),
    *(
        "helpful=5 harmful=0 ::",
        "## EVALUATION",
        "practice-studio:end lib",
        "~",
        "null",
        "yes",
        "42",
    ),
    *("...", "?", "👩‍👩‍👧", "العربية", "'''", "x" * 300, "…", "​", "0x1F", "1e3", "2026-01-01"),
)


def a_random_library(seed: int) -> Library:
    """The same one for the same seed; few of its experiences have counts, worth and a history."""
    rng = random.Random(seed)
    size = rng.choice((1, 2, 4, 8, 20)) if seed % 100 else 700
    numbers = sorted(rng.sample(range(1, 5 * size + 1), size))
    ids = [f"E{number}" for number in numbers]
    if seed % 5 == 0:  # as a mounted agent brings along
        ids[0] = rng.choice(("careful", "rule-7", "E-00007", "x.1_b", "E007", "7"))
    entries, texts = [], set()
    for name in ids:
        while not (text := _text(rng)) or text in texts:
            pass
        texts.add(text)
        history = (_mark(rng, text),) if rng.random() < 0.3 else ()
        entries.append(Experience(name, text, history=history, pinned=rng.random() < 0.2))
    uses = {e.id: UseCounts(*rng.choices(range(30), k=4)) for e in entries if rng.random() < 0.4}
    effects = {e.id: _effect(rng) for e in entries if rng.random() < 0.3}
    version = rng.randrange(100)
    notes = LibraryNotes(uses=uses, effects=effects)
    return Library(f"lib-{seed}", version, tuple(entries), 5 * size + 1, notes)


def _text(rng: random.Random) -> str:
    return one_line(" ".join(rng.choices(PIECES, k=rng.randint(1, 6))))


def _mark(rng: random.Random, text: str) -> Provenance:
    return Provenance(
        **{
            "version": 1,
            "kind": "add",
            "text": text,
            "operation_id": "s1.1",
            "run": "r",
            "step": 1,
        },
        **{"rationale": _text(rng), "evidence": ("s1p1r1",), "proposer": "m", "prompt_hash": "0"},
        **{"reviewer": "ada", "reason": "", "edited": False, "at": 1.7e9 + rng.random()},
    )


def _effect(rng: random.Random) -> Effect:
    low, middle, high = sorted(rng.uniform(-1, 1) for _ in range(3))
    return Effect(
        difference=middle,
        low=low,
        high=high,
        verdict=rng.choice(("helps", "hurts", "cannot tell")),
        problems=10,
        rollouts=160,
        method="inclusion",
    )
