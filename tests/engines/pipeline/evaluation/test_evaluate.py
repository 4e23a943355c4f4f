"""An evaluation is honest about what helps, and pays for nothing twice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from engines.agents.loops import SingleTurn
from engines.core import events as ev
from engines.core.codec import call_seed
from engines.core.errors import RecordError
from engines.core.library import Experience, Library
from engines.core.protocols import OnText, Policy, Verifier
from engines.core.types import (
    CallKey,
    Completion,
    Decision,
    Message,
    Operation,
    Problem,
    RecordRef,
    Sampling,
    try_id,
)
from engines.data.dataset import read_problems
from engines.pipeline.context import RunContext
from engines.pipeline.evaluation.evaluate import (
    Measurement,
    MeasurementSetup,
    PinnedVersion,
    measure,
)
from engines.pipeline.evaluation.verdict import Comparison, compare
from engines.policies.limits import Slots
from engines.policies.open import open_policy
from engines.policies.rehearsal.reply import read_request, write_reply
from engines.record.ledger import RecordLedger
from engines.record.scores import ScoreBook
from engines.rollouts.manager import RolloutManager
from engines.verifiers.open import open_verifier
from studio.config.loading import load_run
from tests.support.harness import QUIET, Practised, practised

HELD_OUT = Path(str(files("sample_data"))) / "arithmetic-heldout.jsonl"
HARMFUL = (
    "When you add two numbers, never carry a ten to the next column.",
    "When you subtract and a digit is too small, do not borrow from the next digit.",
    "In a story of two changes, do not go on to the second change.",
    "In a mixed expression, never multiply first.",
)
IRRELEVANT = ("Write in short sentences.", "Be polite to whoever asks.")


@dataclass
class Asked:
    """A policy that counts its calls, and may be told when to stop answering."""

    inner: Policy
    stop_after: int | None = None
    calls: int = 0

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        if self.stop_after is not None and self.calls >= self.stop_after:
            raise asyncio.CancelledError
        self.calls += 1
        return await self.inner.complete(messages, sampling, on_text)

    async def ping(self) -> None: ...

    async def aclose(self) -> None:
        await self.inner.aclose()


class Straight:
    """Rehearsal without protocol and records: many rollouts in little time."""

    name = "rehearsal"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        asked = [{"role": m.role, "content": m.content} for m in messages]
        given = {"model": "rehearsal", "messages": asked, "seed": sampling.seed}
        text = write_reply(read_request({**given, "temperature": sampling.temperature})).text
        return Completion(text)

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


class NoRecord:
    """A ledger that only sees to the seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def ask(
        self,
        key: CallKey,
        policy: Policy,
        messages: Sequence[Message],
        sampling: Sampling,
        on_text: OnText | None = None,
        *,
        again: bool = False,
    ) -> tuple[Completion, RecordRef]:
        drawn = replace(sampling, seed=call_seed(self._seed, key))
        return await policy.complete(messages, drawn), RecordRef("", 0, 0, "")


async def quickly_measured(
    problems: Sequence[Problem], verifier: Verifier, library: Library | None, seed: int
) -> Measurement:
    """One evaluation with nothing kept."""
    agent = SingleTurn("Solve it.", Sampling(0.7))
    manager = RolloutManager(agent, Straight(), NoRecord(seed), Slots(16), 60.0)
    guidance = library.guidance() if library else ""
    book = ScoreBook(Path("never-written"), {})
    book.add = lambda score: score  # type: ignore[method-assign]
    return await measure(
        MeasurementSetup(manager, verifier, seed),
        book,
        problems,
        PinnedVersion(lambda *_: (guidance, None)),
    )


async def measured(
    folder: Path,
    problems: Sequence[Problem],
    library: Library | None = None,
    *,
    seed: int = 1,
    k: int = 1,
    stop_after: int | None = None,
) -> tuple[Measurement, int]:
    """Measure on the rehearsal model as `studio eval` does; also how many calls that took."""
    instructions = load_run("rehearsal", QUIET, folder, {}).config.agent.instructions
    guidance = library.guidance() if library else ""
    async with AsyncExitStack() as stack:
        policy = Asked(open_policy("rehearsal"), stop_after)
        stack.push_async_callback(policy.aclose)
        verifier = open_verifier("math")
        stack.push_async_callback(verifier.aclose)
        ledger = RecordLedger(folder / "replies", seed)
        stack.push_async_callback(ledger.aclose)
        book = ScoreBook(folder, {"seed": seed, "experiences": guidance})
        stack.callback(book.close)
        agent = SingleTurn(instructions, Sampling(0.7))
        manager = RolloutManager(agent, policy, ledger, Slots(16), 60.0)
        try:
            found = await measure(
                MeasurementSetup(manager, verifier, seed, k),
                book,
                problems,
                PinnedVersion(lambda *_: (guidance, None)),
            )
        except asyncio.CancelledError:
            return Measurement(()), policy.calls
    return found, policy.calls


def compared(problems: Sequence[Problem], before: Measurement, after: Measurement) -> Comparison:
    ids = [problem.id for problem in problems]
    found = compare(
        dict(zip(ids, before.rewards, strict=True)), dict(zip(ids, after.rewards, strict=True))
    )
    assert found is not None
    return found


def of(*texts: str) -> Library:
    entries = tuple(Experience(f"E{n}", text) for n, text in enumerate(texts, 1))
    return Library("control", 1, entries, len(texts) + 1)


async def test_a_practised_library_helps_a_harmful_one_hurts_and_others_cannot_tell(
    learned: Practised, tmp_path: Path
) -> None:
    problems = read_problems(HELD_OUT, limit=100)
    bare, _ = await measured(tmp_path, problems)
    # Another seed, so that the two draw independently, as a real model would.
    other_seed, _ = await measured(tmp_path, problems, of(*IRRELEVANT), seed=2)
    practised_one, _ = await measured(tmp_path, problems, learned.library)
    harmful, _ = await measured(tmp_path, problems, of(*HARMFUL))
    assert compared(problems, bare, practised_one).verdict == "helps"
    assert compared(problems, bare, other_seed).verdict == "cannot tell"
    assert compared(problems, bare, harmful).verdict == "hurts"


async def test_a_library_without_effect_rarely_seems_to_have_one() -> None:
    """48 evaluations of 40 problems; 5 % are 2.4, and 3.1 sd of chance above that are 7.

    The two sides have different seeds, so that they draw independently as a model would.
    """
    problems = read_problems(HELD_OUT, limit=40)
    verdicts, differing = [], 0
    verifier = open_verifier("math")
    for seed in range(1, 49):
        bare = await quickly_measured(problems, verifier, None, seed)
        idle = await quickly_measured(problems, verifier, of(*IRRELEVANT), seed + 1000)
        found = compared(problems, bare, idle)
        verdicts.append(found.verdict)
        differing += found.better + found.worse
    await verifier.aclose()
    assert differing > 48 * 40 * 0.3  # 2 · 0.34 · 0.66 of them: the draws are independent
    assert sum(verdict != "cannot tell" for verdict in verdicts) <= 7


async def test_an_evaluation_stopped_half_way_repeats_no_rollout_that_ended(
    tmp_path: Path,
) -> None:
    problems = read_problems(HELD_OUT, limit=80)
    whole, calls = await measured(tmp_path / "whole", problems)
    assert calls == 80
    _, first = await measured(tmp_path / "cut", problems, stop_after=40)
    found, second = await measured(tmp_path / "cut", problems)
    assert (first, first + second) == (40, 80)
    assert found.rewards == whole.rewards
    # Of the 40 replies, those whose judging was cut are judged again, from the record.
    assert found.reused <= 40
    _, third = await measured(tmp_path / "cut", problems)
    assert third == 0


async def test_a_longer_or_reordered_set_pays_for_what_is_new_alone(tmp_path: Path) -> None:
    problems = read_problems(HELD_OUT, limit=30)
    some, _ = await measured(tmp_path, problems[:20])
    turned, calls = await measured(tmp_path, problems[::-1])
    assert calls == 10
    assert turned.rewards[::-1][:20] == some.rewards
    _, more = await measured(tmp_path, problems, k=3)
    assert more == 60


async def test_another_library_or_seed_is_another_measurement(tmp_path: Path) -> None:
    problems = read_problems(HELD_OUT, limit=10)
    await measured(tmp_path, problems)
    for library, seed in ((of(*IRRELEVANT), 1), (None, 2)):
        _, calls = await measured(tmp_path, problems, library, seed=seed)
        assert calls == 10


async def test_what_could_not_be_judged_is_tried_again_and_what_was_is_not(
    tmp_path: Path,
) -> None:
    problems = list(read_problems(HELD_OUT, limit=3))
    problems[1] = replace(problems[1], answer=None)
    found, _ = await measured(tmp_path, problems)
    assert [row[0] is None for row in found.rewards] == [False, True, False]
    assert (found.known_count, found.unjudged_count) == (2, 1)
    again, calls = await measured(tmp_path, problems)
    assert (again.reused, calls) == (2, 0)  # its reply is on record; only judging failed


LOOKED = (
    "evaluation.do_eval=true",
    "evaluation.data=arithmetic-heldout",
    "evaluation.limit=10",
    "practice.epochs=1",
    "practice.batch_size=4",
    "practice.group_size=2",
    "data.truncate=8",
)


@dataclass
class Breaking:
    """A policy whose record cannot be written any more after so many calls."""

    inner: Policy
    left: int

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        if not self.left:
            raise RecordError("disk", "it is full.", "Make room.")
        self.left -= 1
        return await self.inner.complete(messages, sampling, on_text)

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def breaking(after: int) -> Callable[[RunContext], RunContext]:
    def change(practice: RunContext) -> RunContext:
        assert practice.evaluation is not None
        measuring = practice.evaluation.measuring
        rollouts = replace(measuring.rollouts, policy=Breaking(measuring.rollouts.policy, after))
        measuring = replace(measuring, rollouts=rollouts)
        return replace(practice, evaluation=replace(practice.evaluation, measuring=measuring))

    return change


async def test_a_run_cut_in_an_evaluation_adds_up_to_what_an_uncut_one_paid(
    tmp_path: Path,
) -> None:
    one_by_one = (*LOOKED, "evaluation.concurrency=1")
    whole = await practised(tmp_path / "whole", *one_by_one)
    with pytest.raises(RecordError):
        await practised(tmp_path / "cut", *one_by_one, change=breaking(6))
    (scores,) = (tmp_path / "cut/evaluations").glob("*/scores.jsonl")
    assert len(scores.read_bytes().splitlines()) >= 5  # what is found again was paid before
    resumed = await practised(tmp_path / "cut", *one_by_one)
    assert resumed.state.usage == whole.state.usage
    assert [(e.usage, e.reused, e.rewards) for e in resumed.state.evaluations] == [
        (e.usage, e.reused, e.rewards) for e in whole.state.evaluations
    ]


async def test_a_run_of_a_removed_run_s_name_has_an_account_of_its_own(tmp_path: Path) -> None:
    first = await practised(tmp_path, *LOOKED)
    shutil.rmtree(first.run.path)
    again = await practised(tmp_path, *LOOKED, "library.name=two")
    assert again.run.run == first.run.run
    assert [e.reused for e in again.state.evaluations] == [10, 10]
    assert all(e.usage.calls == 0 for e in again.state.evaluations)


async def test_a_fork_measures_what_it_begins_with_and_pays_nothing_for_it(tmp_path: Path) -> None:
    parent = await practised(tmp_path, *LOOKED)
    fork = await practised(tmp_path, *LOOKED, "practice.epochs=2", restart_step=2)
    first = fork.state.evaluations[0]
    assert (first.step, first.usage.calls, first.reused) == (2, 0, 10)
    assert first.rewards == parent.state.evaluations[-1].rewards
    assert [e.step for e in fork.state.evaluations] == [2, 4]


async def test_a_set_with_a_very_long_name_is_measured_and_kept(tmp_path: Path) -> None:
    data = tmp_path / f"{'n' * 240}.jsonl"
    data.write_text('{"question": "What is 27 + 35?", "answer": "62"}\n')
    done = await practised(tmp_path / "p", *LOOKED, f"evaluation.data={data}")
    assert [e.n for e in done.state.evaluations] == [1, 1]
    assert len(list((done.run.path / "evals").glob("step-*.json"))) == 2


async def test_a_question_that_stands_twice_counts_once_in_the_mean(tmp_path: Path) -> None:
    data = tmp_path / "twice.jsonl"
    right, wrong = ("What is 2 + 3?", "5"), ("What is 1 + 1?", "3")
    rows = (f'{{"question": "{q}", "answer": "{a}"}}\n' for q, a in (right, right, wrong))
    data.write_text("".join(rows))
    done = await practised(tmp_path / "p", *LOOKED, f"evaluation.data={data}")
    last = done.state.evaluations[-1]
    assert last.rewards == ((1.0,), (1.0,), (0.0,))
    assert last.mean == 0.5


async def test_the_best_agent_is_kept_beside_the_last(tmp_path: Path) -> None:
    done = await practised(tmp_path, *LOOKED)
    assert done.state.best_step == 2
    assert texts_in(done.run.best_agent_file) == [text for _, text in done.texts]

    # A lesson that hurts becomes the last, and leaves the best as it was.
    on = await practised(tmp_path, *LOOKED, "practice.epochs=2", reviewers=[Spoiling()])
    assert on.state.best_step == 2
    assert texts_in(on.run.best_agent_file) == [text for _, text in done.texts]
    assert set(HARMFUL) & set(texts_in(on.run.agent_file))


def texts_in(agent: Path) -> list[str]:
    return [e["text"] for e in yaml.safe_load(agent.read_text())["experiences"]]


class Spoiling:
    """A reviewer who turns every operation into a harmful rule."""

    async def review(
        self, operations: Sequence[Operation], library: Library
    ) -> AsyncIterator[Decision]:
        for number, operation in enumerate(operations):
            ids = [e.id for e in library.experiences]
            yield Decision(
                operation.id, "edit", "modify", ids[number % len(ids)],
                HARMFUL[number % len(HARMFUL)], reviewer="spoiler",
            )  # fmt: skip


async def test_an_evaluation_tells_of_each_try_as_it_begins_streams_and_ends(
    tmp_path: Path,
) -> None:
    heard: list[object] = []

    def listening(practice: RunContext) -> RunContext:
        practice.recorder.listen(heard.append)
        return practice

    done = await practised(tmp_path, *LOOKED, change=listening)
    finished = next(e for e in heard if isinstance(e, ev.EvaluationFinished))
    before = heard[: heard.index(finished)]
    progress = [e for e in before if isinstance(e, ev.EvaluationProgressed)]
    assert (progress[0].done, progress[0].key) == (0, None)
    ended = {try_id(e.key): e.reward for e in progress if e.key is not None}
    assert set(ended) == {
        f"h0p{p}r{i}" for p in range(len(finished.problems)) for i in range(finished.k)
    }
    assert progress[-1].right / progress[-1].known == pytest.approx(finished.mean)
    begun = {try_id(e.key): e.problem for e in before if isinstance(e, ev.RolloutStarted)}
    assert set(begun) == set(ended)
    assert begun["h0p1r0"] == finished.problems[1]
    assert {try_id(e.key) for e in before if isinstance(e, ev.TextStreamed)} == set(ended)
    kinds = {type(entry.event) for entry in done.run.entries()}
    assert not kinds & {ev.TextStreamed, ev.RolloutStarted, ev.EvaluationProgressed}
