"""A held-out evaluation outside any run: what `studio eval` measures.

Made in two steps, tries wait in the record of replies, so that nothing is paid twice.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from engines.core import codec, errors, protocols
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.types import NO_USAGE, Names, Problem, Rollout, Tell, Usage, Verdict
from engines.core.waiting import gather_all
from engines.pipeline.control import Outage
from engines.pipeline.effect.worth import random_half
from engines.pipeline.evaluation import evaluate, statistics, verdict
from engines.pipeline.guidance import PromptWriter, Shown
from engines.policies.limits import PausablePolicy, Slots
from engines.record import cassette, lock, scores
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from studio import exit_codes, process
from studio.config.loading import LoadedRun, load_run
from studio.config.scripted import is_rehearsal, played_note
from studio.config.settings.run import VerifierConfig
from studio.config.source import Source
from studio.estimate.cost import estimate_eval, lines_of_estimate
from studio.evaluation.try_problem import without_lessons
from studio.facts.estimate import Estimate
from studio.facts.evaluation import EvalFacts, MeasuredFacts, PairedMeans, SetFacts
from studio.facts.run import REHEARSAL
from studio.render import evaluation_lines, words
from studio.render.json import json_data, print_json, print_result
from studio.render.lines import tell_next, to_stderr
from studio.run import models
from studio.run.held_out import (
    detectable_effect,
    held_out_sets,
    measurement_settings,
    measuring_setup,
    prompt_writer,
    score_book_opener,
    set_power_lines,
    set_size_line,
)
from studio.run.library import choose_library
from studio.secrets.sanitize import one_line


@frozen
class Subject:
    """Experiences that are measured, and what to call them; without any, the bare agent."""

    label: str
    library: Library | None
    writer: PromptWriter
    halves: int | None = None  # the seed by which each try carries a random half; None: all

    @property
    def guidance(self) -> str:
        """What tells its prompts from those of others."""
        drawn = "" if self.halves is None else f"\n\n(a random half in each try, {self.halves})"
        return self.writer.describe(self.library) + drawn

    def write(self, problem: Problem, index: int) -> tuple[str, Shown]:
        """What the prompt of a try says of experiences, and which of them."""
        content = scores.problem_digest(problem)
        keep = None if self.halves is None else random_half(self.halves, content, index)
        return self.writer.write(self.library, problem.question, keep)


@frozen
class EvalPlan:
    """What is to be measured. `subjects` begin with the baseline where there is one."""

    loaded: LoadedRun
    workspace: Workspace
    sets: tuple[evaluate.HeldOutSet, ...]
    subjects: tuple[Subject, ...]
    measured: dict[str, Any]
    agent: bool = False  # an agent file was given, whose instructions all subjects have
    weights: str = ""  # digest of those the policy has; "" where it owns none
    step: EvalStep = "all"

    @property
    def k(self) -> int:
        return self.loaded.config.evaluation.k

    @property
    def contents(self) -> Names:
        """Every held-out problem by content; one of two sets is here twice."""
        return tuple(scores.problem_digest(p) for held_out in self.sets for p in held_out.problems)

    @property
    def total(self) -> int:
        """Different rollouts in all, known ones included."""
        return len(set(self.contents)) * self.k * len(self.guidances)

    @property
    def guidances(self) -> Names:
        """The texts in the prompts, each once: two names may have equal experiences."""
        return tuple(dict.fromkeys(subject.guidance for subject in self.subjects))

    def score_books(self) -> dict[str, scores.ScoreBook]:
        """The scores of each guidance, as they are known now."""
        folder, loaded = self.workspace.evaluations, self.loaded
        book = score_book_opener(folder, self.measured, loaded)
        return {guidance: book(guidance, self.weights) for guidance in self.guidances}

    def missing(self) -> tuple[tuple[str, int], ...]:
        """Rollouts that are not measured yet, with each guidance."""
        books, contents = self.score_books(), self.contents
        first = self.sets[0].problems[0]
        texts = {subject.guidance: subject.write(first, 0)[0] for subject in self.subjects}
        return tuple(
            (texts[name], book.count_missing(contents, self.k)) for name, book in books.items()
        )

    def count_missing(self) -> int:
        return sum(n for _, n in self.missing())


@frozen
class SetResult:
    """One held-out set: the result of each subject, and how the last compares to the first."""

    held_out: evaluate.HeldOutSet
    results: tuple[tuple[Subject, evaluate.Measurement], ...]

    def question_rewards(self, at: int) -> dict[str, tuple[float | None, ...]]:
        ids = [problem.id for problem in self.held_out.problems]
        return statistics.group_by_question(ids, self.results[at][1].rewards)

    @property
    def comparison(self) -> verdict.Comparison | None:
        if len(self.results) < 2 or any(found.missing for _, found in self.results):
            return None  # the part that was measured first is no random sample
        return verdict.compare(self.question_rewards(0), self.question_rewards(1))


@frozen
class EvaluationResult:
    """Every set's result, and what this command paid for."""

    sets: tuple[SetResult, ...]
    paid: Usage = NO_USAGE
    reused: int = 0  # different rollouts that were known already
    tried: int | None = None  # tries that now wait for a judge; None: all were to be judged

    @property
    def unjudged_count(self) -> int:
        return sum(measured.unjudged_count for found in self.sets for _, measured in found.results)


def plan_eval(
    loaded: LoadedRun,
    workspace: Workspace,
    *,
    library: str | None,
    baseline: str | None,
    agent: bool = False,
    step: EvalStep = "all",
) -> EvalPlan:
    """Decide what is measured.

    `library` is a reference as `studio diff` takes it, or `none`; None: what a run of this file
    would begin with. `baseline` is the same, or None to compare with nothing. With `agent` an agent
    file replaced the run file's, and results have its name.

    Raises ConfigError: no held-out set is named, or the agent has experiences besides.
    ConflictError, DataError: a library or a set cannot be found or read.
    """
    config = loaded.config
    if not config.evaluation.data:
        raise errors.ConfigError(
            loaded.place("evaluation.data"),
            "no held-out set is named.",
            "Set evaluation.data, in the file or as evaluation.data=NAME.",
        )
    found, label = choose_library(loaded, workspace, library)
    writer = prompt_writer(config)
    subjects = [Subject(f"agent {config.agent.name}" if agent else label, found, writer)]
    if baseline is not None:
        other, called = choose_library(loaded, workspace, baseline)
        subjects.insert(0, Subject(called, other, writer))
    facts = measurement_settings(config, models.fingerprint_of(loaded, workspace))
    sets, weights = held_out_sets(loaded), models.weights_digest(config.policy)
    return EvalPlan(loaded, workspace, sets, tuple(subjects), facts, agent, weights, step)


async def measure_missing(
    plan: EvalPlan,
    tell: Tell,
    progress: Callable[[], None],
    give_up: Callable[[GivenUp, str], None],
    account: Callable[[Usage], None] = lambda _: None,
) -> EvaluationResult:
    """Measure what is missing and put everything together; nothing is asked without need.

    `progress` is called after each rollout, known ones included. `give_up` must cancel this task.
    `account` gets what was paid, also where it is cancelled.
    """
    config, missing = without_lessons(plan.loaded.config), plan.count_missing()
    if not missing:  # no model is opened, which may take seconds, and nothing is locked
        return known_result(plan, NO_USAGE, 0)
    opened = plan.score_books()
    ids = sorted(book.path.name for book in opened.values())
    replies = plan.workspace.evaluations / "replies" / codec.digest(ids, scores.ID_BYTES)
    async with AsyncExitStack() as stack:
        stack.enter_context(lock.write_lock(replies))
        judged = [held_out.problems for held_out in plan.sets]
        setup, ledger, unjudged = await open_measuring(
            replace(plan.loaded, config=config),
            plan.workspace,
            replies,
            stack,
            tell,
            give_up,
            judged=judged,
            step=plan.step,
            account=account,
        )
        for book in opened.values():
            stack.callback(book.close)
        written = {subject.guidance: subject.write for subject in plan.subjects}
        # All sets at once, so that the last tries of one leave no slot idle.
        found = await gather_all(
            evaluate.measure(
                setup,
                opened[guidance],
                held_out.problems,
                evaluate.PinnedVersion(written[guidance]),
                tell=lambda *_: progress(),
            )
            for held_out, guidance in product(plan.sets, plan.guidances)
        )
    tried = None if unjudged is None else unjudged.count
    return EvaluationResult(_results_by_set(plan, found), ledger.paid, plan.total - missing, tried)


def known_result(plan: EvalPlan, paid: Usage, missing_before: int) -> EvaluationResult:
    """What is known of an evaluation, measured whole or not.

    This command paid for `paid`; `missing_before` rollouts were not known when it began.
    """
    opened = plan.score_books()
    found = [
        evaluate.known_measurement(opened[guidance], held_out.problems, plan.k)
        for held_out, guidance in product(plan.sets, plan.guidances)
    ]
    return EvaluationResult(_results_by_set(plan, found), paid, plan.total - missing_before)


def _results_by_set(plan: EvalPlan, found: Sequence[evaluate.Measurement]) -> tuple[SetResult, ...]:
    """Sort results, in the order of sets and guidances, by set and subject."""
    count = len(plan.guidances)
    of_sets = [
        dict(zip(plan.guidances, found[at * count :], strict=False)) for at in range(len(plan.sets))
    ]
    return tuple(
        SetResult(held_out, tuple((s, of_set[s.guidance]) for s in plan.subjects))
        for held_out, of_set in zip(plan.sets, of_sets, strict=True)
    )


def load_eval(
    source: Source,
    workspace: Path,
    *,
    agent: Path | None = None,
    k: int | None = None,
    keyless: bool = False,
) -> LoadedRun:
    """Load what is to be measured; `agent` and `k` replace those of the run file."""
    given = [*source.overrides, *([] if k is None else [f"evaluation.k={k}"])]
    name, youtu = source.runfile or "", source.youtu
    return load_run(name, given, workspace, agent=agent, youtu=youtu, keyless=keyless)


def run_eval(plan: EvalPlan, *, json: bool) -> int:
    """Measure what is missing and print the result; returns the exit code."""
    rehearsal = tell_eval_notes(plan)
    for line in set_power_lines(plan.sets, plan.k):
        to_stderr(line)
    missing, early = plan.count_missing(), EarlyEnd()
    found = measure_or_end(plan, early, missing)
    if found is None:
        if json:
            found = known_result(plan, early.paid, missing)
            facts = eval_facts(plan, found)
            print_json(replace(facts, ended=early.cause, reason=early.reason))
        return early.exit_code
    if found.tried is not None:
        return _tell_tries(plan, found, missing, json=json)
    facts, notes = eval_facts(plan, found), [REHEARSAL] if rehearsal else []
    if played := played_note(plan.loaded.tape):
        notes.append(played)
    print_result(facts, evaluation_lines.eval_text(facts, notes), json=json)
    if not json:
        tell_next(text_after_eval(plan), plan.workspace.path)
    return exit_codes.WITH_LOSSES if found.unjudged_count else exit_codes.DONE


def measure_or_end(
    plan: EvalPlan, early: EarlyEnd, missing: int, called: str = "held-out rollouts"
) -> EvaluationResult | None:
    """Measure, telling how far it is; None where it ended `early`, which is told, too."""
    known = f", {plan.total - missing} known already" if missing < plan.total else ""
    verb = "judge" if plan.step == "judge" else "make"
    to_stderr(f"{eval_title(plan)}: {words.count_text(missing, 'rollout')} to {verb}{known}")

    async def measure() -> EvaluationResult:
        with early.cancel_on_signal():
            return await measure_missing(plan, to_stderr, progress, early, early.record_paid)

    try:
        # Rollouts that two sets share are told of for each.
        requested = len(plan.contents) * plan.k * len(plan.guidances)
        progress = _ProgressCounter(requested, called) if missing else lambda: None
        return asyncio.run(measure())
    except asyncio.CancelledError:
        done = plan.total - plan.count_missing()
        replies = ""
        if early.cause != "interrupted" and early.paid.calls:
            replies = " and every reply that was paid for"
        to_stderr(
            f"studio: {early.reason}; {done} of {plan.total} rollouts are kept{replies}, "
            f"and the same command goes on from there{early.condition}"
        )
        return None


def _tell_tries(plan: EvalPlan, found: EvaluationResult, missing: int, *, json: bool) -> int:
    """What `--step rollout` has made; returns the exit code."""
    waiting, calls = found.tried or 0, found.paid.calls
    text = f"{waiting} tries wait for `--step judge`, {missing - waiting} failed ({calls} calls)"
    data = {"step": plan.step, "waiting": waiting, "failed": missing - waiting, "calls": calls}
    print_result(data, text, json=json)
    return exit_codes.DONE if waiting == missing else exit_codes.WITH_LOSSES


def tell_eval_notes(plan: EvalPlan) -> bool:
    """Print what a person should know before anything is asked; whether replies are scripted."""
    for warning in plan.loaded.warnings:
        to_stderr(f"note: {warning}")
    problems = [problem for held_out in plan.sets for problem in held_out.problems]
    if hidden := models.masked_answers_warning(problems, plan.loaded.mask):
        to_stderr(f"note: {hidden}")
    rehearsal = is_rehearsal(without_lessons(plan.loaded.config))
    if rehearsal:
        to_stderr("rehearsal: replies are scripted, no model is asked")
    if note := played_note(plan.loaded.tape):
        to_stderr(note)
    if plan.agent and len(plan.subjects) > 1:
        to_stderr("note: both sides have the agent's instructions; only experiences differ")
    if len(plan.guidances) < len(plan.subjects):
        to_stderr("note: both sides hold the same experiences, which are measured once")
    return rehearsal


@dataclass(slots=True, eq=False)
class EarlyEnd:
    """Why the evaluation ended early: a signal, a budget, or nothing that works any more."""

    exit_code: int = exit_codes.INTERRUPTED
    reason: str = "interrupted"
    cause: GivenUp | Literal["interrupted"] = "interrupted"
    paid: Usage = NO_USAGE
    condition: str = ""  # on which the same command goes on
    task: asyncio.Task[Any] | None = None
    ended: bool = False

    @contextmanager
    def cancel_on_signal(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM cancel this task in order, so that what has ended is kept."""
        self.task = asyncio.current_task()
        assert self.task is not None
        try:
            with process.on_stop_signal(self.task.cancel):
                yield
        except asyncio.CancelledError:
            self.ended = True
            raise

    def __call__(self, cause: GivenUp, reason: str) -> None:
        if self.task is None or self.cause != "interrupted":
            return
        if cause == "budget":
            self.exit_code, self.condition = exit_codes.BUDGET_REACHED, " with a higher budget"
        else:
            self.exit_code = exit_codes.WITH_LOSSES
        self.cause, self.reason = cause, reason
        self.task.cancel()

    def record_paid(self, paid: Usage) -> None:
        self.paid = paid


class _ProgressCounter:
    """Prints how far it is at every tenth."""

    def __init__(self, total: int, called: str) -> None:
        self._called, self._total, self._done = called, total, 0

    def __call__(self) -> None:
        before = self._done * 10 // self._total
        self._done += 1
        if self._done * 10 // self._total > before:
            to_stderr(f"{self._called} {self._done} of {self._total}")


def estimate_missing(plan: EvalPlan) -> Estimate:
    """Estimate what the missing rollouts would cost."""
    config = without_lessons(plan.loaded.config)
    problems = tuple(p for s in plan.sets for p in s.problems)
    fingerprint = models.fingerprint_of(plan.loaded, plan.workspace)
    return estimate_eval(config, plan.workspace, fingerprint, problems, plan.missing())


def print_eval_dry_run(plan: EvalPlan, *, json: bool, power: Sequence[str] | None = None) -> int:
    """Print what the missing rollouts would cost, and in words what they can show.

    Raises ConfigError: a budget cannot be kept.
    """
    tell_eval_notes(plan)
    config, missing = without_lessons(plan.loaded.config), plan.missing()
    models.check_budget(plan.loaded, config)
    estimate = estimate_missing(plan)
    to_make = sum(n for _, n in missing)
    title, done = eval_title(plan), plan.total - to_make
    known = f", {done} known already" if done else ""
    lines = [f"{title}: {words.count_text(to_make, 'rollout')} to make{known}"]
    lines += set_power_lines(plan.sets, plan.k) if power is None else power
    lines += lines_of_estimate(config, estimate)
    data = {"title": title, "rollouts": to_make, "known": done}
    print_result(data | json_data(estimate), "\n".join(lines), json=json)
    return exit_codes.DONE


def text_after_eval(plan: EvalPlan) -> str:
    *baseline, measured = plan.subjects
    if baseline:
        if measured.library is None or not plan.workspace.library(measured.library.name).exists():
            return ""
        return f"studio library history {quote(measured.library.name)}"
    if measured.library is None:
        return "the same with --library NAME --baseline none says whether a library helps"
    return "the same with --baseline none says whether these experiences help"


def eval_title(plan: EvalPlan) -> str:
    """`math_eval: mine@4 against none, judged by math`."""
    labels = " against ".join(one_line(s.label, 60) for s in reversed(plan.subjects))
    config = plan.loaded.config
    return f"{config.exp_id}: {labels}, judged by {one_line(config.verifier.name, 60)}"


def eval_facts(plan: EvalPlan, result: EvaluationResult) -> EvalFacts:
    """Return all that is told of an evaluation, with every problem's rewards."""
    return EvalFacts(
        title=eval_title(plan),
        rehearsal=is_rehearsal(without_lessons(plan.loaded.config)),
        cassette=cassette.is_played(plan.loaded.tape),
        exp_id=plan.loaded.config.exp_id,
        k=plan.k,
        sets=tuple(_set_facts(of_set, plan.k) for of_set in result.sets),
        paid=result.paid,
        rollouts=plan.total,
        reused=result.reused,
    )


def _set_facts(result: SetResult, k: int) -> SetFacts:
    held_out = result.held_out
    return SetFacts(
        data=held_out.name,
        size=set_size_line(held_out, k),
        problems=tuple(problem.id for problem in held_out.problems),
        texts=tuple(problem.question for problem in held_out.problems),
        questions=held_out.questions,
        left_out=held_out.left_out,
        smallest_effect=detectable_effect(held_out, k),
        results=tuple(_measured_facts(result, at, k) for at in range(len(result.results))),
        comparison=result.comparison,
        paired=_paired_means(result) if len(result.results) > 1 else None,
    )


def _paired_means(result: SetResult) -> PairedMeans:
    before, after = result.question_rewards(0), result.question_rewards(1)
    paired = [
        q
        for q in before
        if statistics.question_means([before[q]]) and statistics.question_means([after[q]])
    ]
    means = [statistics.mean_at_k([side[q] for q in paired]) for side in (before, after)]
    return PairedMeans(len(paired), *means)


def _measured_facts(result: SetResult, at: int, k: int) -> MeasuredFacts:
    subject, measured = result.results[at]
    rows = tuple(result.question_rewards(at).values())
    tries, cost = max(1, measured.known_count + measured.unjudged_count), measured.total.cost_usd
    return MeasuredFacts(
        experiences=subject.label,
        library_version=subject.library.version if subject.library else None,
        mean=statistics.mean_at_k(rows),
        interval=statistics.mean_interval(rows),
        questions=len(statistics.question_means(rows)),
        pass_at=dict(enumerate(statistics.pass_curve(rows, k), start=1)),
        n=measured.known_count,
        unjudged=measured.unjudged_count,
        missing=measured.missing,
        trouble=measured.trouble,
        tokens_per_try=measured.total.tokens / tries,
        tool_calls_per_try=measured.tool_calls / tries,
        cost_per_try_usd=None if cost is None else cost / tries,
        cost_usd=cost,
        reused=measured.reused,
        rewards=measured.rewards,
    )


EvalStep = Literal["all", "rollout", "judge"]
GivenUp = Literal["budget", "failed"]
"""Why measuring ended before it was done."""


async def open_measuring(
    loaded: LoadedRun,
    workspace: Workspace,
    records: Path,
    stack: AsyncExitStack,
    tell: Tell,
    give_up: Callable[[GivenUp, str], None],
    *,
    judged: Sequence[Sequence[Problem]],
    step: EvalStep = "all",
    temperature: float | None = None,
    account: Callable[[Usage], None] = lambda _: None,
) -> tuple[evaluate.MeasurementSetup, RecordLedger, UnjudgedTries | None]:
    """Open all that rollouts outside a run need; what is opened is closed with the stack.

    Replies go to `records`, which the caller has locked. `give_up` must cancel the caller's task;
    `account` gets what was paid. Tries that are to be judged later are counted by the last result.
    """
    config = loaded.config
    budget = models.open_budget(loaded, config, records, partial(give_up, "budget"))
    unjudged = UnjudgedTries() if step == "rollout" else None
    asked = config if unjudged is None else config.model_copy(update={"verifier": _ASKS_NONE})
    what = f"an evaluation of {config.exp_id}"
    tape = cassette.open_cassette(loaded.tape, what, stack, loaded.mask, tell, resumes=True)
    ledger = RecordLedger(records, config.seed, tell=tell, mask=loaded.mask)
    stack.callback(lambda: account(ledger.paid))
    stack.push_async_callback(ledger.aclose)
    roles = models.open_roles(
        asked,
        stack,
        tell,
        workspace=workspace.path,
        cassette=tape,
        budget=budget,
        ledger=ledger,
    )
    roles.acting.folder = programs = records / "programs"
    stack.callback(shutil.rmtree, programs, ignore_errors=True)  # the unscored are made again
    slots = Slots(config.practice.concurrency, tell)
    verifier: protocols.Verifier = unjudged or models.open_run_verifier(
        loaded, workspace, roles, ledger, slots, sets=judged, stack=stack
    )
    await verifier.check()
    models.tell_each(tell, (await roles.acting.check()).get("absent", ()))
    roles, outage = await _ready_roles(step, roles, partial(give_up, "failed"))
    stack.callback(lambda: models.tell_each(tell, roles.notes))
    stack.callback(roles.tell_strays, tell)
    setup = measuring_setup(
        config,
        roles,
        ledger,
        models.rollout_slots(config, slots),
        verifier,
        outage=outage,
        temperature=temperature,
    )
    return setup, ledger, unjudged


async def _ready_roles(
    step: EvalStep, roles: models.Roles, give_up: Tell
) -> tuple[models.Roles, Outage]:
    """The models once they answer; where only what was tried is judged, none need."""
    if step != "judge":
        await roles.ping()
        return roles, Outage(give_up)
    # What was not tried is no sign that nothing works.
    return replace(roles, policy=PausablePolicy(roles.policy, refuse_new_try)), Outage()


_ASKS_NONE = VerifierConfig(name="math")
"""A verifier that no model is opened for."""


@dataclass(slots=True)
class UnjudgedTries:
    """A verifier that leaves every try for later, and counts those that can be judged."""

    count: int = 0

    async def check(self) -> None:
        """There is nothing to check."""

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        self.count += sum(rollout.attempt.answer is not None for rollout in rollouts)
        return tuple(Verdict(None) for _ in rollouts)

    async def aclose(self) -> None:
        """There is nothing to close."""


async def refuse_new_try() -> None:
    """What a policy of which only recorded replies are had waits for: they need not wait."""
    raise errors.CallFailed("refused", "it was not tried yet, and --step judge makes no tries")
