"""Evaluation: a pinned library on problems that practice never sees, in a run or outside.

Changes nothing. What was measured before, by whomever, is not paid for again
(`engines.record.scores`).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from engines.core import codec, events, protocols
from engines.core.errors import AnswersPending
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.types import NO_USAGE, CallKey, Job, Problem, Rollout, Usage, Verdict
from engines.core.waiting import gather_all, run_to_end
from engines.pipeline.control import Outage
from engines.pipeline.evaluation.statistics import group_by_question, mean_at_k
from engines.pipeline.guidance import PromptWriter, Shown
from engines.pipeline.recorder import Recorder
from engines.record import appender, seal
from engines.record.scores import Score, ScoreBook, problem_digest
from engines.rollouts.manager import RolloutManager
from engines.secrets.mask import NO_SECRETS, Mask

LONGEST_NAME = 200
"""Bytes of a set's name that stand in the name of a file."""


@frozen
class HeldOutSet:
    """One set, by a name that no other set of the run has."""

    name: str
    problems: tuple[Problem, ...]
    left_out: int = 0  # problems of its file that a limit keeps from it
    spares: tuple[Problem, ...] = ()  # for the reflector to read: tried, and in no figure

    @property
    def questions(self) -> int:
        """Different questions: one that stands there twice is one."""
        return len({codec.question_of(problem.id) for problem in self.problems})


@frozen
class MeasurementSetup:
    """How rollouts are made and judged. `seed` is the run's; `outage` is told what failed."""

    rollouts: RolloutManager
    verifier: protocols.Verifier
    seed: int
    k: int = 1
    outage: Outage = field(default_factory=Outage)
    first_try: int = 0  # each try draws by its number, so others are other luck


@frozen
class PinnedVersion:
    """What is measured: what the prompt of a problem's try says of experiences; the versions."""

    write: Callable[[Problem, int], tuple[str, Shown]] = lambda problem, index: ("", None)
    library_version: int = 0
    policy_version: int = 0


@frozen
class Measurement:
    """The result of one set."""

    rewards: tuple[tuple[float | None, ...], ...]  # aligned with its problems, k each
    paid: Usage = NO_USAGE  # what this measuring cost
    total: Usage = NO_USAGE  # what all its rollouts cost, whoever paid
    tool_calls: int = 0
    reused: int = 0
    trouble: str = ""  # why the first of the unjudged was not judged
    missing: int = 0  # not tried yet, where measuring was cut short; their reward is None too

    @property
    def known_count(self) -> int:
        return sum(reward is not None for row in self.rewards for reward in row)

    @property
    def unjudged_count(self) -> int:
        return sum(map(len, self.rewards)) - self.known_count - self.missing


@frozen
class Evaluation:
    """What a run evaluates, how, and when.

    `book` opens the scores of a guidance and the digest of the weights that were prompted with
    it, "" where the policy owns none.
    """

    sets: tuple[HeldOutSet, ...]
    measuring: MeasurementSetup
    folder: Path  # receives one JSON file an evaluation
    book: Callable[[str, str], ScoreBook]
    fingerprint: str  # of all that results depend on besides library and problems
    account: str  # the run's own, also among runs of one name
    strategy: Literal["epoch", "steps"] = "epoch"
    every_steps: int = 1
    mask: Mask = NO_SECRETS  # takes secrets out of the files
    writer: PromptWriter = field(default_factory=PromptWriter)  # as in practice

    def is_due(self, step: int, ends_epoch: bool) -> bool:
        """Whether the library is evaluated after this step."""
        return ends_epoch if self.strategy == "epoch" else step % self.every_steps == 0


def write_whole(
    writer: PromptWriter, library: Library | None
) -> Callable[[Problem, int], tuple[str, Shown]]:
    """Shows every try of a problem the same: the library as practice shows it."""
    return lambda problem, _: writer.write(library, problem.question)


async def measure(
    measuring: MeasurementSetup,
    book: ScoreBook,
    problems: Sequence[Problem],
    pinned: PinnedVersion,
    *,
    step: int = 0,
    payer: str = "",
    tell: Callable[[CallKey, float | None], None] = lambda key, reward: None,
    emit: Callable[[events.TransientEvent], None] = lambda event: None,
) -> Measurement:
    """Roll out and judge what the book does not know yet, and add it to the book.

    The book is of exactly this model, verifier, seed and guidance. `step` names the record file.
    A score that this very `payer` paid for before it was cut off counts as paid, not as reused.
    `tell` is called after each rollout that ended, with its reward; `emit` as one begins and as
    its text streams.
    """
    contents = [problem_digest(problem) for problem in problems]
    tries = (measuring.k, measuring.first_try)
    missing = Counter(content for content, _ in book.missing_tries(contents, *tries))
    judges = {
        content: GroupJudge(measuring.verifier, problem, missing[content])
        for content, problem in zip(contents, problems, strict=True)
    }
    under_way: set[CallKey] = set()  # tries that have begun

    async def measure_one(at: int, problem: Problem, content: str, index: int) -> _TryResult:
        key = CallKey("evaluation", 0, step, at, index, problem=problem.id)
        one = _Try(problem, content, key, pinned, payer, emit, judges[content].judge, under_way)
        tried = await _try_once(measuring, book, one)
        tell(key, tried.reward)
        return tried

    tried = await gather_all(
        measure_one(at, problem, content, index)
        for at, (problem, content) in enumerate(zip(problems, contents, strict=True))
        for index in range(measuring.first_try, measuring.first_try + measuring.k)
    )
    rewards, k = [each.reward for each in tried], measuring.k
    return Measurement(
        rewards=tuple(tuple(rewards[at : at + k]) for at in range(0, len(rewards), k)),
        paid=sum((each.usage for each in tried if not each.reused), NO_USAGE),
        total=sum((each.usage for each in tried), NO_USAGE),
        tool_calls=sum(each.tool_calls for each in tried),
        reused=sum(each.reused for each in tried),
        trouble=next((each.trouble for each in tried if each.reward is None), ""),
    )


def known_measurement(book: ScoreBook, problems: Sequence[Problem], k: int) -> Measurement:
    """What a book tells of a set, measured whole or not."""
    found = [
        [book.find(problem_digest(problem), index) for index in range(k)] for problem in problems
    ]
    scores = [score for row in found for score in row if score is not None]
    return Measurement(
        tuple(tuple(None if score is None else score.reward for score in row) for row in found),
        total=sum((score.usage for score in scores), NO_USAGE),
        tool_calls=sum(score.tool_calls for score in scores),
        reused=len(scores),
        missing=len(problems) * k - len(scores),
    )


async def evaluate(
    evaluation: Evaluation, recorder: Recorder, step: int, library: Library, weights: str = ""
) -> None:
    """Evaluate a run's library and weights on every set that this step has no result for yet."""
    state = recorder.state
    done = {found.data for found in state.evaluations if found.step == step}
    await evaluation.writer.prepare(library)
    write = write_whole(evaluation.writer, library)
    pinned = PinnedVersion(write, library.version, state.policy_version)
    book = await run_to_end(lambda: evaluation.book(evaluation.writer.describe(library), weights))
    waiting: list[AnswersPending] = []
    try:
        for held_out in evaluation.sets:
            if held_out.name in done:
                continue
            try:
                result = await measure_set(
                    evaluation, recorder, book, held_out, pinned, step=step, stage=f"step {step}"
                )
            except AnswersPending as pending:  # the other sets can be asked about all the same
                waiting.append(pending)
            if waiting:
                continue  # results are recorded in the order of the sets
            write_result(evaluation.folder, result, evaluation.mask)
            await recorder.record(result)
    finally:
        book.close()
    if waiting:
        raise AnswersPending.merge(waiting)


async def measure_set(
    evaluation: Evaluation,
    recorder: Recorder,
    book: ScoreBook,
    held_out: HeldOutSet,
    pinned: PinnedVersion,
    *,
    step: int,
    stage: str,
) -> events.EvaluationFinished:
    """Measure one set of a run, after `step`; journals nothing. Raises AnswersPending.

    What another `stage` of the run paid for counts as reused.
    """
    shown = recorder.state.shown_questions
    # Of the others some were shown where a run was forked from one with other spares.
    kept, spares = (
        tuple(problem for problem in part if codec.question_of(problem.id) not in shown)
        for part in (held_out.problems, held_out.spares)
    )
    measuring, ids = evaluation.measuring, tuple(problem.id for problem in kept)
    total = (len(kept) + len(spares)) * measuring.k
    tell = _progress_reporter(recorder, step, held_out.name, total, measuring.k)
    found, aside = await gather_all(
        measure(
            measuring,
            book,
            problems,
            pinned,
            step=step,
            payer=f"{evaluation.account} {stage} {held_out.name}",
            tell=tell,
            emit=recorder.emit,
        )
        for problems in (kept, spares)
    )
    return events.EvaluationFinished(
        step=step,
        data=held_out.name,
        policy_version=pinned.policy_version,
        library_version=pinned.library_version,
        k=measuring.k,
        n=found.known_count,
        unjudged=found.unjudged_count,
        mean=mean_at_k(tuple(group_by_question(ids, found.rewards).values())),
        usage=found.paid + aside.paid,
        fingerprint=evaluation.fingerprint,
        trouble=found.trouble,
        problems=ids,
        rewards=found.rewards,
        total=found.total,
        tool_calls=found.tool_calls,
        reused=found.reused,
        left_out=len(held_out.problems) - len(kept) + len(held_out.spares),
        spares=tuple(zip((problem.id for problem in spares), aside.rewards, strict=True)),
    )


def write_result(folder: Path, result: events.EvaluationFinished, mask: Mask = NO_SECRETS) -> None:
    """Write `step-NNNN-NAME.json`: the whole result, each problem's rewards included."""
    appender.make_folder(folder)
    appender.write_atomic(result_path(folder, result), format_result(result, mask))


def format_result(result: events.EvaluationFinished, mask: Mask = NO_SECRETS) -> bytes:
    return seal.add_seal(mask.line(codec.dumps(result)))


def result_path(folder: Path, result: events.EvaluationFinished) -> Path:
    name = result.data
    if len(name.encode()) > LONGEST_NAME:  # file systems end names at 255 bytes
        name = f"{name[: LONGEST_NAME // 4]}-{codec.digest(name, 6)}"
    return folder / f"step-{result.step:04d}-{name}.json"


@frozen
class _Try:
    """One try at one held-out problem; `content` is the problem's digest."""

    problem: Problem
    content: str
    key: CallKey
    pinned: PinnedVersion
    payer: str
    emit: Callable[[events.TransientEvent], None]
    judge: Callable[[Rollout], Awaitable[Verdict]]
    under_way: set[CallKey]  # of tries that are measured with it


@frozen
class _TryResult:
    reward: float | None
    usage: Usage
    tool_calls: int
    reused: bool = False
    trouble: str = ""


async def _try_once(measuring: MeasurementSetup, book: ScoreBook, one: _Try) -> _TryResult:
    """One try: from the book, from the same try that is under way, or made now."""
    at = (one.content, one.key.index)
    if (score := book.find(*at)) is not None:
        reused = not one.payer or score.payer != one.payer
        return _TryResult(score.reward, score.usage, score.tool_calls, reused)
    if (same_try := book.under_way.get(at)) is not None:
        same: _TryResult = await asyncio.shield(same_try)
        return replace(same, reused=True)
    book.under_way[at] = making = asyncio.ensure_future(_make_try(measuring, book, one))
    try:
        return await making
    finally:
        del book.under_way[at]


async def _make_try(measuring: MeasurementSetup, book: ScoreBook, one: _Try) -> _TryResult:
    """Make a new rollout; its score is kept, or it is told why it could not be judged."""
    versions = (one.pinned.policy_version, one.pinned.library_version)
    guidance, shown = one.pinned.write(one.problem, one.key.index)
    job = Job(one.problem, guidance, one.key, *versions, shown)

    def on_start() -> None:
        one.under_way.add(one.key)
        one.emit(events.RolloutStarted(one.key, one.problem.id))

    attempt, _ = await measuring.rollouts.roll_out(
        job, on_text=lambda text: one.emit(events.TextStreamed(one.key, text)), on_start=on_start
    )
    rollout = Rollout.from_job(job, attempt, codec.call_seed(measuring.seed, one.key))
    verdict = await one.judge(rollout)
    one.under_way.discard(one.key)
    usage = attempt.usage + verdict.usage
    if verdict.reward is None:
        trouble = attempt.error or verdict.error
        if trouble:
            measuring.outage.report_failure("held-out rollout", trouble, len(one.under_way))
        trouble = trouble or "there was nothing to judge it by"
        return _TryResult(None, usage, attempt.tool_calls, trouble=trouble)
    measuring.outage.report_success("held-out rollout")
    score = book.add(
        Score(
            problem=one.content,
            index=one.key.index,
            reward=verdict.reward,
            critique=verdict.critique,
            metrics=verdict.metrics,
            status=attempt.status,
            usage=usage,
            tool_calls=attempt.tool_calls,
            elapsed_s=attempt.elapsed_s,
            payer=one.payer,
        )
    )
    return _TryResult(score.reward, usage, attempt.tool_calls)


def _progress_reporter(
    recorder: Recorder, step: int, name: str, total: int, k: int
) -> Callable[[CallKey, float | None], None]:
    """Tells listeners of one more rollout at each call, beginning with none."""
    now = events.EvaluationProgressed(step, name, 0, total, k=k)
    recorder.emit(now)

    def report(key: CallKey, reward: float | None) -> None:
        nonlocal now
        known, right = now.known + (reward is not None), now.right + (reward or 0.0)
        now = replace(now, done=now.done + 1, known=known, right=right, key=key, reward=reward)
        recorder.emit(now)

    return report


FirstWeights = Callable[[], AbstractAsyncContextManager[None]]
"""Has the policy answer, for the time of a block, with the weights that the run began with."""


async def measure_cells(
    evaluation: Evaluation,
    recorder: Recorder,
    library: Library,
    weights: Callable[[], str],
    first_weights: FirstWeights,
) -> None:
    """Measure and journal each cell of each set that has no result yet."""
    state, writer = recorder.state, evaluation.writer
    last = state.steps_finished
    done = {(c.trained, c.with_library, c.result.data) for c in state.cells if c.step == last}
    every = [(trained, shown) for trained in (True, False) for shown in (True, False)]
    stage = f"cells after step {last}"
    await writer.prepare(library)
    for trained, with_library in every:
        left = [s for s in evaluation.sets if (trained, with_library, s.name) not in done]
        if not left:
            continue
        shown = library if with_library else None
        # Replies are recorded by step: with the first weights they are those from before step 1.
        step, policy = (last, state.policy_version) if trained else (0, 0)
        version = library.version if with_library else 0
        pinned = PinnedVersion(write_whole(writer, shown), version, policy)
        async with nullcontext() if trained else first_weights():
            opening = partial(evaluation.book, writer.describe(shown), weights())
            book = await run_to_end(opening)
            try:
                for held_out in left:
                    found = await measure_set(
                        evaluation, recorder, book, held_out, pinned, step=step, stage=stage
                    )
                    await recorder.record(events.CellMeasured(last, trained, with_library, found))
            finally:
                book.close()


@dataclass(slots=True)
class GroupJudge:
    """Judges each try as it ends; a verifier that compares tries gets all `size` at once.

    Each of the `size` tries must come, in whatever order and also where its verdict is known
    already: what it is compared with would be less without it.
    """

    verifier: protocols.Verifier
    problem: Problem
    size: int
    arrived: dict[int, tuple[Rollout, asyncio.Future[Verdict]]] = field(default_factory=dict)
    missing: AnswersPending | None = None

    def miss(self, pending: AnswersPending) -> None:
        """One try does not come, for want of an answer: those it is compared with wait no more."""
        self.missing = pending
        for _, waiting in self.arrived.values():
            if not waiting.done():
                waiting.set_exception(pending)

    async def judge(self, rollout: Rollout, known: Verdict | None = None) -> Verdict:
        """The verdict on a try; `known` is returned where it is given."""
        if not protocols.judges_whole_groups(self.verifier):
            if known is not None:
                return known
            (verdict,) = await self.verifier.verify(self.problem, (rollout,))
            return add_own_figures(verdict, rollout)
        if self.missing and known is None:
            raise self.missing
        waiting: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        if known is not None:
            waiting.set_result(known)
        self.arrived[rollout.index] = (rollout, waiting)
        if len(self.arrived) == self.size:
            await self._judge_all()
        return await waiting

    async def _judge_all(self) -> None:
        arrived = [self.arrived[index] for index in sorted(self.arrived)]
        if all(waiting.done() for _, waiting in arrived):
            return
        try:
            rollouts = [rollout for rollout, _ in arrived]
            verdicts = await self.verifier.verify(self.problem, rollouts)
            for (rollout, waiting), verdict in zip(arrived, verdicts, strict=True):
                if not waiting.done():
                    waiting.set_result(add_own_figures(verdict, rollout))
        finally:
            for _, waiting in arrived:
                waiting.cancel()  # does nothing to those that have their verdict


def add_own_figures(verdict: Verdict, rollout: Rollout) -> Verdict:
    """With what a program's own grader said, as metrics `own.NAME`: never the reward."""
    own = {f"own.{name}": figure for name, figure in rollout.attempt.metrics.items()}
    return replace(verdict, metrics={**verdict.metrics, **own}) if own else verdict
