"""Recorded calls are found whatever order they are made in, and each answers once."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.types import CallKey, Message, RecordRef, Sampling
from engines.record.ledger import RecordLedger, read_record
from tests.support.builders import answering

TRY = CallKey("rollout", 1, 1, 0, 0)


async def ask_each(ledger: RecordLedger, texts: str, replies: str) -> list[tuple[str, RecordRef]]:
    """Ask each text in its turn; the policy has these replies, and is to need all of them."""
    policy, answers = answering(*replies), []
    for turn, text in enumerate(texts):
        messages = (Message("system", "s"), Message("user", text))
        reply, ref = await ledger.ask(replace(TRY, turn=turn), policy, messages, Sampling())
        answers.append((reply.text, ref))
    assert not policy.replies
    return answers


async def ask(ledger: RecordLedger, texts: str, replies: str = "") -> list[str]:
    return [text for text, _ in await ask_each(ledger, texts, replies)]


async def recorded(folder: Path, texts: str) -> RecordLedger:
    """A ledger opened again, after these texts were answered by 0, 1, 2 and so on."""
    ledger = RecordLedger(folder, 1)
    await ask(ledger, texts, "0123456789"[: len(texts)])
    await ledger.aclose()
    return RecordLedger(folder, 1)


@pytest.mark.parametrize(
    ("before", "now", "asked", "replies"),
    [
        ("AB", "ABC", "x", "01x"),
        ("ABC", "CAB", "", "201"),
        ("BAA", "AAB", "", "120"),
        ("BA", "AAB", "x", "1x0"),  # a reply answers once
        ("ABC", "AD", "x", "0x"),
    ],
)
async def test_each_call_finds_its_earlier_reply_in_whatever_order(
    before: str, now: str, asked: str, replies: str, tmp_path: Path
) -> None:
    ledger = await recorded(tmp_path, before)
    assert await ask(ledger, now, asked) == list(replies)
    assert await ask(ledger, now) == list(replies)  # begun again it has all of them
    await ledger.aclose()
    again = RecordLedger(tmp_path, 1)
    assert sorted(await ask(again, now)) == sorted(replies)
    await again.aclose()


@pytest.mark.parametrize(("now", "base"), [("ABC", 1), ("BAC", 0), ("AC", 0)])
async def test_in_another_order_a_record_holds_all_of_its_messages(
    now: str, base: int, tmp_path: Path
) -> None:
    ledger = await recorded(tmp_path, "AB")
    *_, (_, ref) = await ask_each(ledger, now, "x")
    await ledger.aclose()
    assert read_record(tmp_path, ref).base == base
