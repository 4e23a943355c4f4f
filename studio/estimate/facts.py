"""What an estimate is computed from: the plan, its prompts, and earlier runs.

Owns what is assumed where nothing was measured, and says so in notes. Asks no model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from engines.pipeline.effect.effect_gate import choice_size
from engines.record import lines
from engines.record.run_dir import RunDir, Workspace
from engines.record.scores import problem_digest
from studio.config.settings.policy import Role
from studio.config.settings.run import RunConfig
from studio.estimate.cost import BYTES_A_TOKEN, Facts, Range
from studio.run.budget import embedding_terms, terms_of
from studio.run.held_out import (
    evaluated_sets,
    measurement_settings,
    prompt_writer,
    score_book_opener,
)
from studio.run.library import choose_library
from studio.run.models import weights_digest
from studio.run.new_or_resume import RunPlan, forked_library

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
    group_size: int = 2
    growth: float | None = None
    turns: float | None = None  # of a try, on average


def gather_facts(plan: RunPlan) -> tuple[Facts, tuple[str, ...]]:
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
        contrast_of=measured.group_size,
        growth=2.0 if measured.growth is None else measured.growth,
    )
    facts = _with_evaluation(_with_progress(facts, plan), plan, writer.describe(library))
    if facts.practice.reflects and facts.contrast is None and facts.practice.given_ground_truth:
        share = facts.contrast_share(facts.group_size)
        notes.append(f"assumed: {share:.0%} of groups of {facts.group_size} show a difference")
    if facts.practice.reflects and measured.growth is None:
        notes.append("assumed: a step adds 2 experiences")
    return facts, tuple(notes)


def gather_eval_facts(
    config: RunConfig,
    workspace: Workspace,
    fingerprint: Mapping[str, Any],
    problems: tuple[Problem, ...],
    missing: Sequence[tuple[str, int]],
) -> tuple[Facts, tuple[tuple[float, int], ...], tuple[str, ...]]:
    """The same of an evaluation alone: rollouts of held-out `problems` and what judges them.

    `missing` are the rollouts to make with each guidance; what comes back has its tokens instead.
    """
    measured = _measure_earlier_run(workspace, fingerprint, ("policy",))
    replies, notes = _reply_lengths(measured, config, ("rollout", "judge"))
    sampler = Sampler(max(1, len(problems)), 1, 1, config.seed)
    facts = _prompt_facts(config, problems, sampler, replies, measured)
    facts = replace(facts, held_out_question=facts.question)
    return facts, tuple((_tokens(text), n) for text, n in missing), tuple(notes)


def _prompt_facts(
    config: RunConfig,
    problems: tuple[Problem, ...],
    sampler: Sampler,
    replies: Mapping[str, float],
    measured: MeasuredUsage,
) -> Facts:
    """What the run file says, with the lengths of its prompts."""
    practice = config.practice

    def prompt(name: str, *more: str) -> float:
        body = load_prompt("engines.training_free", name).body
        return _tokens(body, *more) + SCAFFOLD_TOKENS

    objectives = (practice.agent_objective, practice.learning_objective)
    judge, form = (load_prompt("engines.verifiers", n).body for n in ("judge", "form_binary"))
    wanted, gate = config.lint.embedding, config.review.gate
    left = len(problems) - practice.batch_size if gate.data is None else MAX_COUNT
    return Facts(
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


def _with_progress(facts: Facts, plan: RunPlan) -> Facts:
    if plan.mode in ("resume", "finished"):
        facts = replace(facts, done=_count_replies(plan.run))
    state = plan.state
    if state is None:
        return replace(facts, steps_done=plan.adopted_steps)
    facts = replace(facts, steps_done=state.steps_finished)
    if state.current is None:
        return facts
    known = state.current.lesson is not None or state.current.committed
    begun = _count_replies(plan.run, f"step-{state.step:04d}.jsonl")
    return replace(facts, under_way=begun, lesson_known=known)


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


def _with_evaluation(facts: Facts, plan: RunPlan, guidance: str) -> Facts:
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
    if first or facts.lesson_known:
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
    never |= set() if judge_questions(config.verifier.spec).most else {"judge"}
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
    if state.started is not None:
        found.group_size = state.started.group_size
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
