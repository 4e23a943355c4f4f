"""What a run would cost, computed before anything is asked: calls, tokens and money by stage.

Pure. "At most" means: every group has contrast, every reply is as long as its limit and has to be
repaired, every verdict that can ask a judge does. Retries of failed calls are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.settings import MAX_COUNT
from engines.core.state.run_state import RunState
from engines.core.text.prompts import load_prompt
from engines.core.types import Problem
from engines.data.sampler import Sampler
from engines.pipeline.budget import CallPricing
from engines.pipeline.effect.effect_gate import choice_size
from engines.record import lines
from engines.record.run_dir import RunDir, Workspace
from engines.record.scores import problem_digest
from engines.training_free.consolidation import plan_calls
from studio import exit_codes
from studio.config.scripted import rehearsal_note
from studio.config.settings.policy import Role
from studio.config.settings.run import PracticeConfig, RunConfig
from studio.facts.estimate import Estimate, Range, Stage
from studio.render.estimate_lines import (
    estimate_line,
    estimate_table,
    exceeded_limits_text,
    limits_text,
)
from studio.render.json import json_data, print_result
from studio.render.lines import tell_next, to_stderr
from studio.run.assemble import check_verifier
from studio.run.budget import check_budget, embedding_terms, limits_of, open_budget, terms_of
from studio.run.held_out import (
    evaluated_sets,
    measurement_settings,
    prompt_writer,
    score_book_opener,
)
from studio.run.library import choose_library
from studio.run.models import weights_digest
from studio.run.new_or_resume import RunPlan, forked_library

_PURPOSES = {
    "rollouts": "rollout",
    "judging": "judge",
    "summaries": "summary",
    "extraction": "extraction",
    "consolidation": "consolidation",
    "embeddings": "embedding",
    "gate": "gate",
    "evaluation": "evaluation",
}
"""The stages, and the purpose that their calls have in the records."""
_MOST_STRETCHES = 100
"""Of steps, that are reckoned one by one: more change no estimate."""
BYTES_A_TOKEN = 4.0
REPAIR_TOKENS = 80
"""Of the message that says what was wrong with a reply."""
ATTEMPT_TOKENS = 16
"""Of the heading above an attempt or a proposal."""
LONGEST_EXPERIENCE = 120
"""Tokens of one experience, where the most is asked for: the prompts want one sentence."""


SHOWN = Range(2.5, 4)
"""Tries of a group that the reflector reads, of those with known rewards: of each side two with
different answers, and the better ones mostly agree."""
TOOL_RESULT = Range(50, 500)
"""Tokens of what a tool returns."""


_NONE, _ONE = Range(), Range(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class CostInput:
    """The input of the arithmetic. Lengths are tokens."""

    sampler: Sampler
    practice: PracticeConfig
    group_size: int
    policy: CallPricing
    reflector: CallPricing
    judge: CallPricing
    replies: Mapping[str, float]  # likely length of a reply, by purpose
    instructions: float
    question: float  # mean of the problems'
    truth: float
    extract: float  # the prompt without what is put into it
    consolidate: float
    summarise: float
    judging: float
    judged: Range = _NONE  # calls of judges a verdict takes
    turns: Range = _ONE  # replies of a try
    contrast: float | None = None  # share of groups with contrast, measured; None: assumed
    guidance: float = 0.0  # of the library as it stands
    experiences: int = 0
    experience: float = 40.0  # length of one
    growth: float = 2.0  # experiences a step adds
    steps_done: int = 0
    held_out: int = 0  # rollouts of one evaluation
    held_out_question: float = 0.0
    evaluated_first: bool = True  # the evaluation before the first step is due
    evaluated_every: int | None = None  # steps; None: after each epoch
    tried: int = 0  # tries of an operation before it is decided, at most; 0: it is not tried
    choice: int = 0  # tries of each of several lessons, to choose one
    known: int = 0  # of the next evaluation's rollouts
    replayed: bool = False  # rollouts come from a log and cost nothing
    done: Mapping[str, int] = field(default_factory=dict)  # recorded of the whole run
    embedding: CallPricing | None = None  # None: meanings are not compared
    at_most: float = 1.0  # how much longer than likely the same text can be, in tokens

    @property
    def contrast_share(self) -> float:
        """The share of groups that show a difference.

        Where nothing was measured, the chance to solve a problem is assumed to be uniform from 0
        to 1, so all G tries agree in 2 of G + 1 cases.
        """
        if not self.practice.given_ground_truth:
            return 1.0
        if self.contrast is not None:
            return self.contrast
        return (self.group_size - 1) / (self.group_size + 1)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one stage that each have this prompt and reply."""

    stage: str
    n: float
    prompt: float
    reply: float


def estimate(facts: CostInput) -> Estimate:
    return _sum_stages(facts, *(_run_calls(facts, most) for most in (False, True)))


def estimate_evaluation(facts: CostInput, parts: Sequence[tuple[float, int]]) -> Estimate:
    """An evaluation outside any run: so many rollouts with each guidance of so many tokens."""

    def calls(most: bool) -> Iterator[_Calls]:
        for guidance, tries in parts:
            yield from _evaluation_calls(facts, most, tries, guidance)

    return _sum_stages(facts, calls(False), calls(True))


def _sum_stages(facts: CostInput, likely: Iterable[_Calls], most: Iterable[_Calls]) -> Estimate:
    terms = dict.fromkeys(_PURPOSES, facts.reflector) | {
        "rollouts": facts.policy,
        "gate": facts.policy,
        "evaluation": facts.policy,
        "judging": facts.judge,
        "embeddings": facts.embedding or facts.reflector,
    }
    sums = {name: ([0.0] * 3, [0.0] * 3) for name in _PURPOSES}  # calls, prompt and reply tokens
    for which, (found, longer) in enumerate(((likely, 1.0), (most, facts.at_most))):
        for calls in found:
            into = sums[calls.stage][which]
            into[0] += calls.n
            into[1] += calls.n * calls.prompt * longer
            into[2] += calls.n * calls.reply
    stages = []
    for name, purpose in _PURPOSES.items():
        for amounts in sums[name]:
            # Whole numbers, so that shown stages add up to their sum; above 0 is 1 or more.
            amounts[:] = (round(max(amount, amount > 0)) for amount in amounts)
        count, prompt, reply = (Range(*pair) for pair in zip(*sums[name], strict=True))
        done = facts.done.get(purpose, 0)
        if count.at_most or done:
            cost = (terms[name].cost_usd(round(sent), round(got)) for _, sent, got in sums[name])
            priced = Range(*cost) if terms[name].has_price else None
            stages.append(Stage(name, count, prompt, reply, priced, done))
    return Estimate(tuple(stages))


def _run_calls(facts: CostInput, most: bool) -> Iterator[_Calls]:
    for step, length in _stretches(facts.sampler.total_steps, facts.steps_done):
        yield from _stretch_calls(facts, most, step, length)
    if facts.held_out:
        yield from _run_evaluation_calls(facts, most)


def _stretches(total: int, done: int) -> Iterator[tuple[int, int]]:
    """The steps to be done in at most `_MOST_STRETCHES`: the last of each, and its length.

    A step costs more than the one before it, as far as the library grows: a stretch is taken to
    cost as much as its last step each.
    """
    length = math.ceil((total - done) / _MOST_STRETCHES)
    while done < total:
        length = min(length, total - done)
        done += length
        yield done, length


def _run_evaluation_calls(facts: CostInput, most: bool) -> Iterator[_Calls]:
    sampler, done = facts.sampler, facts.steps_done
    every = facts.evaluated_every or sampler.steps_per_epoch
    first = int(facts.evaluated_first)  # a fork begins with one too
    rollouts = (first + sampler.total_steps // every - done // every) * facts.held_out - facts.known
    begun, ended = (_library_tokens(facts, at, most) for at in (done, sampler.total_steps))
    guidance = ended if most else (begun + ended) / 2
    if facts.practice.algorithm == "both":  # two of four cells are new, of those one has a library
        yield from _evaluation_calls(facts, most, 2 * facts.held_out, ended / 2)
    yield from _evaluation_calls(facts, most, max(0, rollouts), guidance)


def _stretch_calls(facts: CostInput, most: bool, step: int, length: int) -> Iterator[_Calls]:
    """The practice of so many steps up to this one, each with its library as it likely will be."""
    batch, size, practice = facts.sampler.batch_length(step), facts.group_size, facts.practice
    if length > 1:
        batch = facts.sampler.batch_size
    library = _library_tokens(facts, step - 1, most)
    rollout = _reply_tokens(facts, "rollout", facts.policy, most)
    asked = facts.instructions + facts.question + library
    for calls in _try_calls(facts, most, "rollouts", length * batch * size, asked, rollout):
        if not (facts.replayed and calls.stage == "rollouts"):
            yield calls
    lessons = practice.library_steps(step) - practice.library_steps(step - length)
    if not lessons:
        return  # no reflector is asked
    if size < 2 and practice.given_ground_truth:
        return  # a single try differs from nothing

    share = facts.contrast_share
    # Of the groups without contrast half are taken to be all wrong.
    unlike = min(practice.read_without_contrast, batch * (1 - share) / 2)
    read = batch if most else batch * share + unlike
    # Without a truth all that is known is how often an answer was said, so all are shown.
    shown = min(size, SHOWN.pick(most)) if practice.given_ground_truth else size
    budget = practice.read_chars / BYTES_A_TOKEN
    exceeds = rollout * shown > budget and rollout > practice.summarise_above_chars / BYTES_A_TOKEN
    retold = most or exceeds
    summary = _reply_tokens(facts, "summary", facts.reflector, most)
    if retold:
        prompt = facts.summarise + facts.question + rollout
        yield _Calls("summaries", lessons * read * shown, prompt, summary)
    if size < 2:
        return  # a single try is summarised, but there is no other to compare it with

    attempt = min(rollout, budget) if most or not retold else summary
    prompt = facts.extract + facts.question + facts.truth + library
    prompt += attempt * shown + ATTEMPT_TOKENS * size
    extraction = _reply_tokens(facts, "extraction", facts.reflector, most)
    drafts = lessons * practice.proposals
    worsened = practice.reflect_on_worsened if most and facts.held_out else 0
    yield _with_repeat("extraction", (read + worsened) * drafts, prompt, extraction, most)

    # A step consolidates, if any of its groups shows a difference, at once or as a tree.
    asks = 1.0 if most else 1 - (1 - share) ** batch
    asked_n = _consolidation_calls(facts, read, most)
    sent = (extraction + ATTEMPT_TOKENS) * read * (2 / asked_n if asked_n > 1 else 1)
    prompt = facts.consolidate + sent + library
    reply = _reply_tokens(facts, "consolidation", facts.reflector, most)
    yield _with_repeat("consolidation", asks * asked_n * drafts, prompt, reply, most)

    proposed = batch * practice.experiences_per_query
    wordings = proposed if most else min(facts.growth, proposed)
    if facts.tried:  # on average half of the tries tell; the library without any is tried once
        tries = facts.tried * (1 + wordings * (1 if most else 0.5))
        tries += facts.choice * (practice.proposals + 1) * (practice.proposals > 1)
        yield from _try_calls(facts, most, "gate", lessons * math.ceil(tries), asked, rollout)
    if facts.embedding is not None:  # each new wording, and with the first the whole library
        yield _Calls("embeddings", wordings * drafts, _longest(facts, most), 0.0)
        if step - length == facts.steps_done and facts.experiences:
            yield _Calls("embeddings", 1, facts.experiences * facts.experience, 0.0)


def _consolidation_calls(facts: CostInput, read: float, most: bool) -> float:
    """Calls of one consolidation; merged, half of the proposals are likely to be left."""
    n, a_call = facts.practice.experiences_per_query * read, facts.practice.proposals_per_call
    if math.ceil(n) <= a_call:
        return 1.0
    merging, last = plan_calls(math.ceil(n), a_call)
    return merging + min(last, math.ceil(n * (1 if most else 0.5) / a_call))


def _evaluation_calls(
    facts: CostInput, most: bool, tries: int, guidance: float
) -> Iterator[_Calls]:
    reply = _reply_tokens(facts, "evaluation", facts.policy, most)
    asked = facts.instructions + facts.held_out_question + guidance
    return _try_calls(facts, most, "evaluation", tries, asked, reply)


def _try_calls(
    facts: CostInput, most: bool, stage: str, tries: int, asked: float, reply: float
) -> Iterator[_Calls]:
    """Tries of one or more turns, and what judges them.

    Each later prompt of a try holds the replies and results before it.
    """
    turns = facts.turns.pick(most)
    before = (reply + TOOL_RESULT.pick(most)) * (turns - 1) / 2
    yield _Calls(stage, tries * turns, asked + before, reply)
    prompt = facts.judging + facts.question + facts.truth + reply
    verdict = _reply_tokens(facts, "judge", facts.judge, most)
    yield _with_repeat("judging", tries * facts.judged.pick(most), prompt, verdict, most)


def _with_repeat(stage: str, n: float, prompt: float, reply: float, most: bool) -> _Calls:
    """Questions that are at most asked again once, with the reply that could not be read."""
    if not most:
        return _Calls(stage, n, prompt, reply)
    return _Calls(stage, 2 * n, prompt + (reply + REPAIR_TOKENS) / 2, reply)


def _library_tokens(facts: CostInput, after: int, most: bool) -> float:
    """What the library adds to a prompt after so many steps."""
    practice = facts.practice
    a_step = facts.sampler.batch_size * practice.experiences_per_query
    limit = practice.library_limit
    room = math.inf if limit is None else max(0, limit - facts.experiences)
    steps = practice.library_steps(after) - practice.library_steps(facts.steps_done)
    added = steps * (a_step if most else min(facts.growth, a_step))
    return facts.guidance + min(added, room) * _longest(facts, most)


def _longest(facts: CostInput, most: bool) -> float:
    return max(LONGEST_EXPERIENCE, facts.experience) if most else facts.experience


def _reply_tokens(facts: CostInput, purpose: str, terms: CallPricing, most: bool) -> float:
    longest = terms.reply_tokens()
    return longest if most else min(facts.replies[purpose], longest)


READ_AT_MOST = 4000
"""Records of an earlier run that lengths are taken from: more hardly change a mean."""
BYTES_AT_LEAST = 3.0
"""Of a token, for "at most": what a budget reserves by."""
_LESSONS: Mapping[str, float] = {"summary": 200, "extraction": 150, "consolidation": 300}
ASSUMED: Mapping[str, float] = {"rollout": 400, "judge": 120, **_LESSONS}
"""Tokens of a reply where no run of the model was measured: short chains of thought."""
_ROLES: Mapping[str, Role] = {"rollout": "policy", "evaluation": "policy", "judge": "judge"}
"""Who replies; all else is the reflector's."""
_PROGRAM_CALLS = 10
"""Of one try at most, where a program decides."""
SCAFFOLD_TOKENS = 16
"""What a chat template adds to a request."""
LINE_TOKENS = 4
"""What the prompt adds to each experience: its id and a line break."""


@dataclass(slots=True)
class MeasuredUsage:
    """What the records of one run add up to. Lengths are tokens."""

    run: str = ""
    n: Counter[str] = field(default_factory=Counter)
    reply: Counter[str] = field(default_factory=Counter)
    contrast: float | None = None  # share of groups that had it
    growth: float | None = None
    turns: float | None = None  # of a try, on average


def estimate_run(plan: RunPlan) -> Estimate:
    """Estimate what is left of a planned run. Raises StudioError as it reads."""
    facts, notes = _gather_input(plan)
    return replace(estimate(facts), notes=notes)


def _gather_input(plan: RunPlan) -> tuple[CostInput, tuple[str, ...]]:
    """Gather everything; the notes say where lengths come from. Raises StudioError as it reads."""
    config = plan.loaded.config
    measured = _measure_earlier_run(plan.workspace, plan.fingerprint, ("policy", "reflector"))
    replies, notes = _reply_lengths(measured, config)
    facts = _prompt_facts(config, plan.problems, plan.sampler, replies, measured)
    library = _next_library(plan)
    writer = prompt_writer(config)
    texts = [experience.text for experience in library.experiences] if library is not None else []
    facts = replace(
        facts,
        guidance=_tokens(writer.write(library, "")[0]),
        experiences=len(texts),
        experience=_tokens(*texts) / len(texts) + LINE_TOKENS if texts else facts.experience,
        contrast=measured.contrast,
        growth=2.0 if measured.growth is None else measured.growth,
    )
    facts = _with_evaluation(_with_progress(facts, plan), plan, writer.describe(library))
    if facts.practice.reflects and facts.contrast is None and facts.practice.given_ground_truth:
        share = facts.contrast_share
        notes.append(f"assumed: {share:.0%} of groups of {facts.group_size} show a difference")
    if facts.practice.reflects and measured.growth is None:
        notes.append("assumed: a step adds 2 experiences")
    return facts, tuple(notes)


def estimate_eval(
    config: RunConfig,
    workspace: Workspace,
    fingerprint: Mapping[str, Any],
    problems: tuple[Problem, ...],
    missing: Sequence[tuple[str, int]],
) -> Estimate:
    """Estimate an evaluation alone: rollouts of held-out `problems` and what judges them.

    `missing` are the rollouts to make with each guidance.
    """
    measured = _measure_earlier_run(workspace, fingerprint, ("policy",))
    replies, notes = _reply_lengths(measured, config, ("rollout", "judge"))
    sampler = Sampler(max(1, len(problems)), 1, 1, config.seed)
    facts = _prompt_facts(config, problems, sampler, replies, measured)
    facts = replace(facts, held_out_question=facts.question)
    parts = [(_tokens(text), n) for text, n in missing]
    return replace(estimate_evaluation(facts, parts), notes=tuple(notes))


def _prompt_facts(
    config: RunConfig,
    problems: tuple[Problem, ...],
    sampler: Sampler,
    replies: Mapping[str, float],
    measured: MeasuredUsage,
) -> CostInput:
    """What the run file says, with the lengths of its prompts."""
    practice = config.practice

    def prompt(name: str, *more: str) -> float:
        body = load_prompt("engines.training_free", name).body
        return _tokens(body, *more) + SCAFFOLD_TOKENS

    objectives = (practice.agent_objective, practice.learning_objective)
    judge, form = (load_prompt("engines.verifiers", n).body for n in ("judge", "form_binary"))
    wanted, gate = config.lint.embedding, config.review.gate
    left = len(problems) - practice.batch_size if gate.data is None else MAX_COUNT
    return CostInput(
        sampler=sampler,
        group_size=config.rollouts_a_problem,
        policy=terms_of(config.role("policy")),
        reflector=terms_of(config.role("reflector")),
        judge=terms_of(config.role("judge")),
        replies=replies,
        instructions=_tokens(config.agent.instructions) + SCAFFOLD_TOKENS,
        question=_question_tokens(problems),
        truth=_tokens(*(p.answer or "" for p in problems)) / max(1, len(problems)),
        # With its longer question: which of the two a group gets is not known before.
        extract=prompt("extract", *objectives) + prompt("critique"),
        consolidate=prompt("consolidate", *objectives),
        summarise=prompt("summarise"),
        judging=_tokens(judge, form),
        judged=judge_questions(config.verifier.spec),
        turns=_turns(config, measured),
        practice=practice,
        tried=(gate.problems or 0) * gate.k,
        choice=math.prod(choice_size(gate.problems or 0, gate.k, left)),
        replayed=config.policy.model.startswith("replay:"),
        embedding=embedding_terms(wanted) if wanted and wanted.model != "rehearsal" else None,
        at_most=BYTES_A_TOKEN / BYTES_AT_LEAST,
    )


def _with_progress(facts: CostInput, plan: RunPlan) -> CostInput:
    if plan.mode in ("resume", "finished"):
        facts = replace(facts, done=_count_replies(plan.run))
    state = plan.state
    if state is None:
        return replace(facts, steps_done=plan.adopted_steps)
    return replace(facts, steps_done=state.steps_finished)


def _turns(config: RunConfig, measured: MeasuredUsage) -> Range:
    """Replies of a try. How many calls a program makes, only a run of it tells."""
    agent = config.agent
    # At most and likely; a team: an analysis, three replies a step, an answer, each repaired once.
    most, likely = {
        "single_turn": (1, 1.0),
        "team": (2 * (2 + 3 * agent.max_turns), 8.0),
        "command": (_PROGRAM_CALLS, 1.0),
        "function": (_PROGRAM_CALLS, 1.0),
    }.get(agent.kind, (agent.max_turns, 2.0))
    likely = measured.turns or likely
    return Range(likely, max(likely, float(most)))


def _with_evaluation(facts: CostInput, plan: RunPlan, guidance: str) -> CostInput:
    """When the library is evaluated, and what of it is measured already.

    The first evaluation is the run's own: a fork is evaluated with the result of the adopted steps.
    """
    config, state = plan.loaded.config, plan.state
    if not (sets := evaluated_sets(plan.loaded)):
        return facts
    problems = tuple(problem for held_out in sets for problem in held_out.problems)
    contents = {problem_digest(problem) for problem in problems}
    k, evaluation = config.evaluation.k, config.evaluation
    first = state is None
    if state is not None:
        begun_with = state.started.forked_steps if state.started else 0
        done = sum(found.step == begun_with for found in state.evaluations)
        first = state.step == begun_with and done < len(sets)
    known = 0
    if first:
        settings = measurement_settings(config, plan.fingerprint)
        book = score_book_opener(plan.workspace.evaluations, settings, plan.loaded)
        # Weights that are trained are known by their content; those of a later step by nobody.
        weights = "" if config.trains else weights_digest(config.policy)
        known = len(contents) * k - book(guidance, weights).count_missing(contents, k)
    return replace(
        facts,
        held_out=len(contents) * k,
        held_out_question=_question_tokens(problems),
        evaluated_first=first,
        evaluated_every=None if evaluation.strategy == "epoch" else evaluation.every_steps,
        known=known,
    )


def _tokens(*texts: str) -> float:
    return sum(len(text.encode("utf-8", "replace")) for text in texts) / BYTES_A_TOKEN


def _question_tokens(problems: tuple[Problem, ...]) -> float:
    return _tokens(*(p.question for p in problems)) / max(1, len(problems))


def judge_questions(spec: object) -> Range:
    """Questions put to a judge for one verdict; a function may ask one."""
    names = _verifier_names(spec)
    sure = names.count("judge")
    return Range(sure, sure + names.count("function"))


def _verifier_names(spec: object) -> list[str]:
    if not isinstance(spec, Mapping):
        return [str(spec)]
    inner = spec.get("of")
    if isinstance(inner, list | tuple):
        return [name for entry in inner for name in _verifier_names(entry)]
    # A verifier that shapes the reward of one other has a single inner one.
    return [str(spec.get("name"))] if inner is None else _verifier_names(inner)


def _reply_lengths(
    measured: MeasuredUsage, config: RunConfig, only: Sequence[str] = tuple(ASSUMED)
) -> tuple[dict[str, float], list[str]]:
    """The likely length of a reply by purpose, and notes on where those asked for come from."""
    never = set() if config.practice.reflects else set(_LESSONS)
    never |= set() if judge_questions(config.verifier.spec).at_most else {"judge"}
    replies, sources = dict[str, float](), dict[str, list[str]]()
    for purpose in (*ASSUMED, "evaluation"):
        role = config.role(_ROLES.get(purpose, "reflector"))
        n, of = measured.n[purpose], ""
        if n:
            replies[purpose], source = measured.reply[purpose] / n, f" as in run {measured.run}"
            of = f" (n={n})"
        else:
            usual = replies["rollout"] if purpose == "evaluation" else ASSUMED[purpose]
            replies[purpose], source = min(usual, terms_of(role).reply_tokens()), ", assumed"
        if purpose in only and purpose not in never:
            sources.setdefault(source, []).append(f"{purpose} {replies[purpose]:.0f}{of}")
    notes = [f"tokens of a reply{how}: {', '.join(parts)}" for how, parts in sources.items()]
    return replies, notes


def _measure_earlier_run(
    workspace: Workspace, fingerprint: Mapping[str, Any], roles: Sequence[Role]
) -> MeasuredUsage:
    """The newest finished run of the same models that recorded something, else any that did.

    What was cut short has more of the long replies, and fewer steps to tell the growth by.
    """
    names = [f"{role}.model" for role in roles]
    cut_short = None
    # The newest first: its data and prompts are most like those of the run to come.
    for run in reversed(workspace.runs()):
        try:
            state = run.state()
            if any(state.settings.get(name) != fingerprint[name] for name in names):
                continue
            found = _measure_run(run, state, workspace)
        except (StudioError, OSError):
            continue  # a damaged run is of no use here, and is reported when it is opened
        if found.n and state.status == "finished":
            return found
        cut_short = cut_short or (found if found.n else None)
    return cut_short or MeasuredUsage()


def _measure_run(run: RunDir, state: RunState, workspace: Workspace) -> MeasuredUsage:
    found = MeasuredUsage(run.run)
    for record in islice(_read_records(run.records), READ_AT_MOST):
        usage, purpose = record["reply"]["usage"], record["key"]["purpose"]
        if usage["calls"] and not record.get("lost"):
            found.n[purpose] += 1
            found.reply[purpose] += usage["completion_tokens"]
    groups = state.group_outcomes()
    found.contrast = groups["used"] / sum(groups.values()) if sum(groups.values()) else None
    if tries := sum(step.rollouts_done for step in state.steps.values()):
        found.turns = sum(step.turns for step in state.steps.values()) / tries or None
    if state.started is None:
        return found
    if steps := state.steps_finished - state.started.forked_steps:
        folder = workspace.library(state.started.library)
        before = folder.at(state.started.library_version).experiences
        after = folder.at(state.library_version).experiences
        found.growth = max(0.0, (len(after) - len(before)) / steps)
    return found


def _read_records(folder: Path, pattern: str = "*.jsonl") -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(pattern)):
        for line in lines.read(path, chained=False).lines:
            yield orjson.loads(line.body)


def _count_replies(run: RunDir, pattern: str = "*.jsonl") -> Counter[str]:
    records = _read_records(run.records, pattern)
    return Counter(str(found["key"]["purpose"]) for found in records if not found.get("lost"))


def _next_library(plan: RunPlan) -> Library | None:
    if plan.state is not None and plan.state.started is not None:
        folder = plan.workspace.library(plan.state.started.library)
        return folder.at(plan.state.library_version)
    if plan.parent is not None:
        name, version, *_ = forked_library(plan.parent, plan.adopted_steps)
        return plan.workspace.library(name).at(version)
    return choose_library(plan.loaded, plan.workspace, None)[0]


NO_PRICE = (
    "the cost is unknown without prices: set policy.price_in_usd_per_mtok and "
    "policy.price_out_usd_per_mtok, in dollars for a million tokens (reflector and judge alike)"
)


async def print_dry_run(plan: RunPlan, *, json: bool) -> int:
    """Check everything that can be checked without asking a model, and print what it would cost.

    Raises StudioError: something could not be opened.
    """
    config = plan.loaded.config
    if note := rehearsal_note(config):
        to_stderr(note)
    check_budget(plan.loaded, config)
    async with AsyncExitStack() as stack:
        await check_verifier(plan, stack)
    estimate = estimate_run(plan)
    is_paid = costs_money(config, estimate)
    if estimate.cost_usd is None and is_paid:
        estimate = replace(estimate, notes=(*estimate.notes, NO_PRICE))
    budget = open_budget(plan.loaded, config, plan.run.records, lambda _: None)
    left = budget.remaining if budget is not None else {}
    total = plan.sampler.total_steps
    done = plan.state.steps_finished if plan.state else plan.adopted_steps
    lines = [
        f"run {plan.run.run}: {plan.mode}, {total - done} of {total} steps to be done",
        estimate_table(estimate, costs_money=is_paid),
        "",
        *(f"note: {note}" for note in estimate.notes),
    ]
    if limits := limits_of(config):
        lines.append(f"budget: {limits_text(limits)}")
        if short := exceeded_limits_text(estimate, left):
            lines.append(f"the budget will likely not do: {short}")
    planned = {"run": plan.run.run, "mode": plan.mode, "steps_left": total - done,
               "steps": total, "budget": limits.amounts, "budget_left": left}  # fmt: skip
    print_result(planned | json_data(estimate), "\n".join(lines), json=json)
    if not json:
        after = "the same without --dry-run begins it"
        if done == total:
            after = "nothing is left: --name NAME begins another run, more practice.epochs go on"
        tell_next(after, plan.workspace.path)
    return exit_codes.DONE


def costs_money(config: RunConfig, found: Estimate) -> bool:
    """Whether an endpoint is asked, or a price is rehearsed; what runs here has no price."""
    roles: tuple[Role, ...] = ("policy", "reflector", "judge")
    asks = any(config.role(role).model.startswith("openai:") for role in roles)
    return asks or any(stage.cost_usd and stage.cost_usd.at_most for stage in found.stages)


def tell_estimate(plan: RunPlan, left: dict[str, float]) -> None:
    """Print what a run will likely cost beside what is left of its budget."""
    found = estimate_run(plan)
    to_stderr(f"budget: {limits_text(limits_of(plan.loaded.config))}")
    to_stderr(f"estimate: {estimate_line(found)}")
    if short := exceeded_limits_text(found, left):
        to_stderr(f"warning: the budget will likely not do: {short}; the run then ends with exit 5")
