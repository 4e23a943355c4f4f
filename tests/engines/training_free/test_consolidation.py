"""Consolidation: every proposal is accounted for, and none is lost in a crowd of others."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engines.core import types as flags
from engines.core.library import Library
from engines.core.library_notes import PastDecision
from engines.core.types import (
    CallKey,
    Completion,
    Flag,
    Group,
    Lesson,
    Message,
    Operation,
    Proposal,
    RecordRef,
    Reflection,
    Usage,
)
from engines.training_free.consolidation import (
    UNNAMED,
    Candidate,
    Consolidator,
    arrange,
    list_candidates,
    winners,
)
from engines.training_free.lint import OperationLinter
from engines.training_free.reading import Reflector
from engines.training_free.settings import TrainingFreeSettings
from tests.support.builders import a_group, a_library, a_problem, a_timeout, answering, remembering

SETTINGS = TrainingFreeSettings("Solve sums.", "Be right more often.")
Reply = Callable[[CallKey, str], str]


@dataclass
class MemoryLedger:
    """Answers by a function of the call and its last message; records only in memory."""

    reply: Reply
    keys: list[CallKey] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    async def ask(
        self, key: CallKey, policy: object, messages: Sequence[Message], *_: Any
    ) -> tuple[Completion, RecordRef]:
        self.keys.append(key)
        self.prompts.append(messages[-1].content)
        text = self.reply(key, messages[-1].content)
        return Completion(text, usage=Usage(1, 1, 1)), RecordRef("step-0001.jsonl", 0, 1, "")


class NoLinter(OperationLinter):
    async def flags_of(
        self, operations: Sequence[Operation], library: Library, others: Sequence[Operation] = ()
    ) -> tuple[tuple[Flag, ...], ...]:
        return tuple(() for _ in operations)


def a_batch(
    proposals: Sequence[str | Proposal], rewards: Sequence[float] = (1, 0)
) -> tuple[list[Group], list[Reflection]]:
    """Every proposal is of a group and a problem of its own."""
    groups, reflections = [], []
    for at, said in enumerate(proposals):
        group = a_group(rewards, position=at, problem=a_problem(f"q{at}"))
        seen = tuple(rollout.id for rollout in group.rollouts)
        wish = Proposal("add", None, said, "seen", seen) if isinstance(said, str) else said
        groups.append(group)
        reflections.append(Reflection(1, at, "used", (replace(wish, evidence=seen),)))
    return groups, reflections


async def consolidated(
    reply: Reply, proposals: Sequence[str | Proposal], library: Library | None = None, **more: Any
) -> tuple[Lesson, MemoryLedger]:
    ledger = MemoryLedger(reply)
    reflector = Reflector(replace(SETTINGS, **more), answering(), ledger)  # type: ignore[arg-type]
    made = Consolidator(reflector, NoLinter(), lambda: ())
    lesson = await made.consolidate(*a_batch(proposals), library or a_library())
    numbers = [fate.proposal for fate in lesson.fates]
    assert numbers == list(range(1, len(proposals) + 1)), "a proposal is not accounted for"
    ids = {op.id for op in (*lesson.operations, *lesson.withheld)}
    for fate in lesson.fates:
        assert (fate.operation in ids) is (fate.fate != "dropped")
        assert bool(fate.reason) is (fate.fate == "dropped")
    return lesson, ledger


def saying(*replies: Any) -> Reply:
    left = [one if isinstance(one, str) else json.dumps(one) for one in replies]
    return lambda key, prompt: left.pop(0)


def an_add(text: str, *numbers: int, **more: Any) -> dict[str, Any]:
    row = {"operation": "add", "id": None, "experience": text, "reason": "seen"}
    return {**row, "proposals": list(numbers), **more}


def fates_of(lesson: Lesson) -> list[tuple[str, str, str]]:
    return [(fate.fate, fate.operation, fate.reason) for fate in lesson.fates]


# -- one call ------------------------------------------------------------------------------


async def test_each_proposal_is_used_merged_or_dropped_with_its_reason() -> None:
    rows = [an_add("A", 1, 3), an_add("B", 2), {"drop": [4, 2], "because": "too vague"}]
    lesson, ledger = await consolidated(saying(rows), ["a", "b", "a again", "d"])
    assert fates_of(lesson) == [
        ("merged", "op1.1", ""),
        ("used", "op1.2", ""),  # an operation that rests on it counts before a drop
        ("merged", "op1.1", ""),
        ("dropped", "", "too vague"),
    ]
    assert [fate.group for fate in lesson.fates] == ["s1p0", "s1p1", "s1p2", "s1p3"]
    assert ledger.keys == [CallKey("consolidation", 1, 1)]  # one call, under the key of always


async def test_what_no_object_names_is_asked_for_once() -> None:
    rows = [an_add("A", 1)]
    whole = [*rows, {"drop": [2, 3], "because": "no use"}]
    lesson, ledger = await consolidated(saying(rows, whole), ["a", "b", "c"])
    assert "Named by no object: 2, 3. Let" in ledger.prompts[1]
    assert "| 2 (add): b\n| 3 (add): c" in ledger.prompts[1]  # quoted: it is foreign text
    assert [fate.reason for fate in lesson.fates] == ["", "no use", "no use"]
    assert lesson.losses == ()


async def test_a_repair_turn_may_send_only_what_was_missing() -> None:
    lesson, _ = await consolidated(saying([an_add("A", 1)], [an_add("B", 2)]), ["a", "b"])
    assert [op.text for op in lesson.operations] == ["A", "B"]


async def test_a_repair_turn_that_names_less_does_not_count() -> None:
    lesson, _ = await consolidated(saying([an_add("A", 1, 2)], "[]"), ["a", "b", "c"])
    assert fates_of(lesson)[1:] == [("merged", "op1.1", ""), ("dropped", "", UNNAMED)]


async def test_what_stays_unnamed_is_dropped_and_nothing_is_left_to_mend() -> None:
    lesson, _ = await consolidated(saying([an_add("A", 1)], [an_add("A", 1)]), ["a", "b"])
    assert fates_of(lesson)[1] == ("dropped", "", UNNAMED)
    assert lesson.losses == ()


async def test_a_reply_that_nobody_understands_loses_all_and_says_so() -> None:
    lesson, _ = await consolidated(saying("Sorry.", "No."), ["a", "b"])
    assert [loss.kind for loss in lesson.losses] == ["consolidation"]
    assert {fate.reason for fate in lesson.fates} == {"the consolidation failed"}


async def test_a_withheld_operation_keeps_what_went_into_it() -> None:
    past = PastDecision(
        run="r", operation_id="op1.1", kind="add", text="Carry it.", became="", reason="no",
        problems=("id-q0",), reviewer="person", at=1.0,
    )  # fmt: skip
    library = remembering(a_library(), past)
    rows = [an_add("Carry it.", 1), an_add("Other.", 2)]
    lesson, _ = await consolidated(saying(rows), ["a", "b"], library)
    assert [op.id for op in lesson.withheld] == ["op1.2"]
    assert [fate[:2] for fate in fates_of(lesson)] == [("used", "op1.2"), ("used", "op1.1")]


async def test_what_the_reflector_says_against_an_operation_becomes_flags() -> None:
    doubts = {"same_as": "E1", "conflicts_with": ["E2"], "only_this_problem": True}
    lesson, _ = await consolidated(saying([an_add("A", 1, **doubts)]), ["a"], a_library("x", "y"))
    found = {flag.name: flag.detail for flag in lesson.operations[0].flags}
    assert list(found) == [flags.DUPLICATE, flags.CONFLICT, flags.ONE_PROBLEM]
    assert "E1" in found[flags.DUPLICATE] and "E2" in found[flags.CONFLICT]


async def test_more_operations_than_the_bound_are_refused_with_their_count() -> None:
    rows = [an_add(f"A {n}", 1) for n in range(4)]
    _, ledger = await consolidated(saying(rows, [an_add("A", 1)]), ["a"], operations_per_call=3)
    assert "it holds 4 operations, and at most 3 are taken" in ledger.prompts[1]


def test_the_evidence_of_a_proposal_counts_winners_and_losers() -> None:
    groups, reflections = a_batch(["a"], rewards=(1, 0, 0))
    (candidate,) = list_candidates(groups, reflections)
    assert candidate.note(winners(groups)) == "1 winner, 2 losers (s1p0)"
    assert candidate.note({}) == "3 attempts (s1p0)"  # nothing gives rewards away
    groups, reflections = a_batch(["a"], rewards=(0, 0))
    (candidate,) = list_candidates(groups, reflections)
    assert candidate.note(winners(groups)) == "no winners, 2 losers (s1p0)"


# -- several calls -------------------------------------------------------------------------


def test_proposals_that_are_alike_meet_and_those_about_one_experience_do() -> None:
    texts = [
        "Round down: when dividing into boxes, drop the rest.",
        "Carry: when digits add up to ten or more, carry one.",
        "When dividing into boxes, always drop the rest: round down.",
        "Units: say in which unit the answer is.",
    ]
    wishes = [Proposal("add", None, text, "", ()) for text in texts]
    wishes[1:1] = [Proposal("delete", "E7", "", "", ())]
    wishes += [Proposal("modify", "E7", "Something else: say it.", "", ())]
    candidates = [Candidate(n, wish, f"s1p{n}", f"q{n}") for n, wish in enumerate(wishes, 1)]
    groups = [[each.number for each in group] for group in arrange(candidates, 2)]
    assert groups == [[1, 4], [2, 6], [3, 5]]


async def test_a_call_of_several_that_fails_lets_its_proposals_go_on_as_they_are() -> None:
    texts = [f"Rule {chr(97 + n) * 5}: do {chr(97 + n) * 6}." for n in range(12)]

    def reply(key: CallKey, prompt: str) -> str:
        if key.position == 0:
            raise a_timeout()
        return keep_all(prompt)

    lesson, ledger = await consolidated(reply, texts)
    assert sorted(op.text for op in lesson.operations) == sorted(texts)
    assert [(loss.kind, loss.where) for loss in lesson.losses] == [
        ("consolidation call", "step 1, part 1 of 2")
    ]
    assert [(key.index, key.position) for key in ledger.keys] == [(1, 0), (1, 1)]


async def test_where_every_call_fails_the_whole_consolidation_has() -> None:
    def reply(key: CallKey, prompt: str) -> str:
        raise a_timeout()

    lesson, _ = await consolidated(reply, [f"text {n}" for n in range(9)])
    assert lesson.operations == ()
    assert [loss.kind for loss in lesson.losses] == ["consolidation"]  # an outage, tried again


async def test_each_call_gets_its_share_of_little_room() -> None:
    rooms: list[int] = []

    def reply(key: CallKey, prompt: str) -> str:
        rooms.extend(int(n) for n in re.findall(r"(\d+) may be added", prompt))
        return keep_all(prompt)

    await consolidated(reply, [f"Text {'y' * n}." for n in range(1, 17)], library_limit=6)
    assert rooms == [3, 3]


# -- a reflector that attends to eight -----------------------------------------------------

_BLOCK = re.compile(r"### Proposal (\d+) · .*\n.*\n\| (.*)\n")
THEMES = {
    "round down": "Round down: when {} are put into boxes, {} the rest that fills none.",
    "carry": "Carry: when the digits of {} add up to ten, {} one to the next place.",
    "units": "Units: when {} are asked for in another unit, {} before the last line.",
    "both halves": "Both halves: when {} cost two amounts, {} them before paying.",
}
_VERBS = ("add", "drop", "carry over", "convert", "keep", "write down", "leave out", "take")
_THINGS = ("apples", "pens", "coins", "tickets", "books", "stamps", "cards", "eggs", "cups")


def shown_proposals(prompt: str) -> dict[int, str]:
    return {int(number): text for number, text in _BLOCK.findall(prompt)}


def keep_all(prompt: str) -> str:
    return json.dumps([an_add(text, number) for number, text in shown_proposals(prompt).items()])


def attentive_reply(key: CallKey, prompt: str) -> str:
    """Sees what stands among the first eight, and puts paraphrases of one theme together.

    It leaves out what it did not see, whatever a repair turn asks.
    """
    seen = list(shown_proposals(prompt).items())[:8]
    by_name: dict[str, list[int]] = {}
    for number, text in seen:
        by_name.setdefault(text.partition(":")[0].lower(), []).append(number)
    texts = dict(seen)
    rows = [an_add(texts[numbers[0]], *numbers) for numbers in by_name.values()]
    return json.dumps(rows)


def a_crowd(rng: random.Random, n: int, single: int) -> list[str]:
    """Proposals of which some occur once, in a crowd of paraphrases of few."""
    crowd = list(THEMES.values())
    texts = [
        rng.choice(crowd).format(rng.choice(_THINGS), rng.choice(_VERBS)) for _ in range(n - single)
    ]
    for number in range(single):
        word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=7))
        texts.append(
            f"{word.title()} {number}: when the task names {word}, {rng.choice(_VERBS)} it."
        )
    rng.shuffle(texts)
    return texts


def kept_share(lesson: Lesson, texts: Sequence[str]) -> float:
    """The share of what occurs once that an operation says."""
    single = [text for text in texts if text.partition(":")[0].lower() not in THEMES]
    said = {op.text for op in lesson.operations}
    return sum(text in said for text in single) / len(single)


async def test_what_occurs_once_is_not_lost_in_a_crowd() -> None:
    for seed in range(6):
        texts = a_crowd(random.Random(seed), 100, 20)
        lesson, ledger = await consolidated(attentive_reply, texts)
        assert kept_share(lesson, texts) >= 0.95
        # Paraphrases meet: each call has one operation of a theme, and few calls have two themes.
        assert len(ledger.keys) <= 2 * 13  # each part once, and once more for what is unnamed
        assert len(lesson.operations) <= 20 + 13 + len(THEMES)


async def test_one_flat_call_would_have_lost_them() -> None:
    """What several calls are measured against: the same reflector, all proposals in one prompt."""
    texts = a_crowd(random.Random(0), 100, 20)
    lesson, _ = await consolidated(attentive_reply, texts, proposals_per_call=100)
    assert kept_share(lesson, texts) < 0.2


def malformed(rng: random.Random, text: str) -> str:
    """A reply as models break it: cut, prose, an empty list, strange numbers, wrong fields."""
    match rng.randrange(6):
        case 0:
            return text[: rng.randrange(len(text) + 1)]
        case 1:
            return "I would merge the first two."
        case 2:
            return "[]"
        case 3:
            return text.replace('"proposals": [', '"proposals": [0, 977, ')
        case 4:
            return text.replace('"operation": "add"', '"operation": "perhaps"', 1)
        case _:
            return text.replace('"proposals"', '"attempts"')


async def test_no_proposal_is_unaccounted_for_whatever_the_replies_are() -> None:
    """`consolidated` holds for each lesson that every proposal has one fate that is true."""
    total = {"used": 0, "merged": 0, "dropped": 0}
    for seed in range(400):
        rng = random.Random(seed)
        n = rng.randint(1, 120) if seed % 20 == 0 else rng.randint(1, 11)

        def reply(key: CallKey, prompt: str, rng: random.Random = rng) -> str:
            if rng.random() < 0.02:
                raise a_timeout()
            text = attentive_reply(key, prompt)
            return malformed(rng, text) if rng.random() < 0.2 else text

        lesson, ledger = await consolidated(reply, a_crowd(rng, n, n // 3))
        for fate in lesson.fates:
            total[fate.fate] += 1
        asked = [key for key in ledger.keys if key.turn == 0]
        assert len(asked) == len(set(asked)) <= math.ceil(n / 8)
    assert min(total.values()) > 50  # all three came about
