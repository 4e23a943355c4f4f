"""Calls and answers as files: what is written, taken and refused."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.core.errors import AnswersPending, PolicyError
from engines.core.types import CallKey, Completion, Message, Sampling, Usage
from engines.core.waiting import gather_all, name_call
from engines.policies.handoff import HandoffPolicy, folder_remarks

QUESTION = (Message("system", "Be brief."), Message("user", "What is 2 + 2?"))
KEY = CallKey("rollout", epoch=1, step=1, position=2, index=0)


async def ask(policy: HandoffPolicy, seed: int = 1) -> Completion:
    with name_call(KEY):
        return await policy.complete(QUESTION, Sampling(0.7, max_tokens=99, seed=seed))


async def pending(policy: HandoffPolicy, seed: int = 1) -> AnswersPending:
    with pytest.raises(AnswersPending) as caught:
        await ask(policy, seed)
    return caught.value


def call(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.call.json")
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    assert path.name == f"{found['id']}.call.json"
    return found


@pytest.fixture
def policy(tmp_path: Path) -> HandoffPolicy:
    return HandoffPolicy(tmp_path)


async def test_a_call_is_a_body_that_any_endpoint_takes(policy: HandoffPolicy) -> None:
    told = await pending(policy)
    asked = call(policy.folder)
    assert asked["request"] == {
        "model": policy.name,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is 2 + 2?"},
        ],
        "temperature": 0.7,
        "max_tokens": 99,
        "seed": 1,
    }
    assert asked["call"] == "rollout: step 1, problem 3, try 1, turn 1"
    assert (asked["purpose"], asked["answer"]["schema"]["required"]) == ("rollout", ["text"])
    assert told.place == str(policy.folder) and "1 call waits for its answer" in told.cause


async def test_tries_of_one_problem_are_asked_one_by_one(policy: HandoffPolicy) -> None:
    for seed in (1, 2, 3, 1):
        await pending(policy, seed)
    assert len(list(policy.folder.glob("*.call.json"))) == 3


async def test_purposes_are_told_apart_and_folders_are_not(tmp_path: Path) -> None:
    here, there = HandoffPolicy(tmp_path / "here"), HandoffPolicy(tmp_path / "there")
    for one in (here, there):
        await one.ping()
        await pending(one)
    assert call(here.folder)["id"] == call(there.folder)["id"]
    with name_call(CallKey("judge", 1, 1, 2, 0)), pytest.raises(AnswersPending):
        await here.complete(QUESTION, Sampling(0.7, max_tokens=99, seed=1))
    assert len(list(here.folder.glob("*.call.json"))) == 2


@pytest.mark.parametrize("kind", ["txt", "md"])
async def test_a_plain_text_is_an_answer_and_its_usage_is_estimated(
    policy: HandoffPolicy, kind: str
) -> None:
    await pending(policy)
    (policy.folder / f"{call(policy.folder)['id']}.answer.{kind}").write_text("\ufeff It is 4.\n")
    made = await ask(policy)
    assert (made.text, made.finish, made.model) == ("It is 4.", "stop", policy.name)
    assert made.usage == Usage(7, 2, 1, None)
    assert not list(policy.folder.glob("*.*"))  # what was taken up lies in done
    assert len(list((policy.folder / "done").iterdir())) == 2
    assert await ask(policy) == made  # a process that was killed before it was recorded


async def test_an_answer_by_the_schema_may_say_more(policy: HandoffPolicy) -> None:
    await pending(policy)
    name = call(policy.folder)["id"]
    said = {
        **{"id": name, "text": "4", "reasoning": "Hm.", "model": "ann", "finish": "length"},
        "usage": {"prompt_tokens": 9, "completion_tokens": 5},
    }
    (policy.folder / f"{name}.answer.json").write_bytes(orjson.dumps(said))
    made = await ask(policy)
    assert made == Completion("4", "Hm.", finish="length", usage=Usage(9, 5, 1), model="ann")


BAD: dict[str, Callable[[Path, str], object]] = {
    "text: String should match": lambda folder, name: (folder / f"{name}.answer.txt").write_text(
        " \n"
    ),
    "it says that it answers 'other'": lambda folder, name: (
        folder / f"{name}.answer.json"
    ).write_text('{"id": "other", "text": "4"}'),
    "or no JSON": lambda folder, name: (folder / f"{name}.answer.json").write_text("4."),
    "it: Input should be a valid dictionary": lambda folder, name: (
        folder / f"{name}.answer.json"
    ).write_text("[]"),
    "text: Field required": lambda folder, name: (folder / f"{name}.answer.json").write_text(
        '{"txt": "4"}'
    ),
    "text: Input should be a valid string": lambda folder, name: (
        folder / f"{name}.answer.json"
    ).write_text('{"text": 4}'),
    "it is no UTF-8": lambda folder, name: (folder / f"{name}.answer.md").write_bytes(b"\xff4"),
    "usage.prompt_tokens: Input should be greater": lambda folder, name: (
        folder / f"{name}.answer.json"
    ).write_text('{"text": "4", "usage": {"prompt_tokens": -1}}'),
    "usage.prompt_tokens: Input should be less": lambda folder, name: (
        folder / f"{name}.answer.json"
    ).write_text('{"text": "4", "usage": {"prompt_tokens": 9000000000000000000}}'),
    "at most 1000000 characters": lambda folder, name: (folder / f"{name}.answer.txt").write_text(
        "4" * 1_000_001
    ),
    "has 2 answers; keep one": lambda folder, name: [
        (folder / f"{name}.answer.{kind}").write_text("4") for kind in ("txt", "md")
    ],
}


@pytest.mark.parametrize("why", BAD)
async def test_what_is_no_answer_is_refused_by_name_and_stays(
    policy: HandoffPolicy, why: str
) -> None:
    await pending(policy)
    name = call(policy.folder)["id"]
    BAD[why](policy.folder, name)
    before = sorted(path.name for path in policy.folder.iterdir())
    told = await pending(policy)
    assert name in told.cause and why in told.cause
    assert sorted(path.name for path in policy.folder.iterdir()) == before


async def test_a_call_that_was_changed_takes_its_answer_with_it(policy: HandoffPolicy) -> None:
    await pending(policy)
    asked = call(policy.folder)
    path = policy.folder / f"{asked['id']}.call.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"2 + 2", b"2 + 3"))
    (policy.folder / f"{asked['id']}.answer.txt").write_text("5")
    told = await pending(policy)
    assert f"{path.name} was changed" in told.cause
    kept = sorted(found.name for found in (policy.folder / "refused").iterdir())
    assert kept == [f"{asked['id']}.answer.txt", path.name]
    assert path.read_bytes() == whole  # it is asked again as it is
    await pending(policy)
    path.write_bytes(b"{}")
    await pending(policy)
    assert len(list((policy.folder / "refused").iterdir())) == 3  # nothing is overwritten


async def test_answers_that_nobody_asked_for_are_told_and_left(policy: HandoffPolicy) -> None:
    await pending(policy, 1)
    stale = call(policy.folder)["id"]
    (policy.folder / f"{stale}.answer.txt").write_text("4")
    now = HandoffPolicy(policy.folder)
    await pending(now, 2)
    (remark,) = folder_remarks([now])
    assert f"{stale}.answer.txt; left there" in remark
    assert (policy.folder / f"{stale}.answer.txt").exists()
    # Two roles may share a folder.
    assert not [remark for remark in folder_remarks([now, policy]) if stale in remark]


async def test_a_folder_that_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolicyError, match="cannot be a folder of calls"):
        await HandoffPolicy(tmp_path / "file").ping()


async def test_a_folder_that_is_gone_is_no_failed_try(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="calls cannot be written there"):
        await ask(HandoffPolicy(tmp_path / "gone"))


async def test_all_that_wait_are_told_together(policy: HandoffPolicy) -> None:
    done: list[int] = []

    async def one(seed: int) -> None:
        if seed % 3:
            await ask(policy, seed)
        done.append(seed)

    with pytest.raises(AnswersPending, match="6 calls wait for answers") as caught:
        await gather_all(one(seed) for seed in range(9))
    assert done == [0, 3, 6] and len(caught.value.calls[str(policy.folder)]) == 6


async def test_a_real_failure_goes_before_what_waits(policy: HandoffPolicy) -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await gather_all([ask(policy), fail()])


async def test_a_hundred_orders_of_asking_and_answering_give_the_same(tmp_path: Path) -> None:
    """Each time the answers arrive one by one or many at once, between starts or before them."""
    seeds = range(3)
    found = set()
    for number in range(100):
        order = random.Random(number)
        policy = HandoffPolicy(tmp_path / str(number % 25))
        await policy.ping()
        texts: dict[int, str] = {}
        while len(texts) < len(seeds):
            for seed in order.sample(seeds, len(seeds)):
                with suppress(AnswersPending):
                    texts[seed] = (await ask(policy, seed)).text
            waiting = sorted(policy.folder.glob("*.call.json"))
            for path in order.sample(waiting, order.randint(0, len(waiting))):
                text = f"to {orjson.loads(path.read_bytes())['request']['seed']}"
                kind = order.choice(["txt", "md"])
                (policy.folder / path.name.replace("call.json", f"answer.{kind}")).write_text(text)
        found.add(tuple(sorted(texts.items())))
        for path in (policy.folder / "done").iterdir():
            os.remove(path)
    assert found == {tuple((seed, f"to {seed}") for seed in seeds)}
