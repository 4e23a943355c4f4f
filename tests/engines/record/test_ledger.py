"""Every reply is paid for once, also by a process that takes a run up again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.codec import call_seed
from engines.core.errors import CallFailed, ConflictError, DamagedError
from engines.core.types import (
    NO_USAGE,
    CallKey,
    Completion,
    Message,
    RecordRef,
    Sampling,
    ToolCall,
    Usage,
)
from engines.pipeline.budget import Amounts, Budget, BudgetedPolicy, BudgetLimits, CallPricing
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.limits import Slots, Throttled
from engines.record.ledger import (
    RecordLedger,
    read_record,
    read_trajectory,
    record_file_name,
    request_hash,
)
from tests.support.builders import FakePolicy, a_timeout, answering
from tests.support.fake_endpoint import delta, fake_endpoint, hangs
from tests.support.usage import read_usage

KEY = CallKey("rollout", 1, 3, 0, 1)
ASKED = (Message("user", "What is 2 + 3?"),)
WARM = Sampling()


def a_ledger(folder: Path, told: list[str] | None = None, run_seed: int = 1) -> RecordLedger:
    return RecordLedger(
        folder, run_seed, clock=lambda: 5.0, tell=(told if told is not None else []).append
    )


async def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    policy, ledger = answering("five"), a_ledger(tmp_path)
    first = await ledger.ask(KEY, policy, ASKED, WARM)
    assert await ledger.ask(KEY, policy, ASKED, WARM) == first
    assert (len(policy.requests), ledger.asked, ledger.reused) == (1, 1, 1)
    await ledger.aclose()


async def test_a_ledger_opened_again_still_knows_the_reply_named_or_not(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    reply = Completion(
        "five", "hm", (ToolCall("t", "add", "{}"),), "tool_calls", Usage(1, 2, 1, 0.5), "m"
    )
    first = await ledger.ask(KEY, answering(reply), ASKED, WARM)
    await ledger.aclose()
    again = a_ledger(tmp_path)
    assert await again.ask(KEY, answering(), ASKED, WARM) == first == (reply, first[1])
    await again.aclose()


@pytest.mark.parametrize("what", ["key", "messages", "sampling", "policy", "run seed"])
async def test_another_question_is_asked_again(tmp_path: Path, what: str) -> None:
    ledger = a_ledger(tmp_path)
    await ledger.ask(KEY, answering("five"), ASKED, WARM)
    await ledger.aclose()
    policy = answering("six")
    policy.name = "fake:other" if what == "policy" else policy.name
    again = a_ledger(tmp_path, run_seed=2 if what == "run seed" else 1)
    reply, _ = await again.ask(
        replace(KEY, index=2) if what == "key" else KEY,
        policy,
        (Message("user", "What is 3 + 3?"),) if what == "messages" else ASKED,
        Sampling(temperature=0.0) if what == "sampling" else WARM,
    )
    assert (reply.text, again.asked) == ("six", 1)
    await again.aclose()


async def test_the_seed_follows_from_the_key_whatever_the_caller_says(tmp_path: Path) -> None:
    policy, ledger = answering("five", "five"), a_ledger(tmp_path)
    await ledger.ask(KEY, policy, ASKED, Sampling(seed=99))
    await ledger.ask(replace(KEY, turn=1), policy, ASKED, Sampling(seed=99))
    assert [s.seed for s in policy.samplings] == [
        call_seed(1, KEY),
        call_seed(1, replace(KEY, turn=1)),
    ]
    assert policy.samplings[0].seed != policy.samplings[1].seed
    await ledger.aclose()


async def test_the_record_is_on_disk_before_the_reply_is_handed_out(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    reply, ref = await ledger.ask(KEY, answering("five"), ASKED, WARM)
    record = read_record(tmp_path, ref)  # while the ledger is still open
    assert (record.key, record.reply, record.messages, record.at) == (KEY, reply, ASKED, 5.0)
    assert record.sampling.seed == call_seed(1, KEY)
    await ledger.aclose()


async def test_a_failed_call_is_not_recorded_and_is_asked_again(tmp_path: Path) -> None:
    policy, ledger = answering(a_timeout(), "five"), a_ledger(tmp_path)
    with pytest.raises(CallFailed):
        await ledger.ask(KEY, policy, ASKED, WARM)
    reply, _ = await ledger.ask(KEY, policy, ASKED, WARM)
    assert reply.text == "five"
    await ledger.aclose()


async def test_calls_at_the_same_time_each_get_their_own_record(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    keys = [replace(KEY, index=n) for n in range(20)]
    asked = await asyncio.gather(
        *(ledger.ask(key, answering(f"reply {key.index}"), ASKED, WARM) for key in keys)
    )
    await ledger.aclose()
    for key, (_, ref) in zip(keys, asked, strict=True):
        record = read_record(tmp_path, ref)
        assert (record.key, record.reply.text) == (key, f"reply {key.index}")


async def several_turns(ledger: RecordLedger) -> tuple[tuple[Message, ...], list[RecordRef]]:
    """A try of three turns with a tool between them, and its messages at the end."""
    call = Completion("", tool_calls=(ToolCall("t1", "add", '{"a":2}'),), finish="tool_calls")
    policy = answering(call, "so five", "yes, five")
    messages: tuple[Message, ...] = (Message("system", "Be brief."), *ASKED)
    refs = []
    for turn, more in enumerate(
        (Message("tool", "5", tool_call_id="t1"), Message("user", "Sure?"), None)
    ):
        reply, ref = await ledger.ask(replace(KEY, turn=turn), policy, messages, WARM)
        refs.append(ref)
        messages = (*messages, reply.as_message(), *([more] if more else []))
    return messages, refs


async def test_a_try_of_several_turns_is_read_back_whole_and_stored_once(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    messages, refs = await several_turns(ledger)
    await ledger.aclose()
    assert read_trajectory(tmp_path, refs) == messages
    # Turn 0 brings system and user; every later one what came after its predecessor's reply.
    assert [len(read_record(tmp_path, ref).messages) for ref in refs] == [2, 1, 1]
    assert [read_record(tmp_path, ref).base for ref in refs] == [0, 3, 5]


async def test_a_try_that_was_cut_between_turns_goes_on_with_the_same_bases(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    messages, refs = await several_turns(ledger)
    await ledger.aclose()
    path = tmp_path / refs[0].file
    path.write_bytes(path.read_bytes()[: refs[2].offset])  # the last turn never happened
    again = a_ledger(tmp_path)
    policy = answering("yes, five")
    asked = [messages[:2], messages[:4], messages[:6]]
    taken = [
        (await again.ask(replace(KEY, turn=turn), policy, request, WARM))[1]
        for turn, request in enumerate(asked)
    ]
    await again.aclose()
    assert (len(policy.requests), taken[:2]) == (1, refs[:2])
    assert read_trajectory(tmp_path, taken) == messages


async def test_a_context_rewritten_between_turns_is_recorded_as_it_was(tmp_path: Path) -> None:
    ledger, policy = a_ledger(tmp_path), answering("one", "two")
    long = (Message("system", "s"), Message("user", "very long"))
    short = (Message("system", "s"), Message("user", "in short"), Message("user", "go on"))
    refs = [
        (await ledger.ask(replace(KEY, turn=turn), policy, request, WARM))[1]
        for turn, request in enumerate((long, short))
    ]
    await ledger.aclose()
    assert read_record(tmp_path, refs[1]).base == 1  # they share the system message only
    assert read_trajectory(tmp_path, refs) == (*short, Message("assistant", "two"))


async def test_a_record_cut_at_any_byte_costs_only_itself(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    policy = answering("first", "second")
    _, one = await ledger.ask(KEY, policy, ASKED, WARM)
    _, two = await ledger.ask(replace(KEY, index=2), policy, ASKED, WARM)
    await ledger.aclose()
    path = tmp_path / one.file
    whole = path.read_bytes()
    for cut in range(two.offset, len(whole) + 1, 5):
        path.write_bytes(whole[:cut])
        told: list[str] = []
        again, asked_again = a_ledger(tmp_path, told), answering("second")
        await again.ask(KEY, answering(), ASKED, WARM)
        _, now = await again.ask(replace(KEY, index=2), asked_again, ASKED, WARM)
        await again.aclose()
        lost = cut < len(whole) - 1
        assert len(asked_again.requests) == lost
        assert bool(told) is (cut not in (two.offset, len(whole)))
        assert read_record(tmp_path, one).reply.text == "first"
        assert read_record(tmp_path, now).reply.text == "second"


async def test_a_reference_never_finds_another_record_in_the_same_place(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    _, ref = await ledger.ask(KEY, answering("five"), ASKED, WARM)
    await ledger.aclose()
    (tmp_path / ref.file).write_bytes(b"")
    ledger = a_ledger(tmp_path)
    _, other = await ledger.ask(KEY, answering("nine"), ASKED, WARM)
    await ledger.aclose()
    assert read_record(tmp_path, replace(ref, length=other.length, digest=other.digest))
    with pytest.raises(DamagedError, match="another than the journal names"):
        read_record(tmp_path, replace(ref, length=other.length))


async def test_a_record_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    _, ref = await ledger.ask(KEY, answering("five"), ASKED, WARM)
    await ledger.aclose()
    path = tmp_path / ref.file
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    again = a_ledger(tmp_path)
    await again.ask(KEY, answering(), ASKED, WARM)
    await again.aclose()
    assert path.read_bytes() == whole


async def test_a_damaged_record_is_refused_with_its_line(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    _, ref = await ledger.ask(KEY, answering("five"), ASKED, WARM)
    await ledger.aclose()
    path = tmp_path / ref.file
    path.write_bytes(path.read_bytes().replace(b"five", b"nine"))
    with pytest.raises(DamagedError, match=r"step-0003\.jsonl:1: "):
        await a_ledger(tmp_path).ask(KEY, answering(), ASKED, WARM)
    with pytest.raises(DamagedError, match="fails its checksum"):
        read_record(tmp_path, ref)
    path.unlink()
    with pytest.raises(ConflictError, match="is not there"):
        read_record(tmp_path, ref)


async def test_evaluations_have_files_of_their_own_and_steps_can_be_forgotten(
    tmp_path: Path,
) -> None:
    evaluation = CallKey("evaluation", 0, 3, 0, 1, problem="p1")
    assert (record_file_name(KEY), record_file_name(evaluation)) == (
        "step-0003.jsonl",
        "eval-0003.jsonl",
    )
    ledger, policy = a_ledger(tmp_path), answering("a", "b")
    await ledger.ask(KEY, policy, ASKED, WARM)
    await ledger.ask(evaluation, policy, ASKED, WARM)
    ledger.release_files()
    reply, _ = await ledger.ask(KEY, answering(), ASKED, WARM)  # read again from disk
    assert reply.text == "a"
    await ledger.aclose()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["eval-0003.jsonl", "step-0003.jsonl"]


async def test_a_call_that_was_cancelled_after_it_was_sent_is_recorded_as_lost(
    tmp_path: Path,
) -> None:
    ledger = a_ledger(tmp_path)
    async with fake_endpoint(hangs(delta(content="w" * 400))) as fake:
        policy = OpenAICompat(EndpointSettings("m", fake.base_url))
        pieces: list[str] = []
        asking = asyncio.create_task(ledger.ask(KEY, policy, ASKED, WARM, pieces.append))
        await fake.until(lambda: len(fake.requests) == 1)
        async with asyncio.timeout(20):
            while not pieces:
                await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await policy.aclose()
    await ledger.aclose()
    ((name, usage),) = read_usage(tmp_path)
    assert (name, usage.calls, usage.completion_tokens) == ("openai:m", 1, 100)
    assert ledger.paid == usage
    again = a_ledger(tmp_path)
    reply, _ = await again.ask(KEY, answering("five"), ASKED, WARM)
    assert reply.text == "five"  # it answers no question
    await again.aclose()


async def test_a_call_cancelled_before_it_was_sent_costs_nothing(tmp_path: Path) -> None:
    ledger, slots = a_ledger(tmp_path), Slots(1)
    budget = Budget(BudgetLimits(calls=1), lambda _: None)
    settle = await budget.reserve(Amounts(1))
    for policy in (
        Throttled(answering(), slots),
        BudgetedPolicy(answering(), budget, CallPricing(100)),
    ):
        async with slots.acquire():
            asking = asyncio.create_task(ledger.ask(KEY, policy, ASKED, WARM))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    settle(Amounts())
    await ledger.aclose()
    assert (list(read_usage(tmp_path)), ledger.paid) == ([], NO_USAGE)


async def test_what_a_budget_reserved_for_a_prompt_is_recorded_where_nobody_knows_better(
    tmp_path: Path,
) -> None:
    class Hanging(FakePolicy):
        async def complete(self, *_: object) -> Completion:
            return await asyncio.get_running_loop().create_future()

    ledger, budget = a_ledger(tmp_path), Budget(BudgetLimits(calls=9), lambda _: None)
    policy = BudgetedPolicy(Hanging(), budget, CallPricing(100, 1.0, 1.0))
    asking = asyncio.create_task(ledger.ask(KEY, policy, ASKED, WARM))
    for _ in range(5):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await ledger.aclose()
    ((_, usage),) = read_usage(tmp_path)
    assert usage.calls == budget.spent.calls == 1
    assert usage.tokens == budget.spent.tokens > 0
    assert usage.cost_usd == pytest.approx(usage.tokens / 1e6)


async def test_other_costs_stand_in_the_records_and_answer_nothing(tmp_path: Path) -> None:
    ledger = a_ledger(tmp_path)
    ledger.record_cost(CallKey("embedding", 0, 0), "openai:e", Usage(7, 0, 1), "vectors of texts")
    assert ledger.paid == Usage(7, 0, 1)
    await ledger.aclose()
    again = a_ledger(tmp_path)
    again.record_cost(CallKey("embedding", 0, 0), "openai:e", Usage(8, 0, 1), "vectors of texts")
    await again.aclose()
    assert [usage.tokens for _, usage in read_usage(tmp_path)] == [7, 8]


def test_what_was_sampled_is_part_of_a_request_s_hash() -> None:
    sampling = Sampling(0.7, seed=5)
    sampled = Message("assistant", "2", token_ids=(7,))
    retold = Message("assistant", "2", token_ids=(8,))
    assert request_hash(1, "m", [sampled], sampling) != request_hash(1, "m", [retold], sampling)
